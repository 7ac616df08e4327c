//! Requests, checked as a whole: either every field is right, or all that are
//! wrong are named and nothing is done.

use std::collections::{BTreeMap, BTreeSet};

use selvage_api::{
    cnct::kaas::api::{
        ControlPlaneMachineSpec, CreateClusterMsg, KubernetesLabel, MachineSpec, ScaleNodePoolSpec,
    },
    google::rpc::bad_request::FieldViolation,
};

use crate::{
    Error, Result,
    catalogue::{Catalogue, Version},
    error::violation,
    record::{ControlPlane, Pool},
};

/// Longest name of a cluster or a pool: a node is named after its pool, with a
/// hyphen and five letters, and has at most 63.
const LONGEST_NAME: usize = 40;
const LONGEST_LABEL: usize = 63;
const LONGEST_PREFIX: usize = 253;
const MOST_LABELS: usize = 64;
/// The type of machine of those who do not choose.
pub const STANDARD: &str = "standard";

/// Limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pools of a cluster.
    pub pools: usize,
    /// Nodes of a cluster, the control plane included.
    pub nodes: u32,
    /// Machines of an organisation, 0 for any number.
    pub organisation: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // Kubernetes is tested with up to 5000 nodes.
        Self { pools: 100, nodes: 5000, organisation: 0 }
    }
}

/// A cluster as it was asked for, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCluster {
    pub name: String,
    pub version: Version,
    pub control_plane: ControlPlane,
    pub pools: Vec<Pool>,
}

/// Checks a request for a cluster.
pub fn create(
    request: &CreateClusterMsg,
    catalogue: &Catalogue,
    limits: &Limits,
) -> Result<NewCluster> {
    let mut wrong = Vec::new();
    check_name("name", &request.name, &mut wrong);
    let version = version("k8s_version", &request.k8s_version, catalogue, &mut wrong);
    let control_plane = control_plane(request.control_plane_nodes.as_ref(), &mut wrong);
    let pools = pools(&request.name, &request.worker_node_pools, &mut wrong);
    check_size(control_plane.count, &pools, limits, &mut wrong);
    match version {
        Some(version) if wrong.is_empty() => {
            Ok(NewCluster { name: request.name.clone(), version, control_plane, pools })
        }
        _ => Err(Error::Invalid(wrong)),
    }
}

/// Checks pools that are added to a cluster.
pub fn add_pools(cluster: &str, specs: &[MachineSpec], limits: &Limits) -> Result<Vec<Pool>> {
    let mut wrong = Vec::new();
    check_name("clusterName", cluster, &mut wrong);
    let pools = pools(cluster, specs, &mut wrong);
    check_size(0, &pools, limits, &mut wrong);
    if wrong.is_empty() { Ok(pools) } else { Err(Error::Invalid(wrong)) }
}

/// Checks new sizes of pools.
pub fn scale(specs: &[ScaleNodePoolSpec], limits: &Limits) -> Result<Vec<(String, u32)>> {
    let (mut wrong, mut seen, mut sizes) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (index, spec) in specs.iter().enumerate() {
        let field = format!("node_pools[{index}]");
        check_name(&format!("{field}.name"), &spec.name, &mut wrong);
        if !seen.insert(&spec.name) {
            wrong.push(violation(format!("{field}.name"), "is named twice"));
        }
        let count = count(&format!("{field}.count"), spec.count, limits.nodes, &mut wrong);
        sizes.push((spec.name.clone(), count));
    }
    if wrong.is_empty() { Ok(sizes) } else { Err(Error::Invalid(wrong)) }
}

/// Reads a version that must be on offer; `None` if it is wrong.
pub fn version(
    field: &str,
    text: &str,
    catalogue: &Catalogue,
    wrong: &mut Vec<FieldViolation>,
) -> Option<Version> {
    if text.is_empty() {
        return catalogue.newest();
    }
    let version = match text.parse::<Version>() {
        Ok(version) => version,
        Err(error) => {
            wrong.push(violation(field, error.to_string()));
            return None;
        }
    };
    if catalogue.find(version).is_none() {
        let names = catalogue.names();
        wrong.push(violation(field, format!("{version} is not on offer, which is {names}")));
        return None;
    }
    Some(version)
}

fn control_plane(
    spec: Option<&ControlPlaneMachineSpec>,
    wrong: &mut Vec<FieldViolation>,
) -> ControlPlane {
    let Some(spec) = spec else {
        return ControlPlane {
            count: 1,
            instance_type: STANDARD.into(),
            labels: BTreeMap::default(),
        };
    };
    let field = "control_plane_nodes";
    check_type(&format!("{field}.instanceType"), &spec.instance_type, wrong);
    let count = match spec.count {
        0 => 1,
        count @ (1 | 3 | 5 | 7) => count.unsigned_abs(),
        count => {
            let text = format!("{count} is none of 1, 3, 5 and 7: etcd needs a majority");
            wrong.push(violation(format!("{field}.count"), text));
            1
        }
    };
    let labels = labels(field, &spec.labels, wrong);
    ControlPlane { count, instance_type: spec.instance_type.clone(), labels }
}

/// Most machines of a control plane that are worth what they cost.
const MOST_CONTROL_PLANES: u32 = 5;

