//! All processes, again and again, with as few system calls as correct
//! answers allow: one for a process that was there before.
//!
//! Most processes do nothing most of the time. One of which no thread ran since
//! it was last looked at is as it was. Whether one ran is told by the clock of
//! the process's CPU time, to the nanosecond and for a tenth of what its file
//! costs. The kernel moves that clock when a thread stops to run and at every
//! tick: what woke up within this very tick is told as it was before.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{self, Mode, OFlags, RawDir, SeekFrom},
    io::{Errno, pread},
    process::{Resource, getrlimit},
};
use selvage_api::os::ProcessInfo;

use super::{Stat, redact, stat};

/// Ticks of the kernel's clock in a second, for programs.
const TICKS: f64 = 100.0;

/// A line of `/proc/PID/stat` is at most some 400 bytes.
const STAT_SIZE: usize = 1024;

/// A program may write over its own arguments without a sign: they are read
/// again after so long, and not those of all at once.
const REREAD: Duration = Duration::from_secs(12);
const REREAD_SPREAD: u64 = 8;

/// How much is kept and told.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Files that stay open between scans. Processes beyond that number cost
    /// an `open` each time.
    pub open_files: usize,
    /// Bytes of arguments that are told of one process.
    pub arguments: usize,
    /// Bytes of arguments that are told of all processes together; those that
    /// come after it get `arguments_late` each.
    pub arguments_total: usize,
    pub arguments_late: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let quarter = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        Self {
            open_files: quarter.min(4096),
            arguments: 32 << 10,
            arguments_total: 2 << 20,
            arguments_late: 128,
        }
    }
}

/// What is remembered of a process between scans.
#[derive(Debug)]
struct Known {
    /// Its `stat`, open. It belongs to this one process: when the number is
    /// in use again, reading says that the process is gone.
    file: Option<OwnedFd>,
    started: u64,
    layout: [u64; 4],
    program: Program,
    program_due: Instant,
    seen: u64,
    rest: Option<Rest>,
}

impl Known {
    /// What is told of it, with the program that it runs.
    fn tell(&self, told: ProcessInfo, dead: bool, secrets: bool) -> ProcessInfo {
        if dead {
            return told;
        }
        let Program { executable, arguments, redacted } = &self.program;
        let arguments = redacted.as_ref().filter(|_| !secrets).unwrap_or(arguments);
        ProcessInfo { executable: executable.clone(), args: arguments.as_ref().to_owned(), ..told }
    }
}

/// A process as it was when it had last run.
#[derive(Debug)]
struct Rest {
    /// For how long it had run, in nanoseconds.
    ran: u64,
    /// Without the program.
    told: ProcessInfo,
    dead: bool,
}

#[derive(Debug, Clone, Default)]
struct Program {
    executable: String,
    arguments: Arc<str>,
    /// Absent when nothing in the arguments is secret.
    redacted: Option<Arc<str>>,
}

/// Reads processes. One scanner serves all who ask.
#[derive(Debug)]
pub struct Scanner {
    root: OwnedFd,
    limits: Limits,
    page: u64,
    /// Whether numbers of processes there are those of our own calls.
    own_numbers: bool,
    known: HashMap<i32, Known>,
    open: usize,
    scans: u64,
    /// When the scan began.
    now: Instant,
    pids: Vec<i32>,
    listing: Vec<u8>,
}

