//! What the controller last said, on disk: an engine that starts while its
//! controller is away answers by it. The first controller that tells everything
//! corrects it.
//!
//! Only what answers depend on is kept. A crash loses what was said in the last
//! moments; no answer depends on the file while the engine runs.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use prost::Message;
use selvage_api::{
    edgeproto::{App, AppInst, AppInstRuntime, CloudletInfo},
    object::Object,
    selvage::matching::{CookieKey, ListCookieKeysResponse},
};
use selvage_notify::{Cache, ObjectKey};
use selvage_store::{
    Error as StoreError, KeyRange, MAX_OPS, MAX_VALUE_BYTES, Op, SharedStore, StoreExt, Txn,
    embedded::{Embedded, Options},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    keys::KeySource,
};

const OBJECTS: &str = "/object/";
const STATE: &str = "/state";
const KEYS: &str = "/keys";

/// Between two writes. What changes meanwhile is written once.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is written down that the engine is in step, in seconds.
const STEP: i64 = 30;
/// Memory for pages of the file: it is read once.
const CACHE: usize = 1 << 20;
/// Changes that the file remembers: nobody asks for any.
const HISTORY: u64 = 1;

/// What the file says of itself.
#[derive(Clone, PartialEq, Message)]
struct State {
    /// Whose words these are.
    #[prost(string, tag = "1")]
    of: String,
    /// When the engine was last in step with it, in seconds of the epoch.
    #[prost(int64, tag = "2")]
    in_step: i64,
    /// Whether it tells which cloudlets are up.
    #[prost(bool, tag = "3")]
    tells_of_cloudlets: bool,
}

/// A type that is kept.
pub(crate) trait Kept: Object + PartialEq + Send + Sync + 'static {
    /// What answers depend on.
    fn kept(&self) -> Self;
}

impl Kept for App {
    fn kept(&self) -> Self {
        Self {
            key: self.key.clone(),
            auth_public_key: self.auth_public_key.clone(),
            android_package_name: self.android_package_name.clone(),
            permits_platform_apps: self.permits_platform_apps,
            ..Self::default()
        }
    }
}

impl Kept for AppInst {
    fn kept(&self) -> Self {
        let unhealthy = |runtime: &AppInstRuntime| AppInstRuntime {
            unhealthy: runtime.unhealthy.clone(),
            ..AppInstRuntime::default()
        };
        Self {
            key: self.key.clone(),
            cloudlet_loc: self.cloudlet_loc,
            uri: self.uri.clone(),
            mapped_ports: self.mapped_ports.clone(),
            state: self.state,
            runtime_info: self.runtime_info.as_ref().map(unhealthy),
            ..Self::default()
        }
    }
}

impl Kept for CloudletInfo {
    fn kept(&self) -> Self {
        Self { key: self.key.clone(), state: self.state, ..Self::default() }
    }
}

/// What was on disk.
#[derive(Default)]
pub(crate) struct Found {
    /// When the engine was last in step.
    pub(crate) in_step: Timestamp,
    pub(crate) tells_of_cloudlets: bool,
    pub(crate) keys: Vec<CookieKey>,
    pub(crate) apps: Vec<App>,
    pub(crate) instances: Vec<AppInst>,
    pub(crate) cloudlets: Vec<CloudletInfo>,
}

/// A mirror that was opened, with what was in it.
pub struct Mirror {
    pub(crate) disk: Arc<Disk>,
    pub(crate) found: Option<Found>,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("found", &self.found.is_some()).finish_non_exhaustive()
    }
}

