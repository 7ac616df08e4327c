//! Times as restic writes them: RFC 3339.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Time by which the clock of a machine may be ahead without being called wrong.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(10 * 60);

/// Returns whether a time is still to come, so that a clock was wrong that told it.
pub(crate) fn is_ahead(time: Timestamp, now: Timestamp) -> bool {
    time.duration_since(now) > SignedDuration::from_secs(CLOCK_TOLERANCE.as_secs() as i64)
}

pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(D::Error::custom)
}
