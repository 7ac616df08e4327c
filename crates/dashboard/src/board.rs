//! The board: what every source told last, with its age, and the snapshot that
//! is made of it. Readers take the snapshot as it is and wait for nobody.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_kit::clock::Clock;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    events::Events,
    facts::{Data, Facts, Section},
    rules::Thresholds,
    series::Trend,
    snapshot::{Maker, Snapshot},
    source::Failure,
};

/// Delay from a change to its snapshot: changes that come together make
/// one.
const SNAPSHOT_DELAY: Duration = Duration::from_millis(50);
/// Interval at which one is made when nothing changed, for values that depend on the time.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// State of a section of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceState {
    pub source: &'static str,
    pub section: Section,
    /// Time of its last answer.
    pub fetched: Option<Timestamp>,
    /// Time since then; since the start, where it never answered.
    pub age: Duration,
    /// That is longer than it should be.
    pub stale: bool,
    /// Reason why the last attempt failed.
    pub error: Option<String>,
    /// There is no such thing here.
    pub absent: bool,
}

impl SourceState {
    /// Should answer and does not.
    pub fn failing(&self) -> bool {
        !self.absent && (self.error.is_some() || self.stale)
    }
}

struct Entry {
    data: Option<Arc<Data>>,
    fetched: Option<(Timestamp, Duration)>,
    expected: Duration,
    stale_after: Duration,
    error: Option<String>,
    absent: bool,
}

