//! Plans for changes that are not made: refused as the changes would be.

use selvage_api::selvage::clusters::{PlanClusterRequest, PlannedPool};
use selvage_kaas::{Caller, Error, Origin, Result, Settings, plan::Action, validate::Limits};

use super::lab::{Lab, admin, developer, manager_with};

fn pool(name: &str, count: i32) -> PlannedPool {
    PlannedPool { name: name.into(), count, ..PlannedPool::default() }
}

fn demo() -> PlanClusterRequest {
    PlanClusterRequest { name: "demo".into(), ..PlanClusterRequest::default() }
}

async fn plan(lab: &Lab, caller: &Caller, request: &PlanClusterRequest) -> Result<Vec<Action>> {
    lab.manager.plan(caller, &Origin::default(), request).await
}

/// Text with which a plan is refused.
async fn refused(lab: &Lab, request: &PlanClusterRequest) -> String {
    plan(lab, &admin(), request).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_plan_is_refused_as_its_upgrade_would_be() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let to = |version: &str| PlanClusterRequest { version: version.into(), ..demo() };
    for version in ["1.99.0", "1.37.1", "1.34.0", "1.x"] {
        let real = lab.upgrade("demo", version).await.unwrap_err().to_string();
        assert_eq!(refused(&lab, &to(version)).await, real, "{version}");
    }
    let node = lab.manager.find("demo").unwrap().machines[0].name.clone();
    lab.sim.change_node("demo", &node, true, 1, false);
    assert!(refused(&lab, &to("1.36.4")).await.contains("1 pods of"), "the preflight");
    let forced = Origin { force: true, ..Origin::default() };
    lab.manager.plan(&admin(), &forced, &to("1.36.4")).await.unwrap();
    lab.sim.change_node("demo", &node, true, 0, false);
    assert!(!plan(&lab, &admin(), &to("1.36.4")).await.unwrap().is_empty());
    assert!(plan(&lab, &admin(), &to("1.35.8")).await.unwrap().is_empty());
    lab.upgrade("demo", "1.36.4").await.unwrap();
    assert!(refused(&lab, &to("1.37.1")).await.contains("is RECONCILING"));
    let larger = PlanClusterRequest { pools: vec![pool("a", 3)], ..demo() };
    assert!(refused(&lab, &larger).await.contains("is being upgraded to 1.36.4"));
}

#[tokio::test]
async fn a_plan_is_refused_as_its_pools_would_be() {
    let mut lab = Lab::new().await;
    let limits = Limits { nodes: 5, organisation: 4, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    lab.manager = manager_with(&lab.store, &lab.sim, &lab.clock, lab.folder.path(), settings).await;
    let acme = developer("acme");
    let asked = super::lab::request("demo", "1.35.8", 1, &[("a", 1)]);
    lab.manager.create(&acme, &Origin::default(), &asked).await.unwrap();
    lab.settle("demo").await;
    let with = |pools: &[PlannedPool]| PlanClusterRequest { pools: pools.to_vec(), ..demo() };
    let far = with(&[pool("a", 2), pool("b", 9)]);
    assert!(refused(&lab, &far).await.contains("nodes are more than a cluster's 5"));
    let quota = refused(&lab, &with(&[pool("a", 4)])).await;
    assert_eq!(quota, "organisation acme may have 4 machines and asks for 5");
    let wrong = refused(&lab, &with(&[pool("a", 1), pool("B", -1)])).await;
    assert!(wrong.contains("pools[1].name: ") && wrong.contains("; pools[1].count: "), "{wrong}");
    assert!(!wrong.contains("worker_node"), "{wrong}");
    let mut labelled = pool("b", 1);
    labelled.labels.insert("kubernetes.io/x".into(), "y".into());
    assert!(refused(&lab, &with(&[labelled])).await.contains("pools[0].labels[0].name: "));
    let gone = PlanClusterRequest { delete_pools: vec!["x".into()], ..demo() };
    assert_eq!(refused(&lab, &gone).await, "cluster \"demo\" has no pool \"x\"");
    assert_eq!(plan(&lab, &acme, &with(&[pool("a", 2), pool("b", 1)])).await.unwrap().len(), 10);
    // Nothing of all that was done.
    assert_eq!(lab.manager.find("demo").unwrap().pools.len(), 1);
}

#[tokio::test]
async fn a_plan_of_a_new_cluster_is_refused_as_the_cluster_would_be() {
    let lab = Lab::new().await;
    lab.sim.limit("large", 2);
    let of = |kind: &str, count: i32| PlanClusterRequest {
        control_plane_count: count,
        control_plane_instance_type: kind.into(),
        ..demo()
    };
    let none = refused(&lab, &of("standard", 1)).await;
    assert_eq!(none, "machines of type \"standard\" asked for: 1; there are 0");
    let few = refused(&lab, &of("large", 3)).await;
    assert_eq!(few, "machines of type \"large\" asked for: 3; there are 2");
    let even = refused(&lab, &of("large", 2)).await;
    assert!(even.starts_with("control_plane_count: 2 is none of"), "{even}");
    let mut labelled = of("large", 1);
    labelled.control_plane_labels.insert("node-pool".into(), "x".into());
    let reserved = refused(&lab, &labelled).await;
    assert!(reserved.starts_with("control_plane_labels[0].name: is set to"), "{reserved}");
    let old = PlanClusterRequest { version: "1.2.3".into(), ..of("large", 1) };
    assert!(refused(&lab, &old).await.starts_with("version: 1.2.3 is not on offer"));
    let reserved = PlanClusterRequest { name: "slv-x".into(), ..of("large", 1) };
    assert!(refused(&lab, &reserved).await.contains("are for clusters of cloudlets"));
    let nobody = plan(&lab, &Caller::default(), &of("large", 1)).await.unwrap_err();
    assert!(matches!(nobody, Error::Denied(_)), "{nobody}");
    assert!(!plan(&lab, &developer("acme"), &of("large", 1)).await.unwrap().is_empty());
    assert!(lab.manager.list().is_empty());
}

#[tokio::test]
async fn a_plan_of_a_cluster_of_others_is_of_one_that_is_not_there() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let refused = plan(&lab, &developer("other"), &demo()).await.unwrap_err();
    assert!(matches!(refused, Error::ClusterNotFound(_)), "{refused}");
}
