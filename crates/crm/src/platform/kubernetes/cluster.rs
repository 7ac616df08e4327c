//! A cluster is a namespace: what it may use, who reaches it, and where its
//! images come from.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use selvage_api::edgeproto::ClusterInstKey;
use selvage_kube::{
    FIELD_MANAGER, Nodes, Objects,
    kube::{
        Client,
        api::{ApiResource, DeleteParams, DynamicObject},
    },
    resource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    names::{INSTANCE, Namer, SITE},
    tenant,
};
use crate::{
    Egress, Error, Registries, Result,
    platform::{ClusterFacts, ClusterSize, naming, network::rules::PRIVATE},
};

/// Names of what every cluster has.
const QUOTA: &str = "selvage-cluster";
const SIZES: &str = "selvage-container";
const APART: &str = "selvage-apart";
/// Rules for the pods of a namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
const POD_SECURITY_LEVEL: &str = "baseline";
/// The original's, which apps of that time read.
const ABOUT: &str = "mexcluster-info";
/// Amounts of a container that does not say what it needs.
const UNSAID: (&str, &str) = ("10m", "16Mi");
/// Least that a container can ask for, so that none is free.
const LEAST: (&str, &str) = ("1m", "4Mi");
/// Times its size that all containers of a cluster together may use while others
/// leave it idle: the limits of one that says nothing are those of a whole node, and
/// an update runs the old and the new one at the same time.
const BURST: u64 = 4;
/// Pods and volumes of a node.
const PODS: u64 = 110;
const CLAIMS: u64 = 20;
/// Objects of a cluster, so that none fills the store of the API server or takes all
/// ports of its nodes.
const COUNTS: [(&str, u64); 17] = [
    ("services", 100),
    ("services.nodeports", 100),
    ("services.loadbalancers", 20),
    ("count/configmaps", 100),
    ("count/secrets", 100),
    ("count/serviceaccounts", 50),
    ("count/roles.rbac.authorization.k8s.io", 50),
    ("count/rolebindings.rbac.authorization.k8s.io", 50),
    ("count/deployments.apps", 100),
    ("count/statefulsets.apps", 100),
    ("count/daemonsets.apps", 20),
    ("count/replicasets.apps", 1000),
    ("count/jobs.batch", 500),
    ("count/cronjobs.batch", 50),
    ("count/horizontalpodautoscalers.autoscaling", 100),
    ("count/poddisruptionbudgets.policy", 100),
    ("count/leases.coordination.k8s.io", 200),
];
/// Networks of IPv6 that are not public.
const PRIVATE_6: [&str; 3] = ["fc00::/7", "fe80::/10", "ff00::/8"];
const DNS: u16 = 53;
/// Time a namespace may take to come or to go.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The namespaces of one cloudlet.
pub(super) struct Clusters<'a> {
    pub(super) client: Client,
    pub(super) namer: &'a Namer,
    pub(super) registries: &'a Registries,
    pub(super) egress: &'a Egress,
}

pub(super) fn namespaces(client: &Client) -> Objects {
    Objects::all(client, &resource("", "v1", "Namespace"))
}

