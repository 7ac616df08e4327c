//! Bodies that carry a duty: to be done in time, or to say when they are.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body as PageBody;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use selvage_transcode::SlowBody;
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

/// Limit on what is still read of a body that nobody reads to the end. Over
/// HTTP/1 a client that is cut off while it sends never sees our answer.
const DISCARD_LIMIT: u64 = 32 * 1024 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body that has to arrive whole within a time.
pub(super) struct Timely {
    inner: PageBody,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl Timely {
    pub(super) fn new(inner: PageBody, timeout: Duration) -> Self {
        Self { inner, timeout, deadline: Box::pin(tokio::time::sleep(timeout)) }
    }
}

impl http_body::Body for Timely {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => {
                let timeout = self.timeout;
                self.deadline
                    .as_mut()
                    .poll(context)
                    .map(|()| Some(Err(SlowBody { timeout }.into())))
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

impl Drop for Timely {
    fn drop(&mut self) {
        if !self.inner.is_end_stream() && !self.deadline.is_elapsed() {
            let body = std::mem::take(&mut self.inner);
            tokio::spawn(tokio::time::timeout(DISCARD_TIMEOUT, discard(body)));
        }
    }
}

async fn discard(mut body: PageBody) {
    let mut taken = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken += frame.data_ref().map_or(0, |data| data.len() as u64);
        if taken > DISCARD_LIMIT {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_cut_at_the_deadline() {
        let trickle = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let trickle = PageBody::new(StreamBody::new(Box::pin(trickle)));
        let body = Timely::new(trickle, Duration::from_secs(5));
        let error = body.collect().await.unwrap_err();
        assert!(error.is::<SlowBody>(), "{error}");
    }

    #[tokio::test]
    async fn what_nobody_reads_is_taken_all_the_same() {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, BoxError>>(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let body = Timely::new(PageBody::new(StreamBody::new(stream)), Duration::from_secs(5));
        drop(body);
        for _ in 0..100 {
            sender.send(Ok(Frame::data(Bytes::from_static(b"x")))).await.unwrap();
        }
    }
}
