//! gRPC-Web as text: base64 that may end and begin again anywhere, because
//! clients encode what they send piece by piece.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use base64::{
    Engine,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tonic::{Status, body::Body};

const QUAD: usize = 4;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// A request body in base64, read as the bytes it stands for.
pub(super) struct Decoded {
    inner: Body,
    /// The begin of a quad whose end has not come yet.
    rest: BytesMut,
}

impl Decoded {
    pub(super) fn new(inner: Body) -> Self {
        Self { inner, rest: BytesMut::new() }
    }

    /// The bytes of all quads that are whole. Padding stands at the end of a
    /// quad; what follows begins anew.
    fn take(&mut self, text: &[u8]) -> Result<Bytes, Status> {
        self.rest.extend(text.iter().filter(|byte| !byte.is_ascii_whitespace()));
        let whole = self.rest.split_to(self.rest.len() / QUAD * QUAD);
        let mut bytes = Vec::with_capacity(whole.len() / QUAD * 3);
        let mut left = &whole[..];
        while !left.is_empty() {
            let padded = left.chunks(QUAD).position(|quad| quad.ends_with(b"="));
            let (piece, after) = left.split_at(padded.map_or(left.len(), |at| (at + 1) * QUAD));
            BASE64.decode_vec(piece, &mut bytes).map_err(|_| not_base64())?;
            left = after;
        }
        Ok(bytes.into())
    }
}

fn not_base64() -> Status {
    Status::invalid_argument("the body is not base64, as application/grpc-web-text says it is")
}

impl http_body::Body for Decoded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.rest.is_empty() => return Poll::Ready(None),
                None => {
                    self.rest.clear();
                    return Poll::Ready(Some(Err(not_base64())));
                }
            };
            let Ok(text) = frame.into_data() else { continue };
            match self.take(&text) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    async fn decoded(parts: &[&str]) -> Result<Bytes, Status> {
        let frames: Vec<_> = parts
            .iter()
            .map(|part| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(part.as_bytes()))))
            .collect();
        let body = Body::new(StreamBody::new(futures::stream::iter(frames)));
        Decoded::new(body).collect().await.map(http_body_util::Collected::to_bytes)
    }

    #[tokio::test]
    async fn pieces_with_padding_follow_one_another() {
        assert_eq!(decoded(&["YQ==Yg==Y2Rl"]).await.unwrap(), "abcde");
        assert_eq!(decoded(&["YWJjZGU=", "Zg=="]).await.unwrap(), "abcdef");
        assert_eq!(decoded(&["Y", "Q=", "=Y2R", "lZg=="]).await.unwrap(), "acdef");
        assert_eq!(decoded(&["YQ==\r\n", "YQ==\n"]).await.unwrap(), "aa");
        assert_eq!(decoded(&[]).await.unwrap(), "");
    }

    #[tokio::test]
    async fn what_is_no_base64_is_the_callers_mistake() {
        for wrong in ["YQ", "Y===", "=", "YQ=a", "Y@==", "YWJj!!!!"] {
            let status = decoded(&[wrong]).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{wrong}");
        }
    }
}
