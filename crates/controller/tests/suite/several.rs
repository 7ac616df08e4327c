//! Several controllers on one store.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use selvage_api::edgeproto as wire;
use selvage_store::SharedStore;
use selvage_store::etcd::{Etcd, EtcdOptions};

use super::harness::*;
use super::infos::{Agent, wait_for_state};

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
    let Some(etcd) = EtcdServer::start() else { return };
    work_together(etcd.store().await).await;
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

    // A controller that is registered and does not answer.
    let silent = "127.0.0.1:1".to_owned();
    let row = wire::Controller {
        key: Some(wire::ControllerKey { addr: silent.clone() }),
        ..Default::default()
    };
    here.plant(row).await;
    let mut stream = here.nodes().show_node(wire::Node::default()).await.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(node) = stream.message().await.unwrap() {
        found.push(node.key.unwrap().name);
    }
    assert_eq!(found, ["crm", "dme"]);
    let trailers = stream.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.get("x-selvage-unreachable").unwrap(), silent.as_str());

    drop(dme);
    eventually("a node goes with its connection", || async {
        names(wire::Node::default()).await == ["crm"]
    })
    .await;
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

/// A real etcd, gone with the test.
pub(crate) struct EtcdServer {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl EtcdServer {
    /// Nothing, after saying so, where there is no etcd; on CI there must be.
    #[allow(clippy::print_stderr)]
    pub(crate) fn start() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .map(|folder: PathBuf| folder.join("etcd"))
            .find(|candidate| candidate.is_file());
        let Some(binary) = found else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "etcd is needed on CI");
            eprintln!("SKIPPED: etcd: no etcd server found in PATH");
            return None;
        };
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("http://127.0.0.1:{}", port());
        let peer = format!("http://127.0.0.1:{}", port());
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(binary)
            .args(["--name", "m", "--log-level", "error", "--data-dir"])
            .arg(folder.path())
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("m={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { child, url, _folder: folder })
    }

    pub(crate) async fn store(&self) -> SharedStore {
        let connecting = async {
            loop {
                let options =
                    EtcdOptions { endpoints: vec![self.url.clone()], ..EtcdOptions::default() };
                match Etcd::connect(options).await {
                    Ok(store) => return store,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), connecting).await.expect("etcd answers")
    }
}
