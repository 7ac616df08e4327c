//! Transactions over records of several types.
//!
//! Reads are remembered together with the revision they saw; the commit goes
//! through only if none of them has changed, else the body runs again.
//!
//! All reads are of one moment, that of the first. Later ones still ask for
//! what is newest, which costs a store less than the past: what has not
//! changed since is the same. Of a key that is not there nobody can tell since
//! when. Such a read is taken as it is, since the commit will tell; a body that
//! comes to an end without one runs again, and then asks for the past.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::checked_key;
use super::record::{Record, decode, encode, storage_key};
use crate::{
    Compare, Error, KeyValue, LeaseId, Op, RangeReply, RangeRequest, Result, Revision, SharedStore,
    Txn,
};

/// Number of times that a body is run before giving up.
const MAX_ATTEMPTS: u32 = 100;
const LONGEST_PAUSE_MICROS: u64 = 20_000;

/// Result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed<T> {
    pub value: T,
    /// Revision of the store after the commit: wait for it on a table to see
    /// there what the transaction wrote.
    pub revision: Revision,
}

/// The handle that the body of [`transact`] works with.
#[derive(Clone)]
pub struct Transaction {
    store: SharedStore,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// All reads see the store as it was at this revision.
    snapshot: Option<Revision>,
    reads: BTreeMap<String, Option<KeyValue>>,
    writes: BTreeMap<String, Write>,
    /// The snapshot was compacted away while the body ran.
    lost: bool,
    /// True if a key that was missing may have existed at the snapshot.
    unsure: bool,
    /// True if that must not happen, because an earlier attempt was unsure.
    strict: bool,
}

#[derive(Clone)]
enum Write {
    Put(Bytes, Option<LeaseId>),
    Delete,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

impl Transaction {
    fn new(store: &SharedStore, strict: bool) -> Self {
        let state = State { strict, ..State::default() };
        Self { store: Arc::clone(store), state: Arc::new(Mutex::new(state)) }
    }

    /// The record as this transaction sees it, its own writes included.
    pub async fn get<R: Record>(&self, key: &str) -> Result<Option<R>> {
        let stored = storage_key::<R>(key);
        let written = self.state.lock().writes.get(&stored).cloned();
        let value = match written {
            Some(Write::Put(value, _)) => Some(value),
            Some(Write::Delete) => None,
            None => self.read(&stored).await?.map(|kv| kv.value),
        };
        value.map(|value| Ok(decode::<R>(key, &value)?.value)).transpose()
    }

    async fn read(&self, key: &str) -> Result<Option<KeyValue>> {
        let (snapshot, strict) = {
            let state = self.state.lock();
            if let Some(read) = state.reads.get(key) {
                return Ok(read.clone());
            }
            (state.snapshot, state.strict)
        };
        let mut reply = self.store.range(RangeRequest::key(key.to_owned())).await?;
        let mut unsure = false;
        if let Some(snapshot) = snapshot.filter(|snapshot| *snapshot != reply.revision) {
            let later = reply.revision > snapshot;
            match reply.items.first() {
                Some(kv) if later && kv.mod_revision <= snapshot => {}
                None if later && !strict => unsure = true,
                _ => reply = self.read_past(key, snapshot).await?,
            }
        }
        let mut state = self.state.lock();
        state.unsure |= unsure;
        state.snapshot.get_or_insert(reply.revision);
        let read = reply.items.pop();
        state.reads.insert(key.to_owned(), read.clone());
        Ok(read)
    }

    async fn read_past(&self, key: &str, snapshot: Revision) -> Result<RangeReply> {
        let mut request = RangeRequest::key(key.to_owned());
        request.at_revision = Some(snapshot);
        let reply = self.store.range(request).await;
        self.state.lock().lost |= matches!(reply, Err(Error::Compacted { .. }));
        reply
    }

    /// Writes a record, whether it exists or not.
    pub fn put<R: Record>(&self, record: &R) -> Result<()> {
        self.write(record, None)
    }

