//! Parts of a device that are written, told by the kernel's tracing.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use selvage_memory::LoopDevice;

use super::attach::run;
use crate::backend::Ranges;

const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Event of the kernel for every request to a device once it is done, and before whoever
/// made it knows. The event of a request that is queued would be of no use: the request may
/// reach the image at any time after that, and nothing more is told of it.
const EVENT: &str = "block_rq_complete";
/// KiB that the kernel keeps of it for each processor until it is read.
const BUFFER: &str = "1024";
const SECTOR: u64 = 512;
/// Beginning of the names of traces, before the number of the process.
const PREFIX: &str = "selvage-";

/// A trace of what is written to a device, from its start until it is dropped.
pub(super) struct WriteTrace {
    folder: PathBuf,
    pipe: File,
}

impl WriteTrace {
    /// Starts one; none where the kernel does not let us.
    pub(super) fn start(device: &LoopDevice) -> Option<Self> {
        let traces = FOLDERS.iter().map(Path::new).find(|folder| has_events(folder));
        let traces = traces.or_else(mount)?;
        let name = format!("{PREFIX}{}-{}", std::process::id(), device.minor);
        let folder = traces.join("instances").join(name);
        // One of a process that had our number.
        let _ = fs::remove_dir(&folder);
        fs::create_dir(&folder).ok()?;
        let started = Self::fill(&folder, device);
        if started.is_none() {
            let _ = fs::remove_dir(&folder);
        }
        started
    }

    fn fill(folder: &Path, device: &LoopDevice) -> Option<Self> {
        let event = folder.join("events/block").join(EVENT);
        let number = (u64::from(device.major) << 20) | u64::from(device.minor);
        fs::write(folder.join("buffer_size_kb"), BUFFER).ok()?;
        fs::write(event.join("filter"), format!("dev == {number}")).ok()?;
        let without_waiting = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut pipe = OpenOptions::new();
        pipe.read(true).custom_flags(without_waiting);
        let pipe = pipe.open(folder.join("trace_pipe")).ok()?;
        fs::write(event.join("enable"), "1").ok()?;
        Some(Self { folder: folder.to_owned(), pipe })
    }

    /// Returns what was written since the last time; none if the kernel lost some of it.
    /// A write that has not reached the image is told of the next time.
    pub(super) fn take(&mut self) -> Option<Ranges> {
        let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match self.pipe.read(&mut part) {
                Ok(0) => break,
                Ok(read) => text.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        let ranges = written(&String::from_utf8_lossy(&text))?;
        if self.has_lost() { None } else { Some(ranges) }
    }

    fn has_lost(&self) -> bool {
        let Ok(processors) = fs::read_dir(self.folder.join("per_cpu")) else { return true };
        let mut lost = processors.flatten().map(|processor| {
            let text = fs::read_to_string(processor.path().join("stats")).unwrap_or_default();
            lost_events(&text)
        });
        lost.any(|lost| lost != Some(0))
    }
}

impl Drop for WriteTrace {
    fn drop(&mut self) {
        let event = self.folder.join("events/block").join(EVENT);
        let _ = fs::write(event.join("enable"), "0");
        // A folder with an open pipe cannot be removed.
        if let Ok(null) = File::open("/dev/null") {
            self.pipe = null;
        }
        if let Err(error) = fs::remove_dir(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "a trace cannot be removed");
        }
    }
}

/// Removes what processes left that were killed.
pub(super) fn remove_left_behind() {
    for traces in FOLDERS {
        let entries = fs::read_dir(Path::new(traces).join("instances")).into_iter().flatten();
        for folder in entries.flatten().map(|entry| entry.path()) {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(PREFIX) {
                // The kernel refuses it for one that somebody reads.
                let _ = fs::remove_dir(&folder);
            }
        }
    }
}

fn has_events(folder: &Path) -> bool {
    folder.join("events/block").join(EVENT).is_dir() && folder.join("instances").is_dir()
}

/// Mounts it where it belongs.
fn mount() -> Option<&'static Path> {
    let folder = Path::new(FOLDERS[0]);
    run("mount", &["-t", "tracefs", "tracefs"], folder).ok()?;
    Some(folder).filter(|folder| has_events(folder))
}

/// Reads lines such as `cp-71 [001] ..... 5.1: block_rq_complete: 7,0 WS () 2048 + 8 [0]`.
/// None if one is not understood, or tells that others are missing.
fn written(text: &str) -> Option<Ranges> {
    let mut ranges = Ranges::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (_, fields) = line.split_once(&format!(" {EVENT}: "))?;
        let mut words = fields.split_ascii_whitespace();
        let (_device, kind) = (words.next()?, words.next()?);
        // Commands that a device takes besides, in hexadecimal. A loop device has none.
        words.next().filter(|command| *command == "()")?;
        let start: u64 = words.next()?.parse().ok()?;
        let count: u64 =
            words.next().filter(|plus| *plus == "+").and(words.next())?.parse().ok()?;
        // Whatever is no plain read may change something. A flush has no place.
        if !kind.starts_with('R') && count > 0 {
            let bytes = |sectors: u64| sectors.checked_mul(SECTOR);
            ranges.push(bytes(start)?..bytes(start.checked_add(count)?)?);
        }
    }
    Some(tidy(ranges))
}

