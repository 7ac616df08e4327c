//! Opening, making, and what everything else stands on: documents, blobs, the
//! index.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::RwLock;
use selvage_kit::clock::{Clock, SystemClock};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Backend, Error, Id, Result, Secret, Snapshot,
    backend::{File, Kind},
    crypto::Key,
    format::{self, BlobKind, Config, IndexFile, PackedBlob, Tree},
    index::{BlobLocation, Index},
    key::KeyFile,
    limits::Limits,
    zeros::ZeroIds,
};

/// Number of times a file is fetched that does not hold what its name says.
const FETCHES: usize = 3;

/// Options of working with a repository.
#[derive(Debug, Clone)]
pub struct RepositoryOptions {
    /// Number of files that go to or come from the repository at a time.
    pub connections: usize,
    /// Number of threads that compress, seal, open and hash.
    pub threads: usize,
    /// Size of packs. Half of stock restic's default: packs that are
    /// filled, queued and on their way are all in memory.
    pub pack_size: u32,
    /// The level of zstd.
    pub compression: i32,
    /// The same for what changed since an earlier backup, where that is known:
    /// little, likely to change again, and a snapshot is held for it.
    pub compression_of_changes: i32,
    /// Time to wait for others' locks.
    pub lock_wait: Duration,
    /// Name of the machine in locks and snapshots.
    pub hostname: String,
    /// Name of the user in locks and snapshots.
    pub username: String,
    /// The time of snapshots and locks.
    pub clock: Arc<dyn Clock>,
    /// Limit of reading a volume. Traffic to and from the repository is
    /// limited by the backend, which may share these.
    pub limits: Arc<Limits>,
}

impl Default for RepositoryOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            connections: 4,
            threads: cores.clamp(2, 16),
            pack_size: 8 << 20,
            compression: 3,
            compression_of_changes: 1,
            lock_wait: Duration::from_secs(10),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            username: std::env::var("USER").unwrap_or_else(|_| "root".to_owned()),
            clock: Arc::new(SystemClock),
            limits: Arc::default(),
        }
    }
}

/// An open repository. Clones are the same one.
#[derive(Clone)]
pub struct Repository(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    key: Key,
    /// Name of the file of the key that opened it.
    key_id: Id,
    config: Config,
    options: RepositoryOptions,
    index: RwLock<Index>,
    /// The index files that are in `index`. Held while they are brought up to
    /// date.
    loaded: tokio::sync::Mutex<BTreeSet<Id>>,
    zeros: ZeroIds,
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("location", &self.0.backend.location()).finish()
    }
}

impl Repository {
    /// Opens the repository that is there.
    pub async fn open(
        backend: Arc<dyn Backend>,
        password: &Secret,
        options: RepositoryOptions,
    ) -> Result<Self> {
        let location = backend.location();
        let not = |reason: &str| {
            let (location, reason) = (location.clone(), reason.to_owned());
            Err(Error::NotARepository { location, reason })
        };
        let mut config = match backend.read(File::Config).await {
            Err(Error::MissingFile(_)) => return Err(Error::NoRepository(location)),
            config => config?,
        };
        let listed = backend.list(Kind::Key).await?;
        let mut opened = Vec::new();
        for key in &listed {
            let key_id = key.id;
            let Some(key) = user_key(&*backend, key_id, password).await? else { continue };
            // Two who made a repository at the same time leave two keys, of
            // which one belongs to nothing.
            match key.open(&config) {
                Ok(text) => return Self::with_config(backend, (key_id, key), &text, options),
                Err(_) => opened.push((key_id, key)),
            }
        }
        let again = if opened.is_empty() { 0 } else { FETCHES - 1 };
        for _ in 0..again {
            // It has no name that would tell whether it arrived as it was.
            config = backend.read(File::Config).await?;
            let fits = |(at, (_, key)): (usize, &(Id, Key))| Some((at, key.open(&config).ok()?));
            if let Some((at, text)) = opened.iter().enumerate().find_map(fits) {
                return Self::with_config(backend, opened.swap_remove(at), &text, options);
            }
        }
        match (listed.is_empty(), opened.is_empty()) {
            (true, _) => not("it has no keys"),
            (_, true) => Err(Error::WrongKey(location)),
            _ => not("its configuration does not belong to its key"),
        }
    }

