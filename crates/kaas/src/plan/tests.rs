#![allow(clippy::unwrap_used)]
use super::*;
use crate::record::{AuthorityRecord, ControlPlane};

const NOW: Millis = 1_000_000;

fn versions(control_plane: &str, kubelet: &str) -> Versions {
    Versions { control_plane: control_plane.into(), kubelet: kubelet.into(), ..Versions::default() }
}

fn machine(name: &str, phase: Phase) -> Machine {
    let pool = name.rsplit_once('-').map_or("", |(pool, _)| pool);
    let pool = if pool == "cp" { "" } else { pool };
    let own = if pool.is_empty() { versions("1.35.8", "1.35.8") } else { versions("", "1.35.8") };
    let mut machine = Machine {
        cluster: "demo".into(),
        name: name.into(),
        pool: pool.into(),
        wanted: own.clone(),
        created_at: 1,
        ..Machine::default()
    };
    if phase.is_member() && phase != Phase::Bootstrapping {
        machine.running = own;
    }
    machine.enter(phase, "", NOW);
    machine
}

fn snapshot(control_plane: u32, pools: &[(&str, u32)], machines: Vec<Machine>) -> Snapshot {
    let pools = pools.iter().map(|(name, count)| Pool {
        cluster: "demo".into(),
        name: (*name).into(),
        count: *count,
        ..Pool::default()
    });
    let provisioned = machines.iter().any(|machine| machine.phase() == Phase::Ready);
    Snapshot {
        cluster: Cluster {
            name: "demo".into(),
            version: "1.35.8".into(),
            control_plane: ControlPlane { count: control_plane, ..ControlPlane::default() },
            provisioned,
            ..Cluster::default()
        },
        pools: pools.collect(),
        machines,
    }
}

fn actions(snapshot: &Snapshot) -> Vec<String> {
    let plan = plan(snapshot, &Policy::default(), NOW);
    plan.actions.iter().map(ToString::to_string).collect()
}

fn step(snapshot: &Snapshot, name: &str) -> Option<Step> {
    let plan = plan(snapshot, &Policy::default(), NOW);
    plan.actions.into_iter().find_map(|action| match action {
        Action::Step { machine, step } if machine == name => Some(step),
        _ => None,
    })
}

#[test]
fn a_new_cluster_asks_for_all_its_machines_at_once() {
    assert_eq!(
        actions(&snapshot(3, &[("a", 1)], Vec::new())),
        [
            "add a control-plane machine with Kubernetes 1.35.8",
            "add a control-plane machine with Kubernetes 1.35.8",
            "add a control-plane machine with Kubernetes 1.35.8",
            "add a machine to pool a with Kubernetes 1.35.8",
        ]
    );
}

#[test]
fn each_phase_has_its_next_step() {
    use Phase::*;
    let cases = [
        (Requested, Some(Step::Acquire)),
        (Allocated, Some(Step::Observe)),
        (Deploying, Some(Step::Observe)),
        (Booting, Some(Step::Configure)),
        (Bootstrapping, Some(Step::Configure)),
        (Joining, Some(Step::Join)),
        (Ready, None),
        (NotReady, None),
        (Cordoned, Some(Step::Drain)),
        (Draining, Some(Step::Drain)),
        (Upgrading, Some(Step::Configure)),
        (Failed, Some(Step::Release)),
        (Releasing, Some(Step::Release)),
    ];
    for (phase, expected) in cases {
        let machines = vec![machine("a-1", phase), machine("cp-1", Ready)];
        let snapshot = snapshot(1, &[("a", 1)], machines);
        assert_eq!(step(&snapshot, "a-1"), expected, "{phase:?}");
    }
}

#[test]
fn a_machine_that_goes_is_drained_before_it_leaves() {
    use Phase::*;
    let cases = [
        (Requested, Step::Release),
        (Allocated, Step::Release),
        (Booting, Step::Release),
        (Bootstrapping, Step::Leave),
        (Joining, Step::Leave),
        (Ready, Step::Cordon),
        (NotReady, Step::Cordon),
        (Upgrading, Step::Cordon),
        (Cordoned, Step::Drain),
        (Draining, Step::Drain),
        (Removing, Step::Leave),
        (Releasing, Step::Release),
        (Failed, Step::Release),
    ];
    for (phase, expected) in cases {
        let mut going = machine("a-1", phase);
        going.removing = true;
        let snapshot = snapshot(1, &[("a", 0)], vec![going, machine("cp-1", Ready)]);
        assert_eq!(step(&snapshot, "a-1"), Some(expected), "{phase:?}");
    }
}

