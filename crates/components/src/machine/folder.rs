//! The folder of a machine: what it is, its files, and its first process.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};
use selvage_kit::pki::replace_private;
use serde::{Deserialize, Serialize};

use super::Machine;
use crate::{Error, Result};

pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Folders that a machine has for itself and keeps, below `files`.
pub(super) const OWN: [&str; 5] =
    ["/var/lib", "/var/log", "/var/tmp", "/etc/kubernetes", "/etc/cni"];
/// Folder that a machine has for itself and loses when it ends.
pub(super) const FLEETING: &str = "/run";

/// Description of the machine, as it stands in the folder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) machine: Machine,
    pub(super) gateway: Ipv4Addr,
}

/// A process that is not mistaken for a later one with the same number.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    pid: i32,
    started: u64,
}

pub(super) fn make(folder: &Path, machine: &Machine, gateway: Ipv4Addr) -> Result<()> {
    selvage_runtime::private_directory(folder).map_err(Error::file(folder))?;
    for own in OWN {
        let path = files(folder, own);
        fs::create_dir_all(&path).map_err(Error::file(&path))?;
    }
    let temporary = files(folder, "/var/tmp");
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777))
        .map_err(Error::file(&temporary))?;
    write(folder, "machine.json", &Written { machine: machine.clone(), gateway })
}

/// Returns the path of the files of a folder of the machine.
pub(super) fn files(folder: &Path, own: &str) -> PathBuf {
    folder.join("files").join(own.trim_start_matches('/').replace('/', "-"))
}

fn write(folder: &Path, name: &str, content: &impl Serialize) -> Result<()> {
    let path = folder.join(name);
    let text = serde_json::to_vec(content)
        .map_err(|error| Error::Damaged { path: name.to_owned(), reason: error.to_string() })?;
    Ok(replace_private(&path, &text)?)
}

pub(super) fn written(folder: &Path) -> Result<Written> {
    let path = folder.join("machine.json");
    let text = fs::read(&path).map_err(Error::file(&path))?;
    serde_json::from_slice(&text).map_err(|error| Error::Damaged {
        path: path.display().to_string(),
        reason: error.to_string(),
    })
}

pub(super) fn read(folder: &Path) -> Result<Machine> {
    Ok(written(folder)?.machine)
}

/// Writes down the first process.
pub(super) fn remember(folder: &Path, pid: i32) -> Result<()> {
    let started = started(pid).ok_or_else(|| Error::Program {
        program: "machine",
        text: "its first process ended at once".into(),
    })?;
    write(folder, "process.json", &Process { pid, started })
}

/// The first process, if it lives.
pub(super) fn process(folder: &Path) -> Option<i32> {
    let text = fs::read(folder.join("process.json")).ok()?;
    let process: Process = serde_json::from_slice(&text).ok()?;
    (started(process.pid) == Some(process.started)).then_some(process.pid)
}

/// When a process began, in ticks of the kernel; none for one that has ended.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let lives = !matches!(*fields.first()?, "Z" | "X");
    lives.then(|| fields.get(19)?.parse().ok()).flatten()
}

pub(super) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Control group of all machines of the host.
pub(super) const GROUP: &str = "/selvage-machines";

pub(super) fn cgroup(name: &str) -> String {
    format!("{GROUP}/{name}")
}

pub(super) fn is_installed(program: &Path) -> bool {
    PATH.split(':').any(|folder| Path::new(folder).join(program).exists())
}
