//! gRPC's framing, as far as the listener has to look into it: the request
//! message of a call is read whole, within limits, before anything else runs.

use std::{future::Future, io::Read, pin::Pin, task::Poll, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tonic::{Status, body::Body, metadata::MetadataValue};

use super::rpc::{Attention, Revoked};
use crate::identity::{Identity, Kind};

/// The largest message that is taken, as is gRPC's habit.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;

const HEADER: usize = 5;

/// The largest message that is taken from somebody unknown: a login, or a
/// device's question, is small.
pub(super) const MAX_UNKNOWN: usize = 64 * 1024;

/// The largest message that this caller may send.
pub(super) fn limit_of(caller: &Identity) -> usize {
    if caller.kind == Kind::Anonymous { MAX_UNKNOWN } else { MAX_MESSAGE }
}

fn too_large(length: usize, limit: usize) -> Status {
    let whose = if limit == MAX_UNKNOWN { " for callers without credentials" } else { "" };
    Status::resource_exhausted(format!(
        "request message of {length} bytes is over the limit of {limit} bytes{whose}"
    ))
}

/// Header that names how compressed messages are compressed.
pub(super) const ENCODING: &str = "grpc-encoding";

/// Compression of the messages of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

/// The coding that the headers announce. One that we do not know is as good
/// as none: a message that uses it is refused.
pub(super) fn coding(headers: &HeaderMap) -> Coding {
    match headers.get(ENCODING).map(|value| value.as_bytes()) {
        Some(b"gzip") => Coding::Gzip,
        _ => Coding::Identity,
    }
}

/// The request message of a call, as it is framed when it is not compressed.
pub(super) struct Received(Bytes);

impl Received {
    /// The message itself.
    pub(super) fn message(&self) -> Bytes {
        self.0.slice(HEADER..)
    }

    /// The body of a call with this message, and with more fields after it.
    pub(super) fn into_body(self, appended: &[u8]) -> Body {
        if appended.is_empty() {
            return Body::new(http_body_util::Full::new(self.0));
        }
        one_message(&self.message(), appended)
    }
}

/// Reads the one message of a call that does not stream its request. What is
/// there already is taken as it is. `wait` is asked first where more has to
/// come, and what it gives is kept until all has.
pub(super) async fn read_message<T>(
    body: Body,
    coding: Coding,
    limit: usize,
    body_timeout: Duration,
    wait: impl FnOnce() -> Result<T, Status>,
) -> Result<Received, Status> {
    let mut reading = std::pin::pin!(read_to_end(body, coding, limit));
    if let Poll::Ready(read) = futures::poll!(reading.as_mut()) {
        return read;
    }
    let _ticket = wait()?;
    tokio::time::timeout(body_timeout, reading).await.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!(
            "request message did not arrive within {} s",
            body_timeout.as_secs()
        )))
    })
}

async fn read_to_end(mut body: Body, coding: Coding, limit: usize) -> Result<Received, Status> {
    // Nearly always it comes in one piece, which need not be copied.
    let mut whole = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        whole = if whole.is_empty() { data } else { joined(whole, &data) };
        if whole.len() >= HEADER {
            let length = declared_length(&whole, limit)?;
            if whole.len() > HEADER + length {
                return Err(Status::invalid_argument("more than one message in the request"));
            }
        }
    }
    if whole.len() < HEADER || whole.len() < HEADER + declared_length(&whole, limit)? {
        return Err(Status::invalid_argument("request message ends too early"));
    }
    match (whole.first(), coding) {
        (Some(1), Coding::Gzip) => unzip(&whole[HEADER..], limit),
        (Some(1), Coding::Identity) => Err(not_compressed()),
        _ => Ok(Received(whole)),
    }
}

/// Both in one piece. Only what was joined before is in memory of our own and
/// grows in place.
fn joined(begin: Bytes, more: &[u8]) -> Bytes {
    let mut whole = begin.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
    whole.put_slice(more);
    whole.freeze()
}

