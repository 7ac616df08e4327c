//! Metrics of the name server for whoever watches the process.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hickory_proto::op::ResponseCode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use selvage_kit::telemetry::Metrics;

use crate::directory::Directory;

/// Codes that are counted each for itself, with their names.
const CODES: [(ResponseCode, &str); 6] = [
    (ResponseCode::NoError, "noerror"),
    (ResponseCode::NXDomain, "nxdomain"),
    (ResponseCode::Refused, "refused"),
    (ResponseCode::FormErr, "formerr"),
    (ResponseCode::ServFail, "servfail"),
    (ResponseCode::NotImp, "notimp"),
];

/// Counts of answers.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    codes: [AtomicU64; CODES.len()],
    other: AtomicU64,
    limited: AtomicU64,
}

impl Counts {
    /// Counts an answer.
    pub(crate) fn count(&self, code: ResponseCode) {
        let index = CODES.iter().position(|(known, _)| *known == code);
        let counter = index.and_then(|index| self.codes.get(index)).unwrap_or(&self.other);
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a question that met a limit.
    pub(crate) fn limited(&self) {
        self.limited.fetch_add(1, Ordering::Relaxed);
    }
}

struct DnsCollector {
    directory: Arc<Directory>,
    counts: Arc<Counts>,
}

impl fmt::Debug for DnsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector for DnsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let zones = self.directory.zones();
        let names: usize =
            zones.iter().flat_map(|it| it.iter()).map(|zone| zone.name_count()).sum();
        let gauge = ConstGauge::new(i64::try_from(names).unwrap_or(i64::MAX));
        let help = "Names that the name server knows something of";
        let name = "selvage_dns_names";
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let help = "Answers of the name server, by their code; limited: questions beyond a limit";
        let name = "selvage_dns_answers";
        let mut answers = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let named = CODES.iter().map(|(_, name)| *name).zip(&self.counts.codes);
        let rest = [("other", &self.counts.other), ("limited", &self.counts.limited)];
        for (code, count) in named.chain(rest) {
            let labels = [("code", code)];
            let counter = ConstCounter::new(count.load(Ordering::Relaxed));
            counter.encode(answers.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

pub(crate) fn watch(directory: &Arc<Directory>, counts: &Arc<Counts>, metrics: &Metrics) {
    let shown = DnsCollector { directory: Arc::clone(directory), counts: Arc::clone(counts) };
    metrics.with_registry(|registry| registry.register_collector(Box::new(shown)));
}