/// Returns a warning about a control plane that is allowed and rarely wise.
pub fn warning(control_plane: &ControlPlane) -> Option<String> {
    let count = control_plane.count;
    (count > MOST_CONTROL_PLANES).then(|| {
        format!(
            "{count} control planes make each write wait for {} of them: \
             {MOST_CONTROL_PLANES} survive the loss of two and are faster",
            count / 2 + 1
        )
    })
}

fn pools(cluster: &str, specs: &[MachineSpec], wrong: &mut Vec<FieldViolation>) -> Vec<Pool> {
    let mut seen = BTreeSet::new();
    let mut pools = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let field = format!("worker_node_pools[{index}]");
        check_name(&format!("{field}.name"), &spec.name, wrong);
        if spec.name == CONTROL_PLANE {
            wrong.push(violation(format!("{field}.name"), "is the name of the control plane"));
        }
        if !seen.insert(&spec.name) {
            wrong.push(violation(format!("{field}.name"), "is the name of two pools"));
        }
        check_type(&format!("{field}.instanceType"), &spec.instance_type, wrong);
        pools.push(Pool {
            cluster: cluster.to_owned(),
            name: spec.name.clone(),
            instance_type: spec.instance_type.clone(),
            count: count(&format!("{field}.count"), spec.count, u32::MAX, wrong),
            labels: labels(&field, &spec.labels, wrong),
            ..Pool::default()
        });
    }
    pools
}

/// Name prefix of the machines of the control plane.
pub const CONTROL_PLANE: &str = "control-plane";

fn count(field: &str, count: i32, most: u32, wrong: &mut Vec<FieldViolation>) -> u32 {
    match u32::try_from(count) {
        Ok(count) if count <= most => count,
        Ok(_) => {
            wrong.push(violation(field, format!("is more than {most}")));
            0
        }
        Err(_) => {
            wrong.push(violation(field, "is negative"));
            0
        }
    }
}

fn check_size(
    control_plane: u32,
    pools: &[Pool],
    limits: &Limits,
    wrong: &mut Vec<FieldViolation>,
) {
    let field = "worker_node_pools";
    if pools.len() > limits.pools {
        let text = format!("{} pools are more than {}", pools.len(), limits.pools);
        wrong.push(violation(field, text));
    }
    let nodes = pools.iter().fold(control_plane, |sum, pool| sum.saturating_add(pool.count));
    if nodes > limits.nodes {
        let text = format!("{nodes} nodes are more than a cluster's {}", limits.nodes);
        wrong.push(violation(field, text));
    }
}

/// Checks a DNS label. Capitals are refused, so no two names differ by case
/// alone.
pub fn check_name(field: &str, name: &str, wrong: &mut Vec<FieldViolation>) {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !fits {
        let shown: String = name.chars().take(LONGEST_LABEL).collect();
        let text = format!(
            "{shown:?} is not a name of 1 to {LONGEST_NAME} lower-case letters, digits and \
             hyphens that starts and ends with a letter or digit"
        );
        wrong.push(violation(field, text));
    }
}

fn check_type(field: &str, instance_type: &str, wrong: &mut Vec<FieldViolation>) {
    if !instance_type.is_empty() && !is_word(instance_type) {
        let text = "is not a word of up to 63 letters, digits and any of . _ -";
        wrong.push(violation(field, text));
    }
}

fn labels(
    parent: &str,
    labels: &[KubernetesLabel],
    wrong: &mut Vec<FieldViolation>,
) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    if labels.len() > MOST_LABELS {
        wrong.push(violation(format!("{parent}.labels"), format!("are more than {MOST_LABELS}")));
        return map;
    }
    for (index, KubernetesLabel { name, value }) in labels.iter().enumerate() {
        let field = format!("{parent}.labels[{index}]");
        if let Some(why) = wrong_key(name) {
            wrong.push(violation(format!("{field}.name"), why));
        }
        if !value.is_empty() && !is_word(value) {
            let text = "is not a label's value: up to 63 letters, digits and any of . _ -, \
                        with a letter or digit at both ends";
            wrong.push(violation(format!("{field}.value"), text));
        }
        if map.insert(name.clone(), value.clone()).is_some() {
            wrong.push(violation(format!("{field}.name"), "is named twice"));
        }
    }
    map
}

/// Keys below Kubernetes' own domains that a kubelet accepts.
const OPEN_KEYS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
const OPEN_PREFIXES: &[&str] = &["node.kubernetes.io", "kubelet.kubernetes.io"];
const CLOSED_DOMAINS: &[&str] = &["kubernetes.io", "k8s.io", "selvage.io"];

/// Returns why a label cannot be called so, if it cannot.
fn wrong_key(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if !is_word(name) || prefix.is_some_and(|prefix| !is_domain(prefix)) {
        return Some("is not a label's name, such as zone or example.com/zone".into());
    }
    if key == "node-pool" {
        return Some("is set to the name of the pool".into());
    }
    let prefix = prefix?;
    let within = |domain: &&str| {
        prefix == *domain || prefix.strip_suffix(*domain).is_some_and(|rest| rest.ends_with('.'))
    };
    let open = OPEN_KEYS.contains(&key) || OPEN_PREFIXES.contains(&prefix);
    (CLOSED_DOMAINS.iter().any(within) && !open)
        .then(|| format!("{prefix}/ is reserved for Kubernetes and for this service"))
}

fn is_word(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LONGEST_LABEL
        && text.bytes().all(inner)
        && ends(text.bytes().next())
        && ends(text.bytes().last())
}

fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.len() <= LONGEST_LABEL
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(label)
}

#[cfg(test)]
mod tests;
