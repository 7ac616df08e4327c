//! Memory that a process has and does not use, given back to the machine.
//!
//! A program that starts touches far more of itself than it needs afterwards,
//! and an allocator keeps what was needed once. For a daemon on every machine
//! that is most of its resident memory. This crate knows nothing of what the
//! process does; it only asks the allocator and the kernel.
//!
//! The workspace's one use of `unsafe` is here, in `system`. So are the other
//! calls that have no safe way to them: [`cpu_time`], [`loop_devices`], [`extents`],
//! [`freeze`], [`tap`], [`map_users`].

mod maps;
mod system;

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use maps::Mapping;

/// Tells the allocator that memory matters more than many threads that
/// allocate at once, and remembers what the program was started from. To be
/// called first in `main`.
pub fn frugal() -> Frugal {
    system::few_arenas();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let of_program: Vec<Mapping> = maps::read(&maps).filter(Mapping::is_read_only_file).collect();
    let as_in_file = of_program.iter().filter(|mapping| mapping.is_as_in_file());
    let page_by_page = system::page_by_page(as_in_file).ok().map(Arc::new);
    Frugal { of_program, _page_by_page: page_by_page }
}

/// Returns the CPU time of all threads of a process, in nanoseconds; `None` if
/// there is no such process.
pub fn cpu_time(process: i32) -> Option<u64> {
    system::cpu_time(process)
}

/// State of the clock as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelClock {
    /// True if a time server keeps it.
    pub synchronised: bool,
    pub offset_seconds: f64,
    pub max_error_seconds: f64,
    pub estimated_error_seconds: f64,
    /// Speed relative to the machine's own oscillator.
    pub frequency_ratio: f64,
}

/// Returns the state of the clock; none where the kernel does not tell.
pub fn kernel_clock() -> Option<KernelClock> {
    system::kernel_clock()
}

/// A loop device that has an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// Path of the device.
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
    /// Path of the image, as whoever attached it saw it.
    pub image: PathBuf,
    /// Numbers of the image's file system and inode, which are the same in all
    /// mount namespaces; none where the device cannot be opened.
    pub inode: Option<(u64, u64)>,
}

impl LoopDevice {
    /// Takes its image away, and removes a device that refused discards: a limit
    /// stays with the device's number, and whoever has it next would have it too.
    pub fn release(&self) -> io::Result<()> {
        let limit = format!("/sys/dev/block/{}:{}/queue/discard_max_bytes", self.major, self.minor);
        let limited = fs::read_to_string(limit).is_ok_and(|bytes| bytes.trim() == "0");
        system::clear_loop_device(&fs::File::open(&self.path)?)?;
        let name = self.path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("loop")?.parse().ok());
        if let Some(number) = number.filter(|_| limited) {
            // A device that is still in use stays.
            let _ = system::remove_loop_device(number);
        }
        Ok(())
    }
}

/// Returns all loop devices that have an image.
pub fn loop_devices() -> impl Iterator<Item = LoopDevice> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let _ = name.strip_prefix("loop")?;
        let image = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let numbers = fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = numbers.trim().split_once(':')?;
        let path = Path::new("/dev").join(name);
        let inode = fs::File::open(&path).and_then(|device| system::loop_image(&device)).ok();
        Some(LoopDevice {
            path,
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            image: image.trim_end_matches('\n').into(),
            inode,
        })
    })
}

/// A part of a file and its place on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the disk. Means nothing unless the extent [is plain](Self::is_plain).
    pub physical: u64,
    pub length: u64,
    flags: u32,
}

impl Extent {
    const LAST: u32 = 1;
    const UNWRITTEN: u32 = 0x800;
    const MERGED: u32 = 0x1000;
    const SHARED: u32 = 0x2000;

    /// Returns whether its bytes are on the disk at `physical`, as they are and nowhere
    /// else: it is not compressed, not waiting for a place, not beside metadata.
    pub fn is_plain(&self) -> bool {
        let harmless = Self::LAST | Self::UNWRITTEN | Self::MERGED | Self::SHARED;
        self.flags & !harmless == 0
    }

    /// Returns whether it is reserved only, and reads as zeros.
    pub fn is_unwritten(&self) -> bool {
        self.flags & Self::UNWRITTEN != 0
    }

    /// Returns whether another file has it too.
    pub fn is_shared(&self) -> bool {
        self.flags & Self::SHARED != 0
    }

