//! Upgrades that are safe to begin, snapshots, and machines that die.

use std::time::Duration;

use selvage_kaas::{
    Error,
    record::{Machine, Occasion, Phase},
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
    assert_eq!((backups[0].occasion(), backups[0].version.as_str()), (Occasion::Upgrade, "1.35.8"));
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
    assert_eq!((last.occasion(), last.taken_at), (Occasion::Schedule, lab.clock.now()));
    assert_eq!(lab.files().len(), backups.len(), "a file for each");

    lab.manager.delete_backup(&admin(), &asked.id).await.unwrap();
    assert_eq!(lab.files().len(), backups.len() - 1);
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
