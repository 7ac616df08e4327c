//! Machines: whether they are there, and how they are.

use std::collections::HashMap;

use selvage_api::selvage::dashboard::{Object, Severity};

use super::{Context, Finding};
use crate::{
    facts::{Facts, Host, Machine, each, object},
    text::{outside, quoted},
};

const NAME: usize = 200;
/// Share of memory below which there is too little.
const LOW: f64 = 0.05;
/// A certificate that ends within a day is an emergency.
const DAY: i64 = 86_400;

/// State of a machine, the same for lists, counts, scores and rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MachineState {
    Ready,
    Blocked,
    /// With the reason.
    Away(String),
    NeverReported,
}

impl MachineState {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Blocked => "blocked",
            Self::Away(_) => "away",
            Self::NeverReported => "never reported",
        }
    }
}

/// State of a machine by its agent's answer and its last report.
pub(crate) fn state(
    machine: &Machine,
    host: Option<&Host>,
    now: jiff::Timestamp,
    longest: std::time::Duration,
) -> MachineState {
    match (host, machine.last_seen) {
        _ if machine.blocked => MachineState::Blocked,
        (Some(host), _) if !host.error.is_empty() => MachineState::Away(host.error.clone()),
        // One that answers is there, whenever it last reported.
        (Some(_), _) => MachineState::Ready,
        (None, None) => MachineState::NeverReported,
        (None, Some(seen)) => {
            let silent = now.duration_since(seen);
            if !silent.is_negative() && silent.unsigned_abs() > longest {
                MachineState::Away(format!("it last reported at {seen:.0}"))
            } else {
                MachineState::Ready
            }
        }
    }
}

/// Answers of agents, by the machine's name.
pub(crate) fn hosts(facts: &Facts) -> HashMap<&str, &Host> {
    each(&facts.hosts).map(|host| (host.name.as_str(), host)).collect()
}

pub(super) fn machine_away(context: &Context<'_>, found: &mut Vec<Finding>) {
    let hosts = hosts(context.facts);
    for machine in each(&context.facts.machines) {
        let host = hosts.get(machine.name.as_str()).copied();
        let longest = context.thresholds.machine_away;
        let state = state(machine, host, context.now, longest);
        let MachineState::Away(why) = state else { continue };
        let object = &machine.object;
        let summary = format!("Machine {} is away", outside(&object.name, NAME));
        let command = format!("selvage node version -n {}", quoted(&machine.name));
        found.push(Finding::new(object, summary, command).detail(&why));
    }
}

pub(super) fn machine_blocked(context: &Context<'_>, found: &mut Vec<Finding>) {
    for machine in each(&context.facts.machines).filter(|machine| machine.blocked) {
        let object = &machine.object;
        let summary = format!("Machine {} is blocked", outside(&object.name, NAME));
        let command = format!("selvage machine unblock {}", quoted(&object.name));
        found.push(Finding::new(object, summary, command));
    }
}

pub(super) fn key_copied(context: &Context<'_>, found: &mut Vec<Finding>) {
    for machine in each(&context.facts.machines).filter(|machine| !machine.blocked) {
        let Some(at) = machine.copy_suspected else { continue };
        let object = &machine.object;
        let summary =
            format!("Somebody may have a copy of the key of {}", outside(&object.name, NAME));
        let command = format!("selvage machine block {}", quoted(&object.name));
        let detail = format!("a certificate that it had replaced was renewed at {at:.0}");
        found.push(Finding::new(object, summary, command).detail(&detail).since(Some(at)));
    }
}

pub(super) fn certificate_ends(context: &Context<'_>, found: &mut Vec<Finding>) {
    for machine in each(&context.facts.machines).filter(|machine| !machine.blocked) {
        let Some(ends) = machine.certificate_ends else { continue };
        let left = ends.as_second().saturating_sub(context.now.as_second());
        let soon = i64::try_from(context.thresholds.certificate.as_secs()).unwrap_or(i64::MAX);
        if left > soon {
            continue;
        }
        let object =
            Object { kind: "certificate".into(), ..object("", machine.object.name.clone()) };
        let name = outside(&object.name, NAME);
        let (summary, severity) = match left {
            ..=0 => (format!("The certificate of {name} has ended"), Severity::Critical),
            1..DAY => (format!("The certificate of {name} ends within a day"), Severity::Critical),
            _ => (format!("The certificate of {name} ends soon"), Severity::Warning),
        };
        let command = format!("selvage join-token create {}", quoted(&object.name));
        let finding = Finding::new(&object, summary, command).severity(severity);
        found.push(finding.detail(&format!(
            "it ends at {ends:.0} and renews itself while the machine is in touch"
        )));
    }
}

pub(super) fn clock_skew(context: &Context<'_>, found: &mut Vec<Finding>) {
    let most = i64::try_from(context.thresholds.clock_skew.as_millis()).unwrap_or(i64::MAX);
    let machines = by_name(context.facts);
    for host in each(&context.facts.hosts).filter(|host| host.skew_ms.saturating_abs() > most) {
        let object = machine_object(&machines, &host.name);
        let way = if host.skew_ms > 0 { "ahead" } else { "behind" };
        let summary = format!("The clock of {} is {way}", outside(&host.name, NAME));
        let detail = format!("by {:.1} s", host.skew_ms.saturating_abs() as f64 / 1000.0);
        let command = format!("selvage node time -n {}", quoted(&host.name));
        found.push(Finding::new(&object, summary, command).detail(&detail));
    }
}

pub(super) fn memory_low(context: &Context<'_>, found: &mut Vec<Finding>) {
    let machines = by_name(context.facts);
    for host in each(&context.facts.hosts) {
        let share = host.memory_available as f64 / host.memory_bytes.max(1) as f64;
        if host.memory_bytes == 0 || share >= LOW {
            continue;
        }
        let object = machine_object(&machines, &host.name);
        let summary = format!("Machine {} is short of memory", outside(&host.name, NAME));
        let command = format!("selvage node processes -s rss -n {}", quoted(&host.name));
        found.push(Finding::new(&object, summary, command));
    }
}

fn by_name(facts: &Facts) -> HashMap<&str, &Object> {
    each(&facts.machines).map(|machine| (machine.name.as_str(), &machine.object)).collect()
}

fn machine_object(machines: &HashMap<&str, &Object>, name: &str) -> Object {
    machines.get(name).map_or_else(|| object("machine", format!("node/{name}")), |o| (*o).clone())
}
