//! Seals what is secret before it is stored, so that a copy of the store is
//! not a copy of the keys.

use std::{
    fmt, fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use selvage_kit::seal::{KEY_LEN, Sealer};
use zeroize::Zeroizing;

use super::Error;

/// A key that is kept beside the store, never in it.
pub struct Seal {
    key: Sealer,
    path_text: String,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    /// Reads the key of that file, or makes one.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let path_text = path.display().to_string();
        let failed = |source| Error::File { path: path_text.clone(), source };
        let fresh = Zeroizing::new(rand::random::<[u8; KEY_LEN]>());
        create_secret(path, fresh.as_slice()).map_err(failed)?;
        let mut file = fs::File::open(path).map_err(failed)?;
        let wrong = |reason| Error::KeyFile { path: path_text.clone(), reason };
        if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
            return Err(wrong("others may read it: chmod 600"));
        }
        let mut key = Zeroizing::new(Vec::with_capacity(KEY_LEN));
        file.read_to_end(&mut key).map_err(failed)?;
        Self::new(&key, &path_text).map_err(|_| wrong("it does not hold a key of 32 bytes"))
    }

    /// Uses that key.
    pub fn new(key: &[u8], path_text: &str) -> Result<Self, Error> {
        let key = Sealer::new(key).map_err(|_| Error::Random)?;
        Ok(Self { key, path_text: path_text.to_owned() })
    }

    /// Seals the bytes for that owner, and no other.
    pub(crate) fn seal(&self, owner: &str, plain: Zeroizing<Vec<u8>>) -> Result<Vec<u8>, Error> {
        self.key.seal(owner, plain).map_err(|_| Error::Random)
    }

    pub(crate) fn open_sealed(
        &self,
        owner: &str,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        self.key.open(owner, sealed).map_err(|_| Error::Sealed(self.path_text.clone()))
    }
}

/// Writes a secret, unless there is one, and waits until the disk has it.
pub(crate) fn create_secret(path: &Path, secret: &[u8]) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let fresh = path.with_extension(format!("new-{:08x}", rand::random::<u32>()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(secret)?;
    file.sync_all()?;
    // Whoever is first wins; a link never replaces a file.
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}
