//! Upgrades that are safe to begin, snapshots, and machines that die.

use std::time::Duration;

use selvage_api::cnct::kaas::api::DeleteNodePoolMsg;
use selvage_kaas::{
    Error,
    record::{Backup, BackupTrigger, Machine, Phase},
};
use selvage_store::clock::Clock;

use super::lab::{Lab, admin, developer};

fn machines(lab: &Lab, name: &str) -> Vec<Machine> {
    lab.manager.find(name).unwrap().machines
}

fn of_pool(lab: &Lab, pool: &str) -> Machine {
    machines(lab, "demo").into_iter().find(|machine| machine.pool == pool).unwrap()
}

#[tokio::test]
async fn an_upgrade_is_refused_with_all_its_reasons() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let node = of_pool(&lab, "a").name;
    lab.sim.change_node("demo", &node, true, 2, false);
    let guarded = lab.upgrade("demo", "1.36.4").await.unwrap_err();
    assert!(matches!(guarded, Error::Precondition(_)));
    assert!(guarded.to_string().contains(&format!("2 pods of {node} may not go")), "{guarded}");
    lab.sim.change_node("demo", &node, false, 0, false);
    lab.manager.check_soon("demo");
    lab.manager.reconcile("demo").await.unwrap();
    let sick = lab.upgrade("demo", "1.36.4").await.unwrap_err().to_string();
    assert!(sick.contains("is DEGRADED") && sick.contains(&node), "{sick}");
}

#[tokio::test]
async fn an_upgrade_begins_with_a_snapshot_and_waits_for_it() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.upgrade("demo", "1.36.4").await.unwrap();
    // The snapshot is the first call of an upgrade.
    lab.sim.fault(1, selvage_kaas::provider::sim::Fault::Refuse);
    lab.manager.reconcile("demo").await.unwrap();
    let waits = lab.manager.find("demo").unwrap();
    assert!(waits.machines.iter().all(|machine| machine.wanted == machine.running));
    let message = lab.manager.message(&waits);
    assert!(message.contains("waiting for a snapshot: ") && message.contains("reset"), "{message}");
    lab.settle("demo").await;
    let snapshot = lab.manager.find("demo").unwrap();
    assert!(snapshot.machines.iter().all(|machine| machine.running.kubelet == "1.36.4"));
    let backups = lab.manager.backups(&admin(), "demo");
    assert_eq!(backups.len(), 1);
    assert_eq!(
        (backups[0].occasion(), backups[0].version.as_str()),
        (BackupTrigger::Upgrade, "1.35.8")
    );
    assert_eq!(backups[0].reason, "before the upgrade to 1.36.4");
}

#[tokio::test]
async fn an_upgrade_is_aborted_until_a_control_plane_began() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let none = lab.manager.abort_upgrade(&admin(), "demo").await.unwrap_err();
    assert!(none.to_string().contains("has no upgrade"), "{none}");
    lab.upgrade("demo", "1.36.4").await.unwrap();
    lab.manager.pause(&admin(), "demo", true).await.unwrap();
    lab.manager.reconcile("demo").await.unwrap();
    let aborted = lab.manager.abort_upgrade(&admin(), "demo").await.unwrap();
    assert_eq!(aborted.cluster.version, "1.35.8");
    lab.manager.pause(&admin(), "demo", false).await.unwrap();
    lab.settle("demo").await;
    assert!(machines(&lab, "demo").iter().all(|machine| machine.running.kubelet == "1.35.8"));
    assert_eq!(lab.status("demo"), "RUNNING");

    lab.upgrade("demo", "1.36.4").await.unwrap();
    // The snapshot, and the first step of the control plane.
    lab.sim.fault(2, selvage_kaas::provider::sim::Fault::Refuse);
    lab.manager.reconcile("demo").await.unwrap();
    let late = lab.manager.abort_upgrade(&admin(), "demo").await.unwrap_err().to_string();
    assert!(late.contains("has begun with 1.36.4") && late.contains("restored"), "{late}");
    lab.settle("demo").await;
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
}

#[tokio::test]
async fn snapshots_are_taken_on_schedule_and_the_oldest_go() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let settings = lab.manager.settings().clone();
    let asked = lab.manager.backup(&admin(), "demo").await.unwrap();
    for _ in 0..settings.snapshot_keep + 3 {
        lab.clock.advance(settings.snapshot_interval);
        lab.manager.reconcile("demo").await.unwrap();
        // Once each time.
        lab.manager.reconcile("demo").await.unwrap();
    }
    let backups = lab.manager.backups(&admin(), "");
    assert_eq!(backups.len(), settings.snapshot_keep + 1);
    assert!(backups.iter().any(|backup| backup.id == asked.id), "others stay");
    let last = backups.last().unwrap();
    assert_eq!((last.occasion(), last.taken_at), (BackupTrigger::Schedule, lab.clock.now()));
    assert_eq!(lab.stored().await.len(), backups.len(), "a snapshot for each");

    lab.manager.delete_backup(&admin(), &asked.id).await.unwrap();
    let left = lab.stored().await;
    assert!(left.len() == backups.len() - 1 && !left.contains(&asked.id), "{left:?}");
    let gone = lab.manager.delete_backup(&admin(), &asked.id).await.unwrap_err();
    assert!(matches!(gone, Error::BackupNotFound(_)));
}

