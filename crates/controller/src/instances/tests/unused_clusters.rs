//! Auto-clusters that do not go with their App at the first attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use selvage_api::edgeproto::{CloudletInfo, CloudletState, ClusterInst, CrmOverride, DeleteType};
use selvage_store::clock::ManualClock;
use selvage_store::{Error, Op, Overlay, Result, SharedStore, Txn, TxnReply};

use super::support::*;

/// A store that does not answer some of the writes to ClusterInsts.
struct Moody {
    inner: SharedStore,
    silent: AtomicU32,
}

#[async_trait]
impl Overlay for Moody {
    fn below(&self) -> &SharedStore {
        &self.inner
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        let concerned = txn.then.iter().any(|op| match op {
            Op::Put { key, .. } => key.starts_with(b"records/cluster-inst/"),
            _ => false,
        });
        let count = |left: u32| left.checked_sub(1);
        if concerned && self.silent.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count).is_ok()
        {
            return Err(Error::Unavailable { reason: "a mood".into() });
        }
        self.inner.txn(txn).await
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_no_reason_to_keep_the_cluster() {
    let clock = ManualClock::new(1_000_000_000_000);
    let store = Arc::new(Moody { inner: memory_store(&clock).await, silent: AtomicU32::new(0) });
    let world = World::on(store.clone(), clock, Arc::default(), settings()).await;
    for (name, ram, vcpus, disk) in FLAVORS {
        world.put(flavor(name, *ram, *vcpus, *disk)).await;
    }
    world.add_cloudlet("tmus", "cloud-1", 254).await;
    world.add_app(app("app", "tcp:80")).await;
    let inst = app_inst("app", "autocluster1");
    world.create_app(&inst).await.ok();
    store.silent.store(3, Ordering::SeqCst);
    let answer = world.while_moments_pass(world.delete_app(&inst)).await;
    assert_eq!(answer.ok().last().unwrap(), "Deleted ClusterInst successfully");
    assert_eq!(store.silent.load(Ordering::SeqCst), 0, "the store was never silent");
    assert_eq!(world.cluster(&cluster("autocluster1")), None);
    assert!(world.service.core.unused_clusters.is_empty());
    world.check();
}

async fn set_state(world: &World, state: CloudletState) {
    let key = cloudlet_key("tmus", "cloud-1");
    let info = world.controller.tables.get::<CloudletInfo>(&key).unwrap();
    world.put(over(&info.value.0, |info| info.set_state(state))).await;
}

/// The cloudlet goes away after the App has gone, so that the cluster cannot
/// go then.
#[tokio::test]
async fn whoever_tries_again_treats_the_crm_in_the_same_way() {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    let inst = over(&app_inst("app", "autocluster1"), |inst| {
        inst.set_crm_override(CrmOverride::IgnoreCrmErrors);
    });
    let auto = cluster("autocluster1");
    world.create_app(&inst).await.ok();
    world.crm.set("Delete", Manner::Silent);
    let deleting = async {
        world.until_state(&inst, selvage_api::edgeproto::TrackedState::DeleteRequested).await;
        set_state(&world, CloudletState::Offline).await;
        world.while_time_passes(std::future::pending::<()>()).await;
    };
    let answer = tokio::select! {
        answer = world.delete_app(&inst) => answer,
        () = deleting => unreachable!("it goes on for ever"),
    };
    assert_eq!(answer.ok().last().unwrap(), "DELETING auto-cluster inst");
    assert!(world.cluster(&auto).is_some());
    assert_eq!(world.service.core.unused_clusters.len(), 1);

    set_state(&world, CloudletState::Ready).await;
    world.crm.set("Delete", Manner::Fails("no"));
    assert_eq!(world.service_caretaker().await, 1);
    world.until::<ClusterInst>(&auto, |row| row.is_none()).await;
    world.service_caretaker().await;
    assert!(world.service.core.unused_clusters.is_empty(), "it is of no use any more");
    world.crm.script.lock().reality.clear();
    world.check();
}

#[tokio::test]
async fn apps_that_go_with_their_cluster_go_without_the_crm_too() {
    let world = World::with_cloudlet().await;
    world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
    let one = over(&cluster("one"), |inst| inst.set_crm_override(CrmOverride::IgnoreCrm));
    world.create_cluster(&one).await.ok();
    let side = over(&app_inst("side", "one"), |inst| {
        inst.set_crm_override(CrmOverride::IgnoreCrm);
    });
    world.create_app(&side).await.ok();
    world.crm.set("Delete", Manner::Silent);
    world.delete_cluster(&one).await.ok();
    assert_eq!((world.cluster(&one), world.app(&side)), (None, None));
    assert!(world.crm.script.lock().taken.is_empty(), "the crm was asked");
    world.check();
}
