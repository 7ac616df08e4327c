//! Images as they are at one instant.

use std::{
    fs::File,
    io,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, IFlags},
    io::Errno,
};
use selvage_memory::LoopDevice;

use super::{
    freeze,
    image::{data_in, free_on_disk, write_in_place},
    trace::WriteTrace,
    writes::{Watch, Watches, flush},
};
use crate::{
    Error, Result,
    backend::{CopyProgress, Device, Guarded, Ranges, WriteGuard},
    private,
};

/// Number of times at least that an image is copied that is written to meanwhile.
const COPIES: usize = 5;
/// First and longest pause between two copies.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Number of times that what was written meanwhile is copied, before the file system is
/// frozen for the rest.
const ROUNDS: usize = 8;
/// Bytes that may be copied while a file system is frozen.
const WHILE_FROZEN: u64 = 4 << 20;
/// Bytes that are copied before they are counted.
const AT_ONCE: usize = 64 << 20;

/// An image, its device if it has one, and the folder for notes.
#[derive(Clone)]
pub(super) struct Original {
    pub(super) path: PathBuf,
    pub(super) device: Option<LoopDevice>,
    pub(super) folder: PathBuf,
    pub(super) watches: Watches,
    /// Progress of copies of it.
    pub(super) progress: CopyProgress,
}

/// Way in which an image was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    /// Both have the same blocks on the disk.
    Shared,
    /// Each has its own.
    Apart,
}

