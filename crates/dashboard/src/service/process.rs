//! This process: its tasks, what it takes, how it is doing.

use std::fs;

use jiff::Timestamp;
use selvage_api::selvage::dashboard::{Process, Task};

use super::Shared;
use crate::{facts::each, stamp};

/// Time at which the part was opened.
pub(crate) struct Started(Timestamp);

impl Started {
    pub(crate) fn now() -> Self {
        Self(Timestamp::now())
    }
}

pub(super) fn describe(shared: &Shared) -> Process {
    let snapshot = shared.board.snapshot();
    let stuck = snapshot.overview.problems.iter().filter(|p| p.rule == "operation_stuck").count();
    let (resident_bytes, cpu_seconds) = used();
    Process {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: selvage_kit::build::build().sha,
        started_at: Some(stamp(shared.started.0)),
        resident_bytes,
        cpu_seconds,
        tasks: tasks(shared),
        watchers: small(shared.watchers()),
        operations: small(each(&snapshot.facts.operations).count()),
        stuck_operations: small(stuck),
        audit_days: shared.audit.days(),
        audit_lines: shared.audit.count(),
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn tasks(shared: &Shared) -> Vec<Task> {
    let tasks = shared.tasks.lock();
    let listed = tasks.as_ref().map(|tasks| tasks.list()).unwrap_or_default();
    let describe = |status: selvage_kit::tasks::Status| Task {
        name: status.name,
        state: status.state.to_string(),
        restarts: status.restarts,
    };
    listed.into_iter().map(describe).collect()
}

/// Memory in bytes and CPU time in seconds, as the kernel counts them.
fn used() -> (u64, f64) {
    let page = 4096;
    let resident = fs::read_to_string("/proc/self/statm").ok().and_then(|text| {
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        Some(pages * page)
    });
    let cpu = fs::read_to_string("/proc/self/stat").ok().and_then(|text| {
        // The name of the program may hold anything up to the last bracket.
        let after = text.rsplit_once(") ")?.1;
        let ticks = |at: usize| after.split(' ').nth(at)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / 100.0)
    });
    (resident.unwrap_or_default(), cpu.unwrap_or_default())
}
