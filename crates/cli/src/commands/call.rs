//! Calling any method, known by its descriptor.

use std::{io::Read, time::Duration};

use futures::{Stream, StreamExt, stream};
use prost_reflect::DynamicMessage;
use selvage_api::Method;
use tokio::sync::{mpsc, oneshot};
use tonic::{
    client::Grpc,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
};

use crate::{
    Error, body, client::Client, codec::DynamicCodec, io::Io, lookup, output::Printer,
    session::Session,
};

/// Servers answer with lists; a list of this size is still a fair answer.
const LARGEST_ANSWER: usize = 64 << 20;
/// Rows of a table wait this long for others to line up with.
const GATHER: Duration = Duration::from_millis(250);

/// `selvage call`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage call selvage.identity.IdentityService/WhoAmI
  selvage call edgeproto.FlavorApi/ShowFlavor '{}' -o table
  selvage call edgeproto.FlavorApi/CreateFlavor @flavor.json
  echo '{\"version\": 1} {\"version\": 2}' | selvage call edgeproto.NotifyApi/StreamNotice -

`selvage api list` shows all methods, `selvage api describe NAME` their fields.
Field names are those of the contract or their camelCase form.
Without a body an empty message is sent: stdin is read only where - asks for it,
or where the method takes a stream.")]
pub struct Call {
    /// package.Service/Method
    pub method: String,

    /// JSON, @FILE, or - for stdin; several objects where the method takes a stream [default: {}]
    pub body: Option<String>,

    /// Metadata to send, as key:value
    #[arg(short = 'H', long = "header", value_name = "KEY:VALUE")]
    pub headers: Vec<String>,

    /// Print fields that have their default value too
    #[arg(long)]
    pub all_fields: bool,
}

type Header = (AsciiMetadataKey, AsciiMetadataValue);

pub(crate) async fn run(args: Call, session: &mut Session<'_>) -> Result<(), Error> {
    let method = lookup::method(&args.method)?;
    let headers = headers(&args.headers)?;
    let input = open(args.body.as_deref(), method, session.io)?;
    let (requests, failed) = requests(input, method)?;
    let client = session.client().await?;

    let colour = session.io.colour_on_out(session.global.color);
    let printer = match session.global.output {
        None => Printer::pretty(&mut session.io.out, colour),
        Some(format) => Printer::new(&mut session.io.out, format, colour),
    };
    let exchange =
        exchange(&client, method, headers, requests, printer.all_fields(args.all_fields));
    // Whichever ends first, the call is dropped, and dropping cancels it.
    tokio::select! {
        biased;
        Ok(error) = failed => Err(error),
        result = exchange => result,
        Ok(()) = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    }
}

fn headers(texts: &[String]) -> Result<Vec<Header>, Error> {
    texts.iter().map(|text| header(text)).collect()
}

fn header(text: &str) -> Result<Header, Error> {
    let wrong = |why: &str| Error::invalid(format!("--header {text:?}: {why}"));
    let (key, value) = text.split_once(':').ok_or_else(|| wrong("must be key:value"))?;
    let key = key.trim().to_ascii_lowercase();
    if key == "authorization" || key == "cookie" {
        // Not echoed: what stands there is a secret.
        return Err(Error::Invalid {
            message: format!("--header {key}: credentials do not belong on a command line"),
            hints: vec![
                "put the token into SELVAGE_TOKEN or a file named with --token-file".into(),
            ],
        });
    }
    if key.ends_with("-bin") || key.starts_with("grpc-") {
        return Err(wrong("-bin and grpc- keys cannot be set"));
    }
    let name = key.parse().map_err(|_| wrong("the key is not a header's name"))?;
    let value = value.trim().parse().map_err(|_| wrong("the value must be visible ASCII"))?;
    Ok((name, value))
}

fn open(body: Option<&str>, method: &Method, io: &mut Io) -> Result<Box<dyn Read + Send>, Error> {
    match body {
        Some("-") => io.take_input("the body"),
        None if method.client_streaming => io.take_input("the body"),
        None => Ok(Box::new("{}".as_bytes())),
        Some(text) => match text.strip_prefix('@') {
            None => Ok(Box::new(std::io::Cursor::new(text.to_owned()))),
            Some(path) => {
                let file = std::fs::File::open(path).map_err(|source| Error::read(path, source))?;
                Ok(Box::new(file))
            }
        },
    }
}

type Requests = stream::BoxStream<'static, DynamicMessage>;

