//! The inner side: one framed message in, framed messages and a status out.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method as Verb, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::{Code, body::Body};
use tower::{BoxError, Service, ServiceExt};

use crate::failure::{Failure, RpcStatus};

const FRAME_HEAD: usize = 5;

pub(crate) fn frame(flags: u8, message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME_HEAD + message.len());
    framed.put_u8(flags);
    // Messages are bounded by limits far below what four bytes can count.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// Body of a request with one message.
pub(crate) fn single(message: &[u8]) -> Body {
    Body::new(Full::new(frame(0, message)))
}

/// A reply of the inner service that has begun.
pub(crate) struct Reply {
    pub headers: HeaderMap,
    pub frames: Frames,
}

/// Calls the inner service. Errors are those it answers instead of a reply.
pub(crate) async fn call<S>(
    inner: S,
    path: &'static str,
    headers: HeaderMap,
    extensions: http::Extensions,
    body: Body,
    limit: usize,
) -> Result<Reply, Failure>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
{
    let mut request = Request::new(body);
    *request.method_mut() = Verb::POST;
    *request.uri_mut() = Uri::from_static(path);
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    *request.extensions_mut() = extensions;
    let response = inner
        .oneshot(request)
        .await
        .map_err(|error| from_status(&tonic::Status::from_error(error.into())))?;
    let (parts, body) = response.into_parts();
    let outcome = Failure::outcome(&parts.headers);
    if let Some(Err(failure)) = outcome {
        return Err(failure);
    }
    check_head(parts.status, &parts.headers)?;
    let frames = Frames { body, buffer: BytesMut::new(), limit, ended: outcome.is_some() };
    Ok(Reply { headers: parts.headers, frames })
}

fn check_head(status: StatusCode, headers: &HeaderMap) -> Result<(), Failure> {
    let is_grpc = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if status == StatusCode::OK && is_grpc {
        return Ok(());
    }
    let code = match status.as_u16() {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        413 => Code::ResourceExhausted,
        429 | 502 | 503 | 504 => Code::Unavailable,
        400 | 200 => Code::Internal,
        _ => Code::Unknown,
    };
    tracing::warn!(%status, "inner service answered without gRPC");
    Err(Failure::new(code, format!("the service answered with HTTP status {status}")))
}

fn from_status(status: &tonic::Status) -> Failure {
    let mut failure = Failure::new(status.code(), status.message());
    failure.details =
        RpcStatus::decode(status.details()).map(|decoded| decoded.details).unwrap_or_default();
    failure.metadata = Box::new(status.metadata().clone().into_headers());
    failure
}

/// Next element of a reply.
pub(crate) enum Event {
    Message(Bytes),
    /// The call succeeded; its trailers.
    Done(HeaderMap),
    Failed(Failure),
}

/// The messages of a reply, taken out of its body one at a time.
pub(crate) struct Frames {
    body: Body,
    buffer: BytesMut,
    limit: usize,
    ended: bool,
}

impl Frames {
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            match self.buffered() {
                Ok(Some(message)) => return Event::Message(message),
                Ok(None) => {}
                Err(failure) => return Event::Failed(failure),
            }
            if self.ended {
                return Event::Done(HeaderMap::new());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => return self.finish(&frame.into_trailers().unwrap_or_default()),
                },
                Some(Err(status)) => return Event::Failed(from_status(&status)),
                None => return self.finish(&HeaderMap::new()),
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some((head, _)) = self.buffer.split_at_checked(FRAME_HEAD) else { return Ok(None) };
        if head[0] != 0 {
            let text = "the service answered with a compressed message, which was not asked for";
            return Err(Failure::new(Code::Internal, text));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > self.limit {
            let text = format!("reply message is larger than {} bytes", self.limit);
            return Err(Failure::new(Code::ResourceExhausted, text));
        }
        if self.buffer.len() < FRAME_HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEAD);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    fn finish(&mut self, trailers: &HeaderMap) -> Event {
        match Failure::outcome(trailers) {
            Some(Err(failure)) => Event::Failed(failure),
            Some(Ok(())) if self.buffer.is_empty() => Event::Done(trailers.clone()),
            Some(Ok(())) => Event::Failed(Failure::new(
                Code::Internal,
                "the service's reply broke off within a message",
            )),
            None => Event::Failed(Failure::new(
                Code::Internal,
                "the service's reply broke off without a status",
            )),
        }
    }
}

/// The reply of a method that answers once.
pub(crate) struct Unary {
    pub headers: HeaderMap,
    pub message: Bytes,
    pub trailers: HeaderMap,
}

impl Reply {
    pub(crate) async fn unary(mut self) -> Result<Unary, Failure> {
        let mut message = None;
        loop {
            let failure = match self.frames.next().await {
                Event::Message(found) if message.is_none() => {
                    message = Some(found);
                    continue;
                }
                Event::Message(_) => {
                    Failure::new(Code::Internal, "the service answered a unary call twice")
                }
                Event::Done(trailers) => match message {
                    Some(message) => {
                        return Ok(Unary { headers: self.headers, message, trailers });
                    }
                    None => Failure::new(Code::Internal, "the service answered without a message"),
                },
                Event::Failed(failure) => failure,
            };
            return Err(with_headers(failure, &self.headers));
        }
    }
}

/// Metadata sent before the call failed belongs to the error as well.
pub(crate) fn with_headers(mut failure: Failure, headers: &HeaderMap) -> Failure {
    for (name, value) in headers {
        failure.metadata.append(name, value.clone());
    }
    failure
}
