//! The steps of a backup.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use selvage_api::Code;
use selvage_restic::{BackupOptions, BackupSummary, Id, Parent as Earlier, Repository, Snapshot};
use selvage_work::{Failure, Scope};

use super::{
    Access, BACKUP_TAG, Error, Result, Shared,
    device::{Source, blocking},
    record::{Job, Parent, parent_key},
    running::RunningJob,
    work::JobKind,
};
use crate::{NewSnapshot, PENDING_TAG, Volume, backend::Backend};

/// Number of times that a volume is read in place that is written to meanwhile.
const READS_IN_PLACE: usize = 5;

/// The operation that stores a volume in a repository.
pub(super) struct BackUpVolume;

#[async_trait]
impl JobKind for BackUpVolume {
    const OPERATION: &'static str = "BackUpVolume";
    const STEPS: &'static [&'static str] = &["snapshot", "upload", "release"];
    const POINT_OF_NO_RETURN: Option<&'static str> = Some("release");

    async fn take(shared: &Shared, step: &str, job: &Job, scope: &Scope) -> Result<(), Failure> {
        match step {
            "snapshot" => Ok(shared.freeze(job, scope).await?),
            "upload" => Box::pin(shared.upload(job, scope)).await,
            _ => {
                // It is stored, whatever becomes of its snapshot, which is removed as soon as
                // the disk lets us.
                if let Err(error) = shared.release(job).await {
                    let (volume, error) = (job.full_name(), error.text());
                    tracing::warn!(volume, error, "the snapshot of a backup is not removed yet");
                }
                Ok(())
            }
        }
    }

    async fn clean(shared: &Shared, step: &str, job: &Job) -> Result<()> {
        if step == "snapshot" { shared.thaw(job).await } else { Ok(()) }
    }
}

impl Shared {
    /// Keeps the volume as it is now.
    async fn freeze(&self, job: &Job, scope: &Scope) -> Result<()> {
        let name = job.snapshot_volume();
        if self.volumes.find(&job.class, &name).is_ok() {
            return Ok(());
        }
        let volume = self.volumes.find(&job.class, &job.volume)?;
        let room = self.volumes.room_for_changes(&job.class, &volume, self.config.change_room);
        let room = room.await?;
        let now = scope.now();
        self.note(job, |job| job.frozen_at = now).await?;
        let snapshot = NewSnapshot {
            source: job.volume.clone(),
            name,
            tags: vec![format!("{BACKUP_TAG}{}", job.operation), PENDING_TAG.to_owned()],
            read_only: true,
            change_room: Some(room),
            ..NewSnapshot::default()
        };
        match self.make_snapshot(job, snapshot).await {
            Err(error)
                if error.code() == Code::ResourceExhausted && self.can_guard(job).await? =>
            {
                let (volume, error) = (&job.volume, error.to_string());
                tracing::info!(
                    volume,
                    error,
                    "no room for a snapshot: the volume is read in place"
                );
                self.note(job, |job| job.in_place = true).await
            }
            made => Ok(made.map(|_| ())?),
        }
    }

    /// Makes a snapshot, and shows how far it is where it needs a copy.
    pub(super) async fn make_snapshot(
        &self,
        job: &Job,
        snapshot: NewSnapshot,
    ) -> crate::Result<Volume> {
        let live = RunningJob::of_snapshot(snapshot.progress.clone());
        let entered = self.running.enter(&job.operation, live);
        let made = self.volumes.snapshot(&job.class, snapshot).await;
        drop(entered);
        self.running.remove(&job.operation);
        made
    }

    async fn can_guard(&self, job: &Job) -> Result<bool> {
        let (group, name) = (job.group.clone(), job.volume.clone());
        let guarded = move |backend: &dyn Backend| Ok(backend.guard(&group, &name)?.is_some());
        blocking(&self.volumes, guarded).await
    }

    /// Takes the snapshot away again.
    async fn thaw(&self, job: &Job) -> Result<()> {
        self.remove_volume(&job.class, &job.snapshot_volume()).await
    }

