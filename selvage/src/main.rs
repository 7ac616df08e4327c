//! The `selvage` binary: reads the command line and hands over.

mod agent;
mod args;
mod assemble;
mod config;
mod crm;
mod demo;
mod dme;
mod greeting;
mod inventory;
mod lvmd;
mod maintenance;
mod part;
mod peers;
mod process;
mod ready;
mod system;
mod up;

use std::{
    ffi::{OsStr, OsString},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    process::ExitCode,
    time::Duration,
};

use args::{Agent, Cli, Command, Dme, Join, Node, Serve, Up};
use clap::{
    ArgMatches, Args, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource,
};
use part::Part;
use selvage_memory::Frugal;
use tokio::runtime::Runtime;

/// Threads of an agent, besides those that wait for files.
const AGENT_THREADS: usize = 2;

/// What is still under way when all is said and done may take so long.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let cli = parse(selvage_cli::meaning_objects(std::env::args_os()));
    if let Command::Node(Node { join: Join { join: Some(token), .. }, .. })
    | Command::Crm(Agent { join: Join { join: Some(token), .. }, .. })
    | Command::Dme(Dme { join: Join { join: Some(token), .. }, .. }) = &cli.command
    {
        return up::fail(&again_without_token(&token.0));
    }
    // An agent is on every machine and has little to do: it is to be small.
    let is_agent = matches!(&cli.command, Command::Node(Node { command: None, .. }));
    let is_small = is_agent || matches!(&cli.command, Command::Crm(_));
    let frugal = is_small.then(selvage_memory::frugal);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if is_agent {
        builder.worker_threads(AGENT_THREADS);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return up::fail(&anyhow::Error::new(error).context("cannot start")),
    };
    finish(runtime, Box::pin(dispatch(cli, frugal)))
}

/// Does the work and ends, also when a thread waits for a file that never comes.
fn finish(runtime: Runtime, work: impl Future<Output = ExitCode>) -> ExitCode {
    let code = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORDS);
    code
}

/// Reads the command line; ends the process where it is no good.
fn parse<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Cli {
    let matches = Cli::command().get_matches_from(args);
    if let Some(flag) = stray_flag(&matches) {
        let text = format!("{flag} is for the agent itself: it does nothing for a command\n");
        Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// A flag of the agent that was given together with a command to agents.
fn stray_flag(matches: &ArgMatches) -> Option<String> {
    let ("node" | "dme", node) = matches.subcommand()? else { return None };
    node.subcommand()?;
    let of_agent = Join::augment_args(Serve::augment_args(clap::Command::new("")));
    let mut flags = of_agent.get_arguments();
    let stray = flags.find(|flag| {
        let id = flag.get_id().as_str();
        node.try_contains_id(id).is_ok() && node.value_source(id) == Some(ValueSource::CommandLine)
    });
    stray.map(|flag| format!("--{}", flag.get_long().unwrap_or(flag.get_id().as_str())))
}

/// Starts this program anew with the token out of sight: what stands on the
/// command line can be read by everybody on the machine for as long as it runs.
/// Comes back only when that fails.
fn again_without_token(token: &str) -> anyhow::Error {
    let mut args = std::env::args_os();
    let own_name = args.next().unwrap_or_else(|| env!("CARGO_PKG_NAME").into());
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::Error::new(error).context("cannot find this program"),
    };
    let failed = std::process::Command::new(program)
        .arg0(own_name)
        .args(without_token(args))
        .env(agent::TOKEN_VARIABLE, token)
        .exec();
    anyhow::Error::new(failed).context("cannot start again without the token on the command line")
}

fn without_token(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut skip = false;
    for arg in args {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = arg == OsStr::new("--join");
        if !skip && !arg.as_bytes().starts_with(b"--join=") {
            kept.push(arg);
        }
    }
    kept
}

async fn dispatch(cli: Cli, frugal: Option<Frugal>) -> ExitCode {
    let Cli { global, command } = cli;
    let (serve, parts) = match command {
        Command::Up(Up { mut serve, demo }) => {
            serve.demo = demo;
            (serve, Part::ALL.to_vec())
        }
        Command::Controller(serve) => (serve, vec![Part::Controller]),
        Command::Crm(Agent { serve, join }) => {
            return crm::run(&serve, &join, global.ca.as_deref(), frugal).await;
        }
        Command::Dme(Dme { serve, join, command: None }) => {
            return dme::run(&serve, &join, global.ca.as_deref()).await;
        }
        Command::Dme(Dme { command: Some(command), .. }) => {
            return client(selvage_cli::Command::Dme(command), &global).await;
        }
        Command::Kaas(serve) => (serve, vec![Part::Kaas]),
        Command::Node(Node { serve, join, command: None, .. }) => {
            return up::run_node(&serve, &join, global.ca.as_deref(), frugal).await;
        }
        Command::Lvmd(serve) if lvmd::is_stock(&serve) => return lvmd::run_stock(&serve).await,
        Command::Lvmd(serve) => (serve, vec![Part::Lvmd]),
        Command::Dashboard(serve) => (serve, vec![Part::Dashboard]),
        Command::Store(command) => return maintenance::run(command).await,
        Command::Node(Node { nodes, command: Some(command), .. }) => {
            let node = selvage_cli::Node { nodes, command };
            return client(selvage_cli::Command::Node(node), &global).await;
        }
        Command::Client(command) => return client(command, &global).await,
    };
    up::run(&serve, &parts).await
}

async fn client(command: selvage_cli::Command, global: &selvage_cli::Global) -> ExitCode {
    match selvage_cli::run(command, global, Cli::command()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => selvage_cli::report(&error, global),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

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
        let seen = seen.recv_timeout(LAST_WORDS * 10);
        drop(release);
        assert_eq!(seen, Ok(true));
    }

    #[test]
    fn the_token_leaves_the_command_line() {
        let kept = |args: &[&str]| {
            let kept = without_token(args.iter().map(OsString::from));
            kept.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["node", "--join", "t", "--port", "1"]), ["node", "--port", "1"]);
        assert_eq!(kept(&["node", "--join=t", "--join-file", "f"]), ["node", "--join-file", "f"]);
        assert_eq!(kept(&["node", "--join"]), ["node"]);
    }

    #[test]
    fn flags_of_the_agent_are_none_of_its_commands() {
        let stray = |args: &[&str]| stray_flag(&Cli::command().try_get_matches_from(args).unwrap());
        let port = ["selvage", "node", "--port", "1", "memory"];
        assert_eq!(stray(&port).as_deref(), Some("--port"));
        let set = ["selvage", "node", "--set", "a=b", "memory"];
        assert_eq!(stray(&set).as_deref(), Some("--set"));
        let join = ["selvage", "node", "--controller", "a", "-n", "b", "memory"];
        assert_eq!(stray(&join).as_deref(), Some("--controller"));
        for fine in [
            &["selvage", "node", "--port", "1"][..],
            &["selvage", "node", "-n", "a", "memory"],
            &["selvage", "node", "memory", "-n", "a"],
            &["selvage", "--ca", "f", "node", "--node-timeout", "1s", "memory"],
            &["selvage", "up", "--port", "1"],
        ] {
            assert_eq!(stray(fine), None, "{fine:?}");
        }
    }
}
