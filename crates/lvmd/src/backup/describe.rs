//! Jobs as callers are told of them.

use futures::{StreamExt, stream::BoxStream};
use selvage_api::{
    proto::{BackupState, StateType},
    selvage::volumes::{self as wire, BackupJob, JobKind, JobState, Repository, StoredBackup},
};
use selvage_restic::Snapshot;
use tokio_util::sync::CancellationToken;

use super::{
    Backups, Keep, Kind, Result, StoredLocation,
    record::{Forgotten, Job, Speeds, State},
    running::JobProgress,
};

/// Interval at which watchers are told.
const PROGRESS_INTERVAL: std::time::Duration = std::time::Duration::from_millis(250);

impl Backups {
    /// A job as lvmd's clients are told.
    pub(crate) fn state(&self, job: &Job) -> BackupState {
        let (state, msg) = match job.state() {
            State::Complete => (StateType::Complete, job.message.clone()),
            State::Failed | State::Unknown => (StateType::Error, job.error.clone()),
            State::Running => {
                let standing = self.shared.running.standing(&job.operation);
                let waiting = JobProgress { phase: "snapshot", ..JobProgress::default() };
                (StateType::Inprogress, standing.unwrap_or(waiting).line())
            }
        };
        BackupState { name: job.name.clone(), state: state.into(), msg }
    }

    /// A job as our own clients are told.
    pub(crate) fn describe(&self, job: &Job) -> BackupJob {
        let mut described = BackupJob {
            id: job.operation.clone(),
            kind: kind(job.kind()).into(),
            state: state(job.state()).into(),
            name: job.name.clone(),
            volume: job.full_name(),
            repository: job.repository.clone(),
            message: job.message.clone(),
            error: job.error.clone(),
            error_code: if job.state() == State::Failed { job.code } else { 0 },
            total_bytes: job.bytes,
            done_bytes: if job.state() == State::Complete { job.bytes } else { 0 },
            read_bytes: job.read,
            new_bytes: job.new,
            stored_bytes: job.stored,
            uploaded_bytes: job.uploaded,
            downloaded_bytes: job.downloaded,
            snapshot: job.snapshot.clone(),
            started_at: timestamp(job.started_at),
            ended_at: timestamp(job.ended_at),
            forgotten: job.forgotten.iter().map(forgotten).collect(),
            source_volume: job.restored_volume.clone(),
            safety_snapshot: job.safety_snapshot.clone(),
            ..BackupJob::default()
        };
        if job.state() != State::Running {
            return described;
        }
        let Some(standing) = self.shared.running.standing(&job.operation) else {
            described.phase = "preparing".into();
            return described;
        };
        described.phase = standing.phase.into();
        described.waiting = standing.waiting.unwrap_or_default();
        described.total_bytes = standing.progress.total;
        described.done_bytes = standing.progress.done;
        described.read_bytes = standing.progress.read;
        described.new_bytes = standing.progress.new;
        described.stored_bytes = standing.progress.stored;
        described.uploaded_bytes = standing.progress.uploaded;
        described.downloaded_bytes = standing.progress.downloaded;
        described.bytes_per_second = standing.rate;
        described.seconds_left = standing.seconds_left;
        described
    }

    /// All jobs, the newest first.
    pub(crate) fn jobs(&self, volume: &str) -> Vec<BackupJob> {
        let mut jobs: Vec<Job> =
            self.shared.jobs.list().iter().map(|stored| stored.value.clone()).collect();
        jobs.retain(|job| volume.is_empty() || job.volume == volume || job.full_name() == volume);
        jobs.sort_by(|a, b| b.operation.cmp(&a.operation));
        jobs.iter().map(|job| self.describe(job)).collect()
    }

    /// Returns the progress of a job, until it has ended or the process ends.
    pub(crate) fn watch(
        &self,
        operation: &str,
        stop: CancellationToken,
    ) -> Result<BoxStream<'static, BackupJob>> {
        let first = self.find(operation)?;
        let state = (self.clone(), Some(first), None::<BackupJob>, stop);
        let described =
            futures::stream::unfold(state, |(this, next, described, stop)| async move {
                let mut job = next?;
                loop {
                    let now = this.describe(&job);
                    let ended = job.state() != State::Running;
                    if described.as_ref() != Some(&now) {
                        let next = (!ended).then_some(job);
                        return Some((now.clone(), (this, next, Some(now), stop)));
                    }
                    if ended {
                        return None;
                    }
                    stop.run_until_cancelled(tokio::time::sleep(PROGRESS_INTERVAL)).await?;
                    // Another attempt under the same name takes its place.
                    job = this.find(&job.operation).ok()?;
                }
            });
        Ok(described.boxed())
    }
}