    fn with_config(
        backend: Arc<dyn Backend>,
        (key_id, key): (Id, Key),
        text: &[u8],
        options: RepositoryOptions,
    ) -> Result<Self> {
        let not = |reason: String| Error::NotARepository { location: backend.location(), reason };
        let config: Config = format::decode(text).map_err(|error| not(error.to_string()))?;
        if !format::VERSIONS.contains(&config.version) {
            return Err(not(format!("its version is {}", config.version)));
        }
        Ok(Self(Arc::new(Inner {
            backend,
            key,
            key_id,
            config,
            options,
            index: RwLock::default(),
            loaded: tokio::sync::Mutex::default(),
            zeros: ZeroIds::default(),
        })))
    }

    /// Makes a repository where there is none.
    pub async fn init(
        backend: Arc<dyn Backend>,
        password: &Secret,
        options: RepositoryOptions,
    ) -> Result<Self> {
        let location = backend.location();
        if password.is_empty() {
            let reason = "a repository needs one".to_owned();
            return Err(Error::Invalid { field: "encryption_key", reason });
        }
        if backend.size(File::Config).await?.is_some() {
            return Err(Error::RepositoryExists(location));
        }
        backend.prepare().await?;
        let master = Key::random();
        let (file, master) = seal_key(master, password.clone(), &options).await?;
        let key_id = Id::of(&file);
        let key_file = File::Named(Kind::Key, key_id);
        backend.write(key_file, file).await?;
        let config = serde_json::to_vec(&Config::new()).map_err(internal)?;
        let sealed = Bytes::from(master.seal(&config));
        backend.write(File::Config, sealed.clone()).await?;
        // What lies there now tells who came first, also where the backend
        // cannot, or where an answer was lost and the question asked again.
        if !is_there(&*backend, &sealed).await? {
            backend.remove(key_file).await?;
            return Err(Error::RepositoryExists(location));
        }
        Self::with_config(backend, (key_id, master), &config, options)
    }

    /// Opens the repository, or makes it.
    pub async fn open_or_init(
        backend: Arc<dyn Backend>,
        password: &Secret,
        options: RepositoryOptions,
    ) -> Result<Self> {
        match Self::open(Arc::clone(&backend), password, options.clone()).await {
            Err(Error::NoRepository(_)) => {}
            result => return result,
        }
        match Self::init(Arc::clone(&backend), password, options.clone()).await {
            Err(Error::RepositoryExists(_)) => Self::open(backend, password, options).await,
            result => result,
        }
    }

    /// Returns the configuration of the repository.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns the storage of its files.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Returns the options of working with it.
    pub fn options(&self) -> &RepositoryOptions {
        &self.0.options
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        self.0.options.clock.now()
    }

    pub(crate) fn key(&self) -> &Key {
        &self.0.key
    }

    pub(crate) fn key_id(&self) -> Id {
        self.0.key_id
    }

    pub(crate) fn zeros(&self) -> &ZeroIds {
        &self.0.zeros
    }

    pub(crate) fn index(&self) -> &RwLock<Index> {
        &self.0.index
    }

