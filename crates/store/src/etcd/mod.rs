//! The store in an etcd cluster, version 3.4 or later.

mod convert;
mod failure;
mod files;
mod options;
mod pool;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::WatchOptions;
use tokio::sync::watch as signal;

use self::convert::{Namespace, header_revision, revision, signed};
use self::pool::{Pool, Repeat};
use crate::{
    Error, KeyRange, Lease, LeaseId, RangeReply, RangeRequest, Result, Revision, Status, Store,
    Txn, TxnReply, Watch,
};

pub use self::options::{Credentials, EtcdOptions, TlsOptions};

/// A page of a listing can be large.
const MAX_MESSAGE: usize = 1 << 30;
const OLDEST_KNOWN: (u32, u32) = (3, 4);

struct Inner {
    pool: Pool,
    namespace: Namespace,
    closed: signal::Sender<bool>,
}

impl Inner {
    /// The revision that a majority agrees on.
    async fn revision(&self) -> Result<Revision> {
        let request = RangeRequest::new(KeyRange::key("-")).keys_only();
        let (key, options) = self.namespace.get(&request);
        let reply = self.pool.call("asking for the revision", Repeat::Freely, |mut client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.get(key, Some(options)).await }
        });
        Ok(header_revision(reply.await?.header()))
    }
}

/// A store in etcd.
pub struct Etcd {
    inner: Arc<Inner>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("namespace", &self.inner.namespace).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Connects, and makes sure that somebody of a suitable version answers.
    pub async fn connect(options: EtcdOptions) -> Result<Arc<Self>> {
        options.validate()?;
        let namespace = Namespace::new(&options.namespace);
        let pool = Pool::new(options)?;
        let inner = Inner { pool, namespace, closed: signal::Sender::new(false) };
        let etcd = Self { inner: Arc::new(inner) };
        check_version(&etcd.status().await?.version)?;
        Ok(Arc::new(etcd))
    }

    fn open(&self) -> Result<&Inner> {
        if *self.inner.closed.borrow() { Err(Error::Closed) } else { Ok(&self.inner) }
    }

    /// Fills in what etcd leaves out of its errors.
    async fn explain(&self, error: Error, asked: Option<Revision>) -> Error {
        match (error, asked) {
            (Error::Compacted { .. }, _) => match self.compacted().await {
                Ok(oldest) => Error::Compacted { oldest },
                Err(error) => error,
            },
            (Error::FutureRevision { .. }, Some(asked)) => match self.revision().await {
                Ok(current) => Error::FutureRevision { asked, current },
                Err(error) => error,
            },
            (error, _) => error,
        }
    }

    /// Returns the revision up to which history is gone. etcd tells it only to
    /// a watch that starts before it.
    async fn compacted(&self) -> Result<Revision> {
        let probe = self.inner.namespace.span(&KeyRange::All).key;
        self.open()?
            .pool
            .call("asking for the compacted revision", Repeat::Freely, |mut client| {
                let probe = probe.clone();
                async move {
                    let options = WatchOptions::new().with_start_revision(1);
                    let mut stream = client.watch(probe, Some(options)).await?;
                    while let Some(response) = stream.message().await? {
                        if response.compact_revision() > 0 {
                            return Ok(revision(response.compact_revision()));
                        }
                    }
                    Ok(0)
                }
            })
            .await
    }
}

/// Puts in the lease that the caller named.
fn about_lease(error: Error, id: LeaseId) -> Error {
    if let Error::LeaseNotFound { .. } = error { Error::LeaseNotFound { id } } else { error }
}

fn named_leases(txn: &Txn) -> Option<LeaseId> {
    let ops = txn.then.iter().chain(&txn.otherwise);
    ops.filter_map(|op| if let crate::Op::Put { lease, .. } = op { *lease } else { None }).next()
}

fn asked_revision(txn: &Txn) -> Option<Revision> {
    let ops = txn.then.iter().chain(&txn.otherwise);
    ops.filter_map(|op| if let crate::Op::Get(get) = op { get.at_revision } else { None }).next()
}

fn check_version(version: &str) -> Result<()> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let found = parts.next().flatten().zip(parts.next().flatten());
    if found.is_some_and(|found| found >= OLDEST_KNOWN) {
        return Ok(());
    }
    let reason = format!("this is etcd {version}, 3.4 or later is needed");
    Err(Error::invalid("endpoints", reason))
}

/// etcd counts leases in whole seconds.
fn whole_seconds(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    signed(seconds.max(1))
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}

