//! Targets of the bytes of a restore.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt},
    path::Path,
};

use rustix::{fs::FallocateFlags, io::Errno};

/// A volume to write to.
pub trait BlockSink: Send + Sync + 'static {
    /// Returns its size in bytes.
    fn size(&self) -> u64;

    /// Writes at this place. Called from several threads, never for the same
    /// place twice.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes these bytes zeros, the cheapest way there is. Not called at all
    /// on a fresh volume.
    fn zero_at(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Fills the buffer from this place on, and returns true. False, where it cannot
    /// be read. What is there already need not be fetched.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        let _ = (offset, buffer);
        Ok(false)
    }

    /// Returns whether all of it is zeros already.
    fn is_fresh(&self) -> bool;

    /// Makes what was written last.
    fn finish(&self) -> io::Result<()>;
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    size: u64,
    fresh: bool,
    block_device: bool,
}

impl FileSink {
    /// Makes a new file of this size.
    pub fn create(path: impl AsRef<Path>, size: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.set_len(size)?;
        Self::new(file, true)
    }

    /// Opens what is there, to be written over.
    pub fn open(path: impl AsRef<Path>, fresh: bool) -> io::Result<Self> {
        Self::new(OpenOptions::new().read(true).write(true).open(path)?, fresh)
    }

    /// Takes over an open one.
    pub fn new(mut file: File, fresh: bool) -> io::Result<Self> {
        let size = file.seek(SeekFrom::End(0))?;
        let block_device = file.metadata()?.file_type().is_block_device();
        Ok(Self { file, size, fresh, block_device })
    }
}

impl BlockSink for FileSink {
    fn size(&self) -> u64 {
        self.size
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn zero_at(&self, offset: u64, length: u64) -> io::Result<()> {
        // On a block device, this one never discards: it reads as zeros.
        let flags = if self.block_device {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        };
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV) => {
                write_zeros(&self.file, offset, length)
            }
            result => Ok(result?),
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        match self.file.read_exact_at(buffer, offset) {
            // A file that is open for writing alone.
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => Ok(false),
            read => read.map(|()| true),
        }
    }

    fn is_fresh(&self) -> bool {
        self.fresh
    }

    fn finish(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

fn write_zeros(file: &File, mut offset: u64, mut length: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    while length > 0 {
        let part = length.min(zeros.len() as u64);
        file.write_all_at(&zeros[..part as usize], offset)?;
        offset += part;
        length -= part;
    }
    Ok(())
}
