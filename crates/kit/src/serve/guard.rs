//! Bodies that carry a duty: to be done in time, or to say when they are.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that keeps something until it is dropped.
pub(super) struct Guarded<B, G> {
    inner: B,
    _guard: G,
}

impl<B, G> Guarded<B, G> {
    pub(super) fn new(inner: B, guard: G) -> Self {
        Self { inner, _guard: guard }
    }
}

impl<B: http_body::Body + Unpin, G: Unpin> http_body::Body for Guarded<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("request body did not arrive within {} s", .0.as_secs())]
pub(super) struct TooSlow(Duration);

/// A request body that has to arrive whole within a time.
pub(super) struct Timely<B> {
    inner: B,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl<B> Timely<B> {
    pub(super) fn new(inner: B, patience: Duration) -> Self {
        Self { inner, patience, deadline: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl<B> http_body::Body for Timely<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => {
                let patience = self.patience;
                self.deadline.as_mut().poll(context).map(|()| Some(Err(TooSlow(patience).into())))
            }
        }
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
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_cut_at_the_deadline() {
        let trickle = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let body = Timely::new(StreamBody::new(Box::pin(trickle)), Duration::from_secs(5));
        let error = body.collect().await.unwrap_err();
        assert!(error.is::<TooSlow>(), "{error}");
    }
}