#[tokio::test]
async fn a_cluster_that_is_gone_comes_back_with_its_keys() {
    let mut lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 2)]).await;
    let authority = lab.authority("demo").await;
    let backup = lab.manager.backup(&admin(), "demo").await.unwrap();
    lab.manager.delete(&admin(), "demo").await.unwrap();
    lab.settle("demo").await;
    lab.restart().await;
    let stranger = lab.manager.restore(&developer("other"), &backup.id, "").await.unwrap_err();
    assert!(matches!(stranger, Error::BackupNotFound(_)));

    lab.manager.restore(&admin(), &backup.id, "").await.unwrap();
    lab.settle("demo").await;
    assert_eq!((lab.status("demo").as_str(), machines(&lab, "demo").len()), ("RUNNING", 5));
    assert_eq!(lab.authority("demo").await, authority);
    lab.manager.restore(&admin(), &backup.id, "copy").await.unwrap();
    lab.settle("copy").await;
    assert_eq!(lab.authority("copy").await, authority);
    let exists = lab.manager.restore(&admin(), &backup.id, "copy").await.unwrap_err();
    assert!(matches!(exists, Error::ClusterExists(_)), "{exists}");
    assert_eq!(lab.sim.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn another_controller_makes_a_cluster_of_what_is_in_the_repository() {
    let lab = Lab::new().await;
    let other = lab.beside().await;
    // There is no repository before somebody needs one.
    other.manager.tend_backups().await.unwrap();
    assert!(!lab.folder.path().join("repository").exists());
    lab.running("demo", 1, &[("a", 1)]).await;
    let authority = lab.authority("demo").await;
    let backup = lab.manager.backup(&admin(), "demo").await.unwrap();

    for _ in 0..2 {
        other.manager.tend_backups().await.unwrap();
    }
    let found = other.manager.backups(&admin(), "demo");
    assert_eq!(found.len(), 1);
    let same = Backup { sealed_keys: backup.sealed_keys.clone(), ..found[0].clone() };
    assert_eq!(same, backup);
    other.manager.restore(&admin(), &backup.id, "").await.unwrap();
    other.settle("demo").await;
    assert_eq!((other.status("demo").as_str(), machines(&other, "demo").len()), ("RUNNING", 2));
    assert_eq!(other.authority("demo").await, authority);

    // One that is removed there is not restored here, and is forgotten in time.
    other.manager.delete_backup(&admin(), &backup.id).await.unwrap();
    let gone = lab.manager.restore(&admin(), &backup.id, "").await.unwrap_err();
    assert!(matches!(&gone, Error::Precondition(text) if text.contains("not in the repository")));
    assert_eq!(lab.status("demo"), "RUNNING", "nothing was given back for it");
    lab.manager.tend_backups().await.unwrap();
    assert_eq!(lab.manager.backups(&admin(), "").len(), 1, "it may be on its way");
    lab.clock.advance(Duration::from_secs(2 * 3600));
    lab.manager.tend_backups().await.unwrap();
    assert!(lab.manager.backups(&admin(), "").is_empty());
}

#[tokio::test]
async fn a_cluster_is_restored_in_place_on_other_machines() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 1)]).await;
    let backup = lab.manager.backup(&admin(), "demo").await.unwrap();
    lab.upgrade("demo", "1.36.4").await.unwrap();
    lab.settle("demo").await;
    let before: Vec<String> = machines(&lab, "demo").into_iter().map(|m| m.name).collect();
    lab.clock.advance(Duration::from_secs(1));
    lab.manager.restore(&admin(), &backup.id, "").await.unwrap();
    assert_eq!(lab.status("demo"), "PROVISIONING");
    lab.settle("demo").await;
    let after = machines(&lab, "demo");
    assert_eq!((after.len(), lab.sim.owned(), lab.status("demo").as_str()), (4, 4, "RUNNING"));
    assert!(after.iter().all(|m| !before.contains(&m.name) && m.running.kubelet == "1.35.8"));
    assert_eq!(lab.sim.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_dead_worker_is_replaced_and_a_dead_control_plane_too() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 2)]).await;
    for pool in ["a", ""] {
        let dead = of_pool(&lab, pool).name;
        lab.sim.lose("demo", &dead);
        lab.manager.check_soon("demo");
        lab.manager.reconcile("demo").await.unwrap();
        assert_eq!(lab.status("demo"), "DEGRADED");
        // It has its time.
        assert!(machines(&lab, "demo").iter().any(|machine| machine.name == dead));
        lab.settle("demo").await;
        let after = machines(&lab, "demo");
        assert!(after.iter().all(|machine| machine.name != dead));
        assert!(after.len() == 5 && after.iter().all(|m| m.phase() == Phase::Ready), "{after:?}");
        assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    }
}

