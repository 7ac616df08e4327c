//! Costs of processes: CPU time to the nanosecond, by control groups of our
//! own, and memory.
//!
//! The kernel tells the CPU time of one process only to the hundredth of a
//! second, and what ended with its threads or children not at all.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        signal::{Signal, kill},
        time::TimeValLike,
    },
    unistd::Pid,
};

/// The tree whose groups account CPU time, and the file that tells it.
const TREES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/cpuacct", "cpuacct.usage"), ("/sys/fs/cgroup", "cpu.stat")];

/// Processes whose CPU time is told together, those that ended included.
/// Gone when dropped, with everything that is still in it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    usage: &'static str,
}

impl Group {
    pub fn new(name: &str) -> Result<Self> {
        let tree = TREES.iter().find(|(tree, usage)| Path::new(tree).join(usage).exists());
        let (tree, usage) = tree.context("no control groups that account CPU time")?;
        let path = Path::new(tree).join(format!("selvage-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {} (root?)", path.display()))?;
        Ok(Self { path, usage })
    }

    /// Moves a process here.
    pub fn add(&self, pid: u32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| file.display().to_string())
    }

    /// Moves this process back to where all are.
    pub fn leave(&self) {
        let root = self.path.parent().map(|tree| tree.join("cgroup.procs"));
        if let Some(root) = root {
            let _ = fs::write(root, std::process::id().to_string());
        }
    }

    /// Ends everything that is here, and what that starts meanwhile.
    pub fn end(&self) {
        // What is killed leaves its group only when the kernel is done with it.
        for _ in 0..250 {
            let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            let inside = inside.lines().filter_map(|pid| pid.parse().ok());
            let others: Vec<i32> =
                inside.filter(|&pid: &i32| pid.unsigned_abs() != std::process::id()).collect();
            if others.is_empty() {
                return;
            }
            for pid in others {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a program that is here from its first instruction on.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let mut inside = Command::new("/bin/sh");
        inside.args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.path);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.stdin(std::process::Stdio::null());
        inside.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        inside.spawn().with_context(|| format!("starting {}", command.get_program().display()))
    }

    /// CPU time of everything that was ever here.
    pub fn cpu(&self) -> Result<Duration> {
        let text = fs::read_to_string(self.path.join(self.usage))?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        let nanos = match micros {
            Some(micros) => micros.trim().parse::<u64>()? * 1000,
            None => text.trim().parse()?,
        };
        Ok(Duration::from_nanos(nanos))
    }

    /// CPU time that is used while something is done.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<Duration> {
        let before = self.cpu()?;
        work.await?;
        Ok(self.cpu()?.saturating_sub(before))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            self.end();
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// CPU time of children that have ended and were waited for.
pub fn cpu_of_children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let sum = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(sum.num_microseconds().try_into()?))
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// All that is mapped: what `VmRSS` says.
    pub resident: u64,
    /// Of that, what is its own and in no file.
    pub anonymous: u64,
    /// Pages that several processes have, divided by their number.
    pub proportional: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let figure = line.and_then(|line| line.split_whitespace().next());
            Ok::<u64, anyhow::Error>(
                figure.with_context(|| format!("no {name}"))?.parse::<u64>()? * 1024,
            )
        };
        Ok(Self {
            resident: bytes("Rss:")?,
            anonymous: bytes("Anonymous:")?,
            proportional: bytes("Pss:")?,
        })
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [resident, anonymous, proportional] =
            [self.resident, self.anonymous, self.proportional].map(|bytes| bytes as f64 / 1e6);
        write!(to, "{resident:.1} MB ({anonymous:.1} anonymous, PSS {proportional:.1})")
    }
}

/// Returns the number of processes.
pub fn processes() -> Result<usize> {
    let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
    Ok(names.filter(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit)).count())
}

/// The one in the middle.
pub fn median(mut figures: Vec<Duration>) -> Result<Duration> {
    ensure!(!figures.is_empty(), "nothing was measured");
    figures.sort_unstable();
    Ok(figures[figures.len() / 2])
}
