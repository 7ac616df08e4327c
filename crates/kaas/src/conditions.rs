//! Conditions of a cluster, and its status as a pure function of them.

use std::{fmt::Write, time::Duration};

use selvage_api::cnct::kaas::api::ClusterStatus;
use selvage_store::clock::Millis;

use crate::{
    plan::{Snapshot, is_settled},
    record::{Condition, Machine, Phase},
};

pub const PROVISIONED: &str = "Provisioned";
pub const CONTROL_PLANE_READY: &str = "ControlPlaneReady";
pub const POOLS_READY: &str = "PoolsReady";
pub const PROGRESSING: &str = "Progressing";
pub const DEGRADED: &str = "Degraded";
pub const FAILED: &str = "Failed";
pub const DELETING: &str = "Deleting";

/// A machine that waits for longer in one phase no longer counts as being worked on.
const STUCK_AFTER: Millis = 5 * 60 * 1000;
/// Machines that fail in a row before a cluster that never ran counts as
/// failed.
const FAILURES: u32 = 3;

/// Returns the conditions of a cluster at this moment. Those that are as they
/// were keep their time.
pub fn evaluate(snapshot: &Snapshot, now: Millis) -> Vec<Condition> {
    let facts = Facts::of(snapshot, now);
    let found = [
        (PROVISIONED, snapshot.cluster.provisioned, "", String::new()),
        (CONTROL_PLANE_READY, facts.control_plane_ready(), "", facts.count("", "control-plane")),
        (POOLS_READY, facts.pools_ready(), "", String::new()),
        (PROGRESSING, facts.work.is_some(), facts.work.unwrap_or_default(), String::new()),
        (
            DEGRADED,
            facts.degraded.is_some(),
            if snapshot.cluster.hibernated { "Hibernated" } else { "Unhealthy" },
            facts.degraded.clone().unwrap_or_default(),
        ),
        (FAILED, facts.failed.is_some(), "Failed", facts.failed.clone().unwrap_or_default()),
        (DELETING, snapshot.cluster.deleting, "", String::new()),
    ];
    let before = &snapshot.cluster.conditions;
    let condition = |(kind, holds, reason, message): (&str, bool, &str, String)| {
        let reason = if holds { reason } else { "" };
        let known = before.iter().find(|condition| condition.kind == kind);
        let same = known.filter(|known| known.holds == holds && known.reason == reason);
        Condition {
            kind: kind.to_owned(),
            holds,
            reason: reason.to_owned(),
            message,
            since: same.map_or(now, |same| same.since),
        }
    };
    found.into_iter().map(condition).collect()
}

/// Returns the status that follows from the conditions.
pub fn status(conditions: &[Condition]) -> ClusterStatus {
    let holds = |kind: &str| conditions.iter().any(|c| c.kind == kind && c.holds);
    if conditions.is_empty() {
        ClusterStatus::StatusUnspecified
    } else if holds(DELETING) {
        ClusterStatus::Stopping
    } else if holds(FAILED) {
        ClusterStatus::Error
    } else if !holds(PROVISIONED) {
        ClusterStatus::Provisioning
    } else if holds(PROGRESSING) {
        ClusterStatus::Reconciling
    } else if holds(DEGRADED) {
        ClusterStatus::Degraded
    } else {
        ClusterStatus::Running
    }
}

