//! One question to the object store, asked until it is answered.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Body, Client, Method, Response, Url, header};
use rustls::InvalidMessage;
use selvage_kit::tasks::Backoff;

use super::{
    File, StoreOptions,
    outage::Retry,
    s3::{Failure, Signer, Unsigned, failure},
};
use crate::{Error, Id, Limits, Result, Secret};

/// The shortest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Tolerated difference of clocks; stores take signatures that are no older than a
/// quarter of an hour.
const TOLERATED_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Slower than this a body does not flow, but hang.
const SLOWEST: u64 = 32 << 10;

/// Number of bytes of a body that go out before the limit is asked again.
const SLICE: usize = 64 << 10;

/// Request to the store.
#[derive(Debug, Clone)]
pub(super) struct StoreRequest {
    method: Method,
    path: String,
    pub(super) query: String,
    /// Name of the request for messages.
    what: String,
    pub(super) body: Bytes,
    pub(super) payload: Id,
    /// Offset and length.
    pub(super) range: Option<(u64, u64)>,
    pub(super) only_if_new: bool,
    pub(super) missing_is_fine: bool,
    /// Form of the answer that is asked for.
    pub(super) accept: Option<&'static str>,
}

impl StoreRequest {
    pub(super) fn new(method: Method, path: String, what: String) -> Self {
        Self {
            method,
            path,
            query: String::new(),
            what,
            body: Bytes::new(),
            payload: Id::of(b""),
            range: None,
            only_if_new: false,
            missing_is_fine: false,
            accept: None,
        }
    }
}

/// StoreResponse of the store.
#[derive(Debug)]
pub(super) struct StoreResponse {
    pub(super) status: u16,
    /// Length by the header, also where there is no body.
    pub(super) length: Option<u64>,
    /// True if it is a range; by its header, because some say 200 to both.
    pub(super) partial: bool,
    pub(super) body: Bytes,
}

/// Why an attempt failed.
enum SendFailure {
    /// It may go better the next time.
    Again(Error),
    /// Our time differs from theirs by this.
    Skewed(SignedDuration, Error),
    /// They cannot write only what is new.
    NoConditions,
    /// It will not.
    Final(Error),
}

/// Proof of who asks.
pub(super) enum Auth {
    None,
    Signed(Signer),
    Basic { user: String, password: Secret },
}

/// Asks questions.
pub(super) struct Sender {
    client: Client,
    endpoint: Url,
    host: String,
    auth: Auth,
    options: StoreOptions,
    /// Seconds to add to our time to get theirs.
    skew: AtomicI64,
    /// True if they cannot write only what is new.
    no_conditions: AtomicBool,
}

impl Sender {
    pub(super) fn new(client: Client, endpoint: Url, auth: Auth, options: StoreOptions) -> Self {
        let host = endpoint.host_str().unwrap_or_default();
        let host = match endpoint.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Self {
            client,
            endpoint,
            host,
            auth,
            options,
            skew: AtomicI64::new(0),
            no_conditions: AtomicBool::new(false),
        }
    }

    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// Asks until there is an answer or it makes no sense to go on.
    pub(super) async fn send(&self, ask: StoreRequest) -> Result<StoreResponse> {
        self.send_for(ask, Ok).await
    }

    /// The same for an answer that has to be readable: half a page of a list
    /// is asked for again.
    pub(super) async fn send_for<T>(
        &self,
        ask: StoreRequest,
        read: impl Fn(StoreResponse) -> Result<T, String>,
    ) -> Result<T> {
        let mut retry = None;
        let mut corrected = false;
        loop {
            let unreadable = |reason: String| SendFailure::Again(self.unreachable(reason));
            let tried = self.attempt(&ask).await.and_then(|a| read(a).map_err(unreadable));
            let error = match tried {
                Ok(answer) => return Ok(answer),
                Err(SendFailure::Final(error)) => return Err(error),
                Err(SendFailure::NoConditions) => {
                    self.no_conditions.store(true, Ordering::Relaxed);
                    continue;
                }
                Err(SendFailure::Skewed(by, error)) => {
                    if corrected {
                        return Err(error);
                    }
                    corrected = true;
                    tracing::warn!(seconds = by.as_secs(), "the object store has another time");
                    self.skew.store(by.as_secs(), Ordering::Relaxed);
                    continue;
                }
                Err(SendFailure::Again(error)) => error,
            };
            let retry = retry.get_or_insert_with(|| Retry::begin(&self.options));
            if retry.is_over(&self.options) {
                return Err(error);
            }
            tracing::debug!(%error, attempt = retry.attempts, what = ask.what, "asking again");
            retry.tell(&error);
            tokio::time::sleep(self.pause(retry.attempts)).await;
            retry.attempts += 1;
        }
    }

