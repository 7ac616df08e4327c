//! The newest sample of every instance, cluster and cloudlet, as a page for
//! whoever watches the process. There are never more than there are things
//! that are sampled: what is gone, or silent for long, is forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use parking_lot::RwLock;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use selvage_api::edgeproto as wire;
use selvage_edge::measurement::{CLOUDLET, CLUSTER, CONNECTIONS, INSTANCE, value};
use selvage_samples::{APP_TAG, CLOUDLET_TAG, CLUSTER_TAG};
use wire::metric_val::Value;

use crate::tables::Tables;

/// Most things that are shown.
const SHOWN: usize = 50_000;
/// Longest silence of something that is shown, in seconds.
const SILENT: i64 = 300;

/// Tags, and what they are called on the page.
const LABELS: [(&str, &str); 6] = [
    ("operator", "operator"),
    (CLOUDLET_TAG, "cloudlet"),
    (CLUSTER_TAG, "cluster"),
    ("dev", "developer"),
    (APP_TAG, "app"),
    ("ver", "version"),
];

/// A value of a measurement on the page.
struct Column {
    measurement: &'static str,
    value: &'static str,
    name: &'static str,
    help: &'static str,
    counts_up: bool,
}

const fn column(
    (measurement, value): (&'static str, &'static str),
    name: &'static str,
    help: &'static str,
    counts_up: bool,
) -> Column {
    Column { measurement, value, name, help, counts_up }
}

#[rustfmt::skip]
const COLUMNS: [Column; 18] = [
    column((INSTANCE, value::CPU), "selvage_app_inst_cpu_percent", "Of one core", false),
    column((INSTANCE, value::MEMORY), "selvage_app_inst_memory_bytes", "In use", false),
    column((INSTANCE, value::DISK), "selvage_app_inst_disk_bytes", "On disk", false),
    column((INSTANCE, value::SENT), "selvage_app_inst_sent_bytes", "To the network", true),
    column((INSTANCE, value::RECEIVED), "selvage_app_inst_received_bytes", "From the network", true),
    column((CONNECTIONS, value::ACTIVE), "selvage_app_inst_connections_open", "At public ports", false),
    column((CONNECTIONS, value::TOTAL), "selvage_app_inst_connections", "At public ports so far", true),
    column((CLUSTER, value::CPU), "selvage_cluster_cpu_percent", "Of what it may use", false),
    column((CLUSTER, value::MEMORY), "selvage_cluster_memory_percent", "Of what it may use", false),
    column((CLUSTER, value::SENT), "selvage_cluster_sent_bytes", "By its instances", false),
    column((CLUSTER, value::RECEIVED), "selvage_cluster_received_bytes", "By its instances", false),
    column((CLUSTER, value::TCP_CONNECTIONS), "selvage_cluster_connections_open", "At public ports", false),
    column((CLOUDLET, value::CORES_USED), "selvage_cloudlet_cores_used", "By instances", false),
    column((CLOUDLET, value::CORES), "selvage_cloudlet_cores", "That there are", false),
    column((CLOUDLET, value::MEMORY_USED), "selvage_cloudlet_memory_used_megabytes", "By instances", false),
    column((CLOUDLET, value::MEMORY_MAX), "selvage_cloudlet_memory_megabytes", "That there are", false),
    column((CLOUDLET, value::DISK_MAX), "selvage_cloudlet_disk_gigabytes", "That there are", false),
    column((CLOUDLET, value::INSTANCES), "selvage_cloudlet_app_insts", "That run", false),
];

/// Subject of a sample.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Instance(Box<wire::AppInstKey>),
    Cluster(wire::ClusterInstKey),
    Cloudlet(wire::CloudletKey),
}

