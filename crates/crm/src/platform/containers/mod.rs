//! Containers on this machine, with containerd or with an OCI runtime driven
//! directly: a cluster is a network of its own, an instance a container in it.

mod files;
mod hosts;
mod image;
mod order;
mod replace;
mod volumes;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{AppInstKey, CloudletKey, ClusterInstKey},
};
use selvage_edge::cloudlet_kind;
use selvage_fetch::Policy;
use selvage_runtime::{
    Container, Exec, ExecSpec, Exit, LogOptions, LogStream, Runtime, Users, cgroup::group,
};

use self::{files::Files, hosts::Hosts, image::Images, volumes::Volumes};
use super::{
    ClusterFacts, ClusterOrder, ClusterSize, Forwarder, InstanceFacts, InstanceOrder, ListenWait,
    Platform, Resources, Restarts, Usage, host, naming,
    network::{
        self, Egress, Forwarding, Networks, Range,
        names::{ClusterNames, InstanceNames, Namer},
        namespaces,
        nat::Nat,
    },
};
use crate::{Error, ImageFolders, Registries, Result, error::During};

/// Folder in the data directory that volumes are mounted in.
pub(crate) const VOLUMES: &str = volumes::FOLDER;
/// Which cloudlet's containers these are.
const SITE_LABEL: &str = "selvage.site";
/// The first address of a network is the bridge's.
const HOSTS: std::ops::RangeInclusive<u8> = 2..=254;
/// Interval of checking whether an instance takes connections.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Exit code of what was killed.
const KILLED: i32 = 137;
const OUT_OF_MEMORY: &str = " (out of memory)";
/// So many restarts, the last one less than this ago, are a crash loop.
const MANY_RESTARTS: u32 = 3;
const STEADY: Duration = Duration::from_secs(60);
/// Lines of a log that tell why a container ended.
const LAST_LINES: u64 = 5;

/// Options of the platform.
#[derive(Clone)]
pub struct Options {
    pub runtime: Arc<dyn Runtime>,
    /// The runtime's namespace for instances.
    pub namespace: String,
    pub range: Range,
    pub registries: Registries,
    /// Hosts that images may come from.
    pub policy: Policy,
    /// Folders whose files may be images.
    pub images: ImageFolders,
    /// Directory in which disk is counted and volumes are mounted.
    pub data: PathBuf,
    /// Socket of lvmd, for instances that ask for volumes.
    pub lvmd: PathBuf,
    /// Time an instance may take until its first port takes connections;
    /// one that takes longer counts as made and as not healthy.
    pub start_timeout: Duration,
    /// Forwarder of what comes to public ports from other machines.
    pub forwarding: Forwarding,
    /// Users of containers.
    pub users: Users,
    /// Networks that instances reach beside public addresses.
    pub egress: Egress,
}

/// The platform.
pub struct Containers {
    options: Options,
    site: String,
    namer: Namer,
    networks: Networks,
    images: Images,
    nat: Arc<Nat>,
    files: Files,
    hosts: Hosts,
    volumes: Volumes,
    /// Container that serves, by the first name of its instance.
    serving: Mutex<HashMap<String, String>>,
}

impl Containers {
    /// Must be called inside a tokio runtime.
    pub fn open(cloudlet: &CloudletKey, options: Options) -> Result<Self> {
        let (namer, networks) = (Namer::new(cloudlet)?, Networks::open(options.range)?);
        Ok(Self {
            site: naming::text(cloudlet)?,
            images: Images::new(&options),
            nat: Arc::new(Nat::new(
                &namer,
                networks.clone(),
                options.forwarding,
                options.egress.clone(),
            )),
            files: Files::new(&options.data),
            hosts: Hosts::new(&options.data),
            volumes: Volumes::new(options.lvmd.clone(), &options.data),
            serving: Mutex::default(),
            networks,
            namer,
            options,
        })
    }

    /// Lets neighbours in its cluster find an instance by the name of its app.
    fn is_found(&self, key: &AppInstKey, container: &str) -> Result<()> {
        let app = key.app_key.as_ref().map_or("", |app| &app.name);
        self.hosts.serves(container, &selvage_edge::dns_label(app))
    }

    fn namespace(&self) -> &str {
        &self.options.namespace
    }

