//! Mounts of this machine.

use std::{
    ffi::CString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount},
};

use crate::{Error, Result, lvmd::VolumeInfo};

/// Options of file systems that go to the kernel as they are.
const OPTIONS: [&str; 8] = [
    "discard",
    "nodiscard",
    "barrier",
    "nobarrier",
    "data=ordered",
    "data=journal",
    "data=writeback",
    "nouuid",
];
/// More than so many mounts in one place are somebody's mistake.
const MOST: usize = 16;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    pub(crate) numbers: (u32, u32),
    pub(crate) kind: String,
    pub(crate) read_only: bool,
}

/// Reads options of a mount.
pub(crate) fn options(flags: &[String]) -> Result<(MountFlags, String)> {
    let (mut known, mut data) = (MountFlags::empty(), Vec::new());
    for flag in flags.iter().flat_map(|flags| flags.split(',')).filter(|flag| !flag.is_empty()) {
        known |= match flag {
            "rw" | "defaults" | "suid" | "dev" | "exec" | "async" => MountFlags::empty(),
            "ro" => MountFlags::RDONLY,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            "strictatime" => MountFlags::STRICTATIME,
            "lazytime" => MountFlags::LAZYTIME,
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "sync" => MountFlags::SYNCHRONOUS,
            "dirsync" => MountFlags::DIRSYNC,
            option if OPTIONS.contains(&option) => {
                data.push(option);
                MountFlags::empty()
            }
            other => {
                let text = format!("{other:?} is not allowed");
                return Err(Error::invalid("volume_capability.mount.mount_flags", text));
            }
        };
    }
    Ok((known, data.join(",")))
}

/// Checks a path that something is to be mounted on: below the kubelet's folder
/// and nowhere else.
pub(crate) fn check_path(text: &str, field: &'static str, root: &Path) -> Result<PathBuf> {
    if text.is_empty() {
        return Err(Error::invalid(field, "is needed"));
    }
    let path = Path::new(text);
    let plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.is_absolute() && plain && path.starts_with(root) && path != root {
        true => Ok(path.to_owned()),
        false => Err(Error::invalid(field, format!("must be below {}", root.display()))),
    }
}

/// Returns what is mounted at a path; the last one where there are several.
pub(crate) fn at(path: &Path) -> Result<Option<Mounted>> {
    let table = "/proc/self/mountinfo";
    let text = fs::read_to_string(table).map_err(Error::file(table))?;
    Ok(text.lines().filter_map(parse).rfind(|mounted| mounted.path == path))
}

fn parse(line: &str) -> Option<Mounted> {
    let (mount, system) = line.split_once(" - ")?;
    let fields: Vec<&str> = mount.split(' ').collect();
    let (major, minor) = fields.get(2)?.split_once(':')?;
    Some(Mounted {
        path: unescaped(fields.get(4)?).into(),
        numbers: (major.parse().ok()?, minor.parse().ok()?),
        kind: system.split(' ').next()?.to_owned(),
        read_only: fields.get(5)?.split(',').any(|option| option == "ro"),
    })
}

/// The kernel writes blanks and the like as octal numbers.
fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

fn failed(path: &Path) -> impl FnOnce(Errno) -> Error {
    move |error| Error::file(path)(error.into())
}

/// Mounts the file system of a device.
pub(crate) fn mount_device(device: &Path, path: &Path, kind: &str, flags: &[String]) -> Result<()> {
    let (flags, data) = options(flags)?;
    let data = CString::new(data).unwrap_or_default();
    mount(device, path, kind, flags, data.as_c_str()).map_err(failed(path))
}

/// Shows a mount, or a device, in another place.
pub(crate) fn bind(from: &Path, to: &Path) -> Result<()> {
    mount_bind(from, to).map_err(failed(to))
}

/// Makes a place that shows a mount one that cannot be written through.
pub(crate) fn make_read_only(path: &Path) -> Result<()> {
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, c"").map_err(failed(path))
}

/// Unmounts all that is mounted there; nothing is no error.
pub(crate) fn unmount_all(path: &Path) -> Result<()> {
    for _ in 0..MOST {
        if at(path)?.is_none() {
            return Ok(());
        }
        match unmount(path, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(failed(path)(error)),
        }
    }
    Err(Error::Precondition(format!("{} does not come free", path.display())))
}

/// Removes an empty folder, or a file, that something was mounted on.
pub(crate) fn remove_mount_point(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
        _ => Ok(()),
    }
}

/// Returns whether a file is the device of a volume.
pub(crate) fn is_device(path: &Path, volume: &VolumeInfo) -> bool {
    let (major, minor) = volume.numbers;
    fs::metadata(path).is_ok_and(|found| found.rdev() == rustix::fs::makedev(major, minor))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = r"36 35 7:3 / /var/lib/kubelet/a\040b ro,noatime shared:1 - ext4 /dev/loop3 rw";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.path, Path::new("/var/lib/kubelet/a b"));
        assert_eq!(
            (mounted.numbers, mounted.kind.as_str(), mounted.read_only),
            ((7, 3), "ext4", true)
        );
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn nothing_is_mounted_outside_the_kubelet_s_folder() {
        let root = Path::new("/var/lib/kubelet");
        assert!(check_path("/var/lib/kubelet/pods/a", "target_path", root).is_ok());
        for wrong in [
            "",
            "/etc",
            "pods/a",
            "/var/lib/kubelet",
            "/var/lib/kubelet/../x",
            "/var/lib/kubeletx/a",
        ] {
            let error = check_path(wrong, "target_path", root).unwrap_err();
            assert!(error.to_string().starts_with("target_path: "), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn options_are_those_that_are_known() {
        let of =
            |flags: &[&str]| options(&flags.iter().map(ToString::to_string).collect::<Vec<_>>());
        let (flags, data) = of(&["noatime,discard", "ro"]).unwrap();
        assert_eq!(flags, MountFlags::NOATIME | MountFlags::RDONLY);
        assert_eq!(data, "discard");
        for wrong in ["bind", "loop", "data=x", "init_itable=0", "context=a"] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
