//! Paths of the control group of a process.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

/// The group of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    pub layout: Layout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// A tree a controller, as it was before the unified layout.
    Split {
        cpu: Option<PathBuf>,
        cpuacct: PathBuf,
        memory: PathBuf,
        blkio: Option<PathBuf>,
        pids: Option<PathBuf>,
    },
    /// One tree for all.
    Unified { group: PathBuf },
}

/// Mount points of the trees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    unified: Option<Mounted>,
    /// Controllers of one tree, and the tree.
    split: Vec<(Vec<String>, Mounted)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mounted {
    /// The group that the mount shows as its top.
    root: PathBuf,
    at: PathBuf,
}

impl Mounted {
    fn group(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut group = self.at.clone();
        // A group outside our namespace is shown with `..`; it is not ours to see.
        group.extend(below.components().filter(|part| matches!(part, Component::Normal(_))));
        group
    }
}

impl Mounts {
    /// Those of this process.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// From the text of `/proc/PID/mountinfo`.
    pub fn parse(text: &str) -> Self {
        let mut mounts = Self::default();
        for line in text.lines() {
            let Some((front, back)) = line.split_once(" - ") else { continue };
            let front: Vec<&str> = front.split(' ').collect();
            let back: Vec<&str> = back.split(' ').collect();
            let (Some(root), Some(at), Some(kind)) = (front.get(3), front.get(4), back.first())
            else {
                continue;
            };
            let mounted = Mounted { root: unescape(root), at: unescape(at) };
            match *kind {
                "cgroup2" => mounts.unified = mounts.unified.or(Some(mounted)),
                "cgroup" => {
                    let options = back.get(2).copied().unwrap_or_default();
                    let controllers = options.split(',').map(str::to_owned).collect();
                    mounts.split.push((controllers, mounted));
                }
                _ => {}
            }
        }
        mounts
    }

    /// The unified tree, if it is where controllers are.
    pub fn is_unified(&self) -> bool {
        self.unified.is_some() && self.tree("memory").is_none()
    }

    /// Paths of a group in every tree.
    pub fn groups(&self, path: &str) -> Vec<PathBuf> {
        let trees = self.split.iter().map(|(_, mounted)| mounted).chain(&self.unified);
        trees.map(|mounted| mounted.group(path)).collect()
    }

    /// Path of a group in the tree of a controller, on the old layout.
    pub fn group_of(&self, controller: &str, path: &str) -> Option<PathBuf> {
        self.tree(controller).map(|mounted| mounted.group(path))
    }

    fn tree(&self, controller: &str) -> Option<&Mounted> {
        let has = |controllers: &[String]| controllers.iter().any(|name| name == controller);
        self.split.iter().find(|(controllers, _)| has(controllers)).map(|(_, mounted)| mounted)
    }
}

impl Paths {
    /// The group of a process.
    pub fn of_pid(mounts: &Mounts, pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        Self::parse(mounts, &text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "neither cpuacct and memory nor the unified control group is mounted",
            )
        })
    }

    /// From the text of `/proc/PID/cgroup`.
    pub fn parse(mounts: &Mounts, text: &str) -> Option<Self> {
        let lines = || {
            text.lines().filter_map(|line| {
                let mut parts = line.splitn(3, ':');
                Some((parts.next()?, parts.next()?, parts.next()?))
            })
        };
        let split = |controller: &str| {
            let (_, _, path) =
                lines().find(|(_, names, _)| names.split(',').any(|name| name == controller))?;
            Some(mounts.tree(controller)?.group(path))
        };
        if let (Some(cpuacct), Some(memory)) = (split("cpuacct"), split("memory")) {
            let (cpu, blkio, pids) = (split("cpu"), split("blkio"), split("pids"));
            return Some(Self { layout: Layout::Split { cpu, cpuacct, memory, blkio, pids } });
        }
        let (_, _, path) = lines().find(|(number, names, _)| *number == "0" && names.is_empty())?;
        let group = mounts.unified.as_ref()?.group(path);
        Some(Self { layout: Layout::Unified { group } })
    }
}

/// `\040` and the like, as the kernel writes blanks in paths.
fn unescape(text: &str) -> PathBuf {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code {
            Some(byte) => {
                plain.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_tree_a_controller_wins_over_an_empty_unified_one() {
        let mounts = Mounts::parse(HYBRID);
        let text = "3:memory:/system/c1\n2:cpu,cpuacct:/system/c1\n1:name=systemd:/x\n0::/\n";
        let Layout::Split { cpu, cpuacct, memory, blkio, pids } =
            Paths::parse(&mounts, text).unwrap().layout
        else {
            panic!("unified");
        };
        assert_eq!(cpuacct, Path::new("/sys/fs/cgroup/cpu,cpuacct/system/c1"));
        assert_eq!(cpu.as_ref(), Some(&cpuacct));
        assert_eq!(memory, Path::new("/sys/fs/cgroup/memory/system/c1"));
        assert_eq!((blkio, pids), (None, None));
        assert!(!mounts.is_unified());
    }

    #[test]
    fn unified() {
        let mounts =
            Mounts::parse("29 24 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate");
        let group = PathBuf::from("/sys/fs/cgroup/kube pods/with:colon");
        let found = Paths::parse(&mounts, "0::/kube pods/with:colon\n").unwrap();
        assert_eq!(found.layout, Layout::Unified { group });
        assert!(mounts.is_unified());
    }

    #[test]
    fn a_mount_that_shows_only_a_part() {
        let mounts = Mounts::parse("1 2 0:25 /outer /cg\\040x rw - cgroup2 cgroup2 rw");
        let found = Paths::parse(&mounts, "0::/outer/inner\n").unwrap();
        assert_eq!(found.layout, Layout::Unified { group: "/cg x/inner".into() });
        let escaping = Paths::parse(&mounts, "0::/../../etc\n").unwrap();
        assert_eq!(escaping.layout, Layout::Unified { group: "/cg x/etc".into() });
    }

    #[test]
    fn nothing_mounted_is_no_group() {
        assert_eq!(Paths::parse(&Mounts::default(), "0::/x\n3:memory:/x\n"), None);
        assert_eq!(Paths::parse(&Mounts::parse(HYBRID), ""), None);
    }
}