    /// Anything up to twice the last one, so that many who failed together do
    /// not come back together.
    fn pause(&self, attempt: u32) -> Duration {
        let longest = self.options.longest_pause.max(Duration::from_millis(1));
        let backoff = Backoff { first: FIRST_PAUSE, longest, healthy_after: Duration::ZERO };
        backoff.delay(attempt + 1, rand::random())
    }

    fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable { endpoint: self.endpoint().to_owned(), reason: reason.into() }
    }

    /// Returns whether signatures of ours are not taken because of the time in them,
    /// if theirs is ours and this: not all stores say so in the same words.
    fn is_far(&self, by: SignedDuration) -> bool {
        let known = SignedDuration::from_secs(self.skew.load(Ordering::Relaxed));
        by.checked_sub(known).is_some_and(|left| left.abs() > TOLERATED_SKEW)
    }

    fn no_answer(&self, error: &reqwest::Error) -> SendFailure {
        // Neither will be better the next time.
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(why)) => SendFailure::Final(
                self.unreachable(format!("its certificate is not trusted ({why})")),
            ),
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                SendFailure::Final(self.speaks_plain_http())
            }
            _ => SendFailure::Again(self.unreachable(describe(error))),
        }
    }

    fn speaks_plain_http(&self) -> Error {
        let endpoint = self.endpoint();
        let proxy = self.options.https_proxy.as_deref().unwrap_or_default();
        if proxy.starts_with("https://") {
            let reason = format!(
                "{endpoint} or the proxy before it speaks plain HTTP, not HTTPS: write http:// in \
                 place of https:// for the one that does"
            );
            return Error::Invalid { field: "endpoint", reason };
        }
        let reason = format!(
            "{endpoint} speaks plain HTTP, not HTTPS: write http:// in place of https://, or turn \
             on TLS there"
        );
        Error::Invalid { field: "endpoint", reason }
    }

    async fn attempt(&self, ask: &StoreRequest) -> Result<StoreResponse, SendFailure> {
        let limit = self.attempt_timeout(ask);
        match tokio::time::timeout(limit, self.ask_once(ask)).await {
            Ok(result) => result,
            Err(_) => Err(SendFailure::Again(self.unreachable("it took too long"))),
        }
    }

    /// Returns the timeout of an attempt.
    fn attempt_timeout(&self, ask: &StoreRequest) -> Duration {
        let Limits { upload, download, .. } = &*self.options.limits;
        let out = ask.body.len() as u64;
        let back = ask.range.map_or(0, |(_, length)| length);
        let time = |bytes: u64, limit: Option<u64>| {
            // Several share a limit, so one alone may wait for all of them.
            let slowest = limit.map_or(SLOWEST, |limit| (limit / 16).clamp(1, SLOWEST));
            Duration::from_secs(bytes / slowest)
        };
        self.options.timeout + time(out, upload.get()) + time(back, download.get())
    }

    async fn ask_once(&self, ask: &StoreRequest) -> Result<StoreResponse, SendFailure> {
        let now = self.options.clock.now();
        let skew = SignedDuration::from_secs(self.skew.load(Ordering::Relaxed));
        let time = now.checked_add(skew).unwrap_or(now);
        let sent = self.request(ask, time).send().await;
        let response = sent.map_err(|error| self.no_answer(&error))?;
        let status = response.status().as_u16();
        let date = date(&response);
        let length = length(&response);
        let partial = status == 206 || response.headers().contains_key(header::CONTENT_RANGE);
        let body = self.body(response).await?;
        if matches!(status, 200 | 201 | 204 | 206) {
            let whole = ask.method == Method::HEAD || length.is_none_or(|n| n == body.len() as u64);
            if !whole {
                return Err(SendFailure::Again(self.unreachable("its answer was cut off")));
            }
            return Ok(StoreResponse { status, length, partial, body });
        }
        self.refused(ask, status, date, &body)
    }

    fn request(&self, ask: &StoreRequest, time: Timestamp) -> reqwest::RequestBuilder {
        let mut url = self.endpoint.clone();
        url.set_path(&ask.path);
        url.set_query(Some(ask.query.as_str()).filter(|query| !query.is_empty()));
        let mut request = self.client.request(ask.method.clone(), url);
        if let Some(accept) = ask.accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Auth::Basic { user, password } = &self.auth {
            request = request.basic_auth(user, Some(password.expose()));
        }
        if let Auth::Signed(signer) = &self.auth {
            let unsigned = Unsigned {
                method: ask.method.as_str(),
                host: &self.host,
                path: &ask.path,
                query: &ask.query,
                payload: &ask.payload,
                time,
            };
            for (name, value) in signer.headers(&unsigned) {
                request = request.header(name, value);
            }
        }
        if let Some((offset, length)) = ask.range {
            let last = offset + length - 1;
            request = request.header(header::RANGE, format!("bytes={offset}-{last}"));
        }
        if ask.only_if_new && !self.no_conditions.load(Ordering::Relaxed) {
            request = request.header(header::IF_NONE_MATCH, "*");
        }
        if matches!(ask.method, Method::PUT | Method::POST) {
            request = request
                .header(header::CONTENT_LENGTH, ask.body.len())
                .header(header::CONTENT_TYPE, "application/octet-stream")
                .body(self.outgoing(ask.body.clone()));
        }
        request
    }

    /// A body that flows no faster than it may.
    fn outgoing(&self, content: Bytes) -> Body {
        if self.options.limits.upload.get().is_none() {
            return content.into();
        }
        let limits = std::sync::Arc::clone(&self.options.limits);
        let slices = stream::unfold((content, limits), async |(mut rest, limits)| {
            if rest.is_empty() {
                return None;
            }
            let slice = rest.split_to(rest.len().min(SLICE));
            limits.upload.take(slice.len()).await;
            Some((Ok::<_, std::io::Error>(slice), (rest, limits)))
        });
        Body::wrap_stream(slices)
    }

    async fn body(&self, mut response: Response) -> Result<Bytes, SendFailure> {
        let mut body =
            BytesMut::with_capacity(length(&response).unwrap_or(0).min(16 << 20) as usize);
        loop {
            match response.chunk().await {
                Ok(Some(part)) => {
                    self.options.limits.download.take(part.len()).await;
                    body.extend_from_slice(&part);
                }
                Ok(None) => return Ok(body.freeze()),
                Err(error) => return Err(SendFailure::Again(self.unreachable(describe(&error)))),
            }
        }
    }

    /// Makes sense of an answer that is not a yes.
    fn refused(
        &self,
        ask: &StoreRequest,
        status: u16,
        date: Option<Timestamp>,
        body: &Bytes,
    ) -> Result<StoreResponse, SendFailure> {
        let Failure { code, message } = failure(body);
        let fine = match status {
            404 => ask.missing_is_fine && code != "NoSuchBucket",
            412 => ask.only_if_new,
            416 => ask.range.is_some(),
            _ => false,
        };
        if fine {
            let (length, partial, body) = (None, false, Bytes::new());
            return Ok(StoreResponse { status, length, partial, body });
        }
        let short = match (code.as_str(), message.as_str()) {
            ("", _) => plain(body),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        let action = ask.what.clone();
        let by = date.map(|theirs| theirs.duration_since(self.options.clock.now()));
        let signed = matches!(self.auth, Auth::Signed(_));
        let skewed = code == "RequestTimeTooSkewed"
            || (signed
                && matches!(status, 400 | 401 | 403)
                && by.is_some_and(|by| self.is_far(by)));
        let by = by.filter(|_| skewed);
        let message = if skewed { clocks_differ(by, &short) } else { short };
        let error = Error::Refused { action, message, status };
        if ask.only_if_new && (status == 501 || code == "NotImplemented") {
            return Err(SendFailure::NoConditions);
        }
        if let Some(by) = by {
            return Err(SendFailure::Skewed(by, error));
        }
        const PASSING: [&str; 6] = [
            "RequestTimeout",
            "SlowDown",
            "BadDigest",
            "IncompleteBody",
            "XAmzContentSHA256Mismatch",
            "ConditionalRequestConflict",
        ];
        let passing =
            matches!(status, 408 | 429 | 500 | 502 | 503 | 504) || PASSING.contains(&code.as_str());
        Err(if passing { SendFailure::Again(error) } else { SendFailure::Final(error) })
    }
}