impl Mirror {
    /// Opens a file, which only its owner may read. What it holds of another
    /// controller than `of` is forgotten; a file that is damaged is put aside:
    /// everything in it will be said again.
    pub async fn open(path: &Path, of: &str) -> Result<Self> {
        let store = match open_store(path).await {
            Err(error @ StoreError::Locked { .. }) => return Err(Error::Mirror(error)),
            Err(error) => {
                let aside = damaged(path);
                tracing::warn!(
                    %error, aside = %aside.display(), "the mirror cannot be read, it starts empty"
                );
                // What cannot be moved cannot be opened either.
                let _ = std::fs::rename(path, aside);
                open_store(path).await
            }
            opened => opened,
        };
        let store = store.map_err(Error::Mirror)?;
        let found = match read(&store, of).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the mirror cannot be read, it starts empty");
                None
            }
        };
        if found.is_none() {
            store.delete(KeyRange::prefix("/")).await.map_err(Error::Mirror)?;
        }
        let disk = Arc::new(Disk::new(store, of, found.as_ref()));
        Ok(Self { disk, found })
    }
}

async fn open_store(path: &Path) -> selvage_store::Result<SharedStore> {
    let options = Options { cache_bytes: CACHE, log_revisions: HISTORY, ..Options::default() };
    Ok(Embedded::open(path, options).await?)
}

fn damaged(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".damaged");
    name.into()
}

/// All that is there, if it is of that controller and was ever complete.
async fn read(store: &SharedStore, of: &str) -> selvage_store::Result<Option<Found>> {
    let Some(state) = store.get(STATE).await? else { return Ok(None) };
    let state = State::decode(state.value).map_err(unreadable)?;
    if state.of != of {
        tracing::info!("the mirror is of another controller, it starts empty");
        return Ok(None);
    }
    let keys = match store.get(KEYS).await? {
        Some(keys) => ListCookieKeysResponse::decode(keys.value).map_err(unreadable)?.keys,
        None => Vec::new(),
    };
    Ok(Some(Found {
        in_step: Timestamp::from_second(state.in_step).unwrap_or_default(),
        tells_of_cloudlets: state.tells_of_cloudlets,
        keys,
        apps: objects(store).await?,
        instances: objects(store).await?,
        cloudlets: objects(store).await?,
    }))
}

async fn objects<M: Kept>(store: &SharedStore) -> selvage_store::Result<Vec<M>> {
    let rows = store.list(&format!("{OBJECTS}{}/", M::NAME)).await?.items;
    rows.into_iter().map(|row| M::decode(row.value).map_err(unreadable)).collect()
}

fn unreadable(error: prost::DecodeError) -> StoreError {
    StoreError::Corrupt { what: "a row".into(), detail: error.to_string() }
}

/// Encodes an object when it is written, not when it changes.
type Row = Box<dyn Fn() -> Vec<u8> + Send>;

/// What is not on disk yet.
#[derive(Default)]
struct Waiting {
    rows: BTreeMap<(&'static str, ObjectKey), Option<Row>>,
    /// Rows that are being written.
    on_the_way: usize,
    /// The newest that could be said of the file, and what it says.
    state: State,
    written: State,
}

/// The way to the disk.
pub(crate) struct Disk {
    store: SharedStore,
    of: String,
    waiting: Mutex<Waiting>,
    changed: Notify,
    /// Keys of cookies as they are on disk.
    keys: tokio::sync::Mutex<Vec<CookieKey>>,
}

impl Disk {
    fn new(store: SharedStore, of: &str, found: Option<&Found>) -> Self {
        let written = found.map(|found| State {
            of: of.to_owned(),
            in_step: found.in_step.as_second(),
            tells_of_cloudlets: found.tells_of_cloudlets,
        });
        let waiting = Waiting { written: written.unwrap_or_default(), ..Waiting::default() };
        Self {
            store,
            of: of.to_owned(),
            waiting: Mutex::new(waiting),
            changed: Notify::new(),
            keys: tokio::sync::Mutex::new(
                found.map(|found| found.keys.clone()).unwrap_or_default(),
            ),
        }
    }

    /// Writes what changes in a cache from now on.
    pub(crate) fn follow<M: Kept>(self: &Arc<Self>, cache: &Cache<M>) {
        let disk = Arc::clone(self);
        cache.on_change(move |change| {
            let kept = |object: Option<&Arc<M>>| object.map(|object| object.kept());
            if kept(change.before) == kept(change.now) {
                return;
            }
            let row = change.now.map(|object| {
                let object = Arc::clone(object);
                Box::new(move || object.kept().encode_to_vec()) as Row
            });
            disk.waiting.lock().rows.insert((M::NAME, change.key.clone()), row);
            disk.changed.notify_one();
        });
    }

