//! A process that is held, whatever its number means by now.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use tokio::time::Instant;

use super::record::Process;
use crate::{Error, Result, error::During};

/// Time that the program that started a process may take to end after it.
const FOSTERED: Duration = Duration::from_secs(2);

/// Waits for the end of a process; the code only of one that is our child.
pub(super) async fn exit_code(pidfd: OwnedFd) -> Option<i32> {
    let pidfd = crate::pollable(pidfd).ok()?;
    pidfd.readable().await.ok()?;
    let since = Instant::now();
    loop {
        let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        if let Ok(Some(status)) = status {
            let signal = || status.terminating_signal().map(|signal| 128 + signal);
            return status.exit_status().or_else(signal);
        }
        // It becomes our child with the end of the one that started it.
        if is_nobodys(&pidfd) || since.elapsed() > FOSTERED {
            return None;
        }
        tokio::time::sleep(FOSTERED / 100).await;
    }
}

/// Returns whether somebody has waited for the process already.
fn is_nobodys(pidfd: &impl AsRawFd) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()));
    let info = info.unwrap_or_default();
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    number.is_none_or(|number| number.trim() == "-1")
}

pub(super) fn open_pid(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::ProcessFinished)?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).during("taking hold of a process")
}

/// Sends a signal to this very process, whatever its number means by now.
pub(super) fn send(process: &Process, signal: Signal) -> Result<()> {
    let pidfd = open_pid(process.pid).map_err(|_| Error::ProcessFinished)?;
    if !process.is_there() {
        return Err(Error::ProcessFinished);
    }
    match rustix::process::pidfd_send_signal(&pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Err(Error::ProcessFinished),
        sent => sent.during("sending a signal"),
    }
}
