//! Keeping repositories sound and small, and looking into them.

use std::collections::HashSet;

use async_trait::async_trait;
use selvage_restic::{
    Damage, Forget, Job as Work, Keep as Rules, PruneOptions, Repository, Selector, Snapshot,
    VerifyOptions, VerifyReport,
};
use selvage_work::{Failure, Scope};

use super::{
    Access, Backups, Error, Keep, Kind, Result, Shared,
    device::Source,
    record::{Forgotten, Job, Speeds, State},
    running::RunningJob,
    split, wanted,
    work::JobKind,
};

/// Number of damages that are told by name.
const NAMED_DAMAGES: usize = 5;

/// The operation that looks whether a repository is sound.
pub(super) struct VerifyRepository;

#[async_trait]
impl JobKind for VerifyRepository {
    const OPERATION: &'static str = "VerifyRepository";
    const STEPS: &'static [&'static str] = &["verify"];

    async fn take(shared: &Shared, _: &str, job: &Job, scope: &Scope) -> Result<(), Failure> {
        shared.check(job, scope).await
    }
}

/// The operation that removes what a repository need not keep.
pub(super) struct PruneRepository;

#[async_trait]
impl JobKind for PruneRepository {
    const OPERATION: &'static str = "PruneRepository";
    const STEPS: &'static [&'static str] = &["prune"];

    async fn take(shared: &Shared, _: &str, job: &Job, scope: &Scope) -> Result<(), Failure> {
        shared.prune_repository(job, scope).await
    }
}

impl Shared {
    /// Looks whether a repository is sound, and heals it if it may.
    async fn check(&self, job: &Job, scope: &Scope) -> Result<(), Failure> {
        let access = self.access(job, scope).await?;
        let entered = self.running.enter(scope.id(), RunningJob::new("verify"));
        let live = &*entered.live;
        let checked = self.long(job, scope, live, async {
            let repository = access.open(&self.config, &self.limits, Some(&live.outage)).await?;
            self.check_and_heal(job, &repository, live).await
        });
        let message = checked.await?;
        self.note(job, |job| job.message.clone_from(&message)).await?;
        Ok(())
    }

    async fn check_and_heal(
        &self,
        job: &Job,
        repository: &Repository,
        live: &RunningJob,
    ) -> Result<String> {
        let read_percent = u8::try_from(job.read_percent).unwrap_or(100);
        let options = VerifyOptions { read_percent };
        let report = repository.verify(options, &live.job).await?;
        if report.damages.is_empty() {
            return Ok(describe(&report));
        }
        if job.volume.is_empty() || report.bad_packs().is_empty() {
            return Err(Error::Damaged(damages(&report)));
        }
        live.enter("heal");
        let snapshots = repository.snapshots().await?;
        let mut same = snapshots.iter().rev().filter(|s| s.volume() == Some(job.volume.as_str()));
        let chunk = same.find_map(Snapshot::chunk);
        let source = Source::open_live(&self.volumes, &job.group, &job.volume).await?;
        let healed = repository.heal(&report, source, &job.volume, chunk, &live.job).await?;
        live.enter("verify");
        let again = repository.verify(options, &live.job).await?;
        if !again.damages.is_empty() {
            return Err(Error::Damaged(damages(&again)));
        }
        let back = healed.blobs - healed.lost.len();
        Ok(format!("{} bad-packs={} healed={back}", describe(&again), healed.packs))
    }

    /// Removes what need not be kept.
    async fn prune_repository(&self, job: &Job, scope: &Scope) -> Result<(), Failure> {
        let access = self.access(job, scope).await?;
        let entered = self.running.enter(scope.id(), RunningJob::new("prune"));
        let live = &*entered.live;
        let swept = self.long(job, scope, live, async {
            let repository = access.open(&self.config, &self.limits, Some(&live.outage)).await?;
            Box::pin(self.forget_and_prune(job, &repository, live)).await
        });
        let message = swept.await?;
        self.note(job, |job| job.message.clone_from(&message)).await?;
        Ok(())
    }

    async fn forget_and_prune(
        &self,
        job: &Job,
        repository: &Repository,
        live: &RunningJob,
    ) -> Result<String> {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let forget = job.keep.map(|keep| Forget {
            keep: rules(&keep),
            volume: given(&job.volume),
            group: given(&job.group),
            hostname: given(&job.hostname),
        });
        let options = PruneOptions { dry_run: job.dry_run, ..PruneOptions::default() };
        let before = repository.snapshots().await?;
        let gone = self.plan(job, repository, forget.as_ref(), &before).await?;
        let done = repository.forget_and_prune(forget.as_ref(), &options, &live.job).await;
        let removed = match &done {
            Ok((forgotten, _)) => forgotten.removed.clone(),
            Err(selvage_restic::Error::AfterForgetting { snapshots, .. }) => {
                before.into_iter().filter(|snapshot| snapshots.contains(&snapshot.id)).collect()
            }
            Err(_) => Vec::new(),
        };
        let removed = removed.iter().map(Forgotten::from);
        let removed: Vec<Forgotten> = gone.into_iter().chain(removed).collect();
        // Whatever became of the rest: these are gone.
        self.note(job, |job| job.forgotten.clone_from(&removed)).await?;
        if !job.dry_run {
            self.forget_jobs(removed.iter().map(|gone| gone.snapshot.as_str())).await?;
        }
        let (_, pruned) = done?;
        let no_room = match pruned.not_copied {
            0 => String::new(),
            packs => format!(" no-room-to-repack={packs}"),
        };
        Ok(format!(
            "forgotten={} kept-packs={} repacked={} marked={} removed={} freed={}{no_room}",
            removed.len(),
            pruned.kept,
            pruned.repacked,
            pruned.marked,
            pruned.removed,
            pruned.removed_bytes
        ))
    }

