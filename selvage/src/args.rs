//! The command line: daemons and maintenance here, client commands from the
//! `cli` crate.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind,
    parser::ValueSource,
};

use crate::{
    help,
    parts::{Info, PartCommand},
};

/// An edge cloud in one binary.
#[derive(Parser)]
#[command(
    name = "selvage",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Start with `selvage up`, then `selvage login` in another terminal."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: selvage_cli::Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, for the life of the process")]
pub(crate) enum Command {
    /// Run the whole system in this process
    #[command(after_help = UP_EXAMPLES)]
    Up(Up),
    #[command(flatten)]
    Part(PartCommand),
    /// Stop the apps of this machine's cloudlet and remove everything they use
    #[command(after_help = DOWN_EXAMPLES)]
    Down(Down),
    /// Export, import and check the store
    #[command(subcommand)]
    Store(Store),
    #[command(flatten)]
    Client(selvage_cli::Command),
}

const UP_EXAMPLES: &str = "Examples:
  selvage up
  selvage up --data /srv/selvage --port 8443 --set listen.address=0.0.0.0
  selvage up --demo
  selvage up --port 0 --ready-file /run/selvage.json
  selvage up --dump-config > selvage.toml";

pub(crate) const LVMD_EXAMPLES: &str = "\
Examples:
  selvage lvmd                                    volumes in image files
  selvage lvmd --config /etc/topolvm/lvmd.yaml    lvmd's file and socket, nothing else";

const DOWN_EXAMPLES: &str = "\
Stop the daemon first: apps run on without it. `selvage up` starts them again
for as long as they are not deleted.

Examples:
  selvage down
  selvage down --data /srv/selvage --yes
  selvage down --purge              the data directory as well: keys, objects, images";

/// End of what outlives a daemon.
#[derive(Args)]
pub(crate) struct Down {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "SELVAGE_CONFIG_FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Data directory of the daemon
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Delete the data directory too, with everything in it
    #[arg(long)]
    pub(crate) purge: bool,

    /// Do not ask first
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The whole system.
#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) serve: Serve,

    /// Make this machine a cloudlet and run an app on it (needs root)
    #[arg(long)]
    pub(crate) demo: bool,
}

/// Options of every daemon.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Serve {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "SELVAGE_CONFIG_FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Directory of state, keys and sockets
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,

    /// Address to listen on
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<String>,

    /// Write a JSON file once everything answers
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,

    /// No TLS, everybody is admin, loopback only
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Let callers reboot, turn off, reset and upgrade this machine
    #[arg(long)]
    pub(crate) allow_power: bool,

    /// Any setting of the configuration file, may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,

    /// Level or filter of the log, such as info or info,selvage_store=debug
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// Format of the log: text or json
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,

    /// Print the configuration in force and exit
    #[arg(long)]
    pub(crate) dump_config: bool,

    /// True for `up --demo`.
    #[arg(skip)]
    pub(crate) demo: bool,

    /// True for `up`: the whole system.
    #[arg(skip)]
    pub(crate) whole: bool,
}

const NODE_EXAMPLES: &str = "\
An agent of its own, or one that belongs to a controller:
  selvage node
  SELVAGE_JOIN_TOKEN=slvj_… selvage node --controller edge.example:8443 --address 0.0.0.0
The token comes from `selvage join-token create node/NAME`, works once, and is
not needed again: the certificate that it buys renews itself.";

// No doc comment: it would speak for whatever this is flattened into.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Join {
    /// Controller to join; separate several with commas
    #[arg(long, value_name = "HOST:PORT", help_heading = "Joining a controller")]
    pub(crate) controller: Option<String>,

    /// File with the join token, or - for stdin [also: env SELVAGE_JOIN_TOKEN]
    #[arg(long, value_name = "FILE", help_heading = "Joining a controller")]
    pub(crate) join_file: Option<PathBuf>,

    /// The join token itself; others may see it for a moment, and your shell
    /// remembers it
    #[arg(
        long,
        value_name = "TOKEN",
        conflicts_with = "join_file",
        help_heading = "Joining a controller"
    )]
    pub(crate) join: Option<Redacted>,

    /// SHA-256 fingerprint of the controller's CA, if the token does not end
    /// with it [or name the CA itself with --ca]
    #[arg(long, value_name = "HEX", help_heading = "Joining a controller")]
    pub(crate) ca_sha256: Option<String>,

    /// Label by which this machine can be chosen, may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", help_heading = "Joining a controller")]
    pub(crate) labels: Vec<String>,
}

