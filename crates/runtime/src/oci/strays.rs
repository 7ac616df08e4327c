//! Processes that are nobody's. Being the reaper of containers makes us the
//! parent of everything that programs we start leave behind; what has ended
//! and was waited for by nobody for a long time is waited for here.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitOptions};

/// A task that waits for its own child does so sooner.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct OrphanReaper {
    ended: BTreeMap<i32, Instant>,
}

impl OrphanReaper {
    pub(super) fn reap(&mut self) {
        reap_unborn();
        let now = Instant::now();
        let ended: Vec<i32> = children().into_iter().filter(|pid| has_ended(*pid)).collect();
        self.ended.retain(|pid, _| ended.contains(pid));
        for pid in ended {
            let since = *self.ended.entry(pid).or_insert(now);
            if now.duration_since(since) >= LONG
                && let Some(process) = Pid::from_raw(pid)
            {
                let _ = rustix::process::waitpid(Some(process), WaitOptions::NOHANG);
                self.ended.remove(&pid);
            }
        }
    }
}

/// Waits for what was to be a program in a container and never became one.
///
/// A runtime's program that cannot start another leaves it to us, and nobody
/// knows of it; but the container's first process cannot end before it is
/// gone.
pub(super) fn reap_unborn() {
    for pid in children().into_iter().filter(|pid| is_unborn(*pid)) {
        if let Some(process) = Pid::from_raw(pid) {
            let _ = rustix::process::waitpid(Some(process), WaitOptions::NOHANG);
        }
    }
}

/// Returns whether it has ended, has a number of its own in some container, and
/// never ran a program. What others wait for has run one, or is in no
/// container.
fn is_unborn(pid: i32) -> bool {
    const NEVER_RAN: u32 = 0x40;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u32>().ok());
    if !fields.starts_with('Z') || flags.is_none_or(|flags| flags & NEVER_RAN == 0) {
        return false;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

fn children() -> Vec<i32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>())
        .collect()
}

fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}
