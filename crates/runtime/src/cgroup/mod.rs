//! Usage of a control group, read without asking anybody.
//!
//! A [`Reader`] keeps its files open: reading again is one `pread` a file.
//! Both layouts are known, the old one with a tree per controller and the
//! unified one, and both give the same numbers: the working set is what is
//! used less the file pages that nobody touched of late.

pub mod group;
mod parse;
mod paths;

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

pub use parse::{CpuStat, MemoryStat, Pressure};
pub use paths::{Layout, Mounts, Paths};

/// Usage of a container now, or since its group was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    pub core: Core,
    /// Periods in which the group wanted more than its quota, of all.
    pub throttled_periods: u64,
    pub periods: u64,
    pub throttled_ns: u64,
    /// Number of times the kernel killed something here for want of memory.
    pub oom_kills: u64,
    pub io: Io,
    /// Processes and threads.
    pub pids: u64,
    pub pids_limit: Option<u64>,
    /// None where the kernel does not account pressure.
    pub pressure: Option<Pressures>,
}

/// Numbers that everybody asks for, in three files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Core {
    /// Cumulative.
    pub cpu_ns: u64,
    /// Everything charged, page cache included.
    pub memory_bytes: u64,
    pub working_set_bytes: u64,
    /// Memory that belongs to no file.
    pub anonymous_bytes: u64,
    /// Page cache.
    pub file_bytes: u64,
    /// None where there is no limit.
    pub memory_limit: Option<u64>,
}

/// Cumulative transfers to and from block devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Io {
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Time lost waiting, cumulative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressures {
    pub cpu: Pressure,
    pub memory: Pressure,
    pub io: Pressure,
}

/// Enough for most files of a group. Readers keep none of it: there may be
/// hundreds, and each is used for a moment.
const ROOM: usize = 4096;

/// The open files of one group.
#[derive(Debug)]
pub struct Reader {
    paths: Paths,
    files: Files,
}

#[derive(Debug)]
enum Files {
    Split(Split),
    Unified(Unified),
}

#[derive(Debug)]
struct Split {
    cpu_usage: OwnedFd,
    memory_usage: OwnedFd,
    memory_stat: OwnedFd,
    cpu_stat: Option<OwnedFd>,
    oom_control: Option<OwnedFd>,
    io_bytes: Option<OwnedFd>,
    io_count: Option<OwnedFd>,
    pids_current: Option<OwnedFd>,
    pids_max: Option<OwnedFd>,
}

#[derive(Debug)]
struct Unified {
    cpu_stat: OwnedFd,
    /// The root group has none.
    memory_current: Option<OwnedFd>,
    memory_stat: Option<OwnedFd>,
    memory_max: Option<OwnedFd>,
    memory_events: Option<OwnedFd>,
    io_stat: Option<OwnedFd>,
    pids_current: Option<OwnedFd>,
    pids_max: Option<OwnedFd>,
    pressure: Option<[OwnedFd; 3]>,
}

impl Reader {
    /// Opens the group that a process is in.
    pub fn of_pid(pid: u32) -> io::Result<Self> {
        Self::open(Paths::of_pid(&Mounts::read()?, pid)?)
    }

    /// Opens a group.
    pub fn open(paths: Paths) -> io::Result<Self> {
        let files = match &paths.layout {
            Layout::Split { cpu, cpuacct, memory, blkio, pids } => Files::Split(Split {
                cpu_usage: open(cpuacct, "cpuacct.usage")?,
                memory_usage: open(memory, "memory.usage_in_bytes")?,
                memory_stat: open(memory, "memory.stat")?,
                cpu_stat: maybe(cpu.as_deref(), "cpu.stat"),
                oom_control: maybe(Some(memory), "memory.oom_control"),
                io_bytes: maybe(blkio.as_deref(), "blkio.throttle.io_service_bytes_recursive"),
                io_count: maybe(blkio.as_deref(), "blkio.throttle.io_serviced_recursive"),
                pids_current: maybe(pids.as_deref(), "pids.current"),
                pids_max: maybe(pids.as_deref(), "pids.max"),
            }),
            Layout::Unified { group } => Files::Unified(Unified {
                cpu_stat: open(group, "cpu.stat")?,
                memory_current: maybe(Some(group), "memory.current"),
                memory_stat: maybe(Some(group), "memory.stat"),
                memory_max: maybe(Some(group), "memory.max"),
                memory_events: maybe(Some(group), "memory.events"),
                io_stat: maybe(Some(group), "io.stat"),
                pids_current: maybe(Some(group), "pids.current"),
                pids_max: maybe(Some(group), "pids.max"),
                pressure: pressure_files(group),
            }),
        };
        Ok(Self { paths, files })
    }

    /// Paths that it reads.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Number of files it keeps open.
    pub fn open_files(&self) -> usize {
        let count = |files: &[&Option<OwnedFd>]| files.iter().filter(|fd| fd.is_some()).count();
        match &self.files {
            Files::Split(s) => {
                3 + count(&[
                    &s.cpu_stat,
                    &s.oom_control,
                    &s.io_bytes,
                    &s.io_count,
                    &s.pids_current,
                    &s.pids_max,
                ])
            }
            Files::Unified(u) => {
                let pressure = if u.pressure.is_some() { 3 } else { 0 };
                1 + pressure
                    + count(&[
                        &u.memory_current,
                        &u.memory_stat,
                        &u.memory_max,
                        &u.memory_events,
                        &u.io_stat,
                        &u.pids_current,
                        &u.pids_max,
                    ])
            }
        }
    }