/// Returns a sentence that says what is being waited for and since when;
/// empty when nothing is.
pub fn message(snapshot: &Snapshot, now: Millis) -> String {
    let cluster = &snapshot.cluster;
    let facts = Facts::of(snapshot, now);
    if cluster.deleting {
        return match snapshot.machines.len() {
            0 => "Deleting; no machines are left.".to_owned(),
            left => {
                format!("Deleting; {left} machines to be given back{}.", waiting(snapshot, now))
            }
        };
    }
    if let Some(failed) = &facts.failed {
        return lasting(failed, FAILED, snapshot, now);
    }
    if cluster.hibernated {
        let name = &cluster.name;
        return match facts.work {
            Some(_) => format!("Hibernating{}.", waiting(snapshot, now)),
            None => format!("Hibernated: `selvage kaas wake {name}` starts it again."),
        };
    }
    if cluster.paused {
        let since = match cluster.paused_at {
            0 => String::new(),
            at => format!(" for {}", ago(at, now)),
        };
        return format!("Paused{since}: nothing is changed until the cluster is resumed.");
    }
    if !facts.control_plane_ready() || facts.work == Some("Upgrade") {
        let what = if facts.work == Some("Upgrade") {
            let count = facts.count("", "control-plane");
            let to = &cluster.version;
            match (cluster.preflight_problem.as_str(), cluster.backup_problem.as_str()) {
                ("", "") => format!("Upgrading to {to}: {count}"),
                ("", why) => format!("Upgrading to {to}: waiting for a snapshot: {why}"),
                (why, _) => format!("Upgrading to {to}: {why}"),
            }
        } else {
            facts.count("", "control-plane")
        };
        return format!("{what}{}.", waiting(snapshot, now));
    }
    if let Some(pool) = snapshot.pools.iter().find(|pool| facts.ready(&pool.name) != pool.count) {
        let what = facts.count(&pool.name, &format!("pool {}", pool.name));
        return format!("{what}{}.", waiting(snapshot, now));
    }
    if facts.work == Some("Rotate") {
        return format!("Rotating certificates{}.", waiting(snapshot, now));
    }
    if facts.work == Some("Scale") {
        return format!("Scaling{}.", waiting(snapshot, now));
    }
    let degraded = facts.degraded.unwrap_or_default();
    lasting(&degraded, DEGRADED, snapshot, now)
}

/// The sentence, with the time for which the condition that it is of has held.
fn lasting(sentence: &str, kind: &str, snapshot: &Snapshot, now: Millis) -> String {
    let mut known = snapshot.cluster.conditions.iter();
    let held = known.find(|condition| condition.kind == kind && condition.holds);
    match (held, sentence.strip_suffix('.')) {
        (Some(held), Some(start)) => format!("{start} (for {}).", ago(held.since, now)),
        _ => sentence.to_owned(),
    }
}

/// The machine that has waited longest, and for what.
fn waiting(snapshot: &Snapshot, now: Millis) -> String {
    let unsettled = snapshot.machines.iter().filter(|machine| !is_settled(machine));
    let Some(machine) = unsettled.min_by_key(|machine| machine.since) else {
        return String::new();
    };
    let phase = machine.phase().name();
    let mut text = format!("; waiting for {} ({phase} {}", machine.name, ago(machine.since, now));
    if !machine.reason.is_empty() {
        let _ = write!(text, ": {}", machine.reason);
    }
    text + ")"
}

/// Time since then, in its largest unit.
fn ago(then: Millis, now: Millis) -> String {
    let seconds = Duration::from_millis(now.saturating_sub(then)).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

/// Facts about the cluster as a whole that follow from a snapshot.
struct Facts<'a> {
    snapshot: &'a Snapshot,
    /// One word for the work that is going on.
    work: Option<&'static str>,
    degraded: Option<String>,
    failed: Option<String>,
}

impl<'a> Facts<'a> {
    fn of(snapshot: &'a Snapshot, now: Millis) -> Self {
        let mut facts = Self { snapshot, work: None, degraded: None, failed: None };
        facts.work = facts.work_at(now);
        facts.degraded = facts.degraded(now);
        facts.failed = facts.failed();
        facts
    }

    fn ready(&self, pool: &str) -> u32 {
        let ready = |m: &&Machine| m.pool == pool && m.phase() == Phase::Ready && !m.removing;
        u32::try_from(self.snapshot.machines.iter().filter(ready).count()).unwrap_or(u32::MAX)
    }

    fn wanted(&self, pool: &str) -> u32 {
        if pool.is_empty() {
            return self.snapshot.cluster.control_plane.count;
        }
        self.snapshot.pools.iter().find(|p| p.name == pool).map_or(0, |p| p.count)
    }

    fn count(&self, pool: &str, what: &str) -> String {
        format!("{}/{} {what} machines are ready", self.ready(pool), self.wanted(pool))
    }

