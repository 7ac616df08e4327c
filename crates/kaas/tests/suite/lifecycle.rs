//! Clusters from their request to their end.

use std::{collections::BTreeSet, time::Duration};

use selvage_api::cnct::kaas::api::{
    AddNodePoolMsg, DeleteNodePoolMsg, ScaleNodePoolMsg, ScaleNodePoolSpec,
};
use selvage_kaas::{
    Caller, Error, Origin, Settings,
    provider::sim::Fault,
    record::{Cluster, Phase},
    validate::Limits,
};
use selvage_store::Table;

use super::lab::{Lab, admin, developer, manager_of_host, manager_with, request, spec};

#[tokio::test]
async fn a_cluster_comes_up_scales_and_goes() {
    let lab = Lab::new().await;
    lab.create("demo", "", 3, &[("a", 2)]).await.unwrap();
    assert_eq!(lab.status("demo"), "PROVISIONING");
    lab.settle("demo").await;
    assert_eq!(lab.status("demo"), "RUNNING");
    let snapshot = lab.manager.find("demo").unwrap();
    assert_eq!(snapshot.machines.len(), 5);
    assert!(snapshot.machines.iter().all(|machine| machine.phase() == Phase::Ready));
    assert_eq!(snapshot.machines.iter().filter(|machine| machine.founder).count(), 1);
    assert_eq!(lab.manager.message(&snapshot), "");

    lab.scale("demo", "a", 4).await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 7);
    lab.scale("demo", "a", 1).await.unwrap();
    lab.settle("demo").await;
    assert_eq!((lab.sim.owned(), lab.status("demo").as_str()), (4, "RUNNING"));

    lab.manager.delete(&admin(), "demo").await.unwrap();
    assert_eq!(lab.status("demo"), "STOPPING");
    lab.manager.delete(&admin(), "demo").await.unwrap();
    lab.settle("demo").await;
    assert!(matches!(lab.manager.find("demo"), Err(Error::ClusterNotFound(_))));
    assert_eq!((lab.sim.owned(), lab.sim.violations()), (0, Vec::new()));
}

#[tokio::test]
async fn an_upgrade_goes_one_minor_with_legal_versions_all_the_way() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 2), ("b", 1)]).await;
    let versions = lab.manager.upgrades(&lab.manager.find("demo").unwrap());
    assert_eq!(versions.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1.36.4"]);
    lab.upgrade("demo", "v1.36.4").await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    let refused = lab.scale("demo", "a", 5).await.unwrap_err();
    assert!(refused.to_string().contains("is being upgraded"), "{refused}");
    lab.settle("demo").await;
    let snapshot = lab.manager.find("demo").unwrap();
    assert!(snapshot.machines.iter().all(|machine| machine.running.kubelet == "1.36.4"));
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    for (version, why) in
        [("1.35.8", "never taken back"), ("1.99.0", "is not on offer"), ("1.36.x", "not a version")]
    {
        let refused = lab.upgrade("demo", version).await.unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    lab.upgrade("demo", "1.36.4").await.unwrap();
}

#[tokio::test]
async fn an_upgrade_does_not_skip_a_minor_or_begin_before_the_last_is_done() {
    let lab = Lab::new().await;
    lab.create("demo", "1.35.8", 1, &[]).await.unwrap();
    let early = lab.upgrade("demo", "1.36.4").await.unwrap_err();
    assert!(early.to_string().contains("is PROVISIONING"), "{early}");
    lab.settle("demo").await;
    let skip = lab.upgrade("demo", "1.37.1").await.unwrap_err();
    assert!(skip.to_string().contains("skips a minor"), "{skip}");
    lab.upgrade("demo", "1.36.4").await.unwrap();
    let busy = lab.upgrade("demo", "1.37.1").await.unwrap_err();
    assert!(busy.to_string().contains("is RECONCILING"), "{busy}");
    lab.manager.delete(&admin(), "demo").await.unwrap();
    let gone = lab.upgrade("demo", "1.36.4").await.unwrap_err();
    assert!(matches!(gone, Error::Precondition(_)), "{gone}");
}

#[tokio::test]
async fn pools_change_all_or_nothing() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let names = |names: &[&str]| DeleteNodePoolMsg {
        cluster_name: "demo".into(),
        node_pool_names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let delete = lab.manager.delete_pools(&admin(), &names(&["a", "x", "y"])).await;
    let text = delete.unwrap_err().to_string();
    assert_eq!(text, "cluster \"demo\" has no pool \"x\", \"y\"");
    assert!(lab.add_pool("demo", "a", 1).await.unwrap_err().to_string().contains("already has"));
    assert_eq!(lab.manager.find("demo").unwrap().pools.len(), 1);
    lab.manager.delete_pools(&admin(), &names(&["a"])).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.manager.find("demo").unwrap().pools.len(), 0);
    lab.add_pool("demo", "a", 2).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 3);
}