impl StoredLocation {
    /// As callers write it.
    pub(crate) fn describe(&self) -> Repository {
        Repository {
            path: self.path.clone(),
            endpoint: self.endpoint.clone(),
            skip_tls_verify: self.skip_tls_verify,
            http_proxy: self.http_proxy.clone(),
            https_proxy: self.https_proxy.clone(),
            credentials: self.credentials.clone(),
            ..Repository::default()
        }
    }

    /// Returns what may be kept of what a caller wrote, if that is enough.
    pub(crate) fn of(repository: &Repository) -> Option<Self> {
        super::check_storable(repository).ok()?;
        Some(Self {
            path: repository.path.clone(),
            endpoint: repository.endpoint.clone(),
            skip_tls_verify: repository.skip_tls_verify,
            http_proxy: repository.http_proxy.clone(),
            https_proxy: repository.https_proxy.clone(),
            credentials: repository.credentials.clone(),
        })
    }
}

impl From<wire::Retention> for Keep {
    fn from(from: wire::Retention) -> Self {
        let wire::Retention { last, hourly, daily, weekly, monthly, yearly } = from;
        Self { last, hourly, daily, weekly, monthly, yearly }
    }
}

impl From<Keep> for wire::Retention {
    fn from(from: Keep) -> Self {
        let Keep { last, hourly, daily, weekly, monthly, yearly } = from;
        Self { last, hourly, daily, weekly, monthly, yearly }
    }
}

impl From<wire::BackupLimits> for Speeds {
    fn from(from: wire::BackupLimits) -> Self {
        Self { upload: from.upload, download: from.download, read: from.read }
    }
}

impl From<Speeds> for wire::BackupLimits {
    fn from(from: Speeds) -> Self {
        Self { upload: from.upload, download: from.download, read: from.read }
    }
}

impl From<&Snapshot> for Forgotten {
    fn from(from: &Snapshot) -> Self {
        Self {
            snapshot: from.id.to_string(),
            name: from.name().unwrap_or_default().to_owned(),
            volume: from.volume().unwrap_or_default().to_owned(),
            group: from.group().unwrap_or_default().to_owned(),
            hostname: from.hostname.clone(),
            time: u64::try_from(from.time.as_millisecond()).unwrap_or_default(),
            size: from.size().unwrap_or_default(),
        }
    }
}

fn forgotten(from: &Forgotten) -> StoredBackup {
    StoredBackup {
        snapshot: from.snapshot.clone(),
        name: from.name.clone(),
        volume: from.volume.clone(),
        size_bytes: from.size,
        hostname: from.hostname.clone(),
        time: timestamp(from.time),
        program: String::new(),
        group: from.group.clone(),
    }
}

/// A backup in a repository.
pub(crate) fn stored(snapshot: &Snapshot) -> StoredBackup {
    let millis = u64::try_from(snapshot.time.as_millisecond()).unwrap_or_default();
    StoredBackup {
        snapshot: snapshot.id.to_string(),
        name: snapshot.name().unwrap_or_default().to_owned(),
        volume: snapshot.volume().unwrap_or_default().to_owned(),
        size_bytes: snapshot.size().unwrap_or_default(),
        hostname: snapshot.hostname.clone(),
        time: timestamp(millis),
        program: snapshot.program_version.clone(),
        group: snapshot.group().unwrap_or_default().to_owned(),
    }
}

/// Milliseconds since 1970; none for 0.
pub(crate) fn timestamp(millis: u64) -> Option<prost_types::Timestamp> {
    (millis > 0).then(|| prost_types::Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or_default(),
    })
}

fn kind(kind: Kind) -> JobKind {
    match kind {
        Kind::Backup => JobKind::Backup,
        Kind::Restore => JobKind::Restore,
        Kind::Verify => JobKind::Verify,
        Kind::Prune => JobKind::Prune,
        Kind::Unknown => JobKind::Unspecified,
    }
}

fn state(state: State) -> JobState {
    match state {
        State::Running => JobState::JobRunning,
        State::Complete => JobState::JobComplete,
        State::Failed => JobState::JobFailed,
        State::Unknown => JobState::Unspecified,
    }
}