#[test]
fn one_machine_founds_the_cluster_and_the_others_join_one_by_one() {
    use Phase::*;
    let three = |a, b, c| {
        let machines = vec![machine("cp-1", a), machine("cp-2", b), machine("cp-3", c)];
        let snapshot = snapshot(3, &[], machines);
        ["cp-1", "cp-2", "cp-3"].map(|name| step(&snapshot, name))
    };
    let configure = Some(Step::Configure);
    assert_eq!(three(Booting, Booting, Booting), [configure, None, None]);
    assert_eq!(three(Bootstrapping, Booting, Booting), [configure, None, None]);
    assert_eq!(three(Joining, Booting, Booting), [Some(Step::Join), None, None]);
    assert_eq!(three(Ready, Booting, Booting), [None, configure, None]);
    assert_eq!(three(Ready, Bootstrapping, Booting), [None, configure, None]);
    assert_eq!(three(Ready, Joining, Booting), [None, Some(Step::Join), None]);
    assert_eq!(three(Ready, Ready, Booting), [None, None, configure]);
    // The one that is slow does not keep the next from founding.
    assert_eq!(three(Deploying, Booting, Booting), [Some(Step::Observe), configure, None]);
}

#[test]
fn workers_wait_for_an_api() {
    use Phase::*;
    let worker = |phase| {
        let machines = vec![machine("a-1", Booting), machine("cp-1", phase)];
        step(&snapshot(1, &[("a", 1)], machines), "a-1")
    };
    assert_eq!(worker(Booting), None);
    assert_eq!(worker(Bootstrapping), None);
    assert_eq!(worker(Ready), Some(Step::Configure));
}

#[test]
fn marked_and_idle_machines_go_first_and_then_the_youngest() {
    let mut machines: Vec<Machine> =
        (1..=5).map(|n| machine(&format!("a-{n}"), Phase::Ready)).collect();
    machines.push(machine("cp-1", Phase::Ready));
    for (at, machine) in machines.iter_mut().enumerate() {
        machine.created_at = at as u64;
    }
    machines[0].delete_first = true;
    machines[1].enter(Phase::Booting, "", NOW);
    let removed = |count| {
        let actions = actions(&snapshot(1, &[("a", count)], machines.clone()));
        actions.into_iter().filter(|action| action.starts_with("remove")).collect::<Vec<_>>()
    };
    assert_eq!(removed(4), ["remove a-1"]);
    assert_eq!(removed(3), ["remove a-1", "remove a-2"]);
    assert_eq!(removed(2), ["remove a-1", "remove a-2", "remove a-5"]);
}

#[test]
fn an_upgrade_takes_the_control_plane_one_by_one_and_then_nodes() {
    let names = ["a-1", "a-2", "cp-1", "cp-2", "cp-3"];
    let machines = names.map(|name| machine(name, Phase::Ready)).into();
    let mut cluster = snapshot(3, &[("a", 2)], machines);
    cluster.cluster.version = "1.36.4".into();
    let snapshot = "take a snapshot of etcd before the upgrade to 1.36.4";
    assert_eq!(actions(&cluster), [snapshot]);
    // The last attempt failed: nothing is changed before there is one.
    cluster.cluster.backup_retry_at = NOW + 5;
    assert_eq!(actions(&cluster), Vec::<String>::new());
    assert_eq!(plan(&cluster, &Policy::default(), NOW).wake_at, Some(NOW + 5));
    cluster.cluster.backed_up_for = "1.36.4".into();
    let first = "upgrade cp-1 to control plane 1.36.4 and kubelet 1.35.8";
    assert_eq!(actions(&cluster), [first]);
    for (at, name) in [(2, "cp-1"), (3, "cp-2"), (4, "cp-3")] {
        assert_eq!(actions(&cluster).len(), 1, "{name}");
        cluster.machines[at].wanted = versions("1.36.4", "1.35.8");
        assert_eq!(actions(&cluster), [format!("start Kubernetes on {name}")]);
        cluster.machines[at].running = versions("1.36.4", "1.35.8");
    }
    assert_eq!(
        actions(&cluster),
        [
            "upgrade cp-1 to control plane 1.36.4 and kubelet 1.36.4",
            "upgrade a-1 to kubelet 1.36.4",
        ]
    );
    cluster.machines[0].wanted = versions("", "1.36.4");
    cluster.machines[2].wanted = versions("1.36.4", "1.36.4");
    // Their pods go elsewhere first, and the next waits.
    assert_eq!(actions(&cluster), ["cordon a-1", "cordon cp-1"]);
}