/// The messages to send, and where a failure to read them shows.
fn requests(
    input: Box<dyn Read + Send>,
    method: &'static Method,
) -> Result<(Requests, oneshot::Receiver<Error>), Error> {
    let (fail, failed) = oneshot::channel();
    if method.client_streaming {
        return Ok((from_thread(input, method, fail).boxed(), failed));
    }
    let mut messages = body::read_all(input, &method.input);
    let message =
        messages.next().ok_or_else(|| Error::invalid("the body is empty; {} is the least"))??;
    if let Some(more) = messages.next() {
        more?;
        return Err(Error::invalid(format!(
            "the body holds several messages, and {} takes one",
            &method.path[1..]
        )));
    }
    Ok((stream::iter([message]).boxed(), failed))
}

/// Reads in a thread of its own, for stdin cannot be waited for otherwise. A
/// mistake is told apart from the end: the end of the stream makes the server
/// act on what it has, which nobody who made a mistake wants.
fn from_thread(
    input: Box<dyn Read + Send>,
    method: &'static Method,
    fail: oneshot::Sender<Error>,
) -> impl Stream<Item = DynamicMessage> + Send + 'static {
    let (send, mut receive) = mpsc::channel(1);
    std::thread::spawn(move || {
        for message in body::read_all(input, &method.input) {
            let stop = message.is_err();
            if send.blocking_send(message).is_err() || stop {
                break;
            }
        }
    });
    until_mistake(move |cx| receive.poll_recv(cx), fail)
}

/// Passes messages on; at the first mistake tells of it and never ends.
fn until_mistake(
    mut next: impl FnMut(
        &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<DynamicMessage, Error>>>
    + Send
    + 'static,
    fail: oneshot::Sender<Error>,
) -> impl Stream<Item = DynamicMessage> + Send + 'static {
    let mut fail = Some(fail);
    stream::poll_fn(move |cx| {
        let Some(sender) = fail.take() else { return std::task::Poll::Pending };
        match next(cx) {
            std::task::Poll::Ready(Some(Err(error))) => {
                // Gone only when the call is over, and then nobody minds.
                let _ = sender.send(error);
                std::task::Poll::Pending
            }
            other => {
                fail = Some(sender);
                other.map(|item| item.and_then(Result::ok))
            }
        }
    })
}

async fn exchange(
    client: &Client,
    method: &Method,
    headers: Vec<Header>,
    requests: Requests,
    printer: Printer<'_>,
) -> Result<(), Error> {
    let limit = client.limit(method.client_streaming || method.server_streaming);
    let mut request = client.request(requests, limit)?;
    for (key, value) in headers {
        request.metadata_mut().append(key, value);
    }
    let talk = talk(client, method, request, printer);
    match limit {
        None => talk.await,
        Some(limit) => {
            tokio::time::timeout(limit, talk).await.unwrap_or(Err(Error::Deadline(limit)))
        }
    }
}

async fn talk(
    client: &Client,
    method: &Method,
    request: tonic::Request<Requests>,
    mut printer: Printer<'_>,
) -> Result<(), Error> {
    let path = http::uri::PathAndQuery::try_from(method.path.as_str())
        .map_err(|_| Error::Unexpected(format!("{} is no path", method.path)))?;
    let mut grpc = Grpc::new(client.channel()).max_decoding_message_size(LARGEST_ANSWER);
    grpc.ready().await.map_err(|error| Error::Unexpected(error.to_string()))?;
    let codec = DynamicCodec { output: method.output.clone() };
    let mut answers = grpc
        .streaming(request, path, codec)
        .await
        .map_err(|status| client.refused(&status))?
        .into_inner();
    if method.server_streaming {
        return print_stream(client, answers, printer).await;
    }
    let answer = answers.message().await.map_err(|status| client.refused(&status))?;
    let answer = answer.ok_or_else(|| Error::Unexpected("the server did not answer".into()))?;
    // The status comes after the answer, and can still be a refusal.
    answers.message().await.map_err(|status| client.refused(&status))?;
    printer.message(&answer)?;
    printer.flush()
}

async fn print_stream(
    client: &Client,
    mut answers: tonic::Streaming<DynamicMessage>,
    mut printer: Printer<'_>,
) -> Result<(), Error> {
    loop {
        let next = match tokio::time::timeout(GATHER, answers.next()).await {
            Ok(next) => next,
            Err(_) => {
                printer.flush()?;
                answers.next().await
            }
        };
        match next {
            Some(Ok(answer)) => printer.row(&answer)?,
            Some(Err(status)) => {
                printer.flush()?;
                return Err(client.refused(&status));
            }
            None => return printer.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_are_checked_and_secrets_refused() {
        let (key, value) = header("X-Trace: abc").unwrap();
        assert_eq!((key.as_str(), value.to_str().unwrap()), ("x-trace", "abc"));
        for wrong in ["x", "a b:c", "x-bin:1", "grpc-timeout:1S", ":x"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
        let error = header("Authorization: Bearer canary").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
