//! Usage of instances and of the cloudlet, as samples for the controller.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use selvage_api::edgeproto::{
    AppInstKey, CloudletKey, ClusterInstKey, Metric, MetricTag, MetricVal, metric_val::Value,
};
use selvage_edge::{
    ObjectKind,
    measurement::{CLOUDLET, CLUSTER, CONNECTIONS, INSTANCE, value},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    installed::Phase,
    platform::{ClusterSize, Resources, Usage},
    reconcile::AgentContext,
};

/// Sends samples until told to stop.
pub(crate) async fn run(
    agent: Arc<AgentContext>,
    cloudlet: CloudletKey,
    every: Duration,
    stop: CancellationToken,
) {
    let mut before: HashMap<String, (Usage, Instant)> = HashMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let mut now = HashMap::new();
        let mut clusters: HashMap<ClusterInstKey, Sum> = HashMap::new();
        let mut whole = Sum::default();
        agent.publisher.count().await;
        for (text, row) in agent.installed.all(ObjectKind::Instance) {
            let Ok(key) = AppInstKey::decode(row.key.as_slice()) else { continue };
            if row.phase != Phase::Made {
                continue;
            }
            // One that is being started again uses nothing.
            let Ok(usage) = agent.platform.usage(&key).await else { continue };
            let taken = Instant::now();
            let share = before.get(&text).map_or(0.0, |(earlier, at)| {
                share_of_core(earlier.cpu_ns, usage.cpu_ns, taken.duration_since(*at))
            });
            let tags = instance_tags(&key, &cloudlet);
            send(&agent, INSTANCE, tags.clone(), instance_values(share, &usage));
            let open = agent.publisher.connections(&text);
            if let Some(open) = open {
                let values =
                    vec![count(value::ACTIVE, open.active), count(value::TOTAL, open.total)];
                send(&agent, CONNECTIONS, tags, values);
            }
            let cluster = clusters.entry(key.cluster_inst_key.unwrap_or_default()).or_default();
            for sum in [cluster, &mut whole] {
                sum.add(share, &usage, open.unwrap_or_default().active);
            }
            now.insert(text, (usage, taken));
        }
        let Ok(all) = agent.platform.resources().await else { continue };
        send_clusters(&agent, &cloudlet, &clusters, &all);
        send(&agent, CLOUDLET, cloudlet_tags(&cloudlet), cloudlet_values(&whole, now.len(), &all));
        before = now;
    }
}

/// Usage of several instances together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    /// In hundredths of a core.
    share: f64,
    memory_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    connections: u64,
}

impl Sum {
    fn add(&mut self, share: f64, usage: &Usage, connections: u64) {
        self.share += share;
        self.memory_bytes += usage.memory_bytes;
        self.sent_bytes += usage.sent_bytes;
        self.received_bytes += usage.received_bytes;
        self.connections += connections;
    }
}

fn send_clusters(
    agent: &AgentContext,
    cloudlet: &CloudletKey,
    sums: &HashMap<ClusterInstKey, Sum>,
    all: &Resources,
) {
    for (_, row) in agent.installed.all(ObjectKind::Cluster) {
        let (Phase::Made, Some(facts)) = (row.phase, row.facts.cluster()) else { continue };
        let Ok(key) = ClusterInstKey::decode(row.key.as_slice()) else { continue };
        let sum = sums.get(&key).copied().unwrap_or_default();
        let mut tags = cloudlet_tags(cloudlet);
        tags.push(tag("cluster", &key.cluster_key.unwrap_or_default().name));
        tags.push(tag("dev", &key.developer));
        send(agent, CLUSTER, tags, cluster_values(&sum, facts.size, all));
    }
}

/// Shares are of what the cluster may use: of the whole cloudlet where nothing
/// else is said.
fn cluster_values(sum: &Sum, size: ClusterSize, all: &Resources) -> Vec<MetricVal> {
    let limit = |own: u64, whole: u64| if own == 0 { whole.max(1) } else { own } as f64;
    let memory = sum.memory_bytes as f64 / f64::from(1 << 20);
    vec![
        number(value::CPU, sum.share / limit(size.vcores, all.vcores)),
        number(value::MEMORY, memory * 100.0 / limit(size.ram, all.ram)),
        count(value::SENT, sum.sent_bytes),
        count(value::RECEIVED, sum.received_bytes),
        count(value::TCP_CONNECTIONS, sum.connections),
    ]
}

/// In hundredths.
fn share_of_core(before: u64, now: u64, passed: Duration) -> f64 {
    let passed = passed.as_nanos().max(1) as f64;
    now.saturating_sub(before) as f64 / passed * 100.0
}

fn tag(name: &str, value: &str) -> MetricTag {
    MetricTag { name: name.into(), val: value.into() }
}