impl Of {
    fn read(sample: &wire::Metric) -> Self {
        let tag = |name: &str| tag(sample, name).to_owned();
        let cloudlet = wire::CloudletKey {
            operator_key: Some(wire::OperatorKey { name: tag("operator") }),
            name: tag(CLOUDLET_TAG),
        };
        let has = |name: &str| sample.tags.iter().any(|tag| tag.name == name);
        if !has(CLUSTER_TAG) {
            return Self::Cloudlet(cloudlet);
        }
        let developer = if has("clusterdev") { tag("clusterdev") } else { tag("dev") };
        let cluster = wire::ClusterInstKey {
            cluster_key: Some(wire::ClusterKey { name: tag(CLUSTER_TAG) }),
            cloudlet_key: Some(cloudlet),
            developer,
        };
        if !has(APP_TAG) {
            return Self::Cluster(cluster);
        }
        Self::Instance(Box::new(wire::AppInstKey {
            app_key: Some(wire::AppKey {
                developer_key: Some(wire::DeveloperKey { name: tag("dev") }),
                name: tag(APP_TAG),
                version: tag("ver"),
            }),
            cluster_inst_key: Some(cluster),
        }))
    }

    pub(crate) fn is_there(&self, tables: &Tables) -> bool {
        match self {
            Self::Instance(key) => tables.get::<wire::AppInst>(key).is_some(),
            Self::Cluster(key) => tables.get::<wire::ClusterInst>(key).is_some(),
            Self::Cloudlet(key) => tables.get::<wire::Cloudlet>(key).is_some(),
        }
    }
}

fn tag<'a>(sample: &'a wire::Metric, name: &str) -> &'a str {
    sample.tags.iter().find(|tag| tag.name == name).map_or("", |tag| tag.val.as_str())
}

type Series = (&'static str, [String; LABELS.len()]);

#[derive(Debug, Default)]
pub(crate) struct Newest {
    /// With the second in which each came: clocks of agents may be wrong.
    series: RwLock<BTreeMap<Series, (i64, Arc<wire::Metric>)>>,
    not_shown: AtomicU64,
}

impl Newest {
    /// Takes a sample, if it is of something that is shown.
    pub(crate) fn put(&self, sample: &Arc<wire::Metric>, now: Timestamp) {
        let known = COLUMNS.iter().find(|column| column.measurement == sample.name);
        let Some(measurement) = known.map(|column| column.measurement) else { return };
        let key = (measurement, LABELS.map(|(name, _)| tag(sample, name).to_owned()));
        let mut series = self.series.write();
        if series.len() >= SHOWN && !series.contains_key(&key) {
            self.not_shown.fetch_add(1, Ordering::Relaxed);
            return;
        }
        series.insert(key, (now.as_second(), Arc::clone(sample)));
    }

    /// Forgets what is gone or silent.
    pub(crate) fn forget(&self, now: Timestamp, is_there: impl Fn(&Of) -> bool) {
        let oldest = now.as_second().saturating_sub(SILENT);
        let mut series = self.series.write();
        series.retain(|_, (came, sample)| *came >= oldest && is_there(&Of::read(sample)));
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.series.read();
        for column in &COLUMNS {
            let kind = if column.counts_up { MetricType::Counter } else { MetricType::Gauge };
            let mut family = encoder.encode_descriptor(column.name, column.help, None, kind)?;
            let of_measurement = series.iter().filter(|((name, _), _)| *name == column.measurement);
            for ((_, labels), (_, sample)) in of_measurement {
                let value = sample.vals.iter().find(|value| value.name == column.value);
                let Some(value) = value.and_then(|value| value.value) else { continue };
                let named: Vec<(&str, &str)> = LABELS
                    .iter()
                    .zip(labels)
                    .map(|((_, name), value)| (*name, value.as_str()))
                    .filter(|(_, value)| !value.is_empty())
                    .collect();
                let place = family.encode_family(&named)?;
                match value {
                    Value::Ival(number) if column.counts_up => {
                        ConstCounter::new(number).encode(place)?;
                    }
                    Value::Ival(number) => {
                        ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX)).encode(place)?;
                    }
                    Value::Dval(number) => ConstGauge::new(number).encode(place)?,
                }
            }
        }
        let help = "Samples of things beyond the number that is shown";
        let name = "selvage_samples_not_shown";
        let beyond = ConstCounter::new(self.not_shown.load(Ordering::Relaxed));
        beyond.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

#[cfg(test)]
mod tests;