    /// The engine is in step with its controller.
    pub(crate) fn in_step(&self, now: Timestamp, tells_of_cloudlets: bool) {
        let mut waiting = self.waiting.lock();
        let state = State { of: self.of.clone(), in_step: now.as_second(), tells_of_cloudlets };
        let written = &waiting.written;
        let age = state.in_step.saturating_sub(written.in_step);
        let due = written.of != state.of
            || written.tells_of_cloudlets != tells_of_cloudlets
            || !(0..STEP).contains(&age);
        waiting.state = state;
        drop(waiting);
        if due {
            self.changed.notify_one();
        }
    }

    /// How much is not on disk as it is.
    pub(crate) fn pending(&self) -> usize {
        let waiting = self.waiting.lock();
        let incomplete = usize::from(waiting.written.of != self.of);
        waiting.rows.len() + waiting.on_the_way + incomplete
    }

    /// Writes until told to stop, and then what is left.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let stopping = stop.run_until_cancelled(self.changed.notified()).await.is_none();
            match self.write().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "what the controller said is not on disk");
                    }
                    failing = true;
                    self.changed.notify_one();
                }
            }
            if stopping {
                // Whoever opens it next finds out what could not be written.
                let _ = self.store.close().await;
                return;
            }
            stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
    }

    async fn write(&self) -> selvage_store::Result<()> {
        let (rows, state) = {
            let mut waiting = self.waiting.lock();
            waiting.on_the_way = waiting.rows.len();
            (std::mem::take(&mut waiting.rows), waiting.state.clone())
        };
        let mut rows: Vec<_> = rows.into_iter().collect();
        while !rows.is_empty() {
            let some = rows.split_off(rows.len().saturating_sub(MAX_OPS));
            let ops = some.iter().map(|((name, key), row)| op(name, key, row.as_ref()));
            if let Err(error) = self.store.txn(ops.fold(Txn::new(), Txn::then)).await {
                let mut waiting = self.waiting.lock();
                waiting.on_the_way = 0;
                for (key, row) in rows.into_iter().chain(some) {
                    // What changed meanwhile is newer.
                    waiting.rows.entry(key).or_insert(row);
                }
                return Err(error);
            }
        }
        self.waiting.lock().on_the_way = 0;
        // Last: it says that the rest is there.
        if !state.of.is_empty() {
            self.store.put(STATE, state.encode_to_vec()).await?;
            self.waiting.lock().written = state;
        }
        Ok(())
    }

    /// Has keys on disk before anything is signed with them.
    async fn keep_keys(&self, keys: &[CookieKey]) {
        let mut kept = self.keys.lock().await;
        if *kept == keys {
            return;
        }
        let message = ListCookieKeysResponse { keys: keys.to_vec() };
        match self.store.put(KEYS, message.encode_to_vec()).await {
            Ok(_) => *kept = message.keys,
            Err(error) => tracing::warn!(%error, "keys of cookies are not on disk"),
        }
    }
}

fn op(name: &str, key: &ObjectKey, row: Option<&Row>) -> Op {
    let at = format!("{OBJECTS}{name}/{}", key.text());
    match row.map(|encode| encode()) {
        Some(value) if value.len() <= MAX_VALUE_BYTES => Op::put(at, value),
        Some(_) => {
            tracing::warn!(key = key.text(), "too large for the mirror");
            Op::delete(at)
        }
        None => Op::delete(at),
    }
}

/// Keys that are on disk as well.
pub(crate) struct Remembered {
    pub(crate) source: Arc<dyn KeySource>,
    pub(crate) disk: Arc<Disk>,
}

#[async_trait]
impl KeySource for Remembered {
    async fn keys(&self) -> Result<Vec<CookieKey>> {
        let keys = self.source.keys().await?;
        self.disk.keep_keys(&keys).await;
        Ok(keys)
    }
}
