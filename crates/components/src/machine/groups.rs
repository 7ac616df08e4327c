//! Control groups of a machine's own, on hosts with the hierarchies of version 1:
//! whatever names no group for what it starts would otherwise leave it beside
//! those of the host and of other machines.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::sched::CloneFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use selvage_runtime::cgroup::Mounts;

use crate::{Error, Result};

/// A hierarchy of version 1.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    place: PathBuf,
    /// By which it is mounted, such as `cpu,cpuacct` or `none,name=systemd`.
    options: String,
}

/// Makes the process a member of the group in all hierarchies, and the group the
/// root of what it sees from now on. In a mount namespace of its own.
pub(super) fn enter(group: &str) -> Result<()> {
    let text =
        fs::read_to_string("/proc/self/mountinfo").map_err(Error::file("/proc/self/mountinfo"))?;
    let hierarchies = hierarchies(&text);
    let made = crate::reset::make_groups(group);
    if let Some(all) = Path::new(group).parent() {
        weigh(&all.display().to_string());
    }
    if hierarchies.is_empty() {
        return Ok(());
    }
    made?;
    for hierarchy in &hierarchies {
        let folder = hierarchy.place.join(group.trim_start_matches('/'));
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let path = folder.join("cgroup.procs");
        fs::write(&path, "0").map_err(Error::file(&path))?;
    }
    super::init::leave_behind(CloneFlags::CLONE_NEWCGROUP)?;
    for Hierarchy { place, options } in hierarchies {
        let failed = |error: rustix::io::Errno| Error::file(&place)(error.into());
        unmount(&place, UnmountFlags::DETACH).map_err(failed)?;
        let options = std::ffi::CString::new(options).unwrap_or_default();
        mount("cgroup", &place, "cgroup", MountFlags::empty(), options.as_c_str())
            .map_err(failed)?;
    }
    Ok(())
}

/// Files by which a group says what share of a busy CPU it gets, with the weight of one
/// process and the largest one.
const WEIGHTS: [(&str, u64, u64); 2] = [("cpu.shares", 1024, 262_144), ("cpu.weight", 100, 10_000)];

/// Lets each machine below the group weigh as much as one process on each CPU of the
/// host. Otherwise all machines together weigh as much as one, and a host with much else
/// to do leaves them next to nothing. Where that cannot be set they are slow.
pub(super) fn weigh(group: &str) {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    for folder in Mounts::read().map(|mounts| mounts.groups(group)).unwrap_or_default() {
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        let machines = below.filter(|entry| entry.path().is_dir()).count() as u64;
        for (file, one, most) in WEIGHTS {
            let path = folder.join(file);
            let weight = weight(one, most, machines * cpus);
            if path.exists() && fs::read_to_string(&path).is_ok_and(|old| old.trim() != weight) {
                let _ = fs::write(&path, weight);
            }
        }
    }
}

fn weight(one: u64, most: u64, processes: u64) -> String {
    one.saturating_mul(processes.max(1)).min(most).to_string()
}

/// Hierarchies of version 1 that are mounted whole.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(hierarchy).collect()
}

fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (mount, system) = line.split_once(" - ")?;
    let fields: Vec<&str> = mount.split(' ').collect();
    let (root, place) = (fields.get(3)?, fields.get(4)?);
    let mut words = system.split(' ');
    if *root != "/" || words.next() != Some("cgroup") {
        return None;
    }
    let known = |option: &&str| !matches!(*option, "rw" | "ro" | "xattr");
    let options: Vec<&str> = words.nth(1)?.split(',').filter(known).collect();
    let named = options.iter().all(|option| option.contains('='));
    let options = match named {
        true => format!("none,{}", options.join(",")),
        false => options.join(","),
    };
    Some(Hierarchy { place: PathBuf::from(*place), options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_weigh_as_much_as_their_number_says_within_limits() {
        assert_eq!(weight(1024, 262_144, 0), "1024");
        assert_eq!(weight(1024, 262_144, 6), "6144");
        assert_eq!(weight(100, 10_000, 400), "10000");
    }

    #[test]
    fn hierarchies_are_found_with_their_options() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let found = |place: &str, options: &str| Hierarchy {
            place: place.into(),
            options: options.to_owned(),
        };
        let expected = [
            found("/sys/fs/cgroup/cpu", "cpu,cpuacct"),
            found("/sys/fs/cgroup/systemd", "none,name=systemd"),
        ];
        assert_eq!(hierarchies(text), expected);
    }
}
