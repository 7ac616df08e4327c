//! The `selvage` binary: reads the command line and hands over.

mod args;
mod config;
mod daemon;
mod demo;
#[cfg(test)]
mod docs;
mod down;
mod help;
mod join;
mod maintenance;
mod parts;
mod token;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use args::{Cli, Command, PartTask, Serve, Up};
use clap::CommandFactory;
use parts::Info;
use selvage_kit::build::Source;
use selvage_memory::Frugal;
use tokio::runtime::Runtime;

/// Source of this program, as the build script found it.
const SOURCE: Source = Source {
    commit: env!("SELVAGE_BUILD_COMMIT"),
    tree: env!("SELVAGE_BUILD_TREE"),
    built: env!("SELVAGE_BUILD_TIME"),
};
/// Timeout of what is still under way at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    selvage_kit::build::set_source(SOURCE);
    if let Some(folder) = first_process() {
        return selvage_components::machine::init(&folder);
    }
    let Cli { global, command } = args::parse(selvage_cli::meaning_objects(std::env::args_os()));
    let task = Task::of(command);
    if let Task::Daemon { join, .. } = &task
        && let Some(token) = &join.join
    {
        return daemon::fail(&token::start_again_without(&token.0));
    }
    let (frugal, threads) = task.footprint();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return daemon::fail(&anyhow::Error::new(error).context("cannot start")),
    };
    finish(runtime, Box::pin(task.run(global, frugal)))
}

/// Folder of the machine on this host whose first process this one has to be.
/// Not for people, and before anything starts a thread.
fn first_process() -> Option<PathBuf> {
    let mut arguments = std::env::args_os().skip(1);
    let is_asked = arguments.next()? == selvage_components::machine::INIT;
    arguments.next().filter(|_| is_asked).map(PathBuf::from)
}

/// Request of a command line.
#[allow(clippy::large_enum_variant, reason = "there is one, for the life of the process")]
enum Task {
    Daemon { parts: Vec<&'static str>, serve: Serve, join: args::Join },
    Down(args::Down),
    Maintain(args::Store),
    Client(selvage_cli::Command),
}

impl Task {
    fn of(command: Command) -> Self {
        match command {
            Command::Up(Up { mut serve, demo }) => {
                serve.demo = demo;
                serve.whole = true;
                let parts = parts::ALL.iter().map(|info| info.name).collect();
                Self::Daemon { parts, serve, join: args::Join::default() }
            }
            Command::Part(command) => match command.asked() {
                PartTask::Daemon { part, serve, join } => {
                    Self::Daemon { parts: vec![part], serve, join }
                }
                PartTask::Client(command) => Self::Client(command),
            },
            Command::Down(down) => Self::Down(down),
            Command::Store(command) => Self::Maintain(command),
            Command::Client(command) => Self::Client(command),
        }
    }

    /// Memory that is given back, and the number of threads, where a part asks
    /// for less than all.
    fn footprint(&self) -> (Option<Frugal>, Option<usize>) {
        let Self::Daemon { parts, .. } = self else { return (None, None) };
        let [part] = parts.as_slice() else { return (None, None) };
        let info = Info::find(part);
        let frugal = info.is_some_and(|info| info.frugal).then(selvage_memory::frugal);
        (frugal, info.and_then(|info| info.threads))
    }

    async fn run(self, global: selvage_cli::Global, frugal: Option<Frugal>) -> ExitCode {
        match self {
            Self::Daemon { parts, serve, join } => {
                let ca = global.ca.as_deref();
                daemon::run(daemon::Order { parts, serve, join, ca, frugal }).await
            }
            Self::Down(down) => down::run(&down, &global).await,
            Self::Maintain(command) => maintenance::run(command).await,
            Self::Client(command) => {
                match selvage_cli::run(command, &global, Cli::command()).await {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => selvage_cli::report(&error, &global),
                }
            }
        }
    }
}

/// Runs the work and exits, even if a thread waits for a file that never comes.
fn finish(runtime: Runtime, work: impl Future<Output = ExitCode>) -> ExitCode {
    let code = runtime.block_on(work);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    code
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_that_hangs_does_not_keep_the_process() {
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let (ended, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            runtime.spawn_blocking(move || hangs.recv());
            let code = finish(runtime, async { ExitCode::from(7) });
            ended.send(code == ExitCode::from(7))
        });
        let seen = seen.recv_timeout(SHUTDOWN_TIMEOUT * 10);
        drop(release);
        assert_eq!(seen, Ok(true));
    }
}
