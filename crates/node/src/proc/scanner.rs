//! All processes, again and again, with as few system calls as correct
//! answers allow: one for a process that was there before.
//!
//! Most processes do nothing most of the time. One of which no thread ran since
//! it was last looked at is as it was. Whether one ran is told by the clock of
//! the process's CPU time, to the nanosecond and for a tenth of what its file
//! costs. The kernel moves that clock when a thread stops to run and at every
//! tick: what woke up within this very tick is told as it was before.
//!
//! The entry of one that rests is copied from the last answer as it went
//! over the wire. Nothing else is touched of it: between two questions others
//! use the processor, and what has to be fetched from memory costs most.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;
use rustix::{
    fs::{self, Mode, OFlags, RawDir, SeekFrom},
    io::{Errno, pread},
    process::{Resource, getrlimit},
};
use selvage_api::os::{Process, ProcessInfo};

use super::{
    Stat, redact,
    snapshot::{Reader, Row, Snapshot, Writer},
    stat,
};

/// Ticks of the kernel's clock in a second, for programs.
const TICKS: f64 = 100.0;

/// A line of `/proc/PID/stat` is at most some 400 bytes.
const STAT_SIZE: usize = 1024;

/// Minimum interval of reading the arguments of a process that has run since: a
/// program may overwrite its own without notice.
const ARGUMENTS_INTERVAL: Duration = Duration::from_secs(2);

/// Interval of reading a process again that does not run. A process gets an
/// offset by its pid, so that not all are due at once.
const RESCAN_INTERVAL: Duration = Duration::from_secs(12);
const RESCAN_SPREAD: u64 = 8;

/// Limits of what is cached and returned.
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

/// Facts about a process that are cached between scans.
#[derive(Debug)]
struct CachedProcess {
    /// Its `stat`, open. It belongs to this one process: when the number is
    /// in use again, reading says that the process is gone.
    file: Option<OwnedFd>,
    started: u64,
    layout: [u64; 4],
    program: Program,
    /// Time when the program was read.
    program_read: Instant,
}

impl CachedProcess {
    /// Returns the time at which to read the process again even if it does not
    /// run: soon if it may have changed its arguments since they were read.
    fn due(&self, pid: i32, now: Instant) -> Instant {
        if self.program_read != now {
            return self.program_read + ARGUMENTS_INTERVAL;
        }
        let spread = u64::from(pid.unsigned_abs()) % RESCAN_SPREAD;
        now + RESCAN_INTERVAL + Duration::from_secs(spread)
    }

