//! Objects of one type in memory, both ends of notify at once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use prost::{Message, Name};
use selvage_api::object::{Key, Object};
use tokio::sync::watch;

use crate::{
    Changes, Checkpoint, Error, History, Incoming, Kind, ObjectKey, Role, Sink, Source, Stream,
};

/// Change of an object: its value before and after.
#[derive(Debug)]
pub struct Change<'a, M> {
    /// Its key.
    pub key: &'a ObjectKey,
    /// Object before the change; `None` if it is new.
    pub before: Option<&'a Arc<M>>,
    /// Object after the change; `None` if it is gone.
    pub now: Option<&'a Arc<M>>,
}

type Hook<M> = Box<dyn Fn(&Change<'_, M>) + Send + Sync>;

/// Origin of objects that this process put here itself.
const LOCAL: i64 = 0;

/// Objects of one type in the order of their keys.
///
/// Changes are told, one after the other and after they can be seen, first to
/// what is connected by notify, then to the hooks, then to those who wait for
/// a revision. An update that changes nothing is not told.
pub struct Cache<M> {
    kind: Arc<Kind>,
    /// Lock that a writer holds until all subscribers have been notified.
    writing: Mutex<()>,
    state: RwLock<State<M>>,
    listeners: Mutex<Vec<Changes>>,
    hooks: RwLock<Vec<Hook<M>>>,
    published: watch::Sender<i64>,
    checkpoint: Mutex<Option<Checkpoint>>,
}

struct State<M> {
    objects: BTreeMap<ObjectKey, Entry<M>>,
    /// Keys of the objects that came last by each stream.
    origins: HashMap<i64, HashSet<ObjectKey>>,
    history: History,
}

struct Entry<M> {
    object: Arc<M>,
    encoded: OnceLock<Bytes>,
    origin: i64,
}

impl<M> fmt::Debug for Cache<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.state.read().objects.len();
        f.debug_struct("Cache").field("kind", &self.kind).field("len", &len).finish()
    }
}

impl<M: Object + PartialEq + Send + Sync + 'static> Cache<M> {
    /// An empty cache. Fails for a type without a key.
    pub fn new() -> Result<Arc<Self>, Error> {
        Self::with_history(History::DEFAULT_LIMIT)
    }

    /// Creates a cache that remembers that many changes for peers that resume.
    pub fn with_history(limit: usize) -> Result<Arc<Self>, Error> {
        let kind = Kind::of::<M>()?;
        if !kind.has_key() {
            return Err(Error::NoKey(kind.full_name().to_owned()));
        }
        let state = State {
            objects: BTreeMap::new(),
            origins: HashMap::new(),
            // Revision 0 means none.
            history: History::new(1, limit),
        };
        Ok(Arc::new(Self {
            kind,
            writing: Mutex::default(),
            state: RwLock::new(state),
            listeners: Mutex::default(),
            hooks: RwLock::default(),
            published: watch::Sender::new(1),
            checkpoint: Mutex::default(),
        }))
    }

    /// Puts an object; whether that changed anything.
    pub fn put(&self, object: M) -> Result<bool, Error> {
        let key = self.kind.key_of(&object.encode_to_vec())?;
        let changed = self.write(&key, Some(object), LOCAL);
        self.forget_checkpoint();
        Ok(changed)
    }

    /// Removes the object with the key of this one; whether it was there.
    pub fn remove(&self, object: &M) -> Result<bool, Error> {
        let key = self.kind.key_of(&object.encode_to_vec())?;
        Ok(self.remove_key(&key))
    }

    /// Removes an object by its key; whether it was there.
    pub fn remove_key(&self, key: &ObjectKey) -> bool {
        let changed = self.write(key, None, LOCAL);
        self.forget_checkpoint();
        changed
    }

    /// Removes everything.
    pub fn clear(&self) {
        self.remove_where(|state| state.objects.keys().cloned().collect());
        self.forget_checkpoint();
    }

    /// An object by its key.
    pub fn object(&self, key: &ObjectKey) -> Option<Arc<M>> {
        self.state.read().objects.get(key).map(|entry| Arc::clone(&entry.object))
    }

    /// An object by its key message, such as an `AppKey`.
    pub fn find<K: Message + Name>(&self, key: &K) -> Option<Arc<M>> {
        let text = Key::from_message(key).ok()?.to_string();
        self.state.read().objects.get(text.as_str()).map(|entry| Arc::clone(&entry.object))
    }

    /// All objects in the order of their keys.
    pub fn list(&self) -> Vec<Arc<M>> {
        self.state.read().objects.values().map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls this for every change from now on, in order. It must not change
    /// this cache itself and should be quick: it adds to a queue.
    pub fn on_change(&self, hook: impl Fn(&Change<'_, M>) + Send + Sync + 'static) {
        self.hooks.write().push(Box::new(hook));
    }

    /// A number that grows with every change, after it can be seen.
    pub fn revisions(&self) -> watch::Receiver<i64> {
        self.published.subscribe()
    }

    /// Forgets the checkpoint: changes of our own are not in the history of the
    /// server that we mirror.
    fn forget_checkpoint(&self) {
        *self.checkpoint.lock() = None;
    }

    fn write(&self, key: &ObjectKey, object: Option<M>, origin: i64) -> bool {
        let writing = self.writing.lock();
        let changed = self.write_locked(key, object, origin);
        drop(writing);
        changed
    }

    fn write_locked(&self, key: &ObjectKey, object: Option<M>, origin: i64) -> bool {
        let now = object.map(Arc::new);
        let (before, revision) = {
            let mut state = self.state.write();
            let before = state.replace(key, now.as_ref(), origin);
            if before == now {
                return false;
            }
            let revision = state.history.revision() + 1;
            state.history.record(revision, key.clone());
            (before, revision)
        };
        self.listeners.lock().retain(|changes| {
            changes.changed(key);
            !changes.is_closed()
        });
        let change = Change { key, before: before.as_ref(), now: now.as_ref() };
        self.hooks.read().iter().for_each(|hook| hook(&change));
        self.published.send_replace(revision);
        true
    }

    /// Removes what matches, looked at under the lock of writers.
    fn remove_where(&self, pick: impl FnOnce(&State<M>) -> Vec<ObjectKey>) {
        let writing = self.writing.lock();
        let keys = pick(&self.state.read());
        for key in keys {
            self.write_locked(&key, None, LOCAL);
        }
        drop(writing);
    }
}

impl<M> State<M> {
    /// Puts or removes an object and notes where it came from; what was there
    /// before.
    fn replace(&mut self, key: &ObjectKey, now: Option<&Arc<M>>, origin: i64) -> Option<Arc<M>>
    where
        M: PartialEq,
    {
        let found = self.objects.get_mut(key);
        let from = found.as_ref().map(|entry| entry.origin);
        let before = match (found, now) {
            (Some(entry), Some(now)) if entry.object == *now => {
                entry.origin = origin;
                Some(Arc::clone(&entry.object))
            }
            (_, Some(now)) => {
                let object = Arc::clone(now);
                let entry = Entry { object, encoded: OnceLock::new(), origin };
                self.objects.insert(key.clone(), entry).map(|entry| entry.object)
            }
            (Some(_), None) => self.objects.remove(key).map(|entry| entry.object),
            (None, None) => None,
        };
        self.move_origin(key, from, now.map(|_| origin));
        before
    }

    fn move_origin(&mut self, key: &ObjectKey, from: Option<i64>, to: Option<i64>) {
        if from == to {
            return;
        }
        if let Some(from) = from
            && let Some(keys) = self.origins.get_mut(&from)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.origins.remove(&from);
            }
        }
        if let Some(to) = to.filter(|to| *to != LOCAL) {
            self.origins.entry(to).or_default().insert(key.clone());
        }
    }
}

