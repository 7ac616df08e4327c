//! Reckoning with times.

use std::time::Duration;

use jiff::Timestamp;

/// `by` later, or the end of time.
pub(crate) fn after(start: Timestamp, by: Duration) -> Timestamp {
    start.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Time that has passed since `earlier`; zero if it lies ahead.
pub(crate) fn since(now: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

/// The time as the wire carries it.
pub(crate) fn to_wire(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}
