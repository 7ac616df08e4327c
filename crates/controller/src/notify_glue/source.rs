//! A table as a source of notify.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use selvage_api::object::Object;
use selvage_notify::{Changes, History, Kind, ObjectKey, Source};
use selvage_store::Table;
use selvage_store::table::{Change, Subscription};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::row::Row;
use crate::tables::{Held, Tabled};

/// How many encoded objects are kept for peers that ask for the same.
const ENCODED: usize = 8192;

/// The objects of a table, for agents.
pub(super) struct TableSource<M: Tabled> {
    kind: Arc<Kind>,
    table: Arc<Table<Row<M>>>,
    /// Taken when feeding begins.
    subscription: Mutex<Option<Subscription<Row<M>>>>,
    subscribers: RwLock<Vec<Changes>>,
    state: RwLock<State>,
    encoded: Mutex<HashMap<String, (u64, Bytes)>>,
}

struct State {
    keys: BTreeMap<String, ObjectKey>,
    /// Numbers of our own: a table does not say at which revision of the
    /// store something was deleted.
    history: History,
    /// Everything up to this number has been told.
    told: i64,
    /// The newest revision of the store whose change has been told.
    seen: u64,
}

impl<M: Tabled + Object> TableSource<M> {
    pub(super) fn open(table: &Arc<Table<Row<M>>>) -> Result<Arc<Self>> {
        let kind = Kind::of::<M>().map_err(Error::Notify)?;
        let subscription = table.subscribe();
        let source = Self {
            kind,
            table: Arc::clone(table),
            subscription: Mutex::new(Some(subscription)),
            subscribers: RwLock::default(),
            state: RwLock::new(State {
                keys: BTreeMap::new(),
                history: History::new(1, History::DEFAULT_LIMIT),
                told: 1,
                seen: 0,
            }),
            encoded: Mutex::default(),
        };
        let keys = source.list()?;
        {
            let mut state = source.state.write();
            state.seen =
                source.table.list().iter().map(|held| held.mod_revision).max().unwrap_or(0);
            state.keys = keys;
        }
        Ok(Arc::new(source))
    }

    fn list(&self) -> Result<BTreeMap<String, ObjectKey>> {
        self.table.list().iter().map(|held| Ok((held.key.clone(), self.key(held)?))).collect()
    }

    fn key(&self, held: &Held<M>) -> Result<ObjectKey> {
        self.kind.key_with_text(&held.key, &held.value.encode_to_vec()).map_err(Error::Notify)
    }

    /// Tells of every change. `before` runs ahead of each object that came or
    /// changed.
    pub(super) async fn feed<F>(&self, stop: &CancellationToken, before: impl Fn(Held<M>) -> F)
    where
        F: Future<Output = ()>,
    {
        let Some(mut subscription) = self.subscription.lock().take() else { return };
        loop {
            let change = tokio::select! {
                change = subscription.next() => change,
                () = stop.cancelled() => return,
            };
            match change {
                Some(Change::Put(held)) => {
                    before(held.clone()).await;
                    self.put(&held);
                }
                Some(Change::Deleted(held)) => self.deleted(&held.key),
                Some(Change::Reset) => self.reset(),
                None => return,
            }
        }
    }

    fn put(&self, held: &Held<M>) {
        let known = self.state.read().keys.get(&held.key).cloned();
        let key = match known.map_or_else(|| self.key(held), Ok) {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(kind = M::TITLE, key = held.key, %error, "cannot be sent");
                return;
            }
        };
        self.state.write().keys.insert(held.key.clone(), key.clone());
        self.tell(&key);
        let mut state = self.state.write();
        state.seen = state.seen.max(held.mod_revision);
    }

    fn deleted(&self, text: &str) {
        self.encoded.lock().remove(text);
        let gone = self.state.write().keys.remove(text);
        if let Some(key) = gone {
            self.tell(&key);
        }
    }

    /// Changes were missed: everything may have changed.
    fn reset(&self) {
        let listed = match self.list() {
            Ok(listed) => listed,
            Err(error) => {
                tracing::error!(kind = M::TITLE, %error, "cannot be listed for agents");
                return;
            }
        };
        let before = std::mem::replace(&mut self.state.write().keys, listed.clone());
        for key in listed.values() {
            self.tell(key);
        }
        for key in before.values().filter(|key| !listed.contains_key(key.text())) {
            self.tell(key);
        }
    }

    /// A peer that comes at this moment either hears of the change as a
    /// subscriber or finds it in the history.
    fn tell(&self, key: &ObjectKey) {
        let number = {
            let mut state = self.state.write();
            let number = state.history.revision() + 1;
            state.history.record(number, key.clone());
            number
        };
        self.announce(key);
        let mut state = self.state.write();
        state.told = state.told.max(number);
    }

    fn announce(&self, key: &ObjectKey) {
        for changes in self.subscribers.read().iter() {
            changes.changed(key);
        }
    }

    /// Makes sure that an object that something of `revision` refers to has
    /// been told of, if it is there.
    pub(super) async fn lead(&self, key: &M::Key, revision: u64) {
        let text = key.text();
        if self.table.get(&text).is_none() && key.is_complete() {
            // It was written before; this view has not seen it yet.
            if let Err(error) = self.table.wait_for(revision).await {
                tracing::warn!(kind = M::TITLE, %error, "the view lags behind");
            }
        }
        let Some(held) = self.table.get(&text) else { return };
        if held.mod_revision > self.state.read().seen
            && let Ok(key) = self.key(&held)
        {
            self.announce(&key);
        }
    }
}

impl<M: Tabled + Object> Source for TableSource<M> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    fn keys(&self) -> Vec<ObjectKey> {
        self.state.read().keys.values().cloned().collect()
    }

    fn get(&self, key: &ObjectKey) -> Option<Bytes> {
        let held = self.table.get(key.text())?;
        let mut encoded = self.encoded.lock();
        if let Some((revision, bytes)) = encoded.get(key.text())
            && *revision == held.mod_revision
        {
            return Some(bytes.clone());
        }
        if encoded.len() >= ENCODED {
            encoded.clear();
        }
        let bytes = Bytes::from(held.value.encode_to_vec());
        encoded.insert(key.text().to_owned(), (held.mod_revision, bytes.clone()));
        Some(bytes)
    }

    fn contains(&self, key: &ObjectKey) -> bool {
        self.table.get(key.text()).is_some()
    }

    fn subscribe(&self, changes: Changes) {
        let mut subscribers = self.subscribers.write();
        subscribers.retain(|known| !known.is_closed());
        subscribers.push(changes);
    }

    fn revision(&self) -> i64 {
        self.state.read().told
    }

    fn changes_since(&self, revision: i64) -> Option<Vec<ObjectKey>> {
        self.state.read().history.since(revision)
    }
}
