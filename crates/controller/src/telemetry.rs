//! Counters of agents and gauges of their samples, for whoever watches the
//! process.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use selvage_kit::telemetry::Metrics;
use selvage_notify::NotifyServer;

use crate::controller::Controller;
use crate::state::ControllerState;

#[derive(Debug)]
struct Agents(NotifyServer);

impl Collector for Agents {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let notify = &self.0;
        let streams = ConstGauge::new(i64::try_from(notify.peers().len()).unwrap_or(i64::MAX));
        let help = "Connections of agents";
        let name = "selvage_notify_streams";
        streams.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let help = "What happened on connections of agents";
        let name = "selvage_notify_events";
        let mut events = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (event, count) in notify.totals().counters() {
            let labels = [("event", event)];
            ConstCounter::new(count).encode(events.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// The newest samples, and what became of those that go to a database.
#[derive(Debug)]
struct Newest(Arc<ControllerState>);

impl Collector for Newest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let controller = &self.0;
        let newest = &controller.memory.newest;
        newest.forget(controller.clock.now(), |of| of.is_there(&controller.tables));
        newest.encode(&mut encoder)?;
        let help = "Samples of agents that were not taken, by why";
        let name = "selvage_samples_refused";
        let mut refused = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (reason, count) in controller.memory.refused.counts() {
            ConstCounter::new(count).encode(refused.encode_family(&[("reason", reason)])?)?;
        }
        let Some(sink) = &controller.memory.influx else { return Ok(()) };
        let help = "Samples for the database, by what became of them";
        let name = "selvage_influx_points";
        let mut points = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (outcome, count) in sink.counts() {
            ConstCounter::new(count).encode(points.encode_family(&[("outcome", outcome)])?)?;
        }
        Ok(())
    }
}

/// Adds the connections and the samples to what is shown.
pub(crate) fn watch(controller: &Arc<Controller>, metrics: &Metrics) {
    let agents = Box::new(Agents(controller.notify().clone()));
    let newest = Box::new(Newest(Arc::clone(controller.state())));
    metrics.with_registry(|registry| {
        registry.register_collector(agents);
        registry.register_collector(newest);
    });
}