/// A word of the command line that is not for logs.
#[derive(Clone)]
pub(crate) struct Redacted(pub(crate) String);

impl From<&str> for Redacted {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redacted(…)")
    }
}

/// The agent, or what can be asked of agents.
#[derive(Args)]
#[command(after_help = NODE_EXAMPLES)]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten)]
    pub(crate) join: Join,
    #[command(flatten)]
    pub(crate) nodes: selvage_cli::Nodes,
    #[command(subcommand)]
    pub(crate) command: Option<selvage_cli::NodeCommand>,
}

const CRM_EXAMPLES: &str = "\
A cloudlet on this machine that belongs to a controller elsewhere:
  SELVAGE_JOIN_TOKEN=slvj_… selvage crm --controller edge.example:8443
The token comes from `selvage join-token create cloudlet/OPERATOR/NAME` and works once.";

/// A cloudlet's agent.
#[derive(Args)]
#[command(after_help = CRM_EXAMPLES)]
pub(crate) struct Joining {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten)]
    pub(crate) join: Join,
}

const DME_EXAMPLES: &str = "\
An engine that belongs to a controller, and one beside an original controller:
  SELVAGE_JOIN_TOKEN=slvj_… selvage dme --controller edge.example:8443 --address 0.0.0.0
  selvage dme --insecure --set dme.controllers=127.0.0.1:50001
The token comes from `selvage join-token create dme/NAME` and works once.";

/// The match engine, or what can be asked of one.
#[derive(Args)]
#[command(after_help = DME_EXAMPLES)]
pub(crate) struct Dme {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten)]
    pub(crate) join: Join,
    #[command(subcommand)]
    pub(crate) command: Option<selvage_cli::DmeCommand>,
}

const DNS_EXAMPLES: &str = "\
The server runs beside the controller where dns.listen says so; `selvage up` has
one on a free port of loopback, which `selvage status` shows:
  selvage dns lookup autoclusterhello.here.demo.selvage.internal
  selvage controller --set dns.listen=192.0.2.7:53";

/// Questions to the name server.
#[derive(Args)]
#[command(after_help = DNS_EXAMPLES)]
pub(crate) struct Dns {
    #[command(subcommand)]
    pub(crate) command: selvage_cli::DnsCommand,
}

const KAAS_EXAMPLES: &str = "\
A first cluster, on simulated machines:
  selvage up --set kaas.provider=sim
  selvage kaas create demo --wait
  selvage kaas nodes demo";

/// The cluster service, or what can be asked of one.
#[derive(Args)]
#[command(after_help = KAAS_EXAMPLES)]
pub(crate) struct Kaas {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(subcommand)]
    pub(crate) command: Option<selvage_cli::KaasCommand>,
}

const DASHBOARD_EXAMPLES: &str = "\
Examples:
  selvage dashboard                the overview
  selvage dashboard --watch        the overview as it changes
  selvage health                   one line and an exit code, for scripts
  selvage dashboard serve          the part alone, for a Ceph cluster";

/// The overview, or the part.
#[derive(Args)]
// What is flattened has a group of the same name.
#[group(skip)]
#[command(after_help = DASHBOARD_EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Dashboard {
    #[command(flatten)]
    pub(crate) show: selvage_cli::Dashboard,
    #[command(subcommand)]
    pub(crate) command: Option<DashboardCommand>,
}

/// Other subcommands of a part.
#[derive(Subcommand)]
pub(crate) enum DashboardCommand {
    /// Run the dashboard alone
    Serve(Serve),
}

