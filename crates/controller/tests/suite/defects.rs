//! Defects of the original that belong to no other file; all of them, with their
//! tests, are in `tests/defects.tsv`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_controller::{Dependencies, EdgeController, Settings};
use selvage_store::{Error, Overlay, RangeReply, RangeRequest, Result, SharedStore, StoreExt};

use super::harness::*;

/// A store that cannot read what lies under some keys.
struct Unreadable {
    store: SharedStore,
    within: &'static str,
}

#[async_trait]
impl Overlay for Unreadable {
    fn below(&self) -> &SharedStore {
        &self.store
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        if format!("{:?}", request.range).contains(self.within) {
            return Err(Error::Unavailable { reason: "the disk is gone".into() });
        }
        self.store.range(request).await
    }
}

/// The original started empty, and would have let everything be created anew.
#[tokio::test]
async fn a_controller_that_cannot_read_does_not_open() {
    let store = memory().await;
    let open = |within: &'static str| {
        let store: SharedStore = Arc::new(Unreadable { store: store.clone(), within });
        EdgeController::open(store, Settings::default(), Dependencies::default())
    };
    open("nothing has this name").await.unwrap();
    for kind in ["app-inst", "cluster-inst", "cloudlet", "flavor"] {
        let error = open(kind).await.unwrap_err();
        assert_eq!(error.code(), selvage_api::Code::Unavailable, "{kind}: {error}");
    }
}

/// A call that writes nothing has nothing to wait for, whatever else is
/// written to the same store.
#[tokio::test]
async fn what_others_write_keeps_nobody_waiting() {
    let store = memory().await;
    let house = house_on(store.clone(), |_| {}).await;
    house.furnish().await;
    for round in 0..20 {
        store.put(format!("not/ours/{round}"), "anything").await.unwrap();
        let mut nothing = developer("Acme");
        nothing.fields = vec!["6".into()];
        let mut client = house.developers();
        let update = client.update_developer(nothing);
        tokio::time::timeout(Duration::from_secs(120), update).await.unwrap().unwrap();
        let filter = wire::Developer::default();
        let shown = drain(house.developers().show_developer(filter).await).await.unwrap();
        assert_eq!(shown, [developer("Acme")]);
    }
}