#[tokio::test]
async fn a_drain_waits_for_disruption_budgets() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let node = |lab: &Lab| {
        let machines = lab.manager.find("demo").unwrap().machines;
        machines.into_iter().find(|machine| machine.pool == "a").unwrap()
    };
    let name = node(&lab).name;
    lab.sim.change_node("demo", &name, true, 2, false);
    lab.scale("demo", "a", 0).await.unwrap();
    for _ in 0..3 {
        lab.manager.reconcile("demo").await.unwrap();
    }
    let draining = node(&lab);
    assert_eq!(draining.phase(), Phase::Draining);
    assert_eq!(draining.reason, "2 pods may not be disrupted now");
    assert_eq!(lab.sim.owned(), 2, "the machine is not given back before its pods have left");
    lab.sim.change_node("demo", &name, true, 0, false);
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 1);
}

#[tokio::test]
async fn a_node_that_fails_is_seen_and_its_return_too() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let machines = lab.manager.find("demo").unwrap().machines;
    let node = machines.iter().find(|machine| machine.pool == "a").unwrap().name.clone();
    lab.sim.change_node("demo", &node, false, 0, false);
    lab.manager.check_soon("demo");
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!(lab.status("demo"), "DEGRADED");
    let snapshot = lab.manager.find("demo").unwrap();
    assert_eq!(
        lab.manager.message(&snapshot),
        format!(
            "0/1 pool a machines are ready; waiting for {node} (NotReady 0s: the kubelet is silent)."
        )
    );
    lab.sim.change_node("demo", &node, true, 0, false);
    lab.manager.check_soon("demo");
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!(lab.status("demo"), "RUNNING");
}

#[tokio::test]
async fn what_can_never_be_had_is_refused_and_what_may_come_is_waited_for() {
    let lab = Lab::new().await;
    lab.sim.limit("", 2);
    let refused = lab.create("demo", "", 3, &[]).await.unwrap_err();
    assert_eq!(refused.to_string(), "machines asked for: 3; there are 2");
    lab.create("one", "", 1, &[("a", 1)]).await.unwrap();
    lab.settle("one").await;
    lab.create("two", "", 1, &[]).await.unwrap();
    lab.manager.reconcile("two").await.unwrap();
    let message = lab.manager.message(&lab.manager.find("two").unwrap());
    assert!(message.contains("no machine of type \"\" is free"), "{message}");
    lab.manager.delete(&admin(), "one").await.unwrap();
    lab.settle("one").await;
    lab.settle("two").await;
    assert_eq!(lab.status("two"), "RUNNING");
}

#[tokio::test]
async fn a_request_can_be_repeated_by_its_id_and_not_otherwise() {
    let lab = Lab::new().await;
    let origin = Origin { request_id: "r1".into(), ..Origin::default() };
    let asked = request("demo", "", 1, &[]);
    let first = lab.manager.create(&admin(), &origin, &asked).await.unwrap();
    let again = lab.manager.create(&admin(), &origin, &asked).await.unwrap();
    assert_eq!(first.cluster.uid, again.cluster.uid);
    let other = request("demo", "", 3, &[]);
    for (origin, asked) in [(&origin, &other), (&Origin::default(), &asked)] {
        let refused = lab.manager.create(&admin(), origin, asked).await.unwrap_err();
        assert!(matches!(refused, Error::ClusterExists(_)), "{refused}");
    }
}

#[tokio::test]
async fn of_two_creates_at_once_one_wins_and_nothing_is_mixed() {
    let lab = Lab::new().await;
    let (a, b) = (request("demo", "", 1, &[("a", 1)]), request("demo", "", 3, &[("b", 1)]));
    let origin = Origin::default();
    let (admin, manager) = (admin(), &lab.manager);
    let (first, second) =
        tokio::join!(manager.create(&admin, &origin, &a), manager.create(&admin, &origin, &b));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    lab.settle("demo").await;
    let snapshot = lab.manager.find("demo").unwrap();
    let pool = if first.is_ok() { "a" } else { "b" };
    assert_eq!(snapshot.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), [pool]);
}

