#![allow(clippy::unwrap_used)]
use selvage_api::cnct::kaas::api::ClusterStatus::*;

use super::*;
use crate::record::{Cluster, ControlPlane, Pool, Versions};

const NOW: Millis = 10_000_000;

fn machine(name: &str, pool: &str, phase: Phase) -> Machine {
    let mut machine =
        Machine { name: name.into(), pool: pool.into(), created_at: NOW, ..Machine::default() };
    let control_plane = if pool.is_empty() { "1.35.8" } else { "" };
    machine.wanted = Versions {
        control_plane: control_plane.into(),
        kubelet: "1.35.8".into(),
        ..Versions::default()
    };
    if matches!(phase, Phase::Ready | Phase::NotReady) {
        machine.running = machine.wanted.clone();
    }
    machine.enter(phase, "", NOW);
    machine
}

fn cluster(machines: Vec<Machine>) -> Snapshot {
    let provisioned = machines.iter().any(|m| matches!(m.phase(), Phase::Ready | Phase::NotReady));
    Snapshot {
        cluster: Cluster {
            name: "demo".into(),
            version: "1.35.8".into(),
            control_plane: ControlPlane { count: 1, ..ControlPlane::default() },
            provisioned,
            ..Cluster::default()
        },
        pools: vec![Pool { name: "a".into(), count: 1, ..Pool::default() }],
        machines,
    }
}

fn both(control_plane: Phase, worker: Phase) -> Snapshot {
    cluster(vec![machine("a-1", "a", worker), machine("cp-1", "", control_plane)])
}

fn status_of(snapshot: &Snapshot) -> ClusterStatus {
    status(&evaluate(snapshot, NOW))
}

#[test]
fn status_follows_from_conditions_alone() {
    use Phase::*;
    let cases = [
        (both(Requested, Requested), Provisioning),
        (both(Bootstrapping, Booting), Provisioning),
        (both(Ready, Booting), Reconciling),
        (both(Ready, Ready), Running),
        (both(Ready, NotReady), Degraded),
        (both(NotReady, Ready), Error),
        (both(Ready, Draining), Reconciling),
    ];
    for (at, (mut snapshot, expected)) in cases.into_iter().enumerate() {
        if let Some(machine) = snapshot.machines.iter_mut().find(|m| m.phase() == Draining) {
            machine.cordoned = true;
        }
        assert_eq!(status_of(&snapshot), expected, "case {at}");
        snapshot.cluster.deleting = true;
        assert_eq!(status_of(&snapshot), Stopping, "case {at}");
    }
    assert_eq!(status(&[]), StatusUnspecified);
}

#[test]
fn three_failures_before_the_first_answer_are_an_error() {
    let mut failing = both(Phase::Requested, Phase::Requested);
    failing.cluster.failures = 2;
    assert_eq!(status_of(&failing), Provisioning);
    failing.cluster.failures = 3;
    failing.cluster.last_failure = "no image".into();
    assert_eq!(status_of(&failing), Error);
    assert_eq!(message(&failing, NOW), "3 machines in a row did not come up: no image.");
}

#[test]
fn an_upgrade_is_work_until_the_last_node_has_the_version() {
    let mut snapshot = both(Phase::Ready, Phase::Ready);
    snapshot.cluster.version = "1.36.4".into();
    assert_eq!(status_of(&snapshot), Reconciling);
    let upgrade = evaluate(&snapshot, NOW);
    assert!(upgrade.iter().any(|c| c.kind == PROGRESSING && c.reason == "Upgrade"));
    for machine in &mut snapshot.machines {
        machine.running.kubelet = "1.36.4".into();
        if machine.pool.is_empty() {
            machine.running.control_plane = "1.36.4".into();
        }
        machine.wanted = machine.running.clone();
    }
    assert_eq!(status_of(&snapshot), Running);
}

#[test]
fn a_machine_that_cannot_be_had_is_work_at_first_and_then_a_lack() {
    let mut snapshot = both(Phase::Ready, Phase::Requested);
    snapshot.machines[0].reason = "no machine is free".into();
    assert_eq!(status_of(&snapshot), Reconciling);
    snapshot.machines[0].since = NOW - STUCK_AFTER - 1;
    assert_eq!(status_of(&snapshot), Degraded);
}

