//! `selvage backup` as clap reads it.

use std::{path::PathBuf, time::Duration};

use crate::{commands::volume::bytes, duration};

/// `selvage backup`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage backup create data backups/laptop --store https://s3.example.com
  selvage backup list backups/laptop --store https://s3.example.com
  selvage backup restore backups/laptop@monday data2 --store file:
  selvage backup verify backups/laptop --read 10 --heal data
  selvage backup prune backups/laptop --keep-daily 7 --keep-monthly 12
  selvage backup restore backups/laptop@monday data --store file: --replace
  selvage backup diff backups/laptop@tuesday @monday --store file:
  selvage backup schedule set nightly data backups/laptop --credentials s3 --every 1d --at 2h

What opens a repository is never an argument. It comes from the environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, for REST servers
RESTIC_REST_USERNAME, RESTIC_REST_PASSWORD; RESTIC_PASSWORD), from a file of such lines (--credentials-file), or is on the
server's machine already (--credentials).")]
pub enum Backup {
    /// Back up a volume and show the progress
    Create(Create),
    /// List backups in a repository, and what was done
    #[command(visible_alias = "ls")]
    List(List),
    /// Restore a backup as a volume
    Restore(Restore),
    /// Check a repository, and repair it
    Verify(Verify),
    /// Delete a backup; its space is free after the next prune
    #[command(visible_alias = "rm")]
    Delete(Delete),
    /// Remove backups by retention rules, and data that no backup needs
    Prune(Prune),
    /// List, set and delete scheduled backups
    #[command(subcommand)]
    Schedule(Schedule),
    /// Follow a job until it has ended
    Watch {
        /// Its id
        id: String,
    },
    /// Stop a job and remove what it made
    Cancel {
        /// Its id
        id: String,
    },
    /// Show or set limits of the transfer rate
    Limits(Limits),
    /// Show the differences between two backups of a volume
    Diff(Diff),
    /// Show statistics of a repository
    Stats(Stats),
    /// Remove stale locks of a repository
    Unlock(Unlock),
    /// List, add and remove passphrases of a repository
    #[command(subcommand)]
    Key(KeyCommand),
}

/// `selvage backup diff`
#[derive(clap::Args, Debug)]
pub struct Diff {
    /// Newer backup: BUCKET/PREFIX#SNAPSHOT or BUCKET/PREFIX@NAME; without either,
    /// the newest
    pub repository: String,
    /// Older backup: #SNAPSHOT, @NAME or #VOLUME@NAME
    pub older: String,
    /// Volume that they are of, where the repository has several
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub volume: String,
    /// Machine that they were made on, where several have one of that name [default:
    /// the server's own]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub host: String,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup stats`
#[derive(clap::Args, Debug)]
pub struct Stats {
    /// Repository: BUCKET/PREFIX
    pub repository: String,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup unlock`
#[derive(clap::Args, Debug)]
pub struct Unlock {
    /// Repository: BUCKET/PREFIX
    pub repository: String,
    /// Remove all locks, also those that somebody may hold
    #[arg(long)]
    pub all: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup key`
#[derive(clap::Subcommand, Debug)]
pub enum KeyCommand {
    /// List the keys of a repository
    #[command(visible_alias = "ls")]
    List(Stats),
    /// Add a passphrase; the others still open the repository
    Add(AddKey),
    /// Delete a key, with the repository opened by another
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        args: Stats,
        /// Key, or the beginning of its id
        #[arg(id = "key_id", value_name = "KEY")]
        key: String,
    },
}

/// `selvage backup key add`
#[derive(clap::Args, Debug)]
pub struct AddKey {
    /// Repository: BUCKET/PREFIX
    pub repository: String,
    /// File whose first line is the new passphrase, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub new_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub store: Store,
}

// No doc comments: they would speak for whatever this is flattened into.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Store {
    /// Object store: https://HOST or http://HOST; rest:https://HOST for restic's
    /// REST server; file: for the machine's directory for backups [default: AWS]
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub store: String,
    /// Take any certificate of the object store
    #[arg(long)]
    pub any_certificate: bool,
    /// Proxy for http
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub http_proxy: String,
    /// Proxy for https
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub https_proxy: String,
    /// Name of credentials that the server's machine has
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub credentials: String,
    /// File of lines such as RESTIC_PASSWORD=…, in place of the environment
    #[arg(long, value_name = "FILE", conflicts_with = "credentials")]
    pub credentials_file: Option<PathBuf>,
}