impl Original {
    /// Copies it as it is at one instant. Where the file system can share blocks, that
    /// is one call. Elsewhere the image is copied, and what was written meanwhile is
    /// copied again.
    pub(super) fn copy_to(&self, to: &Path, timeout: Duration) -> Result<Copied> {
        let source = self.open()?;
        let target = private::create(to).map_err(Error::file(to))?;
        // Only files of the same kind share blocks.
        if rustix::fs::ioctl_getflags(&source).is_ok_and(|flags| flags.contains(IFlags::NOCOW)) {
            write_in_place(&target);
        }
        // Whatever is on disk before need not get there while all stands still.
        flush(self.device.as_ref())?;
        source.sync_all().map_err(Error::file(&self.path))?;
        let copied = if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
            self.share_frozen(&source, &target)?;
            Copied::Shared
        } else {
            self.check_room(&source)?;
            if !self.copy_traced(&source, &target)? {
                self.copy_unwritten(&source, &target, timeout)?;
            }
            Copied::Apart
        };
        target.sync_all().map_err(Error::file(to))?;
        Ok(copied)
    }

    fn open(&self) -> Result<File> {
        File::open(&self.path).map_err(Error::file(&self.path))
    }

    fn freeze(&self) -> Result<Option<freeze::Frozen>> {
        let frozen = self.device.as_ref().map(|device| freeze::freeze(device, &self.folder));
        Ok(frozen.transpose()?.flatten())
    }

    fn watch(&self, image: &File) -> Result<Watch> {
        self.watches.begin(&self.path, image, self.device.as_ref())
    }

    fn is_written(&self, watch: &Watch, image: &File) -> Result<bool> {
        watch.saw_writes(&self.path, image, self.device.as_ref())
    }

    /// Shares the blocks once more with its file system frozen, so that there is
    /// no journal to replay. Without that it is what a loss of power would leave.
    fn share_frozen(&self, source: &File, target: &File) -> Result<()> {
        let frozen = self.freeze().and_then(|frozen| {
            if frozen.is_some() {
                flush(self.device.as_ref())?;
            }
            Ok(frozen)
        });
        match frozen {
            Ok(None) => Ok(()),
            Ok(Some(_frozen)) => {
                share_again(target, || Ok(rustix::fs::ioctl_ficlone(target, source)?))
                    .map_err(Error::file(&self.path))
            }
            Err(error) => {
                tracing::warn!(%error, "a snapshot was taken without freezing the file system");
                Ok(())
            }
        }
    }

    /// Refuses a copy that the disk has no room for, before it is full.
    fn check_room(&self, source: &File) -> Result<()> {
        let size = source.metadata().map_err(Error::file(&self.path))?.len();
        let data = data_in(source, 0..size).map_err(Error::file(&self.path))?;
        let requested = data.iter().map(|range| range.end - range.start).sum();
        let free = free_on_disk(&self.folder);
        if requested > free { Err(Error::NoSpace { free, requested }) } else { Ok(()) }
    }

    /// Copies the image of a mounted volume while it is in use, and then, again and
    /// again, what was written meanwhile, until that is so little that the file system
    /// can be frozen for it. Returns false where that does not do.
    fn copy_traced(&self, source: &File, target: &File) -> Result<bool> {
        let Some(trace) = self.device.as_ref().and_then(WriteTrace::start) else {
            return Ok(false);
        };
        // Brings to the image what only the file system has.
        let Some(frozen) = self.freeze()? else { return Ok(false) };
        drop(frozen);
        copy_followed(&mut Mounted { original: self, source, target, trace, still: None })
    }

    /// Copies until nothing was written from the beginning of a copy to its end, or
    /// time is up. At first a file system is frozen for an instant only, which
    /// brings it to the image; if that does not do, until the copy is made.
    fn copy_unwritten(&self, source: &File, target: &File, timeout: Duration) -> Result<()> {
        let (started, mut pause) = (Instant::now(), PAUSES.0);
        for copies in 1.. {
            let frozen = self.freeze()?;
            let is_frozen = frozen.is_some();
            let _frozen = frozen.filter(|_| copies > 1);
            let watch = self.watch(source)?;
            copy(source, target, &self.progress).map_err(Error::file(&self.path))?;
            if !self.is_written(&watch, source)? {
                return Ok(());
            }
            let image = self.path.display();
            tracing::info!(%image, "written to while it was copied: copying again");
            if copies >= COPIES && started.elapsed() >= timeout {
                break;
            }
            if !is_frozen {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        let name = self.path.file_stem().unwrap_or_default();
        Err(Error::BusyImage(name.to_string_lossy().into_owned()))
    }

    /// Watches it for writes while somebody reads it where it is. Freezes a file system
    /// on it for an instant, which brings all of it to the image. So the image is read, not
    /// its device.
    pub(super) fn guard(self, size: u64) -> Result<Guarded> {
        let image = self.open()?;
        let device = Device::of(image.try_clone().map_err(Error::file(&self.path))?, size);
        drop(self.freeze()?);
        let watch = self.watch(&image)?;
        Ok(Guarded { device, guard: Box::new(ImageGuard { original: self, image, watch }) })
    }
}

/// Shares all blocks with a target that shares those of an earlier moment. Where that fails
/// half way, the target holds a mixture of both: it is emptied, and shares them anew.
fn share_again(target: &File, mut share: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let Err(error) = share() else { return Ok(()) };
    tracing::warn!(%error, "blocks were shared in part: they are shared anew");
    target.set_len(0)?;
    share()
}

/// A volume that is copied while it is written to.
trait Followed {
    fn copy_all(&mut self) -> Result<()>;

    fn copy(&mut self, ranges: &[Range<u64>]) -> Result<()>;

    /// Returns what was written since the last time, of everything that was in the image
    /// when this was called; none if that is not known.
    fn take(&mut self) -> Option<Ranges>;

    /// Brings what was written to the image, so that less is left for later.
    fn flush(&mut self) -> Result<()>;

    /// Waits for all writes of the file system, and lets none begin until this is dropped.
    /// Watches for those of others from then on. Returns false if that cannot be done.
    fn freeze(&mut self) -> Result<bool>;

    /// Returns whether nobody has written since it was frozen.
    fn was_still(&self) -> Result<bool>;
}

/// Copies everything, and again what was written meanwhile. Returns false where that does
/// not do.
///
/// No write is missed. A copy reads what is in the image: it may miss a write that reaches
/// the image after the copy has read there. Such a write is told of after it has reached
/// the image, so one of the next looks finds it, and it is copied again. The last look comes
/// after all writes of the file system have reached the image, and so sees the last of them.
/// Writes of anybody else are either done before the watch began, and told of too, or are
/// seen by the watch.
fn copy_followed(volume: &mut impl Followed) -> Result<bool> {
    volume.copy_all()?;
    for _ in 0..ROUNDS {
        volume.flush()?;
        let Some(written) = volume.take() else { return Ok(false) };
        volume.copy(&written)?;
        if length_of(&written) <= WHILE_FROZEN {
            break;
        }
    }
    if !volume.freeze()? {
        return Ok(false);
    }
    for _ in 0..ROUNDS {
        let Some(written) = volume.take() else { return Ok(false) };
        if written.is_empty() {
            return volume.was_still();
        }
        volume.copy(&written)?;
    }
    Ok(false)
}

fn length_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// A mounted volume that is traced.
struct Mounted<'a> {
    original: &'a Original,
    source: &'a File,
    target: &'a File,
    trace: WriteTrace,
    still: Option<(freeze::Frozen, Watch)>,
}

