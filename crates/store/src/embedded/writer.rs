//! Writer thread: it takes all waiting requests, executes them in order in one
//! write transaction, and answers after one sync.

use std::sync::Arc;

use redb::Durability;
use tokio::sync::{mpsc, oneshot, watch};

use super::Shared;
use super::batch::{Batch, Outcome, Retention, Work};
use super::fault::{chain, contain, storage};
use super::format::Entry;
use super::lease::LeaseBook;
use super::pending::Rows;
use super::read::Horizon;
use crate::clock::Millis;
use crate::{Error, Result, Revision};

/// One piece of work and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Result<Outcome>>,
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) book: LeaseBook,
    pub(super) next_end: watch::Sender<Option<Millis>>,
    pub(super) batch: usize,
    pub(super) retention: Retention,
    /// Keys and bytes that may wait for their place in the file.
    pub(super) pending_keys: usize,
    pub(super) pending_bytes: usize,
}

/// Result of a batch, once it is on disk.
struct Written {
    outcomes: Vec<Result<Outcome>>,
    entries: Vec<Arc<Entry>>,
    fresh: Rows,
    /// True if the pending rows were moved.
    moved: bool,
    revision: Revision,
    compacted: Revision,
}

impl Writer {
    pub(super) fn run(mut self) {
        let mut jobs = Vec::with_capacity(self.batch);
        while self.jobs.blocking_recv_many(&mut jobs, self.batch) > 0 {
            self.serve(&mut jobs);
        }
        self.shared.release();
    }

    fn serve(&mut self, jobs: &mut Vec<Job>) {
        if let Some(reason) = self.shared.failure() {
            return refuse(jobs, &reason);
        }
        let shared = Arc::clone(&self.shared);
        match contain(|| self.write(jobs)) {
            Ok(written) => {
                // Readers and watches move on together.
                let mut pending = shared.pending.write();
                pending.advance(written.moved, written.fresh, written.revision);
                shared.feed.publish(written.entries, written.revision, written.compacted);
                drop(pending);
                self.next_end.send_replace(self.book.next_end());
                for (job, outcome) in jobs.drain(..).zip(written.outcomes) {
                    // Nobody waits any longer: the work is done all the same.
                    let _ = job.reply.send(outcome);
                }
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(reason, "a write to the data file failed, refusing writes");
                shared.fail(reason.clone());
                refuse(jobs, &reason);
            }
        }
    }

    fn write(&mut self, jobs: &[Job]) -> Result<Written> {
        let shared = Arc::clone(&self.shared);
        let position = shared.feed.position();
        let horizon = Horizon { revision: position.revision, compacted: position.compacted };
        let pending = shared.pending.read();
        let moving = pending.exceeds(self.pending_keys, self.pending_bytes);
        shared.with_database(|database| {
            let mut write = database.begin_write().map_err(storage)?;
            write.set_durability(Durability::Immediate).map_err(storage)?;
            let now = shared.clock.now();
            let batch = Batch::new(&write, &mut self.book, &pending, horizon, now)?;
            let (written, dirty) = perform(batch, jobs, self.retention, moving)?;
            if dirty {
                write.commit().map_err(storage)?;
            } else {
                write.abort().map_err(storage)?;
            }
            Ok(written)
        })
    }
}

/// Performs all jobs. Returns whether there is anything to commit.
fn perform(
    mut batch: Batch<'_, '_>,
    jobs: &[Job],
    retention: Retention,
    moving: bool,
) -> Result<(Written, bool)> {
    let mut outcomes = Vec::with_capacity(jobs.len());
    for job in jobs {
        outcomes.push(batch.perform(&job.work)?);
    }
    let maintains = jobs.iter().any(|job| matches!(job.work, Work::Maintain));
    if batch.dirty || maintains {
        batch.retain(retention)?;
    }
    if moving {
        batch.move_pending()?;
    }
    if batch.dirty {
        batch.finish()?;
    }
    let written = Written {
        outcomes,
        entries: std::mem::take(&mut batch.entries),
        fresh: std::mem::take(&mut batch.fresh),
        moved: moving,
        revision: batch.revision,
        compacted: batch.compacted,
    };
    Ok((written, batch.dirty))
}

fn refuse(jobs: &mut Vec<Job>, reason: &str) {
    for job in jobs.drain(..) {
        let _ = job.reply.send(Err(Error::Failed { reason: reason.to_owned() }));
    }
}