    async fn find(&self, id: &str) -> Result<Option<Container>> {
        match self.options.runtime.inspect(self.namespace(), id).await {
            Ok(found) => Ok(Some(found)),
            Err(selvage_runtime::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn remove(&self, id: &str) -> Result<()> {
        match self.options.runtime.delete(self.namespace(), id, true).await {
            Ok(()) | Err(selvage_runtime::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a container of these names anew and starts it.
    async fn run(
        &self,
        order: &InstanceOrder,
        names: &InstanceNames,
        address: Ipv4Addr,
    ) -> Result<()> {
        self.nat.open().await?;
        let cluster = self.namer.cluster(&order.cluster)?;
        let wanted = volumes::wanted(&order.app)?;
        let using = self.images.using().await;
        let image = self.images.provide(order).await?;
        self.remove(&names.container).await?;
        let mut mounts = self.volumes.provide(&self.owner(&order.key)?, &wanted).await?;
        mounts.extend(self.files.provide(&names.container, &order.app)?);
        let network = order.in_cluster()?.network;
        let namespace = namespaces::path(&names.namespace);
        let group = cluster.group.clone();
        let hosts = self.hosts.enter(&cluster.bridge, &names.container, address)?;
        let place = order::Placement { namespace, group, mounts, hosts };
        let mut spec = order::spec(order, &names.container, image, place)?;
        spec.users = self.options.users;
        spec.labels.insert(SITE_LABEL.into(), self.site.clone());
        let runtime = &self.options.runtime;
        // Neither needs the other until it starts; both end before one fails.
        let (plugged, made) = tokio::join!(
            self.networks.provide_instance(&cluster, names, network, address),
            runtime.create(self.namespace(), spec),
        );
        plugged?;
        made?;
        drop(using);
        runtime.start(self.namespace(), &names.container).await?;
        Ok(())
    }

    /// Returns when the instance takes connections, or has had its time. Fails
    /// when it has ended.
    async fn until_it_answers(
        &self,
        order: &InstanceOrder,
        id: &str,
        address: Ipv4Addr,
    ) -> Result<()> {
        let place = first_tcp_port(order).map(|port| SocketAddr::from((address, port)));
        let mut wait = ListenWait::new(&order.progress, self.options.start_timeout);
        loop {
            let container = self.find(id).await?.ok_or_else(|| Error::missing(id))?;
            if !container.status.is_running() || container.restarts > 0 {
                return Err(self.ended(id, &container).await);
            }
            let Some(place) = place else { return Ok(()) };
            if replace::takes_connections(place).await {
                return Ok(());
            }
            if wait.is_over() {
                tracing::warn!(container = id, %place, "runs and does not take connections yet");
                return Ok(());
            }
            wait.not_yet(place.port());
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Why a container does not run any more, in its own words.
    async fn ended(&self, id: &str, container: &Container) -> Error {
        let words = self.last_lines(id, LAST_LINES).await;
        // One that was started again since has no exit of its own.
        let exit = container.exit.or(container.last_exit).unwrap_or_default();
        Error::state(format!("the container {}", reason(exit, &words)))
    }

    /// The last lines of a container's log.
    async fn last_lines(&self, id: &str, lines: u64) -> String {
        let options = LogOptions { tail: Some(lines), ..LogOptions::default() };
        let mut words = Vec::new();
        if let Ok(mut log) = self.options.runtime.logs(self.namespace(), id, options).await {
            while let Some(Ok(piece)) = log.next().await {
                words.extend_from_slice(&piece);
            }
        }
        String::from_utf8_lossy(&words).trim().to_owned()
    }
}

/// Reason of an end: the exit code, with the last line of the log.
fn reason(exit: Exit, words: &str) -> String {
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    format!("ended{}{words}", with_code(exit))
}

fn with_code(exit: Exit) -> String {
    let code = exit.code.map_or_else(String::new, |code| format!(" with code {code}"));
    // Whatever is killed has that code: by a person, by the machine's own
    // shortage, or by the kernel for its limit.
    let why = match exit.code {
        _ if exit.out_of_memory => OUT_OF_MEMORY,
        Some(KILLED) => " (killed)",
        _ => "",
    };
    code + why
}

/// Says so when a container that runs just now ends again and again.
fn crash_loop(container: &Container) -> Option<String> {
    let exit = container.last_exit.filter(|_| container.restarts >= MANY_RESTARTS)?;
    let since = Timestamp::now().duration_since(exit.at?).unsigned_abs();
    let (count, code) = (container.restarts, with_code(exit));
    (since < STEADY)
        .then(|| format!("the container was started again {count} times, it ended{code}"))
}

/// Port by which an instance shows that it serves.
fn first_tcp_port(order: &InstanceOrder) -> Option<u16> {
    let tcp = order.instance.mapped_ports.iter().find(|port| port.proto() != LProto::Udp)?;
    u16::try_from(tcp.internal_port).ok()
}

/// Networks of clusters are IPv4.
fn inner(facts: &InstanceFacts) -> Result<Ipv4Addr> {
    match facts.address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(_) => Err(Error::state("the instance has no IPv4 address")),
    }
}

#[async_trait]
impl Platform for Containers {
    fn kind(&self) -> &'static str {
        cloudlet_kind::CONTAINERS
    }

    async fn resources(&self) -> Result<Resources> {
        host::resources(&self.options.data).await
    }

    async fn check(&self) -> Result<()> {
        self.nat.check().await
    }

    fn forwarder(&self) -> Option<Arc<dyn Forwarder>> {
        Some(Arc::<Nat>::clone(&self.nat))
    }

    fn plan_cluster(&self, order: &ClusterOrder, others: &[ClusterFacts]) -> Result<ClusterFacts> {
        let range = self.networks.range();
        // The first network is left out: its first address is the range's own.
        let free = |number: &u32| others.iter().all(|other| other.network != *number);
        let network = (1..range.size()).find(free).ok_or_else(|| {
            Error::state(format!("all {} networks of the cloudlet are in use", range.size() - 1))
        })?;
        let own = IpAddr::V4(range.address(network, 1));
        let address = order.cluster.allocated_ip.parse().unwrap_or(own);
        let (nodes, size) = (order.cluster.num_nodes, ClusterSize::of(order));
        Ok(ClusterFacts { address, network, nodes, size })
    }

    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()> {
        let key = order.cluster.key.clone().unwrap_or_default();
        self.keep_cluster(&key, facts).await
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
        let names = self.namer.cluster(key)?;
        let limits = order::cluster_limits(facts.size);
        group::provide(&names.group, &limits).during("making a cluster's control group")?;
        self.networks.provide_cluster(&names, facts.network, facts.address).await?;
        self.nat.open().await
    }

    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()> {
        self.remove_cluster(&self.namer.cluster(key)?).await
    }

    fn plan_instance(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        let address = self.free_address(order, others)?;
        let containers = vec![self.namer.instance(&order.key)?.container];
        Ok(InstanceFacts { containers, address: IpAddr::V4(address), places: Vec::new() })
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        let (names, _) = self.places_of(&order.key, facts)?;
        self.start_anew(order, &names, inner(facts)?).await
    }

    async fn replace_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        self.replace(order, facts, others).await
    }

    async fn retire_instance(&self, key: &AppInstKey, facts: &InstanceFacts) -> Result<()> {
        let (retired, successor) = self.places_of(key, facts)?;
        self.is_found(key, &successor.container)?;
        self.serving.lock().insert(self.owner(key)?, successor.container);
        self.retire(&retired).await
    }

    async fn restore_instance(&self, _: &InstanceOrder, _: &InstanceFacts) -> Result<()> {
        // It was never taken away.
        Ok(())
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        let (names, other) = self.places_of(&order.key, facts)?;
        let cluster = self.namer.cluster(&order.cluster)?;
        let address = inner(facts)?;
        let owner = self.owner(&order.key)?;
        self.hosts.enter(&cluster.bridge, &names.container, address)?;
        self.is_found(&order.key, &names.container)?;
        let known = self.serving.lock().insert(owner.clone(), names.container.clone());
        if known.is_none() {
            // An update that a former process did not finish, or finish with.
            self.discard(&other).await?;
        }
        // What runs goes on; nothing starts without a filter before it.
        if !self.find(&names.container).await?.is_some_and(|found| found.status.is_running()) {
            self.nat.open().await?;
        }
        // Before its network: without that nothing starts it.
        let wanted = volumes::wanted(&order.app)?;
        if !self.volumes.are_mounted(&owner, &wanted) {
            self.volumes.provide(&owner, &wanted).await?;
        }
        let network = order.in_cluster()?.network;
        let there = self.networks.provide_instance(&cluster, &names, network, address).await?;
        match self.find(&names.container).await? {
            Some(found) if there && (found.status.is_running() || found.supervised) => Ok(false),
            Some(found) if there && found.exit.is_some() => {
                self.options.runtime.start(self.namespace(), &names.container).await?;
                Ok(true)
            }
            found => {
                let (found, id) = (found.map(|found| found.status), &names.container);
                tracing::warn!(container = id, has_network = there, ?found, "it is made anew");
                self.start_anew(order, &names, address).await.map(|()| true)
            }
        }
    }

    async fn unhealthy_reason(&self, key: &AppInstKey) -> Result<String> {
        let id = self.serving(key)?;
        let Some(found) = self.find(&id).await? else {
            return Ok("the container is missing".into());
        };
        if found.status.is_running() {
            return Ok(crash_loop(&found).unwrap_or_default());
        }
        Ok(match &found.problem {
            Some(problem) => format!("the container does not start: {problem}"),
            None => self.ended(&id, &found).await.to_string(),
        })
    }

    async fn restarts(&self, key: &AppInstKey) -> Result<Restarts> {
        let id = self.serving(key)?;
        let Some(found) = self.find(&id).await? else { return Ok(Restarts::default()) };
        let last_reason = match found.last_exit {
            Some(exit) => reason(exit, &self.last_lines(&id, 1).await),
            None => String::new(),
        };
        Ok(Restarts { count: found.restarts, last_reason })
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        self.discard(&self.namer.instance(key)?).await?;
        self.discard(&self.namer.standby(key)?).await?;
        let owner = self.owner(key)?;
        self.serving.lock().remove(&owner);
        self.volumes.remove(&owner).await
    }

    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>> {
        let mut known = Vec::new();
        for key in instances {
            known.extend([self.namer.instance(key)?, self.namer.standby(key)?]);
        }
        let bridges = clusters.iter().map(|key| self.namer.cluster(key));
        let bridges: Vec<_> = bridges.collect::<Result<_>>()?;
        let mut swept = Vec::new();
        for container in self.options.runtime.list(self.namespace()).await? {
            let ours = container.labels.get(SITE_LABEL) == Some(&self.site);
            if ours && known.iter().all(|names| names.container != container.runtime_id) {
                self.remove(&container.runtime_id).await?;
                self.files.remove(&container.runtime_id)?;
                swept.push(format!("container {}", container.runtime_id));
            }
        }
        let (found_bridges, namespaces) = self.networks.found(&self.namer).await?;
        for namespace in namespaces {
            if known.iter().all(|names| names.namespace != namespace) {
                self.networks.remove_namespace(&namespace).await?;
                swept.push(format!("network namespace {namespace}"));
            }
        }
        for bridge in found_bridges {
            if bridges.iter().all(|names| names.bridge != bridge) {
                swept.push(format!("bridge {bridge}"));
                self.remove_cluster(&Namer::behind(bridge)).await?;
            }
        }
        if clusters.is_empty()
            && let Err(error) = self.nat.close().await
        {
            tracing::debug!(%error, "rules that nothing needs may be left");
        }
        swept.extend(self.images.tidy().await?);
        Ok(swept)
    }

    async fn tidy(&self) -> Result<Vec<String>> {
        self.images.tidy().await
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        let id = self.serving(key)?;
        let container = self.options.runtime.inspect(self.namespace(), &id).await?;
        let pid = container.pid.ok_or(selvage_runtime::Error::ProcessFinished)?;
        let mut reader = self.options.runtime.metrics(self.namespace(), &id).await?;
        let sample = reader.sample().during("reading the control group")?;
        let held = self.options.runtime.disk(self.namespace(), &id).await?;
        let (received_bytes, sent_bytes) = network::traffic(pid).unwrap_or_default();
        Ok(Usage {
            cpu_ns: sample.core.cpu_ns,
            memory_bytes: sample.core.working_set_bytes,
            disk_bytes: held.unwrap_or(sample.io.write_bytes),
            sent_bytes,
            received_bytes,
        })
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        let id = self.one_of(key, container)?;
        Ok(self.options.runtime.exec(self.namespace(), &id, spec).await?)
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        let id = self.one_of(key, container)?;
        Ok(self.options.runtime.logs(self.namespace(), &id, options).await?)
    }
}

impl Containers {
    /// Removes what a cluster has; with the last one goes what all had.
    async fn remove_cluster(&self, names: &ClusterNames) -> Result<()> {
        self.networks.remove_cluster(names).await?;
        // Containers are gone by now, unless their records were lost.
        let group = names.group.clone();
        network::blocking(move || group::kill(&group).during("ending a cluster's processes"))
            .await?;
        group::remove(&names.group).during("removing a cluster's control group")?;
        self.hosts.remove(&names.bridge)?;
        let (bridges, _) = self.networks.found(&self.namer).await?;
        if bridges.is_empty() { self.nat.close().await } else { Ok(()) }
    }

    /// The container of an instance that is meant; others are none of the
    /// caller's business.
    fn one_of(&self, key: &AppInstKey, container: &str) -> Result<String> {
        let serving = self.serving(key)?;
        if container.is_empty() || container == serving {
            Ok(serving)
        } else {
            Err(Error::missing(format!("container {container:?} of the instance")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_ended_for_memory_is_said_to_be_out_of_it() {
        let exit = |code, out_of_memory| Exit { code, at: None, out_of_memory };
        assert_eq!(
            reason(exit(Some(137), true), "full"),
            "ended with code 137 (out of memory): full"
        );
        assert_eq!(reason(exit(Some(137), false), "full"), "ended with code 137 (killed): full");
        assert_eq!(reason(exit(Some(1), false), ""), "ended with code 1");
        assert_eq!(reason(exit(None, false), ""), "ended");
    }
}