    /// CPU and memory. Fails once the group is gone.
    pub fn core(&mut self) -> io::Result<Core> {
        let buffer = &mut vec![0; ROOM];
        match &self.files {
            Files::Split(files) => {
                let cpu_ns = parse::number(read(&files.cpu_usage, buffer)?)?;
                let usage = parse::number(read(&files.memory_usage, buffer)?)?;
                let stat = parse::memory_split(read(&files.memory_stat, buffer)?);
                Ok(Core::from_stat(cpu_ns, usage, &stat))
            }
            Files::Unified(files) => {
                let cpu = parse::cpu_unified(read(&files.cpu_stat, buffer)?);
                let usage = match &files.memory_current {
                    Some(file) => parse::number(read(file, buffer)?)?,
                    None => 0,
                };
                let mut stat = match &files.memory_stat {
                    Some(file) => parse::memory_unified(read(file, buffer)?),
                    None => MemoryStat::default(),
                };
                stat.limit = limit(&files.memory_max, buffer)?;
                Ok(Core::from_stat(cpu.usage_ns, usage, &stat))
            }
        }
    }

    /// Everything. Fails once the group is gone.
    pub fn sample(&mut self) -> io::Result<Sample> {
        let core = self.core()?;
        let buffer = &mut vec![0; ROOM];
        match &self.files {
            Files::Split(files) => files.sample(core, buffer),
            Files::Unified(files) => files.sample(core, buffer),
        }
    }
}

impl Split {
    fn sample(&self, core: Core, buffer: &mut Vec<u8>) -> io::Result<Sample> {
        let mut sample = Sample { core, ..Sample::default() };
        if let Some(file) = &self.cpu_stat {
            sample.throttling(&parse::cpu_split(read(file, buffer)?));
        }
        if let Some(file) = &self.oom_control {
            sample.oom_kills = parse::field(read(file, buffer)?, b"oom_kill");
        }
        if let Some(file) = &self.io_bytes {
            (sample.io.read_bytes, sample.io.write_bytes) = parse::io_split(read(file, buffer)?);
        }
        if let Some(file) = &self.io_count {
            (sample.io.reads, sample.io.writes) = parse::io_split(read(file, buffer)?);
        }
        if let Some(file) = &self.pids_current {
            sample.pids = parse::number(read(file, buffer)?)?;
        }
        sample.pids_limit = limit(&self.pids_max, buffer)?;
        Ok(sample)
    }
}

impl Unified {
    fn sample(&self, core: Core, buffer: &mut Vec<u8>) -> io::Result<Sample> {
        let mut sample = Sample { core, ..Sample::default() };
        sample.throttling(&parse::cpu_unified(read(&self.cpu_stat, buffer)?));
        if let Some(file) = &self.memory_events {
            sample.oom_kills = parse::field(read(file, buffer)?, b"oom_kill");
        }
        if let Some(file) = &self.io_stat {
            sample.io = parse::io_unified(read(file, buffer)?);
        }
        if let Some(file) = &self.pids_current {
            sample.pids = parse::number(read(file, buffer)?)?;
        }
        sample.pids_limit = limit(&self.pids_max, buffer)?;
        if let Some([cpu, memory, io]) = &self.pressure {
            // The files are there even where accounting was not switched on.
            sample.pressure = pressures(cpu, memory, io, buffer).ok();
        }
        Ok(sample)
    }
}

impl Sample {
    fn throttling(&mut self, stat: &CpuStat) {
        self.periods = stat.periods;
        self.throttled_periods = stat.throttled_periods;
        self.throttled_ns = stat.throttled_ns;
    }
}

impl Core {
    fn from_stat(cpu_ns: u64, memory_bytes: u64, stat: &MemoryStat) -> Self {
        Self {
            cpu_ns,
            memory_bytes,
            working_set_bytes: memory_bytes.saturating_sub(stat.inactive_file),
            anonymous_bytes: stat.anonymous,
            file_bytes: stat.file,
            memory_limit: stat.limit,
        }
    }
}

fn pressures(
    cpu: &OwnedFd,
    memory: &OwnedFd,
    io: &OwnedFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Pressures> {
    Ok(Pressures {
        cpu: parse::pressure(read(cpu, buffer)?),
        memory: parse::pressure(read(memory, buffer)?),
        io: parse::pressure(read(io, buffer)?),
    })
}

fn pressure_files(group: &Path) -> Option<[OwnedFd; 3]> {
    let open = |name| maybe(Some(group), name);
    Some([open("cpu.pressure")?, open("memory.pressure")?, open("io.pressure")?])
}

fn limit(file: &Option<OwnedFd>, buffer: &mut Vec<u8>) -> io::Result<Option<u64>> {
    match file {
        Some(file) => Ok(parse::limit(read(file, buffer)?)),
        None => Ok(None),
    }
}

fn open(group: &Path, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(group.join(name), flags, Mode::empty()).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", group.join(name).display()))
    })
}

fn maybe(group: Option<&Path>, name: &str) -> Option<OwnedFd> {
    open(group?, name).ok()
}

/// The whole file from its start. Files of a group are made at the read, so a
/// read that fills the buffer is repeated with a larger one, never continued.
fn read<'a>(file: &OwnedFd, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    loop {
        match rustix::io::pread(file, &mut buffer[..], 0) {
            Ok(length) if length < buffer.len() => return Ok(&buffer[..length]),
            Ok(_) => buffer.resize(buffer.len() * 2, 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
