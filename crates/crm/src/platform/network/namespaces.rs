//! Folder of the network namespaces of instances.
//!
//! It is a mount of its own. In `/run/netns`, where `ip netns` keeps its own, a
//! namespace could not be removed any more once somebody had used that program
//! for the first time: it binds the folder onto itself, and what was mounted
//! below is mounted twice from then on.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

use super::is_mounted;
use crate::{Result, error::During};

/// Folder of the network namespaces of this machine's instances.
pub const FOLDER: &str = "/run/selvage/netns";
/// Folder that earlier releases kept them in.
const FORMER: &str = "/run/netns";

/// Path of a namespace. One that an earlier release made stays where it is for
/// as long as its instance runs.
pub(in crate::platform) fn path(name: &str) -> PathBuf {
    let former = Path::new(FORMER).join(name);
    if is_mounted(&former) { former } else { Path::new(FOLDER).join(name) }
}

/// Makes the file that a new namespace is mounted on.
pub(in crate::platform) fn reserve(path: &Path) -> Result<()> {
    provide(Path::new(FOLDER)).during("making the folder of namespaces")?;
    File::create(path).during("making a namespace")?;
    Ok(())
}

/// Names of the namespaces that begin so.
pub(in crate::platform) fn list(prefix: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in [FOLDER, FORMER] {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).during("listing namespaces"),
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(prefix) && is_mounted(&entry.path()) {
                found.push(name);
            }
        }
    }
    Ok(found)
}

/// Removes a namespace, if it is there.
pub(in crate::platform) fn remove(path: &Path) -> Result<()> {
    while is_mounted(path) {
        unmount(path, UnmountFlags::DETACH)
            .map_err(io::Error::from)
            .during("removing a namespace")?;
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // It is mounted where this process cannot see it. The file is empty,
        // and the next namespace of this name may have it.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            tracing::debug!(path = %path.display(), "something else still holds the namespace");
            Ok(())
        }
        Err(error) => Err(error).during("removing a namespace"),
    }
}

/// Removes the folder when nothing is in it.
pub(crate) fn remove_folder() {
    let folder = Path::new(FOLDER);
    let lock = folder.with_extension("lock");
    let Ok(file) = File::open(&lock) else { return };
    let empty = || fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    // Another agent may be about to make one in it.
    if file.lock().is_ok() && empty() {
        let _ = unmount(folder, UnmountFlags::empty());
        let _ = fs::remove_dir(folder);
    }
}

/// Makes a folder that is a mount of its own: what happens to it here happens
/// to its copies, and what happens around it does not reach it.
fn provide(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Two agents that begin at the same time must not mount it twice.
    let lock = File::create(folder.with_extension("lock"))?;
    lock.lock()?;
    if is_mount_point(folder)? {
        return Ok(());
    }
    mount_bind(folder, folder)?;
    mount_change(folder, MountPropagationFlags::PRIVATE)?;
    mount_change(folder, MountPropagationFlags::SHARED)?;
    Ok(())
}

fn is_mount_point(folder: &Path) -> io::Result<bool> {
    let folder = fs::canonicalize(folder)?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(&folder)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rustix::mount::mount_bind_recursive;

    use super::*;

    /// Stands for a namespace: something that is mounted on a file.
    fn mounted(path: &Path) {
        File::create(path).unwrap();
        mount_bind("/proc/self/ns/net", path).unwrap();
        assert!(is_mounted(path));
    }

    #[test]
    fn what_others_mount_does_not_keep_a_namespace() {
        if !nix::unistd::geteuid().is_root() {
            return selvage_testkit::skip("mounts", "only root may mount");
        }
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("netns");
        provide(&folder).unwrap();
        provide(&folder).unwrap();
        let path = folder.join("one");
        mounted(&path);
        // As `ip netns add` does with its own folder when it has none yet.
        let copy = place.path().join("copy");
        fs::create_dir(&copy).unwrap();
        mount_bind_recursive(&folder, &copy).unwrap();
        assert!(is_mounted(&copy.join("one")));

        remove(&path).unwrap();
        assert!(!path.exists());
        remove(&path).unwrap();
        unmount(&copy, UnmountFlags::DETACH).unwrap();
        unmount(&folder, UnmountFlags::DETACH).unwrap();
    }
}
