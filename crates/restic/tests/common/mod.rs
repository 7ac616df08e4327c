//! Shared parts of the tests: images, stock restic, and a loud word where a part
//! is missing.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod ceph;

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
};

use selvage_restic::{
    BackupOptions, BlockSource, Directory, FileSink, FileSource, Id, Job, Repository,
    RepositoryOptions, RestoreOptions, RestoreSummary, Secret, Snapshot,
};

pub use selvage_testkit::skip;

/// Password of every repository of the tests.
pub const PASSWORD: &str = "correct horse battery staple";

/// Returns whether stock restic is here.
pub fn has_restic() -> bool {
    let found = Command::new("restic").arg("version").stdout(Stdio::null()).status().is_ok();
    if !found {
        skip("restic", "it is not installed: run ./dev test");
    }
    found
}

/// Stock restic on one repository.
pub struct Restic {
    pub repository: String,
    pub environment: Vec<(String, String)>,
}

impl Restic {
    pub fn on(repository: impl AsRef<Path>) -> Self {
        let repository = repository.as_ref().to_str().unwrap().to_owned();
        Self { repository, environment: Vec::new() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("restic");
        command
            .args(["--no-cache", "--repo", &self.repository])
            .args(arguments)
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("GOMAXPROCS", "2")
            .envs(self.environment.iter().cloned());
        command
    }

    /// Runs it; what it says if it is content.
    pub fn run(&self, arguments: &[&str]) -> Vec<u8> {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "restic {arguments:?}: {status}: {text}");
        stdout
    }

    /// Reads everything there is, and is content with it.
    pub fn check(&self) {
        let said = String::from_utf8(self.run(&["check", "--read-data"])).unwrap();
        assert!(said.contains("no errors were found"), "{said}");
    }

    /// All of a volume, put together from its segments.
    pub fn dump(&self, snapshot: &Snapshot) -> Vec<u8> {
        let volume = &snapshot.paths[0];
        let segments = snapshot.size().unwrap().div_ceil(1 << 30);
        let dump = |number| {
            let file = format!("{volume}/{number:06}/data");
            self.run(&["dump", &snapshot.id.to_string(), &file])
        };
        (0..segments).flat_map(dump).collect()
    }
}

/// Numbers that look random and are the same every time.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Bytes no compression helps with.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(length.div_ceil(8)).flatten().take(length).collect()
    }

    /// Bytes that compress about as well as files do.
    pub fn text(&mut self, length: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(length + 64);
        while text.len() < length {
            let word = self.below(5000);
            text.extend(format!("word{word} of {} ", self.below(100)).bytes());
        }
        text.truncate(length);
        text
    }
}

/// A file that looks like a used disk: text, noise, repeats and holes.
pub fn image(path: &Path, size: u64, seed: u64) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let mut numbers = Numbers::new(seed);
    let same = numbers.text(200_000);
    let mut at = 0;
    while at < size {
        let length = (50_000 + numbers.below(900_000)).min(size - at) as usize;
        let part = match numbers.below(4) {
            0 => numbers.bytes(length),
            1 => numbers.text(length),
            2 => same.iter().copied().cycle().take(length).collect(),
            _ => Vec::new(),
        };
        file.write_all_at(&part, at).unwrap();
        at += length as u64;
    }
}

pub fn options() -> RepositoryOptions {
    RepositoryOptions { pack_size: 4 << 20, ..RepositoryOptions::default() }
}

pub fn password() -> Secret {
    Secret::new(PASSWORD)
}

/// The repository in this directory, made if it is not there.
pub async fn repository(path: &Path) -> Repository {
    let backend = Arc::new(Directory::new(path));
    Repository::open_or_init(backend, &password(), options()).await.unwrap()
}

pub fn source(path: &Path) -> Arc<dyn BlockSource> {
    Arc::new(FileSource::open(path).unwrap())
}

pub fn named(volume: &str) -> BackupOptions {
    BackupOptions { volume: volume.to_owned(), ..BackupOptions::default() }
}

/// A backup that has to work.
pub async fn backup(repository: &Repository, image: &Path, options: BackupOptions) -> Snapshot {
    repository.backup(source(image), options, &Job::new()).await.unwrap().snapshot
}

/// Restores to a new file and says what it did.
pub async fn restore(
    repository: &Repository,
    snapshot: &Snapshot,
    size: u64,
    to: &Path,
) -> RestoreSummary {
    let sink = Arc::new(FileSink::create(to, size).unwrap());
    repository.restore(snapshot, sink, &RestoreOptions::default(), &Job::new()).await.unwrap()
}

/// Files are compared by hash, so that a failure does not print them.
pub fn hash(path: &Path) -> Id {
    Id::of(&std::fs::read(path).unwrap())
}

pub fn assert_same(one: &Path, other: &Path) {
    assert_eq!(hash(one), hash(other), "{} and {} differ", one.display(), other.display());
}

/// A folder for one test.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
