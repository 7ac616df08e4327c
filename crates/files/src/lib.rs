//! Files that are there whole or not at all, also after a power cut: written
//! beside their place, synced, renamed, and the folder synced.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Extension of files that are being written. One that is there after a crash
/// can be removed.
pub const UNFINISHED: &str = "new";

/// A file that is written but not yet under its name; dropped, it leaves no
/// trace.
#[derive(Debug)]
pub struct Staged {
    temporary: PathBuf,
    path: PathBuf,
    committed: bool,
}

impl Staged {
    /// Writes the content beside where it will go.
    pub fn new(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let (temporary, mut file) = create_beside(path, mode)?;
        let staged = Self { temporary, path: path.to_owned(), committed: false };
        file.write_all(content)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Renames it to its path, over what was there.
    pub fn commit(mut self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.path)?;
        self.committed = true;
        // Without this a power cut can take the name away again.
        sync_folder(parent(&self.path))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            // The failure that led here is the one to tell.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Renames a file that was written and synced, and syncs the folder.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    // Without this a power cut can take the name away again.
    sync_folder(parent(to))
}

/// Replaces a file in one step: whoever looks sees the old one or the new one.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    Staged::new(path, content, mode)?.commit()
}

/// Waits until the disk has the names in a folder.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

/// Returns the folder that a file is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let mut number = 0u32;
    loop {
        let temporary =
            parent(path).join(format!(".{name}.{}-{number}.{UNFINISHED}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_recommitted_whole_with_its_mode_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace(&path, b"one", 0o644).unwrap();
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        drop(Staged::new(&path, b"three", 0o600).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