    /// Returns the offset behind it.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// Returns the extents of a file, in order, after what was written to it is on disk.
pub fn extents(file: &fs::File) -> io::Result<Vec<Extent>> {
    let (mut found, mut start) = (Vec::<Extent>::new(), 0);
    loop {
        let part = system::extents_from(file, start)?;
        let extents = part.iter().map(|raw| Extent {
            logical: raw.logical,
            physical: raw.physical,
            length: raw.length,
            flags: raw.flags,
        });
        let before = start;
        for extent in extents {
            start = extent.end();
            found.push(extent);
        }
        let is_last = found.last().is_some_and(|extent| extent.flags & Extent::LAST != 0);
        if part.is_empty() || is_last || start <= before {
            return Ok(found);
        }
    }
}

/// Freezes the file system that a file or folder is on: what was written to it is on its
/// device, and writes wait until it is thawed.
pub fn freeze(file: &fs::File) -> io::Result<()> {
    system::set_frozen(file, true)
}

/// Thaws the file system that a file or folder is on.
pub fn thaw(file: &fs::File) -> io::Result<()> {
    system::set_frozen(file, false)
}

/// Makes a network card of this name in the network namespace of the calling
/// thread, for frames of Ethernet with virtio's headers. It goes when nobody has
/// the descriptor any more.
pub fn tap(name: &str) -> io::Result<OwnedFd> {
    system::tap(name)
}

/// Makes a detached mount show the owners of its files as users of a user
/// namespace.
pub fn map_users(mount: &OwnedFd, users: &fs::File) -> io::Result<()> {
    system::map_users(mount, users)
}

/// A process that is frugal with memory.
#[derive(Debug, Clone)]
pub struct Frugal {
    /// The program and the libraries that it was linked with. They stay where
    /// they are for as long as the process lives.
    of_program: Vec<Mapping>,
    /// While this is open, a page of the program that is needed does not bring
    /// its neighbours with it, which the kernel maps sixteen at a time. None
    /// where the kernel is too old for that.
    _page_by_page: Option<Arc<OwnedFd>>,
}

impl Frugal {
    /// Gives back what is free, and pages of the program that are in its file
    /// as well: those that are used again come back one by one.
    pub fn give_back(&self) -> io::Result<()> {
        system::trim();
        let maps = fs::read_to_string("/proc/self/smaps")?;
        for mapping in maps::read(&maps) {
            let same = self.of_program.iter().any(|known| known.range == mapping.range);
            if same && mapping.is_read_only_file() && mapping.is_as_in_file() {
                system::forget(&mapping)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Large, and read in full below.
    static TEXT: &[u8] = include_bytes!("lib.rs");

    #[test]
    fn time_of_a_process_is_that_of_all_its_threads() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = cpu_time(own).unwrap();
        let ran = std::thread::spawn(|| {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let number = i32::try_from(child.id()).unwrap();
            let there = cpu_time(number);
            child.wait().unwrap();
            (there, cpu_time(number))
        });
        let (there, gone) = ran.join().unwrap();
        assert!(there.is_some() && gone.is_none(), "{there:?} {gone:?}");
        assert!(cpu_time(own).unwrap() > before);
        assert_eq!((cpu_time(0), cpu_time(-1)), (None, None), "no process has such a number");
    }

    #[test]
    fn extents_are_what_was_written() {
        use std::os::unix::fs::FileExt;
        let path = std::env::temp_dir().join(format!("selvage-extents-{}", std::process::id()));
        let file = fs::File::create_new(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        // More than are asked for at a time, none beside another.
        for part in 0..600 {
            file.write_all_at(&[1; 4096], part * 65536).unwrap();
        }
        let found = extents(&file).unwrap();
        assert!(found.is_sorted_by_key(|extent| extent.logical));
        for part in 0..600 {
            let at = part * 65536;
            let holds = |extent: &&Extent| extent.logical <= at && at < extent.end();
            assert_eq!(found.iter().filter(holds).count(), 1, "{at} {found:?}");
        }
        assert!(found.iter().all(|extent| !extent.is_shared()), "{found:?}");
    }

    #[test]
    fn neighbours_of_a_page_stay_away() {
        let frugal = frugal();
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let flags = maps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
        let marked = flags.filter(|flags| flags.split_whitespace().any(|flag| flag == "uw"));
        assert_eq!(marked.count() > 0, frugal._page_by_page.is_some(), "{maps}");
    }

    #[test]
    fn the_program_goes_on_as_it_was() {
        let frugal = frugal();
        assert!(!frugal.of_program.is_empty(), "the program itself is mapped");
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let before = sum(TEXT);
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || (0..200).map(|_| sum(TEXT)).max().unwrap()))
            .collect();
        for _ in 0..20 {
            frugal.give_back().unwrap();
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), before);
        }
        assert_eq!(format!("{before}").parse::<u64>().unwrap(), before);
    }
}
