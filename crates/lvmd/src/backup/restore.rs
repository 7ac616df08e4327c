//! The steps of a restore.

use async_trait::async_trait;
use selvage_restic::{Id, Location, Repository, RestoreOptions, Selector, Snapshot};
use selvage_work::{Failure, Scope};

use super::{
    Error, REPLACE_TAG, RESTORE_TAG, Result, Shared,
    device::{Sink, blocking},
    record::Job,
    running::RunningJob,
    wanted,
    work::JobKind,
};
use crate::{NewSnapshot, NewVolume, PENDING_TAG, backend::Backend};

/// The operation that makes a volume of a backup.
pub(super) struct RestoreVolume;

#[async_trait]
impl JobKind for RestoreVolume {
    const OPERATION: &'static str = "RestoreVolume";
    const STEPS: &'static [&'static str] = &["look", "create", "download", "adopt"];
    const POINT_OF_NO_RETURN: Option<&'static str> = Some("adopt");

    async fn take(shared: &Shared, step: &str, job: &Job, scope: &Scope) -> Result<(), Failure> {
        match step {
            "look" => shared.look(job, scope).await,
            "create" => Ok(shared.create(job).await?),
            "download" => shared.download(job, scope).await,
            _ => Ok(shared.adopt(job).await?),
        }
    }

    async fn clean(shared: &Shared, step: &str, job: &Job) -> Result<()> {
        if step == "create" { shared.discard(job).await } else { Ok(()) }
    }
}

impl Shared {
    /// Finds the backup before anything is made.
    async fn look(&self, job: &Job, scope: &Scope) -> Result<(), Failure> {
        let access = self.access(job, scope).await?;
        let entered = self.running.enter(scope.id(), RunningJob::new("looking"));
        let live = &*entered.live;
        let looked = self.long(job, scope, live, async {
            let repository = access.open(&self.config, &self.limits, Some(&live.outage)).await?;
            let selected = select(&repository, job).await?;
            let size = selected.size().unwrap_or(job.size);
            if size == 0 {
                return Err(Error::Missing("size_bytes"));
            }
            if job.size != 0 && job.size < size {
                let (requested, source_size) = (job.size, size);
                return Err(crate::Error::SmallerThanSource { requested, source_size }.into());
            }
            self.check_room(job, &repository, &selected, size).await?;
            Ok((selected, size))
        });
        let (snapshot, size) = looked.await?;
        self.note(job, |job| {
            job.snapshot = snapshot.id.to_string();
            snapshot.volume().unwrap_or_default().clone_into(&mut job.restored_volume);
            job.bytes = size;
            if job.size == 0 {
                job.size = size;
            }
        })
        .await?;
        Ok(())
    }

    /// Refuses a thin volume that would fill its pool: others have theirs in it.
    async fn check_room(
        &self,
        job: &Job,
        repository: &Repository,
        snapshot: &Snapshot,
        size: u64,
    ) -> Result<()> {
        let classes = self.volumes.classes();
        let Some(pool) = classes.find(&job.class)?.pool().filter(|_| !job.replace) else {
            return Ok(());
        };
        let (group, pool) = (job.group.clone(), pool.name.clone());
        let room = move |backend: &dyn Backend| backend.room_in_pool(&group, &pool);
        let free = blocking(&self.volumes, room).await?;
        if free >= size {
            return Ok(());
        }
        let needed = repository.data_length(snapshot).await?;
        if needed > free { Err(Error::NoRoom { needed, free }) } else { Ok(()) }
    }

