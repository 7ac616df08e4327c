//! Any cluster of Kubernetes that a kubeconfig leads to: a cluster of ours is
//! a namespace there, an instance the objects of its manifest or of its chart.

mod apply;
mod chart;
mod cluster;
mod fetch;
mod helm;
mod instance;
mod manifest;
mod names;
mod policy;
mod ports;
mod shell;
mod tenant;
mod usage;

use std::{collections::HashSet, net::IpAddr, path::PathBuf, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::edgeproto::{AppInstKey, CloudletKey, ClusterInstKey, FlavorInfo};
use selvage_edge::cloudlet_kind;
use selvage_fetch::{Fetcher, Policy};
use selvage_kube::{
    Connection, Nodes,
    kube::api::{DynamicObject, ListParams},
    name, quantity,
};
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream};
use serde_json::Value;

use self::{
    apply::Objects,
    cluster::{Clusters, namespaces},
    names::{InstanceNames, Namer},
    usage::Meter,
};
use super::{
    ClusterFacts, ClusterOrder, ClusterSize, InstanceFacts, InstanceOrder, Platform, Resources,
    Usage,
};
use crate::{Egress, Error, ImageFolders, Registries, Result};

const MEGABYTE: f64 = 1_048_576.0;
const GIGABYTE: f64 = 1_000_000_000.0;

/// Options of the platform.
#[derive(Clone)]
pub struct Options {
    /// Kubeconfig of the cluster; none: as `kubectl` finds it.
    pub kubeconfig: Option<PathBuf>,
    pub registries: Registries,
    /// Hosts that charts and manifests may come from.
    pub policy: Policy,
    /// Addresses of public ports.
    pub addresses: Vec<IpAddr>,
    /// Folders that charts may come from.
    pub images: ImageFolders,
    /// For charts, and for files while another program reads them.
    pub data: PathBuf,
    /// Time an instance may take until it is ready, once it runs.
    pub start_timeout: Duration,
    /// The program for charts.
    pub helm: PathBuf,
    /// Networks that pods reach beside public addresses.
    pub egress: Egress,
}

/// The platform. It is there whether the cluster answers or not; whatever
/// needs the cluster fails with the reason while it does not.
pub struct Kubernetes {
    options: Options,
    namer: Namer,
    connection: Connection,
    fetcher: Fetcher,
    meter: Meter,
    /// Namespaces that this process made as they should be.
    furnished: Mutex<HashSet<String>>,
}

impl Kubernetes {
    pub fn open(cloudlet: &CloudletKey, options: Options) -> Result<Self> {
        let connection = Connection::from_file("crm.kubeconfig", options.kubeconfig.clone());
        Self::with_connection(cloudlet, options, connection)
    }

