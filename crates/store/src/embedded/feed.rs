//! Delivery of committed changes to watches.
//!
//! Nothing is queued per watch: each remembers the next revision it wants and
//! is woken when there is something newer. What it wants comes from a ring of
//! the newest revisions, or from the change log if it is further behind, or
//! is gone, and then it is told so.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream;
use parking_lot::RwLock;
use redb::ReadableDatabase;
use tokio::sync::watch;

use super::Shared;
use super::fault::storage;
use super::format::{Entry, FIRST_REVISION, LOG, META, META_COMPACTED, decode_log};
use crate::{Error, KeyRange, Result, Revision, Watch, WatchBatch};

/// Most revisions, and about how many bytes, that a watch takes at once.
const CHUNK: usize = 256;
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Feed {
    ring: RwLock<Ring>,
    position: watch::Sender<Position>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Feed {
    pub(super) fn new(position: Position, max_entries: usize, max_bytes: usize) -> Self {
        let ring = Ring { entries: VecDeque::new(), bytes: 0, max_entries, max_bytes };
        Self { ring: RwLock::new(ring), position: watch::Sender::new(position) }
    }

    pub(super) fn position(&self) -> Position {
        *self.position.borrow()
    }

    pub(super) fn publish(
        &self,
        entries: Vec<Arc<Entry>>,
        revision: Revision,
        compacted: Revision,
    ) {
        let mut ring = self.ring.write();
        for entry in entries {
            ring.bytes += entry.bytes;
            ring.entries.push_back(entry);
        }
        while ring.entries.len() > ring.max_entries || ring.bytes > ring.max_bytes {
            let Some(oldest) = ring.entries.pop_front() else { break };
            ring.bytes -= oldest.bytes;
        }
        drop(ring);
        self.position.send_modify(|position| {
            position.revision = revision;
            position.compacted = compacted;
        });
    }

    pub(super) fn close(&self) {
        self.position.send_modify(|position| position.closed = true);
    }

    /// Entries from `next` on, if the ring still has that one.
    fn recent(&self, next: Revision) -> Option<Vec<Arc<Entry>>> {
        let ring = self.ring.read();
        let first = ring.entries.front()?.revision;
        let skip = usize::try_from(next.checked_sub(first)?).ok()?;
        if skip >= ring.entries.len() {
            return None;
        }
        Some(ring.entries.iter().skip(skip).take(CHUNK).cloned().collect())
    }
}

/// Entries from `next` on out of the change log.
fn logged(shared: &Shared, next: Revision) -> Result<Vec<Arc<Entry>>> {
    shared.with_database(|database| {
        let read = database.begin_read().map_err(storage)?;
        let meta = read.open_table(META).map_err(storage)?;
        let compacted = meta.get(META_COMPACTED).map_err(storage)?.map_or(0, |row| row.value());
        if next <= compacted {
            return Err(Error::Compacted { oldest: compacted + 1 });
        }
        let log = read.open_table(LOG).map_err(storage)?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        for (expected, row) in (next..).zip(log.range(next..).map_err(storage)?) {
            let (revision, row) = row.map_err(storage)?;
            if revision.value() != expected {
                let detail = format!("log entry {expected} is missing");
                return Err(Error::corrupt("data file", detail));
            }
            let entry = Entry::from_log(expected, decode_log(expected, row.value())?)?;
            bytes += entry.bytes;
            entries.push(Arc::new(entry));
            if entries.len() == CHUNK || bytes > CHUNK_BYTES {
                break;
            }
        }
        Ok(entries)
    })
}

struct Watcher {
    shared: Arc<Shared>,
    range: KeyRange,
    next: Revision,
    position: watch::Receiver<Position>,
    ready: VecDeque<WatchBatch>,
    ended: bool,
}

pub(super) fn watch(shared: Arc<Shared>, range: KeyRange, from: Option<Revision>) -> Watch {
    let position = shared.feed.position.subscribe();
    let now = *position.borrow();
    // The first revision has no changes.
    let next = from.map_or(now.revision + 1, |from| from.max(FIRST_REVISION + 1));
    let watcher = Watcher { shared, range, next, position, ready: VecDeque::new(), ended: false };
    Watch::new(stream::unfold(watcher, |mut watcher| async move {
        let item = watcher.step().await?;
        watcher.ended = item.is_err();
        Some((item, watcher))
    }))
}

impl Watcher {
    async fn step(&mut self) -> Option<Result<WatchBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            if self.ended {
                return None;
            }
            let now = *self.position.borrow_and_update();
            if self.next > now.revision {
                if now.closed {
                    return None;
                }
                self.position.changed().await.ok()?;
                continue;
            }
            match self.fetch().await {
                Ok(entries) => self.take(&entries),
                Err(Error::Closed) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Arc<Entry>>> {
        if self.next <= self.position.borrow().compacted {
            let oldest = self.position.borrow().compacted + 1;
            return Err(Error::Compacted { oldest });
        }
        if let Some(entries) = self.shared.feed.recent(self.next) {
            return Ok(entries);
        }
        let (shared, next) = (Arc::clone(&self.shared), self.next);
        super::blocking(move || logged(&shared, next)).await
    }

    fn take(&mut self, entries: &[Arc<Entry>]) {
        let mut delivered = 0;
        for entry in entries {
            let events: Vec<_> = entry
                .events
                .iter()
                .filter(|event| self.range.contains(event.key()))
                .cloned()
                .collect();
            if !events.is_empty() {
                delivered = entry.revision;
                self.ready.push_back(WatchBatch { revision: entry.revision, events });
            }
            self.next = entry.revision + 1;
        }
        if delivered + 1 < self.next {
            self.ready.push_back(WatchBatch { revision: self.next - 1, events: Vec::new() });
        }
    }
}