#[tokio::test]
async fn clusters_belong_to_an_organisation() {
    let lab = Lab::new().await;
    let (acme, other) = (developer("acme"), developer("other"));
    let asked = request("demo", "", 1, &[]);
    let made = lab.manager.create(&acme, &Origin::default(), &asked).await.unwrap();
    assert_eq!(made.cluster.organisation, "acme");
    let refused = lab.manager.delete(&other, "demo").await.unwrap_err();
    assert!(matches!(refused, Error::ClusterNotFound(_)));
    lab.manager.delete(&acme, "demo").await.unwrap();
}

/// Whoever has a cluster may run privileged pods in it, and a machine of this
/// host keeps no root in.
#[tokio::test]
async fn only_trusted_organisations_have_clusters_on_the_controllers_host() {
    let machine = |name: &str| {
        let machine = selvage_kit::identity::Machine::parse(name).unwrap();
        let prefix = machine.cluster_prefix();
        (Caller::from(&selvage_kit::identity::Identity::machine(machine)), prefix)
    };
    let lab = Lab::new().await;
    let saved = request("saved", "", 1, &[]);
    lab.manager.create(&developer("other"), &Origin::default(), &saved).await.unwrap();
    lab.settle("saved").await;
    let backup = lab.manager.backup(&admin(), "saved").await.unwrap();
    let manager = manager_of_host(&lab, &["acme", "cloudlet/tmus/here"]).await;
    let create = async |caller: &Caller, name: String| {
        manager.create(caller, &Origin::default(), &request(&name, "", 1, &[])).await
    };
    for (caller, prefix) in [
        (developer("other"), String::new()),
        (machine("cloudlet/tmus/east").0, machine("cloudlet/tmus/east").1),
    ] {
        let refused = create(&caller, format!("{prefix}a")).await.unwrap_err();
        assert!(matches!(refused, Error::Denied(_)), "{}: {refused}", caller.name);
        assert!(refused.to_string().contains("kaas.local.organisations"), "{refused}");
    }
    let refused = manager.restore(&developer("other"), &backup.id, "copy").await.unwrap_err();
    assert!(matches!(refused, Error::Denied(_)), "{refused}");
    for (caller, prefix) in [
        (developer("acme"), String::new()),
        (machine("cloudlet/tmus/here").0, machine("cloudlet/tmus/here").1),
        (admin(), "for-".to_owned()),
    ] {
        // This host may lack what machines need.
        let made = create(&caller, format!("{prefix}a")).await;
        assert!(!matches!(made, Err(Error::Denied(_))), "{}: {made:?}", caller.name);
    }
}

#[tokio::test]
async fn a_paused_cluster_stays_as_it_is_until_it_is_resumed() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.manager.pause(&admin(), "demo", true).await.unwrap();
    lab.scale("demo", "a", 3).await.unwrap();
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!(lab.sim.owned(), 2);
    lab.manager.pause(&admin(), "demo", false).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 4);
}

/// An older control plane may be unable to read what the newest one wrote.
#[tokio::test]
async fn an_upgrade_that_is_paused_halfway_goes_nowhere_else() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[("a", 1)]).await;
    lab.upgrade("demo", "1.36.4").await.unwrap();
    // The snapshot, and the first control plane; the second one is not reached.
    lab.sim.fault(4, Fault::Refuse);
    lab.manager.reconcile("demo").await.unwrap();
    let versions = || {
        let machines = lab.manager.find("demo").unwrap().machines;
        let planes = machines.into_iter().filter(|machine| machine.is_control_plane());
        planes.map(|machine| machine.running.control_plane).collect::<Vec<_>>()
    };
    assert!(versions().contains(&"1.36.4".to_owned()) && versions().contains(&"1.35.8".to_owned()));
    lab.manager.pause(&admin(), "demo", true).await.unwrap();
    assert_eq!(lab.status("demo"), "RECONCILING");
    for version in ["1.35.8", "1.37.1"] {
        let origin = Origin { force: true, ..Origin::default() };
        let refused = lab.manager.upgrade(&admin(), &origin, "demo", version).await.unwrap_err();
        assert!(refused.to_string().contains("is RECONCILING"), "{refused}");
    }
    // Whatever the conditions say.
    let clusters: std::sync::Arc<Table<Cluster>> = Table::open(lab.store.clone()).await.unwrap();
    let forget = |cluster: &mut Cluster| {
        cluster.conditions.retain(|condition| condition.kind == "Provisioned");
        Ok::<_, selvage_store::Error>(())
    };
    clusters.update("demo", forget).await.unwrap();
    while lab.status("demo") != "RUNNING" {
        tokio::task::yield_now().await;
    }
    let refused = lab.upgrade("demo", "1.35.8").await.unwrap_err();
    assert!(refused.to_string().contains("is on its way to 1.36.4"), "{refused}");
    lab.manager.pause(&admin(), "demo", false).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(versions(), ["1.36.4"; 3]);
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
}

