//! What instances and the cloudlet use, as samples for the controller.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use selvage_api::edgeproto::{
    AppInstKey, CloudletKey, Metric, MetricTag, MetricVal, metric_val::Value,
};
use selvage_cloudlet::What;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    books::Phase,
    drive::World,
    platform::{Resources, Usage},
};

/// Samples of one instance,
const INSTANCE: &str = "crm-appinst";
/// of the connections to it,
const CONNECTIONS: &str = "appinst-connections";
/// and of the cloudlet.
const CLOUDLET: &str = "cloudlet-utilization";

/// Sends samples until told to stop.
pub(crate) async fn run(
    world: Arc<World>,
    cloudlet: CloudletKey,
    every: Duration,
    stop: CancellationToken,
) {
    let mut before: HashMap<String, (Usage, Instant)> = HashMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let mut now = HashMap::new();
        for (text, row) in world.books.all(What::Instance) {
            let Ok(key) = AppInstKey::decode(row.key.as_slice()) else { continue };
            if row.phase != Phase::Made {
                continue;
            }
            // One that is being started again uses nothing.
            let Ok(usage) = world.platform.usage(&key).await else { continue };
            let taken = Instant::now();
            let share = before.get(&text).map_or(0.0, |(earlier, at)| {
                share_of_core(earlier.cpu_ns, usage.cpu_ns, taken.duration_since(*at))
            });
            let tags = instance_tags(&key, &cloudlet);
            send(&world, INSTANCE, tags.clone(), instance_values(share, &usage));
            if let Some(open) = world.publisher.connections(&text) {
                let values = vec![count("active", open.0), count("total", open.1)];
                send(&world, CONNECTIONS, tags, values);
            }
            now.insert(text, (usage, taken));
        }
        let used = now.values().map(|(usage, _)| usage.memory_bytes).sum();
        if let Ok(all) = world.platform.resources().await {
            send(
                &world,
                CLOUDLET,
                cloudlet_tags(&cloudlet),
                cloudlet_values(used, now.len(), &all),
            );
        }
        before = now;
    }
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

fn cloudlet_tags(cloudlet: &CloudletKey) -> Vec<MetricTag> {
    let operator = cloudlet.operator_key.clone().unwrap_or_default();
    vec![tag("operator", &operator.name), tag("cloudlet", &cloudlet.name)]
}

fn instance_tags(key: &AppInstKey, cloudlet: &CloudletKey) -> Vec<MetricTag> {
    let cluster = key.cluster_inst_key.clone().unwrap_or_default();
    let app = key.app_key.clone().unwrap_or_default();
    let mut tags = cloudlet_tags(cloudlet);
    tags.push(tag("cluster", &cluster.cluster_key.unwrap_or_default().name));
    tags.push(tag("dev", &app.developer_key.unwrap_or_default().name));
    tags.push(tag("app", &app.name));
    tags.push(tag("ver", &app.version));
    tags
}

fn instance_values(share: f64, usage: &Usage) -> Vec<MetricVal> {
    vec![
        MetricVal { name: "cpu".into(), value: Some(Value::Dval(share)) },
        count("mem", usage.memory_bytes),
        count("disk", usage.disk_bytes),
        count("sendBytes", usage.sent_bytes),
        count("recvBytes", usage.received_bytes),
    ]
}

fn cloudlet_values(memory: u64, instances: usize, all: &Resources) -> Vec<MetricVal> {
    vec![
        count("memUsed", memory >> 20),
        count("memMax", all.ram),
        count("vCpuMax", all.vcores),
        count("diskMax", all.disk),
        count("appInsts", instances as u64),
    ]
}

fn send(world: &World, name: &str, tags: Vec<MetricTag>, vals: Vec<MetricVal>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = prost_types::Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or_default(),
        nanos: i32::try_from(now.subsec_nanos()).unwrap_or_default(),
    };
    let metric = Metric { name: name.into(), timestamp: Some(timestamp), tags, vals };
    if let Err(error) = world.client.post(&metric) {
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
}
