//! Reads the machine's files, each opened once.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, pread},
};
use selvage_api::os::MemInfo;

use super::parse::{
    DiskStat, Interface, Load, SystemStat, diskstats, interfaces, loadavg, pressure, system_stat,
};
use crate::proc::meminfo;

/// Measurements of one reading of the machine.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub stat: SystemStat,
    pub load: Load,
    pub memory: MemInfo,
    pub disks: Vec<DiskStat>,
    pub interfaces: Vec<Interface>,
}

/// The open files.
#[derive(Debug)]
pub struct HostReader {
    stat: OwnedFd,
    load: OwnedFd,
    memory: OwnedFd,
    disks: Option<OwnedFd>,
    network: Option<OwnedFd>,
    virtual_memory: Option<OwnedFd>,
    open_files: Option<OwnedFd>,
    sockets: Option<OwnedFd>,
    network_counters: [Option<OwnedFd>; 2],
    softnet: Option<OwnedFd>,
    tracked: [Option<OwnedFd>; 2],
    pressure: [Option<OwnedFd>; 3],
    buffer: Vec<u8>,
}

impl HostReader {
    /// Opens the files under the `/proc` that is mounted there.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |name: &str| {
            rustix::fs::open(root.join(name), flags, Mode::empty()).map_err(io::Error::from)
        };
        Ok(Self {
            stat: open("stat")?,
            load: open("loadavg")?,
            memory: open("meminfo")?,
            disks: open("diskstats").ok(),
            network: open("net/dev").ok(),
            virtual_memory: open("vmstat").ok(),
            open_files: open("sys/fs/file-nr").ok(),
            sockets: open("net/sockstat").ok(),
            network_counters: ["net/snmp", "net/netstat"].map(|name| open(name).ok()),
            softnet: open("net/softnet_stat").ok(),
            tracked: ["count", "max"]
                .map(|name| open(&format!("sys/net/netfilter/nf_conntrack_{name}")).ok()),
            pressure: ["cpu", "memory", "io"].map(|name| open(&format!("pressure/{name}")).ok()),
            buffer: vec![0; 16 << 10],
        })
    }

    pub fn memory(&mut self) -> io::Result<MemInfo> {
        Ok(meminfo(read(&self.memory, &mut self.buffer)?))
    }

    pub fn stat(&mut self) -> io::Result<SystemStat> {
        Ok(system_stat(read(&self.stat, &mut self.buffer)?))
    }

    pub fn disks(&mut self) -> Vec<DiskStat> {
        self.optional(|reader| &reader.disks, diskstats)
    }

    pub fn interfaces(&mut self) -> Vec<Interface> {
        self.optional(|reader| &reader.network, interfaces)
    }

    pub fn snapshot(&mut self) -> io::Result<Snapshot> {
        Ok(Snapshot {
            stat: self.stat()?,
            load: loadavg(read(&self.load, &mut self.buffer)?),
            memory: self.memory()?,
            disks: self.disks(),
            interfaces: self.interfaces(),
        })
    }

    /// `/proc/vmstat`, as it stands.
    pub fn virtual_memory(&mut self) -> &[u8] {
        text(self.virtual_memory.as_ref(), &mut self.buffer)
    }

    /// `/proc/net/sockstat`, as it stands.
    pub fn sockets(&mut self) -> &[u8] {
        text(self.sockets.as_ref(), &mut self.buffer)
    }

    /// `/proc/net/snmp`, as it stands.
    pub fn network_counters(&mut self) -> Vec<u8> {
        text(self.network_counters[0].as_ref(), &mut self.buffer).to_vec()
    }

    /// `/proc/net/netstat`, as it stands.
    pub fn network_counters_more(&mut self) -> Vec<u8> {
        text(self.network_counters[1].as_ref(), &mut self.buffer).to_vec()
    }

    /// `/proc/net/softnet_stat`, as it stands.
    pub fn softnet(&mut self) -> &[u8] {
        text(self.softnet.as_ref(), &mut self.buffer)
    }

    /// Connections that the packet filter tracks, and that it may.
    pub fn tracked_connections(&mut self) -> Option<(u64, u64)> {
        let Self { tracked, buffer, .. } = self;
        let [now, most] = [0, 1].map(|at| {
            let number = text(tracked[at].as_ref(), buffer);
            std::str::from_utf8(number).ok()?.trim().parse().ok()
        });
        Some((now?, most?))
    }

    /// Files that are open, and that may be.
    pub fn open_files(&mut self) -> Option<(u64, u64)> {
        let text = text(self.open_files.as_ref(), &mut self.buffer);
        let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.nth(1)?.parse().ok()?))
    }

    /// Microseconds in which some and in which all tasks waited for cpu,
    /// memory and disks, where the kernel tells.
    pub fn pressure(&mut self) -> [Option<(u64, u64)>; 3] {
        let Self { pressure: files, buffer, .. } = self;
        [0, 1, 2].map(|at| {
            let file = files[at].as_ref()?;
            read(file, buffer).ok().map(pressure)
        })
    }

    fn optional<T: Default>(
        &mut self,
        file: impl Fn(&Self) -> &Option<OwnedFd>,
        parse: impl Fn(&[u8]) -> T,
    ) -> T {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = file(self).as_ref().and_then(|file| read(file, &mut buffer).ok());
        let parsed = read.map(parse).unwrap_or_default();
        self.buffer = buffer;
        parsed
    }
}

fn text<'a>(file: Option<&OwnedFd>, buffer: &'a mut Vec<u8>) -> &'a [u8] {
    file.and_then(|file| read(file, buffer).ok()).unwrap_or_default()
}

/// The whole file. These are made as they are read, so one that does not fit
/// is read again and not on.
pub(crate) fn read<'a>(file: &OwnedFd, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize((buffer.len() * 2).max(4096), 0);
        }
        match pread(file, &mut buffer[length..], length as u64) {
            Ok(0) => return Ok(&buffer[..length]),
            Ok(more) => length += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_machine_reads_and_reads_again() {
        let mut reader = HostReader::open(Path::new("/proc")).unwrap();
        let first = reader.snapshot().unwrap();
        assert!(!first.stat.cpus.is_empty() && first.stat.started > 0 && first.stat.forks > 0);
        assert!(first.memory.memtotal > 0);
        assert!(first.interfaces.iter().any(|interface| interface.name == "lo"));
        let second = reader.snapshot().unwrap();
        assert!(second.stat.total.all() >= first.stat.total.all());
        assert!(reader.open_files().is_some_and(|(open, most)| open > 0 && most >= open));
        assert!(super::super::keyed(reader.virtual_memory()).any(|(name, _)| name == "pgfault"));
    }

    #[test]
    fn a_buffer_that_is_too_small_grows() {
        let file = std::fs::File::open("/proc/vmstat").unwrap();
        let mut buffer = vec![0; 16];
        let read = read(&OwnedFd::from(file), &mut buffer).unwrap();
        assert!(read.len() > 16 && read.ends_with(b"\n"));
    }
}