#[tokio::test]
async fn an_upgrade_of_two_minors_goes_through_the_one_in_between() {
    let lab = Lab::with_step(2).await;
    lab.running("demo", 3, &[("a", 2)]).await;
    let versions = lab.manager.upgrades(&lab.manager.find("demo").unwrap());
    let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
    assert_eq!(versions, ["1.36.4", "1.37.1"]);
    lab.upgrade("demo", "1.37.1").await.unwrap();
    lab.settle("demo").await;
    let snapshot = lab.manager.find("demo").unwrap();
    assert!(snapshot.machines.iter().all(|machine| machine.running.kubelet == "1.37.1"));
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    // One before each of the two.
    let backups = lab.manager.backups(&admin(), "demo");
    let taken = backups.iter().map(|b| (b.version.as_str(), b.reason.as_str()));
    let taken: BTreeSet<_> = taken.collect();
    let (first, second) = ("before the upgrade to 1.36.4", "before the upgrade to 1.37.1");
    assert_eq!(taken, BTreeSet::from([("1.35.8", first), ("1.36.4", second)]));
    // Nodes went to the last one at once.
    let worker = snapshot.machines.iter().find(|machine| machine.pool == "a").unwrap();
    let upgraded = worker.history.iter().filter(|change| change.phase() == Phase::Upgrading);
    assert_eq!(upgraded.count(), 1, "{:#?}", worker.history);
}

#[tokio::test]
async fn an_upgrade_of_two_minors_waits_between_them_for_what_stands_in_its_way() {
    for force in [false, true] {
        let lab = Lab::with_step(2).await;
        lab.running("demo", 1, &[("a", 1)]).await;
        let origin = Origin { force, ..Origin::default() };
        lab.manager.upgrade(&admin(), &origin, "demo", "1.37.1").await.unwrap();
        let machines = lab.manager.find("demo").unwrap().machines;
        let node = machines.into_iter().find(|machine| machine.pool == "a").unwrap().name;
        lab.sim.change_node("demo", &node, true, 1, false);
        lab.manager.reconcile("demo").await.unwrap();
        let waits = lab.manager.find("demo").unwrap();
        let plane = waits.machines.iter().find(|machine| machine.is_control_plane()).unwrap();
        if force {
            assert_eq!(plane.running.control_plane, "1.37.1");
            continue;
        }
        assert_eq!(plane.running.control_plane, "1.36.4");
        let message = lab.manager.message(&waits);
        let why = format!("cannot be upgraded to 1.37.1 now: 1 pods of {node} may not go");
        assert!(message.contains(&why), "{message}");
        lab.sim.change_node("demo", &node, true, 0, false);
        lab.settle("demo").await;
        assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
    }
}

#[tokio::test]
async fn an_upgrade_of_two_minors_can_end_in_between() {
    let lab = Lab::with_step(2).await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.upgrade("demo", "1.37.1").await.unwrap();
    let machines = lab.manager.find("demo").unwrap().machines;
    let node = machines.into_iter().find(|machine| machine.pool == "a").unwrap().name;
    lab.sim.change_node("demo", &node, true, 1, false);
    lab.manager.reconcile("demo").await.unwrap();
    let ended = lab.manager.abort_upgrade(&admin(), "demo").await.unwrap();
    assert_eq!(ended.cluster.version, "1.36.4");
    lab.sim.change_node("demo", &node, true, 0, false);
    lab.settle("demo").await;
    let machines = lab.manager.find("demo").unwrap().machines;
    assert!(machines.iter().all(|machine| machine.running.kubelet == "1.36.4"));
    assert_eq!((lab.status("demo").as_str(), lab.sim.violations()), ("RUNNING", Vec::new()));
}

