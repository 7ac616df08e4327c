//! Groups that hold the groups of several containers, and bound them
//! together.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Mounts, parse};
use crate::Limits;

/// Over which a quota of processor time is counted.
const PERIOD_US: u64 = 100_000;
/// Time killed processes may take until the kernel lets go of them.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Controllers that a group on the unified tree hands to those below it.
const HANDED_DOWN: &str = "+cpu +memory +pids";

/// Makes a group with these limits, or gives one that is there these.
pub fn provide(path: &str, limits: &Limits) -> io::Result<()> {
    let mounts = Mounts::read()?;
    if mounts.is_unified() {
        return provide_unified(&mounts, path, limits);
    }
    for (controller, files) in split(limits) {
        let Some(group) = mounts.group_of(controller, path) else { continue };
        fs::create_dir_all(&group)?;
        for (file, value) in files {
            write(&group.join(file), &value)?;
        }
    }
    Ok(())
}

/// Removes a group that nothing is in, and those above it that are empty then.
/// One that is in use stays.
pub fn remove(path: &str) -> io::Result<()> {
    let mounts = Mounts::read()?;
    for above in Path::new(path).ancestors().filter(|part| part.parent().is_some()) {
        for group in mounts.groups(&above.to_string_lossy()) {
            // Leftovers of containers whose end was cut off.
            if above == Path::new(path) {
                children(&group).iter().for_each(|child| drop(fs::remove_dir(child)));
            }
            match fs::remove_dir(&group) {
                Err(error) if above == Path::new(path) && !tolerated(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Number of times the kernel killed something in a group for want of memory.
/// None where the group is gone, or the kernel does not count.
pub fn oom_kills(path: &str) -> Option<u64> {
    let mounts = Mounts::read().ok()?;
    let file = if mounts.is_unified() {
        mounts.groups(path).first()?.join("memory.events")
    } else {
        mounts.group_of("memory", path)?.join("memory.oom_control")
    };
    Some(parse::field(&fs::read(file).ok()?, b"oom_kill"))
}

/// Ends all processes in a group and in those below it.
pub fn kill(path: &str) -> io::Result<()> {
    if Path::new(path).components().count() < 3 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a group of ours"));
    }
    let groups: Vec<PathBuf> = Mounts::read()?.groups(path).iter().flat_map(|it| all(it)).collect();
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let alive: BTreeSet<i32> = groups.iter().flat_map(|group| processes(group)).collect();
        if alive.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let text = format!("{} processes in {path} do not end", alive.len());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        for pid in alive {
            end(pid, &groups);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A group with all below it.
fn all(group: &Path) -> Vec<PathBuf> {
    let mut found = vec![group.to_owned()];
    found.extend(children(group).iter().flat_map(|child| all(child)));
    found
}

fn processes(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
}

/// Kills a process that is in one of these groups.
fn end(pid: i32, groups: &[PathBuf]) {
    let handle = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let Some(Ok(handle)) = handle else { return };
    // Looked at again with the handle in hand: it is the same.
    if groups.iter().any(|group| processes(group).contains(&pid)) {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

/// The groups directly in this one.
pub fn inside(path: &str) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for group in Mounts::read()?.groups(path) {
        let found = children(&group).into_iter();
        names.extend(found.filter_map(|child| Some(child.file_name()?.to_str()?.to_owned())));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn tolerated(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn children(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

type Files = Vec<(&'static str, String)>;

fn split(limits: &Limits) -> [(&'static str, Files); 3] {
    let text =
        |limit: Option<u64>, none: &str| limit.map_or(none.into(), |limit| limit.to_string());
    let quota = limits.cpu_millis.map(|millis| millis * PERIOD_US / 1000);
    [
        (
            "cpu",
            vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", text(quota, "-1")),
            ],
        ),
        ("memory", vec![("memory.limit_in_bytes", text(limits.memory_bytes, "-1"))]),
        ("pids", vec![("pids.max", text(limits.pids, "max"))]),
    ]
}

fn unified(limits: &Limits) -> Files {
    let text = |limit: Option<u64>| limit.map_or("max".into(), |limit| limit.to_string());
    let quota = text(limits.cpu_millis.map(|millis| millis * PERIOD_US / 1000));
    vec![
        ("cpu.max", format!("{quota} {PERIOD_US}")),
        ("memory.max", text(limits.memory_bytes)),
        ("pids.max", text(limits.pids)),
    ]
}

fn provide_unified(mounts: &Mounts, path: &str, limits: &Limits) -> io::Result<()> {
    let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
    for part in above.into_iter().rev() {
        for group in mounts.groups(&part.to_string_lossy()) {
            fs::create_dir_all(&group)?;
            write(&group.join("cgroup.subtree_control"), HANDED_DOWN)?;
        }
    }
    for group in mounts.groups(path) {
        fs::create_dir_all(&group)?;
        for (file, value) in unified(limits) {
            write(&group.join(file), &value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    const LIMITS: Limits = Limits {
        cpu_millis: Some(1500),
        memory_bytes: Some(64 << 20),
        pids: None,
        disk_bytes: None,
    };

    #[test]
    fn limits_are_written_as_each_layout_has_them() {
        let values: Vec<String> = unified(&LIMITS).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["150000 100000", "67108864", "max"]);
        let [(_, cpu), (_, memory), (_, pids)] = split(&LIMITS);
        assert_eq!(cpu[1], ("cpu.cfs_quota_us", "150000".into()));
        assert_eq!(memory[0], ("memory.limit_in_bytes", "67108864".into()));
        assert_eq!(pids[0], ("pids.max", "max".into()));
        let [(_, cpu), ..] = split(&Limits::default());
        assert_eq!(cpu[1].1, "-1");
    }

    #[test]
    fn what_is_in_a_group_is_ended() {
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("control groups", "this needs root");
        }
        let path = format!("/selvage-kill-{}/inner", std::process::id());
        provide(&path, &Limits::default()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        for group in Mounts::read().unwrap().groups(&path) {
            if group.is_dir() {
                fs::create_dir(group.join("below")).unwrap();
                fs::write(group.join("below/cgroup.procs"), child.id().to_string()).unwrap();
            }
        }
        // A child that nobody waits for stays in its group.
        let waiting = std::thread::spawn(move || child.wait().unwrap());
        kill(&path).unwrap();
        assert!(!waiting.join().unwrap().success());
        kill(&path).unwrap();
        kill("/").unwrap_err();
        kill("/selvage-kill").unwrap_err();
        remove(&path).unwrap();
    }

    #[test]
    fn a_group_is_made_changed_and_removed() {
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("control groups", "this needs root");
        }
        let path = format!("/selvage-test-{}/inner", std::process::id());
        provide(&path, &LIMITS).unwrap();
        let read = |limits: &Limits| {
            let mounts = Mounts::read().unwrap();
            let (file, group) = if mounts.is_unified() {
                ("memory.max", mounts.groups(&path).remove(0))
            } else {
                ("memory.limit_in_bytes", mounts.group_of("memory", &path).unwrap())
            };
            provide(&path, limits).unwrap();
            fs::read_to_string(group.join(file)).unwrap().trim().to_owned()
        };
        assert_eq!(read(&LIMITS), "67108864");
        let more = Limits { memory_bytes: Some(128 << 20), ..LIMITS };
        assert_eq!(read(&more), "134217728");
        let top = path.rsplit_once('/').unwrap().0;
        assert_eq!(inside(top).unwrap(), ["inner"]);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(inside(top).unwrap().is_empty());
        let mounts = Mounts::read().unwrap();
        assert!(mounts.groups(top).iter().all(|group| !group.exists()));
    }
}
