//! Events: objects that came, went or changed their state, instances that
//! were started again or run another revision, and problems that began and
//! ended. The newest are kept, also over restarts.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::Path,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use prost::Message;
use selvage_api::selvage::dashboard::{Event, Object, Problem, Severity};
use tokio::sync::broadcast;

use crate::{
    facts::{Facts, Instance, each},
    journal::{self, Journal, Limits},
    snapshot::{Snapshot, cloudlet_word, kaas_word, tracked_word},
    stamp, unstamp,
};

/// Number of events that are kept.
const MAX_EVENTS: usize = 20_000;
/// Number of events a watcher may fall behind before it misses some.
const MAX_LAG: usize = 512;
/// Most that one change makes: a controller that comes back brings thousands.
const MAX_PER_CHANGE: usize = 200;

const LIMITS: Limits =
    Limits { file_bytes: 256 << 10, total_bytes: 8 << 20, keep: Duration::from_secs(31 * 86_400) };

/// Event as it is stored on disk.
#[derive(Clone, PartialEq, Message)]
struct StoredEvent {
    #[prost(message, optional, tag = "1")]
    event: Option<Event>,
    /// The problem that it is about, if it is about one.
    #[prost(string, tag = "2")]
    problem: String,
}

/// The events.
pub(crate) struct Events {
    inner: Mutex<Inner>,
    new: broadcast::Sender<Arc<Event>>,
}

#[derive(Default)]
struct Inner {
    ring: VecDeque<Arc<Event>>,
    journal: Option<Journal>,
    counter: u64,
    failed: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { inner: Mutex::default(), new: broadcast::Sender::new(MAX_LAG) }
    }
}

impl Events {
    /// Reads what is on disk and keeps what happens there from now on. Gives
    /// the problems that lasted, and since when.
    pub(crate) fn open(&self, folder: &Path) -> std::io::Result<Vec<(String, Timestamp)>> {
        let journal = Journal::open(folder, LIMITS)?;
        let mut inner = self.inner.lock();
        let mut lasting = BTreeMap::new();
        for (_, path) in journal::files(folder)? {
            for record in journal::read(&path)? {
                let Ok(StoredEvent { event: Some(event), problem }) =
                    StoredEvent::decode(record.as_slice())
                else {
                    continue;
                };
                match event.what.as_str() {
                    "began" => {
                        let began = event.time.and_then(unstamp).unwrap_or_default();
                        lasting.insert(problem, began);
                    }
                    "ended" => drop(lasting.remove(&problem)),
                    _ => {}
                }
                inner.push(Arc::new(event));
            }
        }
        inner.journal = Some(journal);
        Ok(lasting.into_iter().collect())
    }

    /// Tells those that happen from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<Event>> {
        self.new.subscribe()
    }

    /// The newest that fit, newest first.
    pub(crate) fn list(&self, most: usize, fits: impl Fn(&Event) -> bool) -> Vec<Arc<Event>> {
        let inner = self.inner.lock();
        inner.ring.iter().rev().filter(|event| fits(event)).take(most).cloned().collect()
    }

    /// Finds what happened between two snapshots.
    pub(crate) fn note(&self, old: &Snapshot, new: &Snapshot, now: Timestamp) {
        let mut found = problems(&old.overview.problems, &new.overview.problems);
        found.extend(
            objects(&old.facts, &new.facts).into_iter().map(|event| (event, String::new())),
        );
        if found.is_empty() {
            return;
        }
        found.truncate(MAX_PER_CHANGE);
        let mut inner = self.inner.lock();
        for (mut event, problem) in found {
            inner.counter = (inner.counter + 1) % 10_000;
            event.id = format!("{:016}-{:04}", now.as_microsecond(), inner.counter);
            event.time.get_or_insert(stamp(now));
            inner.keep(&event, problem);
            let event = Arc::new(event);
            inner.push(Arc::clone(&event));
            // Nobody watches: fine.
            let _ = self.new.send(event);
        }
    }
}

impl Inner {
    fn push(&mut self, event: Arc<Event>) {
        self.ring.push_back(event);
        while self.ring.len() > MAX_EVENTS {
            self.ring.pop_front();
        }
    }

    fn keep(&mut self, event: &Event, problem: String) {
        let Some(journal) = &mut self.journal else { return };
        let stored = StoredEvent { event: Some(event.clone()), problem };
        let written = journal.append(&stored.encode_to_vec());
        // A disk that is full is one line in the log, not one for each event.
        if let Err(error) = &written
            && !self.failed
        {
            let folder = journal.folder().display();
            tracing::warn!(%folder, %error, "events are kept until the next restart only");
        }
        self.failed = written.is_err();
    }
}

fn problems(old: &[Problem], new: &[Problem]) -> Vec<(Event, String)> {
    let known: HashMap<&str, &Problem> = old.iter().map(|p| (p.id.as_str(), p)).collect();
    let lasting: HashMap<&str, &Problem> = new.iter().map(|p| (p.id.as_str(), p)).collect();
    let event = |what: &str, problem: &Problem| {
        let event = Event {
            // A problem may have begun before it was seen.
            time: problem.since.filter(|_| what == "began"),
            what: what.into(),
            object: problem.object.clone(),
            text: problem.summary.clone(),
            state: problem.rule.clone(),
            severity: problem.severity,
            ..Event::default()
        };
        (event, problem.id.clone())
    };
    let began = new.iter().filter(|p| !known.contains_key(p.id.as_str()));
    let ended = old.iter().filter(|p| !lasting.contains_key(p.id.as_str()));
    began.map(|p| event("began", p)).chain(ended.map(|p| event("ended", p))).collect()
}