#[test]
fn a_longer_upgrade_takes_the_control_plane_through_each_minor_and_nodes_at_its_end() {
    let names = ["a-1", "cp-1", "cp-2", "cp-3"];
    let machines = names.map(|name| machine(name, Phase::Ready)).into();
    let mut cluster = snapshot(3, &[("a", 1)], machines);
    cluster.cluster.set_target("1.37.1".into(), vec!["1.36.4".into()], false);
    for (version, planes) in [("1.36.4", 1..4), ("1.37.1", 1..4)] {
        let backup = format!("take a snapshot of etcd before the upgrade to {version}");
        assert_eq!(actions(&cluster), [backup]);
        cluster.cluster.backed_up_for = version.into();
        for at in planes {
            let name = cluster.machines[at].name.clone();
            let next = format!("upgrade {name} to control plane {version} and kubelet 1.35.8");
            assert_eq!(actions(&cluster), [next]);
            cluster.machines[at].wanted = versions(version, "1.35.8");
            assert_eq!(actions(&cluster), [format!("start Kubernetes on {name}")]);
            cluster.machines[at].running = cluster.machines[at].wanted.clone();
        }
    }
    assert_eq!(
        actions(&cluster),
        [
            "upgrade cp-1 to control plane 1.37.1 and kubelet 1.37.1",
            "upgrade a-1 to kubelet 1.37.1",
        ]
    );
}

#[test]
fn a_control_plane_that_comes_late_takes_the_same_way() {
    let machines: Vec<Machine> =
        ["cp-1", "cp-2", "cp-3"].map(|name| machine(name, Phase::Ready)).into();
    let mut cluster = snapshot(3, &[], machines);
    cluster.cluster.set_target("1.37.1".into(), vec!["1.36.4".into()], false);
    cluster.cluster.backed_up_for = "1.36.4".into();
    for at in [0, 1] {
        cluster.machines[at].wanted = versions("1.36.4", "1.35.8");
        cluster.machines[at].running = cluster.machines[at].wanted.clone();
    }
    // The third one came with the version of the oldest, and nobody goes on without it.
    let next = "upgrade cp-3 to control plane 1.36.4 and kubelet 1.35.8";
    assert_eq!(actions(&cluster), [next]);
    cluster.machines[2] = machine("cp-3", Phase::Booting);
    assert!(actions(&cluster).iter().all(|action| !action.contains("1.37.1")));
}

#[test]
fn an_upgrade_waits_for_a_control_plane_that_is_not_whole() {
    let machines = vec![
        machine("cp-1", Phase::Ready),
        machine("cp-2", Phase::Ready),
        machine("cp-3", Phase::NotReady),
    ];
    let mut cluster = snapshot(3, &[], machines);
    cluster.cluster.version = "1.36.4".into();
    assert_eq!(actions(&cluster), Vec::<String>::new());
}

#[test]
fn machines_that_come_during_an_upgrade_are_not_ahead_of_it() {
    let mut machines: Vec<Machine> =
        ["cp-1", "cp-2", "cp-3"].map(|name| machine(name, Phase::Ready)).into();
    machines[0].wanted = versions("1.36.4", "1.35.8");
    machines[0].running = machines[0].wanted.clone();
    let mut cluster = snapshot(3, &[("a", 1)], machines);
    cluster.cluster.version = "1.36.4".into();
    assert!(actions(&cluster).contains(&"add a machine to pool a with Kubernetes 1.35.8".into()));
}

