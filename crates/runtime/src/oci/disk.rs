//! A container's disk: a file system of one size in a file, so that what a
//! container writes ends where it should.
//!
//! The file takes room on the machine only as it is written to, and gives it
//! back. There is no journal in it and no waiting for the machine's disk: what
//! is there outlives its containers' processes and us, but a power cut may
//! damage it. After one it is checked, and repaired as far as can be.
//!
//! `mount` makes the loop device and ties it to the mount: it goes with it,
//! whoever is killed, so that there are no devices to look after.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use rustix::{fs::SeekFrom, io::Errno};
use tracing::{info, warn};

use super::{driver, overlay::is_mount_point, record, unpack};
use crate::{Error, Result, error::During};

/// Files of a disk in a container's directory: the file system's file, where it
/// is mounted, and when the machine was last started that it was mounted by.
const IMAGE: &str = "disk.img";
const PLACE: &str = "disk";
const BOOT: &str = "disk.boot";

const BLOCK: u64 = 4096;
/// A file system has one inode for so many bytes.
const BYTES_AN_INODE: u64 = 16384;
const INODE: u64 = 256;
/// The kernel keeps a fiftieth free for itself, and no more than this.
const MOST_KEPT_FREE: u64 = 16 << 20;

/// Source of disks: one blank of each size, of which all are copies.
pub(super) struct Disks {
    blanks: PathBuf,
    making: Mutex<()>,
    warned: AtomicBool,
}

impl Disks {
    /// Blanks of another version of us may be others.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let blanks = root.join("blanks");
        unpack::remove_all(&blanks).during("removing blank disks")?;
        Ok(Self { blanks, making: Mutex::default(), warned: AtomicBool::new(false) })
    }

    /// Gives a new container a disk that takes so many bytes, mounted; whether
    /// it has one now. It has none where there is nothing to limit, or where
    /// the machine cannot do it.
    pub(super) fn provide(&self, directory: &Path, limit: Option<u64>) -> Result<bool> {
        let machine = rustix::fs::statvfs(directory).during("measuring the disk")?;
        let whole = machine.f_blocks.saturating_mul(machine.f_frsize);
        let Some(limit) = limit.filter(|limit| *limit < whole) else { return Ok(false) };
        match self.make(directory, limit) {
            Ok(()) => Ok(true),
            Err(error @ Error::Program { .. }) if !is_full(&error) => {
                let _ = fs::remove_file(directory.join(IMAGE));
                if !self.warned.swap(true, Ordering::Relaxed) {
                    warn!(%error, "no disks of a size here: containers write without a limit");
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn make(&self, directory: &Path, limit: u64) -> Result<()> {
        let (image, place) = (directory.join(IMAGE), directory.join(PLACE));
        copy(&self.blank(limit)?, &image).during("making a container's disk")?;
        fs::create_dir(&place).during("making a container's disk")?;
        attach(directory)
    }

    fn blank(&self, limit: u64) -> Result<PathBuf> {
        const DOING: &str = "making a blank disk";
        let blank = self.blanks.join(limit.to_string());
        let _alone = self.making.lock();
        if blank.exists() {
            return Ok(blank);
        }
        fs::create_dir_all(&self.blanks).during(DOING)?;
        let part = self.blanks.join("part");
        let made = File::create(&part).and_then(|file| file.set_len(image_size(limit)));
        made.during(DOING)?;
        format(&part)?;
        fs::rename(&part, &blank).during(DOING)?;
        Ok(blank)
    }
}

fn format(image: &Path) -> Result<()> {
    let (bytes, inode) = (BYTES_AN_INODE.to_string(), INODE.to_string());
    let block = BLOCK.to_string();
    let words = ["-q", "-F", "-m", "0", "-b", &block, "-i", &bytes, "-I", &inode];
    let features = ["-O", "^has_journal,^resize_inode,sparse_super2", "-E", "num_backup_sb=0"];
    let words = words.iter().chain(&features).map(OsStr::new);
    run("mkfs.ext4", words.chain([image.as_os_str()]), 0)
}

/// Mounts the disk that a container has, unless that is done. One that a power
/// cut has left beyond repair is made anew: it holds nothing that is promised
/// to last.
pub(super) fn mount(directory: &Path) -> Result<()> {
    /// All was found well, or is well now.
    const REPAIRED: i32 = 3;
    if is_mount_point(&directory.join(PLACE)) {
        return Ok(());
    }
    let before = fs::read_to_string(directory.join(BOOT)).unwrap_or_default();
    if before != record::boot() {
        let image = directory.join(IMAGE);
        info!(image = %image.display(), "the machine was started anew: checking a disk");
        let checked = run("e2fsck", [OsStr::new("-y"), image.as_os_str()], REPAIRED);
        if let Err(error) = checked {
            warn!(%error, image = %image.display(), "a disk cannot be repaired and is made anew");
            format(&image)?;
        }
    }
    attach(directory)
}

fn attach(directory: &Path) -> Result<()> {
    let options = "loop,nodev,nobarrier,discard";
    let words = ["-t", "ext4", "-o", options].map(OsStr::new).into_iter();
    let (image, place) = (directory.join(IMAGE), directory.join(PLACE));
    run("mount", words.chain([image.as_os_str(), place.as_os_str()]), 0)?;
    fs::write(directory.join(BOOT), record::boot()).during("noting a mount")
}

/// Directory that the container writes to, when it has a disk.
pub(super) fn place(directory: &Path) -> PathBuf {
    directory.join(PLACE)
}

/// Bytes that are taken on a container's disk; none while it is not mounted.
pub(super) fn used(directory: &Path) -> Result<Option<u64>> {
    let place = directory.join(PLACE);
    if !is_mount_point(&place) {
        return Ok(None);
    }
    let found = rustix::fs::statvfs(&place).during("measuring a container's disk")?;
    let taken = found.f_blocks.saturating_sub(found.f_bfree);
    Ok(Some(taken.saturating_mul(found.f_frsize)))
}

/// Size of a file for a file system that takes so many bytes.
fn image_size(limit: u64) -> u64 {
    /// Of each group of blocks: what is free, and what it is.
    const OF_GROUP: u64 = 8192;
    const OF_ALL: u64 = 192 << 10;
    let whole = limit + (limit / 49).min(MOST_KEPT_FREE);
    let inodes = whole / (BYTES_AN_INODE / INODE - 1);
    (whole + inodes + whole / OF_GROUP + OF_ALL).next_multiple_of(BLOCK)
}

/// The machine's own disk has no room: not a matter of what it can do.
fn is_full(error: &Error) -> bool {
    error.to_string().contains("No space left on device")
}

/// Copies what is written in a file, and leaves out what is not.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let target = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return target.sync_all();
    }
    target.set_len(source.metadata()?.len())?;
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            // As large as it shall be, whatever happens later.
            Err(Errno::NXIO) => return target.sync_all(),
            found => found?,
        };
        at = rustix::fs::seek(&source, SeekFrom::Hole(start))?;
        for file in [&source, &target] {
            rustix::fs::seek(file, SeekFrom::Start(start))?;
        }
        io::copy(&mut io::Read::take(&source, at - start), &mut &target)?;
    }
}