fn same<T>(old: &Option<Arc<T>>, new: &Option<Arc<T>>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => Arc::ptr_eq(old, new),
        _ => false,
    }
}

type States<'a> = BTreeMap<(&'a str, &'a str), (&'a Object, &'static str)>;

fn states(facts: &Facts) -> States<'_> {
    let mut found = BTreeMap::new();
    for cloudlet in each(&facts.cloudlets) {
        put(&mut found, &cloudlet.object, cloudlet_word(cloudlet.state));
    }
    for instance in each(&facts.instances) {
        put(&mut found, &instance.object, tracked_word(instance.state));
    }
    for cluster in each(&facts.clusters) {
        put(&mut found, &cluster.object, tracked_word(cluster.state));
    }
    for cluster in each(&facts.kaas) {
        put(&mut found, &cluster.object, kaas_word(cluster.status));
    }
    for machine in each(&facts.machines) {
        put(&mut found, &machine.object, if machine.blocked { "blocked" } else { "joined" });
    }
    found
}

fn put<'a>(found: &mut States<'a>, object: &'a Object, word: &'static str) {
    found.insert((object.kind.as_str(), object.name.as_str()), (object, word));
}

/// Of sections that were known before: what a source tells first is not new.
fn objects(old: &Facts, new: &Facts) -> Vec<Event> {
    let unchanged = same(&old.cloudlets, &new.cloudlets)
        && same(&old.instances, &new.instances)
        && same(&old.clusters, &new.clusters)
        && same(&old.kaas, &new.kaas)
        && same(&old.machines, &new.machines);
    if unchanged {
        return Vec::new();
    }
    let (before, after) = (states(old), states(new));
    let whys = reasons(new);
    let known = |kind: &str| match kind {
        "cloudlet" => old.cloudlets.is_some() && new.cloudlets.is_some(),
        "appinst" => old.instances.is_some() && new.instances.is_some(),
        "kaas" => old.kaas.is_some() && new.kaas.is_some(),
        "clusterinst" => old.clusters.is_some() && new.clusters.is_some(),
        _ => old.machines.is_some() && new.machines.is_some(),
    };
    let event = |what: &str, object: &Object, state: &str| {
        let gone = what == "gone";
        let said = match state {
            _ if gone => "is gone".to_owned(),
            "errors" => "reports errors".to_owned(),
            state => format!("is {state}"),
        };
        let text = match whys.get(object.name.as_str()) {
            Some(why) if !gone => format!("{} {said}: {why}", object.name),
            _ => format!("{} {said}", object.name),
        };
        let bad = !gone && matches!(state, "failed" | "errors" | "offline");
        let severity = if bad { Severity::Warning } else { Severity::Ok };
        Event {
            what: what.into(),
            object: Some(object.clone()),
            text,
            state: state.into(),
            severity: severity.into(),
            ..Event::default()
        }
    };
    let mut found = Vec::new();
    for (key, (object, state)) in after.iter().filter(|(key, _)| known(key.0)) {
        match before.get(key) {
            None => found.push(event("added", object, state)),
            Some((_, was)) if was != state => found.push(event("changed", object, state)),
            Some(_) => {}
        }
    }
    for (key, (object, state)) in before.iter().filter(|(key, _)| known(key.0)) {
        if !after.contains_key(key) {
            found.push(event("gone", object, state));
        }
    }
    if known("appinst") {
        found.extend(of_instances(old, new));
    }
    found
}

/// Reasons of objects that failed.
fn reasons(facts: &Facts) -> HashMap<&str, String> {
    let instances = each(&facts.instances).map(|one| (&one.object, &one.errors));
    let clusters = each(&facts.clusters).map(|one| (&one.object, &one.errors));
    let failed = instances.chain(clusters).filter(|(_, errors)| !errors.is_empty());
    failed.map(|(object, errors)| (object.name.as_str(), errors.join("; "))).collect()
}

/// Instances that were started again, or run another revision.
fn of_instances(old: &Facts, new: &Facts) -> Vec<Event> {
    let before: HashMap<&str, &Instance> =
        each(&old.instances).map(|one| (one.object.name.as_str(), one)).collect();
    let mut found = Vec::new();
    for now in each(&new.instances) {
        let Some(was) = before.get(now.object.name.as_str()) else { continue };
        let name = &now.object.name;
        if now.revision != was.revision {
            let text = format!("{name} is to run revision {}", now.revision);
            found.push(of_instance(now, "updated", text, Severity::Ok));
        }
        if now.started_again > was.started_again {
            let (times, why) = (now.started_again, &now.last_reason);
            let text = format!("{name} was started again, {times} times so far: {why}");
            found.push(of_instance(now, "restarted", text, Severity::Warning));
        }
    }
    found
}

fn of_instance(instance: &Instance, what: &str, text: String, severity: Severity) -> Event {
    Event {
        what: what.into(),
        object: Some(instance.object.clone()),
        text,
        state: tracked_word(instance.state).into(),
        severity: severity.into(),
        ..Event::default()
    }
}
