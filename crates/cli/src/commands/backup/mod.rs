//! Backups of the volumes of the machine that the server runs on.

mod admin;
mod args;
mod follow;
mod repository;
mod schedule;

use jiff::Timestamp;
use selvage_api::{
    Code,
    selvage::volumes::{
        BackupJob, BackupLimits, CancelBackupRequest, DeleteBackupRequest, GetBackupLimitsRequest,
        JobState, ListBackupsRequest, ListBackupsResponse, PruneBackupsRequest,
        SetBackupLimitsRequest, StartBackupRequest, StartRestoreRequest, StoredBackup,
        VerifyBackupRequest, backups_service_client::BackupsServiceClient,
    },
};
use tonic::{Request, Response, Status, transport::Channel};

pub(crate) use args::Backup;
use args::{Create, Delete, Limits, List, Prune, Restore, Verify};

use super::node::{binary, sheet::Sheet};
use crate::{Error, client::Client, output, session::Session};

const BACKUPS: &str = "selvage.volumes.ListBackupsResponse";
const LIMITS: &str = "selvage.volumes.BackupLimits";

pub(crate) async fn run(command: Backup, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Backup::Create(args) => create(args, session).await,
        Backup::List(args) => list(args, session).await,
        Backup::Restore(args) => restore(args, session).await,
        Backup::Verify(args) => verify(args, session).await,
        Backup::Delete(args) => delete(args, session).await,
        Backup::Prune(args) => prune(args, session).await,
        Backup::Schedule(args) => schedule::run(args, session).await,
        Backup::Watch { id } => {
            let job = BackupJob { id, ..BackupJob::default() };
            follow::show(job, false, session).await
        }
        Backup::Cancel { id } => cancel(id, session).await,
        Backup::Limits(args) => limits(args, session).await,
        Backup::Diff(args) => admin::diff(args, session).await,
        Backup::Stats(args) => admin::stats(args, session).await,
        Backup::Unlock(args) => admin::unlock(args, session).await,
        Backup::Key(command) => admin::key(command, session).await,
    }
}

/// Asks, without a limit of time: repositories may be far away.
async fn ask<Q, R, F>(
    client: &Client,
    request: Q,
    call: impl FnOnce(BackupsServiceClient<Channel>, Request<Q>) -> F,
) -> Result<R, Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    let request = client.request(request, client.limit(true))?;
    let answer = call(BackupsServiceClient::new(client.channel()), request).await;
    Ok(answer.map_err(|status| explain(client.refused(&status)))?.into_inner())
}

/// Says what to do about a passphrase that is wrong, which is no matter of roles.
fn explain(error: Error) -> Error {
    match error {
        Error::Status { code: Code::PermissionDenied, message, .. }
            if message.contains("the encryption key does not open") =>
        {
            let hint = "check RESTIC_PASSWORD in the environment, --credentials-file or \
                        --credentials: this repository has another passphrase";
            Error::Status { code: Code::PermissionDenied, message, hints: vec![hint.into()] }
        }
        other => other,
    }
}

async fn create(args: Create, session: &mut Session<'_>) -> Result<(), Error> {
    let name = args.name.unwrap_or_else(|| {
        let volume = args.volume.rsplit('/').next().unwrap_or_default();
        format!("{volume}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ"))
    });
    let repository = args.store.repository(&args.repository, session)?;
    let request = StartBackupRequest {
        name,
        volume: args.volume,
        repository: Some(repository),
        // Another run is another request, whatever its name.
        request_id: uuid::Uuid::now_v7().to_string(),
    };
    let client = session.client().await?;
    let job = ask(&client, request, async |mut client, request| client.start_backup(request).await);
    let job = job.await?;
    follow::show(job, args.no_wait, session).await
}

async fn restore(args: Restore, session: &mut Session<'_>) -> Result<(), Error> {
    let question = format!("Write over volume {}?", args.volume);
    if args.replace && !args.yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{} stays as it is", args.volume)));
    }
    let request = StartRestoreRequest {
        repository: Some(args.store.repository(&args.repository, session)?),
        volume: args.volume,
        device_class: args.class,
        size_bytes: args.size.unwrap_or_default(),
        tags: args.tags,
        source_volume: args.source,
        source_hostname: args.host,
        replace: args.replace,
    };
    let client = session.client().await?;
    let job =
        ask(&client, request, async |mut client, request| client.start_restore(request).await);
    let job = job.await?;
    follow::show(job, args.no_wait, session).await
}

async fn verify(args: Verify, session: &mut Session<'_>) -> Result<(), Error> {
    let request = VerifyBackupRequest {
        repository: Some(args.store.repository(&args.repository, session)?),
        read_percent: args.read,
        heal_from: args.heal,
    };
    let client = session.client().await?;
    let job =
        ask(&client, request, async |mut client, request| client.verify_backup(request).await);
    let job = job.await?;
    follow::show(job, false, session).await
}

async fn prune(args: Prune, session: &mut Session<'_>) -> Result<(), Error> {
    let request = PruneBackupsRequest {
        repository: Some(args.store.repository(&args.repository, session)?),
        keep: args.keep.rules(),
        volume: args.volume,
        dry_run: args.dry_run,
        hostname: args.host,
    };
    let client = session.client().await?;
    let job =
        ask(&client, request, async |mut client, request| client.prune_backups(request).await);
    let job = job.await?;
    follow::show(job, false, session).await
}