#[tokio::test]
async fn a_restored_cluster_has_a_name_that_its_owner_may_give() {
    let lab = Lab::new().await;
    let acme = developer("acme");
    let asked = request("demo", "", 1, &[]);
    lab.manager.create(&acme, &Origin::default(), &asked).await.unwrap();
    lab.settle("demo").await;
    let backup = lab.manager.backup(&acme, "demo").await.unwrap();
    let cloudlet = selvage_kit::identity::Machine::parse("cloudlet/tmus/west").unwrap();
    for name in [format!("{}x", cloudlet.cluster_prefix()), "slv-x".to_owned()] {
        for caller in [&acme, &admin()] {
            let refused = lab.manager.restore(caller, &backup.id, &name).await.unwrap_err();
            assert!(refused.to_string().contains("are for clusters of cloudlets"), "{refused}");
        }
    }
    lab.manager.restore(&acme, &backup.id, "copy").await.unwrap();
}

#[tokio::test]
async fn of_two_requests_at_once_that_are_too_much_together_one_is_refused() {
    let mut lab = Lab::new().await;
    let limits = Limits { organisation: 3, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    lab.manager = manager_with(&lab.store, &lab.sim, &lab.clock, lab.folder.path(), settings).await;
    let (acme, manager) = (developer("acme"), &lab.manager);
    let create = async |name: &str| {
        let asked = request(name, "", 1, &[("a", 1)]);
        manager.create(&acme, &Origin::default(), &asked).await
    };
    let (one, two) = tokio::join!(create("one"), create("two"));
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    let refused = one.as_ref().err().or(two.as_ref().err()).unwrap();
    assert_eq!(refused.to_string(), "organisation acme may have 3 machines and asks for 4");
    let name = if one.is_ok() { "one" } else { "two" };
    // One more can be had, by the pool that is there or by another.
    let add = async || {
        let worker_node_pools = vec![spec("b", 1)];
        let asked = AddNodePoolMsg { cluster_name: name.into(), worker_node_pools };
        manager.add_pools(&acme, &asked).await
    };
    let scale = async || {
        let node_pools = vec![ScaleNodePoolSpec { name: "a".into(), count: 2 }];
        let asked = ScaleNodePoolMsg { cluster_name: name.into(), node_pools };
        manager.scale(&acme, &asked).await
    };
    let (added, scaled) = tokio::join!(add(), scale());
    assert!(added.is_ok() != scaled.is_ok(), "{added:?} {scaled:?}");
}

#[tokio::test]
async fn a_quota_holds_for_cloudlets_and_for_growth() {
    let mut lab = Lab::new().await;
    let limits = Limits { organisation: 3, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    lab.manager = manager_with(&lab.store, &lab.sim, &lab.clock, lab.folder.path(), settings).await;
    let cloudlet = selvage_kit::identity::Machine::parse("cloudlet/tmus/west").unwrap();
    let prefix = cloudlet.cluster_prefix();
    let caller = Caller::from(&selvage_kit::identity::Identity::machine(cloudlet));
    let create = async |name: &str, nodes: i32| {
        let asked = request(&format!("{prefix}{name}"), "", 1, &[("nodes", nodes)]);
        lab.manager.create(&caller, &Origin::default(), &asked).await
    };
    let refused = create("large", 3).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "organisation cloudlet/tmus/west may have 3 machines and asks for 4"
    );
    let made = create("small", 1).await.unwrap();
    assert_eq!(made.cluster.organisation, "cloudlet/tmus/west");
    let name = made.cluster.name;
    lab.settle(&name).await;
    let scale = async |count: i32| {
        let node_pools = vec![ScaleNodePoolSpec { name: "nodes".into(), count }];
        let asked = ScaleNodePoolMsg { cluster_name: name.clone(), node_pools };
        lab.manager.scale(&caller, &asked).await
    };
    let refused = scale(3).await.unwrap_err();
    assert!(matches!(refused, Error::Exhausted(_)), "{refused}");
    scale(2).await.unwrap();
    scale(1).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_answers_again_is_asked_again_soon() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let worker = || {
        let machines = lab.manager.find("demo").unwrap().machines;
        machines.into_iter().find(|machine| machine.pool == "a").unwrap()
    };
    lab.sim.change_node("demo", &worker().name, true, 1, false);
    lab.scale("demo", "a", 0).await.unwrap();
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!(worker().phase(), Phase::Draining);
    for failures in 1..=6 {
        lab.sim.fault(1, Fault::Refuse);
        lab.manager.reconcile("demo").await.unwrap();
        assert_eq!(worker().retries, failures);
        lab.clock.advance(Duration::from_secs(60));
    }
    // It answers that a budget keeps a pod: slow, and not broken.
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!((worker().phase(), worker().retries), (Phase::Draining, 0));
}