impl<M: Object + PartialEq + Send + Sync + 'static> Source for Cache<M> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    fn keys(&self) -> Vec<ObjectKey> {
        self.state.read().objects.keys().cloned().collect()
    }

    fn get(&self, key: &ObjectKey) -> Option<Bytes> {
        let state = self.state.read();
        let entry = state.objects.get(key)?;
        Some(entry.encoded.get_or_init(|| entry.object.encode_to_vec().into()).clone())
    }

    fn contains(&self, key: &ObjectKey) -> bool {
        self.state.read().objects.contains_key(key)
    }

    fn subscribe(&self, changes: Changes) {
        self.listeners.lock().push(changes);
    }

    fn revision(&self) -> i64 {
        // A change under way may be queued already: with it counted, the
        // notice about it carries its revision and it is not sent twice.
        drop(self.writing.lock());
        *self.published.borrow()
    }

    fn changes_since(&self, revision: i64) -> Option<Vec<ObjectKey>> {
        self.state.read().history.since(revision)
    }
}

#[async_trait::async_trait]
impl<M: Object + PartialEq + Send + Sync + 'static> Sink for Cache<M> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn update(&self, incoming: Incoming, stream: &Stream) -> Result<(), Error> {
        let object = M::decode(incoming.payload)
            .map_err(|source| Error::Payload { message: M::full_name(), source })?;
        self.write(&incoming.key, Some(object), stream.id);
        Ok(())
    }

    async fn delete(&self, incoming: Incoming, stream: &Stream) -> Result<(), Error> {
        let key = incoming.key;
        match stream.role {
            Role::Upstream => {
                self.write(&key, None, stream.id);
            }
            // The later of two streams that report an object owns it: a delete
            // of the earlier one may be late.
            Role::Downstream => self.remove_where(|state| {
                let entry = state.objects.get(&key);
                entry.filter(|entry| entry.origin == stream.id).map(|_| key).into_iter().collect()
            }),
        }
        Ok(())
    }

    async fn prune(&self, stream: &Stream) -> Result<(), Error> {
        self.remove_where(|state| {
            let stale = state.objects.iter().filter(|(_, entry)| entry.origin != stream.id);
            stale.map(|(key, _)| key.clone()).collect()
        });
        Ok(())
    }

    async fn flush(&self, stream: &Stream) -> Result<(), Error> {
        self.remove_where(|state| {
            let left = state.origins.get(&stream.id);
            left.map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
        });
        Ok(())
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        *self.checkpoint.lock()
    }

    fn set_checkpoint(&self, checkpoint: Option<Checkpoint>) {
        *self.checkpoint.lock() = checkpoint;
    }
}
