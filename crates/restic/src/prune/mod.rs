//! What no snapshot needs goes.
//!
//! In an order that leaves a sound repository behind whenever it is
//! interrupted: new packs first, then an index of all that stays, then the
//! old indexes go, the old packs last. Packs that are not needed go in two
//! steps: one prune takes them out of the index and marks them, a later one
//! removes them, if they are not needed again by then.

mod plan;
mod repack;

use std::{collections::BTreeSet, time::Duration};

use crate::{
    Error, Id, Job, Repository, Result,
    backend::{File, Kind},
    format::{IndexFile, IndexPack},
    job::Phase,
    lock::{Lock, STALE_AFTER},
    walk,
};
use plan::Plan;

/// How many blobs go into one index file.
const INDEX_BLOBS: usize = 40_000;

/// How to prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneOptions {
    /// How many of a hundred bytes may be left unused in packs that hold
    /// other things, too. Less costs more copying.
    pub max_unused_percent: u8,
    /// How long packs that are not needed are kept. A backup that lost its
    /// lock and does not know it may count on them for so long.
    pub grace: Duration,
    /// Only says what it would do.
    pub dry_run: bool,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self { max_unused_percent: 5, grace: STALE_AFTER, dry_run: false }
    }
}

/// What a prune did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneSummary {
    /// Packs that stay as they are.
    pub kept: usize,
    /// Packs whose blobs were copied to new ones.
    pub repacked: usize,
    /// Packs that are marked and go later.
    pub marked: usize,
    /// Packs that were removed.
    pub removed: usize,
    /// How many bytes that made free.
    pub removed_bytes: u64,
    /// How many bytes are in packs that stay, and not used.
    pub unused_bytes: u64,
}

impl Repository {
    /// Removes what no snapshot needs. Nobody else may be at work.
    pub async fn prune(&self, options: &PruneOptions, job: &Job) -> Result<PruneSummary> {
        job.enter(Phase::Opening);
        let lock = Lock::take(self, true, job).await?;
        let outcome = job.or_cancelled(Box::pin(self.prune_locked(options, job, &lock))).await;
        if outcome.is_ok() {
            job.enter(Phase::Done);
        }
        lock.finish(outcome).await
    }

    async fn prune_locked(
        &self,
        options: &PruneOptions,
        job: &Job,
        lock: &Lock,
    ) -> Result<PruneSummary> {
        self.reload_index().await?;
        let files = walk::index_files(self).await?;
        self.index_doomed(&files);
        let snapshots = self.snapshots().await?;
        let used = walk::walk(self, &snapshots, job).await?;
        if let Some((_, error)) = used.lost.into_iter().next() {
            return Err(error);
        }
        let listed = self.backend().list(Kind::Pack).await?;
        let now = self.options().clock.now();
        let old: Vec<Id> = files.iter().map(|(id, _)| *id).collect();
        let plan = Plan::make(files, &listed, used.data, used.trees, options, now)?;
        let mut summary = plan.summary();
        if options.dry_run {
            return Ok(summary);
        }
        self.sweep().await?;
        if plan.is_nothing(old.len()) {
            return Ok(summary);
        }
        job.enter(Phase::Copying);
        let new = repack::repack(self, &plan, job).await?;
        job.enter(Phase::Finishing);
        lock.check().await?;
        summary.repacked = plan.repack.len();
        let new_files = self.write_index(&plan, new).await?;
        for id in old.iter().filter(|id| !new_files.contains(id)) {
            self.backend().remove(File::Named(Kind::Index, *id)).await?;
        }
        self.reload_index().await?;
        lock.check().await?;
        for pack in &plan.remove {
            self.backend().remove(File::Named(Kind::Pack, *pack)).await?;
        }
        Ok(summary)
    }

    /// What was never finished goes. Nobody else is at work here, but somebody
    /// may be about to ask for a lock.
    async fn sweep(&self) -> Result<()> {
        for kind in Kind::ALL {
            let age = if kind == Kind::Lock { STALE_AFTER } else { Duration::ZERO };
            let swept = self.backend().sweep(kind, age).await?;
            if swept > 0 {
                tracing::info!(swept, kind = kind.folder(), "removed what was never finished");
            }
        }
        Ok(())
    }

    /// A blob that is needed again may be only in a pack that is marked.
    fn index_doomed(&self, files: &[(Id, IndexFile)]) {
        let mut index = self.index().write();
        for pack in files.iter().flat_map(|(_, file)| &file.packs_to_delete) {
            index.add_pack(pack);
        }
    }

    /// Writes anew what stays, what was copied and what is marked.
    async fn write_index(&self, plan: &Plan, new: Vec<IndexPack>) -> Result<BTreeSet<Id>> {
        let mut written = BTreeSet::new();
        let mut file = IndexFile::default();
        let mut blobs = 0;
        let live = plan.keep.iter().cloned().chain(new).map(|pack| (pack, false));
        let doomed = plan.doomed.iter().cloned().map(|pack| (pack, true));
        for (pack, is_doomed) in live.chain(doomed) {
            blobs += pack.blobs.len();
            if is_doomed {
                file.packs_to_delete.push(pack)
            } else {
                file.packs.push(pack)
            }
            if blobs >= INDEX_BLOBS {
                let full = std::mem::take(&mut file);
                written.insert(self.save_document(Kind::Index, &full).await?);
                blobs = 0;
            }
        }
        if !file.packs.is_empty() || !file.packs_to_delete.is_empty() {
            written.insert(self.save_document(Kind::Index, &file).await?);
        }
        Ok(written)
    }
}

/// What is needed is not there.
fn missing(id: Id) -> Error {
    Error::MissingBlob(id)
}
