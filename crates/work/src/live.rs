//! An operation as this process sees it: its newest record and what it said.
//!
//! The driver of an operation writes here as it goes; for operations that
//! another process drives, the watch of the table does. Followers keep their
//! own position and look for what came after it, so nobody ever waits for them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use selvage_api::selvage::operations as wire;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::record::{Line, OperationRecord};
use crate::{Failure, Interrupt};

/// Position of a line; later lines are greater.
pub(crate) type LinePosition = (u64, u64);

fn position(line: &Line) -> LinePosition {
    (line.generation, line.number)
}

pub(crate) struct Live {
    pub(crate) id: String,
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
    /// Cancelled when somebody asked for the operation to be.
    pub(crate) cancel: CancellationToken,
    /// Cancelled when this process follows operations no longer.
    pub(crate) closed: CancellationToken,
    most_lines: usize,
}

struct Inner {
    record: Arc<OperationRecord>,
    lines: VecDeque<Line>,
}

/// Lines and state that are new to a follower.
pub(crate) struct Progress {
    /// Lines that are gone already.
    pub(crate) skipped: u64,
    pub(crate) lines: Vec<Line>,
    pub(crate) operation: wire::Operation,
    pub(crate) outcome: Option<Result<(), Failure>>,
}

impl Live {
    pub(crate) fn new(
        record: OperationRecord,
        most_lines: usize,
        closed: CancellationToken,
    ) -> Arc<Self> {
        let live = Self {
            id: record.id.clone(),
            inner: Mutex::new(Inner {
                lines: record.lines.iter().cloned().collect(),
                record: Arc::new(record),
            }),
            changes: watch::Sender::new(0),
            cancel: CancellationToken::new(),
            closed,
            most_lines: most_lines.max(1),
        };
        live.pass_on_cancel();
        Arc::new(live)
    }

    pub(crate) fn record(&self) -> Arc<OperationRecord> {
        Arc::clone(&self.inner.lock().record)
    }

    /// Wakes those who wait for a change.
    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn pass_on_cancel(&self) {
        if self.inner.lock().record.cancelling {
            self.cancel.cancel();
        }
    }

    /// Adds a line, unless it comes from a driver of an older generation.
    pub(crate) fn say(&self, generation: u64, text: String) {
        {
            let mut inner = self.inner.lock();
            if inner.record.generation != generation {
                return;
            }
            let number = inner.lines.back().map_or(1, |line| line.number + 1);
            let line = Line { number, generation, text };
            inner.lines.push_back(line);
            if inner.lines.len() > self.most_lines {
                inner.lines.pop_front();
            }
        }
        self.changed();
    }

    /// The last lines, as they are stored.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<Line> {
        let inner = self.inner.lock();
        let skip = inner.lines.len().saturating_sub(count);
        inner.lines.iter().skip(skip).cloned().map(Line::shortened).collect()
    }

    /// Takes in a record that was written or seen. Records of an older
    /// generation, and those older than the known one, came late and are ignored.
    pub(crate) fn merge(&self, record: &OperationRecord) {
        {
            let mut inner = self.inner.lock();
            let known = &inner.record;
            if (record.generation, record.writes) < (known.generation, known.writes) {
                return;
            }
            let last = inner.lines.back().map(position);
            let fresh =
                record.lines.iter().filter(|line| last.is_none_or(|last| position(line) > last));
            inner.lines.extend(fresh.cloned());
            while inner.lines.len() > self.most_lines {
                inner.lines.pop_front();
            }
            inner.record = Arc::new(record.clone());
        }
        self.pass_on_cancel();
        self.changed();
    }

    /// Does what [`Self::merge`] does, and wakes nobody if there is no change.
    pub(crate) fn merge_newer(&self, record: &OperationRecord) {
        let known = self.record();
        if (record.generation, record.writes) > (known.generation, known.writes) {
            self.merge(record);
        }
    }

    /// Ends it for followers although the store knows nothing of it.
    pub(crate) fn never_committed(&self) {
        let mut record = OperationRecord::clone(&self.record());
        record.set_state(wire::State::Failed);
        record.error = "the operation was launched but never committed".to_owned();
        record.error_code = selvage_api::Code::Internal.grpc() as i32;
        self.merge(&record);
    }

    /// Returns what came after `seen`.
    pub(crate) fn progress(&self, seen: LinePosition) -> Progress {
        let inner = self.inner.lock();
        let lines: Vec<Line> =
            inner.lines.iter().filter(|line| position(line) > seen).cloned().collect();
        let skipped = lines.first().map_or(0, |first| first.number.saturating_sub(seen.1 + 1));
        Progress {
            skipped,
            lines,
            operation: inner.record.to_wire(),
            outcome: inner.record.outcome(),
        }
    }

    /// Waits for a change that `changes` has not seen, or for the end of this
    /// process, which is false.
    pub(crate) async fn next_change(&self, changes: &mut watch::Receiver<u64>) -> bool {
        tokio::select! {
            biased;
            // Fails only when the sender is gone, and `self` holds it.
            changed = changes.changed() => changed.is_ok(),
            () = self.closed.cancelled() => false,
        }
    }

    /// Waits for the end and returns its result.
    pub(crate) async fn ended(&self) -> Result<(), Failure> {
        let mut changes = self.subscribe();
        loop {
            if let Some(outcome) = self.record().outcome() {
                return outcome;
            }
            if !self.next_change(&mut changes).await {
                return Err(Interrupt::Stopping.into());
            }
        }
    }
}
