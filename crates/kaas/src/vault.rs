//! Backups of clusters in a restic repository: one snapshot a backup, with the
//! keys of the cluster in its first block and etcd's snapshot behind it. With the
//! repository and its password any controller makes the cluster again.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use prost::Message;
use selvage_api::Code;
use selvage_restic::{
    self as restic, Backend, BackupOptions, FileSink, FileSource, Id, Job, PruneOptions,
    Repository, RepositoryOptions, RestoreOptions, Secret, Selector, Snapshot, SnapshotFilter,
};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use zeroize::Zeroizing;

use crate::record::Backup;

/// Bytes of the block with the keys. etcd's pages begin behind it, at the same
/// places each time, so that what did not change is stored once.
const HEAD: u64 = 64 << 10;
/// Bytes that are stored together.
const CHUNK: u32 = 64 << 10;
/// Beginning of the block with the keys.
const MAGIC: &[u8; 8] = b"slvkaas1";
/// Bytes of a number that says how long the keys are.
const LENGTH: usize = 4;
/// etcd puts the SHA-256 of a snapshot behind it.
const DIGEST: usize = 32;
/// Bytes that are read together.
const PIECE: usize = 1 << 20;
/// Tag that holds what is known of a backup beside its content.
const RECORD: &str = "kaas";

/// Why a backup cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("the snapshot that came is not whole: its SHA-256 is wrong")]
    NotWhole,
    #[error("backup {0} is not one of a cluster")]
    Foreign(String),
    #[error("the keys of the cluster are too long for a backup")]
    Keys,
    #[error("{}", selvage_api::chain(.0))]
    Repository(#[from] restic::Error),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::File { .. } | Self::Keys => Code::Internal,
            Self::NotWhole => Code::Unavailable,
            Self::Foreign(_) => Code::DataLoss,
            Self::Repository(error) => error.code(),
        }
    }
}

/// Repository of backups. It is opened, or made, when it is first needed.
pub struct Vault {
    backend: Arc<dyn Backend>,
    password: Secret,
    /// Folder for what is on its way. Its files have no name, and go with the
    /// process.
    scratch: PathBuf,
    opened: OnceCell<Repository>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("location", &self.backend.location()).finish()
    }
}

impl Vault {
    pub fn new(backend: Arc<dyn Backend>, password: Secret, scratch: PathBuf) -> Self {
        Self { backend, password, scratch, opened: OnceCell::new() }
    }

    async fn repository(&self) -> Result<&Repository, Error> {
        let open = || async {
            let backend = Arc::clone(&self.backend);
            Repository::open_or_init(backend, &self.password, RepositoryOptions::default()).await
        };
        Ok(self.opened.get_or_try_init(open).await?)
    }

    /// Returns whether the repository is there.
    pub async fn exists(&self) -> Result<bool, Error> {
        if self.opened.initialized() {
            return Ok(true);
        }
        match self.backend.read(restic::backend::File::Config).await {
            Err(restic::Error::MissingFile(_)) => Ok(false),
            read => Ok(read.map(|_| true)?),
        }
    }

    /// Identity of the repository.
    pub async fn id(&self) -> Result<String, Error> {
        Ok(self.repository().await?.config().id.to_string())
    }

