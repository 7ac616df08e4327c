//! The typed layer: records with versions, indexes and an in-memory view.
//!
//! A [`Table`] lists its records once and then follows the changes. Reads are
//! answered from memory; a write returns when the memory of this process has
//! it, so whoever writes sees what was written. Views of other processes
//! follow a moment later.

mod follow;
mod keyed;
mod migrate;
mod record;
mod transaction;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use self::follow::SharedTable;
use self::keyed::Registration;
use self::record::{encode, prefix, storage_key};
use self::transaction::pause;
use self::view::{key_of, to_stored};
use crate::{
    Compare, Error, KeyRange, KeyValue, LeaseId, Op, RangeRequest, Result, Revision, SharedStore,
    Store, StoreExt, Txn,
};

pub use self::migrate::{Migration, migrate_all};
pub(crate) use self::record::{ROOT, open_envelope};
pub use self::record::{Record, Stored};
pub use self::transaction::{Committed, Transaction, transact};

/// Most items read in one request when everything is listed.
const PAGE: usize = 10_000;
/// Number of attempts of an update before giving up.
const MAX_ATTEMPTS: u32 = 100;
/// Timeout of a write's waiting for the local view to have it.
const VIEW_DEADLINE: Duration = Duration::from_secs(15);
/// Time to wait for the watch before comparing the view with the store.
const WATCH_GRACE: Duration = Duration::from_millis(200);

/// Change of a record.
#[derive(Debug, Clone)]
pub enum Change<R> {
    Put(Arc<Stored<R>>),
    /// The record as it was last seen.
    Deleted(Arc<Stored<R>>),
    /// Changes were missed: list again.
    Reset,
}

/// Changes of a table, or of one record, from some moment on.
#[derive(Debug)]
pub struct Subscription<R> {
    // Goes before the place does, which is given up with the last of them.
    changes: broadcast::Receiver<Change<R>>,
    _registration: Option<Registration<R>>,
}

impl<R: Record> Subscription<R> {
    /// The next change; `None` once the table is gone or its store closed.
    pub async fn next(&mut self) -> Option<Change<R>> {
        match self.changes.recv().await {
            Ok(change) => Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Change::Reset),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// All records of one type.
pub struct Table<R: Record> {
    store: SharedStore,
    fed: Arc<SharedTable<R>>,
    follower: AbortHandle,
}

impl<R: Record> Drop for Table<R> {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl<R: Record> fmt::Debug for Table<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("kind", &R::KIND).field("len", &self.len()).finish()
    }
}

impl<R: Record> Table<R> {
    /// Lists what is there and starts to follow. Fails if any record cannot
    /// be read, for instance because a newer program wrote it.
    pub async fn open(store: SharedStore) -> Result<Arc<Self>> {
        check_kind(R::KIND)?;
        let fed = SharedTable::<R>::load(&store).await?;
        let follower = tokio::spawn(Arc::clone(&fed).follow(Arc::clone(&store))).abort_handle();
        Ok(Arc::new(Self { store, fed, follower }))
    }

    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    pub fn get(&self, key: &str) -> Option<Arc<Stored<R>>> {
        self.fed.view.read().get(key)
    }

    /// All records in the order of their keys.
    pub fn list(&self) -> Vec<Arc<Stored<R>>> {
        self.fed.view.read().list()
    }

    pub fn list_prefix(&self, prefix: &str) -> Vec<Arc<Stored<R>>> {
        self.fed.view.read().list_prefix(prefix)
    }

    /// The records that [`Record::indexes`] gave this pair for.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Stored<R>>> {
        self.fed.view.read().by_index(index, value)
    }