#[tokio::test]
async fn a_dead_machine_stays_where_no_other_can_be_had() {
    let lab = Lab::new().await;
    lab.sim.limit("", 2);
    lab.running("demo", 1, &[("a", 1)]).await;
    let dead = of_pool(&lab, "a").name;
    lab.sim.lose("demo", &dead);
    lab.manager.check_soon("demo");
    for _ in 0..5 {
        lab.clock.advance(lab.manager.settings().policy.remediate_after);
        lab.manager.reconcile("demo").await.unwrap();
    }
    let stays = of_pool(&lab, "a");
    assert_eq!((stays.name.as_str(), stays.phase()), (dead.as_str(), Phase::NotReady));
    assert!(stays.reason.contains("no other machine is free"), "{}", stays.reason);
    lab.sim.limit("", 3);
    lab.settle("demo").await;
    assert_ne!(of_pool(&lab, "a").name, dead);
    assert_eq!(lab.status("demo"), "RUNNING");
}

#[tokio::test]
async fn a_cluster_hibernates_wakes_and_is_left_alone_in_between() {
    let mut lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 2)]).await;
    let stranger = lab.manager.hibernate(&developer("other"), "demo").await.unwrap_err();
    assert!(matches!(stranger, Error::ClusterNotFound(_)), "{stranger}");
    lab.manager.hibernate(&admin(), "demo").await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    lab.settle("demo").await;
    assert!(machines(&lab, "demo").iter().all(|machine| machine.phase() == Phase::Hibernated));
    assert_eq!(lab.status("demo"), "DEGRADED");
    let message = lab.manager.message(&lab.manager.find("demo").unwrap());
    assert!(message.contains("selvage kaas wake demo"), "{message}");
    // Neither time nor another process changes anything.
    lab.restart().await;
    let calls = lab.sim.calls();
    for _ in 0..30 {
        lab.clock.advance(Duration::from_secs(600));
        lab.manager.reconcile("demo").await.unwrap();
    }
    assert_eq!((lab.sim.calls(), lab.status("demo").as_str()), (calls, "DEGRADED"));
    for refused in [
        lab.scale("demo", "a", 3).await.unwrap_err(),
        lab.upgrade("demo", "1.36.4").await.unwrap_err(),
        lab.manager.backup(&admin(), "demo").await.unwrap_err(),
        lab.manager.rotate(&admin(), "demo").await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("wake it first"), "{refused}");
    }
    lab.manager.wake(&admin(), "demo").await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    lab.settle("demo").await;
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    // One that sleeps is deleted like any other.
    lab.manager.hibernate(&admin(), "demo").await.unwrap();
    lab.settle("demo").await;
    lab.manager.delete(&admin(), "demo").await.unwrap();
    lab.settle("demo").await;
    assert_eq!((lab.sim.owned(), lab.sim.violations()), (0, Vec::new()));
}

