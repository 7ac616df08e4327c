//! What every daemon does as a process: limits, listeners, signals, the end.

use std::{process::ExitCode, time::Duration};

use selvage_kit::{
    serve::{Server, Socket, Trust},
    tasks::{SignalEvent, Signals, Tasks},
};

use crate::{args::Serve, assemble, config::Config};

/// How long tasks may take to end once the listeners have drained.
const AFTER_DRAIN: Duration = Duration::from_secs(3);

/// Makes room for a daemon.
pub(crate) fn prepare(config: &Config, serve: &Serve) -> anyhow::Result<()> {
    raise_file_limit();
    if let Some(path) = &serve.ready_file {
        // That of a process that was killed must not be taken for ours.
        let _ = std::fs::remove_file(path);
    }
    assemble::data_dir(config)
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

pub(crate) fn serve_on(
    tasks: &Tasks,
    name: &'static str,
    server: &Server,
    socket: Socket,
    trust: Trust,
) {
    tasks.spawn_critical(name, server.clone().run(socket, trust, tasks.token().clone()));
}

/// Serves until a signal, or the failure of something that must not fail.
pub(crate) async fn until_told(
    signals: &mut Signals,
    tasks: &Tasks,
    keys: Option<&assemble::Keys>,
) {
    loop {
        let event = tokio::select! {
            event = signals.next() => event,
            () = tasks.token().cancelled() => return,
        };
        match event {
            SignalEvent::Reload => {
                if let Some(Err(error)) = keys.map(|keys| keys.identity.refresh()) {
                    tracing::warn!(%error, "server certificate not reloaded, the old one stays");
                }
            }
            SignalEvent::Shutdown { signal } => {
                tracing::info!(signal, "stopping: calls in flight may finish");
                return;
            }
            SignalEvent::Immediate { .. } => return,
        }
    }
}

pub(crate) async fn wind_down(
    signals: &mut Signals,
    tasks: &Tasks,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    tasks.token().cancel();
    tokio::select! {
        ended = tasks.shutdown(drain + AFTER_DRAIN) => {
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
