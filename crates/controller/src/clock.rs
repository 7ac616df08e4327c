//! Time of day, so that tests can set it.

use std::fmt;

use jiff::Timestamp;

/// Tells the time of day.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// The machine's own time.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