/// Request of the command line of a part.
#[allow(clippy::large_enum_variant, reason = "there is one, for the life of the process")]
pub(crate) enum PartTask {
    /// Command that runs the part.
    Daemon { part: &'static str, serve: Serve, join: Join },
    /// Command of a client of a running part.
    Client(selvage_cli::Command),
}

impl PartTask {
    pub(crate) fn of(part: &'static str, args: impl PartArgs) -> Self {
        args.asked(part)
    }
}

/// Arguments of the command of a part.
pub(crate) trait PartArgs {
    fn asked(self, part: &'static str) -> PartTask;
}

impl PartArgs for Serve {
    fn asked(self, part: &'static str) -> PartTask {
        PartTask::Daemon { part, serve: self, join: Join::default() }
    }
}

impl PartArgs for Joining {
    fn asked(self, part: &'static str) -> PartTask {
        PartTask::Daemon { part, serve: self.serve, join: self.join }
    }
}

impl PartArgs for Node {
    fn asked(self, part: &'static str) -> PartTask {
        let Self { serve, join, nodes, command } = self;
        match command {
            None => PartTask::Daemon { part, serve, join },
            Some(command) => {
                PartTask::Client(selvage_cli::Command::Node(selvage_cli::Node { nodes, command }))
            }
        }
    }
}

impl PartArgs for Kaas {
    fn asked(self, part: &'static str) -> PartTask {
        match self.command {
            None => PartTask::Daemon { part, serve: self.serve, join: Join::default() },
            Some(command) => PartTask::Client(selvage_cli::Command::Kaas(command)),
        }
    }
}

impl PartArgs for Dashboard {
    fn asked(self, part: &'static str) -> PartTask {
        match self.command {
            Some(DashboardCommand::Serve(serve)) => serve.asked(part),
            None => PartTask::Client(selvage_cli::Command::Dashboard(self.show)),
        }
    }
}

impl PartArgs for Dme {
    fn asked(self, part: &'static str) -> PartTask {
        match self.command {
            None => PartTask::Daemon { part, serve: self.serve, join: self.join },
            Some(command) => PartTask::Client(selvage_cli::Command::Dme(command)),
        }
    }
}

impl PartArgs for Dns {
    fn asked(self, _: &'static str) -> PartTask {
        PartTask::Client(selvage_cli::Command::Dns(self.command))
    }
}

/// Maintenance of the store. The daemon must not be running on an embedded
/// store meanwhile.
#[derive(Subcommand)]
pub(crate) enum Store {
    /// Write everything a store holds to a file
    Export {
        #[command(flatten)]
        serve: Serve,
        /// File to write; one that is there is replaced when the new one is whole
        file: PathBuf,
    },
    /// Fill an empty store from such a file
    Import {
        #[command(flatten)]
        serve: Serve,
        /// File to read
        file: PathBuf,
        /// Fill it even if it holds something already; keys in the file win
        #[arg(long)]
        merge: bool,
        /// Read what another program's store holds: for edge-cloud the output of
        /// `etcdctl get --prefix`, a line with a key and a line with a value
        #[arg(long, value_name = "PROGRAM")]
        from: Option<ImportSource>,
    },
    /// Look for damage in an embedded store
    Check {
        #[command(flatten)]
        serve: Serve,
    },
}

/// Programs whose stores can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ImportSource {
    EdgeCloud,
}

/// Reads the command line; ends the process where it is no good.
pub(crate) fn parse<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Cli {
    let matches = help::grouped(Cli::command()).get_matches_from(args);
    if let Some(flag) = stray_flag(&matches) {
        let text = format!("{flag} is for the daemon itself: it does nothing for a command\n");
        Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// A flag of a part's daemon that was given together with a command to it.
fn stray_flag(matches: &ArgMatches) -> Option<String> {
    let (name, part) = matches.subcommand()?;
    Info::find(name)?;
    part.subcommand()?;
    let of_daemon = Join::augment_args(Serve::augment_args(clap::Command::new("")));
    let mut flags = of_daemon.get_arguments();
    let stray = flags.find(|flag| {
        let id = flag.get_id().as_str();
        part.try_contains_id(id).is_ok() && part.value_source(id) == Some(ValueSource::CommandLine)
    });
    stray.map(|flag| format!("--{}", flag.get_long().unwrap_or(flag.get_id().as_str())))
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
    fn flags_of_a_daemon_are_none_of_its_commands() {
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
