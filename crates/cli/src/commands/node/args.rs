//! The command line of `selvage node`.

use std::{path::PathBuf, time::Duration};

use selvage_api::common::ContainerDriver;

use crate::duration;

/// `selvage node`
#[derive(clap::Args, Debug)]
pub struct Node {
    #[command(flatten)]
    pub nodes: Nodes,
    #[command(subcommand)]
    pub command: NodeCommand,
}

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Nodes {
    /// Machines to ask, by name or address; `all`, or by label as in rack=3
    /// [default: the one that is talked to]
    #[arg(
        short,
        long,
        global = true,
        env = "SELVAGE_NODES",
        hide_env_values = true,
        value_name = "HOST,...",
        value_delimiter = ',',
        help_heading = "Which machines"
    )]
    pub nodes: Vec<String>,

    /// Machines with these labels, such as rack=3,role!=spare
    #[arg(
        long,
        global = true,
        value_name = "LABELS",
        conflicts_with = "nodes",
        help_heading = "Which machines"
    )]
    pub selector: Option<String>,

    // Not for every command: `ls -l` is another thing.
    /// The same, before the command
    #[arg(
        short = 'l',
        value_name = "LABELS",
        conflicts_with_all = ["nodes", "selector"],
        help_heading = "Which machines"
    )]
    pub labelled: Option<String>,

    /// Timeout of each machine [default: 10s]
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        value_parser = duration::parse,
        help_heading = "Which machines"
    )]
    pub node_timeout: Option<Duration>,
}

/// Commands on machines.
#[derive(clap::Subcommand, Debug)]
pub enum NodeCommand {
    /// List containers
    #[command(visible_alias = "c")]
    Containers(Containers),
    /// Show what containers use
    Stats(Containers),
    /// List processes
    #[command(visible_aliases = ["p", "ps"])]
    Processes(Processes),
    /// Show memory, in MB
    #[command(visible_alias = "m")]
    Memory(Memory),
    /// Print the kernel's messages
    Dmesg(Dmesg),
    /// Restart a container
    Restart(Restart),
    /// Print the log of a service or container
    Logs(Logs),
    /// List files
    #[command(visible_alias = "list")]
    Ls(Ls),
    /// Print a file
    #[command(visible_alias = "read")]
    Cat(Cat),
    /// Fetch a file or folder
    #[command(visible_alias = "copy")]
    Cp(Cp),
    /// List mounts and their space, in GB
    #[command(visible_alias = "df")]
    Mounts(Watch),
    /// List services; show, start, stop or restart one
    #[command(visible_alias = "service")]
    Services(Services),
    /// Show the versions of this program and of the agents
    Version(Version),
    /// List network interfaces
    Interfaces(Watch),
    /// List routes
    Routes(Watch),
    /// Compare clocks with a time server
    Time(Time),
    /// Reboot the machines
    Reboot(ConfirmArgs),
    /// Turn the machines off
    Shutdown(ConfirmArgs),
    /// Take the machines out of service and wipe their configuration
    Reset(ConfirmArgs),
    /// Upgrade the machines
    Upgrade(Upgrade),
    /// Watch machines on the whole screen
    Top(Top),
    /// Write a configuration for osctl or talosctl, with a certificate in your name
    Talosconfig(crate::commands::certificate::Talosconfig),
}

impl NodeCommand {
    /// Returns whether it goes on until somebody ends it.
    pub(crate) fn is_endless(&self) -> bool {
        match self {
            Self::Containers(Containers { watch, .. }) | Self::Stats(Containers { watch, .. }) => {
                watch.watch
            }
            Self::Processes(args) => args.watch.watch,
            Self::Memory(args) => args.watch.watch,
            Self::Services(args) => args.watch.watch,
            Self::Mounts(watch) | Self::Interfaces(watch) | Self::Routes(watch) => watch.watch,
            Self::Dmesg(args) => args.follow,
            Self::Logs(args) => args.follow,
            Self::Top(_) => true,
            _ => false,
        }
    }
}

#[derive(clap::Args, Debug, Clone, Copy, Default)]
pub struct Watch {
    /// Show it again every second
    #[arg(short, long)]
    pub watch: bool,
}

#[derive(clap::Args, Debug, Clone, Default)]
pub struct Source {
    /// Containers of Kubernetes, not of the system
    #[arg(short, long, conflicts_with = "namespace")]
    pub kubernetes: bool,
    /// Ask by the Kubernetes runtime interface
    #[arg(short, long)]
    pub cri: bool,
}

impl Source {
    /// Namespace and driver as the contracts have them.
    pub(crate) fn place(&self, namespace: Option<&String>) -> (String, i32) {
        // The runtime interface knows no other namespace.
        let kubernetes = self.kubernetes || (self.cri && namespace.is_none());
        let usual = if kubernetes { "k8s.io" } else { "system" };
        let driver = if self.cri { ContainerDriver::Cri } else { ContainerDriver::Containerd };
        (namespace.cloned().unwrap_or_else(|| usual.to_owned()), driver.into())
    }
}

/// Location of one container.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct ContainerArgs {
    #[command(flatten)]
    pub source: Source,
    /// Another namespace of the runtime [default: system]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

impl ContainerArgs {
    pub(crate) fn place(&self) -> (String, i32) {
        self.source.place(self.namespace.as_ref())
    }
}

/// `selvage node containers` and `selvage node stats`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node containers
  selvage node containers --namespace '*' -n all
  selvage node containers -k -n rack1,rack2
  selvage node stats --watch")]
