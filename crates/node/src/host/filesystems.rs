//! Usage of file systems. One that does not answer, such as a network
//! file system whose server is gone, is left out and holds up nobody.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::parse::{MountLine, mounts};

/// Timeout of all of them together.
const STATFS_TIMEOUT: Duration = Duration::from_secs(1);

/// File systems that the kernel itself shows as files, and those that show another
/// a second time.
const NOT_DISKS: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "fusectl",
    "hugetlbfs",
    "iso9660",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "procfs",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tracefs",
];

/// A file system and its room, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem {
    pub mount: MountLine,
    pub size: u64,
    pub free: u64,
    /// Free for everybody, not only for root.
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
}

/// Looks at file systems. Clones are the same.
#[derive(Debug, Clone)]
pub struct Filesystems {
    mounts: Arc<PathBuf>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// True while a task reads file systems. If it hangs, no other task gets
    /// stuck.
    busy: bool,
    last: Vec<Filesystem>,
}

impl Filesystems {
    /// Reads the file systems in that file, normally `/proc/self/mounts`.
    pub fn new(mounts: impl Into<PathBuf>) -> Self {
        Self { mounts: Arc::new(mounts.into()), state: Arc::default() }
    }

    /// Returns the file systems, or their last known state if reading takes too
    /// long.
    pub async fn look(&self) -> Vec<Filesystem> {
        let this = self.clone();
        let looking = {
            let mut state = self.state.lock();
            if state.busy {
                return state.last.clone();
            }
            state.busy = true;
            tokio::task::spawn_blocking(move || {
                let found = this.read();
                let mut state = this.state.lock();
                (state.busy, state.last) = (false, found);
            })
        };
        // Goes on by itself when it takes longer.
        let _ = tokio::time::timeout(STATFS_TIMEOUT, looking).await;
        self.state.lock().last.clone()
    }

    fn read(&self) -> Vec<Filesystem> {
        let text = std::fs::read(self.mounts.as_path()).unwrap_or_default();
        let mut seen = std::collections::HashSet::new();
        mounts(&text)
            .into_iter()
            .filter(|mount| !NOT_DISKS.contains(&mount.kind.as_str()))
            .filter(|mount| seen.insert((mount.device.clone(), mount.mounted_on.clone())))
            .filter_map(room)
            .collect()
    }
}

fn room(mount: MountLine) -> Option<Filesystem> {
    let room = rustix::fs::statvfs(mount.mounted_on.as_str()).ok()?;
    Some(Filesystem {
        mount,
        size: room.f_blocks.saturating_mul(room.f_frsize),
        free: room.f_bfree.saturating_mul(room.f_frsize),
        available: room.f_bavail.saturating_mul(room.f_frsize),
        files: room.f_files,
        files_free: room.f_ffree,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_root_is_there_and_proc_is_not() {
        let found = Filesystems::new("/proc/self/mounts").look().await;
        assert!(found.iter().any(|one| one.size > 0 && one.available <= one.size), "{found:?}");
        assert!(found.iter().all(|one| one.mount.kind != "proc"));
    }

    #[tokio::test]
    async fn one_that_never_answers_leaves_the_last_answer() {
        let filesystems = Filesystems::new("/proc/self/mounts");
        let first = filesystems.look().await;
        filesystems.state.lock().busy = true;
        assert_eq!(filesystems.look().await, first);
    }
}
