//! Image files: made, grown, copied, and where their data lie.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::Errno,
};

use super::{attach::Attached, freeze};
use crate::{
    Error, Result,
    backend::{Ranges, push_range},
};

/// Makes an image that reads as zeros.
pub(super) fn make(path: &Path, size: u64, reserved: bool) -> Result<()> {
    let made = File::create(path).and_then(|file| file.set_len(size).map(|()| file));
    let file = made.map_err(Error::file(path))?;
    if reserved {
        reserve(path, size)?;
    }
    file.sync_all().map_err(Error::file(path))
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
        Err(Errno::NOSPC) => Err(Error::NoSpace { free: free_around(path), requested: size }),
        Err(error) => Err(Error::file(path)(error.into())),
    }
}

fn free_around(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path.parent().unwrap_or(path));
    space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Copies an image as it is at one instant. Where the file system can share
/// blocks that takes no time; elsewhere nothing may be written meanwhile, so
/// a mounted volume is frozen, and one that is otherwise open is refused.
pub(super) fn still(
    from: &Path,
    to: &Path,
    device: Option<&Attached>,
    folder: &Path,
) -> Result<()> {
    if let Some(device) = device {
        super::attach::flush(device)?;
    }
    let source = File::open(from).map_err(Error::file(from))?;
    let target = File::create(to).map_err(Error::file(to))?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return target.sync_all().map_err(Error::file(to));
    }
    let frozen = match device {
        Some(device) => freeze::hold_still(device, folder)?,
        None => None,
    };
    if let Some(device) = device {
        super::attach::flush(device)?;
    }
    let copied = copy(from, &source, &target).and_then(|()| target.sync_all());
    drop(frozen);
    copied.map_err(Error::file(to))
}

/// Copies data and leaves holes as they are.
fn copy(from: &Path, source: &File, target: &File) -> io::Result<()> {
    let size = source.metadata()?.len();
    target.set_len(size)?;
    let ranges = data(from, size).map_err(io::Error::other)?;
    for range in ranges {
        let (mut read_at, mut write_at) = (range.start, range.start);
        while read_at < range.end {
            let wanted = usize::try_from(range.end - read_at).unwrap_or(usize::MAX);
            let wanted = wanted.min(1 << 30);
            let (at, to) = (Some(&mut read_at), Some(&mut write_at));
            let copied = rustix::fs::copy_file_range(source, at, target, to, wanted)?;
            if copied == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    Ok(())
}

/// Where an image has data.
pub(super) fn data(path: &Path, size: u64) -> Result<Ranges> {
    let file = File::open(path).map_err(Error::file(path))?;
    let failed = |error: Errno| Error::file(path)(error.into());
    let mut ranges = Ranges::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(failed(error)),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).map_err(failed)?.min(size);
        push_range(&mut ranges, start..end);
        at = end.max(start + 1);
    }
    Ok(ranges)
}
