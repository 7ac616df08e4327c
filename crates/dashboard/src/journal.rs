//! Records on disk that are only ever added: a folder of numbered files, each
//! record with its length and a checksum. A crash costs at most the record
//! that was being written; a start begins a new file, so that nothing is ever
//! written behind something torn.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

const ENDING: &str = "log";
/// Length and checksum before each record.
const HEAD: usize = 8;
/// A record that claims to be longer is none.
const LONGEST: usize = 16 << 20;

/// Bounds of what is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// A file of this size is followed by a new one.
    pub(crate) file_bytes: u64,
    /// The oldest files go when all together are larger.
    pub(crate) total_bytes: u64,
    /// A file goes when nothing was added to it for so long.
    pub(crate) keep: Duration,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    limits: Limits,
    /// The number of the file that is added to.
    number: u64,
    file: Option<File>,
    size: u64,
}

impl Journal {
    /// Opens a folder, which only this user may read, and makes it if needed.
    pub(crate) fn open(folder: &Path, limits: Limits) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let last = files(folder)?.last().map_or(0, |(number, _)| *number);
        Ok(Self { folder: folder.to_owned(), limits, number: last + 1, file: None, size: 0 })
    }

    /// Adds a record. True when it is the first of a new file.
    pub(crate) fn append(&mut self, record: &[u8]) -> io::Result<bool> {
        let begins = self.begin()?;
        let length = u32::try_from(record.len()).map_err(io::Error::other)?;
        let mut framed = Vec::with_capacity(record.len() + HEAD);
        framed.extend_from_slice(&length.to_le_bytes());
        framed.extend_from_slice(&checksum(record).to_le_bytes());
        framed.extend_from_slice(record);
        if let Some(file) = &mut self.file {
            // What was torn by a full disk is not written behind.
            if let Err(error) = file.write_all(&framed) {
                self.file = None;
                self.number += 1;
                return Err(error);
            }
        }
        self.size += framed.len() as u64;
        Ok(begins)
    }

    /// Returns true if the next record will be the first of a new file.
    pub(crate) fn is_at_begin(&self) -> bool {
        self.file.is_none() || self.size >= self.limits.file_bytes
    }

    fn begin(&mut self) -> io::Result<bool> {
        if self.file.is_some() && self.size >= self.limits.file_bytes {
            self.file = None;
            self.number += 1;
        }
        if self.file.is_some() {
            return Ok(false);
        }
        let path = self.folder.join(format!("{:012}.{ENDING}", self.number));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        (self.file, self.size) = (Some(file), 0);
        self.sweep()?;
        Ok(true)
    }

    /// Waits until what was added is on the disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Removes what need not be kept.
    fn sweep(&self) -> io::Result<()> {
        let mut kept = 0;
        for (number, path) in files(&self.folder)?.into_iter().rev() {
            let metadata = path.metadata()?;
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let age = SystemTime::now().duration_since(modified).unwrap_or_default();
            kept += metadata.len();
            let surplus = kept > self.limits.total_bytes || age > self.limits.keep;
            if surplus && number != self.number {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The files of a folder with their numbers, oldest first.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let ours = path.extension().is_some_and(|ending| ending == ENDING);
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (true, Some(number)) = (ours, number) {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The records of a file, up to what is torn or rotten.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let content = fs::read(path)?;
    let mut rest = content.as_slice();
    let mut records = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(HEAD) {
        let (length, sum) = head.split_at(4);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let length = number(length) as usize;
        if length > LONGEST || after.len() < length {
            break;
        }
        let (record, more) = after.split_at(length);
        if checksum(record) != number(sum) {
            break;
        }
        records.push(record.to_vec());
        rest = more;
    }
    Ok(records)
}

/// FNV-1a: tells a torn or rotten record, not a forged one.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SMALL: Limits =
        Limits { file_bytes: 100, total_bytes: 250, keep: Duration::from_secs(3600) };

    fn all(folder: &Path) -> Vec<Vec<u8>> {
        files(folder).unwrap().iter().flat_map(|(_, path)| read(path).unwrap()).collect()
    }

    #[test]
    fn what_was_added_is_there_after_a_start_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), SMALL).unwrap();
        for number in 0..3_u8 {
            journal.append(&[number; 10]).unwrap();
        }
        drop(journal);
        let mut journal = Journal::open(folder.path(), SMALL).unwrap();
        assert!(journal.is_at_begin());
        assert!(journal.append(&[3; 10]).unwrap());
        assert_eq!(all(folder.path()), [[0; 10], [1; 10], [2; 10], [3; 10]]);
        for number in 4..60_u8 {
            journal.append(&[number; 10]).unwrap();
        }
        let kept = all(folder.path());
        assert_eq!(kept.last().unwrap(), &[59; 10]);
        assert!(kept.len() < 30 && kept.len() > 5, "{}", kept.len());
    }

    #[test]
    fn a_torn_end_costs_what_was_torn() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), SMALL).unwrap();
        journal.append(b"whole").unwrap();
        journal.append(b"torn").unwrap();
        let (_, path) = files(folder.path()).unwrap().remove(0);
        let content = fs::read(&path).unwrap();
        for cut in 1..content.len() {
            fs::write(&path, &content[..cut]).unwrap();
            let kept = read(&path).unwrap();
            assert!(kept.len() <= 2 && kept.iter().all(|record| record == b"whole"), "{cut}");
        }
        let mut rotten = content;
        rotten[9] ^= 1;
        fs::write(&path, &rotten).unwrap();
        assert!(read(&path).unwrap().is_empty());
    }
}