    /// Uses the cluster at the end of a connection.
    pub(super) fn with_connection(
        cloudlet: &CloudletKey,
        options: Options,
        connection: Connection,
    ) -> Result<Self> {
        Ok(Self {
            namer: Namer::new(cloudlet)?,
            connection,
            fetcher: Fetcher::new(options.policy.clone()),
            meter: Meter::default(),
            furnished: Mutex::default(),
            options,
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    async fn clusters(&self) -> Result<Clusters<'_>> {
        Ok(Clusters {
            client: self.connection.client().await?,
            namer: &self.namer,
            registries: &self.options.registries,
            egress: &self.options.egress,
        })
    }

    async fn objects<'a>(&'a self, names: &'a InstanceNames) -> Result<Objects<'a>> {
        Ok(Objects { client: self.connection.client().await?, namer: &self.namer, names })
    }
}

/// Facts that a cluster will have: where it has no address of its own it is
/// reached as all are.
pub(super) fn plan_cluster(addresses: &[IpAddr], order: &ClusterOrder) -> ClusterFacts {
    let shared = addresses.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let address = order.cluster.allocated_ip.parse().unwrap_or(shared);
    let (nodes, size) = (order.cluster.num_nodes, ClusterSize::of(order));
    ClusterFacts { address, network: 0, nodes, size }
}

/// Facts that an instance will have before it is made.
pub(super) fn plan_instance(order: &InstanceOrder) -> Result<InstanceFacts> {
    instance::check_deployment(&order.app)?;
    let address = order.in_cluster()?.address;
    Ok(InstanceFacts { containers: Vec::new(), address, places: Vec::new() })
}

/// Returns whether a node takes pods.
fn is_usable(node: &DynamicObject) -> bool {
    let conditions = node.data.pointer("/status/conditions").and_then(Value::as_array);
    let ready = |of: &Value| of["type"] == "Ready" && of["status"] == "True";
    let shut = node.data.pointer("/spec/unschedulable").and_then(Value::as_bool).unwrap_or(false);
    !shut && conditions.is_some_and(|all| all.iter().any(ready))
}

/// The size of a node, as what apps may have of it.
fn size(node: &DynamicObject) -> FlavorInfo {
    let amount = |name: &str| {
        let given = node.data.pointer("/status/allocatable").map(|all| &all[name]);
        given.and_then(Value::as_str).and_then(quantity::parse).unwrap_or_default()
    };
    let labels = node.metadata.labels.as_ref();
    let kind = labels.and_then(|labels| labels.get("node.kubernetes.io/instance-type"));
    let name = kind.or(node.metadata.name.as_ref());
    FlavorInfo {
        name: name.cloned().unwrap_or_default(),
        vcpus: amount("cpu") as u64,
        ram: (amount("memory") / MEGABYTE) as u64,
        disk: (amount("ephemeral-storage") / GIGABYTE) as u64,
    }
}

/// Resources of all nodes together, and each size of node once.
fn sum(nodes: &[DynamicObject]) -> Resources {
    let mut all = Resources::default();
    for node in nodes.iter().filter(|node| is_usable(node)).map(size) {
        all.ram += node.ram;
        all.vcores += node.vcpus;
        all.disk += node.disk;
        if all.flavors.iter().all(|known| known.name != node.name) {
            all.flavors.push(node);
        }
    }
    all.flavors.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

#[async_trait]
impl Platform for Kubernetes {
    fn kind(&self) -> &'static str {
        cloudlet_kind::KUBERNETES
    }

    async fn resources(&self) -> Result<Resources> {
        let nodes = Nodes::new(&self.connection.client().await?).list().await?;
        let resources = sum(&nodes);
        if resources.flavors.is_empty() {
            let reason = format!("none of the cluster's {} nodes takes pods", nodes.len());
            return Err(Error::state(reason));
        }
        Ok(resources)
    }

    fn plan_cluster(&self, order: &ClusterOrder, _: &[ClusterFacts]) -> Result<ClusterFacts> {
        if order.cluster.num_masters > 1 {
            let reason = "the control plane of this cloudlet's cluster is not made here: ask for 1";
            return Err(Error::invalid("num_masters", reason));
        }
        Ok(plan_cluster(&self.options.addresses, order))
    }

    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()> {
        let key = order.cluster.key.clone().unwrap_or_default();
        self.clusters().await?.provide(&key, facts).await?;
        self.furnished.lock().insert(self.namer.namespace(&key)?);
        Ok(())
    }

    async fn update_cluster(
        &self,
        order: &ClusterOrder,
        facts: &ClusterFacts,
    ) -> Result<ClusterFacts> {
        let (nodes, size) = (order.cluster.num_nodes, ClusterSize::of(order));
        let facts = ClusterFacts { nodes, size, ..facts.clone() };
        self.create_cluster(order, &facts).await?;
        Ok(facts)
    }

    async fn keep_cluster(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()> {
        let name = self.namer.namespace(key)?;
        let clusters = self.clusters().await?;
        // What the cloudlet's file says may have changed since the last process.
        if self.furnished.lock().contains(&name) && clusters.is_whole(key).await? {
            return Ok(());
        }
        clusters.provide(key, facts).await?;
        self.furnished.lock().insert(name);
        Ok(())
    }

    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()> {
        self.clusters().await?.remove(&self.namer.namespace(key)?).await
    }

    fn plan_instance(&self, order: &InstanceOrder, _: &[InstanceFacts]) -> Result<InstanceFacts> {
        plan_instance(order)
    }

    async fn create_instance(&self, order: &InstanceOrder, _: &InstanceFacts) -> Result<()> {
        self.make(order).await
    }

    async fn look_at_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<InstanceFacts> {
        Ok(self.look_at(order, facts).await?.0)
    }

    async fn keep_instance(&self, order: &InstanceOrder, _: &InstanceFacts) -> Result<bool> {
        let names = self.namer.instance(&order.key)?;
        if self.objects(&names).await?.is_whole().await? {
            return Ok(false);
        }
        self.make(order).await?;
        Ok(true)
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        let names = self.namer.instance(key)?;
        self.meter.forget(&names.id);
        self.unmake(&names).await
    }

    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>> {
        let kept = clusters.iter().map(|key| self.namer.namespace(key));
        let kept: Vec<String> = kept.collect::<Result<_>>()?;
        let known = instances.iter().map(|key| self.namer.instance(key));
        let known: Vec<InstanceNames> = known.collect::<Result<_>>()?;
        let ours = ListParams::default().labels(&self.namer.ours());
        let clusters = self.clusters().await?;
        let found = namespaces(&clusters.client).list(&ours).await?;
        let mut swept = Vec::new();
        for namespace in found.into_iter().filter_map(|found| found.metadata.name) {
            if !kept.contains(&namespace) {
                clusters.remove(&namespace).await?;
                swept.push(format!("namespace {namespace}"));
                continue;
            }
            let ours = self.namer.ours();
            for id in apply::all_records(&clusters.client, &namespace, &ours).await? {
                if known.iter().all(|names| names.id != id) {
                    let stray = InstanceNames::stray(&namespace, &id);
                    let pods = self.pods(&stray).await?;
                    let pods: Vec<&str> = pods.iter().map(name).collect();
                    self.unmake(&stray).await?;
                    let pods = pods.join(", ");
                    swept.push(format!("instance {id} in namespace {namespace} (pods {pods})"));
                }
            }
        }
        Ok(swept)
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        let names = self.namer.instance(key)?;
        let client = self.connection.client().await?;
        let pods = self.pods(&names).await?;
        if pods.is_empty() {
            return Err(Error::missing("a pod of the instance"));
        }
        Ok(self.meter.usage(&client, &names.id, &pods).await)
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        let names = self.namer.instance(key)?;
        let pod = self.one_of(&names, container).await?;
        self.place(&names, &pod).await?.exec(spec).await
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        let names = self.namer.instance(key)?;
        let pod = self.one_of(&names, container).await?;
        self.place(&names, &pod).await?.logs(options).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_that_take_pods_are_counted_in_megabytes_and_gigabytes() {
        let node = |name: &str, ready: &str, shut: bool| -> DynamicObject {
            serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": { "unschedulable": shut },
                "status": {
                    "conditions": [{ "type": "Ready", "status": ready }],
                    "allocatable": { "cpu": "3900m", "memory": "8Gi", "ephemeral-storage": "50G" },
                },
            }))
            .unwrap()
        };
        let nodes = [
            node("b", "True", false),
            node("a", "True", false),
            node("c", "Unknown", false),
            node("d", "True", true),
        ];
        let all = sum(&nodes);
        assert_eq!((all.vcores, all.ram, all.disk), (6, 16_384, 100));
        let names: Vec<&str> = all.flavors.iter().map(|flavor| flavor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(all.flavors[0].vcpus, 3);
    }
}
