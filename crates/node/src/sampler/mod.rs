//! Measuring of all containers, in a single loop. Containers are known from the
//! events of the runtimes, their usage from files that stay open; calls,
//! streams, the page for Prometheus and the history all use the results of this
//! loop.

mod feed;
mod measure;

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::tasks::{Backoff, Tasks};
use selvage_runtime::Runtime;
use tokio::{sync::watch, time::MissedTickBehavior};

pub(crate) use measure::once as measure_once;
pub use measure::{Measured, Tracked};

use self::feed::Feed;
use crate::{
    history::{History, Point},
    host::{HostReader, Snapshot},
};

/// Interval of measurements.
const PERIOD: Duration = Duration::from_secs(1);

/// Disks, network and what else changes slowly are read once in so many looks,
/// unless somebody watches.
const FULL_EVERY: u64 = 5;

/// Nanoseconds in a tick of the kernel's clock for programs.
const TICK_NS: u64 = 10_000_000;

/// Measurements of the machine as a whole.
struct Host {
    reader: HostReader,
    latest: Snapshot,
    cpu_percent: f64,
    history: History,
}

struct Inner {
    feeds: Mutex<BTreeMap<String, Arc<Feed>>>,
    host: Mutex<Host>,
    looks: watch::Sender<u64>,
}

/// The loop's memory. Clones are the same.
#[derive(Clone)]
pub struct Sampler(Arc<Inner>);

/// While one of these lives, everything is read at every look.
pub struct Watching(watch::Receiver<u64>);

impl Watching {
    /// Waits for the next look. False when there will be none.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Sampler {
    /// A sampler that has looked at the machine once.
    pub fn open(proc: &Path) -> io::Result<Self> {
        let mut reader = HostReader::open(proc)?;
        let latest = reader.snapshot()?;
        let host = Host { reader, latest, cpu_percent: 0.0, history: History::default() };
        Ok(Self(Arc::new(Inner {
            feeds: Mutex::default(),
            host: Mutex::new(host),
            looks: watch::Sender::new(0),
        })))
    }

    /// Looks every second, and keeps up with what these runtimes run.
    /// `owns` says whether a namespace is looked at by a runtime.
    pub fn spawn(&self, tasks: &Tasks, runtimes: Vec<Arc<dyn Runtime>>, owns: Owns) {
        for (at, runtime) in runtimes.into_iter().enumerate() {
            let (sampler, owns) = (self.clone(), Arc::clone(&owns));
            let stop = tasks.token().clone();
            let name = format!("containers of {} {at}", runtime.name());
            tasks.spawn_restarting(name, Backoff::default(), move || {
                let (sampler, owns, stop) = (sampler.clone(), Arc::clone(&owns), stop.clone());
                let runtime = Arc::clone(&runtime);
                async move {
                    let kept = sampler.keep_up(runtime, owns);
                    stop.run_until_cancelled(kept).await.unwrap_or(Ok(()))
                }
            });
        }
        let (sampler, stop) = (self.clone(), tasks.token().clone());
        tasks.spawn_restarting("sampler", Backoff::default(), move || {
            let (sampler, stop) = (sampler.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(sampler.run()).await;
            }
        });
    }

