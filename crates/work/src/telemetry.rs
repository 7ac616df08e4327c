//! Reconcilers among the metrics of a process.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use selvage_kit::telemetry::Metrics;

use crate::{ReconcilerStatus, Reconcilers};

struct Collected(Reconcilers);

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Reconcilers {
    /// Shows all reconcilers among the metrics of a process.
    pub fn watch(&self, metrics: &Metrics) {
        let collected = Box::new(Collected(self.clone()));
        metrics.with_registry(|registry| registry.register_collector(collected));
    }
}

type Value = fn(&ReconcilerStatus) -> f64;

const COUNTERS: [(&str, &str, Value); 2] = [
    ("selvage_reconciler_runs", "Runs of a reconciler that ended", |one| one.runs as f64),
    ("selvage_reconciler_failures", "Runs of a reconciler that failed", |one| one.failures as f64),
];

const GAUGES: [(&str, &str, Value); 3] = [
    ("selvage_reconciler_queue", "Keys that wait for a run", |one| one.queue as f64),
    ("selvage_reconciler_failing", "Failures in a row", |one| f64::from(one.failing)),
    (
        "selvage_reconciler_last_run_timestamp_seconds",
        "When a reconciler last ended a run, in seconds since 1970",
        |one| one.last_finish.unwrap_or(0) as f64 / 1000.0,
    ),
];

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.0.list();
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for one in &all {
                let labels = [("name", one.name.as_str())];
                ConstCounter::new(value(one)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &all {
                let labels = [("name", one.name.as_str())];
                ConstGauge::new(value(one)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