    fn control_plane_ready(&self) -> bool {
        self.ready("") >= self.wanted("")
    }

    fn pools_ready(&self) -> bool {
        let pools = &self.snapshot.pools;
        pools.iter().all(|pool| !pool.deleting && self.ready(&pool.name) == pool.count)
    }

    fn work_at(&self, now: Millis) -> Option<&'static str> {
        let Snapshot { cluster, pools, machines } = self.snapshot;
        if cluster.deleting {
            return Some("Delete");
        }
        let asleep = |m: &Machine| m.phase() == Phase::Hibernated;
        if cluster.hibernated {
            return (!machines.iter().all(asleep)).then_some("Hibernate");
        }
        if machines.iter().any(asleep) {
            return Some("Wake");
        }
        let target = &cluster.version;
        let old = |m: &Machine| {
            let control_plane = m.is_control_plane() && m.running.control_plane != *target;
            !m.running.kubelet.is_empty() && (control_plane || m.running.kubelet != *target)
        };
        if machines.iter().any(old) {
            return Some("Upgrade");
        }
        if cluster.authorities.is_rotating() {
            return Some("Rotate");
        }
        let moving = |m: &Machine| {
            m.removing || m.cordoned || (m.phase().is_coming_up() && !is_stuck(m, now))
        };
        let staying = |pool: &str| {
            let counts = |m: &&Machine| m.pool == pool && !m.removing;
            u32::try_from(machines.iter().filter(counts).count()).unwrap_or(u32::MAX)
        };
        let short = staying("") != self.wanted("")
            || pools.iter().any(|pool| pool.deleting || staying(&pool.name) != pool.count);
        let work = machines.iter().any(moving) || (short && cluster.failures < FAILURES);
        work.then_some(if cluster.provisioned { "Scale" } else { "Create" })
    }

    fn degraded(&self, now: Millis) -> Option<String> {
        let machines = &self.snapshot.machines;
        if self.snapshot.cluster.hibernated {
            return Some("The cluster is hibernated.".to_owned());
        }
        if let Some(machine) = machines.iter().find(|m| m.phase() == Phase::NotReady) {
            return Some(format!("Node {} is not ready: {}.", machine.name, reason(machine)));
        }
        let none = machines.iter().find(|m| m.phase() == Phase::Requested && !m.reason.is_empty());
        if let Some(machine) = none {
            return Some(format!("No machine for {}: {}.", machine.name, reason(machine)));
        }
        let stuck = machines.iter().find(|m| m.phase().is_coming_up() && is_stuck(m, now));
        if let Some(machine) = stuck {
            let (name, phase) = (&machine.name, machine.phase().name());
            return Some(format!("{name} is {phase} for long: {}.", reason(machine)));
        }
        let cluster = &self.snapshot.cluster;
        (cluster.failures > 0)
            .then(|| format!("The last machine did not come up: {}.", cluster.last_failure))
    }

    fn failed(&self) -> Option<String> {
        let Snapshot { cluster, machines, .. } = self.snapshot;
        let (count, last) = (cluster.failures, &cluster.last_failure);
        if !cluster.provisioned && count >= FAILURES {
            return Some(format!("{count} machines in a row did not come up: {last}."));
        }
        let mut control_plane = machines.iter().filter(|m| m.is_control_plane() && !m.removing);
        let down = |m: &Machine| m.phase() == Phase::NotReady;
        let lost = cluster.provisioned
            && control_plane.clone().count() > 0
            && control_plane.clone().filter(|m| down(m)).count() as u32
                > (cluster.control_plane.count.saturating_sub(1)) / 2;
        let first = control_plane.find(|m| down(m)).filter(|_| lost)?;
        Some(format!("The control plane does not answer: {}.", reason(first)))
    }
}

/// Returns whether a machine waits for so long that its steps are no progress.
fn is_stuck(machine: &Machine, now: Millis) -> bool {
    !machine.reason.is_empty() && now.saturating_sub(machine.since) > STUCK_AFTER
}

fn reason(machine: &Machine) -> &str {
    if machine.reason.is_empty() { "it does not say why" } else { &machine.reason }
}

#[cfg(test)]
mod tests;