    /// Makes the volume, marked as not complete.
    async fn create(&self, job: &Job) -> Result<()> {
        if job.replace {
            return self.secure(job).await;
        }
        let mark = format!("{RESTORE_TAG}{}", job.operation);
        match self.volumes.find(&job.class, &job.volume) {
            Ok(there) if there.tags.contains(&mark) => return Ok(()),
            _ => {}
        }
        let tags = [job.tags.clone(), vec![mark, PENDING_TAG.to_owned()]].concat();
        let new =
            NewVolume { name: job.volume.clone(), size: job.size, tags, ..NewVolume::default() };
        match self.volumes.create(&job.class, new).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = Error::from(error);
                let code = error.grpc() as i32;
                self.note(job, |job| job.code = code).await?;
                Err(error)
            }
        }
    }

    /// Keeps a volume that is written over as it is, in a snapshot, and marks it.
    async fn secure(&self, job: &Job) -> Result<()> {
        let mark = format!("{REPLACE_TAG}{}", job.operation);
        let volume = self.volumes.find(&job.class, &job.volume)?;
        if volume.tags.contains(&mark) {
            return Ok(());
        }
        let claim = volume.claim(&job.group).await?;
        let name = safety_snapshot_name(job);
        if self.volumes.find(&job.class, &name).is_err() {
            let snapshot = NewSnapshot {
                source: job.volume.clone(),
                name: name.clone(),
                tags: Vec::new(),
                read_only: true,
                // All of it may change, and a little is needed to tell where.
                change_room: Some(volume.size.saturating_add(volume.size / 16)),
                ..NewSnapshot::default()
            };
            self.make_snapshot(job, snapshot).await?;
        }
        self.note(job, |job| job.safety_snapshot.clone_from(&name)).await?;
        let marks = vec![mark, PENDING_TAG.to_owned()];
        self.volumes.tag(&job.class, &job.volume, marks, Vec::new()).await?;
        drop(claim);
        Ok(())
    }

    /// Gives a volume that was written over its content back.
    pub(super) async fn give_back(&self, job: &Job) -> Result<()> {
        let mark = format!("{REPLACE_TAG}{}", job.operation);
        let name = safety_snapshot_name(job);
        let marked =
            self.volumes.find(&job.class, &job.volume).is_ok_and(|it| it.tags.contains(&mark));
        if marked {
            let volume = self.volumes.find(&job.class, &job.volume)?;
            let _claim = volume.claim(&job.group).await?;
            self.volumes.copy_content_of(&job.group, &name, &job.volume).await?;
            let marks = vec![mark, PENDING_TAG.to_owned()];
            self.volumes.tag(&job.class, &job.volume, Vec::new(), marks).await?;
        }
        self.note(job, |job| job.safety_snapshot.clear()).await?;
        self.remove_volume(&job.class, &name).await
    }

    /// Takes the volume away again, if it is this job's.
    async fn discard(&self, job: &Job) -> Result<()> {
        if job.replace {
            return self.give_back(job).await;
        }
        let mark = format!("{RESTORE_TAG}{}", job.operation);
        let there = self.volumes.find(&job.class, &job.volume);
        if !there.is_ok_and(|volume| volume.tags.contains(&mark)) {
            return Ok(());
        }
        if self.config.keep_failed_restore {
            tracing::warn!(volume = %job.full_name(), "what was restored of it stays, marked");
            return Ok(());
        }
        self.remove_volume(&job.class, &job.volume).await
    }

    /// Fills it.
    async fn download(&self, job: &Job, scope: &Scope) -> Result<(), Failure> {
        let _hold = self.volumes.hold(&job.group, &job.volume, "being restored");
        let safety = safety_snapshot_name(job);
        let needed = || self.volumes.hold(&job.group, &safety, "needed by a restore");
        let _safety = job.replace.then(needed);
        let _claim = match job.replace {
            true => {
                let volume = self.volumes.find(&job.class, &job.volume).map_err(Error::from)?;
                Some(volume.claim(&job.group).await.map_err(Error::from)?)
            }
            false => None,
        };
        let access = self.access(job, scope).await?;
        let entered = self.running.enter(scope.id(), RunningJob::new("download"));
        let live = &*entered.live;
        let filled = self.long(job, scope, live, async {
            let repository = access.open(&self.config, &self.limits, Some(&live.outage)).await?;
            let id: Id = job.snapshot.parse().map_err(|_| Error::NoJob(job.snapshot.clone()))?;
            let snapshot = repository.snapshot(id).await?;
            let sink = Sink::open(&self.volumes, &job.group, &job.volume).await?;
            let options = RestoreOptions::default();
            let target = sink.clone();
            let summary = repository.restore(&snapshot, target, &options, &live.job).await?;
            sink.clear_behind(summary.size).await?;
            Ok(summary)
        });
        let summary = filled.await?;
        self.note(job, |job| {
            job.bytes = summary.size;
            job.downloaded = summary.downloaded;
            job.message = format!(
                "snapshot={} bytes={} written={}",
                job.snapshot, summary.size, summary.written
            );
        })
        .await?;
        Ok(())
    }

    /// Shows it to everybody.
    async fn adopt(&self, job: &Job) -> Result<()> {
        let tag = if job.replace { REPLACE_TAG } else { RESTORE_TAG };
        let mark = format!("{tag}{}", job.operation);
        let there = self.volumes.find(&job.class, &job.volume)?;
        if there.tags.contains(&mark) {
            let marks = vec![mark, PENDING_TAG.to_owned()];
            self.volumes.tag(&job.class, &job.volume, Vec::new(), marks).await?;
        }
        Ok(())
    }
}

/// `data-before-20261118T081500Z`, by the time the restore was asked for.
fn safety_snapshot_name(job: &Job) -> String {
    let seconds = i64::try_from(job.started_at / 1000).unwrap_or_default();
    let when = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    format!("{}-before-{}", job.volume, when.strftime("%Y%m%dT%H%M%SZ"))
}

/// The snapshot that the `#id` or `@name` of a job means.
async fn select(repository: &Repository, job: &Job) -> Result<Snapshot> {
    // Written behind any bucket, it is what a path would have.
    let location: Location = format!("any/repository{}", job.selector).parse()?;
    let latest = Selector::Id("latest".into());
    let selector = location.snapshot.as_ref().unwrap_or(&latest);
    Ok(repository.select(selector, wanted(&job.source_volume, &job.hostname)).await?)
}