    fn scratch_file(&self) -> Result<File, Error> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.scratch);
        let file = made.and_then(|()| tempfile::tempfile_in(&self.scratch));
        file.map_err(failed(&self.scratch))
    }

    /// Begins a backup of a cluster that has these keys.
    pub fn create(&self, keys: &[u8]) -> Result<Writer, Error> {
        let length = u32::try_from(keys.len()).map_err(|_| Error::Keys)?;
        let mut head = Zeroizing::new([MAGIC, &length.to_be_bytes()[..], keys].concat());
        if head.len() as u64 > HEAD {
            return Err(Error::Keys);
        }
        head.resize(HEAD as usize, 0);
        let mut file = BufWriter::new(self.scratch_file()?);
        file.write_all(&head).map_err(failed(&self.scratch))?;
        let (digest, tail, path) = (Sha256::new(), Vec::new(), self.scratch.clone());
        Ok(Writer { path, file, size: 0, digest, tail })
    }

    /// Puts a backup into the repository, and names its snapshot.
    pub async fn store(&self, written: Written, about: &Backup) -> Result<String, Error> {
        let source = FileSource::new(written.file).map_err(failed(&self.scratch))?;
        let known = Backup { sealed_keys: Vec::new(), ..about.clone() }.encode_to_vec();
        let time = i64::try_from(about.taken_at).unwrap_or(i64::MAX);
        let options = BackupOptions {
            volume: about.cluster.clone(),
            name: about.id.clone(),
            time: jiff::Timestamp::from_millisecond(time).ok(),
            chunk: Some(CHUNK),
            without_map: true,
            tags: vec![
                format!("kubernetes={}", about.version),
                format!("{RECORD}={}", STANDARD.encode(known)),
            ],
            ..BackupOptions::default()
        };
        let repository = self.repository().await?;
        let done = repository.backup(Arc::new(source), options, &Job::new()).await?;
        Ok(done.snapshot.id.to_string())
    }

    /// Brings a backup back from the repository.
    pub async fn open(&self, id: &str) -> Result<Content, Error> {
        let repository = self.repository().await?;
        let snapshot =
            repository.select(&Selector::Name(id.to_owned()), SnapshotFilter::default()).await?;
        self.fetch(repository, &snapshot).await
    }

    /// Keys of the cluster in the backup of that snapshot.
    pub async fn keys(&self, snapshot: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
        let id = snapshot.parse::<Id>().map_err(|_| Error::Foreign(snapshot.to_owned()))?;
        let repository = self.repository().await?;
        let snapshot = repository.snapshot(id).await?;
        Ok(self.fetch(repository, &snapshot).await?.keys)
    }

    /// Returns whether the repository has that snapshot.
    pub async fn has(&self, snapshot: &str) -> Result<bool, Error> {
        let Ok(id) = snapshot.parse::<Id>() else { return Ok(false) };
        match self.repository().await?.snapshot(id).await {
            Err(restic::Error::MissingFile(_)) => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    async fn fetch(&self, repository: &Repository, snapshot: &Snapshot) -> Result<Content, Error> {
        let foreign = || Error::Foreign(snapshot.name().unwrap_or_default().to_owned());
        let size = snapshot.size().filter(|size| *size >= HEAD).ok_or_else(foreign)?;
        let mut file = self.scratch_file()?;
        let sink = file.set_len(size).and_then(|()| FileSink::new(file.try_clone()?, true));
        let sink = Arc::new(sink.map_err(failed(&self.scratch))?);
        let options = RestoreOptions::default();
        repository.restore(snapshot, sink, &options, &Job::new()).await?;
        let mut head = Zeroizing::new(vec![0; HEAD as usize]);
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut head));
        read.map_err(failed(&self.scratch))?;
        let keys = keys_in(&head).ok_or_else(foreign)?;
        Ok(Content { path: self.scratch.clone(), file, keys })
    }

    /// Backups of clusters that are in the repository, by their snapshots.
    pub async fn list(&self) -> Result<Vec<Stored>, Error> {
        let snapshots = self.repository().await?.snapshots().await?;
        let known = |snapshot: &Snapshot| {
            let record = STANDARD.decode(snapshot.tag(RECORD)?).ok()?;
            Backup::decode(record.as_slice()).ok()
        };
        let stored = snapshots.iter().filter_map(|snapshot| {
            Some(Stored { snapshot: snapshot.id.to_string(), backup: known(snapshot)? })
        });
        Ok(stored.collect())
    }

    /// Removes the snapshot of a backup; one that is not there is none to remove.
    pub async fn remove(&self, snapshot: &str) -> Result<(), Error> {
        let Ok(id) = snapshot.parse::<Id>() else { return Ok(()) };
        Ok(self.repository().await?.remove_snapshots(&[id], &Job::new()).await?)
    }

    /// Frees what no backup needs.
    pub async fn prune(&self) -> Result<(), Error> {
        self.repository().await?.prune(&PruneOptions::default(), &Job::new()).await?;
        Ok(())
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.display().to_string(), source }
}

/// Keys in the first block of a backup.
fn keys_in(head: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (length, rest) = head.strip_prefix(MAGIC)?.split_at_checked(LENGTH)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    Some(Zeroizing::new(rest.get(..length)?.to_vec()))
}

/// A backup as the repository has it.
#[derive(Debug)]
pub struct Stored {
    pub snapshot: String,
    /// All of it but its keys.
    pub backup: Backup,
}

/// A backup that is being written. Dropped before it is stored, nothing of it
/// stays.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    size: u64,
    digest: Sha256,
    /// The last bytes, which may be the digest.
    tail: Vec<u8>,
}