#[async_trait]
impl Store for Etcd {
    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        txn.validate()?;
        let inner = self.open()?;
        let request = inner.namespace.txn(&txn);
        let changes = txn.then.iter().chain(&txn.otherwise);
        let reads_only = changes.into_iter().all(|op| matches!(op, crate::Op::Get(_)));
        let repeat = if reads_only { Repeat::Freely } else { Repeat::IfWithoutEffect };
        let reply = inner.pool.call("a transaction", repeat, |client| {
            let mut keys = client.kv_client().max_decoding_message_size(MAX_MESSAGE);
            let request = request.clone();
            async move { keys.txn(request).await }
        });
        match reply.await {
            Ok(reply) => inner.namespace.txn_reply(&reply),
            Err(error) => {
                let error = match named_leases(&txn) {
                    Some(id) => about_lease(error, id),
                    None => error,
                };
                Err(self.explain(error, asked_revision(&txn)).await)
            }
        }
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        request.range.validate()?;
        let inner = self.open()?;
        let (key, options) = inner.namespace.get(&request);
        let reply = inner.pool.call("a read", Repeat::Freely, |client| {
            let mut keys = client.kv_client().max_decoding_message_size(MAX_MESSAGE);
            let (key, options) = (key.clone(), options.clone());
            async move { keys.get(key, Some(options)).await }
        });
        match reply.await {
            Ok(reply) => Ok(inner.namespace.range_reply(reply)),
            Err(error) => Err(self.explain(error, request.at_revision).await),
        }
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        range.validate()?;
        self.open()?;
        let next = match from {
            Some(from) => from,
            None => self.revision().await? + 1,
        };
        Ok(watch::watch(Arc::clone(&self.inner), range, next))
    }

    async fn revision(&self) -> Result<Revision> {
        self.open()?.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        let reply = self.open()?.pool.call("compacting", Repeat::Freely, |mut client| async move {
            client.compact(signed(revision), None).await
        });
        match reply.await {
            Ok(_) | Err(Error::Compacted { .. }) => Ok(()),
            Err(error) => Err(self.explain(error, Some(revision)).await),
        }
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        if ttl.is_zero() {
            return Err(Error::invalid("ttl", "must not be zero"));
        }
        let seconds_asked = whole_seconds(ttl);
        let reply = self
            .open()?
            .pool
            .call("granting a lease", Repeat::IfWithoutEffect, |mut client| async move {
                client.lease_grant(seconds_asked, None).await
            })
            .await?;
        let ttl = seconds(reply.ttl());
        Ok(Lease { id: LeaseId(reply.id()), ttl, remaining: ttl })
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease> {
        let reply = self.open()?.pool.call(
            "keeping a lease alive",
            Repeat::Freely,
            |mut client| async move { client.lease_keep_alive(id.0).await.map(drop) },
        );
        reply.await.map_err(|error| about_lease(error, id))?;
        self.lease_ttl(id).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<()> {
        let reply = self.open()?.pool.call(
            "revoking a lease",
            Repeat::IfWithoutEffect,
            |mut client| async move { client.lease_revoke(id.0).await },
        );
        reply.await.map(drop).map_err(|error| about_lease(error, id))
    }

    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease> {
        let reply =
            self.open()?.pool.call("asking for a lease", Repeat::Freely, |mut client| async move {
                client.lease_time_to_live(id.0, None).await
            });
        let reply = reply.await.map_err(|error| about_lease(error, id))?;
        if reply.ttl() < 0 {
            return Err(Error::LeaseNotFound { id });
        }
        let (ttl, remaining) = (seconds(reply.granted_ttl()), seconds(reply.ttl()));
        Ok(Lease { id, ttl, remaining })
    }

    async fn lease_list(&self) -> Result<Vec<LeaseId>> {
        let call = |mut client: etcd_client::Client| async move { client.leases().await };
        let reply = self.open()?.pool.call("listing leases", Repeat::Freely, call).await?;
        let mut ids: Vec<_> = reply.leases().iter().map(|lease| LeaseId(lease.id())).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    async fn status(&self) -> Result<Status> {
        let call = |mut client: etcd_client::Client| async move { client.status().await };
        let reply = self.open()?.pool.call("asking for the status", Repeat::Freely, call).await?;
        Ok(Status {
            backend: "etcd",
            version: reply.version().to_owned(),
            revision: header_revision(reply.header()),
            compacted: 0,
            bytes: u64::try_from(reply.db_size()).unwrap_or(0),
            failure: None,
        })
    }

    async fn close(&self) -> Result<()> {
        self.inner.closed.send_replace(true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused() {
        assert!(check_version("3.4.23").is_ok());
        assert!(check_version("3.10.0").is_ok());
        assert!(check_version("4.0.0").is_ok());
        assert!(check_version("3.3.27").is_err());
        assert!(check_version("garbage").is_err());
    }

    #[test]
    fn a_password_does_not_show() {
        let credentials = Credentials { user: "u".to_owned(), password: "hidden-word".to_owned() };
        let options = EtcdOptions { credentials: Some(credentials), ..EtcdOptions::default() };
        assert!(!format!("{options:?}").contains("hidden-word"));
    }
}
