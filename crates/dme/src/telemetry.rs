//! Metrics of the engine for whoever watches the process.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use selvage_kit::telemetry::Metrics;

use crate::part::Dme;

struct DmeCollector(Dme);

impl fmt::Debug for DmeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector for DmeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let table = self.0.engine().feed().table();
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        let staleness = self.0.staleness().as_secs_f64();
        gauge(
            "selvage_dme_staleness_seconds",
            "How long ago the engine was last in step with a controller",
            staleness,
        )?;
        gauge("selvage_dme_apps", "Apps that are known", signed(table.app_count()) as f64)?;
        gauge(
            "selvage_dme_instances",
            "Instances that devices may be sent to",
            signed(table.instance_count()) as f64,
        )?;
        if let Some(pending) = self.0.mirror_pending() {
            gauge(
                "selvage_dme_mirror_pending",
                "Changes that are not on disk yet",
                signed(pending) as f64,
            )?;
        }
        let stats = self.0.upstream_stats();
        let help = "What happened on the connection to controllers";
        let name = "selvage_dme_notify_events";
        let mut events = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (event, count) in stats.counters() {
            let labels = [("event", event)];
            ConstCounter::new(count).encode(events.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

pub(crate) fn watch(dme: &Dme, metrics: &Metrics) {
    let shown = Box::new(DmeCollector(dme.clone()));
    metrics.with_registry(|registry| registry.register_collector(shown));
}
