//! The content of a volume, as a block device or a file.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, FileTypeExt},
    path::Path,
};

use rustix::fs::FallocateFlags;

use crate::{Error, Result};

/// Written at a time where the system cannot make zeros itself.
static ZEROS: [u8; 65536] = [0; 65536];

/// An open volume. Reads and writes block.
#[derive(Debug)]
pub struct Device {
    file: File,
    size: u64,
    /// True if its space is reserved, and must stay so.
    reserved: bool,
}

impl Device {
    /// Opens what is at this path, which is so large.
    pub(crate) fn open(path: &Path, size: u64, write: bool, read_only: bool) -> Result<Self> {
        if write && read_only {
            let what = format!("{} is for reading only", path.display());
            return Err(Error::Precondition(what));
        }
        let file = OpenOptions::new().read(true).write(write).open(path);
        let file = file.map_err(Error::file(path))?;
        // A file system that was mounted wrote past what is cached of its device.
        if file.metadata().is_ok_and(|about| about.file_type().is_block_device()) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        Ok(Self { file, size, reserved: false })
    }

    /// Takes over an open file, which holds so many bytes.
    pub(crate) fn of(file: File, size: u64) -> Self {
        Self { file, size, reserved: false }
    }

    /// One whose space is reserved.
    pub(crate) fn reserved(self) -> Self {
        Self { reserved: true, ..self }
    }

    /// Bytes that the volume holds.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The open file, for those who read in ways of their own.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills the buffer from an offset.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes the buffer at an offset.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    /// Makes a part read as zeros, and gives its space back where it can and
    /// may be.
    pub fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let how = match self.reserved {
            true => FallocateFlags::ZERO_RANGE,
            false => FallocateFlags::PUNCH_HOLE,
        };
        let zeroed =
            rustix::fs::fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, length);
        if zeroed.is_ok() {
            return Ok(());
        }
        let mut at = offset;
        let end = offset + length;
        while at < end {
            let step = (end - at).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    /// Returns when what was written is on disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}
