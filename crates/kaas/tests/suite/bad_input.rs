//! Requests at the wrong moment, and machines that are not what they say.

use std::sync::Arc;

use parking_lot::Mutex;
use selvage_api::selvage::identity::Machine as Joined;
use selvage_kaas::{
    Error,
    provider::{OperationId, Provider, Request, agents::Agents},
};

use super::lab::{Lab, admin};

#[tokio::test]
async fn names_that_differ_in_their_letters_case_alone_are_refused() {
    let lab = Lab::new().await;
    lab.create("demo", "", 1, &[]).await.unwrap();
    for name in ["Demo", "DEMO", "demO"] {
        let refused = lab.create(name, "", 1, &[]).await.unwrap_err();
        assert!(matches!(&refused, Error::Invalid(wrong) if wrong[0].field == "name"), "{refused}");
    }
    assert_eq!(lab.manager.list().len(), 1);
}

#[tokio::test]
async fn versions_that_do_not_exist_make_and_change_nothing() {
    let lab = Lab::new().await;
    for version in ["9.9.9", "1.36", "latest", "1.36.4-rc.1", "1.36.4\n", "../1.36.4"] {
        let refused = lab.create("demo", version, 1, &[]).await.unwrap_err();
        assert!(refused.to_string().contains("k8s_version"), "{version}: {refused}");
    }
    assert!(lab.manager.list().is_empty());
    lab.running("demo", 1, &[]).await;
    for version in ["9.9.9", "1.36", "latest", ""] {
        assert!(lab.upgrade("demo", version).await.is_err(), "{version}");
    }
    assert_eq!(lab.manager.find("demo").unwrap().cluster.version, "1.35.8");
}

#[tokio::test]
async fn a_cluster_that_is_being_deleted_is_not_changed() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.manager.delete(&admin(), "demo").await.unwrap();
    for refused in [
        lab.upgrade("demo", "1.36.4").await.unwrap_err(),
        lab.scale("demo", "a", 3).await.unwrap_err(),
        lab.add_pool("demo", "b", 1).await.unwrap_err(),
        lab.manager.hibernate(&admin(), "demo").await.unwrap_err(),
        lab.manager.wake(&admin(), "demo").await.unwrap_err(),
        lab.manager.rotate(&admin(), "demo").await.unwrap_err(),
        lab.manager.pause(&admin(), "demo", true).await.unwrap_err(),
    ] {
        assert!(matches!(refused, Error::Precondition(_)), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("deleted") || text.contains("STOPPING"), "{text}");
    }
    lab.settle("demo").await;
    assert_eq!((lab.sim.owned(), lab.sim.violations()), (0, Vec::new()));
}

#[tokio::test]
async fn an_upgrade_during_an_upgrade_and_growth_during_it_are_refused() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.upgrade("demo", "1.36.4").await.unwrap();
    for refused in [
        lab.scale("demo", "a", 3).await.unwrap_err(),
        lab.add_pool("demo", "b", 1).await.unwrap_err(),
        lab.upgrade("demo", "1.37.1").await.unwrap_err(),
        lab.manager.hibernate(&admin(), "demo").await.unwrap_err(),
        lab.manager.rotate(&admin(), "demo").await.unwrap_err(),
    ] {
        assert!(matches!(refused, Error::Precondition(_)), "{refused}");
    }
    lab.settle("demo").await;
    let snapshot = lab.manager.find("demo").unwrap();
    assert_eq!((snapshot.cluster.version.as_str(), snapshot.machines.len()), ("1.36.4", 2));
}

fn joined(name: &str, address: &str) -> Joined {
    let labels = [("kaas".to_owned(), "free".to_owned())];
    Joined {
        machine: format!("node/{name}"),
        address: address.into(),
        labels: labels.into_iter().collect(),
        ..Joined::default()
    }
}

#[tokio::test]
async fn a_machine_that_joins_twice_is_one_machine() {
    let lab = Lab::new().await;
    let machines = Arc::new(Mutex::new(vec![joined("one", "192.0.2.1:8443")]));
    let inventory = Arc::clone(&machines);
    let agents = Agents::open(lab.store.clone(), move || inventory.lock().clone(), None);
    let agents = agents.await.unwrap();
    let request = |name: &str| Request {
        cluster: "demo".into(),
        name: name.into(),
        instance_type: String::new(),
        version: "1.36.4".into(),
    };
    let operation = |name: &str| OperationId(name.into());
    let first = agents.acquire(&operation("first"), &request("a-1")).await.unwrap();
    assert_eq!(first.id, "one");
    // It joins again, from another address, and is listed twice for a moment.
    machines.lock().push(joined("one", "192.0.2.9:8443"));
    let second = agents.acquire(&operation("second"), &request("a-2")).await.unwrap_err();
    assert!(second.to_string().contains("no machine is free"), "{second}");
    let again = agents.acquire(&operation("first"), &request("a-1")).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(agents.list_owned().await.unwrap().len(), 1);
}
