//! A table as a source of notify. Its revisions are those of the store, so
//! that an agent can go on at another controller, or at this one after a
//! restart, where it stopped.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use selvage_api::object::Object;
use selvage_notify::{Changes, History, Kind, ObjectKey, Source};
use selvage_store::table::{Change, Subscription};
use selvage_store::{Revision, Table};
use tokio_util::sync::CancellationToken;

use super::past::Past;
use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::row::Row;
use crate::tables::{HasTable, StoredRow};

/// Most encoded objects that are kept for peers that ask for the same.
const ENCODED: usize = 8192;
/// Changes that are told in one go: who sends waits for as long.
const BATCH: usize = 64;
/// Interval at which a table without changes is asked for its revision.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The objects of a table, for agents.
pub(super) struct TableSource<M: HasTable> {
    kind: Arc<Kind>,
    table: Arc<Table<Row<M>>>,
    past: Arc<Past>,
    /// Taken when feeding begins.
    subscription: Mutex<Option<Subscription<Row<M>>>>,
    subscribers: RwLock<Vec<Changes>>,
    /// StoredRow while changes are told and it is noted up to where.
    telling: Mutex<()>,
    state: RwLock<State>,
    /// Up to which revision the view was found to be complete, beyond what
    /// the table knows of itself.
    checked: tokio::sync::Mutex<Revision>,
    encoded: Mutex<HashMap<String, (Revision, Bytes)>>,
    /// The object without its secrets, if it has any.
    conceal: Option<fn(&M) -> Option<M>>,
}

struct State {
    keys: BTreeMap<String, ObjectKey>,
    /// Changes, at revisions that are the store's or later.
    history: History,
    /// Everything up to this revision has been told.
    sent: i64,
    /// The newest object that has been told in its turn.
    seen: Revision,
    /// Keys that were sent ahead of their turn, with their revision.
    led: HashMap<String, Revision>,
}

/// Revisions as notify counts them.
fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

impl<M: HasTable + Object> TableSource<M> {
    pub(super) fn open(table: &Arc<Table<Row<M>>>, past: &Arc<Past>) -> Result<Arc<Self>> {
        Self::open_secretive(table, past, None)
    }