/// By rank of the source and section, with the name of the source.
type Entries = BTreeMap<(usize, Section), (&'static str, Entry)>;

/// The board. Sources write, services read.
pub struct Board {
    clock: Arc<dyn Clock>,
    thresholds: Thresholds,
    events: Events,
    /// In the order in which sources are preferred.
    entries: Mutex<Entries>,
    names: Mutex<Vec<&'static str>>,
    maker: Mutex<Maker>,
    snapshot: ArcSwap<Snapshot>,
    version: watch::Sender<u64>,
    changed: Notify,
}

impl Board {
    /// An empty board. `id` is the name of the system where no storage cluster
    /// has one.
    pub fn new(clock: Arc<dyn Clock>, id: String, thresholds: Thresholds) -> Self {
        let maker = Maker::new(id, thresholds.clone());
        Self {
            thresholds,
            events: Events::default(),
            entries: Mutex::default(),
            names: Mutex::default(),
            snapshot: ArcSwap::from_pointee(Snapshot::empty(clock.now())),
            maker: Mutex::new(maker),
            version: watch::Sender::new(0),
            changed: Notify::new(),
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Events so far.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    fn rank(&self, source: &'static str) -> usize {
        let mut names = self.names.lock();
        names.iter().position(|name| *name == source).unwrap_or_else(|| {
            names.push(source);
            names.len() - 1
        })
    }

    /// Notes that a source will fill a section. Sources that are noted first
    /// are preferred.
    pub fn expect(&self, source: &'static str, section: Section, stale_after: Duration) {
        let rank = self.rank(source);
        let entry = Entry {
            data: None,
            fetched: None,
            expected: self.clock.elapsed(),
            stale_after,
            error: None,
            absent: false,
        };
        self.entries.lock().insert((rank, section), (source, entry));
    }

    /// Takes what a source told.
    pub fn report(&self, source: &'static str, section: Section, answer: Result<Data, Failure>) {
        let rank = self.rank(source);
        let mut entries = self.entries.lock();
        let Some((_, entry)) = entries.get_mut(&(rank, section)) else { return };
        let changed = entry.take(answer, self.clock.now(), self.clock.elapsed());
        drop(entries);
        if changed {
            self.changed.notify_one();
        }
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Tells the version of the newest snapshot.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// State of each section with its age now.
    pub fn sources(&self) -> Vec<SourceState> {
        let now = self.clock.elapsed();
        let entries = self.entries.lock();
        entries
            .iter()
            .map(|((_, section), (name, entry))| entry.state(name, *section, now))
            .collect()
    }

    /// Makes a snapshot of what is known now.
    pub fn refresh(&self) {
        let (facts, sources) = (self.facts(), self.sources());
        let mut maker = self.maker.lock();
        let before = self.snapshot();
        let (snapshot, changed) = maker.make(facts, &sources, self.clock.now(), &before);
        let version = snapshot.overview.version;
        self.events.note(&before, &snapshot, self.clock.now());
        self.snapshot.store(Arc::new(snapshot));
        if changed {
            self.version.send_replace(version);
        }
    }

    /// Gives problems of before the start the time at which they began.
    pub(crate) fn recall(&self, began: impl IntoIterator<Item = (String, Timestamp)>) {
        self.maker.lock().recall(began);
    }

    /// Tells how objects grow, by kind and name.
    pub(crate) fn grows(&self, growth: HashMap<String, Trend>) {
        self.maker.lock().grows(growth);
    }

    /// The newest of each section: of the first source that is fresh, else of
    /// the first that ever answered.
    fn facts(&self) -> Facts {
        let now = self.clock.elapsed();
        let entries = self.entries.lock();
        let mut chosen: BTreeMap<Section, (bool, Arc<Data>)> = BTreeMap::new();
        for ((_, section), (name, entry)) in entries.iter() {
            let Some(data) = entry.data.clone().filter(|_| !entry.absent) else { continue };
            let fresh = !entry.state(name, *section, now).failing();
            let better = chosen.get(section).is_none_or(|(known, _)| fresh && !known);
            if better {
                chosen.insert(*section, (fresh, data));
            }
        }
        drop(entries);
        let mut facts = Facts::default();
        for (_, data) in chosen.into_values() {
            facts.put(&data);
        }
        facts
    }

    /// Makes snapshots until told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let waited = tokio::time::timeout(SNAPSHOT_INTERVAL, self.changed.notified());
            if stop.run_until_cancelled(waited).await.is_none() {
                return;
            }
            tokio::time::sleep(SNAPSHOT_DELAY).await;
            self.refresh();
        }
    }
}

impl Entry {
    /// Returns true if something is different now.
    fn take(&mut self, answer: Result<Data, Failure>, now: Timestamp, elapsed: Duration) -> bool {
        let (was_absent, was_error) = (self.absent, self.error.take());
        self.absent = answer == Err(Failure::Absent);
        let mut changed = self.absent != was_absent;
        match answer {
            Ok(data) => {
                self.fetched = Some((now, elapsed));
                if self.data.as_deref() != Some(&data) {
                    self.data = Some(Arc::new(data));
                    changed = true;
                }
            }
            Err(Failure::Absent) => self.data = None,
            Err(failure) => self.error = Some(failure.to_string()),
        }
        changed || self.error != was_error
    }

    fn state(&self, source: &'static str, section: Section, now: Duration) -> SourceState {
        let since = self.fetched.map_or(self.expected, |(_, at)| at);
        let age = now.saturating_sub(since);
        SourceState {
            source,
            section,
            fetched: self.fetched.map(|(at, _)| at),
            age,
            stale: !self.absent && age > self.stale_after,
            error: self.error.clone(),
            absent: self.absent,
        }
    }
}

impl Facts {
    fn put(&mut self, data: &Data) {
        match data {
            Data::Cloudlets(list) => self.cloudlets = Some(Arc::clone(list)),
            Data::Instances(list) => self.instances = Some(Arc::clone(list)),
            Data::Clusters(list) => self.clusters = Some(Arc::clone(list)),
            Data::Kaas(list) => self.kaas = Some(Arc::clone(list)),
            Data::Machines(list) => self.machines = Some(Arc::clone(list)),
            Data::Hosts(list) => self.hosts = Some(Arc::clone(list)),
            Data::Volumes(volumes) => self.volumes = Some(Arc::clone(volumes)),
            Data::Backups(backups) => self.backups = Some(Arc::clone(backups)),
            Data::Operations(list) => self.operations = Some(Arc::clone(list)),
            Data::Process(process) => self.process = Some(Arc::clone(process)),
            Data::Storage(storage) => self.storage = Some(Arc::clone(storage)),
            Data::Nodes(list) => self.nodes = Some(Arc::clone(list)),
            Data::Objects(objects) => self.objects = Some(Arc::clone(objects)),
            Data::Alerts(list) => self.alerts = Some(Arc::clone(list)),
            Data::Exporters(list) => self.exporters = Some(Arc::clone(list)),
        }
    }
}
