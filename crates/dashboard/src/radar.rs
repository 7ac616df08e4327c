//! The five marks, each with the reasons why it is not higher.

mod redundancy;

use jiff::Timestamp;
use selvage_api::{
    resources::stats::ClusterRadar,
    selvage::dashboard::{Mark, Problem, Reason, Severity},
};

use crate::{
    facts::{Facts, each, object},
    rules::{MachineState, Thresholds, hosts, state},
    source::sum,
};

pub(crate) const HEALTH: &str = "cluster_health";
pub(crate) const NODES: &str = "nodes_health";
pub(crate) const CAPACITY: &str = "capacity_used";
pub(crate) const STABILITY: &str = "stability";
pub(crate) const RELIABILITY: &str = "reliability";

/// All marks of what is known.
pub(crate) fn marks(
    facts: &Facts,
    problems: &[Problem],
    now: Timestamp,
    thresholds: &Thresholds,
) -> Vec<Mark> {
    vec![
        cluster_health(facts, problems),
        nodes_health(facts, now, thresholds),
        capacity_used(facts),
        stability(problems),
        redundancy::reliability(facts),
    ]
}

/// The marks as existing dashboards know them.
pub(crate) fn radar(marks: &[Mark]) -> ClusterRadar {
    let value = |name: &str| {
        marks.iter().find(|mark| mark.name == name).map_or(0.0, |mark| mark.value as f32)
    };
    ClusterRadar {
        cluster_health: value(HEALTH),
        nodes_health: value(NODES),
        capacity_used: value(CAPACITY),
        stability: value(STABILITY),
        reliability: value(RELIABILITY),
    }
}

fn mark(name: &str, value: f64, mut reasons: Vec<Reason>) -> Mark {
    reasons.sort_by(|a, b| b.points.total_cmp(&a.points));
    Mark { name: name.into(), value, reasons }
}

fn reason(problem: &Problem, points: f64) -> Reason {
    Reason {
        rule: problem.rule.clone(),
        object: problem.object.clone(),
        text: problem.summary.clone(),
        command: problem.command.clone(),
        points,
    }
}

/// 100 when nothing is wrong, 50 with warnings, 0 with anything that does not
/// work.
fn cluster_health(facts: &Facts, problems: &[Problem]) -> Mark {
    let own = match facts.storage.as_ref().map(|storage| storage.status.as_str()) {
        Some("HEALTH_ERR") => Severity::Critical,
        Some("HEALTH_WARN") => Severity::Warning,
        _ => Severity::Ok,
    };
    let worst = problems.iter().map(Problem::severity).max().unwrap_or(Severity::Ok).max(own);
    let lost = match worst {
        Severity::Ok | Severity::Notice => 0.0,
        Severity::Warning => 50.0,
        Severity::Critical => 100.0,
    };
    let why = problems.iter().filter(|problem| lost > 0.0 && problem.severity() == worst);
    mark(HEALTH, 100.0 - lost, why.map(|problem| reason(problem, lost)).collect())
}

/// Share of the nodes that are ready: of Kubernetes where there is one, else
/// the machines of the inventory. None at all is 0.
fn nodes_health(facts: &Facts, now: Timestamp, thresholds: &Thresholds) -> Mark {
    let mut down = Vec::new();
    let total = if facts.nodes.is_some() {
        for node in each(&facts.nodes).filter(|node| node.ready != Some(true)) {
            let what = object("kubernetes", format!("Node/{}", node.name));
            down.push((what, format!("node {} is not ready", node.name)));
        }
        each(&facts.nodes).count()
    } else {
        let hosts = hosts(facts);
        for machine in each(&facts.machines) {
            let host = hosts.get(machine.name.as_str()).copied();
            let name = &machine.object.name;
            let text = match state(machine, host, now, thresholds.machine_away) {
                MachineState::Ready => continue,
                MachineState::Blocked => format!("{name} is blocked"),
                MachineState::Away(_) => format!("{name} is away"),
                MachineState::NeverReported => format!("{name} never reported"),
            };
            down.push((machine.object.clone(), text));
        }
        each(&facts.machines).count()
    };
    if total == 0 {
        let none = Reason {
            rule: "no_nodes".into(),
            text: "no machine has joined".into(),
            command: "selvage join-token create node/NAME".into(),
            points: 100.0,
            ..Reason::default()
        };
        return mark(NODES, 0.0, vec![none]);
    }
    let points = 100.0 / total as f64;
    let value = 100.0 * (total - down.len()) as f64 / total as f64;
    let why = down.into_iter().map(|(object, text)| Reason {
        rule: "machine_away".into(),
        object: Some(object),
        text,
        command: "selvage machine list".into(),
        points,
    });
    mark(NODES, value, why.collect())
}

/// Share of the room that is in use, in percent, rounded up to a tenth: of the
/// storage cluster where there is one, else of all volume groups, each of which
/// takes its part of the points.
fn capacity_used(facts: &Facts) -> Mark {
    if let Some(usage) = facts.storage.as_ref().and_then(|storage| storage.usage) {
        return mark(CAPACITY, tenths_up(usage.ratio), Vec::new());
    }
    let room = facts.volumes.as_ref().map(|volumes| volumes.room()).unwrap_or_default();
    let total = sum(room.iter().map(|(group, _)| group.size));
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let why = room.iter().filter(|(group, _)| group.size > 0).map(|(group, used)| {
        let full = 100.0 * share(*used, group.size);
        Reason {
            rule: "volume_group_full".into(),
            object: Some(group.object.clone()),
            text: format!("{} is {full:.0} % full", group.object.name),
            command: "selvage volume list".into(),
            points: 100.0 * share(*used, total),
        }
    });
    let share = share(sum(room.iter().map(|(_, used)| *used)), total);
    mark(CAPACITY, tenths_up(share), why.collect())
}

/// Percents of a share, rounded up to a tenth.
fn tenths_up(share: f64) -> f64 {
    (share * 1000.0).ceil() / 10.0
}

/// 100 less 10 for a warning, 25 for what does not work, 5 for a crash.
fn stability(problems: &[Problem]) -> Mark {
    let points = |problem: &Problem| match (problem.rule.as_str(), problem.severity()) {
        ("ceph_crash", _) => 5.0,
        (_, Severity::Warning) => 10.0,
        (_, Severity::Critical) => 25.0,
        (_, Severity::Ok | Severity::Notice) => 0.0,
    };
    let why: Vec<Reason> = problems
        .iter()
        .map(|problem| reason(problem, points(problem)))
        .filter(|reason| reason.points > 0.0)
        .collect();
    let lost: f64 = why.iter().map(|reason| reason.points).sum();
    mark(STABILITY, (100.0 - lost).max(0.0), why)
}
