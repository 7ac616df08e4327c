//! Several controllers on one store.

use std::time::Duration;

use selvage_api::edgeproto as wire;
use selvage_api::selvage::metrics::ListSamplesRequest;
use selvage_api::selvage::metrics::metrics_service_client::MetricsServiceClient;
use selvage_store::SharedStore;
use selvage_store::etcd::{Etcd, EtcdOptions};
use tonic::{Response, Status, Streaming};

use super::harness::*;
use super::infos::{Agent, connected, sample, wait_for_state};
use selvage_testkit::etcd::Cluster;

fn node(name: &str, kind: wire::NodeType) -> wire::Node {
    wire::Node {
        key: Some(wire::NodeKey {
            name: name.into(),
            node_type: kind.into(),
            cloudlet_key: Some(cloudlet_key("tmus", "west")),
        }),
        ..Default::default()
    }
}

async fn same_shows(here: &House, there: &House) {
    eventually("both show the same", || async {
        let (mut a, mut b) = (here.apps(), there.apps());
        let all = wire::App::default();
        let apps = (drain(a.show_app(all.clone()).await).await, drain(b.show_app(all).await).await);
        let all = wire::Cloudlet::default();
        let (mut a, mut b) = (here.cloudlets(), there.cloudlets());
        let cloudlets = (
            drain(a.show_cloudlet(all.clone()).await).await,
            drain(b.show_cloudlet(all).await).await,
        );
        apps.0.unwrap() == apps.1.unwrap() && cloudlets.0.unwrap() == cloudlets.1.unwrap()
    })
    .await;
}

async fn work_together(store: SharedStore) {
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    here.furnish().await;
    eventually("the flavor is known there", || async {
        there.stored::<wire::Flavor>(&flavor_key("x1.small")).is_some()
    })
    .await;
    for number in 0..5 {
        let name = format!("a{number}");
        let house = if number % 2 == 0 { &here } else { &there };
        house.apps().create_app(app("Acme", &name)).await.unwrap();
    }
    same_shows(&here, &there).await;
    assert_eq!(there.controller.tables.apps.len(), 5);
    // Whoever is asked knows who uses the flavor, however new it is.
    here.apps().create_app(app("Acme", "last")).await.unwrap();
    let refused = there.flavors().delete_flavor(flavor("x1.small")).await.unwrap_err();
    assert_eq!(refused.message(), "Flavor in use by App");
    let registered =
        drain(here.controllers().show_controller(wire::Controller::default()).await).await;
    assert_eq!(registered.unwrap().len(), 2);
}

#[tokio::test]
async fn two_controllers_show_the_same() {
    work_together(memory().await).await;
}

#[tokio::test]
async fn two_controllers_on_etcd_show_the_same() {
    let Some((_etcd, store)) = on_etcd().await else { return };
    work_together(store).await;
}

/// A controller that is registered and does not answer.
async fn plant_silent(house: &House) -> String {
    let addr = "127.0.0.1:1".to_owned();
    let key = Some(wire::ControllerKey { addr: addr.clone() });
    house.plant(wire::Controller { key, ..Default::default() }).await;
    addr
}

/// Items of a stream, and the controllers that its end names as missing.
async fn with_missing<M>(
    shown: Result<Response<Streaming<M>>, Status>,
) -> (Vec<M>, Option<String>) {
    let mut stream = shown.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        found.push(message);
    }
    let trailers = stream.trailers().await.unwrap();
    let missing = trailers.and_then(|trailers| {
        trailers.get("x-selvage-unreachable").map(|names| names.to_str().unwrap().to_owned())
    });
    (found, missing)
}

fn app_inst_info(app: &str, cloudlet: &str, errors: &[&str]) -> wire::AppInstInfo {
    wire::AppInstInfo {
        key: app_inst(app, cloudlet, wire::Liveness::Static).key,
        errors: errors.iter().map(|error| (*error).to_owned()).collect(),
        ..Default::default()
    }
}

fn cluster_inst_info(cloudlet: &str, cluster: &str) -> wire::ClusterInstInfo {
    let key = cluster_inst(cloudlet, cluster, wire::Liveness::Static).key;
    wire::ClusterInstInfo { key, ..Default::default() }
}

/// Names of clusters and the apps in them that a controller shows.
async fn infos(house: &House) -> (Vec<String>, Vec<wire::AppInstInfo>) {
    let (apps, clusters) = (wire::AppInstInfo::default(), wire::ClusterInstInfo::default());
    let apps = drain(house.app_inst_infos().show_app_inst_info(apps).await).await.unwrap();
    let clusters = house.cluster_inst_infos().show_cluster_inst_info(clusters).await;
    let cluster = |info: wire::ClusterInstInfo| info.key.unwrap().cluster_key.unwrap().name;
    (drain(clusters).await.unwrap().into_iter().map(cluster).collect(), apps)
}

