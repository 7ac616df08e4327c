//! Processes of machines, found by their user: a process that a guest has taken
//! over may call itself whatever it likes. One that is held is held by the
//! kernel's own handle: whoever has its number later is never taken for it.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::net::unix::pipe;

use super::user::User;
use crate::{
    Result,
    error::During,
    platform::{Usage, network},
};

/// Time a process may take that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Process {
    pub(super) name: String,
    pid: u32,
    handle: OwnedFd,
}

/// A process that may be a machine's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MachineProcess {
    /// User of a machine; none of one that an earlier release started as the
    /// user of this process.
    pub(super) user: Option<User>,
    /// Name that it was told; empty of one that says nothing.
    pub(super) name: String,
}

/// All processes of machines that are accepted. More than one of a machine is
/// there when a start was cut off.
pub(super) async fn find(
    accept: impl Fn(&MachineProcess) -> bool + Send + 'static,
) -> Result<Vec<Process>> {
    let looked = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok());
            found.extend(pid.and_then(|pid| Process::of(pid, &accept)));
        }
        Ok(found)
    });
    looked.await.map_err(std::io::Error::other).and_then(|found| found).during("looking at /proc")
}

/// Processes of one machine.
pub(super) async fn of(user: Option<User>, name: &str) -> Result<Vec<Process>> {
    let name = name.to_owned();
    find(move |seen| match seen.user {
        Some(_) => seen.user == user,
        None => seen.name == name,
    })
    .await
}

fn look_at(pid: u32) -> Option<MachineProcess> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:")?.starts_with(['Z', 'X']) {
        return None;
    }
    let owner: u32 = field("Uid:")?.split_whitespace().next()?.parse().ok()?;
    let user = User::from_number(owner);
    if user.is_none() && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    let name = read_name(pid);
    (user.is_some() || name.is_some())
        .then(|| MachineProcess { user, name: name.unwrap_or_default() })
}

/// Name that a process was told, if it runs a machine.
fn read_name(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let program = words.first()?.rsplit(|byte| *byte == b'/').next()?;
    if !program.starts_with(b"qemu-system-") {
        return None;
    }
    let at = words.iter().position(|word| *word == b"-name")?;
    String::from_utf8(words.get(at + 1)?.to_vec()).ok()
}

impl Process {
    fn of(pid: u32, accept: impl Fn(&MachineProcess) -> bool) -> Option<Self> {
        let seen = look_at(pid).filter(|seen| accept(seen))?;
        let handle = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let handle = rustix::process::pidfd_open(handle, PidfdFlags::NONBLOCK).ok()?;
        // Looked at again with the handle in hand: it is the same.
        (look_at(pid)?.user == seen.user).then_some(Self { name: seen.name, pid, handle })
    }

    /// Waits for its end; whether it came in time.
    pub(super) async fn ended(&self, within: Duration) -> Result<bool> {
        let handle = self.handle.try_clone().during("watching a machine")?;
        // No pipe, but told of in the same way.
        let watched = pipe::Receiver::from_owned_fd_unchecked(handle);
        let watched = watched.during("watching a machine")?;
        match tokio::time::timeout(within, watched.readable()).await {
            Ok(ready) => ready.map(|()| true).during("watching a machine"),
            Err(_) => Ok(false),
        }
    }

    /// Ends it at once.
    pub(super) async fn kill(&self) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.handle, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(std::io::Error::from(error)).during("ending a machine"),
        }
        if self.ended(KILL_TIMEOUT).await? {
            return Ok(());
        }
        let reason = format!("process {} of machine {} does not end", self.pid, self.name);
        Err(crate::Error::state(reason))
    }

    /// Returns what it uses.
    pub(super) fn usage(&self) -> Option<Usage> {
        let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", self.pid)).ok();
        let (stat, statm, io) = (read("stat")?, read("statm")?, read("io")?);
        let usage = parse(&stat, &statm, &io, rustix::param::clock_ticks_per_second())?;
        let (received_bytes, sent_bytes) = network::traffic(self.pid).unwrap_or_default();
        Some(Usage { sent_bytes, received_bytes, ..usage })
    }
}

fn parse(stat: &str, statm: &str, io: &str, ticks: u64) -> Option<Usage> {
    // What stands in brackets may have anything in it.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let spent = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let spent = spent(11)?.saturating_add(spent(12)?);
    let resident: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?;
    Some(Usage {
        cpu_ns: spent.saturating_mul(1_000_000_000 / ticks.max(1)),
        memory_bytes: resident.saturating_mul(rustix::param::page_size() as u64),
        disk_bytes: written.parse().ok()?,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 99";
        let io = "rchar: 1\nread_bytes: 2\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        let usage = parse(stat, "100 3 1 1 0 1 0", io, 100).unwrap();
        assert_eq!((usage.cpu_ns, usage.disk_bytes), (3_000_000_000, 4096));
        assert_eq!(usage.memory_bytes, 3 * rustix::param::page_size() as u64);
        assert_eq!(parse("7 (a) S 1", "", "", 100), None);
    }

    #[tokio::test]
    async fn other_processes_are_not_taken_for_machines() {
        // This process has no such name, and another program may say what it
        // likes of itself.
        let mut stranger = std::process::Command::new("sleep").args(["60"]).spawn().unwrap();
        assert!(find(|_| true).await.unwrap().iter().all(|found| found.pid != stranger.id()));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