fn not_compressed() -> Status {
    let mut status = Status::unimplemented("only gzip is taken for compressed requests");
    status
        .metadata_mut()
        .insert("grpc-accept-encoding", MetadataValue::from_static("identity,gzip"));
    status
}

fn unzip(zipped: &[u8], limit: usize) -> Result<Received, Status> {
    let mut plain = Vec::new();
    let longest = limit as u64 + 1;
    let read = MultiGzDecoder::new(zipped).take(longest).read_to_end(&mut plain);
    read.map_err(|_| Status::invalid_argument("request message is not the gzip it says it is"))?;
    if plain.len() > limit {
        return Err(too_large(plain.len(), limit));
    }
    Ok(Received(framed(&plain, &[])))
}

fn declared_length(header: &[u8], limit: usize) -> Result<usize, Status> {
    let [compressed, a, b, c, d, ..] = header else { return Ok(0) };
    if *compressed > 1 {
        return Err(Status::invalid_argument("request is not framed as gRPC frames messages"));
    }
    let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    if length > limit {
        return Err(too_large(length, limit));
    }
    Ok(length)
}

fn framed(message: &[u8], appended: &[u8]) -> Bytes {
    let length = message.len() + appended.len();
    let mut framed = BytesMut::with_capacity(HEADER + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.put_slice(appended);
    framed.freeze()
}

/// The body of a call with one message.
pub(super) fn one_message(message: &[u8], appended: &[u8]) -> Body {
    Body::new(http_body_util::Full::new(framed(message, appended)))
}

/// A streamed request in which a message over the limit ends the call with
/// RESOURCE_EXHAUSTED, before it is buffered. Nothing is taken any more from a
/// caller who lost the right to the call.
pub(super) struct Limited {
    inner: Body,
    revoked: Option<Revoked>,
    attention: Option<Attention>,
    header: Vec<u8>,
    payload_left: usize,
}

impl Limited {
    pub(super) fn new(inner: Body) -> Self {
        let header = Vec::with_capacity(HEADER);
        Self { inner, revoked: None, attention: None, header, payload_left: 0 }
    }

    /// Ends the stream when this does.
    pub(super) fn until(mut self, revoked: Option<Revoked>) -> Self {
        self.revoked = revoked;
        self
    }

    /// Tells this of all that comes.
    pub(super) fn noticed_by(mut self, attention: Option<Attention>) -> Self {
        self.attention = attention;
        self
    }

    fn check(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            if self.payload_left > 0 {
                let step = self.payload_left.min(data.len());
                self.payload_left -= step;
                data = &data[step..];
                continue;
            }
            let step = (HEADER - self.header.len()).min(data.len());
            self.header.extend_from_slice(&data[..step]);
            data = &data[step..];
            if self.header.len() == HEADER {
                self.payload_left = declared_length(&self.header, MAX_MESSAGE)?;
                self.header.clear();
            }
        }
        Ok(())
    }
}

