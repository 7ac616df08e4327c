//! Private files: written so that a crash leaves the old or the new, read only
//! when nobody else can.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use zeroize::Zeroizing;

use super::Error;

/// No key or chain is longer.
const LIMIT: u64 = 1024 * 1024;

/// Nobody but the owner.
pub(super) const OWNER_ONLY: u32 = 0o077;
/// The group may read: how secrets are mounted for services.
pub(super) const OWNER_AND_GROUP: u32 = 0o007;

pub(super) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::Io { path, action, source }
}

/// The content of a file that anybody may read.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(failed(path, "open"))?;
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes).map_err(failed(path, "read"))?;
    Ok(bytes)
}

/// The content of a file on which nobody has the `forbidden` permissions.
pub(super) fn read_private(path: &Path, forbidden: u32) -> Result<Zeroizing<Vec<u8>>, Error> {
    // Permissions and content of the same file, whatever is renamed meanwhile.
    let file = File::open(path).map_err(failed(path, "open"))?;
    let mode = file.metadata().map_err(failed(path, "examine"))?.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(Error::Exposed { path: path.display().to_string(), mode });
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(LIMIT).read_to_end(&mut bytes).map_err(failed(path, "read"))?;
    Ok(bytes)
}

/// Writes a new file and waits until the disk has it.
pub(super) fn write_new(path: &Path, mode: u32, content: &[u8]) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(failed(path, "create"))?;
    file.write_all(content).map_err(failed(path, "write"))?;
    file.sync_all().map_err(failed(path, "sync"))
}

/// Puts a file in the place of another, which is never seen half written.
pub(super) fn replace(path: &Path, mode: u32, content: &[u8]) -> Result<(), Error> {
    selvage_files::replace(path, content, mode).map_err(failed(path, "replace"))
}

/// A name in the same directory that nobody else uses.
pub(super) fn beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}

pub(super) fn sync_directory(path: &Path) -> Result<(), Error> {
    selvage_files::sync_folder(path).map_err(failed(path, "sync"))
}

/// Tells one content of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
        let file = fs::metadata(path).map_err(failed(path, "examine"))?;
        Ok(Self {
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}
