//! Records as the contracts show them.

use prost_types::Timestamp;
use selvage_api::{
    cnct::kaas::api::get_cluster_nodes_status_reply::MachineStatus, selvage::clusters as wire,
};
use selvage_store::clock::Millis;

use crate::{
    Compat, Manager, conditions,
    plan::Snapshot,
    record::{Backup, Condition, Machine, MachineFailures, Phase, Pool},
};

/// Said instead of a name while a machine has none.
const NO_MACHINE_YET: &str = "Waiting for Machine Instantiation...";

/// The control plane first, then by pool and name.
pub(super) fn in_order(snapshot: &Snapshot) -> Vec<&Machine> {
    let mut machines: Vec<&Machine> = snapshot.machines.iter().collect();
    machines.sort_by_key(|machine| (!machine.is_control_plane(), &machine.pool, &machine.name));
    machines
}

/// State of the node, as kubectl words it; the phase of a machine whose node is being
/// changed.
fn node_state(machine: &Machine) -> String {
    let state = match machine.phase() {
        Phase::NotReady if machine.node.unknown => "Unknown",
        phase => phase.name(),
    };
    match machine.cordoned || machine.node.unschedulable {
        true => format!("{state},SchedulingDisabled"),
        false => state.to_owned(),
    }
}

/// One machine as `GetClusterNodesStatus` shows it.
pub(super) fn node_status(machine: &Machine, compat: Compat) -> MachineStatus {
    let status = match compat {
        Compat::ImsKaas => Compat::phase(machine.phase()).to_owned(),
        Compat::Precise => node_state(machine),
    };
    let versions = [&machine.node.kubelet, &machine.running.kubelet];
    let told = versions.into_iter().find(|version| !version.is_empty());
    let version = told.unwrap_or(&machine.wanted.kubelet);
    let id = match machine.provider_id.as_str() {
        "" => NO_MACHINE_YET,
        id => id,
    };
    MachineStatus {
        k8s_node_status: status,
        k8s_version: version.clone(),
        maas_system_id: id.to_owned(),
        maas_hostname: machine.hostname.clone(),
        maas_node_status: machine.provider_state.clone(),
        maas_ip_addr: machine.address.clone(),
    }
}

pub(super) fn timestamp(millis: Millis) -> Timestamp {
    Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or(0),
    }
}

/// A machine in quarantine as `selvage.clusters` shows it.
pub(super) fn quarantined(known: &MachineFailures) -> wire::QuarantinedMachine {
    wire::QuarantinedMachine {
        provider_id: known.provider_id.clone(),
        hostname: known.hostname.clone(),
        failures: known.count,
        reason: known.reason.clone(),
        failed_at: Some(timestamp(known.failed_at)),
        cluster: known.cluster.clone(),
    }
}

/// A backup as `selvage.clusters` shows it.
pub(super) fn backup(manager: &Manager, known: &Backup) -> wire::Backup {
    let version = known.version.parse().ok();
    let release = version.and_then(|version| manager.catalogue().find(version));
    wire::Backup {
        id: known.id.clone(),
        cluster: known.cluster.clone(),
        cluster_uid: known.uid.clone(),
        organisation: known.organisation.clone(),
        taken_at: Some(timestamp(known.taken_at)),
        version: known.version.clone(),
        etcd: release.map(|release| release.etcd.clone()).unwrap_or_default(),
        size: known.size,
        reason: known.reason.clone(),
    }
}

/// A cluster as `selvage.clusters` shows it.
pub(super) fn cluster(manager: &Manager, snapshot: &Snapshot) -> wire::Cluster {
    let known = &snapshot.cluster;
    let conditions = manager.conditions(snapshot);
    let status = conditions::status(&conditions);
    let control_plane = Pool {
        count: known.control_plane.count,
        instance_type: known.control_plane.instance_type.clone(),
        labels: known.control_plane.labels.clone(),
        ..Pool::default()
    };
    let pools = std::iter::once(&control_plane).chain(&snapshot.pools);
    wire::Cluster {
        name: known.name.clone(),
        uid: known.uid.clone(),
        organisation: known.organisation.clone(),
        created_by: known.created_by.clone(),
        created_at: Some(timestamp(known.created_at)),
        version: known.version.clone(),
        status: status.as_str_name().to_owned(),
        status_message: manager.message(snapshot),
        endpoint: known.endpoint.clone(),
        provider: known.provider.clone(),
        paused: known.paused,
        conditions: conditions.iter().map(condition).collect(),
        pools: pools.map(|shown| pool(snapshot, shown)).collect(),
        machines: in_order(snapshot).into_iter().map(machine).collect(),
        generation: known.generation,
        hibernated: known.hibernated,
    }
}

fn condition(condition: &Condition) -> wire::Condition {
    wire::Condition {
        r#type: condition.kind.clone(),
        status: condition.holds,
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: Some(timestamp(condition.since)),
    }
}

fn pool(snapshot: &Snapshot, pool: &Pool) -> wire::Pool {
    let ready = |m: &&Machine| m.pool == pool.name && m.phase() == Phase::Ready && !m.removing;
    let ready = snapshot.machines.iter().filter(ready).count();
    wire::Pool {
        name: pool.name.clone(),
        instance_type: pool.instance_type.clone(),
        count: i32::try_from(pool.count).unwrap_or(i32::MAX),
        ready: i32::try_from(ready).unwrap_or(i32::MAX),
        labels: pool.labels.clone(),
        deleting: pool.deleting,
    }
}

fn machine(machine: &Machine) -> wire::Machine {
    wire::Machine {
        name: machine.name.clone(),
        pool: machine.pool.clone(),
        phase: machine.phase().name().to_owned(),
        since: Some(timestamp(machine.since)),
        message: machine.reason.clone(),
        version: machine.running.kubelet.clone(),
        target_version: machine.wanted.kubelet.clone(),
        provider_id: machine.provider_id.clone(),
        hostname: machine.hostname.clone(),
        address: machine.address.clone(),
        operation: machine.operation.clone(),
        provider_state: machine.provider_state.clone(),
    }
}

/// Everything that is known to have happened, oldest first.
pub(super) fn events(snapshot: &Snapshot) -> Vec<wire::Event> {
    let of_cluster =
        snapshot.cluster.events.iter().map(|event| (event.at, "", event.message.clone()));
    let of_machines = snapshot.machines.iter().flat_map(|machine| {
        machine.history.iter().map(|change| {
            let phase = change.phase().name();
            let text = match change.reason.as_str() {
                "" => phase.to_owned(),
                reason => format!("{phase}: {reason}"),
            };
            (change.at, machine.name.as_str(), text)
        })
    });
    let mut all: Vec<(Millis, &str, String)> = of_cluster.chain(of_machines).collect();
    all.sort_by_key(|(at, ..)| *at);
    let event = |(at, machine, message): (Millis, &str, String)| wire::Event {
        at: Some(timestamp(at)),
        machine: machine.to_owned(),
        message,
    };
    all.into_iter().map(event).collect()
}
