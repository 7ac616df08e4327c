//! Options of an engine.

use std::sync::Arc;
use std::time::Duration;

use selvage_kit::tasks::Backoff;
use selvage_store::clock::{Clock, SystemClock};

/// Settings of an [`crate::Engine`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Time, for waits and timestamps.
    pub clock: Arc<dyn Clock>,
    /// Time for which a process that is gone keeps its operations from others.
    pub lease: Duration,
    /// Operations that ended are kept so long,
    pub keep_ended: Duration,
    /// and no more than so many of them.
    pub keep_ended_count: usize,
    /// Interval at which those are swept, and operations without a driver looked
    /// for.
    pub sweep_every: Duration,
    /// Lines of progress that are kept in memory for one operation,
    pub lines_in_memory: usize,
    /// and with its record.
    pub lines_stored: usize,
    /// Number of attempts at a failing undo before it is given up.
    pub undo_attempts: u32,
    /// Delay between the attempts.
    pub backoff: Backoff,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::new()),
            lease: Duration::from_secs(15),
            keep_ended: Duration::from_secs(24 * 3600),
            keep_ended_count: 10_000,
            sweep_every: Duration::from_secs(60),
            lines_in_memory: 1024,
            lines_stored: 64,
            undo_attempts: 8,
            backoff: Backoff::default(),
        }
    }
}
