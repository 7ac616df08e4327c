//! Files that no caller is given, whatever the role: the keys, credentials and
//! state of this machine.
//!
//! A path is judged by where it has led, not by how it is written, so links and
//! `..` change nothing. Files and folders are also known by device and inode:
//! a hard link, a bind mount or a second mount of the same file system has
//! another path and the same inode. Private keys are refused by their content,
//! wherever they lie.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    fs::{self, File},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{
            ffi::OsStringExt,
            fs::{FileExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FsWord, Stat, fstat, fstatfs};

use super::mounts::unescape;

/// Maximum number of files and folders in protected folders that are recognised
/// by their ids. Keys and stores are few; folders with more are protected by
/// path.
const MAX_IDS: usize = 4096;

/// Bytes at the beginning of a file in which a private key is looked for.
const SCANNED: usize = 1 << 20;

/// Texts by which a private key is recognised: PEM and OpenSSH, OpenPGP,
/// kubeconfig.
const KEY_MARKS: [&[u8]; 3] = [b"PRIVATE KEY-----", b"PRIVATE KEY BLOCK-----", b"client-key-data:"];

/// File system of the kernel's view of processes.
const PROC: FsWord = 0x9fa0;

/// Devices and files that memory is moved to.
const SWAPS: &str = "/proc/swaps";

/// Kernel memory.
const KERNEL_MEMORY: [&str; 2] = ["kcore", "vmcore"];

/// Paths that are protected, below them everything.
#[derive(Debug, Clone, Default)]
pub(super) struct Guard(Arc<[PathBuf]>);

impl Guard {
    pub(super) fn new(protected: Vec<PathBuf>) -> Self {
        Self(protected.into())
    }

    /// The protected files as they are now.
    pub(super) fn protected(&self) -> ProtectedFiles {
        let paths: Vec<PathBuf> = self
            .0
            .iter()
            .cloned()
            .chain(swaps(&fs::read(SWAPS).unwrap_or_default()))
            .map(|path| path.canonicalize().unwrap_or(path))
            .collect();
        let ids = inodes(&paths);
        ProtectedFiles { paths, ids }
    }
}

/// Devices and files of the kernel's table of swap space.
fn swaps(table: &[u8]) -> Vec<PathBuf> {
    let rows = table.split(|byte| *byte == b'\n').skip(1);
    let names = rows.map(|row| row.split(u8::is_ascii_whitespace).next().unwrap_or_default());
    let names = names.filter(|name| name.starts_with(b"/"));
    names.map(|name| OsString::from_vec(unescape(name)).into()).collect()
}

/// Devices and inodes of these paths and of what is below them, nearest first.
fn inodes(paths: &[PathBuf]) -> HashSet<(u64, u64)> {
    let mut ids = HashSet::new();
    let mut waiting: VecDeque<PathBuf> = paths.iter().cloned().collect();
    while let Some(path) = waiting.pop_front().filter(|_| ids.len() < MAX_IDS) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        ids.insert((metadata.dev(), metadata.ino()));
        if metadata.is_dir()
            && let Ok(entries) = fs::read_dir(&path)
        {
            let left = MAX_IDS.saturating_sub(ids.len());
            waiting.extend(entries.filter_map(Result::ok).take(left).map(|entry| entry.path()));
        }
    }
    ids
}

/// The protected files at one moment.
#[derive(Debug, Default)]
pub(super) struct ProtectedFiles {
    paths: Vec<PathBuf>,
    ids: HashSet<(u64, u64)>,
}

impl ProtectedFiles {
    /// Returns whether a file or folder with this state is protected.
    pub(super) fn covers(&self, stat: &Stat) -> bool {
        self.ids.contains(&(stat.st_dev, stat.st_ino))
    }

    /// Returns whether what is open here is protected or below what is.
    pub(super) fn covers_fd(&self, fd: BorrowedFd<'_>) -> bool {
        if fstat(fd).is_ok_and(|stat| self.covers(&stat)) {
            return true;
        }
        // Checks the present path, with all links followed. A file whose path
        // is not known is not shown.
        path_of(fd).is_none_or(|path| self.covers_path(&path))
    }

    fn covers_path(&self, path: &Path) -> bool {
        self.paths.iter().any(|protected| path.starts_with(protected))
    }

    /// Refuses a file that is protected or holds a private key.
    pub(super) fn check(&self, file: &File) -> Result<(), &'static str> {
        if self.covers_fd(file.as_fd()) {
            return Err("belongs to what is protected");
        }
        if fstatfs(file).is_ok_and(|system| system.f_type == PROC) {
            return check_proc(file);
        }
        if holds_key(file) { Err("holds a private key") } else { Ok(()) }
    }
}

/// Refuses memory, environment and everything else of processes: there is
/// `os.OSService/Processes` for them.
fn check_proc(file: &File) -> Result<(), &'static str> {
    let path = path_of(file.as_fd()).unwrap_or_default();
    let of_process = path.iter().any(|part| part.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let memory = path.file_name().is_some_and(|name| KERNEL_MEMORY.iter().any(|one| name == *one));
    if of_process || memory { Err("is memory or belongs to a process") } else { Ok(()) }
}

fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}

fn holds_key(file: &File) -> bool {
    let longest = KEY_MARKS.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let mut buffer = vec![0; 64 * 1024];
    let (mut kept, mut at) = (0, 0);
    while at < SCANNED {
        let read = match file.read_at(&mut buffer[kept..], at as u64) {
            Ok(read) if read > 0 => read,
            _ => return false,
        };
        let filled = kept + read;
        let seen = &buffer[..filled];
        if KEY_MARKS.iter().any(|mark| memchr::memmem::find(seen, mark).is_some()) {
            return true;
        }
        // A mark may lie across the end.
        at += read;
        kept = filled.min(longest - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
    false
}

#[cfg(test)]
mod tests;
