//! The samples that are kept in memory. They lie there encoded: that takes a
//! quarter of what they take otherwise, and is what goes to the disk.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::RwLock;
use prost::Message;
use selvage_api::edgeproto as wire;
use selvage_api::selvage::metrics::ListSamplesRequest;

use crate::{APP_TAG, CLOUDLET_TAG, CLUSTER_TAG, Scope, tagged};

/// Number of samples for a caller who names none.
const DEFAULT_LIMIT: usize = 1000;
/// Size of a sample in memory besides its bytes.
const OVERHEAD: usize = 96;
/// Maximum time by which the clock of a sender may be ahead, in seconds; the
/// time of a later sample is replaced by the present.
const AHEAD_LIMIT: i64 = 300;
/// Number of samples that are read before others may add some.
const CHUNK: usize = 1024;

/// Bounds of what is kept; beyond them the oldest go first.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of samples.
    pub count: usize,
    /// Memory that they take.
    pub bytes: usize,
    /// Age of the oldest.
    pub age: Duration,
}

/// Samples in memory.
#[derive(Debug)]
pub struct Samples {
    limits: Limits,
    ring: RwLock<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Entry>,
    bytes: usize,
    counts: Counts,
    /// Number of samples that were dropped.
    dropped: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    time: (i64, i32),
    subject: Subject,
    encoded: Bytes,
}

impl Entry {
    fn size(&self) -> usize {
        self.encoded.len() + OVERHEAD
    }
}

/// Subject of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    AppInst,
    Cloudlet,
    Other,
}

impl Subject {
    fn of(sample: &wire::Metric) -> Self {
        let has = |name: &str| tagged(sample, &[name]).next().is_some();
        if has(APP_TAG) {
            Self::AppInst
        } else if has(CLOUDLET_TAG) && !has(CLUSTER_TAG) {
            Self::Cloudlet
        } else {
            Self::Other
        }
    }
}

/// Number of samples, by what they are of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of samples of app instances.
    pub app_insts: u64,
    /// Number of samples of cloudlets.
    pub cloudlets: u64,
}

impl Counts {
    fn place(&mut self, subject: Subject) -> Option<&mut u64> {
        match subject {
            Subject::AppInst => Some(&mut self.app_insts),
            Subject::Cloudlet => Some(&mut self.cloudlets),
            Subject::Other => None,
        }
    }
}

impl Ring {
    fn pushed(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        if let Some(count) = self.counts.place(entry.subject) {
            *count += 1;
        }
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.entries.pop_front() else { return };
        self.dropped += 1;
        self.bytes = self.bytes.saturating_sub(oldest.size());
        if let Some(count) = self.counts.place(oldest.subject) {
            *count = count.saturating_sub(1);
        }
    }

    fn prune(&mut self, limits: &Limits, now: Timestamp) {
        let age = i64::try_from(limits.age.as_secs()).unwrap_or(i64::MAX);
        let oldest = now.as_second().saturating_sub(age);
        while self.entries.len() > limits.count
            || self.bytes > limits.bytes
            || self.entries.front().is_some_and(|entry| entry.time.0 < oldest)
        {
            self.drop_oldest();
        }
    }

    /// Returns the entries between two numbers that are still there.
    fn range(&self, from: u64, to: u64) -> impl Iterator<Item = &Entry> {
        let index = |number: u64| usize::try_from(number.saturating_sub(self.dropped));
        let last = self.entries.len();
        let to = index(to).unwrap_or(last).min(last);
        let from = index(from).unwrap_or(last).min(to);
        self.entries.range(from..to)
    }
}

fn time_of(sample: &wire::Metric) -> (i64, i32) {
    sample.timestamp.map_or((0, 0), |time| (time.seconds, time.nanos))
}

