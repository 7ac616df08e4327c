//! Usage of pods: from the nodes they run on, which count everything since a
//! pod began; else from the metrics API, which knows processors and memory as
//! they are; else nothing.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use selvage_kube::{kube::Client, name, quantity};
use serde_json::Value;
use tokio::time::Instant;

use crate::{Error, Result, platform::Usage};

/// Time on processors that was added up from what the metrics API said.
#[derive(Default)]
pub(super) struct Meter {
    sums: Mutex<HashMap<String, (Instant, f64)>>,
}

impl Meter {
    /// Takes a share of processors as it is now; nanoseconds since the first.
    fn add(&self, id: &str, cores: f64, now: Instant) -> u64 {
        let mut sums = self.sums.lock();
        let (at, sum) = sums.entry(id.to_owned()).or_insert((now, 0.0));
        *sum += cores * now.duration_since(*at).as_nanos() as f64;
        *at = now;
        *sum as u64
    }

    pub(super) fn forget(&self, id: &str) {
        self.sums.lock().remove(id);
    }

    pub(super) async fn usage(&self, client: &Client, id: &str, pods: &[Value]) -> Usage {
        if let Ok(usage) = by_nodes(client, pods).await {
            return usage;
        }
        let Ok((cores, memory_bytes)) = by_metrics(client, pods).await else {
            return Usage::default();
        };
        Usage { cpu_ns: self.add(id, cores, Instant::now()), memory_bytes, ..Usage::default() }
    }
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let wrong = |error: &dyn std::error::Error| Error::state(error.to_string());
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| wrong(&error))?;
    client.request(request).await.map_err(|error| wrong(&error))
}

async fn by_nodes(client: &Client, pods: &[Value]) -> Result<Usage> {
    let on = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
    let nodes: BTreeSet<String> = pods.iter().filter_map(on).collect();
    let mut usage = Usage::default();
    for node in nodes {
        let summary = get(client, &format!("/api/v1/nodes/{node}/proxy/stats/summary")).await?;
        for found in summary["pods"].as_array().into_iter().flatten() {
            if pods.iter().any(|pod| is_same(pod, &found["podRef"])) {
                add(&mut usage, found);
            }
        }
    }
    Ok(usage)
}

fn is_same(pod: &Value, reference: &Value) -> bool {
    let metadata = &pod["metadata"];
    metadata["name"] == reference["name"] && metadata["namespace"] == reference["namespace"]
}

fn add(usage: &mut Usage, pod: &Value) {
    let count = |path: &str| pod.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    usage.cpu_ns += count("/cpu/usageCoreNanoSeconds");
    usage.memory_bytes += count("/memory/workingSetBytes");
    usage.disk_bytes += count("/ephemeral-storage/usedBytes");
    usage.sent_bytes += count("/network/txBytes");
    usage.received_bytes += count("/network/rxBytes");
}

/// Processors in use, and memory.
async fn by_metrics(client: &Client, pods: &[Value]) -> Result<(f64, u64)> {
    let (mut cores, mut memory) = (0.0, 0);
    for pod in pods {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let path =
            format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{}", name(pod));
        let summary = get(client, &path).await?;
        for container in summary["containers"].as_array().into_iter().flatten() {
            let amount =
                |name: &str| container["usage"][name].as_str().unwrap_or_default().to_owned();
            cores += quantity::parse(&amount("cpu")).unwrap_or_default();
            memory += quantity::whole(&amount("memory"));
        }
    }
    Ok((cores, memory))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_share_of_processors_becomes_time_on_them() {
        let meter = Meter::default();
        let start = Instant::now();
        assert_eq!(meter.add("a", 0.5, start), 0);
        assert_eq!(meter.add("a", 0.5, start + Duration::from_secs(2)), 1_000_000_000);
        assert_eq!(meter.add("b", 4.0, start), 0);
        meter.forget("a");
        assert_eq!(meter.add("a", 0.5, start), 0);
    }

    #[test]
    fn what_a_node_counts_is_added_up() {
        let mut usage = Usage::default();
        let pod = json!({
            "cpu": { "usageCoreNanoSeconds": 5 }, "memory": { "workingSetBytes": 7 },
            "network": { "txBytes": 11, "rxBytes": 13 }, "ephemeral-storage": { "usedBytes": 17 },
        });
        add(&mut usage, &pod);
        add(&mut usage, &pod);
        add(&mut usage, &json!({}));
        let wanted = Usage {
            cpu_ns: 10,
            memory_bytes: 14,
            disk_bytes: 34,
            sent_bytes: 22,
            received_bytes: 26,
        };
        assert_eq!(usage, wanted);
    }
}
