//! Image files: made, grown, and where their data lie.

use std::{fs::File, io, ops::Range, os::unix::fs::MetadataExt, path::Path};

use rustix::{
    fs::{FallocateFlags, IFlags, SeekFrom},
    io::Errno,
};

use crate::{
    Error, Result,
    backend::{Ranges, push_range},
    private,
};

/// Makes an image that reads as zeros.
pub(super) fn make(path: &Path, size: u64, reserved: bool) -> Result<()> {
    let file = private::create(path).map_err(Error::file(path))?;
    if reserved {
        write_in_place(&file);
    }
    file.set_len(size).map_err(Error::file(path))?;
    if reserved {
        reserve(path, size)?;
    }
    file.sync_all().map_err(Error::file(path))
}

/// Asks the file system to write in place: space that is reserved would be of no
/// use if all was written to a new place. The file must be empty still. Only
/// some file systems know this.
pub(super) fn write_in_place(file: &File) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(file) {
        let _ = rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

/// Makes an image longer.
pub(super) fn grow(path: &Path, size: u64, reserved: bool) -> Result<()> {
    let opened = File::options().write(true).open(path);
    let file = opened.map_err(Error::file(path))?;
    let before = file.metadata().map_err(Error::file(path))?.len();
    let grown = file
        .set_len(size)
        .map_err(Error::file(path))
        .and_then(|()| if reserved { reserve(path, size) } else { Ok(()) });
    if grown.is_err() {
        let _ = file.set_len(before);
    }
    grown?;
    file.sync_all().map_err(Error::file(path))
}

/// Makes sure that there is space for all of it.
pub(super) fn reserve(path: &Path, size: u64) -> Result<()> {
    let file = File::options().write(true).open(path).map_err(Error::file(path))?;
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size) {
        Ok(()) => Ok(()),
        // A file system that cannot promise space: the group's limit has to do.
        Err(Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::NOSPC) => {
            let free = free_on_disk(path.parent().unwrap_or(path));
            Err(Error::NoSpace { free, requested: size })
        }
        Err(error) => Err(Error::file(path)(error.into())),
    }
}

/// Reserves again what was given away of an image.
pub(super) fn reserve_again(path: &Path, size: u64) {
    let held = held(path);
    if held >= size {
        return;
    }
    let (image, missing) = (path.display(), size - held);
    match reserve(path, size) {
        Ok(()) => {
            tracing::warn!(%image, missing, "space of a thick volume was given away, and is reserved again")
        }
        Err(error) => {
            tracing::error!(%image, missing, %error, "space of a thick volume is not reserved")
        }
    }
}

/// Bytes that an image takes on disk.
pub(super) fn held(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |about| about.blocks() * 512)
}

/// Bytes that are free on the disk below a folder.
pub(super) fn free_on_disk(folder: &Path) -> u64 {
    let space = rustix::fs::statvfs(folder);
    space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Returns the ranges of an image that have data.
pub(super) fn data(path: &Path, size: u64) -> Result<Ranges> {
    let file = File::open(path).map_err(Error::file(path))?;
    data_in(&file, 0..size).map_err(Error::file(path))
}

/// Returns the parts of a range that have data.
pub(super) fn data_in(file: &File, within: Range<u64>) -> io::Result<Ranges> {
    let mut ranges = Ranges::new();
    let mut at = within.start;
    while at < within.end {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < within.end => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(within.end);
        push_range(&mut ranges, start..end);
        at = end.max(start + 1);
    }
    Ok(ranges)
}