    /// Writes a record that ends with a lease.
    pub fn put_with_lease<R: Record>(&self, record: &R, lease: LeaseId) -> Result<()> {
        self.write(record, Some(lease))
    }

    fn write<R: Record>(&self, record: &R, lease: Option<LeaseId>) -> Result<()> {
        let key = storage_key::<R>(&checked_key(record)?);
        self.state.lock().writes.insert(key, Write::Put(encode(record), lease));
        Ok(())
    }

    /// Writes a record that must not exist yet.
    pub async fn create<R: Record>(&self, record: &R) -> Result<()> {
        let key = checked_key(record)?;
        if self.get::<R>(&key).await?.is_some() {
            return Err(Error::AlreadyExists { kind: R::KIND, key });
        }
        self.put(record)
    }

    /// Deletes a record that must exist.
    pub async fn delete<R: Record>(&self, key: &str) -> Result<()> {
        if self.get::<R>(key).await?.is_none() {
            return Err(Error::NotFound { kind: R::KIND, key: key.to_owned() });
        }
        self.state.lock().writes.insert(storage_key::<R>(key), Write::Delete);
        Ok(())
    }

    fn lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Returns whether the body may have seen two moments, and no commit would
    /// tell.
    fn is_doubtful<T, E>(&self, result: &Result<T, E>) -> bool {
        let state = self.state.lock();
        state.unsure && (result.is_err() || state.writes.is_empty())
    }

    /// The revision, or nothing if something that was read has changed.
    async fn commit(&self) -> Result<Option<Revision>> {
        let txn = {
            let state = self.state.lock();
            if state.writes.is_empty()
                && let Some(snapshot) = state.snapshot
            {
                return Ok(Some(snapshot));
            }
            let mut txn = Txn::new();
            for (key, read) in &state.reads {
                let revision = read.as_ref().map_or(0, |kv| kv.mod_revision);
                txn.compares.push(Compare::unchanged(key.clone(), revision));
            }
            for (key, write) in &state.writes {
                txn.then.push(match write {
                    Write::Put(value, lease) => {
                        Op::put_with_lease(key.clone(), value.clone(), *lease)
                    }
                    Write::Delete => Op::delete(key.clone()),
                });
            }
            txn
        };
        let reply = self.store.txn(txn).await?;
        Ok(reply.succeeded.then_some(reply.revision))
    }
}

/// Runs `body` and commits what it wrote, all or nothing. The body runs again
/// when somebody changed what it had read, so it must have no effects of its
/// own; an error from it ends the transaction and nothing is written.
///
/// ```no_run
/// # use selvage_store::{Error, Record, SharedStore, transact};
/// # async fn example<R: Record>(store: &SharedStore) -> Result<(), Error> {
/// transact(store, |tx| async move {
///     if let Some(record) = tx.get::<R>("a").await? {
///         tx.put(&record)?;
///     }
///     Ok::<_, Error>(())
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
pub async fn transact<T, E, F, Fut>(store: &SharedStore, mut body: F) -> Result<Committed<T>, E>
where
    F: FnMut(Transaction) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: From<Error>,
{
    let mut strict = false;
    for attempt in 1..=MAX_ATTEMPTS {
        let transaction = Transaction::new(store, strict);
        let result = body(transaction.clone()).await;
        if transaction.is_doubtful(&result) {
            strict = true;
            continue;
        }
        if !transaction.lost() {
            let value = result?;
            if let Some(revision) = transaction.commit().await? {
                return Ok(Committed { value, revision });
            }
        }
        pause(attempt).await;
    }
    Err(Error::Aborted { attempts: MAX_ATTEMPTS }.into())
}

/// Waits a random time that grows with the attempts, so that those who are in
/// each other's way come apart.
pub(super) async fn pause(attempt: u32) {
    let most = (100_u64 << attempt.min(10)).min(LONGEST_PAUSE_MICROS);
    let micros = rand::random_range(0..=most);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}
