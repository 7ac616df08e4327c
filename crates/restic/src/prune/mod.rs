//! Removal of what no snapshot needs.
//!
//! In an order that leaves a sound repository behind whenever it is
//! interrupted: new packs first, then the snapshots that are forgotten go, then
//! an index of all that stays is written, then the old indexes go, the old
//! packs last. Packs that are not needed go in two
//! steps: one prune takes them out of the index and marks them, a later one
//! removes them, if they are not needed again by then; before anything else, for
//! it may be the room that the rest needs. Where there is no room to copy what is
//! needed of a pack, the pack stays as it is.

mod plan;
mod repack;

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;

use crate::{
    Error, Forget, Forgotten, Id, Job, Repository, Result,
    backend::{File, Kind, Listed},
    format::{IndexFile, IndexPack},
    job::Phase,
    lock::{Lock, STALE_AFTER},
    walk,
};
use plan::Plan;

/// Number of blobs of one index file.
const INDEX_BLOBS: usize = 40_000;

/// Options of a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneOptions {
    /// Percentage of bytes that may be left unused in packs that hold
    /// other things, too. Less costs more copying.
    pub max_unused_percent: u8,
    /// Time for which packs that are not needed are kept. A backup that lost its
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

/// Result of a prune, or of a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneSummary {
    /// Packs that stay as they are.
    pub kept: usize,
    /// Packs whose blobs were copied to new ones.
    pub repacked: usize,
    /// Packs that were to be copied and stay, because there was no room.
    pub not_copied: usize,
    /// Packs that are marked and go later.
    pub marked: usize,
    /// Packs that were removed.
    pub removed: usize,
    /// Number of bytes that became free.
    pub removed_bytes: u64,
    /// Number of bytes in packs that stay, and not used.
    pub unused_bytes: u64,
}

/// A prune under way.
struct Run<'a> {
    forget: Option<&'a Forget>,
    options: &'a PruneOptions,
    job: &'a Job,
    lock: &'a Lock,
    /// Snapshots that it has begun to remove.
    removing: Mutex<Vec<Id>>,
}

impl Repository {
    /// Removes what no snapshot needs. Nobody else may be at work.
    pub async fn prune(&self, options: &PruneOptions, job: &Job) -> Result<PruneSummary> {
        self.forget_and_prune(None, options, job).await.map(|(_, summary)| summary)
    }

    /// Removes the snapshots that no rule keeps, and what no other needs.
    /// Nobody else may be at work. No snapshot goes before everything is copied
    /// that stays, so that what fails has most likely removed nothing; if not,
    /// the error says which ones are gone.
    pub async fn forget_and_prune(
        &self,
        forget: Option<&Forget>,
        options: &PruneOptions,
        job: &Job,
    ) -> Result<(Forgotten, PruneSummary)> {
        forget.map_or(Ok(()), Forget::check)?;
        job.enter(Phase::Opening);
        let lock = Lock::take(self, true, job).await?;
        let run = Run { forget, options, job, lock: &lock, removing: Mutex::default() };
        let mut outcome = job.or_cancelled(Box::pin(self.prune_locked(&run))).await;
        let removing = run.removing.into_inner();
        match outcome {
            Ok(_) => job.enter(Phase::Done),
            Err(error) => outcome = Err(self.say_what_is_gone(error, removing).await),
        }
        lock.finish(outcome).await
    }

    /// The repository knows what is gone; a call that was cut off does not.
    async fn say_what_is_gone(&self, error: Error, mut removing: Vec<Id>) -> Error {
        if removing.is_empty() {
            return error;
        }
        if let Ok(listed) = self.backend().list(Kind::Snapshot).await {
            removing.retain(|id| !listed.iter().any(|file| file.id == *id));
        }
        match removing.is_empty() {
            true => error,
            false => Error::AfterForgetting { snapshots: removing, cause: Box::new(error) },
        }
    }

    async fn prune_locked(&self, run: &Run<'_>) -> Result<(Forgotten, PruneSummary)> {
        let Run { options, job, lock, .. } = *run;
        self.reload_index().await?;
        let files = walk::index_files(self).await?;
        self.index_doomed(&files);
        let mut snapshots = self.snapshots().await?;
        let now = self.now();
        let forgotten = run.forget.map(|forget| forget.divide(&snapshots, now)).unwrap_or_default();
        snapshots.retain(|snapshot| !forgotten.removed.iter().any(|gone| gone.id == snapshot.id));
        let used = walk::walk(self, &snapshots, job).await?;
        if let Some((_, error)) = used.lost.into_iter().next() {
            return Err(error);
        }
        let listed = self.backend().list(Kind::Pack).await?;
        let old: Vec<Id> = files.iter().map(|(id, _)| *id).collect();
        let mut plan = Plan::make(files, &listed, used.data, used.trees, options, now)?;
        if options.dry_run {
            return Ok((forgotten, plan.summary()));
        }
        self.check_removable().await?;
        self.sweep().await?;
        if plan.is_nothing(old.len()) {
            self.remove_forgotten(run, &forgotten).await?;
            return Ok((forgotten, plan.summary()));
        }
        lock.check().await?;
        self.remove_packs(&plan.expired).await?;
        job.enter(Phase::Copying);
        let new = self.copy_if_there_is_room(&mut plan, &listed, job).await?;
        job.enter(Phase::Finishing);
        self.remove_forgotten(run, &forgotten).await?;
        let new_files = self.write_index(&plan, new).await?;
        for id in old.iter().filter(|id| !new_files.contains(id)) {
            self.backend().remove(File::Named(Kind::Index, *id)).await?;
        }
        self.reload_index().await?;
        lock.check().await?;
        self.remove_packs(plan.remove.keys()).await?;
        Ok((forgotten, plan.summary()))
    }

    /// Copies what is needed of packs that go. If there is no room for that, what was
    /// copied is taken back and these packs stay: a repository that has filled its disk
    /// must not be one that cannot be pruned.
    async fn copy_if_there_is_room(
        &self,
        plan: &mut Plan,
        listed: &[Listed],
        job: &Job,
    ) -> Result<Vec<IndexPack>> {
        match repack::repack(self, plan, job).await {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no room to copy packs: they stay as they are");
            }
            copied => return copied,
        }
        plan.copy_nothing();
        let before: BTreeSet<Id> = listed.iter().map(|pack| pack.id).collect();
        let packs = self.backend().list(Kind::Pack).await?.into_iter().map(|pack| pack.id);
        let copied: Vec<Id> = packs.filter(|id| !before.contains(id)).collect();
        self.remove_packs(&copied).await?;
        Ok(Vec::new())
    }

    async fn remove_packs(&self, packs: impl IntoIterator<Item = &Id>) -> Result<()> {
        for pack in packs {
            self.backend().remove(File::Named(Kind::Pack, *pack)).await?;
        }
        Ok(())
    }

    /// From here on there is no way back.
    async fn remove_forgotten(&self, run: &Run<'_>, forgotten: &Forgotten) -> Result<()> {
        run.lock.check().await?;
        for snapshot in &forgotten.removed {
            run.removing.lock().push(snapshot.id);
            self.backend().remove(File::Named(Kind::Snapshot, snapshot.id)).await?;
        }
        Ok(())
    }

    /// Removes what was never finished. Nobody else is at work here, but somebody
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

/// Error for a blob that is needed and not there.
fn missing(id: Id) -> Error {
    Error::MissingBlob(id)
}
