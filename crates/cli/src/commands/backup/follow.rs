//! A job on the screen: a bar while it runs, a line when it has ended.

use std::io::Write;

use selvage_api::{
    Code,
    selvage::volumes::{
        BackupJob, JobKind, JobState, WatchBackupRequest,
        backups_service_client::BackupsServiceClient,
    },
};

use super::{described, explain};
use crate::{
    Error,
    commands::node::{binary, interrupt::or_interrupted, span},
    io::Io,
    output,
    session::Session,
};

const JOB: &str = "selvage.volumes.BackupJob";
/// Width of the bar.
const WIDTH: usize = 24;

/// Shows a job until it has ended, or only that it has begun.
pub(super) async fn show(
    job: BackupJob,
    no_wait: bool,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if no_wait {
        if session.printer().is_table() {
            let id = &job.id;
            return session
                .io
                .say(&format!("Job {id} has begun; `selvage backup watch {id}` tells of it."));
        }
        return session.printer().message(&output::dynamic(JOB, &job)?);
    }
    let id = job.id.clone();
    let ended = or_interrupted(follow(job, session)).await;
    clear(session.io)?;
    match ended {
        Err(Error::Interrupted) => {
            session.io.say(&format!(
                "The job goes on at the server; `selvage backup watch {id}` tells of it, \
                 `selvage backup cancel {id}` ends it."
            ))?;
            Err(Error::Interrupted)
        }
        Err(error) => Err(error),
        Ok(job) => finish(&job, session),
    }
}

/// Follows a job to its end.
async fn follow(job: BackupJob, session: &mut Session<'_>) -> Result<BackupJob, Error> {
    let client = session.client().await?;
    let request = WatchBackupRequest { id: job.id.clone() };
    let request = client.request(request, client.limit(true))?;
    let begun = BackupsServiceClient::new(client.channel()).watch_backup(request).await;
    let mut stream = begun.map_err(|status| client.refused(&status))?.into_inner();
    let mut last = job;
    while let Some(job) = stream.message().await.map_err(|status| client.refused(&status))? {
        if session.io.err_is_terminal {
            let line = bar(&job);
            write!(session.io.err, "\r\x1b[2K{line}")
                .and_then(|()| session.io.err.flush())
                .map_err(Error::Output)?;
        }
        if !session.io.err_is_terminal && !job.waiting.is_empty() && job.waiting != last.waiting {
            session.io.say(&job.waiting)?;
        }
        last = job;
    }
    Ok(last)
}

fn clear(io: &mut Io) -> Result<(), Error> {
    if !io.err_is_terminal {
        return Ok(());
    }
    write!(io.err, "\r\x1b[2K").and_then(|()| io.err.flush()).map_err(Error::Output)
}

/// Says how it ended.
fn finish(job: &BackupJob, session: &mut Session<'_>) -> Result<(), Error> {
    if session.printer().is_table() {
        for backup in &job.forgotten {
            let backup = described(backup);
            writeln!(session.io.out, "forgotten: {backup}").map_err(Error::Output)?;
        }
    }
    match job.state() {
        JobState::JobFailed => {
            return Err(explain(Error::Status {
                code: code(job),
                message: format!("{} failed: {}", word(job.kind()), job.error),
                hints: Vec::new(),
            }));
        }
        JobState::JobComplete => {}
        // The server took its leave.
        _ => {
            return Err(Error::Status {
                code: Code::Unavailable,
                message: "the server ended before the job did".into(),
                hints: vec!["ask for it again: it goes on where it was".into()],
            });
        }
    }
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(JOB, job)?);
    }
    writeln!(session.io.out, "{}", summary(job)).map_err(Error::Output)
}

/// Returns the code of a failed job. Servers of version 0.2.0 and before send none.
fn code(job: &BackupJob) -> Code {
    Code::from_grpc(tonic::Code::from(job.error_code)).unwrap_or(Code::Aborted)
}