impl Followed for Mounted<'_> {
    fn copy_all(&mut self) -> Result<()> {
        let Original { path, progress, .. } = self.original;
        copy(self.source, self.target, progress).map_err(Error::file(path))
    }

    fn copy(&mut self, ranges: &[Range<u64>]) -> Result<()> {
        let Original { path, progress, .. } = self.original;
        copy_ranges(self.source, self.target, ranges, progress).map_err(Error::file(path))
    }

    fn take(&mut self) -> Option<Ranges> {
        self.trace.take()
    }

    fn flush(&mut self) -> Result<()> {
        flush(self.original.device.as_ref())
    }

    fn freeze(&mut self) -> Result<bool> {
        let Some(frozen) = self.original.freeze()? else { return Ok(false) };
        self.still = Some((frozen, self.original.watch(self.source)?));
        Ok(true)
    }

    /// Somebody may have written past the file system, or was not held up for so long.
    fn was_still(&self) -> Result<bool> {
        let Some((_, watch)) = &self.still else { return Ok(false) };
        Ok(!self.original.is_written(watch, self.source)?)
    }
}

/// Watches an image for writes while somebody reads it.
struct ImageGuard {
    original: Original,
    image: File,
    watch: Watch,
}

impl WriteGuard for ImageGuard {
    fn is_unchanged(&self) -> Result<bool> {
        Ok(!self.original.is_written(&self.watch, &self.image)?)
    }
}

/// Copies data and leaves holes as they are. Nothing stays of what the target held.
fn copy(source: &File, target: &File, progress: &CopyProgress) -> io::Result<()> {
    let size = source.metadata()?.len();
    target.set_len(0)?;
    target.set_len(size)?;
    let data = data_in(source, 0..size)?;
    progress.expect(length_of(&data));
    for range in data {
        copy_range(source, target, range, progress)?;
    }
    Ok(())
}

/// Makes parts of the target what they are in the source.
fn copy_ranges(
    source: &File,
    target: &File,
    ranges: &[Range<u64>],
    progress: &CopyProgress,
) -> io::Result<()> {
    let size = source.metadata()?.len();
    for range in ranges {
        let range = range.start.min(size)..range.end.min(size);
        let data = data_in(source, range.clone())?;
        let held = length_of(&data);
        progress.expect(held);
        if held < range.end - range.start {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(target, flags, range.start, range.end - range.start)?;
        }
        for part in data {
            copy_range(source, target, part, progress)?;
        }
    }
    Ok(())
}

