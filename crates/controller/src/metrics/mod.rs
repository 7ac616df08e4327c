//! Samples that agents send: kept in memory, a bounded number of them for a
//! bounded time, the oldest going first; the newest of each shown to whoever
//! watches the process; all of them handed on to a database, if there is one.

pub(crate) mod influx;
mod line;
pub(crate) mod newest;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use prost::Message;
use selvage_api::edgeproto as wire;
use selvage_api::selvage::metrics::ListSamplesRequest;

use crate::controller::Controller;

/// How many samples a caller gets who does not say.
const DEFAULT_LIMIT: usize = 1000;
/// Most tags, or values, of a sample that is kept.
const MAX_PARTS: usize = 256;
/// A sample of an application carries this tag,
const APP_TAG: &str = "app";
/// one of a cluster this one,
const CLUSTER_TAG: &str = "cluster";
/// and one of a cloudlet only this one.
const CLOUDLET_TAG: &str = "cloudlet";

#[derive(Debug)]
pub(crate) struct Samples {
    kept: usize,
    age: Duration,
    ring: RwLock<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Arc<wire::Metric>>,
    counts: Counts,
}

/// How many samples there are of what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) app_insts: u64,
    pub(crate) cloudlets: u64,
}

impl Counts {
    fn place(&mut self, sample: &wire::Metric) -> Option<&mut u64> {
        let tagged = |name: &str| sample.tags.iter().any(|tag| tag.name == name);
        if tagged(APP_TAG) {
            Some(&mut self.app_insts)
        } else if tagged(CLOUDLET_TAG) && !tagged(CLUSTER_TAG) {
            Some(&mut self.cloudlets)
        } else {
            None
        }
    }
}

impl Ring {
    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.samples.pop_front()
            && let Some(count) = self.counts.place(&oldest)
        {
            *count = count.saturating_sub(1);
        }
    }
}

fn time_of(sample: &wire::Metric) -> (i64, i32) {
    sample.timestamp.map_or((0, 0), |time| (time.seconds, time.nanos))
}

impl Samples {
    pub(crate) fn new(kept: usize, age: Duration) -> Self {
        Self { kept, age, ring: RwLock::default() }
    }

    /// Takes a sample in; one without a time is of now. None when it is not
    /// one that can be kept.
    pub(crate) fn add(
        &self,
        mut sample: wire::Metric,
        now: Timestamp,
    ) -> Option<Arc<wire::Metric>> {
        if sample.name.is_empty() || sample.tags.len() > MAX_PARTS || sample.vals.len() > MAX_PARTS
        {
            return None;
        }
        sample.timestamp.get_or_insert(prost_types::Timestamp {
            seconds: now.as_second(),
            nanos: now.subsec_nanosecond(),
        });
        let age = i64::try_from(self.age.as_secs()).unwrap_or(i64::MAX);
        let oldest = now.as_second().saturating_sub(age);
        let mut ring = self.ring.write();
        if let Some(count) = ring.counts.place(&sample) {
            *count += 1;
        }
        let sample = Arc::new(sample);
        ring.samples.push_back(Arc::clone(&sample));
        while ring.samples.len() > self.kept
            || ring.samples.front().is_some_and(|sample| time_of(sample).0 < oldest)
        {
            ring.drop_oldest();
        }
        Some(sample)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.ring.read().counts
    }

    /// The newest that match, the oldest of them first.
    pub(crate) fn list(&self, request: &ListSamplesRequest) -> Vec<Arc<wire::Metric>> {
        let limit = limit_of(request);
        let since = request.since.map(|time| (time.seconds, time.nanos));
        let ring = self.ring.read();
        let matching = ring.samples.iter().rev().filter(|sample| {
            (request.name.is_empty() || sample.name == request.name)
                && since.is_none_or(|since| time_of(sample) >= since)
                && has_tags(sample, &request.tags)
        });
        let mut found: Vec<_> = matching.take(limit).cloned().collect();
        found.reverse();
        found
    }
}

impl Controller {
    /// Takes in what an agent sent; says false when it is not a sample that
    /// can be kept.
    pub(crate) fn receive_sample(&self, sample: wire::Metric) -> bool {
        let now = self.clock.now();
        let Some(sample) = self.memory.samples.add(sample, now) else { return false };
        self.memory.newest.put(&sample, now);
        if let Some(sink) = &self.memory.influx {
            sink.put(sample);
        }
        true
    }
}

fn limit_of(request: &ListSamplesRequest) -> usize {
    match request.limit {
        0 => DEFAULT_LIMIT,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    }
}

/// The newest of several lists, the oldest of them first.
pub(crate) fn newest(
    lists: impl Iterator<Item = Vec<Arc<wire::Metric>>>,
    request: &ListSamplesRequest,
) -> Vec<Arc<wire::Metric>> {
    let mut all: Vec<_> = lists.flatten().collect();
    // Of the same moment, in an order that does not depend on who is asked.
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sample(name: &str, tag: &str, second: i64) -> wire::Metric {
        wire::Metric {
            name: name.into(),
            timestamp: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
            tags: vec![wire::MetricTag { name: tag.into(), val: "one".into() }],
            vals: Vec::new(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_ring_is_bounded_in_number_and_age_and_counts_what_it_holds() {
        let samples = Samples::new(3, Duration::from_secs(100));
        for second in 0..5 {
            assert!(samples.add(sample("cpu", "app", second), at(second)).is_some());
        }
        assert_eq!(samples.counts(), Counts { app_insts: 3, cloudlets: 0 });
        assert!(samples.add(sample("disk", "cloudlet", 200), at(200)).is_some());
        assert_eq!(samples.counts(), Counts { app_insts: 0, cloudlets: 1 });
        assert!(samples.add(sample("", "app", 1), at(200)).is_none(), "a sample needs a name");
    }

    #[test]
    fn the_newest_are_listed_the_oldest_first() {
        let samples = Samples::new(100, Duration::from_secs(1000));
        for second in 0..10 {
            let name = if second % 2 == 0 { "cpu" } else { "disk" };
            samples.add(sample(name, "app", second), at(second));
        }
        let times = |request: ListSamplesRequest| -> Vec<i64> {
            samples.list(&request).iter().map(|sample| time_of(sample).0).collect()
        };
        let all = ListSamplesRequest::default();
        assert_eq!(times(all.clone()), (0..10).collect::<Vec<_>>());
        assert_eq!(times(ListSamplesRequest { limit: 2, ..all.clone() }), [8, 9]);
        let cpu = ListSamplesRequest { name: "cpu".into(), ..all.clone() };
        assert_eq!(times(ListSamplesRequest { limit: 2, ..cpu }), [6, 8]);
        let since = Some(prost_types::Timestamp { seconds: 7, nanos: 0 });
        assert_eq!(times(ListSamplesRequest { since, ..all.clone() }), [7, 8, 9]);
        let tags = BTreeMap::from([("app".to_owned(), "two".to_owned())]);
        assert_eq!(times(ListSamplesRequest { tags, ..all }), [0_i64; 0]);
    }

    #[test]
    fn a_sample_without_a_time_is_of_now() {
        let samples = Samples::new(10, Duration::from_secs(10));
        samples.add(wire::Metric { name: "cpu".into(), ..Default::default() }, at(7));
        let found = samples.list(&ListSamplesRequest::default());
        assert_eq!(time_of(found.first().unwrap()), (7, 0));
    }
}