    /// All snapshots, oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let listed = self.0.backend.list(Kind::Snapshot).await?;
        let loading = listed.into_iter().map(|listed| self.snapshot(listed.id));
        let mut snapshots: Vec<Snapshot> = stream::iter(loading)
            .buffer_unordered(self.0.options.connections)
            .filter_map(async |result| match result {
                // Forgotten between the list and the look.
                Err(Error::MissingFile(_)) => None,
                result => Some(result),
            })
            .try_collect()
            .await?;
        snapshots.sort_by_key(|snapshot| (snapshot.time, snapshot.id));
        Ok(snapshots)
    }

    /// One snapshot.
    pub async fn snapshot(&self, id: Id) -> Result<Snapshot> {
        let snapshot: Snapshot = self.load_document(Kind::Snapshot, id).await?;
        Ok(Snapshot { id, ..snapshot })
    }

    /// Writes a document and names it.
    pub(crate) async fn save_document<T: Serialize>(&self, kind: Kind, document: &T) -> Result<Id> {
        let plain = format::encode(document, self.0.config.compresses()).map_err(internal)?;
        let sealed = Bytes::from(self.0.key.seal(&plain));
        let id = Id::of(&sealed);
        self.0.backend.write(File::Named(kind, id), sealed).await?;
        Ok(id)
    }

    /// Reads a document.
    pub(crate) async fn load_document<T: DeserializeOwned>(&self, kind: Kind, id: Id) -> Result<T> {
        let file = File::Named(kind, id);
        let content = self.fetch_named(kind, id).await?;
        let plain =
            self.0.key.open(&content).map_err(|error| Error::damaged(file, error.to_string()))?;
        format::decode(&plain).map_err(|error| Error::damaged(file, error.to_string()))
    }

    /// A whole file that holds what its name says.
    pub(crate) async fn fetch_named(&self, kind: Kind, id: Id) -> Result<Bytes> {
        fetch_named(&*self.0.backend, kind, id).await
    }

    /// Brings the index in memory up to date with the files.
    pub(crate) async fn load_index(&self) -> Result<()> {
        let mut loaded = self.0.loaded.lock().await;
        let files: BTreeSet<Id> =
            self.0.backend.list(Kind::Index).await?.into_iter().map(|listed| listed.id).collect();
        if loaded.is_subset(&files) {
            let new = files.difference(&loaded).copied().collect();
            self.read_index(new, |file| self.0.index.write().add_file(file)).await?;
        } else {
            // Somebody pruned: what we know may be gone.
            self.replace_index(&files).await?;
        }
        *loaded = files;
        Ok(())
    }

    /// Reads the index anew, whatever is known.
    pub(crate) async fn reload_index(&self) -> Result<()> {
        let mut loaded = self.0.loaded.lock().await;
        let files: BTreeSet<Id> =
            self.0.backend.list(Kind::Index).await?.into_iter().map(|listed| listed.id).collect();
        self.replace_index(&files).await?;
        *loaded = files;
        Ok(())
    }

    /// All at once: whoever works with the old one goes over to the new one.
    async fn replace_index(&self, files: &BTreeSet<Id>) -> Result<()> {
        let mut index = Index::default();
        self.read_index(files.iter().copied().collect(), |file| index.add_file(file)).await?;
        *self.0.index.write() = index;
        Ok(())
    }

    async fn read_index(&self, files: Vec<Id>, mut add: impl FnMut(&IndexFile)) -> Result<()> {
        let mut loading = stream::iter(files)
            .map(async |id| self.load_document::<IndexFile>(Kind::Index, id).await)
            .buffer_unordered(self.0.options.connections.clamp(1, 2));
        while let Some(file) = loading.next().await {
            add(&file?);
        }
        Ok(())
    }

    /// Says that what is in this index file is in memory already.
    pub(crate) async fn index_written(&self, id: Id) {
        self.0.loaded.lock().await.insert(id);
    }

    pub(crate) fn find_blob(&self, kind: BlobKind, id: &Id) -> Result<BlobLocation> {
        self.0.index.read().find(kind, id).ok_or(Error::MissingBlob(*id))
    }

    /// The plain text of a blob, fetched by itself.
    pub(crate) async fn load_blob(&self, kind: BlobKind, id: &Id) -> Result<Vec<u8>> {
        let found = self.find_blob(kind, id)?;
        let file = File::Named(Kind::Pack, found.pack);
        let (offset, length) = (found.blob.offset.into(), found.blob.length.into());
        let mut attempt = 1;
        loop {
            let sealed = self.0.backend.read_range(file, offset, length).await?;
            match self.open_blob(&found.blob, &sealed) {
                Err(Error::DamagedBlob { .. }) if attempt < FETCHES => attempt += 1,
                result => return result,
            }
        }
    }

    /// Opens, unpacks and checks a blob.
    pub(crate) fn open_blob(&self, blob: &PackedBlob, sealed: &[u8]) -> Result<Vec<u8>> {
        Ok(Opener::new()?.open(self, blob, &mut sealed.to_vec())?.to_vec())
    }

    /// A folder.
    pub(crate) async fn load_tree(&self, id: &Id) -> Result<Tree> {
        let text = self.load_blob(BlobKind::Tree, id).await?;
        serde_json::from_slice(&text)
            .map_err(|error| Error::DamagedBlob { id: *id, reason: error.to_string() })
    }

    /// Returns the blobs that the header of a pack names.
    pub(crate) async fn read_header(&self, pack: Id, size: u64) -> Result<Vec<PackedBlob>> {
        /// Enough for the header of most packs.
        const GUESS: u64 = 16 << 10;
        let file = File::Named(Kind::Pack, pack);
        let damaged = |reason: &str| Error::damaged(file, reason);
        let guess = GUESS.min(size);
        let mut tail = self.0.backend.read_range(file, size - guess, guess).await?;
        let length = tail.last_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
        let whole = u64::from(u32::from_le_bytes(*length)) + 4;
        if whole > size {
            return Err(damaged("its header is longer than itself"));
        }
        if whole > guess {
            tail = self.0.backend.read_range(file, size - whole, whole).await?;
        }
        let start = tail.len() - whole as usize;
        let plain = self
            .0
            .key
            .open(&tail[start..tail.len() - 4])
            .map_err(|_| damaged("its header was changed"))?;
        let blobs = format::parse_header(&plain)
            .map_err(|error| Error::damaged(file, error.to_string()))?;
        let end = blobs.last().map_or(0, |blob| u64::from(blob.offset) + u64::from(blob.length));
        if end + whole != size {
            return Err(damaged("its header does not fit its length"));
        }
        Ok(blobs)
    }
}

