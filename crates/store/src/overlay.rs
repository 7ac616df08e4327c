//! A store upon another that does some things its own way, such as failing
//! when a test wants it to.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    KeyRange, Lease, LeaseId, RangeReply, RangeRequest, Result, Revision, SharedStore, Status,
    Store, Txn, TxnReply, Watch,
};

/// Store on top of another: methods that are not written are done by the store
/// below.
#[async_trait]
pub trait Overlay: Send + Sync + 'static {
    fn below(&self) -> &SharedStore;

    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        self.below().txn(txn).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        self.below().range(request).await
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        self.below().watch(range, from).await
    }
}

#[async_trait]
impl<S: Overlay> Store for S {
    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        Overlay::txn(self, txn).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        Overlay::range(self, request).await
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        Overlay::watch(self, range, from).await
    }

    async fn revision(&self) -> Result<Revision> {
        self.below().revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.below().compact(revision).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.below().lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease> {
        self.below().lease_keep_alive(id).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<()> {
        self.below().lease_revoke(id).await
    }

    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease> {
        self.below().lease_ttl(id).await
    }

    async fn lease_list(&self) -> Result<Vec<LeaseId>> {
        self.below().lease_list().await
    }

    async fn status(&self) -> Result<Status> {
        self.below().status().await
    }

    async fn close(&self) -> Result<()> {
        self.below().close().await
    }
}