/// A report to one controller is known to all.
#[tokio::test]
async fn infos_of_instances_are_the_same_everywhere() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    let (west, east) = (Agent::connect(&here), Agent::connect(&there));
    for (agent, cloudlet, cluster) in [(&west, "west", "a"), (&east, "east", "b")] {
        agent.infos.put(cloudlet_info("tmus", cloudlet)).unwrap();
        agent.app_inst_infos.put(app_inst_info("one", cloudlet, &[])).unwrap();
        agent.cluster_inst_infos.put(cluster_inst_info(cloudlet, cluster)).unwrap();
    }
    eventually("both show both", || async {
        let (mine, yours) = (infos(&here).await, infos(&there).await);
        mine == yours && mine.0.len() == 2 && mine.1.len() == 2
    })
    .await;
    // A filter counts at all of them, and one can be asked alone.
    let shown = here.app_inst_infos().show_app_inst_info(app_inst_info("one", "east", &[])).await;
    assert_eq!(drain(shown).await.unwrap().len(), 1);
    let mut alone = tonic::Request::new(wire::AppInstInfo::default());
    alone.metadata_mut().insert("x-selvage-local", "true".parse().unwrap());
    let shown = drain(here.app_inst_infos().show_app_inst_info(alone).await).await.unwrap();
    assert_eq!(keys_of(&shown), keys_of(&[app_inst_info("one", "west", &[])]));

    let silent = plant_silent(&here).await;
    let all = wire::ClusterInstInfo::default();
    let shown = there.cluster_inst_infos().show_cluster_inst_info(all).await;
    let (found, missing) = with_missing(shown).await;
    assert_eq!((found.len(), missing), (2, Some(silent)));
    drop(east);
    eventually("they go with their agent", || async {
        infos(&here).await.1.len() == 1 && infos(&there).await.1.len() == 1
    })
    .await;
}

fn keys_of(infos: &[wire::AppInstInfo]) -> Vec<Option<wire::AppInstKey>> {
    infos.iter().map(|info| info.key.clone()).collect()
}

/// The old connection is not closed yet, and the agent is elsewhere.
#[tokio::test]
async fn the_controller_that_has_the_cloudlet_speaks_for_it() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    for (from, to) in [(&here, &there), (&there, &here)] {
        let (old, new) = (Agent::connect(from), Agent::connect(to));
        for (agent, house, word) in [(&old, from, "old"), (&new, to, "new")] {
            agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
            agent.app_inst_infos.put(app_inst_info("one", "west", &[word])).unwrap();
            let owner = format!("localhost@{}", house.address);
            eventually("it has the cloudlet", || async {
                let info = here.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west"));
                info.is_some_and(|info| info.controller == owner)
            })
            .await;
        }
        eventually("both show the new word", || async {
            let words = [infos(&here).await.1, infos(&there).await.1];
            words.iter().all(|shown| shown.len() == 1 && shown[0].errors == ["new"])
        })
        .await;
        drop((old, new));
        eventually("both agents are gone", || async { infos(&here).await.1.is_empty() }).await;
    }
}

#[tokio::test]
async fn samples_of_all_controllers_are_counted_together() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    let (west, east) = (Agent::connect(&here), Agent::connect(&there));
    connected(&here).await;
    connected(&there).await;
    west.client.post(&sample("appinst-cpu", "app", "one")).unwrap();
    east.client.post(&sample("appinst-cpu", "app", "two")).unwrap();
    east.client.post(&sample("cloudlet-cpu", "cloudlet", "east")).unwrap();
    for house in [&here, &there] {
        eventually("all samples are counted", || async {
            let (apps, clouds) =
                (wire::AppInstMetrics::default(), wire::CloudletMetrics::default());
            let apps = drain(house.app_inst_metrics().show_app_inst_metrics(apps).await).await;
            let clouds = drain(house.cloudlet_metrics().show_cloudlet_metrics(clouds).await).await;
            apps.unwrap() == [wire::AppInstMetrics { something: 2 }]
                && clouds.unwrap() == [wire::CloudletMetrics { foo: 1 }]
        })
        .await;
    }
    let listed = |house: &House, limit: u32| {
        let mut client = MetricsServiceClient::new(house.channel());
        let request = ListSamplesRequest { limit, ..Default::default() };
        async move { drain(client.list_samples(request).await).await.unwrap() }
    };
    let all = listed(&here, 0).await;
    assert_eq!(all.len(), 3);
    assert_eq!(listed(&there, 0).await, all);
    assert_eq!(listed(&there, 2).await, all[1..], "the newest of both together");
}

