//! Sources of the bytes of a backup.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt},
    path::Path,
};

use rustix::{fs::SeekFrom as Find, io::Errno};

/// A volume that holds still while it is read, such as a snapshot.
pub trait BlockSource: Send + Sync + 'static {
    /// Returns its size in bytes.
    fn size(&self) -> u64;

    /// Returns whether what was read so far is of one moment. Asked when all is
    /// read. A source that others may write to has to notice it.
    fn is_unchanged(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Fills the buffer from this place on. Called from several threads.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The parts that may hold something other than zeros, in any order;
    /// `None` if that is not known. What is not in them is not read.
    fn allocated(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        Ok(None)
    }
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
    /// True if it can tell its holes.
    holes: bool,
}

impl FileSource {
    /// Opens it for reading.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }

    /// Takes over an open one.
    pub fn new(mut file: File) -> io::Result<Self> {
        let size = file.seek(SeekFrom::End(0))?;
        let holes = !file.metadata()?.file_type().is_block_device();
        Ok(Self { file, size, holes })
    }
}

impl BlockSource for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn allocated(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        if !self.holes {
            return Ok(None);
        }
        let mut ranges = Vec::new();
        let mut offset = 0;
        loop {
            let start = match rustix::fs::seek(&self.file, Find::Data(offset)) {
                Ok(start) => start,
                // No data from here on.
                Err(Errno::NXIO) => return Ok(Some(ranges)),
                Err(Errno::INVAL) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(&self.file, Find::Hole(start))?;
            ranges.push(start..end);
            offset = end;
        }
    }
}
