//! Room on a disk that images of strangers leave to everybody else.

use std::path::{Path, PathBuf};

use selvage_api::Code;

use crate::{Error, Result, error::During};

/// Room on the disk that no image takes,
const RESERVE: u64 = 1 << 30;
/// or that part of a disk that has little; and of the files that it can have.
const PART: u64 = 8;
/// Bytes between two looks at how much room there is.
const INTERVAL: u64 = 16 << 20;

/// Watches how much room is left while something is written.
pub(crate) struct Room {
    directory: PathBuf,
    unseen: u64,
}

impl Room {
    pub(crate) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), unseen: 0 }
    }

    /// Notes that bytes were written, and looks from time to time.
    pub(crate) fn wrote(&mut self, bytes: u64) -> Result<()> {
        self.unseen = self.unseen.saturating_add(bytes);
        if self.unseen < INTERVAL {
            return Ok(());
        }
        self.unseen = 0;
        self.check(0)
    }

    /// Fails unless there is room for so many bytes more.
    pub(crate) fn check(&self, bytes: u64) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.directory).map_err(std::io::Error::from);
        let disk = disk.during("measuring the disk")?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let reserve = RESERVE.min(disk.f_blocks.saturating_mul(disk.f_frsize) / PART);
        if bytes.saturating_add(reserve) > free {
            let (needs, free) = (bytes >> 20, free.saturating_sub(reserve) >> 20);
            return Err(full(format!("has {needs} MB more and the disk has room for {free}")));
        }
        // Some count no files.
        if disk.f_files > 0 && disk.f_favail < disk.f_files / PART {
            return Err(full("would take the last files that the disk can have".to_owned()));
        }
        Ok(())
    }
}

fn full(reason: String) -> Error {
    Error::Refused { code: Code::ResourceExhausted, text: format!("the image {reason}") }
}