impl Clusters<'_> {
    /// Makes a cluster, or makes one as it should be.
    pub(super) async fn provide(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()> {
        let name = self.namer.namespace(key)?;
        self.until_not_ending(&name).await?;
        self.provide_namespace(&name, key).await?;
        for (kind, object) in sizes(facts.size, facts.nodes) {
            self.apply(&name, &kind, &object).await?;
        }
        for (kind, object) in tenant::objects(&name) {
            self.apply(&name, &kind, &object).await?;
        }
        self.furnish(&name, key).await?;
        self.until_accounts(&name).await
    }

    /// Returns whether what holds a cluster together is there.
    pub(super) async fn is_whole(&self, key: &ClusterInstKey) -> Result<bool> {
        let name = self.namer.namespace(key)?;
        let sound = |found: &DynamicObject| !is_ending(found) && is_secured(found);
        if !self.found(&name).await?.is_some_and(|found| sound(&found)) {
            return Ok(false);
        }
        let policies = resource("networking.k8s.io", "v1", "NetworkPolicy");
        let own = [(resource("", "v1", "ResourceQuota"), QUOTA), (policies, APART)];
        let tenants = tenant::objects(&name).map(|(kind, _)| (kind, tenant::ACCOUNT));
        for (kind, name_of) in own.into_iter().chain(tenants) {
            let objects = Objects::namespaced(&self.client, &name, &kind);
            if objects.get_metadata(name_of).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn found(&self, name: &str) -> Result<Option<DynamicObject>> {
        Ok(namespaces(&self.client).get(name).await?)
    }

    async fn provide_namespace(&self, name: &str, key: &ClusterInstKey) -> Result<()> {
        let ours = |found: &DynamicObject| {
            let labels = found.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(SITE)).map(String::as_str)
                == Some(self.namer.site())
        };
        if self.found(name).await?.is_some_and(|found| !ours(&found)) {
            let reason = format!("namespace {name} is there already and is not this cloudlet's");
            return Err(Error::state(reason));
        }
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {
                    SITE: self.namer.site(),
                    "app.kubernetes.io/managed-by": FIELD_MANAGER,
                    // Pods that are root on their node would be in no cluster.
                    POD_SECURITY: POD_SECURITY_LEVEL,
                },
                "annotations": { "selvage.cluster": naming::text(key)? },
            },
        });
        namespaces(&self.client).apply(&namespace).await?;
        Ok(())
    }

    async fn apply(&self, namespace: &str, kind: &ApiResource, object: &Value) -> Result<()> {
        Objects::namespaced(&self.client, namespace, kind).apply(object).await?;
        Ok(())
    }

    /// Everything that does not depend on the cluster's size.
    async fn furnish(&self, name: &str, key: &ClusterInstKey) -> Result<()> {
        let policies = resource("networking.k8s.io", "v1", "NetworkPolicy");
        let nodes = Nodes::new(&self.client).list().await?;
        let api = self.api_servers().await?;
        self.apply(name, &policies, &apart(&nodes, &api, self.egress)).await?;
        self.apply(name, &resource("", "v1", "ConfigMap"), &about(key)).await?;
        self.provide_pull_secret(name, &key.developer).await
    }

    /// Addresses and ports of the API server, which pods may ask with their accounts.
    async fn api_servers(&self) -> Result<Vec<Value>> {
        let slices = resource("discovery.k8s.io", "v1", "EndpointSlice");
        let own = Objects::namespaced(&self.client, "default", &slices).get("kubernetes").await?;
        Ok(own.map(|own| peers(&own.data)).unwrap_or_default())
    }

    /// Gives a cluster what its developer has to pull images with. Earlier
    /// versions gave it the operator's password: that goes.
    async fn provide_pull_secret(&self, namespace: &str, developer: &str) -> Result<()> {
        let Some(name) = self.registries.secret_name() else { return Ok(()) };
        let secrets = Objects::namespaced(&self.client, namespace, &resource("", "v1", "Secret"));
        if let Some(text) = self.registries.pull_secret(developer)? {
            secrets.apply(&pull_secret(name, &text)).await?;
            return Ok(());
        }
        let found = secrets.get_metadata(name).await?;
        let labels = found.map(|found| found.metadata.labels.unwrap_or_default());
        // An app may have one of that name, which is its own.
        if labels.is_some_and(|labels| !labels.contains_key(INSTANCE)) {
            secrets.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Pods are refused in a namespace until it has an account for them.
    async fn until_accounts(&self, name: &str) -> Result<()> {
        let accounts =
            Objects::namespaced(&self.client, name, &resource("", "v1", "ServiceAccount"));
        let until = Instant::now() + NAMESPACE_TIMEOUT;
        while accounts.get_metadata("default").await?.is_none() {
            if Instant::now() >= until {
                let reason = "has no account for pods: does a controller manager run?";
                return Err(Error::state(format!("namespace {name} {reason}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn until_not_ending(&self, name: &str) -> Result<()> {
        if self.found(name).await?.is_some_and(|found| is_ending(&found)) {
            namespaces(&self.client).wait_deleted(name, NAMESPACE_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Removes a namespace with everything in it, and waits until it is gone.
    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let Some(found) = self.found(name).await? else { return Ok(()) };
        let labels = found.metadata.labels.unwrap_or_default();
        if labels.get(SITE).map(String::as_str) != Some(self.namer.site()) {
            // It only bears the name; what we never made is not ours to remove.
            return Ok(());
        }
        let namespaces = namespaces(&self.client);
        namespaces.delete(name, &DeleteParams::background()).await?;
        Ok(namespaces.wait_deleted(name, NAMESPACE_TIMEOUT).await?)
    }
}

/// Returns whether the rules for pods are as we made them.
fn is_secured(namespace: &DynamicObject) -> bool {
    let labels = namespace.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(POD_SECURITY)).is_some_and(|of| of == POD_SECURITY_LEVEL)
}

fn is_ending(namespace: &DynamicObject) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

/// Quota of all pods together, and the limits of one container.
///
/// Requests are what Kubernetes takes from a node's capacity; so that two apps
/// can share a node as they always could, a container that says nothing counts
/// little and may use as much as one node has.
fn sizes(size: ClusterSize, nodes: u32) -> [(ApiResource, Value); 2] {
    let count = u64::from(nodes.max(1));
    let mut hard = serde_json::Map::new();
    let mut most = serde_json::Map::new();
    let mut unsaid = serde_json::Map::new();
    unsaid.extend([("cpu".into(), json!(UNSAID.0)), ("memory".into(), json!(UNSAID.1))]);
    let amounts = [
        ("cpu", size.vcores, ""),
        ("memory", size.ram, "Mi"),
        ("ephemeral-storage", size.disk, "G"),
    ];
    for (name, amount, unit) in amounts.into_iter().filter(|(_, amount, _)| *amount > 0) {
        let all = amount.saturating_mul(BURST);
        hard.insert(format!("requests.{name}"), json!(format!("{amount}{unit}")));
        hard.insert(format!("limits.{name}"), json!(format!("{all}{unit}")));
        most.insert(name.into(), json!(format!("{}{unit}", amount.div_ceil(count))));
    }
    if size.disk > 0 {
        hard.insert("requests.storage".into(), json!(format!("{}G", size.disk)));
        // Not all nodes know how much they have.
        unsaid.insert("ephemeral-storage".into(), json!("0"));
    }
    let of_nodes = [("pods", PODS), ("count/pods", 4 * PODS), ("persistentvolumeclaims", CLAIMS)];
    let of_nodes = of_nodes.map(|(name, of_node)| (name, of_node.saturating_mul(count)));
    hard.extend(
        of_nodes
            .iter()
            .chain(&COUNTS)
            .map(|(name, most)| ((*name).to_owned(), json!(most.to_string()))),
    );
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": { "name": QUOTA },
        "spec": { "hard": hard },
    });
    let sizes = json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": { "name": SIZES },
        "spec": { "limits": [{
            "type": "Container",
            "default": most,
            "defaultRequest": unsaid,
            "min": { "cpu": LEAST.0, "memory": LEAST.1 },
            "max": most,
        }] },
    });
    [(resource("", "v1", "ResourceQuota"), quota), (resource("", "v1", "LimitRange"), sizes)]
}

/// Ranges of addresses that pods have, as far as the nodes say.
fn pod_ranges<'a>(nodes: &'a [DynamicObject]) -> Vec<&'a str> {
    let ranges = |node: &'a DynamicObject| node.data.pointer("/spec/podCIDRs")?.as_array();
    nodes.iter().filter_map(ranges).flatten().filter_map(Value::as_str).collect()
}

/// A network with one address.
fn alone(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Pods are reached from their own namespace, and from what is no pod: nodes
/// and everything outside of the cluster. They reach their own namespace, names,
/// the API server, public addresses and what the operator names: no other pod, and
/// nothing of the networks of nodes.
fn apart(nodes: &[DynamicObject], api: &[Value], egress: &Egress) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": APART },
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": inward(nodes) }],
            "egress": outward(nodes, api, egress),
        },
    })
}

