//! `selvage volume` as clap reads it.

use super::size::{bytes, gib};

/// `selvage volume`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage volume create data --size 10
  selvage volume create scratch --size 1T --class thin --tag team=red
  selvage volume snapshot data data-before-upgrade
  selvage volume revert data data-before-upgrade
  selvage volume list -o wide
  selvage volume --endpoint unix:///run/topolvm/lvmd.sock list")]
pub enum Volume {
    /// Make a volume
    Create(Create),
    /// Grow a volume; the file system on it is left as it is
    Resize(Resize),
    /// Delete a volume
    #[command(visible_alias = "rm")]
    Delete(Delete),
    /// List volumes
    #[command(visible_alias = "ls")]
    List(List),
    /// List the device classes and what is free in each
    Classes(Classes),
    /// Show free space, and again whenever it changes
    Watch,
    /// Take a snapshot of a volume under another name
    Snapshot(Snapshot),
    /// Copy a volume
    Clone(Clone),
    /// Give a volume the content of one of its snapshots, which stays
    Revert(Revert),
}

/// `selvage volume revert`
#[derive(clap::Args, Debug)]
pub struct Revert {
    /// Volume, which must not be in use
    pub volume: String,
    /// Snapshot of it
    pub snapshot: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub class: Class,
}

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Args, Debug)]
pub struct Class {
    /// Device class; the server's default one if left out
    #[arg(long, short, value_name = "CLASS", default_value = "", hide_default_value = true)]
    pub class: String,
}

/// `selvage volume create`
#[derive(clap::Args, Debug)]
pub struct Create {
    /// Name of the volume
    pub name: String,
    /// Size in GiB, or with a unit: 10, 10G, 2T
    #[arg(long, short, value_name = "SIZE", value_parser = gib)]
    pub size: u64,
    /// Tag to set, may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    #[command(flatten)]
    pub class: Class,
}

/// `selvage volume resize`
#[derive(clap::Args, Debug)]
pub struct Resize {
    /// Name of the volume
    pub name: String,
    /// New size in GiB, or with a unit: 10, 10G, 2T
    #[arg(long, short, value_name = "SIZE", value_parser = gib)]
    pub size: u64,
    #[command(flatten)]
    pub class: Class,
}

/// `selvage volume delete`
#[derive(clap::Args, Debug)]
pub struct Delete {
    /// Name of the volume
    pub name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub class: Class,
}

/// `selvage volume list`
#[derive(clap::Args, Debug)]
pub struct List {
    /// Only those of this device class
    #[arg(long, short, value_name = "CLASS", default_value = "", hide_default_value = true)]
    pub class: String,
}

/// `selvage volume classes`
#[derive(clap::Args, Debug)]
pub struct Classes {}

/// `selvage volume snapshot`
#[derive(clap::Args, Debug)]
pub struct Snapshot {
    /// Volume to make a snapshot of
    pub source: String,
    /// Name of the snapshot
    pub name: String,
    /// Let it be written to
    #[arg(long, short)]
    pub writable: bool,
    /// Room for changes of the source, for thick volumes of LVM: 512M, 10G
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub room: Option<u64>,
    /// Tag to set, may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    #[command(flatten)]
    pub class: Class,
}

/// `selvage volume clone`
#[derive(clap::Args, Debug)]
pub struct Clone {
    /// Volume to copy
    pub source: String,
    /// Name of the copy
    pub name: String,
    /// Tag to set, may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    #[command(flatten)]
    pub class: Class,
}
