//! Record of a container, and how its process is known again.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ContainerSpec, Error, Exit, Result, error::During};

/// Parts that a container was made of; never changes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) spec: ContainerSpec,
    /// The lowest layer first.
    pub(super) diff_ids: Vec<String>,
    pub(super) created: i64,
    /// True where it writes to a disk of its own.
    #[serde(default)]
    pub(super) limited: bool,
    /// First of its own users; none where it has the machine's.
    #[serde(default)]
    pub(super) users: Option<u32>,
}

/// State of a container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// Of the last process, also when it has ended.
    pub(super) process: Option<Process>,
    /// Of the last process that ended, also while another runs.
    pub(super) exit_code: Option<i32>,
    pub(super) exited: Option<i64>,
    /// That process ended because memory ran out.
    #[serde(default)]
    pub(super) out_of_memory: bool,
    pub(super) restarts: u32,
    /// Program that started the process.
    #[serde(default)]
    pub(super) program: Option<PathBuf>,
    /// True while somebody wants it to run: started, and not stopped since.
    pub(super) wanted: bool,
    /// True when we ended it only to start it again, and have not yet.
    #[serde(default)]
    pub(super) restarting: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    #[default]
    Created,
    Running,
    Stopped,
}

impl State {
    pub(super) fn exit(&self) -> Option<Exit> {
        let at = self.exited.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let stopped = self.phase == Phase::Stopped;
        stopped.then_some(self.exit_at(at))
    }

    pub(super) fn last_exit(&self) -> Option<Exit> {
        let at = Timestamp::from_millisecond(self.exited?).ok();
        Some(self.exit_at(at))
    }

    fn exit_at(&self, at: Option<Timestamp>) -> Exit {
        Exit { code: self.exit_code, at, out_of_memory: self.out_of_memory }
    }
}

/// A process that cannot be taken for another that has its number now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    start_time: u64,
    boot: String,
}

impl Process {
    /// The process that has this number now.
    pub(super) fn of_pid(pid: u32) -> Result<Self> {
        let text =
            fs::read_to_string(format!("/proc/{pid}/stat")).during("looking at a process")?;
        let start_time = start_time(&text).ok_or(Error::ProcessFinished)?;
        Ok(Self { pid, start_time, boot: boot() })
    }

    /// Returns whether it is still there, as a zombie or alive.
    pub(super) fn is_there(&self) -> bool {
        Self::of_pid(self.pid).is_ok_and(|found| found == *self)
    }
}

/// Differs with each start of the machine.
pub(super) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The 22nd field; the second is a name that may hold anything.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whole or not at all; for our eyes only, as variables may be secrets.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Error::state(format!("cannot be written down: {error}")))?;
    selvage_files::replace(path, &bytes, 0o600).during("writing a record")
}

pub(super) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).during("reading a record")?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
        what: path.display().to_string(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_process_is_known_again_and_another_is_not() {
        let ours = Process::of_pid(std::process::id()).unwrap();
        assert!(ours.is_there());
        let other = Process { start_time: ours.start_time + 1, ..ours.clone() };
        assert!(!other.is_there());
        let before_reboot = Process { boot: "other".into(), ..ours };
        assert!(!before_reboot.is_there());
    }

    #[test]
    fn names_of_processes_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time("7 (a"), None);
    }
}
