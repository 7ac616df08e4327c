//! Nodes and resources: of Kubernetes where there is one, and our own.

use std::collections::HashMap;

use jiff::Timestamp;
use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    resources::stats::{NodeInfo, ResourceInfo, ResourceStatus},
    selvage::dashboard::Object,
};

use crate::{
    facts::{Facts, Host, Machine, Resource, each},
    rules::{MachineState, Thresholds, hosts, state},
    stamp,
};

fn status(ready: Option<bool>) -> i32 {
    match ready {
        Some(true) => ResourceStatus::ResourceReady,
        Some(false) => ResourceStatus::ResourceNotReady,
        None => ResourceStatus::ResourceUnknown,
    }
    .into()
}

/// The nodes that carry storage; the machines of the inventory where there is
/// no Kubernetes.
pub(crate) fn nodes(facts: &Facts, now: Timestamp, thresholds: &Thresholds) -> Vec<NodeInfo> {
    if facts.nodes.is_some() {
        let describe = |node: &crate::facts::Node| NodeInfo {
            name: node.name.clone(),
            status: status(node.ready),
            roles: node.roles.clone(),
            internal_ip: node.internal_ip.clone(),
            external_ip: node.external_ip.clone(),
            age: node.created.map(stamp),
        };
        return each(&facts.nodes).map(describe).collect();
    }
    let hosts = hosts(facts);
    each(&facts.machines).map(|machine| own_node(machine, &hosts, now, thresholds)).collect()
}

fn own_node(
    machine: &Machine,
    hosts: &HashMap<&str, &Host>,
    now: Timestamp,
    thresholds: &Thresholds,
) -> NodeInfo {
    let host = hosts.get(machine.name.as_str()).copied();
    let ready = match state(machine, host, now, thresholds.machine_away) {
        MachineState::Ready => Some(true),
        MachineState::Blocked | MachineState::Away(_) => Some(false),
        MachineState::NeverReported => None,
    };
    NodeInfo {
        name: machine.name.clone(),
        status: status(ready),
        roles: machine.roles.clone(),
        internal_ip: host_of(&machine.address).to_owned(),
        external_ip: String::new(),
        age: machine.joined.map(stamp),
    }
}

/// The host of `host:port` or `[address]:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Resources and deployments: Kubernetes' first, then our own.
pub(crate) fn resources(facts: &Facts) -> (Vec<ResourceInfo>, Vec<ResourceInfo>) {
    let (mut resources, mut deployments) = (Vec::new(), Vec::new());
    if let Some(objects) = &facts.objects {
        resources.extend(objects.resources.iter().map(of_kubernetes));
        deployments.extend(objects.deployments.iter().map(of_kubernetes));
    }
    for cloudlet in each(&facts.cloudlets) {
        let ready = match cloudlet.state {
            CloudletState::Ready => Some(true),
            CloudletState::Offline | CloudletState::Errors => Some(false),
            CloudletState::NotPresent | CloudletState::Unknown => None,
        };
        resources.push(own("Cloudlet", &cloudlet.object, ready));
    }
    for cluster in each(&facts.clusters) {
        resources.push(own("ClusterInst", &cluster.object, ready(cluster.state, "")));
    }
    for cluster in each(&facts.kaas) {
        let ready = match cluster.status {
            ClusterStatus::Running => Some(true),
            ClusterStatus::StatusUnspecified => None,
            _ => Some(false),
        };
        let group = "cnct.kaas.api";
        resources.push(ResourceInfo {
            apiversion: group.into(),
            ..own("Cluster", &cluster.object, ready)
        });
    }
    for instance in each(&facts.instances) {
        let ready = ready(instance.state, &instance.unhealthy);
        deployments.push(own("AppInst", &instance.object, ready));
    }
    (resources, deployments)
}

fn ready(state: TrackedState, unhealthy: &str) -> Option<bool> {
    match state {
        TrackedState::Ready => Some(unhealthy.is_empty()),
        TrackedState::Unknown => None,
        _ => Some(false),
    }
}

fn own(kind: &str, object: &Object, ready: Option<bool>) -> ResourceInfo {
    let name = object.name.strip_prefix(object.organisation.as_str());
    let name = name.and_then(|name| name.strip_prefix('/')).unwrap_or(&object.name);
    ResourceInfo {
        apiversion: "edgeproto".into(),
        kind: kind.into(),
        namespace: object.organisation.clone(),
        name: name.into(),
        status: status(ready),
    }
}

fn of_kubernetes(resource: &Resource) -> ResourceInfo {
    ResourceInfo {
        apiversion: resource.api_version.clone(),
        kind: resource.kind.clone(),
        namespace: resource.namespace.clone(),
        name: resource.name.clone(),
        status: status(resource.ready),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address() {
        assert_eq!(host_of("10.0.0.1:8443"), "10.0.0.1");
        assert_eq!(host_of("[::1]:8443"), "::1");
        assert_eq!(host_of("rack1"), "rack1");
        assert_eq!(host_of(""), "");
    }
}
