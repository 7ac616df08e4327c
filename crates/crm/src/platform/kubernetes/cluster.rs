//! A cluster is a namespace: what it may use, who reaches it, and where its
//! images come from.

use std::time::Duration;

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
    Error, Registries, Result,
    platform::{ClusterFacts, ClusterSize, naming},
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
/// Time a namespace may take to come or to go.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The namespaces of one cloudlet.
pub(super) struct Clusters<'a> {
    pub(super) client: Client,
    pub(super) namer: &'a Namer,
    pub(super) registries: &'a Registries,
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
        self.apply(name, &policies, &apart(&nodes)).await?;
        self.apply(name, &resource("", "v1", "ConfigMap"), &about(key)).await?;
        self.provide_pull_secret(name, &key.developer).await
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
    if size.vcores > 0 {
        hard.insert("requests.cpu".into(), json!(size.vcores.to_string()));
        most.insert("cpu".into(), json!(size.vcores.div_ceil(count).to_string()));
    }
    if size.ram > 0 {
        hard.insert("requests.memory".into(), json!(format!("{}Mi", size.ram)));
        most.insert("memory".into(), json!(format!("{}Mi", size.ram.div_ceil(count))));
    }
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
            "defaultRequest": { "cpu": UNSAID.0, "memory": UNSAID.1 },
            "max": most,
        }] },
    });
    [(resource("", "v1", "ResourceQuota"), quota), (resource("", "v1", "LimitRange"), sizes)]
}

/// Pods are reached from their own namespace, and from what is no pod: nodes
/// and everything outside of the cluster.
fn apart(nodes: &[DynamicObject]) -> Value {
    let mut pods: Vec<&str> = Vec::new();
    for node in nodes {
        let ranges = node.data.pointer("/spec/podCIDRs").and_then(Value::as_array);
        pods.extend(ranges.into_iter().flatten().filter_map(Value::as_str));
    }
    let mut from = vec![json!({ "podSelector": {} })];
    if pods.is_empty() {
        // Where pods have their addresses from is not known: nodes only.
        from.extend(super::ports::addresses(nodes).map(|address| {
            let length = if address.is_ipv4() { 32 } else { 128 };
            json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
        }));
    } else {
        for (all, colon) in [("0.0.0.0/0", false), ("::/0", true)] {
            let except: Vec<&&str> =
                pods.iter().filter(|range| range.contains(':') == colon).collect();
            from.push(json!({ "ipBlock": { "cidr": all, "except": except } }));
        }
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": APART },
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": from }],
        },
    })
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
        let size = ClusterSize { vcores: 6, ram: 12_288 };
        let [(_, quota), (_, limits)] = sizes(size, 3);
        let hard = json!({ "requests.cpu": "6", "requests.memory": "12288Mi" });
        assert_eq!(quota["spec"]["hard"], hard);
        assert_eq!(limits["spec"]["limits"][0]["max"], json!({ "cpu": "2", "memory": "4096Mi" }));
        // A cluster of no nodes is one machine that does everything.
        let [_, (_, limits)] = sizes(size, 0);
        assert_eq!(limits["spec"]["limits"][0]["max"]["cpu"], "6");
    }

    #[test]
    fn other_namespaces_are_kept_out() {
        let node = |value: Value| serde_json::from_value::<DynamicObject>(value).unwrap();
        let known =
            node(json!({ "metadata": {}, "spec": { "podCIDRs": ["10.1.0.0/24", "fd00::/64"] } }));
        let policy = apart(&[known]);
        let from = &policy["spec"]["ingress"][0]["from"];
        assert_eq!(from[0], json!({ "podSelector": {} }));
        assert_eq!(from[1]["ipBlock"], json!({ "cidr": "0.0.0.0/0", "except": ["10.1.0.0/24"] }));
        assert_eq!(from[2]["ipBlock"], json!({ "cidr": "::/0", "except": ["fd00::/64"] }));
        let addresses = json!([{ "type": "InternalIP", "address": "192.0.2.7" }]);
        let unknown = node(json!({ "metadata": {}, "status": { "addresses": addresses } }));
        let policy = apart(&[unknown]);
        let from = policy["spec"]["ingress"][0]["from"].as_array().unwrap().clone();
        assert_eq!(from[1..], [json!({ "ipBlock": { "cidr": "192.0.2.7/32" } })]);
    }
}
