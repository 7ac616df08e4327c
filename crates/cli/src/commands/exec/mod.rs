//! Commands in instances, and their logs.

mod find;
mod meet;
mod talk;
mod terminal;

use selvage_api::{edgeproto::ExecRequest, selvage::shell};

use self::{find::InstanceArgs, talk::ExecStreams, terminal::Raw};
use super::node::interrupt::or_interrupted;
use crate::{Error, client::Client, session::Session};

/// `selvage exec`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage exec hello                              a shell, on a terminal
  selvage exec hello -- ls -l /                   a command and its words, as they are
  selvage exec hello --cloudlet west -- sh -c 'date; id'
  tar c . | selvage exec hello -i -- tar x -C /data

The exit code is the command's; 126 when it could not be run.")]
pub struct Exec {
    #[command(flatten)]
    which: InstanceArgs,
    #[command(flatten)]
    options: ExecOptions,
    /// Pass stdin to the command; on when stdin and stdout are a terminal
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Give the command a terminal; on when stdin and stdout are one
    #[arg(short = 't', long)]
    tty: bool,
    /// The command and its words; a shell if there are none
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// `selvage logs`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage logs hello
  selvage logs hello --tail 20 -f                 Ctrl-C ends it
  selvage logs hello --timestamps                 when each line was written")]
pub struct Logs {
    #[command(flatten)]
    which: InstanceArgs,
    #[command(flatten)]
    options: ExecOptions,
    /// Follow the log as it grows
    #[arg(short = 'f', long)]
    follow: bool,
    /// So many lines from the end; all where not given
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(1..))]
    tail: Option<i64>,
    /// Begin each line with the time at which it was written, in UTC
    #[arg(short = 't', long)]
    timestamps: bool,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of the connection")]
struct ExecOptions {
    /// Container of the instance; its first where not given
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    container: String,
    /// Path to the command
    #[arg(long, value_name = "PATH", default_value = "auto")]
    via: Via,
}

// How a command is reached.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    // Directly, and through the controller where that does not work at once.
    Auto,
    // Over WebRTC.
    Direct,
    // Through the controller.
    Relay,
}

pub(crate) async fn exec(args: Exec, session: &mut Session<'_>) -> Result<(), Error> {
    let (both, tty) = (terminal::both(), args.tty);
    if tty && !both {
        return Err(Error::invalid("-t: stdin and stdout are not both a terminal"));
    }
    // Who asks for nothing on a terminal wants to sit at it.
    let asked = args.interactive || tty;
    let (interactive, tty) = if both && !asked { (true, true) } else { (args.interactive, tty) };
    let client = session.client().await?;
    let key = find::instance(&client, &args.which).await?;
    let request = ExecRequest {
        app_inst_key: Some(key),
        container_id: args.options.container,
        words: args.command,
        terminal: tty,
        ..ExecRequest::default()
    };
    let talk = ExecStreams { input: interactive, terminal: tty, plain: false };
    converse(&client, request, (args.options.via, talk), session).await
}

/// Runs a shell on this terminal in the instance that has this container.
pub(crate) async fn shell_in(container: &str, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = ExecRequest {
        app_inst_key: Some(find::owner(&client, container).await?),
        container_id: container.to_owned(),
        terminal: true,
        ..ExecRequest::default()
    };
    let talk = ExecStreams { input: true, terminal: true, plain: false };
    converse(&client, request, (Via::Auto, talk), session).await
}

/// Runs a command and passes on what it reads and says.
async fn converse(
    client: &Client,
    request: ExecRequest,
    (via, talk): (Via, ExecStreams),
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let conversation = Box::pin(meet::meet(client, request, via)).await?;
    let raw = if talk.terminal { Some(Raw::new()?) } else { None };
    let work = Box::pin(talk.run(conversation, session));
    let code = if raw.is_some() { work.await } else { or_interrupted(work).await };
    drop(raw);
    ended(code?, session)
}

pub(crate) async fn logs(args: Logs, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let key = find::instance(&client, &args.which).await?;
    let request = ExecRequest {
        app_inst_key: Some(key),
        container_id: args.options.container,
        logs: Some(shell::Logs {
            follow: args.follow,
            tail: args.tail.unwrap_or_default(),
            timestamps: args.timestamps,
        }),
        ..ExecRequest::default()
    };
    let conversation = Box::pin(meet::meet(&client, request, args.options.via)).await?;
    let plain = session.io.out_is_terminal;
    let talk = ExecStreams { input: false, terminal: false, plain };
    match or_interrupted(Box::pin(talk.run(conversation, session))).await {
        // So it was meant.
        Err(Error::Interrupted) => Ok(()),
        code => ended(code?, session),
    }
}

/// The command's end is ours.
fn ended(end: talk::End, session: &mut Session<'_>) -> Result<(), Error> {
    if !end.reason.is_empty() {
        session.io.say(&format!("selvage: {}", crate::error::printable(&end.reason)))?;
    }
    match u8::try_from(end.code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Error::Exited(code)),
        Err(_) => Err(Error::Exited(u8::MAX)),
    }
}
