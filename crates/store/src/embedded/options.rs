//! Options of an embedded store.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};

#[derive(Debug, Clone)]
pub struct Options {
    /// Keep at least this many of the newest revisions in the change log;
    /// older ones are compacted away.
    pub log_revisions: u64,
    /// Compact what is older than this, however few revisions there are.
    pub log_age: Duration,
    /// Memory for pages of the data file.
    pub cache_bytes: usize,
    /// Newest revisions kept in memory for watches, and their size at most. A
    /// watch that is further behind reads from the change log.
    pub ring_revisions: usize,
    pub ring_bytes: usize,
    /// Changed keys, and their size, that are kept in memory and in the log
    /// until they are moved to their place in the file together.
    pub pending_keys: usize,
    pub pending_bytes: usize,
    /// Most transactions that share one write to disk.
    pub batch: usize,
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_revisions: 100_000,
            log_age: Duration::from_secs(24 * 3600),
            cache_bytes: 64 << 20,
            ring_revisions: 4096,
            ring_bytes: 16 << 20,
            pending_keys: 4096,
            pending_bytes: 16 << 20,
            batch: 512,
            clock: Arc::new(SystemClock::new()),
        }
    }
}
