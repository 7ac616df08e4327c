//! Snapshots of etcd in files of the data directory, each sealed piece by piece:
//! who has the files alone can neither read nor change them.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::pki::{self, Seal};

/// Bytes that are sealed together.
const PIECE: usize = 1 << 20;
/// etcd puts the SHA-256 of a snapshot behind it.
const DIGEST: usize = 32;
/// File that is not whole yet.
const PART: &str = "part";

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("the snapshot that came is not whole: its SHA-256 is wrong")]
    NotWhole,
    #[error("{0} ends too early")]
    Short(String),
    #[error(transparent)]
    Seal(#[from] pki::Error),
}

/// Folder of snapshots.
#[derive(Debug)]
pub struct Vault {
    folder: PathBuf,
    seal: Seal,
}

impl Vault {
    pub fn new(folder: PathBuf, seal: Seal) -> Self {
        Self { folder, seal }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    /// Begins a snapshot.
    pub fn create(&self, id: &str) -> Result<Writer<'_>, Error> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(failed(&self.folder))?;
        let (path, part) = (self.path(id), self.path(id).with_extension(PART));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&part);
        let file = BufWriter::new(file.map_err(failed(&part))?);
        let plain = Zeroizing::new(Vec::with_capacity(PIECE));
        let (digest, tail) = (Sha256::new(), Vec::new());
        let id = id.to_owned();
        Ok(Writer {
            seal: &self.seal,
            id,
            path,
            part,
            file,
            plain,
            number: 0,
            size: 0,
            digest,
            tail,
        })
    }

    /// Opens a snapshot for reading.
    pub fn open(&self, id: &str) -> Result<Reader<'_>, Error> {
        let path = self.path(id);
        let file = BufReader::new(File::open(&path).map_err(failed(&path))?);
        Ok(Reader { seal: &self.seal, id: id.to_owned(), path, file, number: 0, done: false })
    }

    pub fn has(&self, id: &str) -> bool {
        self.path(id).is_file()
    }

    /// Removes a snapshot; one that is not there is none to remove.
    pub fn remove(&self, id: &str) -> Result<(), Error> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Names of all files, also of those that are not whole.
    pub(crate) fn list(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.display().to_string(), source }
}

/// A piece belongs to its place in its snapshot, and the last one says so.
fn owner(id: &str, number: u64, last: bool) -> String {
    format!("backup/{id}/{number}/{}", u8::from(last))
}

/// A snapshot that is being written. Dropped before [`Writer::finish`], nothing
/// of it stays.
pub struct Writer<'a> {
    seal: &'a Seal,
    id: String,
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    plain: Zeroizing<Vec<u8>>,
    number: u64,
    size: u64,
    digest: Sha256,
    /// The last bytes, which may be the digest.
    tail: Vec<u8>,
}

impl Writer<'_> {
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let known = self.tail.len().saturating_sub(DIGEST);
        self.digest.update(&self.tail[..known]);
        self.tail.drain(..known);
        while !bytes.is_empty() {
            if self.plain.len() == PIECE {
                self.put(false)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.plain.len()));
            self.plain.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn put(&mut self, last: bool) -> Result<(), Error> {
        let plain = std::mem::replace(&mut self.plain, Zeroizing::new(Vec::with_capacity(PIECE)));
        let sealed = self.seal.seal(&owner(&self.id, self.number, last), plain)?;
        self.number += 1;
        let length = u32::try_from(sealed.len()).unwrap_or(u32::MAX).to_be_bytes();
        let written = self.file.write_all(&length).and_then(|()| self.file.write_all(&sealed));
        written.map_err(failed(&self.part))
    }

    /// Puts the snapshot in its place, provided that it is whole, and returns its
    /// size.
    pub fn finish(mut self) -> Result<u64, Error> {
        if self.digest.clone().finalize().as_slice() != self.tail {
            return Err(Error::NotWhole);
        }
        self.put(true)?;
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(failed(&self.part))?;
        fs::rename(&self.part, &self.path).map_err(failed(&self.path))?;
        Ok(self.size)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.part);
    }
}

/// A snapshot that is being read.
pub struct Reader<'a> {
    seal: &'a Seal,
    id: String,
    path: PathBuf,
    file: BufReader<File>,
    number: u64,
    done: bool,
}

impl Reader<'_> {
    /// The next piece; none after the last.
    pub fn piece(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        if self.done {
            return Ok(None);
        }
        let short = || Error::Short(self.path.display().to_string());
        let mut length = [0; 4];
        self.file.read_exact(&mut length).map_err(|_| short())?;
        let length = u32::from_be_bytes(length) as usize;
        if length > PIECE + 64 {
            return Err(short());
        }
        let mut sealed = vec![0; length];
        self.file.read_exact(&mut sealed).map_err(|_| short())?;
        let open = |last| self.seal.open_sealed(&owner(&self.id, self.number, last), &sealed);
        let plain = match open(false) {
            Ok(plain) => plain,
            Err(_) => {
                let plain = open(true)?;
                self.done = true;
                plain
            }
        };
        self.number += 1;
        Ok(Some(plain))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn snapshot(length: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let digest = Sha256::digest(&content).to_vec();
        [content, digest].concat()
    }

    fn vault(folder: &Path) -> Vault {
        Vault::new(folder.join("kaas"), Seal::new(&[5; 32], "test").unwrap())
    }

    fn read(vault: &Vault, id: &str) -> Result<Vec<u8>, Error> {
        let (mut reader, mut all) = (vault.open(id)?, Vec::new());
        while let Some(piece) = reader.piece()? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    #[test]
    fn what_was_written_is_read_and_nobody_else_can() {
        let folder = tempfile::tempdir().unwrap();
        let vault = vault(folder.path());
        for length in [1, PIECE - DIGEST, 3 * PIECE + 17] {
            let bytes = snapshot(length);
            let mut writer = vault.create("a").unwrap();
            bytes.chunks(70_001).for_each(|chunk| writer.write(chunk).unwrap());
            assert_eq!(writer.finish().unwrap(), bytes.len() as u64);
            assert_eq!(read(&vault, "a").unwrap(), bytes);
        }
        let path = folder.path().join("kaas/a");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let sealed = fs::read(&path).unwrap();
        // Under another name, cut at a piece, or changed: it is not opened.
        fs::write(folder.path().join("kaas/b"), &sealed).unwrap();
        assert!(read(&vault, "b").is_err());
        let piece = 4 + u32::from_be_bytes(sealed[..4].try_into().unwrap()) as usize;
        fs::write(&path, &sealed[..piece]).unwrap();
        assert!(matches!(read(&vault, "a"), Err(Error::Short(_))));
        let mut changed = sealed;
        changed[piece - 1] ^= 1;
        fs::write(&path, changed).unwrap();
        assert!(read(&vault, "a").is_err());
    }

    #[test]
    fn a_snapshot_that_is_not_whole_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let vault = vault(folder.path());
        let bytes = snapshot(1000);
        let mut writer = vault.create("a").unwrap();
        writer.write(&bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(writer.finish(), Err(Error::NotWhole)));
        assert_eq!(vault.list(), [] as [String; 0]);
    }
}
