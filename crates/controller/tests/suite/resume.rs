//! Agents that come back go on where they stopped: at the same controller
//! started anew, and at another one.

use std::path::{Path, PathBuf};

use selvage_api::edgeproto as wire;
use selvage_controller::row::{Row, StoredObject};
use selvage_store::{SharedStore, Table};
use wire::Liveness::Static;

use super::harness::*;
use super::infos::Agent;
use super::several::on_etcd;

const INSTANCES: usize = 20;

/// A socket that leads to one house after the other.
struct Door {
    folder: tempfile::TempDir,
}

impl Door {
    fn to(house: &House) -> Self {
        let door = Self { folder: tempfile::tempdir().unwrap() };
        std::os::unix::fs::symlink(house.agents.path().join("agents"), door.path()).unwrap();
        door
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("agents")
    }

    fn lead_to(&self, house: &House) {
        let new = self.folder.path().join("new");
        std::os::unix::fs::symlink(house.agents.path().join("agents"), &new).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

fn name(number: usize) -> String {
    format!("app{number:02}")
}

/// As it is kept: where its cloudlet is, or the next controller to start would
/// put it there.
fn instance(app: &str, cloudlet_name: &str) -> wire::AppInst {
    let cloudlet_loc = cloudlet("tmus", cloudlet_name).location;
    wire::AppInst { cloudlet_loc, ..app_inst(app, cloudlet_name, Static) }
}

async fn furnished(house: &House) {
    house.furnish().await;
    // One who has it all by the stream shows that all has been told. Until
    // then more than need be would come again to others.
    let first = Agent::connect(house);
    first.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("in sync", || async { first.client.status().in_sync }).await;
    for number in 0..INSTANCES {
        house.plant(app("Acme", &name(number))).await;
        house.plant(instance(&name(number), "west")).await;
    }
    eventually("all has been told", || async {
        (first.app_insts.len(), first.apps.len()) == (INSTANCES, INSTANCES)
    })
    .await;
}

async fn connected(socket: &Path) -> Agent {
    let agent = Agent::connect_to(socket, |exchange| exchange);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("in sync", || async { agent.client.status().in_sync }).await;
    assert_eq!((agent.app_insts.len(), agent.apps.len()), (INSTANCES, INSTANCES));
    agent
}

async fn close(house: House) {
    house.controller.notify().close().await;
    house.stop.cancel();
    eventually("it has ended", || async { house.ended.is_finished() }).await;
}

/// One instance goes, one comes, while nobody is connected.
async fn meddle(store: &SharedStore) {
    let table = Table::<Row<wire::AppInst>>::open(store.clone()).await.unwrap();
    table.delete(&instance(&name(0), "west").key_text()).await.unwrap();
    table.put(Row(instance("later", "west"))).await.unwrap();
    table.put(Row(instance("elsewhere", "east"))).await.unwrap();
}

/// Waits for the agent to be in sync, and returns how many AppInsts came for
/// that.
async fn synced_again(agent: &Agent, before: u64) -> u64 {
    eventually("in sync again", || async { agent.client.status().stats.recv_all == 2 }).await;
    assert_eq!(agent.app_insts.len(), INSTANCES);
    let there = |name: &str| {
        let key = instance(name, "west").key.unwrap();
        agent.app_insts.find(&key).is_some()
    };
    assert!(there("later") && there(&name(1)) && !there(&name(0)));
    agent.client.status().stats.obj_recv["AppInst"] - before
}

#[tokio::test]
async fn a_controller_started_anew_sends_what_changed() {
    let store = memory().await;
    let first = house_on(store.clone(), |_| {}).await;
    furnished(&first).await;
    let door = Door::to(&first);
    let agent = connected(&door.path()).await;
    // A change that comes by the stream counts, too.
    first.plant(app("Acme", "changed")).await;
    first.flavors().create_flavor(flavor("new")).await.unwrap();
    eventually("told", || async { agent.flavors.len() == 2 }).await;
    let before = agent.client.status().stats.obj_recv["AppInst"];
    close(first).await;
    meddle(&store).await;
    let second = house_on(store, |_| {}).await;
    door.lead_to(&second);
    assert_eq!(synced_again(&agent, before).await, 2);
    assert_eq!(agent.client.status().stats.resumed, 1);
    assert_eq!(agent.flavors.len(), 2);
}

#[tokio::test]
async fn what_the_store_has_forgotten_is_sent_in_full() {
    let store = memory().await;
    let first = house_on(store.clone(), |_| {}).await;
    furnished(&first).await;
    let door = Door::to(&first);
    let agent = connected(&door.path()).await;
    let before = agent.client.status().stats.obj_recv["AppInst"];
    close(first).await;
    meddle(&store).await;
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let second = house_on(store, |_| {}).await;
    door.lead_to(&second);
    assert_eq!(synced_again(&agent, before).await, INSTANCES as u64);
    assert_eq!(agent.client.status().stats.resumed, 0);
}

/// Its revisions mean nothing in a store with another past.
#[tokio::test]
async fn a_store_put_back_from_a_copy_is_another_past() {
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let open = |path: PathBuf| async move {
        let options = selvage_store::embedded::Options::default();
        let store: SharedStore =
            selvage_store::embedded::Embedded::open(path, options).await.unwrap();
        store
    };
    let store = open(file.clone()).await;
    let first = house_on(store.clone(), |_| {}).await;
    furnished(&first).await;
    close(first).await;
    store.close().await.unwrap();
    std::fs::copy(&file, &copy).unwrap();

    let store = open(file).await;
    let second = house_on(store.clone(), |_| {}).await;
    second.plant(instance("lost", "west")).await;
    second.plant(app("Acme", "lost")).await;
    let door = Door::to(&second);
    let agent = Agent::connect_to(&door.path(), |exchange| exchange);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("in sync", || async { agent.client.status().in_sync }).await;
    assert_eq!(agent.app_insts.len(), INSTANCES + 1);
    close(second).await;
    store.close().await.unwrap();

    // Longer than the past that is lost.
    let store = open(copy).await;
    let third = house_on(store.clone(), |_| {}).await;
    for number in 0..50 {
        third.plant(flavor(&format!("new{number}"))).await;
    }
    door.lead_to(&third);
    eventually("in sync again", || async { agent.client.status().stats.recv_all == 2 }).await;
    assert_eq!((agent.app_insts.len(), agent.client.status().stats.resumed), (INSTANCES, 0));
    close(third).await;
    store.close().await.unwrap();
}

async fn moves(store: SharedStore) {
    let (first, second) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    furnished(&first).await;
    let door = Door::to(&first);
    let agent = connected(&door.path()).await;
    let before = agent.client.status().stats.obj_recv["AppInst"];
    door.lead_to(&second);
    meddle(&second.controller.store).await;
    eventually("told", || async { agent.client.status().stats.obj_recv["AppInst"] == before + 2 })
        .await;
    close(first).await;
    assert!(synced_again(&agent, before).await <= 4, "what was told last may come again");
    assert_eq!(agent.client.status().stats.resumed, 1);
}

#[tokio::test]
async fn another_controller_sends_what_changed() {
    moves(memory().await).await;
}

#[tokio::test]
async fn another_controller_on_etcd_sends_what_changed() {
    let Some((_etcd, store)) = on_etcd().await else { return };
    moves(store).await;
}
