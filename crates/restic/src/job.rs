//! A piece of work that can be looked at and cancelled while it runs.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// Goes with a job. Clones are the same job.
#[derive(Debug, Clone, Default)]
pub struct Job(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cancelled: CancellationToken,
    phase: AtomicU8,
    counters: Counters,
}

/// Counters of a job; all in bytes but `chunks` and `phase`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) total: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) new: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) uploaded: AtomicU64,
    pub(crate) downloaded: AtomicU64,
    pub(crate) chunks: AtomicU64,
}

/// Phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Phase {
    /// Not begun.
    #[default]
    Waiting,
    /// Locks, keys, indexes.
    Opening,
    /// The bulk of the work.
    Copying,
    /// The last packs, the index, the snapshot.
    Finishing,
    /// Done.
    Done,
}

impl Phase {
    /// One word for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Opening => "opening",
            Self::Copying => "copying",
            Self::Finishing => "finishing",
            Self::Done => "done",
        }
    }
}

/// Progress of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Number of bytes of the volume to deal with. 0 until known.
    pub total: u64,
    /// Number of them that are dealt with.
    pub done: u64,
    /// Number of bytes that were read from the volume.
    pub read: u64,
    /// Number of those that the repository did not have.
    pub new: u64,
    /// Size of these when compressed and sealed.
    pub stored: u64,
    /// Number of bytes that the repository has taken.
    pub uploaded: u64,
    /// Number of bytes that came from the repository.
    pub downloaded: u64,
    /// Number of chunks that were dealt with.
    pub chunks: u64,
}

impl Job {
    /// A job that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// A job that ends when the token is cancelled, too.
    pub fn with_token(cancelled: CancellationToken) -> Self {
        Self(Arc::new(Inner { cancelled, ..Inner::default() }))
    }

    /// Returns its progress. Cheap: look as often as you like.
    pub fn progress(&self) -> Progress {
        let counters = &self.0.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            phase: match self.0.phase.load(Ordering::Relaxed) {
                0 => Phase::Waiting,
                1 => Phase::Opening,
                2 => Phase::Copying,
                3 => Phase::Finishing,
                _ => Phase::Done,
            },
            total: get(&counters.total),
            done: get(&counters.done),
            read: get(&counters.read),
            new: get(&counters.new),
            stored: get(&counters.stored),
            uploaded: get(&counters.uploaded),
            downloaded: get(&counters.downloaded),
            chunks: get(&counters.chunks),
        }
    }

    /// Makes it end soon, with [`Error::Cancelled`]. What was uploaded stays
    /// and serves the next attempt.
    pub fn cancel(&self) {
        self.0.cancelled.cancel();
    }

    /// Counts what is to be done from the beginning, for another attempt. What was
    /// read and uploaded before still counts.
    pub fn restart(&self) {
        let counters = &self.0.counters;
        counters.total.store(0, Ordering::Relaxed);
        counters.done.store(0, Ordering::Relaxed);
    }

    /// Returns whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.0.cancelled
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.0.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Runs until it ends or the job is cancelled.
    pub(crate) async fn or_cancelled<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.0.cancelled.run_until_cancelled(work).await {
            Some(result) => result,
            None => Err(Error::Cancelled),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