#[tokio::test]
async fn authorities_are_replaced_and_the_old_ones_forgotten() {
    let mut lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 2)]).await;
    let before = lab.authority("demo").await;
    lab.manager.rotate(&admin(), "demo").await.unwrap();
    // Asked for twice it happens once.
    lab.manager.rotate(&admin(), "demo").await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    lab.restart().await;
    lab.settle("demo").await;
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    let after = lab.authority("demo").await;
    assert_ne!(after, before);
    let snapshot = lab.manager.find("demo").unwrap();
    assert_eq!(
        (snapshot.cluster.authorities.generation, snapshot.cluster.authorities.stage),
        (1, 3)
    );
    assert!(snapshot.machines.iter().all(|machine| machine.running.authority_stage == 3));
    // Machines that come later begin where the others are, also in a copy.
    lab.scale("demo", "a", 3).await.unwrap();
    lab.settle("demo").await;
    let backup = lab.manager.backup(&admin(), "demo").await.unwrap();
    lab.manager.restore(&admin(), &backup.id, "copy").await.unwrap();
    lab.settle("copy").await;
    assert_eq!(lab.authority("copy").await, after);
    lab.manager.rotate(&admin(), "demo").await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.manager.find("demo").unwrap().cluster.authorities.generation, 2);
    assert_eq!(lab.sim.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_rotation_survives_the_death_of_the_process_at_every_call() {
    use selvage_kaas::provider::sim::Fault;
    for call in 1..=18 {
        let mut lab = Lab::new().await;
        lab.running("demo", 1, &[("a", 1)]).await;
        lab.manager.rotate(&admin(), "demo").await.unwrap();
        lab.sim.fault(call, if call % 2 == 0 { Fault::CrashAfter } else { Fault::CrashBefore });
        let sim = lab.sim.clone();
        tokio::select! {
            () = lab.settle("demo") => {}
            () = sim.crashed() => {}
        }
        lab.sim.forget_faults();
        lab.restart().await;
        lab.settle("demo").await;
        let snapshot = lab.manager.find("demo").unwrap();
        assert_eq!(snapshot.cluster.authorities.generation, 1, "call {call}");
        assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    }
}

#[tokio::test]
async fn a_machine_that_fails_again_and_again_is_set_aside_until_it_is_released() {
    let mut lab = Lab::new().await;
    lab.sim.limit("", 2);
    lab.sim.break_machine("sim-00001", true);
    lab.create("demo", "1.35.8", 1, &[]).await.unwrap();
    lab.settle("demo").await;
    // The other one came up, after the first had failed three times.
    assert_eq!(lab.status("demo"), "RUNNING");
    assert_eq!(machines(&lab, "demo")[0].provider_id, "sim-00002");
    let aside = lab.manager.quarantined();
    assert_eq!(aside.len(), 1);
    let bad = &aside[0];
    assert_eq!(
        (bad.provider_id.as_str(), bad.count, bad.cluster.as_str()),
        ("sim-00001", 3, "demo")
    );
    assert!(bad.reason.contains("it is broken"), "{}", bad.reason);
    // No cluster gets it, and whoever waits is told why; also after a restart.
    lab.restart().await;
    let none = lab.create("two", "1.35.8", 3, &[]).await.unwrap_err().to_string();
    assert!(none.contains("there are 1") && none.contains("1 in quarantine"), "{none}");
    lab.create("next", "1.35.8", 1, &[]).await.unwrap();
    for _ in 0..5 {
        lab.manager.reconcile("next").await.unwrap();
        lab.clock.advance(Duration::from_secs(60));
    }
    let waits = machines(&lab, "next").remove(0);
    assert!(waits.reason.contains("selvage kaas quarantine"), "{}", waits.reason);
    let unknown = lab.manager.release_quarantined("sim-00002").await.unwrap_err();
    assert!(matches!(unknown, Error::NotQuarantined(_)), "{unknown}");
    lab.sim.break_machine("sim-00001", false);
    lab.manager.release_quarantined("sim-00001").await.unwrap();
    lab.settle("next").await;
    assert_eq!(machines(&lab, "next")[0].provider_id, "sim-00001");
    assert!(lab.manager.quarantined().is_empty());
}

#[tokio::test]
async fn the_control_plane_takes_pods_exactly_as_long_as_there_are_no_workers() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 1)]).await;
    let check = async || {
        lab.settle("demo").await;
        lab.manager.check_soon("demo");
        lab.manager.reconcile("demo").await.unwrap();
        let machines = machines(&lab, "demo");
        let tainted = machines.iter().filter(|m| lab.sim.is_tainted("demo", &m.name)).count();
        (tainted, machines.len())
    };
    assert_eq!(check().await, (3, 4));
    lab.scale("demo", "a", 0).await.unwrap();
    assert_eq!(check().await, (0, 3), "pods would have nowhere to go");
    lab.add_pool("demo", "b", 1).await.unwrap();
    assert_eq!(check().await, (3, 4));
    let node_pool_names = vec!["b".to_owned()];
    let asked = DeleteNodePoolMsg { cluster_name: "demo".into(), node_pool_names };
    lab.manager.delete_pools(&admin(), &asked).await.unwrap();
    assert_eq!(check().await, (0, 3));
}

#[tokio::test]
async fn a_drain_that_a_budget_holds_up_has_a_deadline() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 2)]).await;
    let victim = of_pool(&lab, "a").name;
    lab.sim.change_node("demo", &victim, true, 1, true);
    lab.manager.check_soon("demo");
    lab.manager.reconcile("demo").await.unwrap();
    lab.scale("demo", "a", 1).await.unwrap();
    let limit = lab.manager.settings().policy.drain_timeout;
    for _ in 0..3 {
        lab.manager.reconcile("demo").await.unwrap();
        lab.clock.advance(limit / 4);
    }
    assert_eq!(machines(&lab, "demo").len(), 3, "the budget holds");
    lab.clock.advance(limit);
    lab.settle("demo").await;
    assert_eq!(machines(&lab, "demo").len(), 2);
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
}