/// The part of a file that was asked for, as an answer has it.
pub(super) fn part(answer: StoreResponse, file: File, offset: u64, length: u64) -> Result<Bytes> {
    let short = || Error::damaged(file, "it is too short");
    match answer.status {
        404 => Err(Error::MissingFile(file)),
        416 => Err(short()),
        _ if answer.partial && answer.body.len() as u64 == length => Ok(answer.body),
        // A server that knows no ranges sends all of it.
        200 if !answer.partial && answer.body.len() as u64 >= offset + length => {
            Ok(answer.body.slice(offset as usize..(offset + length) as usize))
        }
        _ => Err(short()),
    }
}

/// The beginning of an answer in plain text.
fn plain(body: &Bytes) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or_default().trim();
    match line {
        "" => "it was refused".to_owned(),
        line if line.starts_with('<') => "it was refused".to_owned(),
        line => line.chars().take(120).collect(),
    }
}

fn length(response: &Response) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn date(response: &Response) -> Option<Timestamp> {
    let text = response.headers().get(header::DATE)?.to_str().ok()?;
    let zoned = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(zoned.timestamp())
}

fn clocks_differ(by: Option<SignedDuration>, said: &str) -> String {
    let by = by.map(|by| format!(" by {} s", by.as_secs().unsigned_abs())).unwrap_or_default();
    format!("the clocks of this machine and of the object store differ{by}: {said}")
}

