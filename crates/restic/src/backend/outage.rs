//! Requests that failed and are tried again.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::StoreOptions;
use crate::Error;

/// Tells those who follow a job that its object store is away. Clones are the
/// same.
#[derive(Debug, Clone, Default)]
pub struct Outage(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Number of requests that are being tried again.
    retrying: usize,
    /// Until when the first of them is tried.
    until: Timestamp,
    reason: String,
}

impl Outage {
    /// Reason of the last failure, and until when is tried again. `None` while
    /// all requests are answered.
    pub fn reason(&self) -> Option<String> {
        let state = self.0.lock();
        (state.retrying > 0).then(|| state.reason.clone())
    }
}

/// A request that failed at least once, until it is answered or given up.
pub(super) struct Retry {
    pub(super) attempts: u32,
    since: Instant,
    outage: Outage,
}

impl Retry {
    pub(super) fn begin(options: &StoreOptions) -> Self {
        let outage = options.outage.clone();
        let mut state = outage.0.lock();
        if state.retrying == 0 {
            let now = options.clock.now();
            state.until = now.checked_add(options.retry_for).unwrap_or(now);
        }
        state.retrying += 1;
        drop(state);
        Self { attempts: 1, since: Instant::now(), outage }
    }

    pub(super) fn is_over(&self, options: &StoreOptions) -> bool {
        self.attempts >= options.attempts && self.since.elapsed() >= options.retry_for
    }

    pub(super) fn tell(&self, error: &Error) {
        let mut state = self.outage.0.lock();
        let until = state.until.strftime("%H:%M:%SZ").to_string();
        state.reason = format!("{error}; trying again until {until}");
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        self.outage.0.lock().retrying -= 1;
    }
}
