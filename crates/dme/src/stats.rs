//! Counts of calls by method and app, and how long they took: counts since the
//! start of the process, sent as samples when they have changed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_api::edgeproto::{Metric, MetricTag, MetricVal, metric_val::Value};

use crate::table::AppName;

/// Name of the samples.
const SAMPLE: &str = "dme-api";
/// Upper ends of the times that are told apart, in ms; what takes longer than
/// all of them is counted as `inf`.
const BUCKETS: [(u64, &str); 5] =
    [(5, "5ms"), (10, "10ms"), (25, "25ms"), (50, "50ms"), (100, "100ms")];
const LONGER: &str = "inf";

/// A call that devices make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    RegisterClient,
    FindCloudlet,
    VerifyLocation,
    GetLocation,
    AddUserToGroup,
    GetAppInstList,
    GetFqdnList,
}

impl Method {
    const ALL: [Self; 7] = [
        Self::RegisterClient,
        Self::FindCloudlet,
        Self::VerifyLocation,
        Self::GetLocation,
        Self::AddUserToGroup,
        Self::GetAppInstList,
        Self::GetFqdnList,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RegisterClient => "RegisterClient",
            Self::FindCloudlet => "FindCloudlet",
            Self::VerifyLocation => "VerifyLocation",
            Self::GetLocation => "GetLocation",
            Self::AddUserToGroup => "AddUserToGroup",
            Self::GetAppInstList => "GetAppInstList",
            Self::GetFqdnList => "GetFqdnList",
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    errors: AtomicU64,
    times: [AtomicU64; BUCKETS.len() + 1],
    /// Number of calls that the last sample told of.
    reported: AtomicU64,
}

/// The counts of one app.
#[derive(Debug, Default)]
pub(crate) struct AppStats([Counts; Method::ALL.len()]);

impl AppStats {
    /// Counts a call.
    pub(crate) fn count(&self, method: Method, took: Duration, failed: bool) {
        let counts = &self.0[method as usize];
        let bucket = BUCKETS.iter().position(|(end, _)| took < Duration::from_millis(*end));
        counts.times[bucket.unwrap_or(BUCKETS.len())].fetch_add(1, Relaxed);
        if failed {
            counts.errors.fetch_add(1, Relaxed);
        }
        // Last, so that a sample that has the call has the rest of it too.
        counts.calls.fetch_add(1, std::sync::atomic::Ordering::Release);
    }
}

/// Origin of samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    pub(crate) operator: String,
    pub(crate) cloudlet: String,
    pub(crate) id: String,
}

/// The counts of all apps that there are or were.
#[derive(Debug, Default)]
pub struct Stats(Mutex<BTreeMap<AppName, Arc<AppStats>>>);

impl Stats {
    pub(crate) fn of(&self, app: &AppName) -> Arc<AppStats> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(app) {
            return Arc::clone(known);
        }
        Arc::clone(all.entry(app.clone()).or_default())
    }

    /// The counts of an app that is or was known.
    pub(crate) fn find(&self, app: &AppName) -> Option<Arc<AppStats>> {
        self.0.lock().get(app).cloned()
    }

    /// A sample for every app and method whose counts changed since the last
    /// time this was asked.
    pub(crate) fn changed(&self, origin: &Origin, now: Timestamp) -> Vec<Metric> {
        let all: Vec<_> =
            self.0.lock().iter().map(|(name, stats)| (name.clone(), Arc::clone(stats))).collect();
        let mut samples = Vec::new();
        for (app, stats) in &all {
            for (method, counts) in Method::ALL.into_iter().zip(&stats.0) {
                let calls = counts.calls.load(std::sync::atomic::Ordering::Acquire);
                if counts.reported.swap(calls, Relaxed) != calls {
                    samples.push(sample(app, method, counts, calls, origin, now));
                }
            }
        }
        samples
    }
}