impl Scanner {
    /// A scanner of the `/proc` that is mounted there.
    pub fn open(root: &Path, limits: Limits) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: fs::open(root, flags, Mode::empty())?,
            limits,
            page: rustix::param::page_size() as u64,
            own_numbers: has_own_numbers(root),
            known: HashMap::new(),
            open: 0,
            scans: 0,
            now: Instant::now(),
            pids: Vec::new(),
            listing: Vec::with_capacity(32 << 10),
        })
    }

    /// All processes by ascending pid. One that ends meanwhile is left out.
    /// `secrets` says whether arguments are told as they are.
    pub fn scan(&mut self, secrets: bool) -> io::Result<Vec<ProcessInfo>> {
        self.scans += 1;
        self.now = Instant::now();
        self.list()?;
        let pids = std::mem::take(&mut self.pids);
        let mut found = Vec::with_capacity(pids.len());
        let mut budget = self.limits.arguments_total;
        for &pid in &pids {
            if let Some(mut process) = self.process(pid, &pids, secrets) {
                if budget < process.args.len() {
                    shorten(&mut process.args, self.limits.arguments_late);
                }
                budget = budget.saturating_sub(process.args.len());
                found.push(process);
            }
        }
        self.pids = pids;
        let scan = self.scans;
        self.known.retain(|_, known| known.seen == scan);
        self.open = self.known.values().filter(|known| known.file.is_some()).count();
        Ok(found)
    }

    fn list(&mut self) -> io::Result<()> {
        self.pids.clear();
        fs::seek(&self.root, SeekFrom::Start(0))?;
        let spare: &mut [MaybeUninit<u8>] = self.listing.spare_capacity_mut();
        let mut entries = RawDir::new(&self.root, spare);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && let Ok(pid) = name.parse()
            {
                self.pids.push(pid);
            }
        }
        Ok(())
    }

    fn process(&mut self, pid: i32, pids: &[i32], secrets: bool) -> Option<ProcessInfo> {
        // Before the rest is read: what runs in between has run again.
        let ran = if self.own_numbers { selvage_memory::cpu_time(pid) } else { None };
        if let Some(ran) = ran
            && let Some(told) = self.resting(pid, ran, pids, secrets)
        {
            return Some(told);
        }
        let mut buffer = [0; STAT_SIZE];
        let (length, fresh) = self.read_stat(pid, &mut buffer)?;
        let read = stat(&buffer[..length])?;
        let told = ProcessInfo {
            pid,
            ppid: read.ppid,
            state: char::from(read.state).into(),
            threads: read.threads,
            cpu_time: (read.user + read.system) as f64 / TICKS,
            virtual_memory: read.virtual_memory,
            resident_memory: read.resident_pages.saturating_mul(self.page),
            command: String::from_utf8_lossy(read.comm).trim().to_owned(),
            executable: String::new(),
            args: String::new(),
        };
        self.program(pid, &read, fresh);
        let (rests, dead) = (read.state != b'R', read.is_dead());
        let known = self.known.get_mut(&pid)?;
        let ran = ran.filter(|_| rests);
        known.rest = ran.map(|ran| Rest { ran, told: told.clone(), dead });
        Some(known.tell(told, dead, secrets))
    }

    /// What was told of a process that has not run since. Its parent may have
    /// ended all the same; and memory that others took from it is seen when
    /// its program is read again.
    fn resting(&mut self, pid: i32, ran: u64, pids: &[i32], secrets: bool) -> Option<ProcessInfo> {
        let (scan, now) = (self.scans, self.now);
        let known = self.known.get_mut(&pid)?;
        let rest = known.rest.as_ref().filter(|rest| rest.ran == ran && now < known.program_due)?;
        let parent = rest.told.ppid;
        if parent != 0 && pids.binary_search(&parent).is_err() {
            return None;
        }
        known.seen = scan;
        let known = &*known;
        let rest = known.rest.as_ref()?;
        Some(known.tell(rest.told.clone(), rest.dead, secrets))
    }

    /// Reads the line by the open file, or opens it. Tells the file where it
    /// was opened just now.
    fn read_stat(&self, pid: i32, buffer: &mut [u8]) -> Option<(usize, Option<OwnedFd>)> {
        if let Some(Known { file: Some(file), .. }) = self.known.get(&pid) {
            // Gone: the number may be another process's already.
            if let Ok(length) = pread(file, &mut *buffer, 0) {
                return (length > 0).then_some((length, None));
            }
        }
        let file = self.open_file(pid, "stat").ok()?;
        let length = pread(&file, buffer, 0).ok().filter(|&length| length > 0)?;
        Some((length, Some(file)))
    }

    fn open_file(&self, pid: i32, name: &str) -> Result<OwnedFd, Errno> {
        let path = format!("{pid}/{name}");
        fs::openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Remembers the process, with the program that it runs.
    fn program(&mut self, pid: i32, read: &Stat<'_>, fresh: Option<OwnedFd>) {
        let same = self.known.get(&pid).is_some_and(|known| {
            known.started == read.started
                && known.layout == read.layout
                && self.now < known.program_due
        });
        let program = if same {
            None
        } else if read.is_dead() || read.is_kernel_thread() {
            Some(Program::default())
        } else {
            Some(self.read_program(pid))
        };
        let replaces = self.known.get(&pid).is_some_and(|known| known.file.is_some());
        let room = replaces || self.open < self.limits.open_files;
        let file = fresh.filter(|_| room);
        if file.is_some() && !replaces {
            self.open += 1;
        }
        let known = self.known.entry(pid).or_insert_with(|| Known {
            file: None,
            started: read.started,
            layout: read.layout,
            program: Program::default(),
            program_due: self.now,
            seen: 0,
            rest: None,
        });
        if known.started != read.started {
            known.program = Program::default();
        }
        if let Some(program) = program {
            known.program = program;
            let spread = u64::from(pid.unsigned_abs()) % REREAD_SPREAD;
            known.program_due = self.now + REREAD + Duration::from_secs(spread);
        }
        if file.is_some() {
            known.file = file;
        }
        (known.started, known.layout, known.seen) = (read.started, read.layout, self.scans);
    }

    fn read_program(&self, pid: i32) -> Program {
        let executable = fs::readlinkat(&self.root, format!("{pid}/exe"), Vec::new())
            .map(|link| link.to_string_lossy().into_owned())
            .unwrap_or_default();
        let line = self.read_arguments(pid).unwrap_or_default();
        let end = line.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let line = String::from_utf8_lossy(&line[..end]);
        let arguments: Arc<str> = line.replace('\0', " ").into();
        let redacted = redact(line.split('\0')).join(" ");
        let redacted = (redacted != *arguments).then(|| redacted.into());
        Program { executable, arguments, redacted }
    }

    fn read_arguments(&self, pid: i32) -> Result<Vec<u8>, Errno> {
        let file = self.open_file(pid, "cmdline")?;
        let mut line = vec![0; 4096];
        let mut length = 0;
        loop {
            let read = pread(&file, &mut line[length..], length as u64)?;
            length += read;
            if read == 0 || length >= self.limits.arguments {
                break;
            }
            if length == line.len() {
                line.resize((line.len() * 2).min(self.limits.arguments), 0);
            }
        }
        line.truncate(length);
        Ok(line)
    }
}

/// Whether processes have the same numbers there as for this one: not where a
/// container looks at the `/proc` of its machine.
fn has_own_numbers(root: &Path) -> bool {
    let status = std::fs::read_to_string(root.join("self/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

fn shorten(text: &mut String, most: usize) {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests;