#[test]
fn a_lone_node_is_upgraded_without_a_drain() {
    let mut alone = machine("cp-1", Phase::Ready);
    alone.wanted = versions("1.36.4", "1.36.4");
    alone.running = versions("1.36.4", "1.35.8");
    let mut cluster = snapshot(1, &[], vec![alone]);
    cluster.cluster.version = "1.36.4".into();
    assert_eq!(step(&cluster, "cp-1"), Some(Step::Configure));
}

#[test]
fn a_machine_that_takes_too_long_is_given_up() {
    let mut slow = machine("a-1", Phase::Deploying);
    slow.since = 0;
    let cluster = snapshot(1, &[("a", 1)], vec![slow, machine("cp-1", Phase::Ready)]);
    let policy = Policy { step_timeout: Duration::from_secs(60), ..Policy::default() };
    let late = plan(&cluster, &policy, 60_000).actions;
    assert_eq!(late, [Action::Step { machine: "a-1".into(), step: Step::Fail }]);
    let early = plan(&cluster, &policy, 59_999);
    assert_eq!(early.actions, [Action::Step { machine: "a-1".into(), step: Step::Observe }]);
    assert_eq!(early.wake_at, Some(60_000));
}

#[test]
fn what_failed_is_tried_again_in_its_time() {
    let mut waiting = machine("cp-1", Phase::Requested);
    waiting.retry_at = NOW + 5;
    let plan = plan(&snapshot(1, &[], vec![waiting]), &Policy::default(), NOW);
    assert_eq!((plan.actions.len(), plan.wake_at), (0, Some(NOW + 5)));
}

#[test]
fn deletion_releases_everything_at_once_and_ends_with_the_records() {
    let machines = vec![machine("a-1", Phase::Requested), machine("cp-1", Phase::Ready)];
    let mut cluster = snapshot(1, &[("a", 1)], machines);
    cluster.cluster.deleting = true;
    cluster.cluster.paused = true;
    assert_eq!(actions(&cluster), ["wipe a-1 and give it back", "wipe cp-1 and give it back"]);
    cluster.machines.clear();
    assert_eq!(actions(&cluster), ["forget the cluster and its keys"]);
}

#[test]
fn a_paused_cluster_is_left_alone() {
    let mut cluster = snapshot(3, &[("a", 5)], vec![machine("a-1", Phase::Requested)]);
    cluster.cluster.paused = true;
    assert_eq!(plan(&cluster, &Policy::default(), NOW), Plan::default());
}

#[test]
fn a_pool_goes_when_its_last_machine_has_gone() {
    let mut cluster = snapshot(1, &[("a", 1)], vec![machine("cp-1", Phase::Ready)]);
    cluster.pools[0].deleting = true;
    assert_eq!(actions(&cluster), ["forget pool a"]);
    cluster.machines.insert(0, machine("a-1", Phase::Ready));
    assert_eq!(actions(&cluster)[0], "remove a-1");
}

#[test]
fn a_preview_goes_to_the_end() {
    let all = preview(snapshot(1, &[("a", 1)], Vec::new()), &Policy::default(), NOW);
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(all.len(), 10, "{all:#?}");
    assert_eq!(all.last().unwrap(), "wait until node a-2 is ready, and label it");
    let mut gone = snapshot(1, &[("a", 1)], vec![machine("cp-1", Phase::Ready)]);
    gone.cluster.deleting = true;
    let end = preview(gone, &Policy::default(), NOW);
    assert_eq!(end.last(), Some(&Action::Finish));
}