/// Returns the error of TLS, if that is the reason.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut reason: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = reason {
        if let Some(error) = inner.downcast_ref() {
            return Some(error);
        }
        // Its source is not what it holds, but what that has for a source.
        let held = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        reason = match held {
            Some(held) => Some(held),
            None => inner.source(),
        };
    }
    None
}

/// The innermost reason says most. The address is left out: it may hold a
/// query, and who reads this knows it.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    let mut reason: &dyn std::error::Error = error;
    while let Some(inner) = reason.source() {
        reason = inner;
    }
    reason.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::Code;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::{super::options, *};

    /// A server without TLS takes the greeting for a request that makes no sense.
    #[tokio::test]
    async fn https_on_a_store_without_tls_names_the_scheme() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
        for (https_proxy, said) in [
            (None, format!("endpoint: {address} speaks plain HTTP, not HTTPS: write http:// in ")),
            (Some(address.clone()), format!("endpoint: {address} or the proxy before it speaks ")),
        ] {
            let location = "bucket/prefix".parse().unwrap();
            let options = StoreOptions { https_proxy, ..StoreOptions::new(&address, location) };
            let (client, endpoint) = (options::client(&options).unwrap(), address.parse().unwrap());
            let sender = Sender::new(client, endpoint, Auth::None, options);
            let ask = StoreRequest::new(Method::GET, "/".to_owned(), "looking".to_owned());
            let error = sender.send(ask).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
}