    /// Of objects that have secrets.
    pub(super) fn open_secretive(
        table: &Arc<Table<Row<M>>>,
        past: &Arc<Past>,
        conceal: Option<fn(&M) -> Option<M>>,
    ) -> Result<Arc<Self>> {
        let kind = Kind::of::<M>().map_err(Error::Notify)?;
        let subscription = table.subscribe();
        // What comes later than this comes by the subscription.
        let begins = signed(table.revision());
        let source = Self {
            kind,
            table: Arc::clone(table),
            past: Arc::clone(past),
            subscription: Mutex::new(Some(subscription)),
            subscribers: RwLock::default(),
            telling: Mutex::default(),
            state: RwLock::new(State {
                keys: BTreeMap::new(),
                history: History::new(begins, History::DEFAULT_LIMIT),
                sent: begins,
                seen: 0,
                led: HashMap::new(),
            }),
            checked: tokio::sync::Mutex::default(),
            encoded: Mutex::default(),
            conceal,
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

    fn key(&self, held: &StoredRow<M>) -> Result<ObjectKey> {
        self.kind.key_with_text(&held.key, &held.value.encode_to_vec()).map_err(Error::Notify)
    }

    /// Tells of every change. `before` runs ahead of each object that came or
    /// changed.
    pub(super) async fn feed<F>(&self, stop: &CancellationToken, before: impl Fn(StoredRow<M>) -> F)
    where
        F: Future<Output = ()>,
    {
        let Some(mut subscription) = self.subscription.lock().take() else { return };
        let mut first = None;
        loop {
            let (batch, reached) = self.drain(first.take(), &mut subscription);
            for change in &batch {
                if let Change::Put(held) = change {
                    before(Arc::clone(held)).await;
                }
            }
            let waits = reached.is_some();
            self.tell_all(batch, reached);
            if !waits {
                continue;
            }
            first = tokio::select! {
                change = subscription.next() => match change {
                    None => return,
                    change => change,
                },
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => None,
            };
        }
    }

    /// Returns the changes that came, and the revision up to which that is
    /// everything, unless there is more.
    fn drain(
        &self,
        first: Option<Change<Row<M>>>,
        subscription: &mut Subscription<Row<M>>,
    ) -> (Vec<Change<Row<M>>>, Option<i64>) {
        let mut batch = Vec::from_iter(first);
        loop {
            // Asked before looking: what it includes has been sent to us.
            let reached = signed(self.table.revision());
            let mut next = || subscription.next().now_or_never().flatten();
            let mut more = false;
            while batch.len() < BATCH
                && let Some(change) = next()
            {
                batch.push(change);
                more = true;
            }
            if batch.len() >= BATCH {
                return (batch, None);
            }
            if !more {
                return (batch, Some(reached));
            }
        }
    }

    fn tell_all(&self, batch: Vec<Change<Row<M>>>, reached: Option<i64>) {
        let telling = self.telling.lock();
        // The table does not say when something was deleted, but a change that
        // it sent is included in its revision.
        let number = signed(self.table.revision());
        for change in batch {
            match change {
                Change::Put(held) => self.put(&held, number),
                Change::Deleted(held) => self.deleted(&held.key, number),
                Change::Reset => self.reset(number),
            }
        }
        if let Some(reached) = reached {
            let mut state = self.state.write();
            state.sent = state.sent.max(reached);
            state.history.advance(reached);
        }
        drop(telling);
    }

    fn put(&self, held: &StoredRow<M>, number: i64) {
        {
            let mut state = self.state.write();
            state.seen = state.seen.max(held.mod_revision);
            match state.led.get(&held.key) {
                Some(led) if *led > held.mod_revision => return,
                Some(led) if *led == held.mod_revision => {
                    state.led.remove(&held.key);
                    return;
                }
                _ => {}
            }
        }
        self.enter(held, number);
    }

    fn enter(&self, held: &StoredRow<M>, number: i64) {
        let known = self.state.read().keys.get(&held.key).cloned();
        match known.map_or_else(|| self.key(held), Ok) {
            Ok(key) => {
                self.state.write().keys.insert(held.key.clone(), key.clone());
                self.tell(&key, number);
            }
            Err(error) => {
                tracing::error!(kind = M::TITLE, key = held.key, %error, "cannot be sent");
            }
        }
    }

    fn deleted(&self, text: &str, number: i64) {
        self.encoded.lock().remove(text);
        let gone = {
            let mut state = self.state.write();
            state.led.remove(text);
            state.keys.remove(text)
        };
        if let Some(key) = gone {
            self.tell(&key, number);
        }
    }

    /// Changes were missed: everything may have changed.
    fn reset(&self, number: i64) {
        let listed = match self.list() {
            Ok(listed) => listed,
            Err(error) => {
                tracing::error!(kind = M::TITLE, %error, "cannot be listed for agents");
                return;
            }
        };
        let before = {
            let mut state = self.state.write();
            state.led.clear();
            std::mem::replace(&mut state.keys, listed.clone())
        };
        for key in listed.values() {
            self.tell(key, number);
        }
        for key in before.values().filter(|key| !listed.contains_key(key.text())) {
            self.tell(key, number);
        }
    }

    /// A peer that comes at this moment either hears of the change as a
    /// subscriber or finds it in the history.
    fn tell(&self, key: &ObjectKey, number: i64) {
        self.state.write().history.record(number, key.clone());
        for changes in self.subscribers.read().iter() {
            changes.changed(key);
        }
    }

    /// Makes sure that an object that something of `revision` refers to has
    /// been told of, if it is there.
    pub(super) async fn lead(&self, key: &M::Key, revision: Revision) {
        let text = key.text();
        if self.table.get(&text).is_none()
            && key.is_complete()
            // It was written before; this view may not have seen it yet.
            && let Err(error) = self.view_has(revision).await
        {
            tracing::warn!(kind = M::TITLE, %error, "the view lags behind");
        }
        let Some(held) = self.table.get(&text) else { return };
        let telling = self.telling.lock();
        let news = {
            let mut state = self.state.write();
            let led = state.led.get(&text).is_some_and(|led| *led >= held.mod_revision);
            let news = held.mod_revision > state.seen && !led;
            if news {
                state.led.insert(text, held.mod_revision);
            }
            news
        };
        if news {
            self.enter(&held, signed(self.table.revision().max(held.mod_revision)));
        }
        drop(telling);
    }

    /// Returns when the view has everything up to a revision. Where the store
    /// does not tell of revisions that change nothing here that takes a
    /// moment, so it is found out for as many as there are.
    async fn view_has(&self, revision: Revision) -> Result<()> {
        if revision <= self.table.revision() {
            return Ok(());
        }
        let mut checked = self.checked.lock().await;
        if revision > *checked {
            let now = self.table.store().revision().await?;
            if revision <= now {
                self.table.wait_for(now).await?;
                *checked = now;
            }
        }
        Ok(())
    }

    /// Whatever another controller has told by now is in this view, too.
    async fn catch_up(&self, revision: i64) -> Result<()> {
        let Ok(sent) = Revision::try_from(revision) else { return Ok(()) };
        if revision > self.state.read().history.revision() {
            self.view_has(sent).await?;
            let now = signed(self.table.revision().max(*self.checked.lock().await));
            self.state.write().history.advance(now);
        }
        Ok(())
    }

    /// Looks up what changed before this process began to watch.
    async fn look_up(&self, revision: i64) {
        if self.state.read().history.begins() <= revision {
            return;
        }
        let Some((after, changes)) = self.past.since(revision, M::KIND).await else { return };
        let mut state = self.state.write();
        let State { keys, history, .. } = &mut *state;
        let mut known = Vec::with_capacity(changes.len());
        for (at, text) in changes {
            match keys.get(&text).cloned().map_or_else(|| self.kind.key_of_text(&text), Ok) {
                Ok(key) => known.push((at, key)),
                Err(error) => {
                    tracing::error!(kind = M::TITLE, %error, "agents get everything instead");
                    return;
                }
            }
        }
        history.recall(after, known);
    }
}

#[async_trait]
impl<M: HasTable + Object> Source for TableSource<M> {
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

    fn get_public(&self, key: &ObjectKey) -> Option<Bytes> {
        let Some(conceal) = self.conceal else { return self.get(key) };
        let held = self.table.get(key.text())?;
        match conceal(&held.value.0) {
            Some(public) => Some(public.encode_to_vec().into()),
            None => self.get(key),
        }
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
        // A change under way may be queued already: with it counted, the
        // notice about it carries its revision and it is not sent twice.
        drop(self.telling.lock());
        self.state.read().sent
    }

    fn changes_since(&self, revision: i64) -> Option<Vec<ObjectKey>> {
        self.state.read().history.since(revision)
    }

    async fn recall(&self, revision: i64) {
        if let Err(error) = self.catch_up(revision).await {
            tracing::debug!(kind = M::TITLE, %error, "an agent may be ahead of this view");
        }
        self.look_up(revision).await;
    }
}