#[test]
fn a_restored_cluster_begins_with_other_machines_at_the_version_of_the_snapshot() {
    let mut machines: Vec<Machine> = ["a-1", "cp-1"].map(|name| machine(name, Phase::Ready)).into();
    machines[0].running = versions("", "1.36.4");
    machines[1].running = versions("1.36.4", "1.36.4");
    let mut cluster = snapshot(1, &[("a", 1)], machines);
    (cluster.cluster.restored_at, cluster.cluster.provisioned) = (500, false);
    assert_eq!(
        actions(&cluster)[..4],
        [
            "remove a-1",
            "remove cp-1",
            "add a control-plane machine with Kubernetes 1.35.8",
            "add a machine to pool a with Kubernetes 1.35.8",
        ]
    );
    // The new one starts etcd only when the old one is gone: there are never two.
    cluster.machines.iter_mut().for_each(|machine| machine.removing = true);
    let mut fresh = machine("cp-2", Phase::Booting);
    fresh.created_at = 500;
    cluster.machines.push(fresh);
    assert_eq!(step(&cluster, "cp-1"), Some(Step::Release));
    assert_eq!(step(&cluster, "cp-2"), None);
    cluster.machines.remove(1);
    assert_eq!(step(&cluster, "cp-2"), Some(Step::Configure));
}

/// Machines by name; those that end in `!` are dead for as long as it takes.
fn with_dead(control_plane: u32, pool: u32, names: &[&str]) -> Snapshot {
    let of = |name: &&str| {
        let dead = name.ends_with('!');
        let phase = if dead { Phase::NotReady } else { Phase::Ready };
        let mut machine = machine(name.trim_end_matches('!'), phase);
        (machine.since, machine.lost_since) = (1, u64::from(dead));
        machine
    };
    snapshot(control_plane, &[("a", pool)], names.iter().map(of).collect())
}

#[test]
fn dead_machines_are_replaced_one_at_a_time_and_never_a_majority() {
    let cases: [(u32, u32, &[&str], Option<&str>); 8] = [
        (1, 2, &["a-1!", "a-2", "cp-1"], Some("a-1")),
        (1, 2, &["a-1!", "a-2!", "cp-1"], Some("a-1")),
        // Without an API nothing is known.
        (1, 1, &["a-1!", "cp-1!"], None),
        // The only one has the only copy.
        (1, 0, &["cp-1!"], None),
        (3, 0, &["cp-1!", "cp-2", "cp-3"], Some("cp-1")),
        (3, 0, &["cp-1!", "cp-2!", "cp-3"], None),
        (5, 0, &["cp-1!", "cp-2!", "cp-3", "cp-4", "cp-5"], Some("cp-1")),
        (5, 0, &["cp-1!", "cp-2!", "cp-3!", "cp-4", "cp-5"], None),
    ];
    for (control_plane, pool, names, expected) in cases {
        let replaced: Vec<String> = actions(&with_dead(control_plane, pool, names))
            .into_iter()
            .filter(|action| action.starts_with("replace"))
            .collect();
        let expected: Vec<String> =
            expected.iter().map(|name| format!("replace {name}, which is dead")).collect();
        assert_eq!(replaced, expected, "{names:?}");
    }
}

#[test]
fn a_dead_machine_has_its_time_and_waits_for_others() {
    let replaces =
        |cluster: &Snapshot| actions(cluster).iter().any(|action| action.starts_with("replace"));
    let dead = with_dead(1, 2, &["a-1!", "a-2", "cp-1"]);
    assert!(replaces(&dead));
    let mut young = dead.clone();
    young.machines[0].lost_since = NOW - 1000;
    assert!(!replaces(&young));
    let wake = plan(&young, &Policy::default(), NOW).wake_at;
    assert_eq!(wake, Some(NOW - 1000 + 10 * 60 * 1000));
    let mut answers = dead.clone();
    answers.machines[0].lost_since = 0;
    assert!(!replaces(&answers), "a node is repaired where the machine is there");
    for phase in [Phase::Joining, Phase::Removing] {
        let mut busy = dead.clone();
        busy.machines[1].enter(phase, "", NOW);
        busy.machines[1].removing = phase == Phase::Removing;
        assert!(!replaces(&busy), "{phase:?}");
    }
    let never = Policy { remediate_after: Duration::ZERO, ..Policy::default() };
    assert!(plan(&dead, &never, NOW).actions.is_empty());
}

