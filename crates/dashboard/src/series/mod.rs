//! Numbers over time: a day at 15 seconds and a month at half an hour, kept
//! over restarts.

mod keeper;
mod line;
mod measure;
mod query;
mod trend;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::RwLock;
use selvage_api::selvage::dashboard::Object;

use self::{keeper::Keeper, line::Line};
pub(crate) use self::{
    measure::{METRICS, Metric},
    query::{Query, to_series},
    trend::Trend,
};
use crate::snapshot::Snapshot;

/// Time between points of the last day.
pub(crate) const FINE: u64 = 15;
/// Number of them that are kept.
const FINE_POINTS: usize = 5760;
/// Time between points of the last month.
pub(crate) const COARSE: u64 = 1800;
const COARSE_POINTS: usize = 1488;
/// Most lines that are kept: a fleet that grows does not take all memory.
const MOST_LINES: usize = 4000;
/// Growth is told of at least so much time.
const SHORTEST_PAST: u64 = 3600;
/// And of at most so much.
const LONGEST_PAST: u64 = 7 * 86_400;

/// Key of a line: measurement and object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) metric: String,
    pub(crate) kind: String,
    pub(crate) object: String,
}

/// All lines.
#[derive(Default)]
pub(crate) struct Series {
    lines: RwLock<BTreeMap<Key, Line>>,
    keeper: parking_lot::Mutex<Option<Keeper>>,
}

impl Series {
    /// Reads what is on disk and keeps what comes there from now on.
    pub(crate) fn open(&self, folder: &Path, now: Timestamp) -> std::io::Result<()> {
        let mut lines = BTreeMap::new();
        let keeper = Keeper::open(folder, &mut lines, seconds(now))?;
        *self.lines.write() = lines;
        *self.keeper.lock() = Some(keeper);
        Ok(())
    }

    /// Measures a snapshot.
    pub(crate) fn sample(&self, snapshot: &Snapshot, now: Timestamp) -> std::io::Result<()> {
        let now = seconds(now);
        let values = measure::measure(snapshot);
        let mut finished = Vec::new();
        {
            let mut lines = self.lines.write();
            for (key, value) in &values {
                if !lines.contains_key(key) && lines.len() >= MOST_LINES {
                    continue;
                }
                let line = lines.entry(key.clone()).or_default();
                finished.extend(line.add(now, *value).map(|point| (key.clone(), point)));
            }
            // What has not been measured for a month is forgotten.
            lines.retain(|_, line| !line.is_over(now));
        }
        match &mut *self.keeper.lock() {
            Some(keeper) => keeper.write(now, &values, &finished),
            None => Ok(()),
        }
    }

    /// The lines that a query asks for and the caller may see.
    pub(crate) fn query(
        &self,
        query: &Query,
        sees: impl Fn(&Key) -> bool,
    ) -> Vec<(Key, Vec<query::Point>)> {
        let lines = self.lines.read();
        let wanted = lines.iter().filter(|(key, _)| query.asks_for(key) && sees(key));
        wanted
            .take(query::MOST_LINES)
            .map(|(key, line)| (key.clone(), query.points(line)))
            .collect()
    }

    /// Keys of all lines.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.lines.read().keys().cloned().collect()
    }

    /// Growth of usage, by kind and name of the object.
    pub(crate) fn growth(&self, now: Timestamp) -> HashMap<String, Trend> {
        let now = seconds(now);
        let lines = self.lines.read();
        let used = lines.iter().filter(|(key, _)| key.metric == measure::USED);
        used.filter_map(|(key, line)| {
            let trend = line.trend(now, SHORTEST_PAST, LONGEST_PAST)?;
            Some((format!("{}/{}", key.kind, key.object), trend))
        })
        .collect()
    }

    /// Puts on the disk what waits.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.keeper.lock().as_mut().map_or(Ok(()), Keeper::sync)
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

/// The object of a line, as callers see it.
pub(crate) fn object(key: &Key) -> Object {
    crate::facts::object(&key.kind, key.object.clone())
}

/// The pause between samples.
pub(crate) const EVERY: Duration = Duration::from_secs(FINE);
