//! Bodies on their way, counted, and bounded in time but not in size.

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::Busy;
use crate::{
    frontend::{Admission, Frontend},
    target::Lease,
};

pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// Body of an answer: a sentence of ours, or what the target says.
pub(super) type Answer = Either<Full<Bytes>, Download>;

/// A client's body. Whoever sent it in vain to one target can offer it to
/// the next, as long as nothing was read.
#[derive(Clone)]
pub(crate) struct Upload(Arc<Mutex<Sent>>);

struct Sent {
    body: Incoming,
    frontend: Arc<Frontend>,
    frames: u64,
    touched: bool,
}

impl Upload {
    pub(super) fn new(body: Incoming, frontend: Arc<Frontend>) -> Self {
        Self(Arc::new(Mutex::new(Sent { body, frontend, frames: 0, touched: false })))
    }

    pub(super) fn touched(&self) -> bool {
        self.0.lock().touched
    }

    /// Rises as long as something moves.
    pub(super) fn frames(&self) -> u64 {
        self.0.lock().frames
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut sent = self.0.lock();
        sent.touched = true;
        let polled = Pin::new(&mut sent.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            sent.frames += 1;
            let count = frame.data_ref().map_or(0, Bytes::len) as u64;
            sent.frontend.counters.bytes_in.fetch_add(count, Relaxed);
        }
        polled.map(|frame| frame.map(|result| result.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}

/// Guard that counts a request until its answer has gone.
pub(super) struct InFlight {
    pub(super) frontend: Arc<Frontend>,
    pub(super) lease: Lease,
    pub(super) _admission: Admission,
    pub(super) _busy: Busy,
}

/// A target's body.
pub(super) struct Download {
    body: Incoming,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    still: Pin<Box<Sleep>>,
    idle: Duration,
    in_flight: InFlight,
}

impl Download {
    pub(super) fn new(body: Incoming, in_flight: InFlight) -> Self {
        let idle = in_flight.frontend.context.limits.tcp_idle;
        let cut = Box::pin(in_flight.lease.0.cut.clone().cancelled_owned());
        Self { body, cut, still: Box::pin(tokio::time::sleep(idle)), idle, in_flight }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the service was withdrawn".into())));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let still = self.still.as_mut().poll(context);
            return still.map(|()| Some(Err("the target says no more".into())));
        };
        let deadline = Instant::now() + self.idle;
        self.still.as_mut().reset(deadline);
        if let Some(Ok(frame)) = &frame {
            let count = frame.data_ref().map_or(0, Bytes::len) as u64;
            self.in_flight.frontend.counters.bytes_out.fetch_add(count, Relaxed);
        }
        Poll::Ready(frame.map(|result| result.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