    /// Writes down what a prune is about to remove. Returns what it has removed already, if
    /// it was interrupted: nobody can be told that by the repository any more.
    async fn plan(
        &self,
        job: &Job,
        repository: &Repository,
        forget: Option<&Forget>,
        snapshots: &[Snapshot],
    ) -> Result<Vec<Forgotten>> {
        let Some(forget) = forget.filter(|_| !job.dry_run) else { return Ok(Vec::new()) };
        let there: HashSet<String> = snapshots.iter().map(|it| it.id.to_string()).collect();
        let mut gone = job.planned.clone();
        gone.retain(|planned| !there.contains(&planned.snapshot));
        let removed = repository.divide(forget, snapshots)?.removed;
        let removed = removed.iter().map(Forgotten::from);
        let planned: Vec<Forgotten> = gone.iter().cloned().chain(removed).collect();
        self.note(job, |job| job.planned.clone_from(&planned)).await?;
        Ok(gone)
    }

    /// Forgets what was done to backups that are gone, so that their names
    /// can be used again.
    async fn forget_jobs(&self, snapshots: impl Iterator<Item = &str>) -> Result<()> {
        for id in snapshots {
            for job in self.jobs.list().iter().map(|stored| &stored.value) {
                let ended = job.state() == State::Complete && job.kind() == Kind::Backup;
                if ended && job.snapshot == id {
                    let gone = self.jobs.delete(&selvage_store::Record::key(job)).await;
                    if !matches!(gone, Err(selvage_store::Error::NotFound { .. })) {
                        gone?;
                    }
                }
            }
            for parent in self.parents.list() {
                if parent.value.snapshot == id {
                    self.forget_parent(&parent.value).await?;
                }
            }
            for good in self.last_good.list().iter().filter(|good| good.value.snapshot == id) {
                self.forget_last_good(&good.value).await?;
            }
        }
        Ok(())
    }

    /// Puts the limits in force that are written down.
    pub(super) fn apply_speeds(&self) {
        let speeds = self.speeds.list().first().map(|stored| stored.value).unwrap_or_default();
        let limit = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        self.limits.upload.set(limit(speeds.upload));
        self.limits.download.set(limit(speeds.download));
        self.limits.read.set(limit(speeds.read));
    }
}

impl Backups {
    /// Returns the backups that a repository holds.
    pub(crate) async fn stored(&self, access: &Access, volume: &str) -> Result<Vec<Snapshot>> {
        let repository = access.open(&self.shared.config, &self.shared.limits, None).await?;
        let mut snapshots = repository.snapshots().await?;
        let (group, volume) = split(volume);
        snapshots.retain(|snapshot| {
            let apart = group.zip(snapshot.group()).is_some_and(|(one, other)| one != other);
            volume.is_empty() || (snapshot.volume() == Some(volume) && !apart)
        });
        Ok(snapshots)
    }

    /// Removes a backup from its repository, or only says which one is meant.
    pub(crate) async fn delete(
        &self,
        access: &Access,
        volume: &str,
        hostname: &str,
        dry_run: bool,
    ) -> Result<Snapshot> {
        let Some(selector) = &access.location.snapshot else {
            let reason = "it names no backup: put #SNAPSHOT or @NAME behind it".to_owned();
            return Err(Error::Invalid { field: "path", reason });
        };
        let volume = access.source_volume(volume)?.unwrap_or_default();
        if matches!(selector, Selector::Id(id) if id == "latest") {
            let reason = "name the backup to remove".to_owned();
            return Err(Error::Invalid { field: "path", reason });
        }
        let repository = access.open(&self.shared.config, &self.shared.limits, None).await?;
        let snapshot = repository.select(selector, wanted(&volume, hostname)).await?;
        if dry_run {
            return Ok(snapshot);
        }
        repository.remove_snapshots(&[snapshot.id], &Work::new()).await?;
        self.shared.forget_jobs(std::iter::once(snapshot.id.to_string().as_str())).await?;
        Ok(snapshot)
    }

    /// Changes the limits, also for jobs that run.
    pub(crate) async fn set_speeds(&self, speeds: Speeds) -> Result<()> {
        self.shared.speeds.put(speeds).await?;
        self.shared.apply_speeds();
        Ok(())
    }

    pub(crate) fn speeds(&self) -> Speeds {
        self.shared.speeds.list().first().map(|stored| stored.value).unwrap_or_default()
    }
}

fn rules(keep: &Keep) -> Rules {
    let Keep { last, hourly, daily, weekly, monthly, yearly } = *keep;
    Rules { last, hourly, daily, weekly, monthly, yearly }
}

fn describe(report: &VerifyReport) -> String {
    let VerifyReport { snapshots, packs, packs_read, .. } = report;
    format!("snapshots={snapshots} packs={packs} packs-read={packs_read}")
}

fn damages(report: &VerifyReport) -> String {
    let one = |damage: &Damage| match damage {
        Damage::MissingPack(pack) => format!("pack {pack} is missing"),
        Damage::DamagedPack { pack, reason } => format!("pack {pack}: {reason}"),
        Damage::LostBlob { blob, reason } => format!("blob {blob}: {reason}"),
    };
    let named: Vec<String> = report.damages.iter().take(NAMED_DAMAGES).map(one).collect();
    let more = report.damages.len().saturating_sub(NAMED_DAMAGES);
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("the repository is damaged: {}{rest}", named.join("; "))
}