async fn delete(args: Delete, session: &mut Session<'_>) -> Result<(), Error> {
    let repository = args.store.repository(&args.repository, session)?;
    let client = session.client().await?;
    let mut request = DeleteBackupRequest {
        repository: Some(repository),
        volume: args.volume,
        hostname: args.host,
        dry_run: false,
    };
    if !args.yes {
        let meant = find(&client, &request).await?;
        let question = format!("Delete {}?", described(&meant));
        if !session.confirm(&question, "say --yes to mean it")? {
            return Err(Error::Declined(format!("{} stays", described(&meant))));
        }
        // What was agreed to, and not what the name means by now.
        if let Some(repository) = &mut request.repository {
            let at = repository.path.find(['#', '@']).unwrap_or(repository.path.len());
            repository.path.replace_range(at.., &format!("#{}", meant.snapshot));
        }
    }
    let gone =
        ask(&client, request, async |mut client, request| client.delete_backup(request).await);
    let gone = gone.await?.backup.unwrap_or_default();
    let gone = described(&gone);
    session.io.say(&format!("The {gone} is gone; its space is free after the next prune."))
}

/// The backup that a request means, as the server sees it.
async fn find(client: &Client, request: &DeleteBackupRequest) -> Result<StoredBackup, Error> {
    let request = DeleteBackupRequest { dry_run: true, ..request.clone() };
    let found =
        ask(client, request, async |mut client, request| client.delete_backup(request).await);
    Ok(found.await?.backup.unwrap_or_default())
}

/// `backup monday of data (0d17f3e5, 2026-11-16T06:27:38Z)`
pub(super) fn described(backup: &StoredBackup) -> String {
    let short = backup.snapshot.get(..8).unwrap_or_default();
    let name = if backup.name.is_empty() { "" } else { " " };
    let of = if backup.volume.is_empty() { "" } else { " of " };
    let (called, volume) = (&backup.name, &backup.volume);
    format!("backup{name}{called}{of}{volume} ({short}, {})", time(backup.time.as_ref()))
}

async fn cancel(id: String, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let job = ask(&client, CancelBackupRequest { id }, async |mut client, request| {
        client.cancel_backup(request).await
    });
    let job = job.await?;
    let text = match job.state() {
        JobState::JobRunning => "It is being stopped.",
        JobState::JobComplete => "It was done already.",
        _ => "It has ended.",
    };
    session.io.say(text)
}

async fn limits(args: Limits, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let now = ask(&client, GetBackupLimitsRequest {}, async |mut client, request| {
        client.get_backup_limits(request).await
    });
    let mut limits: BackupLimits = now.await?;
    let wanted = BackupLimits {
        upload: args.upload.unwrap_or(limits.upload),
        download: args.download.unwrap_or(limits.download),
        read: args.read.unwrap_or(limits.read),
    };
    if wanted != limits {
        let request = SetBackupLimitsRequest { limits: Some(wanted) };
        let set = ask(&client, request, async |mut client, request| {
            client.set_backup_limits(request).await
        });
        limits = set.await?;
    }
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(LIMITS, &limits)?);
    }
    let rate = |bytes: u64| if bytes == 0 { "-".into() } else { format!("{}/s", binary(bytes)) };
    let mut sheet = Sheet::new(&["UPLOAD", "DOWNLOAD", "READ"]);
    sheet.push([rate(limits.upload), rate(limits.download), rate(limits.read)]);
    sheet.print(session)
}

async fn list(args: List, session: &mut Session<'_>) -> Result<(), Error> {
    let repository = match &args.repository {
        Some(path) => Some(args.store.repository(path, session)?),
        None => None,
    };
    let looks = repository.is_some();
    let client = session.client().await?;
    let request = ListBackupsRequest { repository, volume: args.volume };
    let answer =
        ask(&client, request, async |mut client, request| client.list_backups(request).await);
    let answer: ListBackupsResponse = answer.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(BACKUPS, &answer)?);
    }
    let sheet = if looks { stored(&answer.backups) } else { jobs(&answer.jobs) };
    sheet.print(session)
}

fn stored(backups: &[StoredBackup]) -> Sheet {
    let mut sheet = Sheet::new(&[
        "SNAPSHOT", "TIME", "VOLUME", "NAME", "SIZE", "HOST", "+GROUP", "+PROGRAM", "+ID",
    ]);
    for backup in backups {
        sheet.push([
            backup.snapshot.get(..8).unwrap_or_default().to_owned(),
            time(backup.time.as_ref()),
            backup.volume.clone(),
            backup.name.clone(),
            if backup.size_bytes == 0 { String::new() } else { binary(backup.size_bytes) },
            backup.hostname.clone(),
            backup.group.clone(),
            backup.program.clone(),
            backup.snapshot.clone(),
        ]);
    }
    sheet
}

fn jobs(jobs: &[BackupJob]) -> Sheet {
    let mut sheet = Sheet::new(&[
        "JOB",
        "KIND",
        "STATE",
        "VOLUME",
        "NAME",
        "STARTED",
        "MESSAGE",
        "+REPOSITORY",
    ]);
    for job in jobs {
        let (state, message) = match job.state() {
            JobState::JobRunning => (job.phase.as_str(), running(job)),
            JobState::JobComplete => ("complete", job.message.clone()),
            JobState::JobFailed => ("failed", job.error.clone()),
            JobState::Unspecified => ("", String::new()),
        };
        sheet.push([
            job.id.clone(),
            follow::word(job.kind()).to_owned(),
            state.to_owned(),
            job.volume.clone(),
            job.name.clone(),
            time(job.started_at.as_ref()),
            message,
            job.repository.clone(),
        ]);
    }
    sheet
}

fn running(job: &BackupJob) -> String {
    if !job.waiting.is_empty() {
        return job.waiting.clone();
    }
    format!("{} of {}", binary(job.done_bytes), binary(job.total_bytes))
}

/// To the second, UTC.
fn time(at: Option<&prost_types::Timestamp>) -> String {
    let at = at.and_then(|at| Timestamp::from_second(at.seconds).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}
