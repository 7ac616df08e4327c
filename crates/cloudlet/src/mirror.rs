//! Objects as the controller last said them, on disk, for an agent that starts
//! while its controller is away.
//!
//! Objects are rows of a store that the agent has for itself, one folder a
//! type. Of several changes of an object the last is written. What a crash
//! loses, the controller says again.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::object::Object;
use selvage_notify::{Cache, ObjectKey};
use selvage_store::{Error, MAX_OPS, MAX_VALUE_BYTES, Op, Result, SharedStore, StoreExt, Txn};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The folder of a type, and an object in it.
type RowKey = (&'static str, ObjectKey);
/// Encodes an object when it is written, not when it changes.
type Encode = Box<dyn Fn() -> Vec<u8> + Send>;

/// Changes that are not on disk yet.
#[derive(Default)]
struct Waiting {
    rows: BTreeMap<RowKey, Option<Encode>>,
    /// Rows that are being written.
    on_the_way: usize,
}

/// Objects on disk, and the way there.
pub struct Mirror {
    store: SharedStore,
    root: &'static str,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Mirror {
    /// A mirror below a key of a store, which begins and ends with a slash.
    pub fn new(store: SharedStore, root: &'static str) -> Arc<Self> {
        let (waiting, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { store, root, waiting, changed })
    }

    /// The objects of a folder that are on disk.
    pub async fn read<M: Object>(&self, folder: &'static str) -> Result<Vec<M>> {
        let rows = self.store.list(&format!("{}{folder}/", self.root)).await?.items;
        let decode = |value| {
            M::decode(value).map_err(|error| Error::Corrupt {
                what: format!("the mirror of what the controller said ({folder})"),
                detail: error.to_string(),
            })
        };
        rows.into_iter().map(|row| decode(row.value)).collect()
    }

    /// Writes what changes in a cache from now on; of its objects what `kept`
    /// leaves.
    pub fn follow<M: Object + PartialEq + Send + Sync + 'static>(
        self: &Arc<Self>,
        cache: &Cache<M>,
        folder: &'static str,
        kept: fn(&M) -> Cow<'_, M>,
    ) {
        let mirror = Arc::clone(self);
        cache.on_change(move |change| {
            let before = change.before.map(|object| kept(object));
            if before == change.now.map(|object| kept(object)) {
                return;
            }
            let row = change.now.map(|object| {
                let object = Arc::clone(object);
                Box::new(move || kept(&object).encode_to_vec()) as Encode
            });
            mirror.waiting.lock().rows.insert((folder, change.key.clone()), row);
            mirror.wake();
        });
    }

    /// Number of objects that are not on disk as they are.
    pub fn pending(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.rows.len() + waiting.on_the_way
    }

    /// Makes [`Mirror::run`] write although nothing has changed.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Calls `write`, which calls [`Mirror::write`], when something changed and
    /// at most once in a `pause`, until told to stop; then once more for what is
    /// left.
    pub async fn run<W: Future<Output = Result<()>>>(
        &self,
        pause: Duration,
        stop: &CancellationToken,
        write: impl Fn() -> W,
    ) {
        let mut failing = false;
        loop {
            let stopping = stop.run_until_cancelled(self.changed.notified()).await.is_none();
            let written = write().await;
            if let Err(error) = &written {
                if !failing {
                    tracing::warn!(%error, "objects of the controller could not be written to the mirror");
                }
                self.wake();
            }
            failing = written.is_err();
            if stopping {
                return;
            }
            let pause = if failing { pause.max(RETRY_DELAY) } else { pause };
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Writes what changed. What cannot be written waits on.
    pub async fn write(&self) -> Result<()> {
        let mut rows: Vec<_> = {
            let mut waiting = self.waiting.lock();
            waiting.on_the_way = waiting.rows.len();
            std::mem::take(&mut waiting.rows).into_iter().collect()
        };
        while !rows.is_empty() {
            let some = rows.split_off(rows.len().saturating_sub(MAX_OPS));
            let ops = some.iter().map(|(row, encode)| self.op(row, encode.as_ref()));
            if let Err(error) = self.store.txn(ops.fold(Txn::new(), Txn::then)).await {
                let mut waiting = self.waiting.lock();
                waiting.on_the_way = 0;
                for (row, encode) in rows.into_iter().chain(some) {
                    // A row that changed meanwhile is newer.
                    waiting.rows.entry(row).or_insert(encode);
                }
                return Err(error);
            }
        }
        self.waiting.lock().on_the_way = 0;
        Ok(())
    }

    fn op(&self, (folder, key): &RowKey, encode: Option<&Encode>) -> Op {
        let at = format!("{}{folder}/{}", self.root, key.text());
        match encode.map(|encode| encode()) {
            Some(value) if value.len() <= MAX_VALUE_BYTES => Op::put(at, value),
            Some(_) => {
                tracing::warn!(key = key.text(), "an object is too large for the mirror");
                Op::delete(at)
            }
            None => Op::delete(at),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::{Flavor, FlavorKey};
    use selvage_store::embedded::{Embedded, Options};

    use super::*;

    fn flavor(name: &str, ram: u64) -> Flavor {
        Flavor { key: Some(FlavorKey { name: name.into() }), ram, ..Flavor::default() }
    }

    fn without_disk(flavor: &Flavor) -> Cow<'_, Flavor> {
        Cow::Owned(Flavor { disk: 0, ..flavor.clone() })
    }

    async fn store() -> SharedStore {
        Embedded::in_memory(Options::default()).await.unwrap()
    }

    fn follow(store: &SharedStore) -> (Arc<Mirror>, Arc<Cache<Flavor>>) {
        let (mirror, flavors) = (Mirror::new(Arc::clone(store), "/told/"), Cache::new().unwrap());
        mirror.follow(&flavors, "flavor", without_disk);
        (mirror, flavors)
    }

    #[tokio::test]
    async fn the_last_of_each_object_is_there_for_the_next_to_start() {
        let store = store().await;
        let (mirror, flavors) = follow(&store);
        flavors.put(flavor("gone", 1)).unwrap();
        flavors.put(flavor("small", 1)).unwrap();
        mirror.write().await.unwrap();
        flavors.remove(&flavor("gone", 1)).unwrap();
        flavors.put(flavor("small", 2)).unwrap();
        flavors.put(Flavor { disk: 5, ..flavor("small", 3) }).unwrap();
        assert_eq!(mirror.pending(), 2);
        mirror.write().await.unwrap();
        assert_eq!(mirror.pending(), 0);
        flavors.put(Flavor { disk: 6, ..flavor("small", 3) }).unwrap();
        assert_eq!(mirror.pending(), 0, "only what is kept counts");
        let next = Mirror::new(store, "/told/");
        assert_eq!(next.read::<Flavor>("flavor").await.unwrap(), [flavor("small", 3)]);
    }

    #[tokio::test]
    async fn what_is_left_is_written_at_the_end() {
        let store = store().await;
        let (mirror, flavors) = follow(&store);
        flavors.put(flavor("small", 1)).unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        mirror.run(Duration::ZERO, &stop, || mirror.write()).await;
        assert_eq!(mirror.read::<Flavor>("flavor").await.unwrap(), [flavor("small", 1)]);
    }

    #[tokio::test]
    async fn what_cannot_be_written_waits_on() {
        let store = store().await;
        let (mirror, flavors) = follow(&store);
        flavors.put(flavor("small", 1)).unwrap();
        store.close().await.unwrap();
        mirror.write().await.unwrap_err();
        assert_eq!(mirror.pending(), 1);
    }
}
