//! Mirror on disk of the objects of the controller: an engine that starts while
//! its controller is away answers from it. The first controller that connects
//! updates it.
//!
//! Only the fields that answers depend on are kept. A crash loses the changes of
//! the last moments; no answer depends on the file while the engine runs.

use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use prost::{Message, Name};
use selvage_api::{
    edgeproto::{App, AppInst, AppInstRuntime, CloudletInfo},
    object::Object,
    selvage::matching::{CookieKey, ListCookieKeysResponse},
};
use selvage_cloudlet::mirror;
use selvage_notify::Cache;
use selvage_store::{
    Error as StoreError, KeyRange, SharedStore, StoreExt,
    embedded::{Embedded, Options},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    keys::KeySource,
};

const OBJECTS: &str = "/object/";
const STATE: &str = "/state";
const KEYS: &str = "/keys";

/// Interval of writes. An object that changes several times meanwhile is
/// written once.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of recording that the engine is in sync, in seconds.
const RECORD_INTERVAL: i64 = 30;
/// Memory for pages of the file: it is read once.
const CACHE: usize = 1 << 20;
/// Changes that the file remembers: nobody asks for any.
const HISTORY: u64 = 1;

/// Header of the file.
#[derive(Clone, PartialEq, Message)]
struct State {
    /// Name of the controller's region that was mirrored.
    #[prost(string, tag = "1")]
    of: String,
    /// Time when the engine was last in sync with it, in seconds since 1970.
    #[prost(int64, tag = "2")]
    in_step: i64,
    /// True if the controller tells which cloudlets are up.
    #[prost(bool, tag = "3")]
    tells_of_cloudlets: bool,
}

/// A type that is kept.
pub(crate) trait Mirrored: Object + PartialEq + Send + Sync + 'static {
    /// Returns the part of it that answers depend on.
    fn mirrored(&self) -> Self;
}

impl Mirrored for App {
    fn mirrored(&self) -> Self {
        Self {
            key: self.key.clone(),
            auth_public_key: self.auth_public_key.clone(),
            android_package_name: self.android_package_name.clone(),
            permits_platform_apps: self.permits_platform_apps,
            ..Self::default()
        }
    }
}

impl Mirrored for AppInst {
    fn mirrored(&self) -> Self {
        let serves = |runtime: &AppInstRuntime| AppInstRuntime {
            addresses: runtime.addresses.clone(),
            unhealthy: runtime.unhealthy.clone(),
            ..AppInstRuntime::default()
        };
        Self {
            key: self.key.clone(),
            cloudlet_loc: self.cloudlet_loc,
            uri: self.uri.clone(),
            mapped_ports: self.mapped_ports.clone(),
            state: self.state,
            runtime_info: self.runtime_info.as_ref().map(serves),
            ..Self::default()
        }
    }
}

impl Mirrored for CloudletInfo {
    fn mirrored(&self) -> Self {
        Self { key: self.key.clone(), state: self.state, ..Self::default() }
    }
}

/// Contents found on disk.
#[derive(Default)]
pub(crate) struct MirrorContents {
    /// Time when the engine was last in sync.
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
    pub(crate) found: Option<MirrorContents>,
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
                // If moving it fails, opening it fails too.
                let _ = std::fs::rename(path, aside);
                open_store(path).await
            }
            opened => opened,
        };
        let store = store.map_err(Error::Mirror)?;
        let objects = mirror::Mirror::new(Arc::clone(&store), OBJECTS);
        let found = match read(&store, &objects, of).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the mirror cannot be read, it starts empty");
                None
            }
        };
        if found.is_none() {
            store.delete(KeyRange::prefix("/")).await.map_err(Error::Mirror)?;
        }
        let disk = Arc::new(Disk::new(store, objects, of, found.as_ref()));
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

