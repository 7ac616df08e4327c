//! Time of day and time passed, so that tests can move both by hand.
//!
//! The store's leases go by a clock of their own, which one can also wait by.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// The time since some fixed moment. Unlike the time of day it is never
    /// set back.
    fn elapsed(&self) -> Duration;
}

/// The machine's own time, read anew at every call: expiry times of other
/// parties are compared with it, so it has to follow corrections.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> Duration {
        START.elapsed()
    }
}

/// A clock that stands still until it is told otherwise.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Debug)]
struct Manual {
    now: Timestamp,
    elapsed: Duration,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(Manual { now, elapsed: Duration::ZERO })))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let mut clock = self.0.lock();
        clock.now = clock.now.checked_add(by).unwrap_or(Timestamp::MAX);
        clock.elapsed = clock.elapsed.saturating_add(by);
    }

    /// Sets the time of day, as an administrator or a time server does. No
    /// time passes.
    pub fn set(&self, now: Timestamp) {
        self.0.lock().now = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().elapsed
    }
}
