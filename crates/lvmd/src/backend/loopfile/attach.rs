//! Loop devices: which image has one, and who uses it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{Error, Result, backend::program};

/// How often, and how far apart, a device must be seen open to be in use.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// An image's loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) path: PathBuf,
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// Attaches images below one folder.
pub(super) struct Attachments {
    folder: PathBuf,
    told: AtomicBool,
}

impl Attachments {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), told: AtomicBool::new(false) }
    }

    /// All attached images below the folder. Removed ones have the kernel's
    /// ` (deleted)` behind their name.
    pub(super) fn all(&self) -> BTreeMap<PathBuf, Attached> {
        let mut found = BTreeMap::new();
        for (image, device) in attached() {
            if image.starts_with(&self.folder) {
                found.insert(image, device);
            }
        }
        found
    }

    pub(super) fn of(&self, image: &Path) -> Option<Attached> {
        attached().find(|(found, _)| found == image).map(|(_, device)| device)
    }

    /// Gives an image its device. A machine that does not let us has volumes
    /// without devices, which it is told once. One whose space is reserved
    /// takes no discards, which would give it away.
    pub(super) fn attach(&self, image: &Path, read_only: bool, reserved: bool) {
        self.attach_plain(image, read_only);
        if let Some(device) = self.of(image).filter(|_| reserved && !read_only) {
            refuse_discards(&device);
        }
    }

    fn attach_plain(&self, image: &Path, read_only: bool) {
        if self.of(image).is_some() {
            return;
        }
        let mut arguments = vec!["--find"];
        if read_only {
            arguments.push("--read-only");
        }
        let Err(error) = losetup(&arguments, image) else { return };
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "no loop devices: volumes are files without devices");
        }
    }

    pub(super) fn detach(&self, image: &Path) -> Result<()> {
        match self.of(image) {
            Some(device) => release(&device),
            None => Ok(()),
        }
    }

    /// Lets go devices in a group's folder whose images are not among these.
    pub(super) fn detach_others(&self, folder: &Path, images: &[PathBuf]) {
        for (image, device) in self.all() {
            if image.starts_with(folder) && !images.contains(&image) {
                tracing::warn!(device = %device.path.display(), "letting go an orphan");
                if let Err(error) = release(&device) {
                    tracing::warn!(%error, "an orphan cannot be let go");
                }
            }
        }
    }

    /// Tells the device that its image is longer now.
    pub(super) fn grown(&self, image: &Path) -> Result<()> {
        match self.of(image) {
            Some(device) => losetup(&["--set-capacity"], &device.path),
            None => Ok(()),
        }
    }

    /// Refuses, in LVM's words, a volume that is mounted or open.
    pub(super) fn check_unused(&self, image: &Path, name: &str) -> Result<()> {
        let Some(device) = self.of(image) else { return Ok(()) };
        if is_claimed(&device) {
            return Err(Error::Precondition(format!(
                "Logical volume {name} contains a filesystem in use."
            )));
        }
        if stays_open(&device) {
            return Err(Error::Precondition(format!("Logical volume {name} in use.")));
        }
        Ok(())
    }
}

/// A loop device makes holes in its image where something is discarded, or
/// zeroed in a way that allows it.
fn refuse_discards(device: &Attached) {
    let queue = format!("/sys/dev/block/{}:{}/queue", device.major, device.minor);
    for (limit, needed) in [("discard_max_bytes", true), ("write_zeroes_unmap_max_bytes", false)] {
        let refused = fs::write(Path::new(&queue).join(limit), "0");
        // Older kernels do not have the second.
        if let Err(error) = refused
            && needed
        {
            let device = device.path.display();
            tracing::warn!(%device, %error, "discards give space away, which is reserved again later");
        }
    }
}

/// Detaches a device, and removes it where it refused discards: a limit stays with
/// the device's number, and whoever has it next would have it too.
fn release(device: &Attached) -> Result<()> {
    let limit = format!("/sys/dev/block/{}:{}/queue/discard_max_bytes", device.major, device.minor);
    let limited = fs::read_to_string(limit).is_ok_and(|bytes| bytes.trim() == "0");
    losetup(&["--detach"], &device.path)?;
    let name = device.path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("loop")?.parse().ok());
    if let Some(number) = number.filter(|_| limited)
        && let Err(error) = selvage_memory::remove_loop_device(number)
    {
        tracing::debug!(number, %error, "a loop device stays, and takes no discards");
    }
    Ok(())
}

/// Writes what is in the device's cache to the image.
pub(super) fn flush(device: &Attached) -> Result<()> {
    let synced = File::open(&device.path).and_then(|file| file.sync_all());
    synced.map_err(Error::file(&device.path))
}

/// A file system, or another exclusive user, has the device.
fn is_claimed(device: &Attached) -> bool {
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(exclusively).open(&device.path);
    opened.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()))
}

/// Some process has the device open and keeps it so. Others only look: udev,
/// or a child of ours between fork and exec.
fn stays_open(device: &Attached) -> bool {
    for _ in 0..LOOKS {
        if !is_open(device) {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    true
}

/// Some process has the device open, by whatever name.
fn is_open(device: &Attached) -> bool {
    let number = rustix::fs::makedev(device.major, device.minor);
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries("/proc".into())
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut files = processes.flat_map(|process| entries(process.path().join("fd")));
    files.any(|file| {
        let seen = fs::metadata(file.path());
        seen.is_ok_and(|seen| seen.file_type().is_block_device() && seen.rdev() == number)
    })
}

/// Every loop device that has an image.
fn attached() -> impl Iterator<Item = (PathBuf, Attached)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let _ = name.strip_prefix("loop")?;
        let image = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let numbers = fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = numbers.trim().split_once(':')?;
        let device = Attached {
            path: Path::new("/dev").join(name),
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        };
        Some((image.trim_end_matches('\n').into(), device))
    })
}

fn losetup(arguments: &[&str], path: &Path) -> Result<()> {
    run("losetup", arguments, path)
}

/// Runs a program of the system that says on stderr what is wrong.
pub(super) fn run(name: &str, arguments: &[&str], path: &Path) -> Result<()> {
    let mut command = Command::new(program(name));
    let command = command.args(arguments).arg(path).env("LC_ALL", "C").stdin(Stdio::null());
    let output =
        command.output().map_err(|source| Error::Program { program: name.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