    /// Removes a volume of ours; that it is gone already is fine.
    pub(super) async fn remove_volume(&self, class: &str, name: &str) -> Result<()> {
        match self.volumes.remove(class, name).await {
            Ok(_) | Err(crate::Error::VolumeNotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores it.
    async fn upload(&self, job: &Job, scope: &Scope) -> Result<(), Failure> {
        // It must not be changed in ways that would take the snapshot along.
        let _hold = self.volumes.hold(&job.group, &job.volume, "being backed up");
        let access = self.access(job, scope).await?;
        let entered = self.running.enter(scope.id(), RunningJob::new("upload"));
        let live = &*entered.live;
        let stored = self.long(job, scope, live, async {
            let repository = self.repository_for(job, &access, live).await?;
            if let Some(stored) = self.stored_before(job, &repository).await? {
                return Ok(stored);
            }
            self.note(job, |job| job.storing = true).await?;
            match job.in_place {
                true => Box::pin(self.save_in_place(job, &repository, live)).await,
                false => Box::pin(self.save(job, &repository, live)).await,
            }
        });
        let (summary, since_full) = Box::pin(stored).await?;
        let parent = Parent {
            group: job.group.clone(),
            volume: job.volume.clone(),
            repository: job.repository.clone(),
            snapshot: summary.snapshot.id.to_string(),
            size: summary.size,
            since_full,
            ..Parent::default()
        };
        self.note(job, |job| {
            job.snapshot = summary.snapshot.id.to_string();
            let time = summary.snapshot.time.as_millisecond();
            job.frozen_at = u64::try_from(time).unwrap_or(job.frozen_at);
            job.bytes = summary.size;
            (job.read, job.new) = (summary.read, summary.new);
            (job.stored, job.uploaded) = (summary.stored, summary.uploaded);
            job.message =
                format!("snapshot={} bytes={} stored={}", job.snapshot, job.bytes, job.stored);
        })
        .await?;
        self.remember(parent).await?;
        Ok(())
    }

    /// Opens the repository of a backup, or makes it. A schedule that has stored backups
    /// there makes no new one in its place: where a disk is not mounted, it would fill
    /// another one, and nobody would see.
    async fn repository_for(
        &self,
        job: &Job,
        access: &Access,
        live: &RunningJob,
    ) -> Result<Repository> {
        let outage = Some(&live.outage);
        let key = parent_key(&job.group, &job.volume, &job.repository);
        if !job.scheduled || self.parents.get(&key).is_none() {
            return access.open_or_init(&self.config, &self.limits, outage).await;
        }
        match access.open(&self.config, &self.limits, outage).await {
            Err(Error::Repository(selvage_restic::Error::NoRepository(at))) => {
                Err(Error::RepositoryGone(at))
            }
            opened => opened,
        }
    }

    /// Returns the backup that this job has stored already, where the process ended before
    /// that was written down.
    async fn stored_before(
        &self,
        job: &Job,
        repository: &Repository,
    ) -> Result<Option<(BackupSummary, u32)>> {
        if !job.storing {
            return Ok(None);
        }
        let is_own = |snapshot: &Snapshot| {
            snapshot.name() == Some(&job.name)
                && snapshot.volume() == Some(&job.volume)
                && snapshot.group() == Some(&job.group)
                && snapshot.hostname == repository.options().hostname
                && u64::try_from(snapshot.time.as_millisecond()) == Ok(job.frozen_at)
        };
        let Some(snapshot) = repository.snapshots().await?.into_iter().find(is_own) else {
            return Ok(None);
        };
        tracing::info!(volume = %job.full_name(), snapshot = %snapshot.id, "it is stored already");
        let key = parent_key(&job.group, &job.volume, &job.repository);
        // How much of it was read is not known any more: the next full one is no later.
        let since_full = self.parents.get(&key).map_or(0, |parent| {
            let written = parent.value.snapshot == snapshot.id.to_string();
            parent.value.since_full + u32::from(!written)
        });
        let size = snapshot.size().unwrap_or_default();
        Ok(Some((BackupSummary::of_stored(snapshot, size), since_full)))
    }

    /// Writes down what the next backup starts from. What was kept for this
    /// one is kept until its own snapshot takes its place.
    pub(super) async fn remember(&self, parent: Parent) -> Result<()> {
        let before = self.parents.get(&selvage_store::Record::key(&parent));
        let Parent { comparison_snapshot, comparison_of, .. } =
            before.map(|stored| stored.value.clone()).unwrap_or_default();
        self.parents.put(Parent { comparison_snapshot, comparison_of, ..parent }).await?;
        Ok(())
    }

    async fn save(
        &self,
        job: &Job,
        repository: &Repository,
        live: &RunningJob,
    ) -> Result<(BackupSummary, u32)> {
        let name = job.snapshot_volume();
        let frozen = self.volumes.find(&job.class, &name)?;
        let (parent, since_full) = self.earlier(job, repository, &frozen).await?;
        let source = Source::open(&self.volumes, &job.group, &name).await?;
        let without_map = parent.is_none() && !self.is_worth_keeping(job, &name).await?;
        let options = backup_options(job, job.frozen_at, parent, without_map);
        let storing = repository.backup(source, options, &live.job);
        let summary = if frozen.change_room.is_some() {
            // What was read is worth nothing if the snapshot was lost meanwhile.
            let kept = self.volumes.while_whole(&job.class, &job.group, &name, storing).await?;
            kept.ok_or(Error::Overflow)??
        } else {
            storing.await?
        };
        Ok((summary, since_full))
    }

    /// Stores the volume from where it is, again if it was written to meanwhile.
    /// Uploads nothing again that was uploaded before.
    async fn save_in_place(
        &self,
        job: &Job,
        repository: &Repository,
        live: &RunningJob,
    ) -> Result<(BackupSummary, u32)> {
        let volume = self.volumes.find(&job.class, &job.volume)?;
        for _ in 0..READS_IN_PLACE {
            let (parent, since_full) = self.earlier(job, repository, &volume).await?;
            let now = self.clock.now();
            self.note(job, |job| job.frozen_at = now).await?;
            let source = Source::open_guarded(&self.volumes, &job.group, &job.volume).await?;
            let source = source.ok_or(Error::Task)?;
            let options = backup_options(job, now, parent, true);
            match repository.backup(source, options, &live.job).await {
                Err(selvage_restic::Error::SourceChanged) => live.job.restart(),
                stored => return Ok((stored?, since_full)),
            }
            tracing::info!(volume = %job.full_name(), "written to while it was read: reading again");
        }
        Err(Error::BusyInPlace(job.full_name()))
    }

    /// Returns what an earlier backup of the volume in this repository spares us, and
    /// how many backups will have been made without reading everything.
    async fn earlier(
        &self,
        job: &Job,
        repository: &Repository,
        frozen: &Volume,
    ) -> Result<(Option<Earlier>, u32)> {
        let key = parent_key(&job.group, &job.volume, &job.repository);
        let Some(parent) = self.parents.get(&key).map(|stored| stored.value.clone()) else {
            return Ok((None, 0));
        };
        let Ok(snapshot) = parent.snapshot.parse::<Id>() else { return Ok((None, 0)) };
        if repository.snapshot(snapshot).await.is_err() {
            return Ok((None, 0));
        }
        let due = parent.since_full + 1 >= self.config.full_every;
        let same = parent.size == frozen.size;
        // Another backup may have been stored that has not let go of its snapshot yet.
        let kept = !parent.comparison_snapshot.is_empty()
            && parent.comparison_of == parent.snapshot
            && self.volumes.find(&job.class, &parent.comparison_snapshot).is_ok();
        if due || !same || !kept {
            return Ok((Some(Earlier { snapshot, changed: None }), 0));
        }
        let changed = self.changed(job, &parent.comparison_snapshot, &frozen.name).await?;
        let since_full = if changed.is_some() { parent.since_full + 1 } else { 0 };
        Ok((Some(Earlier { snapshot, changed }), since_full))
    }

    /// Returns where one snapshot differs from another. Not to know is no failure.
    async fn changed(
        &self,
        job: &Job,
        older: &str,
        newer: &str,
    ) -> Result<Option<crate::backend::Ranges>> {
        let (group, older, newer) = (job.group.clone(), older.to_owned(), newer.to_owned());
        let asked = blocking(&self.volumes, move |backend| backend.changed(&group, &older, &newer));
        match asked.await {
            Ok(changed) => Ok(changed),
            Err(error) => {
                let (volume, error) = (&job.volume, error.text());
                tracing::warn!(volume, error, "what changed is not known, all is read");
                Ok(None)
            }
        }
    }

    /// Lets go of the snapshot, or keeps it where the next backup can be told
    /// what changed since.
    async fn release(&self, job: &Job) -> Result<()> {
        let name = job.snapshot_volume();
        let key = parent_key(&job.group, &job.volume, &job.repository);
        let Some(parent) = self.parents.get(&key).map(|stored| stored.value.clone()) else {
            return self.thaw(job).await;
        };
        if parent.snapshot != job.snapshot || !self.is_worth_keeping(job, &name).await? {
            return self.thaw(job).await;
        }
        if parent.comparison_snapshot == name {
            return Ok(());
        }
        let old = parent.comparison_snapshot.clone();
        let comparison_of = parent.snapshot.clone();
        self.parents.put(Parent { comparison_snapshot: name, comparison_of, ..parent }).await?;
        if old.is_empty() { Ok(()) } else { self.remove_volume(&job.class, &old).await }
    }

    async fn is_worth_keeping(&self, job: &Job, name: &str) -> Result<bool> {
        let Ok(snapshot) = self.volumes.find(&job.class, name) else { return Ok(false) };
        if self.config.full_every <= 1 || snapshot.change_room.is_some() || snapshot.pool.is_none()
        {
            return Ok(false);
        }
        Ok(self.changed(job, name, name).await?.is_some())
    }

    /// Forgets what backups of a volume start from that is gone.
    pub(super) async fn forget_parent(&self, parent: &Parent) -> Result<()> {
        if !parent.comparison_snapshot.is_empty() {
            let class = super::pick::class_of(&self.volumes, &parent.group)?;
            self.remove_volume(&class, &parent.comparison_snapshot).await?;
        }
        let key = selvage_store::Record::key(parent);
        match self.parents.delete(&key).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn backup_options(
    job: &Job,
    frozen_at: u64,
    parent: Option<Earlier>,
    without_map: bool,
) -> BackupOptions {
    let time = i64::try_from(frozen_at).ok().map(Timestamp::from_millisecond);
    BackupOptions {
        volume: job.volume.clone(),
        name: job.name.clone(),
        time: time.and_then(std::result::Result::ok),
        parent,
        without_map,
        tags: vec![format!("group={}", job.group)],
        ..BackupOptions::default()
    }
}

/// Work on backups can be handed to any thread.
const _: fn() = || {
    fn is<T: Send + Sync>() {}
    is::<Arc<Shared>>();
};
