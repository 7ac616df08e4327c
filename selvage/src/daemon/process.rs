//! The daemon as a process: limits, listeners, signals, the end.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_api::Code;
use selvage_kit::tasks::{SignalEvent, Signals, Tasks};
use selvage_memory::Frugal;
use selvage_work::{Failure, Reconcile, Reconcilers, Schedule, Summary};

use super::base::{Base, Foundation};
use crate::{args::Serve, config::Config};

/// Time for tasks to end once the listeners have drained.
const TASKS_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the start to finish, after which memory is given back first.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// Interval of giving unused memory back.
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

/// Gives unused memory back to the system: what the start needed, and later what
/// a busy time did.
struct GiveBack {
    frugal: Frugal,
    /// True once the start has had time to finish.
    settled: AtomicBool,
}

#[async_trait]
impl Reconcile for GiveBack {
    fn name(&self) -> &str {
        "memory"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        if !self.settled.swap(true, Relaxed) {
            return Ok(Summary { again: Some(SETTLE_TIME), ..Summary::default() });
        }
        let given = self.frugal.give_back();
        given.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        Ok(Summary::default())
    }
}

/// Keeps the memory of the process small.
pub(super) fn stay_small(frugal: Frugal, reconcilers: &Reconcilers) {
    let schedule = Schedule::fixed(GIVE_BACK_INTERVAL, GIVE_BACK_INTERVAL);
    reconcilers.add(GiveBack { frugal, settled: AtomicBool::new(false) }, schedule);
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
                tracing::warn!(%stragglers, "tasks that did not end were cut off");
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
