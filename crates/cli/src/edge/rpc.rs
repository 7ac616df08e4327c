//! Calls on objects by their descriptors.

use std::time::Duration;

use prost_reflect::DynamicMessage;
use selvage_api::{Code, Method};
use tonic::{Streaming, client::Grpc, metadata::MetadataValue};

use crate::{Error, client::Client, codec::DynamicCodec};

/// Tells the server to plan only. It answers with the same, so that a server
/// that does not know of it cannot be mistaken for one that only planned.
const DRY_RUN: &str = "x-selvage-dry-run";
const LARGEST_ANSWER: usize = 64 << 20;

/// The answers of a call that has begun.
pub(crate) struct Answers {
    stream: Streaming<DynamicMessage>,
    method: &'static Method,
    until: Option<tokio::time::Instant>,
    limit: Option<Duration>,
    /// True if the server says that it only plans.
    pub(crate) dry: bool,
}

/// Failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection broke: what was begun may go on.
    pub(crate) broke: bool,
}

/// Begins a call with one message.
pub(crate) async fn open(
    client: &Client,
    method: &'static Method,
    message: DynamicMessage,
    dry_run: bool,
) -> Result<Answers, Failure> {
    let sound = |error| Failure { error, broke: false };
    let limit = client.limit(method.server_streaming);
    let once = futures::stream::iter([message]);
    let mut request = client.request(once, limit).map_err(sound)?;
    if dry_run {
        request.metadata_mut().insert(DRY_RUN, MetadataValue::from_static("true"));
    }
    let path = http::uri::PathAndQuery::try_from(method.path.as_str())
        .map_err(|_| sound(Error::Unexpected(format!("{} is no path", method.path))))?;
    let mut grpc = Grpc::new(client.channel()).max_decoding_message_size(LARGEST_ANSWER);
    grpc.ready().await.map_err(|error| Failure {
        error: Error::Unexpected(format!("the connection cannot be used: {error}")),
        broke: true,
    })?;
    let codec = DynamicCodec { output: method.output.clone() };
    let until = limit.map(|limit| tokio::time::Instant::now() + limit);
    let begin = within(until, limit, grpc.streaming(request, path, codec));
    let answer = begin.await.map_err(sound)?.map_err(|status| failed(client, method, &status))?;
    let dry = answer.metadata().contains_key(DRY_RUN);
    Ok(Answers { stream: answer.into_inner(), method, until, limit, dry })
}

impl Answers {
    pub(crate) async fn next(
        &mut self,
        client: &Client,
    ) -> Result<Option<DynamicMessage>, Failure> {
        let next = within(self.until, self.limit, self.stream.message());
        match next.await {
            Err(error) => Err(Failure { error, broke: false }),
            Ok(answer) => answer.map_err(|status| failed(client, self.method, &status)),
        }
    }
}

async fn within<F: Future>(
    until: Option<tokio::time::Instant>,
    limit: Option<Duration>,
    work: F,
) -> Result<F::Output, Error> {
    match (until, limit) {
        (Some(until), Some(limit)) => {
            tokio::time::timeout_at(until, work).await.map_err(|_| Error::Deadline(limit))
        }
        _ => Ok(work.await),
    }
}

fn failed(client: &Client, method: &Method, status: &tonic::Status) -> Failure {
    use std::error::Error as _;
    let error = client.refused(status);
    let broke = status.source().is_some() && !matches!(error, Error::Deadline(_));
    Failure { error: about(method, error), broke }
}

/// The failure with the name of what failed, as the original's clients print
/// it.
pub(crate) fn about(method: &Method, error: Error) -> Error {
    match error {
        Error::Status { code, message, hints } => {
            let hints = advice(code, &message).unwrap_or(hints);
            Error::Status { code, message: format!("{} failed: {message}", method.name), hints }
        }
        other => other,
    }
}

/// Advice where the usual one would lead astray.
fn advice(code: Code, message: &str) -> Option<Vec<String>> {
    match code {
        // The crm failed; nobody came in between.
        Code::Aborted if message.starts_with("Encountered failures") => Some(Vec::new()),
        Code::Unavailable => {
            let (_, rest) = message.split_once("; operation ")?;
            let (id, _) = rest.split_once(' ')?;
            Some(vec![format!("`selvage operation follow {id}` waits for its end")])
        }
        _ => None,
    }
}

/// All that a Show answers.
pub(crate) async fn show(
    client: &Client,
    method: &'static Method,
    filter: DynamicMessage,
) -> Result<Vec<DynamicMessage>, Error> {
    let mut answers = open(client, method, filter, false).await.map_err(|f| f.error)?;
    let mut all = Vec::new();
    while let Some(object) = answers.next(client).await.map_err(|failure| failure.error)? {
        all.push(object);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_what_happened() {
        let failures = "Encountered failures: no such image";
        assert_eq!(advice(Code::Aborted, failures), Some(Vec::new()));
        assert_eq!(advice(Code::Aborted, "conflict"), None, "the usual one");
        let away = "Cloudlet x  not ready, state is OFFLINE; operation 17 goes on when it is back";
        let follow = "`selvage operation follow 17` waits for its end";
        assert_eq!(advice(Code::Unavailable, away), Some(vec![follow.to_owned()]));
        assert_eq!(advice(Code::Unavailable, "no matching CRMs"), None);
    }
}