    /// Returns its entry, with the program that it runs.
    fn describe(&self, info: ProcessInfo, dead: bool, secrets: bool) -> ProcessInfo {
        if dead {
            return info;
        }
        let Program { executable, arguments, redacted } = &self.program;
        let arguments = redacted.as_ref().filter(|_| !secrets).unwrap_or(arguments);
        ProcessInfo { executable: executable.clone(), args: arguments.as_ref().to_owned(), ..info }
    }
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
    /// True if pids there are those of our own system calls.
    own_numbers: bool,
    known: HashMap<i32, CachedProcess>,
    open: usize,
    /// Start of the scan.
    now: Instant,
    /// Pids of this scan, ascending.
    pids: Vec<i32>,
    /// Pids of the scan before.
    pids_before: Vec<i32>,
    listing: Vec<u8>,
    /// Last replies, to those who may see secrets and to others.
    snapshots: [Snapshot; 2],
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
            now: Instant::now(),
            pids: Vec::new(),
            pids_before: Vec::new(),
            listing: Vec::with_capacity(32 << 10),
            snapshots: Default::default(),
        })
    }

    /// All processes by ascending pid. One that ends meanwhile is left out.
    /// `secrets` says whether arguments are told as they are.
    pub fn scan(&mut self, secrets: bool) -> io::Result<Vec<ProcessInfo>> {
        let message = Process::decode(self.message(secrets)?);
        message
            .map(|message| message.processes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The same as a message `os.Process`, ready to be sent.
    pub fn message(&mut self, secrets: bool) -> io::Result<Bytes> {
        self.now = Instant::now();
        if let Err(error) = self.list() {
            // Half a list would say that the others are gone.
            (self.known, self.open) = (HashMap::new(), 0);
            return Err(error);
        }
        self.forget_the_gone();
        let pids = std::mem::take(&mut self.pids);
        let before = std::mem::take(&mut self.snapshots[usize::from(secrets)]);
        let mut writer = Writer::like(&before, pids.len());
        let mut reader = before.reader();
        let mut budget = self.limits.arguments_total;
        for &pid in &pids {
            // Before the rest is read: what runs in between has run again.
            let ran = if self.own_numbers { selvage_memory::cpu_time(pid) } else { None };
            if let Some((row, bytes)) = self.resting(&mut reader, pid, ran, &pids)
                && row.arguments <= budget
            {
                budget -= row.arguments;
                writer.keep(row, bytes);
            } else if let Some((row, process)) = self.process(pid, ran, secrets, budget) {
                budget = budget.saturating_sub(row.arguments);
                writer.push(row, &process);
            }
        }
        self.pids = pids;
        let snapshot = writer.finish();
        let message = snapshot.bytes();
        self.snapshots[usize::from(secrets)] = snapshot;
        Ok(message)
    }

    /// Closes the files of processes that are no more.
    fn forget_the_gone(&mut self) {
        let mut rest = self.pids.as_slice();
        for pid in &self.pids_before {
            while let [first, others @ ..] = rest
                && first < pid
            {
                rest = others;
            }
            if rest.first() != Some(pid)
                && let Some(known) = self.known.remove(pid)
            {
                self.open -= usize::from(known.file.is_some());
            }
        }
    }

    fn list(&mut self) -> io::Result<()> {
        std::mem::swap(&mut self.pids, &mut self.pids_before);
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
        if !self.pids.is_sorted() {
            self.pids.sort_unstable();
        }
        Ok(())
    }

    /// Reads a process. Its arguments are cut where there is no room for them
    /// among those of all.
    fn process(
        &mut self,
        pid: i32,
        ran: Option<u64>,
        secrets: bool,
        room: usize,
    ) -> Option<(Row, ProcessInfo)> {
        let mut buffer = [0; STAT_SIZE];
        let (length, fresh) = self.read_stat(pid, &mut buffer)?;
        let read = stat(&buffer[..length])?;
        let info = ProcessInfo {
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
        let known = self.known.get(&pid)?;
        let mut info = known.describe(info, dead, secrets);
        let cut = room < info.args.len();
        if cut {
            shorten(&mut info.args, self.limits.arguments_late);
        }
        let row = Row::new(&info, ran.filter(|_| rests), known.due(pid, self.now), cut);
        Some((row, info))
    }

    /// Copies the last entry of a process that has not run since. Its parent may have
    /// ended all the same; and memory that others took from it is seen when
    /// its program is read again.
    fn resting<'a>(
        &self,
        snapshot: &mut Reader<'a>,
        pid: i32,
        ran: Option<u64>,
        pids: &[i32],
    ) -> Option<(&'a Row, &'a [u8])> {
        let (row, bytes) = snapshot.find(pid)?;
        let rests = row.ran.is_some() && row.ran == ran && self.now < row.due && !row.cut;
        let has_parent = || row.parent == 0 || pids.binary_search(&row.parent).is_ok();
        (rests && has_parent()).then_some((row, bytes))
    }

    /// Reads the line by the open file, or opens it. Tells the file where it
    /// was opened just now.
    fn read_stat(&self, pid: i32, buffer: &mut [u8]) -> Option<(usize, Option<OwnedFd>)> {
        if let Some(CachedProcess { file: Some(file), .. }) = self.known.get(&pid) {
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
                && self.now < known.program_read + ARGUMENTS_INTERVAL
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
        let known = self.known.entry(pid).or_insert_with(|| CachedProcess {
            file: None,
            started: read.started,
            layout: read.layout,
            program: Program::default(),
            program_read: self.now,
        });
        if known.started != read.started {
            known.program = Program::default();
        }
        if let Some(program) = program {
            (known.program, known.program_read) = (program, self.now);
        }
        if file.is_some() {
            known.file = file;
        }
        (known.started, known.layout) = (read.started, read.layout);
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

/// Returns whether processes have the same pids there as for this one: not where a
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