#[test]
fn workers_hibernate_first_and_wake_last() {
    let ready = |name| machine(name, Phase::Ready);
    let asleep = |name| machine(name, Phase::Hibernated);
    let mut sleeping = snapshot(1, &[("a", 2)], vec![ready("a-1"), asleep("a-2"), ready("cp-1")]);
    sleeping.cluster.hibernated = true;
    assert_eq!(actions(&sleeping), ["stop Kubernetes on a-1 and keep its data"]);
    sleeping.machines[0] = asleep("a-1");
    assert_eq!(actions(&sleeping), ["stop Kubernetes on cp-1 and keep its data"]);
    sleeping.machines[2] = asleep("cp-1");
    assert_eq!(actions(&sleeping), [] as [&str; 0]);
    sleeping.cluster.hibernated = false;
    assert_eq!(actions(&sleeping), ["start Kubernetes on cp-1 again"]);
    sleeping.machines[2] = machine("cp-1", Phase::Joining);
    assert_eq!(step(&sleeping, "a-1"), Some(Step::Wake));
    sleeping.cluster.deleting = true;
    assert_eq!(step(&sleeping, "a-1"), Some(Step::Release));
}

#[test]
fn authorities_change_one_control_plane_at_a_time_and_stage_by_stage() {
    let ready = |name| machine(name, Phase::Ready);
    let all = vec![ready("a-1"), ready("a-2"), ready("cp-1"), ready("cp-2"), ready("cp-3")];
    let mut rotating = snapshot(3, &[("a", 2)], all);
    rotating.cluster.authorities = AuthorityRecord { generation: 0, stage: 1, target: 3 };
    let change = |name: &str| format!("change certificates and trusted authorities of {name}");
    assert_eq!(actions(&rotating), [change("cp-1")]);
    rotating.machines[2].wanted.authority_stage = 1;
    assert_eq!(actions(&rotating), ["start Kubernetes on cp-1"]);
    for at in 2..5 {
        rotating.machines[at].wanted.authority_stage = 1;
        rotating.machines[at].running.authority_stage = 1;
    }
    assert_eq!(actions(&rotating), [change("a-1")], "one of a pool");
    for machine in &mut rotating.machines {
        machine.wanted.authority_stage = 1;
        machine.running.authority_stage = 1;
    }
    assert_eq!(actions(&rotating), ["sign certificates by the new authorities"]);
    // One that is dead holds everything up: it would be cut off.
    rotating.machines[0] = machine("a-1", Phase::NotReady);
    assert_eq!(actions(&rotating), [] as [&str; 0]);
}

#[test]
fn a_rotation_comes_to_its_end_and_skips_nothing() {
    let ready = |name| machine(name, Phase::Ready);
    let mut rotating = snapshot(1, &[("a", 1)], vec![ready("a-1"), ready("cp-1")]);
    rotating.cluster.authorities = AuthorityRecord { generation: 0, stage: 1, target: 3 };
    let all = preview(rotating, &Policy::default(), NOW);
    let stages: Vec<String> = all
        .iter()
        .filter(|action| !matches!(action, Action::Step { .. } | Action::SetMachineStage { .. }))
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        stages,
        [
            "sign certificates by the new authorities",
            "trust the new certificate authorities alone",
            "forget the old certificate authorities",
        ]
    );
    let changes = all.iter().filter(|a| matches!(a, Action::SetMachineStage { .. })).count();
    assert_eq!(changes, 6, "two machines, three stages");
}

#[test]
fn a_drain_has_a_deadline_of_its_own() {
    let mut going = machine("a-1", Phase::Draining);
    going.removing = true;
    let mut draining = snapshot(1, &[("a", 0)], vec![going, machine("cp-1", Phase::Ready)]);
    assert_eq!(step(&draining, "a-1"), Some(Step::Drain));
    let hour = 3600 * 1000;
    draining.machines[0].since = NOW.saturating_sub(hour);
    let late = |policy: &Policy| {
        let plan = plan(&draining, policy, NOW + hour);
        plan.actions.iter().any(|a| matches!(a, Action::Step { step: Step::ForceDrain, .. }))
    };
    assert!(late(&Policy::default()));
    assert!(!late(&Policy { drain_timeout: Duration::ZERO, ..Policy::default() }));
}