fn sample(
    app: &AppName,
    method: Method,
    counts: &Counts,
    calls: u64,
    origin: &Origin,
    now: Timestamp,
) -> Metric {
    let tags = [
        ("dev", &*app.developer),
        ("app", &*app.name),
        ("ver", &*app.version),
        ("oper", &*origin.operator),
        ("cloudlet", &*origin.cloudlet),
        ("id", &*origin.id),
        ("method", method.name()),
    ];
    let names = BUCKETS.iter().map(|(_, name)| *name).chain([LONGER]);
    let times = names.zip(counts.times.iter().map(|count| count.load(Relaxed)));
    let figures = [("reqs", calls), ("errs", counts.errors.load(Relaxed))];
    Metric {
        name: SAMPLE.into(),
        timestamp: Some(prost_types::Timestamp {
            seconds: now.as_second(),
            nanos: now.subsec_nanosecond(),
        }),
        tags: tags.map(|(name, val)| MetricTag { name: name.into(), val: val.into() }).to_vec(),
        vals: figures
            .into_iter()
            .chain(times)
            .map(|(name, count)| MetricVal { name: name.into(), value: Some(Value::Ival(count)) })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn value(sample: &Metric, name: &str) -> u64 {
        let found = sample.vals.iter().find(|val| val.name == name).unwrap();
        match found.value {
            Some(Value::Ival(count)) => count,
            _ => panic!("{name} is not a count"),
        }
    }

    /// A hundred threads count while samples are taken: nothing is lost, and
    /// nothing is told twice.
    #[test]
    fn sums_are_exact_under_load() {
        let stats = Arc::new(Stats::default());
        let threads = (0..100).map(|number| {
            let stats = Arc::clone(&stats);
            std::thread::spawn(move || {
                for call in 0..10 {
                    let app = AppName::new("dev", format!("app{}", (number + call) % 100), "1.0");
                    let took = Duration::from_millis(call * 20);
                    stats.of(&app).count(Method::FindCloudlet, took, call == 9);
                    std::thread::yield_now();
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut newest = BTreeMap::new();
        let mut take = || {
            for sample in stats.changed(&Origin::default(), Timestamp::UNIX_EPOCH) {
                newest.insert(sample.tags[1].val.clone(), sample);
            }
        };
        take();
        for thread in threads {
            thread.join().unwrap();
        }
        take();
        assert_eq!(newest.len(), 100);
        let sum = |name: &str| newest.values().map(|sample| value(sample, name)).sum::<u64>();
        assert_eq!((sum("reqs"), sum("errs")), (1000, 100));
        assert_eq!(sum("5ms") + sum("25ms") + sum("50ms") + sum("100ms") + sum("inf"), 1000);
    }

    #[test]
    fn what_takes_long_is_counted_once_as_longer_than_all() {
        let stats = Stats::default();
        let app = AppName::new("dev", "app", "1.0");
        for millis in [0, 5, 10, 25, 50, 99, 100, 5000] {
            let took = Duration::from_millis(millis);
            stats.of(&app).count(Method::GetLocation, took, false);
        }
        let origin = Origin { operator: "TMUS".into(), cloudlet: "west".into(), id: "one".into() };
        let samples = stats.changed(&origin, Timestamp::UNIX_EPOCH);
        let [sample] = samples.as_slice() else { panic!("{samples:?}") };
        let names = ["reqs", "errs", "5ms", "10ms", "25ms", "50ms", "100ms", "inf"];
        assert_eq!(names.map(|name| value(sample, name)), [8, 0, 1, 1, 1, 1, 2, 2]);
        let tags: Vec<_> = sample.tags.iter().map(|tag| (&*tag.name, &*tag.val)).collect();
        let expected = [
            ("dev", "dev"),
            ("app", "app"),
            ("ver", "1.0"),
            ("oper", "TMUS"),
            ("cloudlet", "west"),
            ("id", "one"),
            ("method", "GetLocation"),
        ];
        assert_eq!(tags, expected);
    }

    #[test]
    fn nothing_is_reported_while_nothing_happens() {
        let stats = Stats::default();
        let app = AppName::new("dev", "app", "1.0");
        let reported = || stats.changed(&Origin::default(), Timestamp::UNIX_EPOCH).len();
        assert_eq!(reported(), 0);
        stats.of(&app);
        assert_eq!(reported(), 0, "an app without calls");
        stats.of(&app).count(Method::FindCloudlet, Duration::ZERO, false);
        assert_eq!((reported(), reported()), (1, 0));
    }
}