pub struct Containers {
    #[command(flatten)]
    pub source: Source,
    /// Another namespace of the runtime; '*' for all [default: system]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub watch: Watch,
}

impl Containers {
    pub(crate) fn place(&self) -> (String, i32) {
        self.source.place(self.namespace.as_ref())
    }
}

/// By what processes are sorted, the most first.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    #[default]
    Rss,
    Cpu,
}

/// `selvage node processes`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node processes
  selvage node processes -s cpu -n rack1,rack2
  selvage node processes --watch        (keys: c by CPU, r or m by memory, q ends)")]
pub struct Processes {
    /// By what to sort
    #[arg(short, long, value_name = "WHAT", default_value = "rss")]
    pub sort: SortBy,
    #[command(flatten)]
    pub watch: Watch,
}

/// `selvage node memory`
#[derive(clap::Args, Debug)]
pub struct Memory {
    /// Everything the kernel tells, in kB
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub watch: Watch,
}

/// `selvage node dmesg`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node dmesg
  selvage node dmesg -f --tail -n rack1,rack2
  selvage node dmesg --level err --last 20")]
pub struct Dmesg {
    /// Follow new messages
    #[arg(short, long)]
    pub follow: bool,
    /// Only new messages
    #[arg(long, requires = "follow")]
    pub tail: bool,
    /// Of those there are only so many, the newest
    #[arg(long, value_name = "N", conflicts_with = "tail")]
    pub last: Option<u32>,
    /// Only this level and what is more urgent: emerg, alert, crit, err, warning, notice, info, debug
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<String>,
    /// Only this facility, such as kern or local3
    #[arg(long, value_name = "NAME")]
    pub facility: Option<String>,
    /// Only messages that contain this
    #[arg(long, value_name = "TEXT")]
    pub grep: Option<String>,
}

/// `selvage node restart`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node restart registry
  selvage node restart -k kube-system/coredns-7f:coredns --grace 30s")]
pub struct Restart {
    /// The container as `selvage node containers` shows it
    pub id: String,
    #[command(flatten)]
    pub place: ContainerArgs,
    /// Send SIGTERM and do no more
    #[arg(long, conflicts_with = "grace")]
    pub signal_only: bool,
    /// Grace period before it is killed [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub grace: Option<Duration>,
}

/// `selvage node logs`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node logs kubelet
  selvage node logs kubelet --tail 20 -n rack1,rack2
  selvage node logs -k kube-system/coredns-7f:coredns -f --tail 20")]
pub struct Logs {
    /// The service, or the container as `selvage node containers` shows it
    pub id: String,
    #[command(flatten)]
    pub place: ContainerArgs,
    /// Follow new lines
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last so many lines of each machine
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
}

/// `selvage node ls`
#[derive(clap::Args, Debug)]
pub struct Ls {
    /// Folder to list
    #[arg(default_value = "/")]
    pub path: String,
    /// Mode, size and time too
    #[arg(short, long)]
    pub long: bool,
    /// Go into folders
    #[arg(short, long)]
    pub recurse: bool,
    /// Number of levels; implies --recurse
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub depth: Option<i32>,
    /// Sizes in units
    #[arg(short = 'H', long)]
    pub humanize: bool,
    /// Only files of these kinds: f (regular), d (folder), l (symbolic link)
    #[arg(short = 't', long = "type", value_name = "KIND", value_delimiter = ',')]
    pub kinds: Vec<FileKind>,
}

/// Kinds of files.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    F,
    D,
    L,
}

/// `selvage node cat`
#[derive(clap::Args, Debug)]
pub struct Cat {
    /// A regular file
    pub path: String,
}

/// `selvage node cp`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node cp /etc/hosts .
  selvage node cp /var/log logs -n rack1,rack2     (makes logs/rack1 and logs/rack2)
  selvage node cp /etc - > etc.tar.gz")]
pub struct Cp {
    /// File or folder on the machine
    pub source: String,
    /// Folder to put it into, or - to write the archive (tar.gz) to stdout
    pub target: PathBuf,
}

/// `selvage node services`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node services
  selvage node services ntpd
  selvage node services ntpd restart")]
pub struct Services {
    /// Only this one
    pub id: Option<String>,
    /// Action on it
    #[arg(requires = "id")]
    pub action: Option<ServiceAction>,
    #[command(flatten)]
    pub watch: Watch,
}

/// Action on a service.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceAction {
    Start,
    Stop,
    Restart,
    Status,
}

/// `selvage node version`
#[derive(clap::Args, Debug)]
pub struct Version {
    /// One line each
    #[arg(long)]
    pub short: bool,
    /// Only this program
    #[arg(long)]
    pub client: bool,
}

/// `selvage node time`
#[derive(clap::Args, Debug)]
pub struct Time {
    /// Time server to compare with [default: the one the machine uses]
    #[arg(short, long, value_name = "SERVER")]
    pub check: Option<String>,
}

/// Something that had better be meant.
#[derive(clap::Args, Debug)]
pub struct ConfirmArgs {
    /// Do not ask first
    #[arg(short, long)]
    pub yes: bool,
}

/// `selvage node upgrade`
#[derive(clap::Args, Debug)]
pub struct Upgrade {
    /// Image to install
    #[arg(short, long, value_name = "IMAGE")]
    pub image: String,
}

/// `selvage node top`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node top
  selvage node top -n rack1,rack2,rack3

Press ? on the screen for the keys.")]
pub struct Top {
    /// Interval of the readings
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s")]
    pub interval: Duration,
}
