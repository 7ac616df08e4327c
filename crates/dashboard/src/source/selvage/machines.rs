//! The machines of the inventory, and the numbers that their agents tell.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use selvage_api::selvage::{
    dashboard::Object,
    identity::{
        ListMachinesRequest, Machine as Listed, identity_service_client::IdentityServiceClient,
    },
    node::{GetHostRequest, Host as WireHost, node_service_client::NodeServiceClient},
};
use tonic::{Request, metadata::MetadataValue, transport::Channel};

use super::{Failure, Probe, failure, time};
use crate::{
    facts::{Data, Host, Io, Machine, Section},
    source::sum,
};

const LARGEST: usize = 64 << 20;
/// Label keys that say what a machine does.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";

pub(super) struct Machines {
    client: IdentityServiceClient<Channel>,
    every: Duration,
}

impl Machines {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = IdentityServiceClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every }
    }
}

#[async_trait]
impl Probe for Machines {
    fn section(&self) -> Section {
        Section::Machines
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let listed = self.client.list_machines(ListMachinesRequest::default()).await;
        let listed = listed.map_err(|status| failure(&status))?.into_inner().machines;
        let found: Vec<Machine> = listed.into_iter().map(machine).collect();
        Ok(Data::Machines(found.into()))
    }
}

fn machine(listed: Listed) -> Machine {
    let name = listed.machine.split_once('/').map_or(listed.machine.as_str(), |(_, name)| name);
    Machine {
        name: name.to_owned(),
        roles: roles(&listed),
        joined: time(listed.joined_at),
        last_seen: time(listed.last_seen),
        certificate_ends: time(listed.certificate_ends),
        copy_suspected: time(listed.copy_suspected_at),
        blocked: listed.blocked,
        address: listed.address,
        object: Object { kind: "machine".into(), name: listed.machine, ..Object::default() },
    }
}

/// Roles of a machine by its name and labels, sorted.
fn roles(listed: &Listed) -> Vec<String> {
    let mut roles: Vec<String> = listed
        .labels
        .keys()
        .filter_map(|key| key.strip_prefix(ROLE_PREFIX))
        .map(Into::into)
        .collect();
    roles.extend(listed.labels.get("role").cloned());
    roles.extend(listed.machine.split_once('/').map(|(kind, _)| kind.to_owned()));
    roles.sort();
    roles.dedup();
    roles
}

/// Counters of a machine since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    read_bytes: u64,
    written_bytes: u64,
    reads: u64,
    writes: u64,
    received: u64,
    sent: u64,
}

pub(super) struct Hosts {
    client: NodeServiceClient<Channel>,
    every: Duration,
    /// Counters of each at its last answer, for rates.
    counted: HashMap<String, (jiff::Timestamp, Counters)>,
}

impl Hosts {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = NodeServiceClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every, counted: HashMap::new() }
    }
}

#[async_trait]
impl Probe for Hosts {
    fn section(&self) -> Section {
        Section::Hosts
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(15)
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let mut request = Request::new(GetHostRequest {});
        let metadata = request.metadata_mut();
        // All machines at once; one that is away does not hold up the others.
        metadata.insert("nodes", MetadataValue::from_static("all"));
        metadata.insert("node-timeout", MetadataValue::from_static("3S"));
        let asked = jiff::Timestamp::now();
        let hosts = match self.client.get_host(request).await {
            // No machine has joined.
            Err(status) if status.code() == tonic::Code::NotFound => Vec::new(),
            answer => answer.map_err(|status| failure(&status))?.into_inner().messages,
        };
        let answered = jiff::Timestamp::now();
        let mut counted = HashMap::new();
        let mut found = Vec::new();
        for wire in hosts {
            let (at, counters) = (time(wire.time).unwrap_or(answered), counters(&wire));
            let mut host = describe(wire, asked, answered);
            if let Some((before, old)) = self.counted.get(&host.name) {
                rates(&mut host, &counters, old, at.duration_since(*before).as_secs_f64());
            }
            counted.insert(host.name.clone(), (at, counters));
            found.push(host);
        }
        self.counted = counted;
        Ok(Data::Hosts(found.into()))
    }
}