fn count(name: &str, value: u64) -> MetricVal {
    MetricVal { name: name.into(), value: Some(Value::Ival(value)) }
}

fn number(name: &str, value: f64) -> MetricVal {
    MetricVal { name: name.into(), value: Some(Value::Dval(value)) }
}

fn cloudlet_tags(cloudlet: &CloudletKey) -> Vec<MetricTag> {
    let operator = cloudlet.operator_key.clone().unwrap_or_default();
    vec![tag("operator", &operator.name), tag("cloudlet", &cloudlet.name)]
}

fn instance_tags(key: &AppInstKey, cloudlet: &CloudletKey) -> Vec<MetricTag> {
    let cluster = key.cluster_inst_key.clone().unwrap_or_default();
    let app = key.app_key.clone().unwrap_or_default();
    let mut tags = cloudlet_tags(cloudlet);
    let developer = app.developer_key.unwrap_or_default().name;
    tags.push(tag("cluster", &cluster.cluster_key.unwrap_or_default().name));
    tags.push(tag("dev", &developer));
    tags.push(tag("app", &app.name));
    tags.push(tag("ver", &app.version));
    // Only where it cannot be told from the rest.
    if cluster.developer != developer {
        tags.push(tag("clusterdev", &cluster.developer));
    }
    tags
}

fn instance_values(share: f64, usage: &Usage) -> Vec<MetricVal> {
    vec![
        number(value::CPU, share),
        count(value::MEMORY, usage.memory_bytes),
        count(value::DISK, usage.disk_bytes),
        count(value::SENT, usage.sent_bytes),
        count(value::RECEIVED, usage.received_bytes),
    ]
}

fn cloudlet_values(used: &Sum, instances: usize, all: &Resources) -> Vec<MetricVal> {
    vec![
        number(value::CORES_USED, used.share / 100.0),
        count(value::MEMORY_USED, used.memory_bytes >> 20),
        count(value::MEMORY_MAX, all.ram),
        count(value::CORES, all.vcores),
        count(value::DISK_MAX, all.disk),
        count(value::INSTANCES, instances as u64),
    ]
}

fn send(agent: &AgentContext, name: &str, tags: Vec<MetricTag>, vals: Vec<MetricVal>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = prost_types::Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or_default(),
        nanos: i32::try_from(now.subsec_nanos()).unwrap_or_default(),
    };
    let metric = Metric { name: name.into(), timestamp: Some(timestamp), tags, vals };
    if let Err(error) = agent.client.post(&metric) {
        tracing::debug!(%error, "sample not sent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_busy_is_a_hundred() {
        let second = Duration::from_secs(1);
        assert!((share_of_core(0, 1_000_000_000, second) - 100.0).abs() < 1e-9);
        assert!(share_of_core(5, 3, second).abs() < 1e-9, "a counter that began anew");
        assert!(share_of_core(0, 0, Duration::ZERO).abs() < 1e-9);
    }

    #[test]
    fn a_cluster_is_measured_by_what_it_may_use() {
        let mut sum = Sum::default();
        let usage = Usage { memory_bytes: 32 << 20, sent_bytes: 5, ..Usage::default() };
        sum.add(50.0, &usage, 2);
        sum.add(150.0, &usage, 1);
        let all = Resources { ram: 6400, vcores: 8, ..Resources::default() };
        let size_sample = |size| {
            let values = cluster_values(&sum, size, &all);
            values.into_iter().map(|value| (value.name, value.value)).collect::<HashMap<_, _>>()
        };
        let own = size_sample(ClusterSize { vcores: 2, ram: 128, disk: 0 });
        assert_eq!(own["cpu"], Some(Value::Dval(100.0)));
        assert_eq!(own["mem"], Some(Value::Dval(50.0)));
        assert_eq!(
            (own["sendBytes"], own["tcpConns"]),
            (Some(Value::Ival(10)), Some(Value::Ival(3)))
        );
        let whole = size_sample(ClusterSize::default());
        assert_eq!((whole["cpu"], whole["mem"]), (Some(Value::Dval(25.0)), Some(Value::Dval(1.0))));
    }

    #[test]
    fn a_sample_names_the_developer_of_the_cluster_if_it_is_another() {
        let mut key = AppInstKey::default();
        let names = |key: &AppInstKey| {
            let tags = instance_tags(key, &CloudletKey::default());
            tags.into_iter().map(|tag| tag.name).collect::<Vec<_>>()
        };
        assert!(!names(&key).contains(&"clusterdev".to_owned()));
        key.cluster_inst_key = Some(ClusterInstKey { developer: "x".into(), ..Default::default() });
        assert!(names(&key).contains(&"clusterdev".to_owned()));
    }
}