#[tokio::test]
async fn nodes_of_all_controllers_are_shown_and_dead_ones_named() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    let (crm, dme) = (Agent::connect(&here), Agent::connect(&there));
    crm.nodes.put(node("crm", wire::NodeType::NodeCrm)).unwrap();
    dme.nodes.put(node("dme", wire::NodeType::NodeDme)).unwrap();
    let names = |filter: wire::Node| {
        let mut client = here.nodes();
        async move {
            let found = drain(client.show_node(filter).await).await.unwrap();
            found.into_iter().map(|node| node.key.unwrap().name).collect::<Vec<_>>()
        }
    };
    eventually("both nodes are shown", || async {
        names(wire::Node::default()).await == ["crm", "dme"]
    })
    .await;
    let mut filter = wire::Node { key: Some(wire::NodeKey::default()), ..Default::default() };
    filter.key.as_mut().unwrap().set_node_type(wire::NodeType::NodeDme);
    assert_eq!(names(filter).await, ["dme"]);
    let local = drain(there.nodes().show_node_local(wire::Node::default()).await).await.unwrap();
    assert_eq!(local.len(), 1);

    let silent = plant_silent(&here).await;
    let shown = here.nodes().show_node(wire::Node::default()).await;
    let (found, missing) = with_missing(shown).await;
    let found: Vec<_> = found.into_iter().map(|node| node.key.unwrap().name).collect();
    assert_eq!((found, missing), (vec!["crm".to_owned(), "dme".to_owned()], Some(silent)));

    drop(dme);
    eventually("a node goes with its connection", || async {
        names(wire::Node::default()).await == ["crm"]
    })
    .await;
}

/// The original's check: two match engines and ten crms, five and one at each
/// controller, seen through any of them.
#[tokio::test]
async fn twelve_nodes_are_shown_through_any_controller() {
    let store = memory().await;
    let houses = [house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await];
    let mut expected = Vec::new();
    let mut agents = Vec::new();
    for number in 0..12 {
        let kind = if number < 10 { wire::NodeType::NodeCrm } else { wire::NodeType::NodeDme };
        let node = node(&format!("node{number:02}"), kind);
        expected.push(node.key.clone().unwrap());
        let agent = Agent::connect(&houses[number % 2]);
        agent.nodes.put(node).unwrap();
        agents.push(agent);
    }
    for house in &houses {
        eventually("all twelve are shown", || async {
            let shown = house.nodes().show_node(wire::Node::default()).await;
            let shown = drain(shown).await.unwrap();
            let keys: Vec<_> = shown.into_iter().map(|node| node.key.unwrap()).collect();
            keys == expected
        })
        .await;
    }
}

/// A controller that lost touch with the store for too long comes back with
/// all it had.
#[tokio::test]
async fn a_lost_lease_is_made_good() {
    let short = |settings: &mut selvage_controller::Settings| {
        settings.lease = Duration::from_secs(1);
    };
    let house = house_on(memory().await, short).await;
    let agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;
    house.cloudlet_infos().inject_cloudlet_info(cloudlet_info("tmus", "injected")).await.unwrap();
    let lost = house.controller.lease();
    house.controller.store.lease_revoke(lost).await.unwrap();
    let key = wire::ControllerKey { addr: house.address.to_string() };
    eventually("it is registered again", || async {
        house.controller.lease() != lost && house.stored::<wire::Controller>(&key).is_some()
    })
    .await;
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;
    wait_for_state(&house, "injected", wire::CloudletState::Ready).await;
    // And deletions, which hang on the lease, work again.
    house.furnish().await;
    house.flavors().delete_flavor(flavor("x1.small")).await.unwrap();
    drop(agent);
    wait_for_state(&house, "west", wire::CloudletState::Offline).await;
}

#[tokio::test]
async fn a_controller_that_stops_is_not_registered_any_more() {
    let store = memory().await;
    let (mut here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    here.stop.cancel();
    (&mut here.ended).await.unwrap();
    eventually("one is left", || async { there.controller.tables.controllers.len() == 1 }).await;
}

/// A real etcd, gone with the test, and a store on it.
pub(crate) async fn on_etcd() -> Option<(Cluster, SharedStore)> {
    let etcd = Cluster::start(1).await?;
    let endpoints = etcd.options().endpoints;
    let options = EtcdOptions { endpoints, ..EtcdOptions::default() };
    let store = Etcd::connect(options).await.unwrap();
    Some((etcd, store))
}
