//! A volume becomes a snapshot.
//!
//! [`plan`] says which chunks have to be read. Threads ([`work`]) read them,
//! pass over zeros and what the repository has, compress, seal and hand full
//! packs ([`pack`]) to [`upload`], which keeps a few on their way. Nobody runs
//! ahead: every queue between them is short, so memory is bounded.

mod adopt;
mod pack;
mod plan;
mod upload;
mod work;

use std::{ops::Range, sync::Arc};

use jiff::Timestamp;

use crate::{
    BlockSource, Error, Id, Job, Repository, Result, Snapshot,
    backend::Kind,
    job::Phase,
    lock::{Lock, STALE_AFTER},
    volume::{Layout, StoredVolume, chunk_for, chunk_without_map},
};

pub(crate) use pack::{Pack, Packers};
pub(crate) use upload::IndexWriter;
use upload::upload_all;
pub(crate) use work::{find_allocated, store_volume};

/// Name of the program in snapshots.
const PROGRAM: &str = concat!("selvage ", env!("CARGO_PKG_VERSION"));

/// Options of a backup.
#[derive(Debug, Clone, Default)]
pub struct BackupOptions {
    /// The volume's name: the folder it lies in, and a tag.
    pub volume: String,
    /// The name of the backup: a tag, by which it can be found again.
    pub name: String,
    /// When the volume was frozen. Now, if not given.
    pub time: Option<Timestamp>,
    /// An earlier backup of the same volume.
    pub parent: Option<Parent>,
    /// At which multiples to cut: a power of two from 4 KiB to 8 MiB. By
    /// the parent or else by the volume's size, if not given.
    pub chunk: Option<u32>,
    /// That nobody will ever tell what changed in this volume. Chunks need
    /// not be as small as changes are then, and are stored smaller if they
    /// are larger.
    pub without_map: bool,
    /// More tags.
    pub tags: Vec<String>,
}

/// An earlier backup to start from.
#[derive(Debug, Clone)]
pub struct Parent {
    /// Its snapshot.
    pub snapshot: Id,
    /// Ranges that changed since then; what is not in here is not read. `None` if
    /// that is not known: all is read, and only what is new is stored.
    pub changed: Option<Vec<Range<u64>>>,
}

/// Result of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// Snapshot that it made.
    pub snapshot: Snapshot,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Number of bytes that were read.
    pub read: u64,
    /// Number of those that the repository did not have.
    pub new: u64,
    /// Size of these when compressed and sealed.
    pub stored: u64,
    /// Number of bytes of packs that the repository took.
    pub uploaded: u64,
    /// Number of packs of an earlier, unfinished run that were taken over.
    pub adopted: u64,
}

impl BackupSummary {
    /// Returns the summary of a backup that was stored before, for which nothing was done now.
    pub fn of_stored(snapshot: Snapshot, size: u64) -> Self {
        Self { snapshot, size, read: 0, new: 0, stored: 0, uploaded: 0, adopted: 0 }
    }
}

impl Repository {
    /// Stores a volume as a snapshot. What an earlier run uploaded that did
    /// not come to its end is found and used.
    pub async fn backup(
        &self,
        source: Arc<dyn BlockSource>,
        options: BackupOptions,
        job: &Job,
    ) -> Result<BackupSummary> {
        check(&options)?;
        job.enter(Phase::Opening);
        let lock = Lock::take(self, false, job).await?;
        let outcome = Box::pin(self.backup_locked(source, &options, job, &lock)).await;
        if outcome.is_ok() {
            job.enter(Phase::Done);
        }
        lock.finish(outcome).await
    }

    async fn backup_locked(
        &self,
        source: Arc<dyn BlockSource>,
        options: &BackupOptions,
        job: &Job,
        lock: &Lock,
    ) -> Result<BackupSummary> {
        let parent = self.parent(options).await?;
        let chunk =
            options.chunk.or_else(|| parent.as_ref().and_then(|(parent, _)| parent.chunk()));
        let size = source.size();
        let usual = if options.without_map { chunk_without_map } else { chunk_for };
        let layout = Layout::new(size, chunk.unwrap_or_else(|| usual(size)))?;
        let uploaded = |job: &Job| job.progress().uploaded;
        let mut adopted = 0;
        let tree = match &parent {
            Some((parent, changed)) if unchanged(parent, changed, layout) => {
                job.counters().total.store(size, std::sync::atomic::Ordering::Relaxed);
                crate::job::add(&job.counters().done, size);
                parent.tree
            }
            _ => {
                let allocated = find_allocated(&source);
                job.or_cancelled(self.load_index()).await?;
                let known = parent.as_ref().is_some_and(|(_, changed)| changed.is_some());
                if lock.found_remains {
                    job.or_cancelled(self.backend().sweep(Kind::Pack, STALE_AFTER)).await?;
                }
                if lock.found_remains || !known {
                    adopted = job.or_cancelled(adopt::adopt(self)).await?;
                }
                let parent = self.stored_parent(parent, layout).await?;
                job.enter(Phase::Copying);
                let source = Arc::clone(&source);
                store_volume(self, source, allocated, layout, &options.volume, parent, job).await?
            }
        };
        job.enter(Phase::Finishing);
        job.check()?;
        check_unchanged(source).await?;
        lock.check().await?;
        let snapshot = self.write_snapshot(options, layout, tree).await?;
        let done = job.progress();
        Ok(BackupSummary {
            snapshot,
            size,
            read: done.read,
            new: done.new,
            stored: done.stored,
            uploaded: uploaded(job),
            adopted,
        })
    }