impl Writer {
    /// Adds to etcd's snapshot.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let known = self.tail.len().saturating_sub(DIGEST);
        self.digest.update(&self.tail[..known]);
        self.tail.drain(..known);
        self.file.write_all(bytes).map_err(failed(&self.path))
    }

    /// Ends it, provided that etcd's snapshot is whole.
    pub fn finish(self) -> Result<Written, Error> {
        if self.digest.finalize().as_slice() != self.tail {
            return Err(Error::NotWhole);
        }
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        Ok(Written { file: file.map_err(failed(&self.path))?, size: self.size })
    }
}

/// A backup that is whole and not in the repository yet.
pub struct Written {
    file: File,
    /// Bytes of etcd's snapshot.
    pub size: u64,
}

/// A backup that came back, read from its beginning.
pub struct Content {
    path: PathBuf,
    file: File,
    /// Keys of the cluster.
    pub keys: Zeroizing<Vec<u8>>,
}

impl Content {
    /// Returns the next piece of etcd's snapshot; none after the last.
    pub fn piece(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let mut piece = Zeroizing::new(vec![0; PIECE]);
        let read = self.file.read(&mut piece).map_err(failed(&self.path))?;
        piece.truncate(read);
        Ok((read > 0).then_some(piece))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_restic::Directory;

    use super::*;

    fn etcd(length: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let digest = Sha256::digest(&content).to_vec();
        [content, digest].concat()
    }

    fn vault(folder: &Path, password: &str) -> Vault {
        let backend = Arc::new(Directory::new(folder.join("repository")));
        Vault::new(backend, Secret::new(password), folder.join("scratch"))
    }

    fn backup(id: &str) -> Backup {
        Backup { id: id.into(), cluster: "demo".into(), ..Backup::default() }
    }

    async fn save(vault: &Vault, id: &str, etcd: &[u8]) -> String {
        let mut writer = vault.create(b"keys").unwrap();
        etcd.chunks(70_001).for_each(|chunk| writer.write(chunk).unwrap());
        let written = writer.finish().unwrap();
        assert_eq!(written.size, etcd.len() as u64);
        vault.store(written, &backup(id)).await.unwrap()
    }

    async fn read(vault: &Vault, id: &str) -> Vec<u8> {
        let mut content = vault.open(id).await.unwrap();
        assert_eq!(content.keys.as_slice(), b"keys");
        let mut all = Vec::new();
        while let Some(piece) = content.piece().unwrap() {
            all.extend_from_slice(&piece);
        }
        all
    }

    #[tokio::test]
    async fn another_process_with_the_password_reads_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let lengths = [1, PIECE - DIGEST, 3 * PIECE + 17];
        let own = vault(folder.path(), "right");
        let mut snapshots = Vec::new();
        for length in lengths {
            snapshots.push(save(&own, &format!("demo-{length}"), &etcd(length)).await);
        }
        let other = vault(folder.path(), "right");
        for length in lengths {
            assert_eq!(read(&other, &format!("demo-{length}")).await, etcd(length));
        }
        let wrong = vault(folder.path(), "wrong").open("demo-1").await.err().unwrap();
        assert_eq!(wrong.code(), Code::PermissionDenied, "{wrong}");

        own.remove(&snapshots[0]).await.unwrap();
        own.remove(&snapshots[0]).await.unwrap();
        let left = other.list().await.unwrap();
        let left: Vec<&str> = left.iter().map(|stored| stored.backup.id.as_str()).collect();
        assert_eq!(left.len(), 2);
        assert!(!left.contains(&"demo-1"), "{left:?}");
        assert_eq!(other.open("demo-1").await.err().unwrap().code(), Code::NotFound);
        own.prune().await.unwrap();
        for length in &lengths[1..] {
            assert_eq!(read(&other, &format!("demo-{length}")).await, etcd(*length));
        }
        assert_eq!(fs::read_dir(folder.path().join("scratch")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_not_whole_is_not_stored() {
        let folder = tempfile::tempdir().unwrap();
        let vault = vault(folder.path(), "right");
        let bytes = etcd(1000);
        let mut writer = vault.create(b"keys").unwrap();
        writer.write(&bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(writer.finish(), Err(Error::NotWhole)));
        assert!(matches!(vault.create(&vec![0; HEAD as usize]), Err(Error::Keys)));
        assert!(vault.list().await.unwrap().is_empty());
    }
}