impl http_body::Body for Limited {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(revoked) = self.revoked.as_mut()
            && let Poll::Ready(status) = Pin::new(revoked).poll(context)
        {
            return Poll::Ready(Some(Err(status)));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let data = data.clone();
            if let Some(attention) = &self.attention {
                attention.note();
            }
            if let Err(status) = self.check(&data) {
                return Poll::Ready(Some(Err(status)));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::StreamExt;
    use tonic::Code;

    use super::*;

    const BODY_TIMEOUT: Duration = Duration::from_secs(5);

    fn body(bytes: &[u8]) -> Body {
        Body::new(http_body_util::Full::new(Bytes::copy_from_slice(bytes)))
    }

    async fn read(body: Body, coding: Coding, limit: usize) -> Result<Bytes, Status> {
        let read = read_message(body, coding, limit, BODY_TIMEOUT, || Ok(())).await;
        read.map(|received| received.message())
    }

    async fn code(bytes: &[u8]) -> Code {
        read(body(bytes), Coding::Identity, MAX_MESSAGE).await.unwrap_err().code()
    }

    #[tokio::test]
    async fn a_message_reads_back_with_what_was_appended() {
        let framed = one_message(b"abc", b"de");
        assert_eq!(read(framed, Coding::Identity, MAX_MESSAGE).await.unwrap(), "abcde");
        let empty = one_message(b"", b"");
        assert_eq!(read(empty, Coding::Identity, MAX_MESSAGE).await.unwrap(), "");
    }

    fn in_pieces(bytes: &[u8], size: usize) -> Body {
        let pieces: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        let late = futures::stream::iter(pieces).then(|piece| async move {
            tokio::task::yield_now().await;
            Ok::<_, Status>(Frame::data(piece))
        });
        Body::new(http_body_util::StreamBody::new(Box::pin(late)))
    }

    #[tokio::test]
    async fn a_message_may_come_in_pieces() {
        let whole = framed(b"abc", b"de");
        for size in 1..=whole.len() {
            let read = read(in_pieces(&whole, size), Coding::Identity, MAX_MESSAGE).await;
            assert_eq!(read.unwrap(), "abcde", "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn only_what_is_on_its_way_needs_room() {
        let full = || Err::<(), _>(Status::resource_exhausted("full"));
        let read = async |body: Body| {
            read_message(body, Coding::Identity, MAX_MESSAGE, BODY_TIMEOUT, full).await
        };
        assert_eq!(read(one_message(b"abc", b"")).await.unwrap().message(), "abc");
        let refused = read(in_pieces(&framed(b"abc", b""), 3)).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn broken_frames_are_named() {
        assert_eq!(code(b"").await, Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0]).await, Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0, 0, 4, 1, 2]).await, Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0, 0, 1, 1, 2]).await, Code::InvalidArgument);
        assert_eq!(code(b"GET / HTTP/1.1\r\n\r\n").await, Code::InvalidArgument);
        assert_eq!(code(&[1, 0, 0, 0, 0]).await, Code::Unimplemented);
        assert_eq!(code(&[0, 0xff, 0xff, 0xff, 0xff]).await, Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn gzip_is_taken_within_the_limit() {
        let zip = |plain: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            std::io::Write::write_all(&mut encoder, plain).unwrap();
            let zipped = encoder.finish().unwrap();
            let mut framed = vec![1];
            framed.extend(u32::try_from(zipped.len()).unwrap().to_be_bytes());
            framed.extend(zipped);
            framed
        };
        let read = async |bytes: &[u8]| read(body(bytes), Coding::Gzip, MAX_UNKNOWN).await;
        assert_eq!(read(&zip(b"abc")).await.unwrap(), "abc");
        // A small bomb.
        let refused = read(&zip(&vec![0; 10 * MAX_UNKNOWN])).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(read(&[1, 0, 0, 0, 2, 9, 9]).await.unwrap_err().code(), Code::InvalidArgument);
    }

    #[tokio::test]
    async fn unauthenticated_callers_may_send_little() {
        let framed = one_message(&vec![0; MAX_UNKNOWN + 1], &[]);
        let limit = limit_of(&Identity::anonymous());
        let refused = read(framed, Coding::Identity, limit).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("without credentials"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_given_up() {
        let silent = http_body_util::StreamBody::new(futures::stream::pending::<
            Result<Frame<Bytes>, Status>,
        >());
        let refused = read(Body::new(silent), Coding::Identity, MAX_MESSAGE).await.unwrap_err();
        assert_eq!(refused.code(), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_stream_ends_at_the_message_that_is_too_large() {
        let mut bytes = vec![0, 0, 0, 0, 2, 7, 7];
        bytes.extend([0, 0xff, 0, 0, 0]);
        let chunks: Vec<_> = bytes
            .chunks(3)
            .map(|part| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(part))))
            .collect();
        let stream = http_body_util::StreamBody::new(futures::stream::iter(chunks));
        let mut limited = Limited::new(Body::new(stream));
        let mut ended = None;
        while let Some(frame) = limited.frame().await {
            if let Err(status) = frame {
                ended = Some(status.code());
                break;
            }
        }
        assert_eq!(ended, Some(Code::ResourceExhausted));
    }
}
