//! A store whose watches can be held up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream;
use selvage_store::{
    KeyRange, Lease, LeaseId, RangeReply, RangeRequest, Result, Revision, SharedStore, Status,
    Store, Txn, TxnReply, Watch,
};
use tokio::sync::watch;

pub(crate) struct Gate {
    inner: SharedStore,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn new(inner: SharedStore) -> Arc<Self> {
        Arc::new(Self { inner, open: watch::Sender::new(true) })
    }

    /// While it is shut no watch delivers anything.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

#[async_trait]
impl Store for Gate {
    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        self.inner.txn(txn).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        self.inner.range(request).await
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        let watch = self.inner.watch(range, from).await?;
        let state = (watch, self.open.subscribe());
        Ok(Watch::new(stream::unfold(state, |(mut watch, mut open)| async move {
            loop {
                open.wait_for(|open| *open).await.ok()?;
                let item = tokio::select! {
                    biased;
                    _ = open.wait_for(|open| !*open) => continue,
                    item = watch.next() => item?,
                };
                return Some((item, (watch, open)));
            }
        })))
    }

    async fn revision(&self) -> Result<Revision> {
        self.inner.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.inner.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease> {
        self.inner.lease_keep_alive(id).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<()> {
        self.inner.lease_revoke(id).await
    }

    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease> {
        self.inner.lease_ttl(id).await
    }

    async fn lease_list(&self) -> Result<Vec<LeaseId>> {
        self.inner.lease_list().await
    }

    async fn status(&self) -> Result<Status> {
        self.inner.status().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
