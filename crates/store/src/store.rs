//! The trait that every store implements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    KeyRange, KeyValue, LeaseId, Op, RangeReply, RangeRequest, Result, Revision, Txn, TxnReply,
    Watch,
};

pub type SharedStore = Arc<dyn Store>;

/// A store with etcd's meaning. When a call that changes something returns
/// `Ok`, the change is on disk.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Performs a transaction. An error other than `Unavailable`, `Timeout` or
    /// `Failed` means that nothing was changed; after one of those three the
    /// change may or may not have been made.
    async fn txn(&self, txn: Txn) -> Result<TxnReply>;

    /// Reads a range. Without a revision it sees every write that was
    /// acknowledged before the call.
    async fn range(&self, request: RangeRequest) -> Result<RangeReply>;

    /// Follows the changes of a range from a revision on, that one included;
    /// `None` means from the first change after this call.
    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch>;

    /// The revision of the store now.
    async fn revision(&self) -> Result<Revision>;

    /// Forgets the history up to and including `revision`. The state at that
    /// revision can still be read. Compacting what is compacted is no error.
    async fn compact(&self, revision: Revision) -> Result<()>;

    /// Makes a lease that ends after `ttl` unless it is kept alive. The time
    /// given in the answer may be longer than the one asked for.
    async fn lease_grant(&self, ttl: Duration) -> Result<Lease>;

    /// Starts the time of a lease anew.
    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease>;

    /// Ends a lease and deletes the keys that hang on it.
    async fn lease_revoke(&self, id: LeaseId) -> Result<()>;

    /// Returns what is known of a lease.
    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease>;

    /// Every lease there is, in the order of their ids.
    async fn lease_list(&self) -> Result<Vec<LeaseId>>;

    async fn status(&self) -> Result<Status>;

    /// Finishes what was accepted and releases files and connections. Later
    /// calls fail with `Closed`; watches end, at the latest when they have
    /// delivered what was committed before.
    async fn close(&self) -> Result<()>;
}

/// A lease as the store sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub ttl: Duration,
    pub remaining: Duration,
}

/// State of a store, for people and for health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// `embedded` or `etcd`.
    pub backend: &'static str,
    /// Version of the etcd server, or of the file format.
    pub version: String,
    pub revision: Revision,
    /// History up to here is gone. 0 if nothing is, or if the backend does
    /// not tell.
    pub compacted: Revision,
    /// Size of the data on disk.
    pub bytes: u64,
    /// Reason why the store refuses writes, if it does.
    pub failure: Option<String>,
}

/// Shorter ways to say common things.
#[async_trait]
pub trait StoreExt: Store {
    async fn get(&self, key: &(impl AsRef<[u8]> + Sync + ?Sized)) -> Result<Option<KeyValue>> {
        let key = Bytes::copy_from_slice(key.as_ref());
        Ok(self.range(RangeRequest::key(key)).await?.items.pop())
    }

    async fn list(&self, prefix: &(impl AsRef<[u8]> + Sync + ?Sized)) -> Result<RangeReply> {
        let prefix = Bytes::copy_from_slice(prefix.as_ref());
        self.range(RangeRequest::prefix(prefix)).await
    }

    /// Puts one key; gives the revision.
    async fn put(
        &self,
        key: impl Into<Bytes> + Send,
        value: impl Into<Bytes> + Send,
    ) -> Result<Revision> {
        let op = Op::put(key, value);
        Ok(self.txn(Txn::new().then(op)).await?.revision)
    }

    /// Deletes a range; gives the revision.
    async fn delete(&self, range: KeyRange) -> Result<Revision> {
        Ok(self.txn(Txn::new().then(Op::Delete(range))).await?.revision)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