fn copy_range(
    source: &File,
    target: &File,
    range: Range<u64>,
    progress: &CopyProgress,
) -> io::Result<()> {
    let (mut read_at, mut write_at) = (range.start, range.start);
    while read_at < range.end {
        let wanted = usize::try_from(range.end - read_at).unwrap_or(usize::MAX);
        let (at, to) = (Some(&mut read_at), Some(&mut write_at));
        match rustix::fs::copy_file_range(source, at, target, to, wanted.min(AT_ONCE)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => progress.add(copied as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::backend::loopfile::{attach::run, image::make, trace};

    fn original(folder: &Path) -> Original {
        let path = folder.join("data.img");
        make(&path, 1 << 20, false).unwrap();
        let (watches, progress) = (Watches::default(), CopyProgress::default());
        Original { path, device: None, folder: folder.into(), watches, progress }
    }

    /// Two backups read one image, and the second begins after a write.
    #[test]
    fn a_second_guard_hides_no_write_from_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let original = original(folder.path());
        let image = File::options().write(true).open(&original.path).unwrap();
        let guard = || original.clone().guard(1 << 20).unwrap().guard;
        let first = guard();
        assert!(first.is_unchanged().unwrap());
        image.write_all_at(b"new", 0).unwrap();
        let second = guard();
        assert!(!first.is_unchanged().unwrap(), "the first read what was there before");
        assert!(second.is_unchanged().unwrap());
        let other = guard();
        image.write_all_at(b"newer", 0).unwrap();
        assert!(!second.is_unchanged().unwrap() && !other.is_unchanged().unwrap());
        let third = guard();
        drop((first, second, other));
        assert!(third.is_unchanged().unwrap());
    }

    /// Sharing fails after the first block, for the disk is full; the earlier moment is gone
    /// from the target when it is shared anew, or the snapshot is not made.
    #[test]
    fn blocks_that_are_shared_in_part_are_no_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.img");
        let target = private::create(&path).unwrap();
        let share = |fails: bool| {
            target.write_all_at(b"new", 0)?;
            if fails {
                return Err(io::ErrorKind::StorageFull.into());
            }
            target.set_len(8)
        };
        let content = || std::fs::read(&path).unwrap();
        target.write_all_at(b"12345678", 0).unwrap();
        let mut fails = [true, false].into_iter();
        share_again(&target, || share(fails.next().unwrap())).unwrap();
        assert_eq!(content(), b"new\0\0\0\0\0");
        target.write_all_at(b"12345678", 0).unwrap();
        share_again(&target, || share(true)).unwrap_err();
        target.write_all_at(b"12345678", 0).unwrap();
        share_again(&target, || share(false)).unwrap();
    }

    /// A volume is copied again, and what it held the first time was discarded.
    #[test]
    fn nothing_stays_of_an_earlier_copy() {
        let folder = tempfile::tempdir().unwrap();
        let original = original(folder.path());
        let image = File::options().read(true).write(true).open(&original.path).unwrap();
        let target = private::create(&folder.path().join("copy.img")).unwrap();
        let content = |file: &Path| std::fs::read(file).unwrap();
        let progress = CopyProgress::default();
        image.write_all_at(&[7; 65536], 65536).unwrap();
        copy(&image, &target, &progress).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&image, flags, 65536, 32768).unwrap();
        let same = || content(&original.path) == content(&folder.path().join("copy.img"));
        assert!(!same());
        copy_ranges(&image, &target, std::slice::from_ref(&(65536..131_072)), &progress).unwrap();
        assert!(same(), "where something was written");
        rustix::fs::fallocate(&image, flags, 98304, 32768).unwrap();
        copy(&image, &target, &progress).unwrap();
        assert!(same(), "all of it");
    }

    /// The better way must do where the kernel can: a copy that is only watched is the last resort.
    #[test]
    fn a_mounted_volume_can_be_followed() {
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("loop devices", "only root may make them");
        }
        let below = trace::tests::Slow::make();
        if WriteTrace::start(&below.device).is_none() {
            return selvage_testkit::skip("tracefs", "the kernel lets nobody trace");
        }
        let (folder, device) = (below.folder.path(), &below.device);
        let mount = folder.join("volume");
        std::fs::create_dir(&mount).unwrap();
        run("mkfs.ext4", &["-q"], &device.path).unwrap();
        run("mount", &[device.path.to_str().unwrap()], &mount).unwrap();
        std::fs::write(mount.join("file"), [7; 65536]).unwrap();
        // On the file system of the image, as always.
        let target = private::create(&device.image.with_file_name("copy.img")).unwrap();
        let original = Original {
            path: device.image.clone(),
            device: Some(device.clone()),
            folder: folder.into(),
            watches: Watches::default(),
            progress: CopyProgress::default(),
        };
        let copied = original.open().and_then(|source| original.copy_traced(&source, &target));
        run("umount", &[], &mount).unwrap();
        assert!(copied.unwrap());
    }

    /// When a write is told of.
    #[derive(Clone, Copy, PartialEq)]
    enum Reports {
        WhenQueued,
        WhenInTheImage,
    }

    /// A volume of eight bytes. One write is queued before the first look, and reaches the
    /// image only when its worker is let go: after so many copies, or when the file system
    /// is frozen, which waits for it.
    struct Slow {
        reports: Reports,
        lands_after: usize,
        copies: usize,
        image: [u8; 8],
        target: [u8; 8],
        queued: bool,
        events: Ranges,
    }

    impl Slow {
        fn copied(reports: Reports, lands_after: usize) -> Self {
            let (image, target) = ([0; 8], [0; 8]);
            let events = Ranges::new();
            let mut slow =
                Self { reports, lands_after, copies: 0, image, target, queued: false, events };
            assert!(copy_followed(&mut slow).unwrap());
            slow
        }

        fn queue(&mut self) {
            self.queued = true;
            if self.reports == Reports::WhenQueued {
                self.events.push(3..4);
            }
        }

        fn land(&mut self) {
            if std::mem::take(&mut self.queued) {
                self.image[3] = 1;
                if self.reports == Reports::WhenInTheImage {
                    self.events.push(3..4);
                }
            }
        }
    }

    impl Followed for Slow {
        fn copy_all(&mut self) -> Result<()> {
            self.copy(std::slice::from_ref(&(0..8)))?;
            self.queue();
            Ok(())
        }

        fn copy(&mut self, ranges: &[Range<u64>]) -> Result<()> {
            for range in ranges {
                let range = range.start as usize..range.end as usize;
                self.target[range.clone()].copy_from_slice(&self.image[range]);
            }
            self.copies += 1;
            if self.copies > self.lands_after {
                self.land();
            }
            Ok(())
        }

        fn take(&mut self) -> Option<Ranges> {
            Some(std::mem::take(&mut self.events))
        }

        // It waits for no write that is on its way already.
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }

        fn freeze(&mut self) -> Result<bool> {
            self.land();
            Ok(true)
        }

        fn was_still(&self) -> Result<bool> {
            Ok(true)
        }
    }

    /// It was queued before a look, and reached the image after the copy that followed.
    #[test]
    fn a_write_that_lands_after_its_copy_is_copied_again() {
        for lands_after in [1, 2, usize::MAX] {
            let slow = Slow::copied(Reports::WhenInTheImage, lands_after);
            assert_eq!(slow.target, slow.image, "{lands_after}");
        }
        // Which is why nothing is made of what is told when a write is queued.
        let torn = Slow::copied(Reports::WhenQueued, usize::MAX);
        assert_ne!(torn.target, torn.image);
    }
}
