//! Image files: made, grown, copied, and where their data lie.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, IFlags, SeekFrom, Timespec, Timestamps},
    io::Errno,
};
use selvage_memory::LoopDevice;

use super::{freeze, private};
use crate::{
    Error, Result,
    backend::{Ranges, WriteGuard, push_range},
};

/// Number of times at least that an image is copied that is written to meanwhile.
const COPIES: usize = 5;
/// First and longest pause between two copies.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

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
fn write_in_place(file: &File) {
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

/// Copies an image as it is at one instant. Where the file system can share
/// blocks, that is one call. Elsewhere the image is copied, and copied again
/// if anything was written to it meanwhile.
pub(super) fn still(
    from: &Path,
    to: &Path,
    device: Option<&LoopDevice>,
    folder: &Path,
    timeout: Duration,
) -> Result<()> {
    let source = File::open(from).map_err(Error::file(from))?;
    let target = private::create(to).map_err(Error::file(to))?;
    // Only files of the same kind share blocks.
    if rustix::fs::ioctl_getflags(&source).is_ok_and(|flags| flags.contains(IFlags::NOCOW)) {
        write_in_place(&target);
    }
    // Whatever is on disk before need not get there while all stands still.
    flush(device)?;
    source.sync_all().map_err(Error::file(from))?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        share_frozen(&source, &target, device, folder);
    } else {
        check_room_for_copy(from, &source, folder)?;
        copy_unwritten(from, &source, &target, device, folder, timeout)?;
    }
    target.sync_all().map_err(Error::file(to))
}

fn flush(device: Option<&LoopDevice>) -> Result<()> {
    device.map_or(Ok(()), super::attach::flush)
}

/// Shares the blocks once more with its file system frozen, so that there is
/// no journal to replay. Without that it is what a loss of power would leave.
fn share_frozen(source: &File, target: &File, device: Option<&LoopDevice>, folder: &Path) {
    let frozen = device.map(|device| freeze::freeze(device, folder));
    let shared = match frozen {
        Some(Ok(Some(_frozen))) => flush(device).and_then(|()| {
            let shared = rustix::fs::ioctl_ficlone(target, source);
            shared.map_err(|error| Error::file(folder)(error.into()))
        }),
        Some(Err(error)) => Err(error),
        _ => Ok(()),
    };
    if let Err(error) = shared {
        tracing::warn!(%error, "a snapshot was taken without freezing the file system");
    }
}

/// Refuses a copy that the disk has no room for, before it is full.
fn check_room_for_copy(from: &Path, source: &File, folder: &Path) -> Result<()> {
    let size = source.metadata().map_err(Error::file(from))?.len();
    let requested = data(from, size)?.iter().map(|range| range.end - range.start).sum();
    let free = free_on_disk(folder);
    if requested > free { Err(Error::NoSpace { free, requested }) } else { Ok(()) }
}

/// Copies until nothing was written from the beginning of a copy to its end, or
/// time is up. At first a file system is frozen for an instant only, which
/// brings it to the image; if that does not do, until the copy is made.
fn copy_unwritten(
    from: &Path,
    source: &File,
    target: &File,
    device: Option<&LoopDevice>,
    folder: &Path,
    timeout: Duration,
) -> Result<()> {
    let (started, mut pause) = (Instant::now(), PAUSES.0);
    for copies in 1.. {
        let frozen = device.map(|device| freeze::freeze(device, folder)).transpose()?.flatten();
        let is_frozen = frozen.is_some();
        let _frozen = frozen.filter(|_| copies > 1);
        let writes = Writes::watch(from, source, device)?;
        copy(from, source, target).map_err(Error::file(from))?;
        if !writes.seen(from, source, device)? {
            return Ok(());
        }
        tracing::info!(image = %from.display(), "written to while it was copied: copying again");
        if copies >= COPIES && started.elapsed() >= timeout {
            break;
        }
        if !is_frozen {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
    Err(Error::BusyImage(from.file_stem().unwrap_or_default().to_string_lossy().into_owned()))
}

/// Watches an image for writes while somebody reads it.
pub(super) struct ImageGuard {
    path: std::path::PathBuf,
    image: File,
    device: Option<LoopDevice>,
    writes: Writes,
}

impl ImageGuard {
    /// Freezes a file system on it for an instant, which brings all of it to the
    /// image, and watches from then on.
    pub(super) fn new(path: &Path, device: Option<LoopDevice>, folder: &Path) -> Result<Self> {
        let image = File::open(path).map_err(Error::file(path))?;
        drop(device.as_ref().map(|device| freeze::freeze(device, folder)).transpose()?);
        let writes = Writes::watch(path, &image, device.as_ref())?;
        Ok(Self { path: path.to_owned(), image, device, writes })
    }
}

impl WriteGuard for ImageGuard {
    fn is_unchanged(&self) -> Result<bool> {
        let seen = self.writes.seen(&self.path, &self.image, self.device.as_ref())?;
        Ok(!seen)
    }
}

/// Notices writes to an image, by whomever and through whatever: each sets its
/// time of modification, which is set to a time that is long gone before. So
/// it does not matter how coarse the clock of the file system is.
struct Writes;

impl Writes {
    const LONG_GONE: i64 = 1;

    fn watch(path: &Path, image: &File, device: Option<&LoopDevice>) -> Result<Self> {
        flush(device)?;
        let unchanged = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let long_gone = Timespec { tv_sec: Self::LONG_GONE, tv_nsec: 0 };
        let times = Timestamps { last_access: unchanged, last_modification: long_gone };
        rustix::fs::futimens(image, &times).map_err(|error| Error::file(path)(error.into()))?;
        Ok(Self)
    }

    fn seen(&self, path: &Path, image: &File, device: Option<&LoopDevice>) -> Result<bool> {
        // What was written is in the image only after this.
        flush(device)?;
        let about = image.metadata().map_err(Error::file(path))?;
        Ok((about.mtime(), about.mtime_nsec()) != (Self::LONG_GONE, 0))
    }
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

/// Returns the ranges of an image that have data.
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