/// Opens one blob after the other, in place, and keeps what that takes.
pub(crate) struct Opener {
    decompressor: zstd::bulk::Decompressor<'static>,
    plain: Vec<u8>,
}

impl Opener {
    pub(crate) fn new() -> Result<Self> {
        let decompressor = zstd::bulk::Decompressor::new().map_err(internal)?;
        Ok(Self { decompressor, plain: Vec::new() })
    }

    /// Opens, unpacks and checks a blob. The sealed text is of no use after.
    pub(crate) fn open<'a>(
        &'a mut self,
        repository: &Repository,
        blob: &PackedBlob,
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8]> {
        let damaged = |reason: String| Error::DamagedBlob { id: blob.id, reason };
        let opened = repository.0.key.open_in_place(sealed);
        let mut text: &[u8] = opened.map_err(|error| damaged(error.to_string()))?;
        if let Some(length) = blob.uncompressed_length {
            self.plain.clear();
            self.plain.reserve(length as usize);
            let unpacked = self.decompressor.decompress_to_buffer(text, &mut self.plain);
            unpacked.map_err(|error| damaged(error.to_string()))?;
            text = &self.plain;
        }
        if Id::of(text) != blob.id {
            return Err(damaged("its content does not belong to its name".to_owned()));
        }
        Ok(text)
    }
}

/// Fetched anew if it does not hold what its name says.
async fn fetch_named(backend: &dyn Backend, kind: Kind, id: Id) -> Result<Bytes> {
    let file = File::Named(kind, id);
    for _ in 0..FETCHES {
        let content = backend.read(file).await?;
        if Id::of(&content) == id {
            return Ok(content);
        }
    }
    Err(Error::damaged(file, "its content does not belong to its name"))
}

pub(crate) fn internal(error: impl fmt::Display) -> Error {
    Error::Internal(error.to_string())
}

/// Returns whether this is the configuration. Asked again if it is not: without the
/// key that would go, nobody can open the repository any more.
async fn is_there(backend: &dyn Backend, sealed: &Bytes) -> Result<bool> {
    for _ in 0..FETCHES {
        if backend.read(File::Config).await? == *sealed {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the key that this file holds, if the password opens it.
async fn user_key(backend: &dyn Backend, id: Id, password: &Secret) -> Result<Option<Key>> {
    match fetch_named(backend, Kind::Key, id).await {
        Ok(text) => open_key(text, password.clone()).await,
        Err(error @ (Error::DamagedFile { .. } | Error::MissingFile(_))) => {
            tracing::warn!(%error, "a key of the repository is of no use");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Deriving a key takes a tenth of a second: not on a thread that others need.
async fn open_key(text: Bytes, password: Secret) -> Result<Option<Key>> {
    let Ok(file) = serde_json::from_slice::<KeyFile>(&text) else { return Ok(None) };
    tokio::task::spawn_blocking(move || file.open(&password)).await.map_err(internal)
}

pub(crate) async fn seal_key(
    master: Key,
    password: Secret,
    options: &RepositoryOptions,
) -> Result<(Bytes, Key)> {
    let (now, host) = (options.clock.now(), options.hostname.clone());
    let user = options.username.clone();
    let (file, master) = tokio::task::spawn_blocking(move || {
        (KeyFile::seal(&master, &password, now, &host, &user), master)
    })
    .await
    .map_err(internal)?;
    let file = file.ok_or_else(|| internal("the key cannot be sealed"))?;
    Ok((serde_json::to_vec(&file).map_err(internal)?.into(), master))
}
