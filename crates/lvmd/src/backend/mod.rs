//! Backends of volume groups.
//!
//! A backend does what it is told, one thing at a time in a group, and blocks
//! meanwhile. [`crate::Volumes`] decides what may be done, and calls it where
//! blocking is allowed.

mod device;
pub(crate) mod in_use;
pub mod loopfile;
pub mod lvm;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub use device::Device;

use crate::{
    Group, Result,
    config::{BackendKind, Config},
};

/// All groups at one moment, by name.
pub type Groups = BTreeMap<String, Arc<Group>>;

/// A volume to make. Names and tags were checked.
#[derive(Debug, Clone, Default)]
pub struct Create {
    pub group: String,
    pub name: String,
    pub size: u64,
    pub tags: Vec<String>,
    /// The thin pool to make it in; none for a thick volume.
    pub pool: Option<String>,
    /// Further options of lvcreate. Backends without lvcreate pass them over.
    pub options: Vec<String>,
}

/// A snapshot to make.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub group: String,
    pub source: String,
    pub name: String,
    pub tags: Vec<String>,
    pub read_only: bool,
    /// Room for changes of the source, where a snapshot needs such; none for
    /// a tenth of the source.
    pub change_room: Option<u64>,
    /// Progress of the copy, where a snapshot needs one.
    pub progress: CopyProgress,
}

/// Progress of a copy. Clones are of the same one.
#[derive(Debug, Clone, Default)]
pub struct CopyProgress(Arc<CopyCounters>);

#[derive(Debug, Default)]
struct CopyCounters {
    total: AtomicU64,
    done: AtomicU64,
}

impl CopyProgress {
    /// Counts bytes that are to be copied.
    pub fn expect(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were copied.
    pub fn add(&self, bytes: u64) {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes that were copied, and of all there are.
    pub fn get(&self) -> (u64, u64) {
        let total = self.0.total.load(Ordering::Relaxed);
        (self.0.done.load(Ordering::Relaxed).min(total), total)
    }
}

/// Parts of a volume, in bytes, in order and without overlap.
pub type Ranges = Vec<Range<u64>>;

/// A volume that is read where it is.
pub struct Guarded {
    /// Content of the volume. It is not read through a device that a file system is
    /// mounted from: the cache of such a device keeps what was there when it was read
    /// first, and shows changes of metadata before they are committed.
    pub device: Device,
    /// Notices writes since it was opened.
    pub guard: Box<dyn WriteGuard>,
}

/// Notices writes to a volume that is read where it is.
pub trait WriteGuard: Send + Sync {
    /// Returns whether nothing was written since the guard was made. Blocks.
    fn is_unchanged(&self) -> Result<bool>;
}

/// Keeps volume groups. Every method may block.
pub trait Backend: Send + Sync + 'static {
    /// Returns its name for logs.
    fn kind(&self) -> &'static str;

    /// Takes over what a changed configuration says.
    fn configure(&self, config: &Config) -> Result<()>;

    /// Returns what is there now. Reads; runs no program while nothing unusual
    /// happened.
    fn scan(&self) -> Result<Groups>;

    /// Something has failed: what is in memory of the disks is not to be
    /// trusted when they are read next.
    fn doubt(&self) {}

    /// Differs from its value before if something was changed from outside.
    /// Cheap enough to be asked every half second, and runs no program.
    fn fingerprint(&self) -> u64;

    /// Makes good what volumes were promised and others took from them, and asks what is not
    /// asked at every look. Called now and then; cheap while there is nothing to do.
    fn uphold(&self) {}

    /// Returns the groups and names of what looks like a volume, and is none that is known.
    fn strays(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn create(&self, create: &Create) -> Result<()>;

    /// Removes a volume; refuses one that is in use.
    fn remove(&self, group: &str, name: &str) -> Result<()>;

    /// Grows a volume to so many bytes, rounded up.
    fn resize(&self, group: &str, name: &str, size: u64) -> Result<()>;

    /// Freezes the content of a volume under another name.
    fn snapshot(&self, snapshot: &Snapshot) -> Result<()>;

    /// Returns the bytes that volumes of a thin pool can still take together, whatever
    /// they were promised.
    fn room_in_pool(&self, group: &str, pool: &str) -> Result<u64>;

    /// Opens a volume and watches it for writes from now on, so that it can be read as it
    /// is at this moment without a snapshot. None where that cannot be done.
    fn guard(&self, group: &str, name: &str) -> Result<Option<Guarded>> {
        let _ = (group, name);
        Ok(None)
    }

    /// Returns whether snapshots stand on their own: they live on without their
    /// source and need no room for its changes.
    fn snapshots_are_volumes(&self, group: &str, name: &str) -> Result<bool>;

    /// Returns whether changes of a volume take room in its snapshots that may run
    /// out.
    fn counts_changes(&self) -> bool {
        false
    }

    /// Returns how full a snapshot's room for changes is, in percent; 100 and more
    /// means that it is lost. None where there is no such limit.
    fn change_room_used(&self, group: &str, name: &str) -> Result<Option<f64>>;

    /// Gives a snapshot more room for changes.
    fn extend_change_room(&self, group: &str, name: &str, size: u64) -> Result<()>;

    /// Changes the tags of a volume.
    fn tag(&self, group: &str, name: &str, add: &[String], remove: &[String]) -> Result<()>;

    /// Opens the content of a volume for reading, or for writing too.
    fn open(&self, group: &str, name: &str, write: bool) -> Result<Device>;

    /// The parts of a volume that were ever written; all others are zeros.
    /// None where that is not known.
    fn allocated(&self, group: &str, name: &str) -> Result<Option<Ranges>>;

    /// Returns where `newer` may differ from `older`, a snapshot of the same volume.
    /// None where that is not known.
    fn changed(&self, group: &str, older: &str, newer: &str) -> Result<Option<Ranges>>;
}

/// The backend that a configuration names.
pub fn open(config: &Config) -> Result<Arc<dyn Backend>> {
    Ok(match config.backend() {
        BackendKind::Loop => Arc::new(loopfile::LoopFiles::open(config)?),
        BackendKind::Lvm => Arc::new(lvm::Lvm::open(config)?),
    })
}

/// The names of the groups that a configuration asks for.
fn wanted(config: &Config) -> Vec<String> {
    let mut names: Vec<String> =
        config.device_classes.iter().map(|class| class.volume_group.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the path of a program of the system, for the account may have a short PATH.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// Variables that programs get of ours, besides those of LVM itself. Others may hold what
/// opens repositories.
const PASSED_ON: [&str; 3] = ["HOME", "PATH", "TMPDIR"];

/// A program with nothing on its input, that says in English what is wrong.
fn command(path: impl AsRef<std::ffi::OsStr>) -> Command {
    let is_passed_on = |name: &str| {
        PASSED_ON.contains(&name) || name.starts_with("LVM_") || name.starts_with("DM_")
    };
    let variables = std::env::vars_os();
    let passed = variables.filter(|(name, _)| name.to_str().is_some_and(is_passed_on));
    let mut command = Command::new(path);
    command.env_clear().envs(passed).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Two ranges that touch become one.
fn push_range(ranges: &mut Ranges, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