fn inward(nodes: &[DynamicObject]) -> Vec<Value> {
    let pods = pod_ranges(nodes);
    let mut from = vec![json!({ "podSelector": {} })];
    if pods.is_empty() {
        // Where pods have their addresses from is not known: nodes only.
        let nodes = super::ports::addresses(nodes);
        from.extend(nodes.map(|address| json!({ "ipBlock": { "cidr": alone(address) } })));
        return from;
    }
    for (all, colon) in [("0.0.0.0/0", false), ("::/0", true)] {
        let except: Vec<&&str> = pods.iter().filter(|range| range.contains(':') == colon).collect();
        from.push(json!({ "ipBlock": { "cidr": all, "except": except } }));
    }
    from
}

fn outward(nodes: &[DynamicObject], api: &[Value], egress: &Egress) -> Vec<Value> {
    let both = |port: u16| ["UDP", "TCP"].map(|of| json!({ "protocol": of, "port": port }));
    let names = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
    });
    let own: BTreeSet<String> = pod_ranges(nodes)
        .into_iter()
        .map(str::to_owned)
        .chain(super::ports::addresses(nodes).map(alone))
        .collect();
    let public = [("0.0.0.0/0", &PRIVATE[..]), ("::/0", &PRIVATE_6[..])].map(|(all, private)| {
        let own =
            own.iter().map(String::as_str).filter(|own| own.contains(':') == all.contains(':'));
        let except: Vec<&str> = private.iter().copied().chain(own).collect();
        json!({ "ipBlock": { "cidr": all, "except": except } })
    });
    let mut ways = vec![
        json!({ "to": [{ "podSelector": {} }] }),
        json!({ "to": [names], "ports": both(DNS) }),
        json!({ "to": public }),
    ];
    ways.extend(api.iter().cloned());
    ways.extend(egress.networks().map(|(cidr, port)| match port {
        Some(port) => json!({ "to": [{ "ipBlock": { "cidr": cidr } }], "ports": both(port) }),
        None => json!({ "to": [{ "ipBlock": { "cidr": cidr } }] }),
    }));
    ways
}

