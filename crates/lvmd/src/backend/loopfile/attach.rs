//! Loop devices: which image has one, and who uses it.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use selvage_memory::LoopDevice;

use crate::{
    Error, Result,
    backend::{command, in_use::stays_open, program},
};

/// The kernel's mark on the name of an image that was removed.
const DELETED: &[u8] = b" (deleted)";

/// Attaches images below one folder.
pub(super) struct Attachments {
    folder: PathBuf,
    reported: AtomicBool,
}

impl Attachments {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), reported: AtomicBool::new(false) }
    }

    /// All attached images below the folder. Removed ones have the kernel's
    /// ` (deleted)` behind their name.
    pub(super) fn all(&self) -> BTreeMap<PathBuf, LoopDevice> {
        let (mut found, mut known) = (BTreeMap::new(), None);
        for device in selvage_memory::loop_devices() {
            let files = known.get_or_insert_with(|| files(&self.folder));
            let known = device.inode.and_then(|inode| files.get(&inode).cloned());
            // By its name only where nothing else is left: in another namespace
            // another file may have the same.
            let nameless = device.inode.is_none()
                || device.image.as_os_str().as_encoded_bytes().ends_with(DELETED);
            let named = nameless && device.image.starts_with(&self.folder);
            if let Some(image) = known.or_else(|| named.then(|| device.image.clone())) {
                found.insert(image, device);
            }
        }
        found
    }

    pub(super) fn of(&self, image: &Path) -> Option<LoopDevice> {
        let wanted = inode(image);
        let is_it = |device: &LoopDevice| match (wanted, device.inode) {
            (Some(wanted), Some(inode)) => wanted == inode,
            _ => device.image == image,
        };
        selvage_memory::loop_devices().find(is_it)
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
        if !self.reported.swap(true, Ordering::Relaxed) {
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
        if stays_open(rustix::fs::makedev(device.major, device.minor)) {
            return Err(Error::Precondition(format!("Logical volume {name} in use.")));
        }
        Ok(())
    }
}

/// A loop device makes holes in its image where something is discarded, or
/// zeroed in a way that allows it.
fn refuse_discards(device: &LoopDevice) {
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

fn release(device: &LoopDevice) -> Result<()> {
    device.release().map_err(Error::file(&device.path))
}

/// Writes what is in the device's cache to the image.
pub(super) fn flush(device: &LoopDevice) -> Result<()> {
    let synced = File::open(&device.path).and_then(|file| file.sync_all());
    synced.map_err(Error::file(&device.path))
}

/// A file system, or another exclusive user, has the device.
fn is_claimed(device: &LoopDevice) -> bool {
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(exclusively).open(&device.path);
    opened.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()))
}

/// Numbers of a file that do not depend on who looks.
fn inode(path: &Path) -> Option<(u64, u64)> {
    let about = fs::metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

/// Files of all groups in a folder by their inodes.
fn files(folder: &Path) -> HashMap<(u64, u64), PathBuf> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let groups = entries(folder).map(|group| group.path());
    let files =
        groups.flat_map(|group| entries(&group).map(|file| file.path()).collect::<Vec<_>>());
    files.filter_map(|file| Some((inode(&file)?, file))).collect()
}

fn losetup(arguments: &[&str], path: &Path) -> Result<()> {
    run("losetup", arguments, path)
}

/// Runs a program of the system that says on stderr what is wrong.
pub(super) fn run(name: &str, arguments: &[&str], path: &Path) -> Result<()> {
    let mut command = command(program(name));
    let output = command.args(arguments).arg(path).output();
    let output = output.map_err(|source| Error::Program { program: name.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
