//! The client side of the `selvage` command: contexts and logins, calling any
//! method by its descriptor, printing what comes back, explaining what went
//! wrong.
//!
//! It knows the contracts and nothing else: no part of Selvage runs here, and
//! whatever a command does it does through a method anybody may call. The
//! binary owns the process (arguments, runtime, exit code) and hands the
//! parsed [`Command`] to [`run`].

#![allow(
    clippy::disallowed_methods,
    reason = "people are shown how old things are, by the clock of their machine"
)]

mod args;
mod body;
mod client;
mod codec;
mod commands;
mod config;
mod connect;
mod duration;
mod edge;
mod endpoint;
mod error;
mod io;
mod lookup;
mod output;
mod session;
mod suggest;
mod target;
mod top;

use std::process::ExitCode;

pub use args::{Colour, Command, Global};
pub use commands::dashboard::Dashboard;
pub use commands::dme::DmeCommand;
pub use commands::dns::DnsCommand;
pub use commands::kaas::{KaasCommand, Kubectl};
pub use commands::node::{Node, NodeCommand, Nodes};
pub use edge::catalog::meaning_objects;
pub use error::Error;
pub use io::{Io, Prompt};
pub use output::Format;

/// Does what the command says, on this process's streams. `root` is the whole
/// command line, for completion scripts and man pages.
pub async fn run(command: Command, global: &Global, root: clap::Command) -> Result<(), Error> {
    Box::pin(execute(command, global, root, &mut Io::process(global))).await
}

/// The same on streams of the caller's choice.
pub async fn execute(
    command: Command,
    global: &Global,
    root: clap::Command,
    io: &mut Io,
) -> Result<(), Error> {
    let mut session = session::Session::new(global, io);
    Box::pin(commands::dispatch(command, &mut session, root)).await
}

/// Tells the person at the terminal what went wrong, and the process how to
/// end.
pub fn report(error: &Error, global: &Global) -> ExitCode {
    let mut io = Io::process(global);
    let colour = io.colour_on_err(global.color);
    // Nobody is left to hear of a failure to write to stderr.
    let _ = error.report(&mut io.err, colour);
    ExitCode::from(error.exit_code())
}
