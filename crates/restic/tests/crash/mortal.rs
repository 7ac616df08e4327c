//! The process that is killed, and what it works with: a backend and a volume
//! that count what is asked of them and end the process at a given count.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use selvage_restic::{
    Backend, BackupOptions, BlockSink, Directory, FileSink, Job, PruneOptions, Repository,
    RepositoryOptions, RestoreOptions, Result, S3, Selector, SnapshotFilter,
    backend::{File, Kind, Listed},
};
use serde::{Deserialize, Serialize};

use crate::{
    common::{named, options, password, source},
    store,
};

pub(crate) const PACK: u32 = 128 << 10;
pub(crate) const CONNECTIONS: usize = 2;
pub(crate) const CHUNK: u32 = 16 << 10;
pub(crate) const NOW: PruneOptions =
    PruneOptions { max_unused_percent: 0, grace: Duration::ZERO, dry_run: false };

/// Words of the child when it has opened the repository, and in the end, with
/// the number of its operations.
pub(crate) const READY: &str = "ready to die";
pub(crate) const DONE: &str = "done in ";

const TASK: &str = "SELVAGE_CRASH_TASK";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Backup,
    Restore,
    Prune,
}

impl Work {
    pub(crate) const ALL: [Self; 3] = [Self::Backup, Self::Restore, Self::Prune];
}

/// Storage of the repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Storage {
    Directory(PathBuf),
    S3(String),
}

/// When, as seen from one operation, the process ends.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Moment {
    Before,
    /// So many microseconds after it began.
    During(u64),
    After,
}

/// Work of a process, and after how many operations it is not to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) place: Storage,
    pub(crate) folder: PathBuf,
    pub(crate) death: Option<(u64, Moment)>,
}

/// Counts, and ends the process when it is time.
#[derive(Debug)]
pub(crate) struct Fate {
    death: Option<(u64, Moment)>,
    operations: AtomicU64,
    /// A line for every pack that was begun to be sent.
    sent: PathBuf,
}

impl Fate {
    pub(crate) fn new(death: Option<(u64, Moment)>, folder: &Path) -> Arc<Self> {
        let (operations, sent) = (AtomicU64::new(0), folder.join("sent"));
        Arc::new(Self { death, operations, sent })
    }

    /// Counts one, and tells when it is the last.
    fn count(&self) -> Option<Moment> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        self.death.filter(|(last, _)| *last == number).map(|(_, moment)| moment)
    }

    async fn meet<T>(&self, operation: impl Future<Output = T>) -> T {
        match self.count() {
            None => operation.await,
            Some(Moment::Before) => die(),
            Some(Moment::During(microseconds)) => {
                let _ = tokio::time::timeout(Duration::from_micros(microseconds), operation).await;
                die()
            }
            Some(Moment::After) => {
                operation.await;
                die()
            }
        }
    }

    fn note(&self, bytes: usize) {
        let file = OpenOptions::new().create(true).append(true).open(&self.sent);
        file.unwrap().write_all(format!("{bytes}\n").as_bytes()).unwrap();
    }
}

/// No destructor runs and nothing is flushed.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// A backend that may end.
#[derive(Debug)]
pub(crate) struct Mortal {
    inner: Arc<dyn Backend>,
    fate: Arc<Fate>,
}

#[async_trait]
impl Backend for Mortal {
    fn location(&self) -> String {
        self.inner.location()
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Listed>> {
        self.fate.meet(self.inner.list(kind)).await
    }

    async fn size(&self, file: File) -> Result<Option<u64>> {
        self.fate.meet(self.inner.size(file)).await
    }

    async fn read(&self, file: File) -> Result<Bytes> {
        self.fate.meet(self.inner.read(file)).await
    }

    async fn read_range(&self, file: File, offset: u64, length: u64) -> Result<Bytes> {
        self.fate.meet(self.inner.read_range(file, offset, length)).await
    }

    async fn write(&self, file: File, content: Bytes) -> Result<bool> {
        if matches!(file, File::Named(Kind::Pack, _)) {
            self.fate.note(content.len());
        }
        self.fate.meet(self.inner.write(file, content)).await
    }

    async fn remove(&self, file: File) -> Result<()> {
        self.fate.meet(self.inner.remove(file)).await
    }

    async fn sweep(&self, kind: Kind, age: Duration) -> Result<usize> {
        self.fate.meet(self.inner.sweep(kind, age)).await
    }
}

/// A volume that may end.
struct MortalSink {
    inner: FileSink,
    fate: Arc<Fate>,
}

impl MortalSink {
    fn meet(&self, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.fate.count() {
            None => operation(),
            Some(Moment::Before) => die(),
            Some(_) => {
                let _ = operation();
                die()
            }
        }
    }
}

impl BlockSink for MortalSink {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.meet(|| self.inner.write_at(offset, bytes))
    }

    fn zero_at(&self, offset: u64, length: u64) -> io::Result<()> {
        self.meet(|| self.inner.zero_at(offset, length))
    }

    fn is_fresh(&self) -> bool {
        self.inner.is_fresh()
    }

    fn finish(&self) -> io::Result<()> {
        self.meet(|| self.inner.finish())
    }
}

/// Small packs and few at a time, so that a small volume has many points to
/// be killed at, and what is on its way is little of it.
pub(crate) async fn open(place: &Storage, fate: &Arc<Fate>) -> Repository {
    let inner: Arc<dyn Backend> = match place {
        Storage::Directory(path) => Arc::new(Directory::new(path)),
        Storage::S3(endpoint) => Arc::new(S3::new(store::options(endpoint, "crash")).unwrap()),
    };
    let backend = Arc::new(Mortal { inner, fate: Arc::clone(fate) });
    let options = RepositoryOptions { pack_size: PACK, connections: CONNECTIONS, ..options() };
    Repository::open_or_init(backend, &password(), options).await.unwrap()
}

pub(crate) fn backup_options() -> BackupOptions {
    BackupOptions { chunk: Some(CHUNK), ..named("disk") }
}

/// The file that is restored to; over what a dead one left there, if any.
pub(crate) fn target(folder: &Path, size: u64) -> FileSink {
    let path = folder.join("back");
    if path.exists() {
        return FileSink::open(path, false).unwrap();
    }
    FileSink::create(path, size).unwrap()
}

/// A command that does the task in a process of its own.
pub(crate) fn command(task: &Task) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "mortal::a_process_to_be_killed", "--nocapture"])
        .env(TASK, serde_json::to_string(task).unwrap());
    command
}

/// Body of the child. Run by itself it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_to_be_killed() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let fate = Fate::new(task.death, &task.folder);
    let repository = open(&task.place, &fate).await;
    let say = |text: String| {
        let _ = writeln!(io::stdout(), "{text}");
    };
    say(READY.to_owned());
    let job = Job::new();
    match task.work {
        Work::Backup => {
            let disk = source(&task.folder.join("disk"));
            repository.backup(disk, backup_options(), &job).await.unwrap();
        }
        Work::Restore => {
            let latest = repository
                .select(&Selector::Id("latest".to_owned()), SnapshotFilter::default())
                .await
                .unwrap();
            let inner = target(&task.folder, latest.size().unwrap());
            let sink = Arc::new(MortalSink { inner, fate: Arc::clone(&fate) });
            repository.restore(&latest, sink, &RestoreOptions::default(), &job).await.unwrap();
        }
        Work::Prune => {
            repository.prune(&NOW, &job).await.unwrap();
        }
    }
    say(format!("{DONE}{}", fate.operations.load(Ordering::Relaxed)));
}
