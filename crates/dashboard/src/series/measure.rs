//! Measurements taken of a snapshot.

use crate::{
    facts::{Exporter, Host, each},
    snapshot::Snapshot,
};

use super::Key;

/// A number that is kept over time.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
}

pub(super) const USED: &str = "used_bytes";
/// The kind of what is of no object in particular.
pub(crate) const SYSTEM: &str = "system";
/// The kind of machines that Prometheus scrapes.
const EXPORTER: &str = "exporter";

const fn metric(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    Metric { name, unit, help }
}

/// All of them.
pub(crate) const METRICS: &[Metric] = &[
    metric("cpu_percent", "percent", "CPU time in use, of all processors"),
    metric("memory_used_bytes", "bytes", "Memory that is not available"),
    metric("read_bytes", "bytes/s", "Read from disks"),
    metric("written_bytes", "bytes/s", "Written to disks"),
    metric("reads", "ops/s", "Reads from disks"),
    metric("writes", "ops/s", "Writes to disks"),
    metric("received_bytes", "bytes/s", "Received from the network"),
    metric("sent_bytes", "bytes/s", "Sent to the network"),
    metric(USED, "bytes", "Bytes in use"),
    metric("available_bytes", "bytes", "Bytes free"),
    metric("total", "count", "Objects of a kind"),
    metric("healthy", "count", "Objects of a kind that are as they should be"),
    metric("problems", "count", "Problems"),
    metric("mark", "score", "Score, 0 to 100"),
    metric("osds_up", "count", "OSDs of the Ceph cluster that are up"),
    metric("clean_pgs", "count", "Placement groups that are active and clean"),
];

struct Values(Vec<(Key, f64)>);

impl Values {
    fn add(&mut self, metric: &str, kind: &str, object: &str, value: f64) {
        let key = Key { metric: metric.into(), kind: kind.into(), object: object.into() };
        self.0.push((key, value));
    }
}

/// All values of a snapshot.
pub(super) fn measure(snapshot: &Snapshot) -> Vec<(Key, f64)> {
    let mut values = Values(Vec::new());
    let (facts, overview) = (&snapshot.facts, &snapshot.overview);
    let hosts: Vec<&Host> = each(&facts.hosts).filter(|host| host.error.is_empty()).collect();
    for host in &hosts {
        of_host(&mut values, "machine", &format!("node/{}", host.name), host);
    }
    if !hosts.is_empty() {
        of_host(&mut values, SYSTEM, "", &together(&hosts));
    }
    for host in each(&facts.exporters) {
        of_exporter(&mut values, host);
    }
    for capacity in &overview.capacity {
        let Some(object) = &capacity.object else { continue };
        values.add(USED, &object.kind, &object.name, capacity.used_bytes as f64);
        let free = capacity.available_bytes as f64;
        values.add("available_bytes", &object.kind, &object.name, free);
    }
    for count in &overview.counts {
        values.add("total", SYSTEM, &count.kind, count.total.into());
        values.add("healthy", SYSTEM, &count.kind, count.healthy.into());
    }
    for mark in &overview.radar {
        values.add("mark", SYSTEM, &mark.name, mark.value);
    }
    values.add("problems", SYSTEM, "", overview.problems_total.into());
    of_storage(&mut values, snapshot);
    values.0
}

fn of_host(values: &mut Values, kind: &str, name: &str, host: &Host) {
    values.add("cpu_percent", kind, name, host.cpu_percent);
    let used = host.memory_bytes.saturating_sub(host.memory_available);
    values.add("memory_used_bytes", kind, name, used as f64);
    values.add("read_bytes", kind, name, host.io.read_bytes);
    values.add("written_bytes", kind, name, host.io.written_bytes);
    values.add("reads", kind, name, host.io.reads);
    values.add("writes", kind, name, host.io.writes);
    values.add("received_bytes", kind, name, host.received);
    values.add("sent_bytes", kind, name, host.sent);
}

/// A machine that Prometheus scrapes.
fn of_exporter(values: &mut Values, host: &Exporter) {
    if let Some(cpu) = host.cpu_percent {
        values.add("cpu_percent", EXPORTER, &host.instance, cpu);
    }
    if host.memory_bytes > 0 {
        let used = host.memory_bytes.saturating_sub(host.memory_available);
        values.add("memory_used_bytes", EXPORTER, &host.instance, used as f64);
    }
}

/// All machines as one: CPU as the mean, the rest as the sum.
fn together(hosts: &[&Host]) -> Host {
    let mut sum = Host::default();
    for host in hosts {
        sum.cpu_percent += host.cpu_percent / hosts.len() as f64;
        sum.memory_bytes = sum.memory_bytes.saturating_add(host.memory_bytes);
        sum.memory_available = sum.memory_available.saturating_add(host.memory_available);
        sum.io.read_bytes += host.io.read_bytes;
        sum.io.written_bytes += host.io.written_bytes;
        sum.io.reads += host.io.reads;
        sum.io.writes += host.io.writes;
        sum.received += host.received;
        sum.sent += host.sent;
    }
    sum
}

fn of_storage(values: &mut Values, snapshot: &Snapshot) {
    let Some(storage) = &snapshot.facts.storage else { return };
    let name = storage.id.as_str();
    if let Some(io) = storage.io {
        values.add("read_bytes", "ceph", name, io.read_bytes);
        values.add("written_bytes", "ceph", name, io.written_bytes);
        values.add("reads", "ceph", name, io.reads);
        values.add("writes", "ceph", name, io.writes);
    }
    if let Some(osd) = &storage.osd {
        values.add("osds_up", "ceph", name, osd.up as f64);
    }
    if let Some(clean) = storage.clean_pgs {
        values.add("clean_pgs", "ceph", name, clean as f64);
    }
}
