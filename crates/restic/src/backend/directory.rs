//! A repository in a directory, laid out as restic's local one.

use std::{
    fs,
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Backend, File, Kind, Listed};
use crate::{Error, Id, Limits, Result};

/// Stands in the names of files that are not whole yet; stock restic has the
/// same.
const TEMPORARY: &str = "-tmp-";

/// Number of bytes that are written before the limit is asked again.
const SLICE: usize = 256 << 10;

/// A directory of the local file system.
#[derive(Debug, Clone)]
pub struct Directory {
    root: PathBuf,
    limits: Arc<Limits>,
}

impl Directory {
    /// The repository in this directory, which need not be there yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), limits: Arc::default() }
    }

    /// Obeys these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Arc<Limits>) -> Self {
        self.limits = limits;
        self
    }

    fn path(&self, file: File) -> PathBuf {
        self.root.join(file.path())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Internal(error.to_string()))?
}

#[async_trait]
impl Backend for Directory {
    fn location(&self) -> String {
        self.root.display().to_string()
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Listed>> {
        let folder = self.root.join(kind.folder());
        blocking(move || {
            let mut found = Vec::new();
            list_folder(&folder, kind == Kind::Pack, &mut found)
                .map_err(|error| Error::io("list", &folder, error))?;
            Ok(found)
        })
        .await
    }

    async fn size(&self, file: File) -> Result<Option<u64>> {
        let path = self.path(file);
        blocking(move || match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("look at", &path, error)),
        })
        .await
    }

    async fn read(&self, file: File) -> Result<Bytes> {
        let path = self.path(file);
        let content =
            blocking(move || fs::read(&path).map_err(|error| reading(file, &path, error))).await?;
        self.limits.download.take(content.len()).await;
        Ok(content.into())
    }

    async fn read_range(&self, file: File, offset: u64, length: u64) -> Result<Bytes> {
        let path = self.path(file);
        let content = blocking(move || {
            read_part(&path, offset, length).map_err(|error| reading(file, &path, error))
        })
        .await?;
        self.limits.download.take(content.len()).await;
        Ok(content.into())
    }

    async fn write(&self, file: File, content: Bytes) -> Result<bool> {
        let (path, config) = (self.path(file), self.path(File::Config));
        if self.size(file).await?.is_some() {
            return Ok(false);
        }
        for slice in content.chunks(SLICE) {
            self.limits.upload.take(slice.len()).await;
        }
        blocking(move || {
            let modes = Modes::of(&config);
            write_whole(&path, &content, modes).map_err(|error| Error::io("write", &path, error))
        })
        .await?;
        Ok(true)
    }

    async fn remove(&self, file: File) -> Result<()> {
        let path = self.path(file);
        blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", &path, error))
            }
            _ => Ok(()),
        })
        .await
    }

    async fn sweep(&self, kind: Kind, age: Duration) -> Result<usize> {
        let folder = self.root.join(kind.folder());
        blocking(move || {
            let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
            sweep_folder(&folder, kind == Kind::Pack, before)
                .map_err(|error| Error::io("clean", &folder, error))
        })
        .await
    }
}

fn sweep_folder(folder: &Path, deeper: bool, before: SystemTime) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut swept = 0;
    for entry in entries {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            if deeper {
                swept += sweep_folder(&entry.path(), false, before)?;
            }
        } else if entry.file_name().to_string_lossy().contains(TEMPORARY)
            && metadata.modified()? <= before
            && fs::remove_file(entry.path()).is_ok()
        {
            swept += 1;
        }
    }
    Ok(swept)
}

fn reading(file: File, path: &Path, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::MissingFile(file),
        ErrorKind::UnexpectedEof => Error::damaged(file, "it is too short"),
        _ => Error::io("read", path, error),
    }
}

fn list_folder(folder: &Path, deeper: bool, found: &mut Vec<Listed>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        if metadata.is_dir() {
            if deeper {
                list_folder(&entry.path(), false, found)?;
            }
        } else if let Some(id) = entry.file_name().to_str().and_then(|n| n.parse::<Id>().ok()) {
            found.push(Listed { id, size: metadata.len() });
        }
    }
    Ok(())
}

fn read_part(path: &Path, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut content = vec![0; length];
    file.read_exact(&mut content)?;
    Ok(content)
}

/// Permissions of what is new in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Modes {
    folder: u32,
    file: u32,
}

impl Modes {
    /// As stock restic has them: a repository is its owner's alone, unless the group may
    /// read its configuration.
    fn of(config: &Path) -> Self {
        match fs::metadata(config) {
            Ok(about) if about.mode() & 0o040 != 0 => Self { folder: 0o770, file: 0o660 },
            _ => Self { folder: 0o700, file: 0o600 },
        }
    }
}

/// Under another name first: whoever looks sees all of it or nothing, also
/// after a power cut.
fn write_whole(path: &Path, content: &[u8], modes: Modes) -> io::Result<()> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(modes.folder).create(folder)?;
    let temporary = folder.join(format!("{}{TEMPORARY}{:08x}", name(path), rand::random::<u32>()));
    let written =
        write_and_sync(&temporary, content, modes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    fs::File::open(folder)?.sync_all()
}

fn write_and_sync(path: &Path, content: &[u8], modes: Modes) -> io::Result<()> {
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(modes.file).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