    async fn run(self) {
        let mut clock = tokio::time::interval(PERIOD);
        clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            clock.tick().await;
            let sampler = self.clone();
            // Files of the kernel do not block for long, but they are files.
            if let Err(error) = tokio::task::spawn_blocking(move || sampler.look()).await {
                tracing::error!(%error, "measuring the machine failed");
            }
        }
    }

    /// Looks once.
    pub fn look(&self) {
        let look = *self.0.looks.borrow() + 1;
        let watched = self.0.looks.receiver_count() > 0;
        let now = now_ms();
        self.look_at_host(now, watched || look % FULL_EVERY == 1);
        let feeds: Vec<Arc<Feed>> = self.0.feeds.lock().values().cloned().collect();
        for feed in feeds {
            // Reads a fifth of the containers in full, the rest in brief.
            feed.look(now, |at| watched || (look + at as u64).is_multiple_of(FULL_EVERY));
        }
        self.0.looks.send_replace(look);
    }

    fn look_at_host(&self, now: i64, full: bool) {
        let mut host = self.0.host.lock();
        let Host { reader, latest, cpu_percent, history } = &mut *host;
        let before = latest.stat.total;
        if full {
            match reader.snapshot() {
                Ok(read) => *latest = read,
                Err(error) => tracing::warn!(%error, "the machine's files cannot be read"),
            }
        } else if let (Ok(stat), Ok(memory)) = (reader.stat(), reader.memory()) {
            (latest.stat, latest.memory) = (stat, memory);
        }
        let total = latest.stat.total;
        let all = total.all().saturating_sub(before.all());
        let busy = total.busy().saturating_sub(before.busy());
        if all > 0 {
            *cpu_percent = busy as f64 / all as f64 * 100.0;
        }
        history.push(host_point(now, latest));
    }

    /// The machine as it was at the last look, and how busy it was.
    pub fn host(&self) -> (Snapshot, f64) {
        let host = self.0.host.lock();
        (host.latest.clone(), host.cpu_percent)
    }

    /// Reads what only the page for Prometheus tells.
    pub(crate) fn with_host_reader<T>(&self, read: impl FnOnce(&mut HostReader) -> T) -> T {
        read(&mut self.0.host.lock().reader)
    }

    /// The machine's history.
    pub fn host_history(&self, since: i64, step: i64) -> Vec<Point> {
        self.0.host.lock().history.points(since, step)
    }

    /// A container's history, by the runtime's own id.
    pub fn history(&self, namespace: &str, runtime_id: &str, since: i64, step: i64) -> Vec<Point> {
        let feed = self.0.feeds.lock().get(namespace).cloned();
        feed.map(|feed| feed.history(runtime_id, since, step)).unwrap_or_default()
    }

    /// Returns the measurements of the containers of a namespace, by the runtime's
    /// own id.
    pub fn measured(&self, namespace: &str) -> BTreeMap<String, Measured> {
        let feed = self.0.feeds.lock().get(namespace).cloned();
        feed.map(|feed| feed.measured()).unwrap_or_default()
    }

    /// Shows every container of every namespace that is measured.
    pub(crate) fn each(&self, mut show: impl FnMut(&Tracked)) {
        let feeds: Vec<Arc<Feed>> = self.0.feeds.lock().values().cloned().collect();
        for feed in feeds {
            feed.each(&mut show);
        }
    }

    /// Reads everything at every look while somebody watches.
    pub fn watch(&self) -> Watching {
        Watching(self.0.looks.subscribe())
    }

    /// Returns the memory that all histories take, in bytes.
    #[cfg(test)]
    pub(crate) fn history_size(&self) -> usize {
        let mut size = self.0.host.lock().history.size();
        self.each(|tracked| size += tracked.history.size());
        size
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").finish_non_exhaustive()
    }
}

/// Decides whether the containers of a namespace belong to that runtime.
pub type Owns = Arc<dyn Fn(&Arc<dyn Runtime>, &str) -> bool + Send + Sync>;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn host_point(time: i64, snapshot: &Snapshot) -> Point {
    let memory = &snapshot.memory;
    // Partitions are counted in their disk: names of disks are a start of
    // theirs.
    let disks = snapshot.disks.iter().filter(|disk| {
        let of_another = |other: &crate::host::DiskStat| {
            other.name.len() < disk.name.len() && disk.name.starts_with(&other.name)
        };
        !snapshot.disks.iter().any(of_another)
    });
    let (read, written) = disks.fold((0, 0), |(read, written), disk| {
        (read + disk.sectors_read * 512, written + disk.sectors_written * 512)
    });
    let outside = snapshot.interfaces.iter().filter(|interface| interface.name != "lo");
    let (received, sent) = outside.fold((0, 0), |(received, sent), interface| {
        (received + interface.received.bytes, sent + interface.sent.bytes)
    });
    Point {
        time,
        cpu_ns: snapshot.stat.total.busy() * TICK_NS,
        memory: memory.memtotal.saturating_sub(memory.memavailable) * 1024,
        read_bytes: read,
        written_bytes: written,
        received_bytes: received,
        sent_bytes: sent,
    }
}

#[cfg(test)]
pub(crate) mod tests;