/// Runs a program of the system that says on stderr what is wrong.
fn run<'a>(name: &str, words: impl IntoIterator<Item = &'a OsStr>, worst: i32) -> Result<()> {
    let failed = |text: String| Error::Program { program: name.to_owned(), text };
    let program = driver::search(&[name]).ok_or_else(|| failed("it is not installed".into()))?;
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.code().is_some_and(|code| code <= worst) {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_copy_has_what_is_written_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len((64 << 20) + 5).unwrap();
        let written: [(u64, &[u8]); 3] = [(0, b"first"), (32 << 20, b"amid"), (64 << 20, b"last!")];
        for (at, text) in written {
            file.write_all_at(text, at).unwrap();
        }
        copy(&from, &to).unwrap();
        let found = fs::metadata(&to).unwrap();
        assert_eq!(found.len(), (64 << 20) + 5);
        assert!(found.blocks() * 512 <= 1 << 20, "{} blocks", found.blocks());
        let file = File::open(&to).unwrap();
        for (at, text) in written {
            let mut read = vec![0; text.len()];
            file.read_exact_at(&mut read, at).unwrap();
            assert_eq!(read, text);
        }
        copy(&from, &to).unwrap_err();
        let empty = directory.path().join("empty");
        File::create(&empty).unwrap();
        copy(&empty, &directory.path().join("copy")).unwrap();
    }

    #[test]
    fn a_limit_that_the_machine_has_not_needs_no_disk() {
        let directory = tempfile::tempdir().unwrap();
        let disks = Disks::open(directory.path()).unwrap();
        for limit in [None, Some(u64::MAX)] {
            assert!(!disks.provide(directory.path(), limit).unwrap());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(used(directory.path()).unwrap(), None);
    }

    #[test]
    fn only_a_full_machine_is_an_error() {
        let error = |text: &str| Error::Program { program: "mkfs.ext4".into(), text: text.into() };
        assert!(is_full(&error("mkfs.ext4: No space left on device while writing superblock")));
        assert!(!is_full(&error("it is not installed")));
    }
}