/// Puts ranges in order, without overlap.
fn tidy(mut ranges: Ranges) -> Ranges {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut tidy = Ranges::with_capacity(ranges.len());
    for range in ranges {
        match tidy.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => tidy.push(range),
        }
    }
    tidy
}

/// Returns how many events a processor lost; none if that is not told.
fn lost_events(stats: &str) -> Option<u64> {
    let value = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().parse::<u64>().ok()
    };
    Some(value("overrun")? + value("commit overrun")? + value("dropped events")?)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn writes_are_read_and_what_is_missing_is_known() {
        let text = "
           <...>-71      [001] .....     5.154001: block_rq_complete: 7,0 WS () 16 + 8 none,0,0 [0]
          cp b-71      [001] .....     5.154002: block_rq_complete: 7,0 R () 512 + 8 none,0,0 [0]
          cp-71      [000] .....     5.154003: block_rq_complete: 7,0 DS () 8 + 8 none,0,0 [0]
          cp-71      [000] .....     5.154003: block_rq_complete: 7,0 FF () 18446744073709551615 + 0 none,0,0 [0]
          cp-71      [000] .....     5.154003: block_rq_complete: 7,0 W () 64 + 2 [-5]
";
        assert_eq!(written(text).unwrap(), [4096..12288, 32768..33792]);
        assert_eq!(written("").unwrap(), []);
        assert_eq!(written("CPU:1 [LOST 14 EVENTS]\n"), None);
        assert_eq!(written(&text.replace("+ 2", "+ x")), None);
        assert_eq!(written(&text.replace("W ()", "W (2a 00)")), None);
        let stats = "entries: 0\noverrun: 3\ncommit overrun: 0\nbytes: 9\ndropped events: 1\n";
        assert_eq!(lost_events(stats), Some(4));
        assert_eq!(lost_events("entries: 0\n"), None);
    }

    /// A loop device on a file system that can be frozen, so that nothing reaches its image.
    pub(crate) struct Slow {
        pub(crate) folder: tempfile::TempDir,
        pub(crate) device: LoopDevice,
    }

    impl Slow {
        pub(crate) fn make() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (disk, mount) = (folder.path().join("disk"), folder.path().join("mount"));
            File::create(&disk).unwrap().set_len(64 << 20).unwrap();
            run("mkfs.ext4", &["-q"], &disk).unwrap();
            fs::create_dir(&mount).unwrap();
            run("mount", &["-o", "loop", disk.to_str().unwrap()], &mount).unwrap();
            let image = mount.join("image");
            File::create(&image).unwrap().set_len(8 << 20).unwrap();
            run("losetup", &["--find"], &image).unwrap();
            let device = selvage_memory::loop_devices().find(|it| it.image == image).unwrap();
            Self { folder, device }
        }

        fn disk(&self) -> File {
            File::open(self.folder.path().join("mount")).unwrap()
        }

        /// Number of writes that are on their way.
        fn writes_on_their_way(&self) -> u32 {
            let name = self.device.path.file_name().unwrap();
            let path = Path::new("/sys/block").join(name).join("inflight");
            let text = fs::read_to_string(path).unwrap();
            text.split_whitespace().nth(1).unwrap().parse().unwrap()
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.device.release();
            let _ = run("umount", &["--lazy"], &self.folder.path().join("mount"));
        }
    }

    /// Between the two, a copy reads what was there before.
    #[test]
    fn a_write_is_reported_once_it_is_in_the_image_and_no_sooner() {
        use std::os::unix::fs::FileExt;
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("loop devices", "only root may make them");
        }
        let slow = Slow::make();
        let Some(mut trace) = WriteTrace::start(&slow.device) else {
            return selvage_testkit::skip("tracefs", "the kernel lets nobody trace");
        };
        let disk = slow.disk();
        selvage_memory::freeze(&disk).unwrap();
        let path = slow.device.path.clone();
        let writer = std::thread::spawn(move || {
            let synced = rustix::fs::OFlags::DSYNC.bits() as i32;
            let device = OpenOptions::new().write(true).custom_flags(synced).open(path).unwrap();
            device.write_all_at(&[7; 4096], 1 << 20).unwrap();
        });
        while slow.writes_on_their_way() == 0 && !writer.is_finished() {
            std::thread::yield_now();
        }
        let before = trace.take();
        selvage_memory::thaw(&disk).unwrap();
        writer.join().unwrap();
        let after = trace.take();
        drop((trace, disk));
        assert_eq!(before, Some(Ranges::new()), "it is not in the image yet");
        let place = (1 << 20)..(1 << 20) + 4096;
        let fields = after.unwrap();
        assert!(fields.contains(&place), "{fields:?}");
    }
}
