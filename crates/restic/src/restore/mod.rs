//! A snapshot becomes a volume again.
//!
//! A window of chunks at a time ([`contents`]): grouped by pack, fetched in
//! few ranges, several at once, each chunk checked before it is written.

mod contents;
mod fetch;

use std::sync::{Arc, atomic::Ordering};

use crate::{BlockSink, Error, Job, Repository, Result, Snapshot, job::Phase, lock::Lock};

pub(crate) use fetch::{Piece, WantedBlob, ranges};

/// Options of a restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Which file of the snapshot, where it holds more than one and was not
    /// made by us.
    pub file: Option<String>,
}

/// Result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestoreSummary {
    /// Number of bytes that the snapshot holds.
    pub size: u64,
    /// Number of bytes that were written.
    pub written: u64,
    /// Number of bytes that came from the repository.
    pub downloaded: u64,
}

impl Repository {
    /// Brings a snapshot back. The target may be larger than what the
    /// snapshot holds; what lies behind is left alone.
    pub async fn restore(
        &self,
        snapshot: &Snapshot,
        sink: Arc<dyn BlockSink>,
        options: &RestoreOptions,
        job: &Job,
    ) -> Result<RestoreSummary> {
        job.enter(Phase::Opening);
        let lock = Lock::take(self, false, job).await?;
        let target = fetch::Target::new(self, sink, job);
        let restoring = Box::pin(self.restore_locked(snapshot, &target, options, job));
        let outcome = job.or_cancelled(restoring).await;
        target.settle().await;
        if outcome.is_ok() {
            job.enter(Phase::Done);
        }
        lock.finish(outcome).await
    }

    /// Returns the number of bytes that a snapshot holds besides zeros, which is what a
    /// volume takes that is made of it. Nothing of the content is fetched.
    pub async fn data_length(&self, snapshot: &Snapshot) -> Result<u64> {
        self.load_index().await?;
        let mut contents = contents::Contents::find(self, snapshot, None).await?;
        let mut length = 0;
        while let Some(window) = contents.next_window(self).await? {
            let data = window.iter().filter(|it| it.id != self.zeros().of(it.length as usize));
            length += data.map(|chunk| u64::from(chunk.length)).sum::<u64>();
        }
        Ok(length)
    }

    async fn restore_locked(
        &self,
        snapshot: &Snapshot,
        target: &fetch::Target,
        options: &RestoreOptions,
        job: &Job,
    ) -> Result<RestoreSummary> {
        self.load_index().await?;
        let mut contents =
            contents::Contents::find(self, snapshot, options.file.as_deref()).await?;
        let size = contents.size();
        let available = target.sink().size();
        if size > available {
            return Err(Error::TargetTooSmall { needed: size, available });
        }
        job.counters().total.store(size, Ordering::Relaxed);
        job.enter(Phase::Copying);
        while let Some(window) = contents.next_window(self).await? {
            target.write(window).await?;
        }
        job.enter(Phase::Finishing);
        target.finish(size).await?;
        let downloaded = job.progress().downloaded;
        Ok(RestoreSummary { size, written: target.written(), downloaded })
    }
}
