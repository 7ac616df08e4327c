//! Time of day, so that tests can move it by hand.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Tells the time of day.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's own time, read anew at every call: expiry times of other
/// parties are compared with it, so it has to follow corrections.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that stands still until it is told otherwise.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        *now = after(*now, by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// `by` later, or the end of time.
pub(crate) fn after(start: Timestamp, by: Duration) -> Timestamp {
    start.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// How long ago `earlier` was; zero if it lies ahead.
pub(crate) fn since(now: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

/// The time as the wire carries it.
pub(crate) fn to_wire(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}
