//! Reports of an agent that are written late, on a store that takes its time.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::edgeproto as wire;
use selvage_store::{
    KeyRange, Lease, LeaseId, Op, RangeReply, RangeRequest, Result, Revision, SharedStore, Status,
    Store, Txn, TxnReply, Watch,
};
use tokio::sync::oneshot;

use super::harness::*;
use super::infos::{Agent, wait_for_state};

/// A store that holds one write of a CloudletInfo back.
struct Delaying {
    store: SharedStore,
    armed: Mutex<Option<Held>>,
}

/// The write that is held: `begun` says that it is there, `release` lets it go on, and
/// `ended` says that it was tried.
struct Held {
    begun: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
    ended: oneshot::Sender<()>,
}

fn is_report(op: &Op) -> bool {
    matches!(op, Op::Put { key, .. } if String::from_utf8_lossy(key).contains("cloudlet-info"))
}

#[async_trait]
impl Store for Delaying {
    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        let held = match txn.then.iter().any(is_report) {
            true => self.armed.lock().take(),
            false => None,
        };
        let Some(held) = held else { return self.store.txn(txn).await };
        held.begun.send(()).unwrap();
        held.release.await.unwrap();
        let reply = self.store.txn(txn).await;
        held.ended.send(()).unwrap();
        reply
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        self.store.range(request).await
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        self.store.watch(range, from).await
    }

    async fn revision(&self) -> Result<Revision> {
        self.store.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.store.compact(revision).await
    }

    async fn lease_grant(&self, ttl: std::time::Duration) -> Result<Lease> {
        self.store.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease> {
        self.store.lease_keep_alive(id).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<()> {
        self.store.lease_revoke(id).await
    }

    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease> {
        self.store.lease_ttl(id).await
    }

    async fn lease_list(&self) -> Result<Vec<LeaseId>> {
        self.store.lease_list().await
    }

    async fn status(&self) -> Result<Status> {
        self.store.status().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}

fn report(ram: u64) -> wire::CloudletInfo {
    wire::CloudletInfo { os_max_ram: ram, ..cloudlet_info("tmus", "west") }
}

/// Memory of the cloudlet as the store has it by now.
async fn stored_ram(house: &House) -> Option<u64> {
    let state = &house.controller;
    state.tables.cloudlet_infos.wait_for(state.store.revision().await.unwrap()).await.unwrap();
    house.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west")).map(|info| info.os_max_ram)
}

#[tokio::test]
async fn a_late_report_does_not_overtake_the_successors() {
    let delaying = Arc::new(Delaying { store: memory().await, armed: Mutex::default() });
    let house = house_on(Arc::clone(&delaying) as SharedStore, |_| {}).await;
    let first = Agent::connect(&house);
    first.infos.put(report(1)).unwrap();
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;

    let ((begun, begins), (release, released), (ended, ends)) =
        (oneshot::channel(), oneshot::channel(), oneshot::channel());
    *delaying.armed.lock() = Some(Held { begun, release: released, ended });
    first.infos.put(report(2)).unwrap();
    begins.await.unwrap();
    let second = Agent::connect(&house);
    second.infos.put(report(7)).unwrap();
    eventually("the successor's words", || async { stored_ram(&house).await == Some(7) }).await;
    release.send(()).unwrap();
    ends.await.unwrap();
    assert_eq!(stored_ram(&house).await, Some(7), "a write that took long");

    // A connection sends in order: when this is known, the report before it is, too.
    first.infos.put(report(3)).unwrap();
    let key = app_inst("one", "west", wire::Liveness::Static).key;
    first.app_inst_infos.put(wire::AppInstInfo { key, ..Default::default() }).unwrap();
    eventually("the word after it", || async {
        let all = wire::AppInstInfo::default();
        !drain(house.app_inst_infos().show_app_inst_info(all).await).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(stored_ram(&house).await, Some(7), "a report of a replaced connection");

    drop(second);
    eventually("whoever is left", || async { stored_ram(&house).await == Some(3) }).await;
    drop(first);
    wait_for_state(&house, "west", wire::CloudletState::Offline).await;
}
