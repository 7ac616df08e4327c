//! Layers put on top of each other, with a writable one above.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags},
};

use super::{disk, users::MappedLayers};
use crate::{Error, Result, error::During};

const OVERLAY_MAGIC: i64 = 0x794c_7630;
/// Bytes that fit into the one page that `mount` takes.
const ONE_PAGE: usize = 4000;

/// The writable side of a container, in its directory or on its disk.
pub(super) struct Stack {
    /// The topmost first.
    pub(super) layers: Vec<PathBuf>,
    pub(super) directory: PathBuf,
    /// True where it has a disk.
    pub(super) limited: bool,
    /// First of its own users; none where it has the machine's.
    pub(super) users: Option<u32>,
}

/// Folder that layers are in, with the users of a container, while its root is
/// mounted.
const LAYERS: &str = "layers";

impl Stack {
    fn target(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    pub(super) fn is_mounted(&self) -> bool {
        let target = self.target();
        rustix::fs::statfs(&target).is_ok_and(|found| found.f_type == OVERLAY_MAGIC)
            && is_mount_point(&target)
    }

    /// Mounts at `rootfs`, unless that is done.
    pub(super) fn mount(&self) -> Result<()> {
        if self.is_mounted() {
            return Ok(());
        }
        let mut writable = self.directory.clone();
        if self.limited {
            disk::mount(&self.directory)?;
            writable = disk::place(&self.directory);
        }
        let (target, upper, work) = (self.target(), writable.join("upper"), writable.join("work"));
        for directory in [&target, &upper, &work] {
            fs::create_dir_all(directory).during("making a snapshot")?;
        }
        if let Some(first) = self.users {
            std::os::unix::fs::chown(&upper, Some(first), Some(first))
                .during("making a snapshot")?;
        }
        if self.layers.is_empty() {
            return rustix::mount::mount_bind(&upper, &target).during("mounting a snapshot");
        }
        let Some(first) = self.users else {
            return Self::put_together(&self.layers, &target, &upper, &work);
        };
        let mapped = MappedLayers::new(&self.layers, self.directory.join(LAYERS), first)?;
        Self::put_together(&mapped.layers, &target, &upper, &work)
    }

    fn put_together(layers: &[PathBuf], target: &Path, upper: &Path, work: &Path) -> Result<()> {
        let shown = |path: &Path| path.display().to_string();
        let lower: Vec<String> = layers.iter().map(|layer| shown(layer)).collect();
        let data = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.join(":"),
            shown(upper),
            shown(work)
        );
        if data.len() > ONE_PAGE || data.matches([':', ',', '\\']).count() != lower.len() + 1 {
            return Self::mount_piecewise(layers, target, upper, work);
        }
        let data = std::ffi::CString::new(data)
            .map_err(|_| Error::invalid("root", "may not contain a zero byte"))?;
        rustix::mount::mount("overlay", target, "overlay", MountFlags::NODEV, data.as_c_str())
            .during("mounting a snapshot")
    }

    /// Newer kernels take layers one by one, as many and by any name.
    fn mount_piecewise(layers: &[PathBuf], target: &Path, upper: &Path, work: &Path) -> Result<()> {
        let doing = "mounting a snapshot of many layers";
        let context =
            rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).during(doing)?;
        let set = |key: &str, value: &Path| {
            rustix::mount::fsconfig_set_string(&context, key, value).during(doing)
        };
        for layer in layers {
            set("lowerdir+", layer)?;
        }
        set("upperdir", upper)?;
        set("workdir", work)?;
        rustix::mount::fsconfig_create(&context).during(doing)?;
        let mount = rustix::mount::fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NODEV,
        )
        .during(doing)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, "", CWD, target, flags).during(doing)
    }
}

/// Returns whether another file system is there than around it.
pub(super) fn is_mount_point(target: &Path) -> bool {
    let same_device = || -> std::io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let parent = fs::metadata(target.parent().unwrap_or(target))?;
        Ok(fs::metadata(target)?.dev() == parent.dev())
    };
    !same_device().unwrap_or(true)
}

/// Takes a container's mounts away, however often they were mounted.
pub(super) fn unmount(directory: &Path) {
    for target in [directory.join("rootfs"), directory.join(LAYERS), disk::place(directory)] {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        while rustix::mount::unmount(&target, flags).is_ok() {}
    }
}

/// A small file of a container, never one outside of it.
pub(super) fn read_inside(rootfs: &Path, name: &str) -> String {
    const LARGEST: u64 = 1 << 20;
    let read = || -> std::io::Result<String> {
        let root = rustix::fs::open(rootfs, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::openat2(root, name, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
        let file = fs::File::from(file);
        let mut text = String::new();
        if file.metadata()?.is_file() {
            file.take(LARGEST).read_to_string(&mut text)?;
        }
        Ok(text)
    };
    read().unwrap_or_default()
}