#[derive(clap::Args, Debug, Clone, Copy, Default)]
pub struct Keep {
    /// Keep the newest N
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_last: Option<u32>,
    /// Keep one an hour, for N hours
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_hourly: Option<u32>,
    /// Keep one a day, for N days
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_daily: Option<u32>,
    /// Keep one a week, for N weeks
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_weekly: Option<u32>,
    /// Keep one a month, for N months
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_monthly: Option<u32>,
    /// Keep one a year, for N years
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep_yearly: Option<u32>,
}

/// Reads the number of a rule. 0 is no rule, and whoever writes it means that all go.
fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("a rule has to keep at least 1; leave it out if it is not to be used".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("it has to be a whole number, such as 7".into()),
    }
}

/// `selvage backup create`
#[derive(clap::Args, Debug)]
pub struct Create {
    /// Volume: NAME, or GROUP/NAME
    pub volume: String,
    /// Repository: BUCKET/PREFIX
    pub repository: String,
    /// Name of the backup; several may have the same [default: the volume's
    /// and the time]
    #[arg(long)]
    pub name: Option<String>,
    /// Only begin
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup list`
#[derive(clap::Args, Debug)]
pub struct List {
    /// Repository to look into: BUCKET/PREFIX [default: what was done]
    pub repository: Option<String>,
    /// Only those of this volume
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub volume: String,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup restore`
#[derive(clap::Args, Debug)]
pub struct Restore {
    /// Backup: BUCKET/PREFIX#SNAPSHOT, BUCKET/PREFIX@NAME or
    /// BUCKET/PREFIX#VOLUME@NAME; without any, the newest
    pub repository: String,
    /// Volume to make
    pub volume: String,
    /// Volume that the backup is of, where the repository has several
    #[arg(long = "volume", value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub source: String,
    /// Machine that the backup was made on, where several have one of that name [default:
    /// the server's own]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub host: String,
    /// Its device class; the server's default one if left out
    #[arg(long, short, value_name = "CLASS", default_value = "", hide_default_value = true)]
    pub class: String,
    /// Its size, such as 10G [default: that of the backup]
    #[arg(long, short, value_name = "SIZE", value_parser = bytes)]
    pub size: Option<u64>,
    /// Tag to set, may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Write over the volume of that name; a snapshot of it is made before
    #[arg(long, conflicts_with_all = ["size", "tags"])]
    pub replace: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Only begin
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup verify`
#[derive(clap::Args, Debug)]
pub struct Verify {
    /// Which: BUCKET/PREFIX
    pub repository: String,
    /// Percentage of packs to read
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub read: u32,
    /// Volume to take from what is lost
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub heal: String,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup delete`
#[derive(clap::Args, Debug)]
pub struct Delete {
    /// Which: BUCKET/PREFIX#SNAPSHOT, BUCKET/PREFIX@NAME or
    /// BUCKET/PREFIX#VOLUME@NAME
    pub repository: String,
    /// Volume that the backup is of, where the repository has several
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub volume: String,
    /// Machine that the backup was made on, where several have one of that name [default:
    /// the server's own]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub host: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup prune`
#[derive(clap::Args, Debug)]
pub struct Prune {
    /// Which: BUCKET/PREFIX
    pub repository: String,
    /// Only judge backups of this volume
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    pub volume: String,
    /// Only judge backups that were made on this machine
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub host: String,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub keep: Keep,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup schedule`
#[derive(clap::Subcommand, Debug)]
pub enum Schedule {
    /// Set a schedule
    Set(Box<Set>),
    /// List schedules
    List,
    /// End a schedule; what it made stays
    Delete {
        /// Its name
        name: String,
    },
}

/// `selvage backup schedule set`
#[derive(clap::Args, Debug)]
pub struct Set {
    /// Name of the schedule
    pub name: String,
    /// Volume: NAME, or GROUP/NAME
    pub volume: String,
    /// Repository: BUCKET/PREFIX
    pub repository: String,
    /// Period, counted from midnight UTC: 1h, 1d, 7d
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub every: Duration,
    /// Delay within the period: 2h with 1d is two o'clock UTC
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub at: Option<Duration>,
    /// Time between two verifies of the repository, after a backup: 7d
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub verify_every: Option<Duration>,
    /// Percentage of packs that a verify reads
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "verify_every")]
    pub verify_read: u32,
    #[command(flatten)]
    pub keep: Keep,
    #[command(flatten)]
    pub store: Store,
}

/// `selvage backup limits`
#[derive(clap::Args, Debug)]
pub struct Limits {
    /// To repositories, in bytes a second, such as 10M; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub upload: Option<u64>,
    /// From repositories
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub download: Option<u64>,
    /// From volumes
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub read: Option<u64>,
}