impl Samples {
    /// No samples yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ring: RwLock::default() }
    }

    /// Takes a sample in and gives it back as it is kept. One without a time,
    /// or of a sender whose clock is far ahead, is of now: what lies in the
    /// future would never be too old.
    pub fn add(&self, mut sample: wire::Metric, now: Timestamp) -> wire::Metric {
        let latest = now.as_second().saturating_add(AHEAD_LIMIT);
        if sample.timestamp.is_none_or(|time| time.seconds > latest) {
            sample.timestamp = Some(prost_types::Timestamp {
                seconds: now.as_second(),
                nanos: now.subsec_nanosecond(),
            });
        }
        let entry = Entry {
            time: time_of(&sample),
            subject: Subject::of(&sample),
            encoded: sample.encode_to_vec().into(),
        };
        let mut ring = self.ring.write();
        ring.push(entry);
        ring.prune(&self.limits, now);
        sample
    }

    /// Numbers of samples that were dropped and that ever came: those with a number
    /// from the first to below the second are there.
    pub(crate) fn span(&self) -> (u64, u64) {
        let ring = self.ring.read();
        (ring.dropped, ring.pushed())
    }

    /// Encoded, from one number to another.
    pub(crate) fn encoded(&self, from: u64, to: u64) -> Vec<Bytes> {
        self.ring.read().range(from, to).map(|entry| entry.encoded.clone()).collect()
    }

    /// Number of samples that the caller may see.
    pub fn counts(&self, scope: &Scope) -> Counts {
        if *scope == Scope::Everything {
            return self.ring.read().counts;
        }
        let mut counts = Counts::default();
        self.each_from_newest(|entry| {
            if let Some(count) = counts.place(entry.subject)
                && let Ok(sample) = wire::Metric::decode(entry.encoded.clone())
                && scope.includes(&sample)
            {
                *count += 1;
            }
            true
        });
        counts
    }

    /// The newest that match and that the caller may see, the oldest of them
    /// first.
    pub fn list(&self, request: &ListSamplesRequest, scope: &Scope) -> Vec<Arc<wire::Metric>> {
        let limit = limit_of(request);
        let since = request.since.map(|time| (time.seconds, time.nanos));
        // The name is what an encoded sample begins with.
        let start =
            wire::Metric { name: request.name.clone(), ..Default::default() }.encode_to_vec();
        let mut found = Vec::new();
        self.each_from_newest(|entry| {
            if since.is_none_or(|since| entry.time >= since)
                && entry.encoded.starts_with(&start)
                && let Ok(sample) = wire::Metric::decode(entry.encoded.clone())
                && has_tags(&sample, &request.tags)
                && scope.includes(&sample)
            {
                found.push(Arc::new(sample));
            }
            found.len() < limit
        });
        found.reverse();
        found
    }

    /// Goes through all, the newest first, while `more` says so. What comes
    /// meanwhile is not waited for, nor does it wait.
    fn each_from_newest(&self, mut more: impl FnMut(&Entry) -> bool) {
        let mut before = u64::MAX;
        loop {
            let (from, entries): (u64, Vec<Entry>) = {
                let ring = self.ring.read();
                let to = before.min(ring.pushed());
                let from = to.saturating_sub(CHUNK as u64).max(ring.dropped);
                (from, ring.range(from, to).cloned().collect())
            };
            if entries.is_empty() || !entries.iter().rev().all(&mut more) {
                return;
            }
            before = from;
        }
    }
}

fn limit_of(request: &ListSamplesRequest) -> usize {
    match request.limit {
        0 => DEFAULT_LIMIT,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    }
}

/// The newest of several lists, the oldest of them first.
pub fn merged(
    lists: impl Iterator<Item = Vec<Arc<wire::Metric>>>,
    request: &ListSamplesRequest,
) -> Vec<Arc<wire::Metric>> {
    let mut all: Vec<_> = lists.flatten().collect();
    // Samples of the same moment are in an order that does not depend on the
    // source.
    all.sort_by_cached_key(|sample| (time_of(sample), sample.encode_to_vec()));
    let surplus = all.len().saturating_sub(limit_of(request));
    all.split_off(surplus)
}

fn has_tags(sample: &wire::Metric, wanted: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(name, value)| sample.tags.iter().any(|tag| tag.name == *name && tag.val == *value))
}

#[cfg(test)]
mod tests;
