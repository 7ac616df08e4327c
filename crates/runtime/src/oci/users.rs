//! Users of a container: a range of the machine's that no account and no other
//! container has. Root in it is nobody outside.
//!
//! Layers are shared by containers with different users, and volumes outlive
//! theirs. Both have the users of images on disk, and are mounted so that each
//! user there is the container's.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree},
};
use sha2::{Digest, Sha256};

use super::{overlay::Stack, unpack};
use crate::{Error, Result, error::During, spec::USERS};

/// First of all ranges. Processes of virtual machines have those below, and
/// systemd, shadow and other runtimes leave those up to 2^31 alone.
const FIRST: u32 = 0x7100_0000;
const RANGES: u32 = (0x8000_0000 - FIRST) / USERS;
/// The program that can. `runc` up to 1.1 starts such a container, and then runs
/// no program in one that joined a network which is not its own.
const PROGRAM: &str = "crun";

/// Picks the range of a new container; `taken` are those of others.
pub(super) fn choose(container: &Path, taken: &BTreeSet<u32>) -> Result<u32> {
    let digest = Sha256::digest(container.as_os_str().as_encoded_bytes());
    let begin = u32::from_be_bytes([0, 0, digest[0], digest[1]]);
    let range = |offset: u32| FIRST + (begin + offset) % RANGES * USERS;
    let free = (0..RANGES).map(range).find(|first| !taken.contains(first));
    free.ok_or_else(|| Error::state("all users for containers are taken"))
}

/// Why containers cannot have users of their own here, if they cannot.
pub(super) fn obstacle(root: &Path, program: &Path) -> Option<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    if name != PROGRAM {
        return Some(format!("that takes {PROGRAM}, and {name} is used: install {PROGRAM}"));
    }
    let directory = root.join(format!("users-{}", crate::unique()));
    let tried = try_out(&directory);
    super::overlay::unmount(&directory);
    let _ = unpack::remove_all(&directory);
    tried.err().map(|error| error.to_string())
}

/// Mounts a layer as a container's would be.
fn try_out(directory: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let layer = directory.join("kept/layer");
    fs::create_dir_all(&layer).during("making a layer")?;
    fs::write(layer.join("file"), "").during("making a layer")?;
    let users = Some(FIRST);
    let stack =
        Stack { layers: vec![layer], directory: directory.to_owned(), limited: false, users };
    stack.mount()?;
    let shown = fs::metadata(directory.join("rootfs/file")).during("looking at a layer")?;
    if shown.uid() == FIRST {
        return Ok(());
    }
    Err(Error::state("the file system shows the users of a layer as they are"))
}

/// Assigns the users on disk, from 0 on, to a container's.
pub(super) struct Mapping(File);

impl Mapping {
    /// Asks the kernel for one, which takes a process that lives as long as
    /// this takes.
    pub(super) fn new(first: u32) -> io::Result<Self> {
        let mut child = Command::new("unshare")
            .args(["--user", "--", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut there = [0];
        let read = child.stdout.take().map_or(Ok(0), |mut output| output.read(&mut there));
        let made = read.and_then(|length| match length {
            0 => Err(io::Error::other("the kernel gives no user namespaces")),
            _ => Self::of_process(child.id(), first),
        });
        drop(child.stdin.take());
        child.wait()?;
        made
    }

    fn of_process(pid: u32, first: u32) -> io::Result<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        for table in ["uid_map", "gid_map"] {
            fs::write(process.join(table), format!("0 {first} {USERS}\n"))?;
        }
        File::open(process.join("ns/user")).map(Self)
    }

    /// Shows a folder or a file at another place, with its users as the
    /// container's.
    pub(super) fn show(&self, source: &Path, target: &Path) -> io::Result<()> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, source, flags)?;
        selvage_memory::map_users(&tree, &self.0)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(&tree, "", CWD, target, flags)?)
    }
}

/// Layers as a container with users of its own sees them, for as long as they
/// are needed to put them on top of each other.
pub(super) struct MappedLayers {
    folder: PathBuf,
    pub(super) layers: Vec<PathBuf>,
}

impl MappedLayers {
    /// All layers are in one folder.
    pub(super) fn new(layers: &[PathBuf], folder: PathBuf, first: u32) -> Result<Self> {
        const DOING: &str = "giving layers the users of a container";
        let mut mapped = Self { folder, layers: Vec::new() };
        let Some(kept) = layers.first().and_then(|layer| layer.parent()) else {
            return Ok(mapped);
        };
        fs::create_dir_all(&mapped.folder).during(DOING)?;
        let mapping = Mapping::new(first).during(DOING)?;
        mapping.show(kept, &mapped.folder).during(DOING)?;
        let names = layers.iter().filter_map(|layer| layer.file_name());
        mapped.layers = names.map(|name| mapped.folder.join(name)).collect();
        Ok(mapped)
    }
}

impl Drop for MappedLayers {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.folder, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_two_containers_have_the_same_users() {
        let mut taken = BTreeSet::new();
        for number in 0..RANGES {
            let first = choose(Path::new(&format!("/c/{}", number % 7)), &taken).unwrap();
            assert!((FIRST..=0x8000_0000 - USERS).contains(&first), "{first:x}");
            assert_eq!(first % USERS, 0);
            assert!(taken.insert(first));
        }
        choose(Path::new("/c/more"), &taken).unwrap_err();
    }
}