/// Returns what a job did, in a line.
fn summary(job: &BackupJob) -> String {
    let short = job.snapshot.get(..8).unwrap_or(&job.snapshot);
    match job.kind() {
        JobKind::Backup => format!(
            "{} is backed up as {}: snapshot {short}, {} of {} new, {} stored",
            job.volume,
            job.name,
            binary(job.new_bytes),
            binary(job.total_bytes),
            binary(job.stored_bytes)
        ),
        JobKind::Restore => {
            let before = match job.safety_snapshot.as_str() {
                "" => String::new(),
                snapshot => format!("; what it held before is in {snapshot}"),
            };
            format!(
                "{} is restored from snapshot {short} of {}: {}, {} downloaded{before}",
                job.volume,
                job.source_volume,
                binary(job.total_bytes),
                binary(job.downloaded_bytes)
            )
        }
        kind => format!("{} is done: {}", word(kind), job.message),
    }
}

pub(super) fn word(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Backup => "backup",
        JobKind::Restore => "restore",
        JobKind::Verify => "verify",
        JobKind::Prune => "prune",
        JobKind::Unspecified => "",
    }
}

/// `upload [######..................]  25% 256M of 1G, 12M/s, 1m4s left`
fn bar(job: &BackupJob) -> String {
    if !job.waiting.is_empty() {
        return format!("{}: {}", job.phase, job.waiting);
    }
    if job.total_bytes == 0 {
        return job.phase.clone();
    }
    let done = job.done_bytes.min(job.total_bytes);
    let percent = u128::from(done) * 100 / u128::from(job.total_bytes);
    let full = usize::try_from(percent).unwrap_or_default() * WIDTH / 100;
    let (hashes, dots) = ("#".repeat(full), ".".repeat(WIDTH - full));
    let mut line = format!(
        "{} [{hashes}{dots}] {percent:3}% {} of {}",
        job.phase,
        binary(done),
        binary(job.total_bytes)
    );
    if job.bytes_per_second > 0 {
        line += &format!(", {}/s", binary(job.bytes_per_second));
        line += &format!(", {} left", span(i64::try_from(job.seconds_left).unwrap_or(i64::MAX)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_with_what_is_done() {
        let job = |done: u64, rate: u64| BackupJob {
            phase: "upload".into(),
            total_bytes: 1 << 30,
            done_bytes: done,
            bytes_per_second: rate,
            seconds_left: 64,
            ..BackupJob::default()
        };
        let quarter = bar(&job(1 << 28, 12 << 20));
        let expected = "upload [######..................]  25% 256M of 1G, 12M/s, 1m4s left";
        assert_eq!(quarter, expected);
        assert_eq!(bar(&job(2 << 30, 0)), format!("upload [{}] 100% 1G of 1G", "#".repeat(24)));
        assert_eq!(bar(&BackupJob { phase: "queued".into(), ..BackupJob::default() }), "queued");
        let waiting = "http://s3 does not answer: refused; trying again until 02:15:00Z";
        let away = BackupJob { waiting: waiting.into(), ..job(1 << 28, 0) };
        assert_eq!(bar(&away), format!("upload: {waiting}"));
    }

    #[test]
    fn a_failure_has_the_code_of_its_cause() {
        let failed = |error_code| BackupJob { error_code, ..BackupJob::default() };
        assert_eq!(code(&failed(tonic::Code::ResourceExhausted as i32)), Code::ResourceExhausted);
        assert_eq!(code(&failed(0)), Code::Aborted);
    }

    #[test]
    fn what_was_done_fits_a_line() {
        let job = BackupJob {
            kind: JobKind::Backup.into(),
            name: "monday".into(),
            volume: "selvage/data".into(),
            snapshot: "0123456789abcdef".into(),
            total_bytes: 1 << 30,
            new_bytes: 12 << 20,
            stored_bytes: 3 << 20,
            ..BackupJob::default()
        };
        assert_eq!(
            summary(&job),
            "selvage/data is backed up as monday: snapshot 01234567, 12M of 1G new, 3M stored"
        );
    }
}