/// Ways to the endpoints of a slice.
fn peers(slice: &Value) -> Vec<Value> {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let ports: Vec<Value> = list(&slice["ports"])
        .iter()
        .map(|port| json!({ "protocol": "TCP", "port": port["port"] }))
        .collect();
    let addresses = list(&slice["endpoints"]).into_iter().flat_map(|of| list(&of["addresses"]));
    let addresses = addresses.filter_map(|address| address.as_str()?.parse().ok());
    let to: Vec<Value> =
        addresses.map(|address| json!({ "ipBlock": { "cidr": alone(address) } })).collect();
    // Without any, "to" would mean everybody.
    if to.is_empty() || ports.is_empty() {
        return Vec::new();
    }
    vec![json!({ "to": to, "ports": ports })]
}

fn about(key: &ClusterInstKey) -> Value {
    let cloudlet = key.cloudlet_key.clone().unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": ABOUT },
        "data": {
            "ClusterName": key.cluster_key.clone().unwrap_or_default().name,
            "CloudletName": cloudlet.name,
            "OperatorName": cloudlet.operator_key.unwrap_or_default().name,
        },
    })
}

/// A developer's credentials, as nodes take them.
fn pull_secret(name: &str, config: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": { "name": name },
        "stringData": { ".dockerconfigjson": config },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_quota_is_the_flavor_for_each_node() {
        let size = ClusterSize { vcores: 6, ram: 12_288, disk: 30 };
        let [(_, quota), (_, limits)] = sizes(size, 3);
        let hard = &quota["spec"]["hard"];
        for (name, amount) in [
            ("requests.cpu", "6"),
            ("requests.memory", "12288Mi"),
            ("requests.ephemeral-storage", "30G"),
            ("requests.storage", "30G"),
            ("limits.cpu", "24"),
            ("limits.memory", "49152Mi"),
            ("limits.ephemeral-storage", "120G"),
            ("pods", "330"),
            ("persistentvolumeclaims", "60"),
            ("services.nodeports", "100"),
        ] {
            assert_eq!(hard[name], amount, "{name}");
        }
        let limits = &limits["spec"]["limits"][0];
        let node = json!({ "cpu": "2", "memory": "4096Mi", "ephemeral-storage": "10G" });
        assert_eq!((&limits["max"], &limits["default"]), (&node, &node));
        assert_eq!(limits["min"], json!({ "cpu": "1m", "memory": "4Mi" }));
        // A cluster of no nodes is one machine that does everything.
        let [_, (_, limits)] = sizes(size, 0);
        assert_eq!(limits["spec"]["limits"][0]["max"]["cpu"], "6");
        // What a flavor does not say has no end.
        let [(_, quota), _] = sizes(ClusterSize::default(), 1);
        assert!(quota["spec"]["hard"].get("limits.cpu").is_none());
    }

    /// Whatever an app may make is counted, so that nobody fills the API server.
    #[test]
    fn every_kind_of_an_app_has_an_end() {
        let [(_, quota), _] = sizes(ClusterSize::default(), 1);
        for kind in super::super::policy::KINDS {
            let of = kind.resource();
            let group = if of.group.is_empty() { String::new() } else { format!(".{}", of.group) };
            let names = [of.plural.clone(), format!("count/{}{group}", of.plural)];
            let counted = names.iter().any(|name| quota["spec"]["hard"].get(name).is_some());
            assert!(counted, "{names:?}");
        }
    }

    fn node(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn other_namespaces_are_kept_out() {
        let known =
            node(json!({ "metadata": {}, "spec": { "podCIDRs": ["10.1.0.0/24", "fd00::/64"] } }));
        let policy = apart(&[known], &[], &Egress::default());
        let from = &policy["spec"]["ingress"][0]["from"];
        assert_eq!(from[0], json!({ "podSelector": {} }));
        assert_eq!(from[1]["ipBlock"], json!({ "cidr": "0.0.0.0/0", "except": ["10.1.0.0/24"] }));
        assert_eq!(from[2]["ipBlock"], json!({ "cidr": "::/0", "except": ["fd00::/64"] }));
        let addresses = json!([{ "type": "InternalIP", "address": "192.0.2.7" }]);
        let unknown = node(json!({ "metadata": {}, "status": { "addresses": addresses } }));
        let policy = apart(&[unknown], &[], &Egress::default());
        let from = policy["spec"]["ingress"][0]["from"].as_array().unwrap().clone();
        assert_eq!(from[1..], [json!({ "ipBlock": { "cidr": "192.0.2.7/32" } })]);
    }

    #[test]
    fn pods_reach_what_is_public_and_what_is_named() {
        let addresses = json!([{ "type": "InternalIP", "address": "192.0.2.7" }]);
        let known = node(json!({
            "metadata": {},
            "spec": { "podCIDRs": ["198.18.0.0/24"] },
            "status": { "addresses": addresses },
        }));
        let slice = json!({
            "endpoints": [{ "addresses": ["192.0.2.7"] }],
            "ports": [{ "name": "https", "port": 6443 }],
        });
        let named = Egress::parse(&["10.1.0.0/16".into(), "192.168.7.9:5432".into()]).unwrap();
        let policy = apart(&[known], &peers(&slice), &named);
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        let ways = policy["spec"]["egress"].as_array().unwrap();
        assert_eq!(ways[0], json!({ "to": [{ "podSelector": {} }] }));
        assert_eq!(ways[1]["ports"][0], json!({ "protocol": "UDP", "port": 53 }));
        let except = ways[2]["to"][0]["ipBlock"]["except"].to_string();
        for closed in ["10.0.0.0/8", "169.254.0.0/16", "192.0.2.7/32", "198.18.0.0/24"] {
            assert!(except.contains(closed), "{closed}: {except}");
        }
        assert_eq!(ways[3]["to"][0]["ipBlock"]["cidr"], "192.0.2.7/32");
        assert_eq!(ways[3]["ports"][0]["port"], 6443);
        assert_eq!(ways[4], json!({ "to": [{ "ipBlock": { "cidr": "10.1.0.0/16" } }] }));
        assert_eq!(ways[5]["ports"][1], json!({ "protocol": "TCP", "port": 5432 }));
        assert_eq!(ways.len(), 6);
        // Nobody is not everybody.
        assert_eq!(peers(&json!({ "ports": [{ "port": 6443 }] })), Vec::<Value>::new());
    }
}