#[test]
fn a_slow_machine_is_work_as_long_as_it_comes_from_phase_to_phase() {
    let mut snapshot = both(Phase::Ready, Phase::Joining);
    let worker = &mut snapshot.machines[0];
    (worker.reason, worker.created_at) = ("the node is not ready".into(), NOW - 10 * STUCK_AFTER);
    assert_eq!(status_of(&snapshot), Reconciling, "it came to this phase just now");
    snapshot.machines[0].since = NOW - STUCK_AFTER - 1;
    assert_eq!(status_of(&snapshot), Degraded, "it is not as asked for");
    let degraded = evaluate(&snapshot, NOW).into_iter().find(|c| c.kind == DEGRADED).unwrap();
    assert_eq!(degraded.message, "a-1 is Joining for long: the node is not ready.");
}

#[test]
fn a_message_says_what_is_waited_for_and_since_when() {
    let mut snapshot = both(Phase::Deploying, Phase::Requested);
    snapshot.machines[1].since = NOW - 4 * 60_000;
    snapshot.machines[1].reason = "installing".into();
    assert_eq!(
        message(&snapshot, NOW),
        "0/1 control-plane machines are ready; waiting for cp-1 (Deploying 4m: installing)."
    );
    let running = both(Phase::Ready, Phase::Ready);
    assert_eq!(message(&running, NOW), "");
    let pool = both(Phase::Ready, Phase::Joining);
    let expected = "0/1 pool a machines are ready; waiting for a-1 (Joining 0s).";
    assert_eq!(message(&pool, NOW), expected);
    let mut stopping = pool;
    stopping.cluster.deleting = true;
    assert!(message(&stopping, NOW).starts_with("Deleting; 2 machines to be given back"));
}

#[test]
fn a_message_says_since_when_also_where_nothing_is_waited_for() {
    let told = |mut snapshot: Snapshot| {
        snapshot.cluster.conditions = evaluate(&snapshot, NOW);
        message(&snapshot, NOW + 4 * 60_000)
    };
    let mut down = both(Phase::NotReady, Phase::Ready);
    down.machines[1].reason = "refused".into();
    assert_eq!(told(down), "The control plane does not answer: refused (for 4m).");
    let mut failing = both(Phase::Ready, Phase::Ready);
    failing.cluster.failures = 1;
    failing.cluster.last_failure = "no image".into();
    assert_eq!(told(failing), "The last machine did not come up: no image (for 4m).");
    let mut paused = both(Phase::Ready, Phase::Ready);
    (paused.cluster.paused, paused.cluster.paused_at) = (true, NOW);
    let expected = "Paused for 4m: nothing is changed until the cluster is resumed.";
    assert_eq!(told(paused), expected);
}

#[test]
fn a_pause_does_not_hide_what_is_left_to_do() {
    let mut paused = both(Phase::Ready, Phase::Ready);
    paused.cluster.paused = true;
    assert_eq!(status_of(&paused), Running);
    paused.cluster.version = "1.36.4".into();
    assert_eq!(status_of(&paused), Reconciling);
    paused.cluster.version = "1.35.8".into();
    paused.pools[0].count = 2;
    assert_eq!(status_of(&paused), Reconciling);
}

#[test]
fn conditions_keep_the_time_of_their_last_change() {
    let mut snapshot = both(Phase::Ready, Phase::Ready);
    snapshot.cluster.conditions = evaluate(&snapshot, NOW);
    let later = evaluate(&snapshot, NOW + 1000);
    assert!(later.iter().all(|condition| condition.since == NOW));
    snapshot.machines[0].enter(Phase::NotReady, "gone", NOW + 500);
    let changed = evaluate(&snapshot, NOW + 1000);
    let since = |kind: &str| changed.iter().find(|c| c.kind == kind).unwrap().since;
    assert_eq!((since(DEGRADED), since(CONTROL_PLANE_READY)), (NOW + 1000, NOW));
}
