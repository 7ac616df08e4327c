//! The daemon as a process: limits, listeners, signals, the end.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;

use selvage_kit::tasks::{SignalEvent, Signals, Tasks};
use selvage_memory::Frugal;
use tokio_util::sync::CancellationToken;

use super::base::{Base, Foundation};
use crate::{args::Serve, config::Config};

/// Time for tasks to end once the listeners have drained.
const TASKS_TIMEOUT: Duration = Duration::from_secs(3);
/// By then all has been started,
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// and so often memory that is not used is given back.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(60);

/// Makes room for a daemon.
pub(super) fn prepare(config: &Config, base: &Base, serve: &Serve) -> anyhow::Result<()> {
    raise_file_limit();
    if let Some(path) = &serve.ready_file {
        // That of a process that was killed must not be taken for ours.
        let _ = fs::remove_file(path);
    }
    match base {
        Base::Bare => Ok(()),
        Base::Own | Base::Joined { .. } => data_dir(config),
    }
}

/// Makes the data directory, for this user alone.
pub(super) fn data_dir(config: &Config) -> anyhow::Result<()> {
    let directory = &config.data;
    let checked = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        if directory.metadata()?.permissions().mode() & 0o022 != 0 {
            return Err(io::Error::other("others may write in it: chmod go-w"));
        }
        Ok(())
    };
    checked().with_context(|| format!("data directory {}", directory.display()))
}

/// A server with thousands of clients needs more open files than the usual
/// soft limit allows; the hard limit is the administrator's word.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Gives back what starting needed, and later what a busy time did.
pub(super) async fn stay_small(frugal: Frugal, stop: CancellationToken) {
    let mut wait = SETTLE_TIME;
    while stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
        if let Err(error) = frugal.give_back() {
            tracing::debug!(%error, "memory that is not used stays");
        }
        wait = GIVE_BACK_INTERVAL;
    }
}

/// Serves until a signal, or the failure of something that must not fail.
pub(super) async fn until_stopped(signals: &mut Signals, tasks: &Tasks, foundation: &Foundation) {
    loop {
        let event = tokio::select! {
            event = signals.next() => event,
            () = tasks.token().cancelled() => return,
        };
        match event {
            SignalEvent::Reload => foundation.reload(),
            SignalEvent::Shutdown { signal } => {
                tracing::info!(signal, "stopping: calls in flight may finish");
                return;
            }
            SignalEvent::Immediate { .. } => return,
        }
    }
}

/// Ends everything, first what callers wait for.
pub(super) async fn wind_down(
    signals: &mut Signals,
    tasks: &Tasks,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    tasks.token().cancel();
    tokio::select! {
        ended = tasks.shutdown(drain + TASKS_TIMEOUT) => {
            if let Err(stragglers) = ended {
                tracing::warn!(%stragglers, "cut off");
            }
        }
        SignalEvent::Immediate { exit_code } = signals.next() => {
            return Ok(ExitCode::from(exit_code));
        }
    }
    match tasks.failure() {
        Some(failure) => Err(anyhow::anyhow!("{failure}")),
        None => Ok(ExitCode::SUCCESS),
    }
}