    pub fn len(&self) -> usize {
        self.fed.view.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision up to which the view is complete and subscribers have been
    /// told. One that was told of a change finds it included.
    pub fn revision(&self) -> Revision {
        self.fed.progress.borrow().revision
    }

    /// Keys whose newest value could not be read, with the reason. The view
    /// shows what was there before.
    pub fn faults(&self) -> BTreeMap<String, String> {
        self.fed.view.read().faults()
    }

    /// All changes from now on.
    pub fn subscribe(&self) -> Subscription<R> {
        Subscription { changes: self.fed.changes.subscribe(), _registration: None }
    }

    /// The changes of one record from now on, whether it is there or not.
    /// Those of others wake nobody.
    pub fn subscribe_key(&self, key: &str) -> Subscription<R> {
        let (changes, place) = self.fed.keyed.subscribe(key);
        Subscription { changes, _registration: Some(place) }
    }

    /// Writes a record that must not exist yet.
    pub async fn create(&self, record: R) -> Result<Revision> {
        let key = checked_key(&record)?;
        let stored = storage_key::<R>(&key);
        let txn = Txn::new()
            .when(Compare::missing(stored.clone()))
            .then(Op::put(stored, encode(&record)));
        let reply = self.store.txn(txn).await?;
        if !reply.succeeded {
            return Err(Error::AlreadyExists { kind: R::KIND, key });
        }
        self.wait_for(reply.revision).await?;
        Ok(reply.revision)
    }

    /// Writes a record, whether it exists or not.
    pub async fn put(&self, record: R) -> Result<Revision> {
        self.write(record, None).await
    }

    /// Writes a record that ends with a lease.
    pub async fn put_with_lease(&self, record: R, lease: LeaseId) -> Result<Revision> {
        self.write(record, Some(lease)).await
    }

    async fn write(&self, record: R, lease: Option<LeaseId>) -> Result<Revision> {
        let key = storage_key::<R>(&checked_key(&record)?);
        let op = Op::put_with_lease(key, encode(&record), lease);
        let revision = self.store.txn(Txn::new().then(op)).await?.revision;
        self.wait_for(revision).await?;
        Ok(revision)
    }

    /// Reads a record, lets `change` work on it and writes it back, again and
    /// again until nobody came in between. An error from `change` ends it and
    /// nothing is written; nor is anything if the record stays as it was.
    pub async fn update<E: From<Error>>(
        &self,
        key: &str,
        mut change: impl FnMut(&mut R) -> Result<(), E>,
    ) -> Result<Arc<Stored<R>>, E> {
        let mut seen = self.get(key);
        for attempt in 1..=MAX_ATTEMPTS {
            let base = match seen.take() {
                Some(base) => base,
                None => self.read(key).await?,
            };
            let mut value = base.value.clone();
            change(&mut value)?;
            if value.key() != key {
                return Err(Error::invalid("key", "must not be changed by an update").into());
            }
            if value == base.value {
                return Ok(base);
            }
            if let Some(stored) = self.swap(&base, value).await? {
                return Ok(stored);
            }
            pause(attempt).await;
        }
        Err(Error::Aborted { attempts: MAX_ATTEMPTS }.into())
    }

    /// Writes `value` if `base` is still what the store has.
    async fn swap(&self, base: &Stored<R>, value: R) -> Result<Option<Arc<Stored<R>>>> {
        let stored = storage_key::<R>(&base.key);
        let txn = Txn::new()
            .when(Compare::unchanged(stored.clone(), base.mod_revision))
            .then(Op::put_with_lease(stored, encode(&value), base.lease));
        let reply = self.store.txn(txn).await?;
        if !reply.succeeded {
            return Ok(None);
        }
        self.wait_for(reply.revision).await?;
        Ok(Some(Arc::new(Stored {
            key: base.key.clone(),
            value,
            create_revision: base.create_revision,
            mod_revision: reply.revision,
            version: base.version + 1,
            lease: base.lease,
        })))
    }

    /// The record as the store has it now.
    async fn read(&self, key: &str) -> Result<Arc<Stored<R>>> {
        match self.store.get(&storage_key::<R>(key)).await? {
            Some(kv) => Ok(Arc::new(to_stored(key.to_owned(), kv)?)),
            None => Err(Error::NotFound { kind: R::KIND, key: key.to_owned() }),
        }
    }

    /// Deletes a record that must exist.
    pub async fn delete(&self, key: &str) -> Result<Revision> {
        let stored = storage_key::<R>(key);
        let txn = Txn::new().when(Compare::exists(stored.clone())).then(Op::delete(stored));
        let reply = self.store.txn(txn).await?;
        if !reply.succeeded {
            return Err(Error::NotFound { kind: R::KIND, key: key.to_owned() });
        }
        self.wait_for(reply.revision).await?;
        Ok(reply.revision)
    }

    /// Returns once the view has everything up to `revision`.
    pub async fn wait_for(&self, revision: Revision) -> Result<()> {
        if self.revision() >= revision {
            return Ok(());
        }
        let waiting = async {
            while tokio::time::timeout(WATCH_GRACE, self.reached(revision)).await.is_err() {
                // Not every store reports revisions that changed nothing here,
                // so check whether anything is missing.
                if self.is_up_to_date().await? {
                    return Ok(());
                }
            }
            if self.revision() >= revision { Ok(()) } else { Err(Error::Closed) }
        };
        tokio::time::timeout(VIEW_DEADLINE, waiting).await.unwrap_or_else(|_| {
            let reason = format!("the view of {} has not come to revision {revision}", R::KIND);
            Err(Error::Timeout { reason })
        })
    }

    async fn reached(&self, revision: Revision) {
        let mut progress = self.fed.progress.subscribe();
        // Fails only when the sender is gone, and `self` holds it.
        let _ = progress.wait_for(|now| now.revision >= revision || now.ended).await;
    }

    /// Returns whether the view shows exactly what the store has.
    async fn is_up_to_date(&self) -> Result<bool> {
        let request = RangeRequest::prefix(prefix::<R>()).keys_only();
        let listing = self.store.range(request).await?;
        let view = self.fed.view.read();
        let same = |kv: &KeyValue| {
            key_of::<R>(&kv.key).is_ok_and(|key| {
                view.is_faulty(&key) || view.mod_revision(&key) == Some(kv.mod_revision)
            })
        };
        Ok(listing.items.len() == view.known() && listing.items.iter().all(same))
    }
}

/// Range of the records of all tables, for a watch over several of them.
pub fn records() -> KeyRange {
    KeyRange::prefix(ROOT)
}

/// Kind and key of the record that lies at a key of the store.
pub fn record_at(key: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(key.strip_prefix(ROOT.as_bytes())?).ok()?.split_once('/')
}

/// The key of a record, if it can be stored under it.
fn checked_key<R: Record>(record: &R) -> Result<String> {
    let key = record.key();
    if key.is_empty() {
        return Err(Error::invalid("key", format!("of a {} must not be empty", R::KIND)));
    }
    Ok(key)
}

fn check_kind(kind: &'static str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if kind.is_empty() || !kind.bytes().all(fits) {
        let reason = format!("{kind:?} is not made of lower-case letters, digits and hyphens");
        return Err(Error::invalid("kind", reason));
    }
    Ok(())
}

/// Returns all keys in a range as of one revision, read in pages.
pub(crate) async fn scan(store: &dyn Store, range: KeyRange) -> Result<(Vec<KeyValue>, Revision)> {
    let (mut from, to) = range.bounds();
    let mut items: Vec<KeyValue> = Vec::new();
    let mut at = None;
    loop {
        let rest = match &to {
            Some(to) => KeyRange::span(from.clone(), to.clone()),
            None if from.is_empty() => KeyRange::All,
            // No key is longer or greater than this.
            None => KeyRange::span(from.clone(), vec![u8::MAX; crate::types::MAX_KEY_BYTES + 1]),
        };
        let mut request = RangeRequest::new(rest).limit(PAGE);
        request.at_revision = at;
        let reply = store.range(request).await?;
        let revision = *at.get_or_insert(reply.revision);
        items.extend(reply.items);
        match items.last() {
            Some(last) if reply.more => from = crate::types::successor(&last.key),
            _ => return Ok((items, revision)),
        }
    }
}
