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
    /// Time for which ended operations are kept.
    pub keep_ended: Duration,
    /// Maximum number of ended operations that are kept.
    pub keep_ended_count: usize,
    /// Interval of removing ended operations and of finding those without a
    /// driver.
    pub sweep_every: Duration,
    /// Maximum number of lines of progress in memory for an operation.
    pub lines_in_memory: usize,
    /// Maximum number of lines of progress in its record.
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