/// Returns the contents, if they are of that controller and were ever complete.
async fn read(
    store: &SharedStore,
    objects: &mirror::Mirror,
    of: &str,
) -> selvage_store::Result<Option<MirrorContents>> {
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
    Ok(Some(MirrorContents {
        in_step: Timestamp::from_second(state.in_step).unwrap_or_default(),
        tells_of_cloudlets: state.tells_of_cloudlets,
        keys,
        apps: objects.read(App::NAME).await?,
        instances: objects.read(AppInst::NAME).await?,
        cloudlets: objects.read(CloudletInfo::NAME).await?,
    }))
}

fn unreadable(error: prost::DecodeError) -> StoreError {
    StoreError::Corrupt { what: "a row".into(), detail: error.to_string() }
}

/// State of the file as a whole.
struct MirrorState {
    /// Newest state.
    state: State,
    /// State that is in the file.
    written: State,
}

/// Writer of the file.
pub(crate) struct Disk {
    store: SharedStore,
    objects: Arc<mirror::Mirror>,
    of: String,
    state: Mutex<MirrorState>,
    /// Keys of cookies as they are on disk.
    keys: tokio::sync::Mutex<Vec<CookieKey>>,
}

impl Disk {
    fn new(
        store: SharedStore,
        objects: Arc<mirror::Mirror>,
        of: &str,
        found: Option<&MirrorContents>,
    ) -> Self {
        let written = found.map(|found| State {
            of: of.to_owned(),
            in_step: found.in_step.as_second(),
            tells_of_cloudlets: found.tells_of_cloudlets,
        });
        let keys = found.map(|found| found.keys.clone()).unwrap_or_default();
        let state = MirrorState { state: State::default(), written: written.unwrap_or_default() };
        Self {
            store,
            objects,
            of: of.to_owned(),
            state: Mutex::new(state),
            keys: tokio::sync::Mutex::new(keys),
        }
    }

    /// Writes what changes in a cache from now on.
    pub(crate) fn follow<M: Mirrored>(&self, cache: &Cache<M>) {
        self.objects.follow(cache, M::NAME, |object| Cow::Owned(object.mirrored()));
    }

    /// The engine is in step with its controller.
    pub(crate) fn in_step(&self, now: Timestamp, tells_of_cloudlets: bool) {
        let mut known = self.state.lock();
        let state = State { of: self.of.clone(), in_step: now.as_second(), tells_of_cloudlets };
        let written = &known.written;
        let age = state.in_step.saturating_sub(written.in_step);
        let due = written.of != state.of
            || written.tells_of_cloudlets != tells_of_cloudlets
            || !(0..RECORD_INTERVAL).contains(&age);
        known.state = state;
        drop(known);
        if due {
            self.objects.wake();
        }
    }

    /// Number of objects that are not on disk as they are.
    pub(crate) fn pending(&self) -> usize {
        let incomplete = self.state.lock().written.of != self.of;
        self.objects.pending() + usize::from(incomplete)
    }

    /// Writes until told to stop, and then what is left.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.objects.run(WRITE_INTERVAL, &stop, || self.write()).await;
        // Whoever opens it next finds out what could not be written.
        let _ = self.store.close().await;
    }

    async fn write(&self) -> selvage_store::Result<()> {
        // Reads the state before the objects: it is true of all that are
        // written now.
        let state = self.state.lock().state.clone();
        self.objects.write().await?;
        if !state.of.is_empty() {
            self.store.put(STATE, state.encode_to_vec()).await?;
            self.state.lock().written = state;
        }
        Ok(())
    }

    /// Writes keys to disk before anything is signed with them.
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

/// Keys that are on disk as well.
pub(crate) struct KeptKeys {
    pub(crate) source: Arc<dyn KeySource>,
    pub(crate) disk: Arc<Disk>,
}

#[async_trait]
impl KeySource for KeptKeys {
    async fn keys(&self) -> Result<Vec<CookieKey>> {
        let keys = self.source.keys().await?;
        self.disk.keep_keys(&keys).await;
        Ok(keys)
    }
}