fn counters(host: &WireHost) -> Counters {
    let disks = || host.disks.iter().filter(|disk| !is_partition(disk, &host.disks));
    let outside = || host.interfaces.iter().filter(|interface| interface.name != "lo");
    Counters {
        read_bytes: sum(disks().map(|disk| disk.read_bytes)),
        written_bytes: sum(disks().map(|disk| disk.written_bytes)),
        reads: sum(disks().map(|disk| disk.reads)),
        writes: sum(disks().map(|disk| disk.writes)),
        received: sum(outside().map(|interface| interface.received_bytes)),
        sent: sum(outside().map(|interface| interface.sent_bytes)),
    }
}

/// A counter that went back was begun anew: no rate is known.
fn rates(host: &mut Host, new: &Counters, old: &Counters, seconds: f64) {
    if seconds < 0.5 {
        return;
    }
    let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
    host.io = Io {
        read_bytes: rate(new.read_bytes, old.read_bytes),
        written_bytes: rate(new.written_bytes, old.written_bytes),
        reads: rate(new.reads, old.reads),
        writes: rate(new.writes, old.writes),
    };
    host.received = rate(new.received, old.received);
    host.sent = rate(new.sent, old.sent);
}

fn describe(wire: WireHost, asked: jiff::Timestamp, answered: jiff::Timestamp) -> Host {
    let memory = wire.memory.unwrap_or_default();
    let metadata = wire.metadata.unwrap_or_default();
    Host {
        name: if metadata.hostname.is_empty() { wire.name } else { metadata.hostname },
        skew_ms: time(wire.time).map_or(0, |time| skew(time, asked, answered)),
        cpu_percent: wire.cpu_percent,
        // The kernel counts in KiB.
        memory_bytes: memory.memtotal.saturating_mul(1024),
        memory_available: memory.memavailable.saturating_mul(1024),
        error: metadata.error,
        ..Host::default()
    }
}

fn is_partition(
    disk: &selvage_api::selvage::node::Disk,
    all: &[selvage_api::selvage::node::Disk],
) -> bool {
    all.iter().any(|other| {
        disk.name.strip_prefix(other.name.as_str()).is_some_and(|rest| {
            let digits = rest.strip_prefix('p').unwrap_or(rest);
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    })
}

/// Least skew of a clock in milliseconds: a time read between the
/// question and the answer is right.
fn skew(reported: jiff::Timestamp, asked: jiff::Timestamp, answered: jiff::Timestamp) -> i64 {
    // An answer may have been measured a while ago: agents measure each second.
    let earliest = asked.as_millisecond().saturating_sub(2000);
    let (reported, latest) = (reported.as_millisecond(), answered.as_millisecond());
    if reported > latest {
        reported.saturating_sub(latest)
    } else if reported < earliest {
        reported.saturating_sub(earliest)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn clocks_are_judged_by_when_they_were_asked() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        assert_eq!(skew(at(10_500), at(10_000), at(11_000)), 0);
        assert_eq!(skew(at(8_500), at(10_000), at(11_000)), 0);
        assert_eq!(skew(at(71_000), at(10_000), at(11_000)), 60_000);
        assert_eq!(skew(at(3_000), at(10_000), at(11_000)), -5_000);
    }

    #[test]
    fn roles_come_from_keys_of_labels_and_are_sorted() {
        let labels = [("node-role.kubernetes.io/storage", ""), ("role", "edge"), ("rack", "3")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let listed = Listed {
            machine: "node/rack3-7".into(),
            labels: labels.into_iter().collect(),
            ..Listed::default()
        };
        let found = machine(listed);
        assert_eq!(found.roles, ["edge", "node", "storage"]);
        assert_eq!(found.name, "rack3-7");
    }

    #[test]
    fn partitions_are_not_counted_twice() {
        let disk = |name: &str| selvage_api::selvage::node::Disk {
            name: name.into(),
            read_bytes: 10,
            ..Default::default()
        };
        let names = ["sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0"];
        let told = WireHost { disks: names.map(disk).to_vec(), ..WireHost::default() };
        let new = counters(&told);
        assert_eq!(new.read_bytes, 30);
        let mut host = Host::default();
        rates(&mut host, &new, &Counters { read_bytes: 10, ..new }, 2.0);
        assert_eq!(host.io.read_bytes, 10.0);
        // Counted from the start again.
        rates(&mut host, &Counters::default(), &new, 2.0);
        assert_eq!(host.io.read_bytes, 0.0);
    }
}