    /// The parent's snapshot and what changed since.
    async fn parent(&self, options: &BackupOptions) -> Result<Option<(Snapshot, Changed)>> {
        let Some(parent) = &options.parent else { return Ok(None) };
        match self.snapshot(parent.snapshot).await {
            Ok(snapshot) => Ok(Some((snapshot, parent.changed.clone()))),
            Err(Error::MissingFile(_)) => {
                tracing::warn!(parent = %parent.snapshot, "the parent is gone: reading all");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The parent's chunks, as far as they help.
    async fn stored_parent(
        &self,
        parent: Option<(Snapshot, Changed)>,
        layout: Layout,
    ) -> Result<Option<plan::Base>> {
        let Some((snapshot, Some(changed))) = parent else { return Ok(None) };
        let stored = match StoredVolume::load(self, &snapshot).await {
            Ok(stored) => stored,
            Err(Error::MissingBlob(_) | Error::DamagedBlob { .. } | Error::MissingFile(_)) => None,
            Err(error) => return Err(error),
        };
        let usable = stored.filter(|stored| stored.layout.chunk == layout.chunk);
        if usable.is_none() {
            tracing::warn!(parent = %snapshot.id, "the parent cannot be used: reading all");
        }
        Ok(usable.map(|volume| plan::Base { volume, changed: plan::tidy(changed) }))
    }

    async fn write_snapshot(
        &self,
        options: &BackupOptions,
        layout: Layout,
        tree: Id,
    ) -> Result<Snapshot> {
        let mut tags = vec!["selvage".to_owned()];
        if !options.name.is_empty() {
            tags.push(format!("name={}", options.name));
        }
        tags.push(format!("volume={}", options.volume));
        tags.push(format!("size={}", layout.size));
        tags.push(format!("chunk={}", layout.chunk));
        tags.extend(options.tags.iter().cloned());
        let snapshot = Snapshot {
            id: Id::from_bytes([0; Id::LENGTH]),
            time: options.time.unwrap_or_else(|| self.options().clock.now()),
            parent: options.parent.as_ref().map(|parent| parent.snapshot),
            tree,
            paths: vec![format!("/{}", folder(&options.volume))],
            hostname: self.options().hostname.clone(),
            username: self.options().username.clone(),
            tags,
            program_version: PROGRAM.to_owned(),
        };
        let id = self.save_document(Kind::Snapshot, &snapshot).await?;
        Ok(Snapshot { id, ..snapshot })
    }
}

type Changed = Option<Vec<Range<u64>>>;

/// Nothing to look at: the parent's tree is ours.
fn unchanged(parent: &Snapshot, changed: &Changed, layout: Layout) -> bool {
    parent.size() == Some(layout.size)
        && parent.chunk() == Some(layout.chunk)
        && changed.as_ref().is_some_and(|ranges| ranges.iter().all(Range::is_empty))
}

/// Refuses to make a snapshot of what never was.
async fn check_unchanged(source: Arc<dyn BlockSource>) -> Result<()> {
    let asked = tokio::task::spawn_blocking(move || source.is_unchanged()).await;
    match asked.map_err(|error| Error::Internal(error.to_string()))? {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::SourceChanged),
        Err(source) => Err(Error::Source { offset: 0, source }),
    }
}

fn check(options: &BackupOptions) -> Result<()> {
    let invalid = |field, reason: &str| Err(Error::Invalid { field, reason: reason.to_owned() });
    if options.volume.is_empty() {
        return invalid("volume", "a backup needs the name of its volume");
    }
    if options.volume.chars().any(char::is_control) {
        return invalid("volume", "a name cannot have control characters");
    }
    if options.name.chars().any(|c| c.is_control() || c == ',') {
        return invalid("name", "a name cannot have control characters or commas");
    }
    Ok(())
}

/// A name that can be a folder's.
pub(crate) fn folder(volume: &str) -> String {
    match volume {
        "." | ".." => "volume".to_owned(),
        name => name.replace(['/', '\\', '"'], "-"),
    }
}
