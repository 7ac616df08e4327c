//! The `selvage` binary: reads the command line and hands over.

mod args;
mod assemble;
mod config;
mod maintenance;
mod part;
mod peers;
mod ready;
mod system;
mod up;

use std::process::ExitCode;

use args::{Cli, Command, Node};
use clap::{CommandFactory, Parser};
use part::Part;

fn main() -> ExitCode {
    let cli = Cli::parse_from(selvage_cli::meaning_objects(std::env::args_os()));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return up::fail(&anyhow::Error::new(error).context("cannot start")),
    };
    runtime.block_on(Box::pin(dispatch(cli)))
}

async fn dispatch(cli: Cli) -> ExitCode {
    let Cli { global, command } = cli;
    let (serve, parts) = match command {
        Command::Up(serve) => (serve, Part::ALL.to_vec()),
        Command::Controller(serve) => (serve, vec![Part::Controller]),
        Command::Crm(serve) => (serve, vec![Part::Crm]),
        Command::Dme(serve) => (serve, vec![Part::Dme]),
        Command::Kaas(serve) => (serve, vec![Part::Kaas]),
        Command::Node(Node { serve, command: None, .. }) => (serve, vec![Part::Node]),
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
