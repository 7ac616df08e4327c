//! Calls in gRPC's framing, whose messages nobody looks into.

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, stream};
use http::{HeaderMap, Request, Response, Uri, uri::PathAndQuery};
use http_body_util::BodyExt;
use selvage_kit::serve::relay::Here;
use tonic::{Code, Status, TimeoutExpired, body::Body, transport::Channel};
use tower::ServiceExt;

use super::splice;

/// Maximum size of a message from a node.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;

const HEADER: usize = 5;

/// The way to a node.
pub(super) enum Route {
    /// Over the network.
    There(Channel),
    /// Services of this process.
    Here(Here),
}

impl Route {
    /// Makes the call and waits for the beginning of the answer.
    pub(super) async fn send(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let response = match self {
            Self::There(channel) => {
                channel.oneshot(request).await.map_err(|error| unreachable(&error))?
            }
            Self::Here(here) => here(request).await?,
        };
        match Status::from_header_map(response.headers()) {
            Some(status) if status.code() != Code::Ok => Err(status),
            _ if response.status() != http::StatusCode::OK => Err(Status::unavailable(format!(
                "the node answers with HTTP status {}",
                response.status().as_u16()
            ))),
            _ => Ok(response),
        }
    }
}

/// Returns the status for a node that does not answer, with the reasons.
fn unreachable(error: &(dyn std::error::Error + 'static)) -> Status {
    let text = selvage_api::chain(error);
    let late = selvage_api::causes(error).any(|error| error.is::<TimeoutExpired>());
    // The library counts a call's time as we do, and may see its end first.
    if late {
        return Status::deadline_exceeded(text);
    }
    Status::unavailable(text)
}

/// A request to a method.
pub(super) fn request(path: &str, headers: HeaderMap, body: Body) -> Result<Request<Body>, Status> {
    let broken = |_| Status::internal("the method's path cannot be written");
    let path: PathAndQuery = path.parse().map_err(broken)?;
    let mut request = Request::new(body);
    *request.uri_mut() = Uri::from(path);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Returns the only message of a reply.
pub(super) async fn only(response: Response<Body>) -> Result<Bytes, Status> {
    let mut reader = Reader::new(response);
    let first = reader.next().await?.ok_or_else(|| Status::internal("the node sent no reply"))?;
    match reader.next().await? {
        None => Ok(first),
        Some(_) => Err(Status::internal("the node sent more than one reply")),
    }
}

/// The messages of a stream; an error is the last item.
pub(super) fn all(response: Response<Body>) -> impl Stream<Item = Result<Bytes, Status>> + Send {
    stream::unfold(Some(Reader::new(response)), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(message)) => Some((Ok(message), Some(reader))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    })
}

struct Reader {
    body: Body,
    buffer: BytesMut,
    /// A reply that is all headers has its status there.
    ended: bool,
}

impl Reader {
    fn new(response: Response<Body>) -> Self {
        let ended = Status::from_header_map(response.headers()).is_some();
        Self { body: response.into_body(), buffer: BytesMut::new(), ended }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if self.ended {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Status::internal("the node's answer ends within a message")),
                };
            }
            let frame = match self.body.frame().await {
                Some(Ok(frame)) => frame,
                Some(Err(status)) => return Err(status),
                None => return Err(Status::unavailable("the node's answer ends too early")),
            };
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => self.end(frame.into_trailers().unwrap_or_default())?,
            }
        }
    }

    fn end(&mut self, trailers: HeaderMap) -> Result<(), Status> {
        self.ended = true;
        match Status::from_header_map(&trailers) {
            Some(status) if status.code() != Code::Ok => Err(status),
            _ => Ok(()),
        }
    }

    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let [compressed, a, b, c, d, ..] = *self.buffer else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if compressed != 0 {
            return Err(Status::internal("the node compresses what it was not asked to"));
        }
        if length > MAX_MESSAGE {
            return Err(Status::resource_exhausted(format!(
                "the node's answer of {length} bytes is over the limit of {MAX_MESSAGE} bytes"
            )));
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// The pieces of one message, framed.
pub(super) fn framed(mut pieces: Vec<Bytes>) -> Result<Vec<Bytes>, Status> {
    let length = pieces.iter().map(Bytes::len).sum();
    let head = splice::frame_head(length)
        .ok_or_else(|| Status::resource_exhausted("the answers together are over 4 GiB"))?;
    pieces.insert(0, head);
    Ok(pieces)
}

/// An error the way clients of the original expect to read it.
pub(crate) fn text(status: &Status) -> String {
    let code = match status.code() {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::StreamExt;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn response(data: &[&'static [u8]], code: Option<Code>) -> Response<Body> {
        let mut frames: Vec<Result<Frame<Bytes>, Status>> =
            data.iter().map(|data| Ok(Frame::data(Bytes::from_static(data)))).collect();
        if let Some(code) = code {
            let mut trailers = HeaderMap::new();
            Status::new(code, "why").add_header(&mut trailers).unwrap();
            frames.push(Ok(Frame::trailers(trailers)));
        }
        Response::new(Body::new(StreamBody::new(stream::iter(frames))))
    }

    #[test]
    fn a_timeout_is_a_timeout_whoever_notices_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Failed(#[source] TimeoutExpired);
        let late = unreachable(&Failed(TimeoutExpired(())));
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(unreachable(&refused).code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn messages_come_out_however_they_are_cut() {
        let cut = response(&[&[0, 0, 0], &[0, 2, 7], &[8, 0, 0, 0, 0, 0]], Some(Code::Ok));
        let read: Vec<_> = all(cut).map(Result::unwrap).collect().await;
        assert_eq!(read, [Bytes::from_static(&[7, 8]), Bytes::new()]);
        let one = response(&[&[0, 0, 0, 0, 1, 9]], Some(Code::Ok));
        assert_eq!(only(one).await.unwrap(), Bytes::from_static(&[9]));
    }

    #[tokio::test]
    async fn answers_that_are_none_say_so() {
        for (data, code, expected) in [
            (&[0, 0, 0, 0, 1, 9][..], Some(Code::NotFound), Code::NotFound),
            (&[0, 0, 0, 0, 1, 9], None, Code::Unavailable),
            (&[0, 0, 0, 0, 2, 9], Some(Code::Ok), Code::Internal),
            (&[], Some(Code::Ok), Code::Internal),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Some(Code::Ok), Code::Internal),
            (&[1, 0, 0, 0, 0], Some(Code::Ok), Code::Internal),
            (&[0, 0xff, 0, 0, 0], Some(Code::Ok), Code::ResourceExhausted),
        ] {
            let status = only(response(&[data], code)).await.unwrap_err();
            assert_eq!(status.code(), expected, "{data:?}");
        }
    }
}
