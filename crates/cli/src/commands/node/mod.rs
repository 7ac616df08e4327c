//! Machines, seen and steered through their agents: one, or many at once.

pub(crate) mod args;
mod copy;
pub(crate) mod fleet;
pub(crate) mod interrupt;
pub(crate) mod lines;
mod list;
mod logs;
mod memory;
mod mode;
mod power;
mod processes;
mod services;
pub(crate) mod sheet;
mod show;
mod size;
mod tables;
mod unpack;
mod version;
mod watch;

#[cfg(test)]
mod golden;

pub use args::{Node, NodeCommand, Nodes};
use fleet::Fleet;
pub(crate) use processes::command as command_line;
pub(crate) use size::{binary, span};

use super::certificate;
use crate::{Error, session::Session, top};

pub(crate) async fn run(node: Node, session: &mut Session<'_>) -> Result<(), Error> {
    let Node { nodes, command } = node;
    let endless = command.is_endless();
    match interrupt::or_interrupted(Box::pin(dispatch(nodes, command, session))).await {
        // There is no other way to end what goes on until it is ended.
        Err(Error::Interrupted) if endless => Ok(()),
        result => result,
    }
}

async fn dispatch(
    nodes: Nodes,
    command: NodeCommand,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    match command {
        NodeCommand::Version(args) if args.client => version::client(&args, session),
        NodeCommand::Top(args) => top::run(nodes, &args, session).await,
        NodeCommand::Reset(args) => power::reset(nodes, &args, session).await,
        NodeCommand::Reboot(args) => power::reboot(nodes, &args, session).await,
        NodeCommand::Shutdown(args) => power::shutdown(nodes, &args, session).await,
        NodeCommand::Cp(args) => copy::run(nodes, &args, session).await,
        NodeCommand::Talosconfig(args) => {
            certificate::talosconfig(nodes.nodes, args, session).await
        }
        command => ask(&Fleet::connect(nodes, session).await?, command, session).await,
    }
}

async fn ask(fleet: &Fleet, command: NodeCommand, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        NodeCommand::Containers(args) => show::containers(fleet, &args, session).await,
        NodeCommand::Stats(args) => show::stats(fleet, &args, session).await,
        NodeCommand::Processes(args) => show::processes(fleet, &args, session).await,
        NodeCommand::Memory(args) => show::memory(fleet, &args, session).await,
        NodeCommand::Mounts(args) => show::mounts(fleet, args, session).await,
        NodeCommand::Interfaces(args) => show::interfaces(fleet, args, session).await,
        NodeCommand::Routes(args) => show::routes(fleet, args, session).await,
        NodeCommand::Time(args) => show::time(fleet, &args, session).await,
        NodeCommand::Services(args) => services::run(fleet, &args, session).await,
        NodeCommand::Version(args) => version::run(fleet, &args, session).await,
        NodeCommand::Dmesg(args) => logs::dmesg(fleet, &args, session).await,
        NodeCommand::Logs(args) => logs::logs(fleet, &args, session).await,
        NodeCommand::Cat(args) => logs::cat(fleet, args, session).await,
        NodeCommand::Ls(args) => list::run(fleet, &args, session).await,
        NodeCommand::Restart(args) => power::restart(fleet, args, session).await,
        NodeCommand::Upgrade(args) => power::upgrade(fleet, args, session).await,
        NodeCommand::Top(_)
        | NodeCommand::Talosconfig(_)
        | NodeCommand::Reset(_)
        | NodeCommand::Reboot(_)
        | NodeCommand::Shutdown(_)
        | NodeCommand::Cp(_) => Ok(()),
    }
}
