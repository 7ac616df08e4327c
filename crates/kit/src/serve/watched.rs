//! The reply of a call, watched to its end: its deadline is kept, a panic in
//! a handler's stream becomes a status, and whoever waits for the outcome is
//! told it exactly once.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Code, Status, body::Body};

use super::rpc::Revoked;

/// Told how a call ended.
pub(super) type OnEnd = Box<dyn FnOnce(Code) + Send>;

pub(super) struct Watched {
    inner: Option<Body>,
    deadline: Option<Pin<Box<Sleep>>>,
    revoked: Option<Revoked>,
    stop: Arc<CancellationToken>,
    /// Made when there is something to wait for: most replies are whole.
    stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    on_end: Option<OnEnd>,
}

impl Watched {
    pub(super) fn new(
        inner: Body,
        deadline: Option<Instant>,
        stop: Arc<CancellationToken>,
        on_end: OnEnd,
    ) -> Self {
        let deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        let (inner, on_end) = (Some(inner), Some(on_end));
        Self { inner, deadline, revoked: None, stop, stopped: None, on_end }
    }

    /// Ends the reply when this does.
    pub(super) fn until(mut self, revoked: Option<Revoked>) -> Self {
        self.revoked = revoked;
        self
    }

    fn end(&mut self, code: Code) {
        self.inner = None;
        if let Some(on_end) = self.on_end.take() {
            on_end(code);
        }
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.end(status.code());
        let mut trailers = HeaderMap::new();
        match status.add_header(&mut trailers) {
            Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Err(unsayable) => Poll::Ready(Some(Err(unsayable))),
        }
    }
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The status that headers or trailers carry, if any.
pub(super) fn status_code(headers: &HeaderMap) -> Option<Code> {
    headers.get(STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(inner) = this.inner.as_mut() else { return Poll::Ready(None) };
        if let Some(deadline) = this.deadline.as_mut()
            && deadline.as_mut().poll(context).is_ready()
        {
            return this.end_with(Status::deadline_exceeded("deadline exceeded"));
        }
        if let Some(revoked) = this.revoked.as_mut()
            && let Poll::Ready(status) = Pin::new(revoked).poll(context)
        {
            return this.end_with(status);
        }
        // Nothing of the body is looked at again after a panic: it is dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll_frame(context)));
        let Ok(mut polled) = polled else {
            return this.end_with(super::internal_error());
        };
        match &mut polled {
            Poll::Pending => {
                let stopped = this.stopped.get_or_insert_with(|| {
                    Box::pin(CancellationToken::clone(&this.stop).cancelled_owned())
                });
                if stopped.as_mut().poll(context).is_ready() {
                    return this.end_with(Status::unavailable("the server is stopping"));
                }
            }
            Poll::Ready(None) => this.end(Code::Ok),
            Poll::Ready(Some(Err(status))) => this.end(status.code()),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    super::brief::shorten(trailers);
                    if let Some(code) = status_code(trailers) {
                        this.end(code);
                    }
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), |inner| inner.size_hint())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let ended = self.inner.as_ref().is_none_or(|inner| inner.is_end_stream());
        self.end(if ended { Code::Ok } else { Code::Cancelled });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{sync::mpsc, time::Duration};

    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    type Frames = Vec<Result<Frame<Bytes>, Status>>;

    fn watched(frames: Frames, deadline: Option<Instant>) -> (Watched, mpsc::Receiver<Code>) {
        let (sender, receiver) = mpsc::channel();
        let body = Body::new(StreamBody::new(futures::stream::iter(frames)));
        let on_end = Box::new(move |code| sender.send(code).unwrap());
        (Watched::new(body, deadline, Arc::default(), on_end), receiver)
    }

    fn trailers(code: Code) -> Frame<Bytes> {
        let mut headers = HeaderMap::new();
        Status::new(code, "").add_header(&mut headers).unwrap();
        Frame::trailers(headers)
    }

    #[tokio::test]
    async fn the_outcome_is_reported_once() {
        let frames = vec![Ok(Frame::data(Bytes::from_static(b"x"))), Ok(trailers(Code::NotFound))];
        let (body, outcome) = watched(frames, None);
        body.collect().await.unwrap();
        assert_eq!(outcome.try_iter().collect::<Vec<_>>(), [Code::NotFound]);
    }

    #[tokio::test]
    async fn a_stream_that_fails_at_length_says_so_in_brief() {
        let mut long = HeaderMap::new();
        Status::internal("é".repeat(500_000)).add_header(&mut long).unwrap();
        let (body, _outcome) = watched(vec![Ok(Frame::trailers(long))], None);
        let ended = body.collect().await.unwrap();
        let status = Status::from_header_map(ended.trailers().unwrap()).unwrap();
        assert!(status.message().contains("é…é") && status.message().len() < 4096, "{status}");
    }

    #[tokio::test]
    async fn a_caller_who_leaves_is_cancelled() {
        let (mut body, outcome) =
            watched(vec![Ok(Frame::data(Bytes::from_static(b"x"))), Ok(trailers(Code::Ok))], None);
        body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(outcome.try_iter().collect::<Vec<_>>(), [Code::Cancelled]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_stops_at_its_deadline() {
        let pending = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Status>>());
        let (sender, outcome) = mpsc::channel();
        let at = Instant::now() + Duration::from_millis(20);
        let body = Watched::new(
            Body::new(pending),
            Some(at),
            Arc::default(),
            Box::new(move |code| sender.send(code).unwrap()),
        );
        let ended = body.collect().await.unwrap();
        assert_eq!(status_code(ended.trailers().unwrap()), Some(Code::DeadlineExceeded));
        assert_eq!(outcome.try_iter().collect::<Vec<_>>(), [Code::DeadlineExceeded]);
    }

    #[tokio::test]
    async fn a_stream_without_end_is_ended_when_the_server_stops() {
        let pending = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Status>>());
        let (sender, outcome) = mpsc::channel();
        let stop = Arc::new(CancellationToken::new());
        let body = Watched::new(
            Body::new(pending),
            None,
            Arc::clone(&stop),
            Box::new(move |code| sender.send(code).unwrap()),
        );
        stop.cancel();
        let ended = body.collect().await.unwrap();
        assert_eq!(status_code(ended.trailers().unwrap()), Some(Code::Unavailable));
        assert_eq!(outcome.try_iter().collect::<Vec<_>>(), [Code::Unavailable]);
    }

    #[tokio::test]
    async fn a_panic_in_a_stream_becomes_a_status() {
        let panicking =
            futures::stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                panic!("a defect")
            });
        let (sender, outcome) = mpsc::channel();
        let body = Watched::new(
            Body::new(StreamBody::new(panicking)),
            None,
            Arc::default(),
            Box::new(move |code| sender.send(code).unwrap()),
        );
        let ended = body.collect().await.unwrap();
        assert_eq!(status_code(ended.trailers().unwrap()), Some(Code::Internal));
        assert_eq!(outcome.try_iter().collect::<Vec<_>>(), [Code::Internal]);
    }
}
