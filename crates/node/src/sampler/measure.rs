//! One container that is measured.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Instant};

use rustix::fs::{Mode, OFlags};
use selvage_runtime::{
    Container, Kind,
    cgroup::{Mounts, Paths, Pressures, Reader, Sample},
};

use crate::{
    history::{History, Point},
    host::interfaces,
};

/// Usage of a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// The process that was measured.
    pub pid: u32,
    pub sample: Sample,
    /// Over the last second, in percent of a core.
    pub cpu_percent: f64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Share of time that some task waited for CPU, memory, disks, in percent.
    pub waited: [f64; 3],
}

/// The open files of a container that runs.
#[derive(Debug)]
struct Files {
    group: Reader,
    /// Its network, where that is its own.
    network: Option<OwnedFd>,
    /// Times when CPU time and pressure were last read.
    cpu_at: Option<Instant>,
    pressure_at: Option<(Instant, Pressures)>,
}

/// A container, what it uses, and what it used.
#[derive(Debug)]
pub struct Tracked {
    pub container: Arc<Container>,
    pub history: History,
    /// Labels for Prometheus, made once.
    pub(crate) labels: String,
    /// None once it has ended.
    files: Option<Files>,
    pub(super) latest: Option<Measured>,
}

impl Tracked {
    /// Returns a container without measurements.
    pub(super) fn new(container: Arc<Container>) -> Self {
        let labels = crate::prometheus::container_labels(&container);
        Self { container, history: History::default(), labels, files: None, latest: None }
    }

    /// Takes over what is new about it. True when its files are to be opened.
    pub(super) fn update(&mut self, container: Arc<Container>) -> bool {
        let restarted = self.container.pid != container.pid;
        if restarted || self.container.image != container.image {
            self.labels = crate::prometheus::container_labels(&container);
        }
        self.container = container;
        let runs = self.container.pid.is_some() && self.container.status.is_running();
        if restarted || !runs {
            self.files = None;
        }
        if !runs {
            self.latest = None;
        }
        runs && self.files.is_none()
    }

    pub(super) fn open(&mut self, mounts: &Mounts) -> io::Result<()> {
        let Some(pid) = self.container.pid else { return Ok(()) };
        let files = Files::open(mounts, pid, self.container.kind)?;
        self.files = Some(files);
        Ok(())
    }

    /// The latest, while it runs.
    pub fn latest(&self) -> Option<&Measured> {
        self.latest.as_ref()
    }

    /// Returns whether it has a network that is its own: what is in a pod has that of
    /// the sandbox, and some have the machine's.
    pub(crate) fn has_network(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.network.is_some())
    }

    /// Measures. Fails once the container is gone.
    pub(super) fn look(&mut self, now: i64, full: bool, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (Some(files), Some(pid)) = (&mut self.files, self.container.pid) else {
            return Ok(());
        };
        let before = self.latest.take().unwrap_or_default();
        let measured = match files.measure(before, full, buffer) {
            Ok(measured) => Measured { pid, ..measured },
            Err(error) => {
                self.files = None;
                return Err(error);
            }
        };
        self.history.push(Point {
            time: now,
            cpu_ns: measured.sample.core.cpu_ns,
            memory: measured.sample.core.working_set_bytes,
            read_bytes: measured.sample.io.read_bytes,
            written_bytes: measured.sample.io.write_bytes,
            received_bytes: measured.received_bytes,
            sent_bytes: measured.sent_bytes,
        });
        self.latest = Some(measured);
        Ok(())
    }
}

/// Measures a container once, with files that are opened for it.
pub(crate) fn once(container: &Container) -> io::Result<Measured> {
    let pid = container.pid.ok_or(io::ErrorKind::NotFound)?;
    let mut files = Files::open(&Mounts::read()?, pid, container.kind)?;
    let measured = files.measure(Measured::default(), true, &mut Vec::new())?;
    Ok(Measured { pid, ..measured })
}

impl Files {
    fn open(mounts: &Mounts, pid: u32, kind: Kind) -> io::Result<Self> {
        let group = Reader::open(Paths::of_pid(mounts, pid)?)?;
        // A container in a pod has the network of its sandbox.
        let network = match kind {
            Kind::App => None,
            Kind::Plain | Kind::Sandbox => own_network(pid),
        };
        Ok(Self { group, network, cpu_at: None, pressure_at: None })
    }

    fn measure(
        &mut self,
        before: Measured,
        full: bool,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Measured> {
        let mut measured = before;
        let cpu_before = measured.sample.core.cpu_ns;
        // The first time there is nothing to go by.
        let first = self.cpu_at.is_none();
        if full || first {
            measured.sample = self.group.sample()?;
        } else {
            measured.sample.core = self.group.core()?;
        }
        let now = Instant::now();
        if let Some(since) = self.cpu_at.replace(now) {
            let used = measured.sample.core.cpu_ns.saturating_sub(cpu_before);
            let passed = now.duration_since(since).as_nanos().max(1);
            measured.cpu_percent = used as f64 / passed as f64 * 100.0;
        }
        if full || first {
            self.waiting(now, &mut measured);
            self.traffic(&mut measured, buffer);
        }
        Ok(measured)
    }

    fn waiting(&mut self, now: Instant, measured: &mut Measured) {
        let Some(pressure) = measured.sample.pressure else { return };
        if let Some((since, before)) = self.pressure_at.replace((now, pressure)) {
            let passed = now.duration_since(since).as_micros().max(1) as f64;
            let share = |now: u64, before: u64| {
                (now.saturating_sub(before) as f64 / passed * 100.0).min(100.0)
            };
            measured.waited = [
                share(pressure.cpu.some_us, before.cpu.some_us),
                share(pressure.memory.some_us, before.memory.some_us),
                share(pressure.io.some_us, before.io.some_us),
            ];
        }
    }

    fn traffic(&mut self, measured: &mut Measured, buffer: &mut Vec<u8>) {
        let Some(network) = &self.network else { return };
        let Ok(text) = crate::host::read(network, buffer) else { return };
        (measured.received_bytes, measured.sent_bytes) = (0, 0);
        for interface in interfaces(text).iter().filter(|interface| interface.name != "lo") {
            measured.received_bytes += interface.received.bytes;
            measured.sent_bytes += interface.sent.bytes;
        }
    }
}

/// The counters of a network that is not the machine's.
fn own_network(pid: u32) -> Option<OwnedFd> {
    let of = |process: &str| rustix::fs::readlink(format!("/proc/{process}/ns/net"), Vec::new());
    if of(&pid.to_string()).ok()? == of("self").ok()? {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}/net/dev"), flags, Mode::empty()).ok()
}
