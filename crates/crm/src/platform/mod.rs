//! Infrastructure of a cloudlet, behind one trait.

pub mod containers;
mod downloads;
mod folders;
mod host;
pub mod kaas;
pub mod kubernetes;
mod naming;
pub mod network;
pub mod vm;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, ClusterInst, ClusterInstKey, Flavor, FlavorInfo,
};
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Error, Result};
pub use folders::ImageFolders;

/// Resources of a cloudlet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Memory in MB.
    pub ram: u64,
    pub vcores: u64,
    /// Disk in GB.
    pub disk: u64,
    /// Sizes of machine it offers; none: all flavors that the controller has.
    pub flavors: Vec<FlavorInfo>,
}

/// Facts of a cluster that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// Address of its public ports.
    pub address: IpAddr,
    /// Which of the cloudlet's inner networks it has.
    pub network: u32,
    pub nodes: u32,
    /// Limits of its instances together.
    #[serde(default)]
    pub size: ClusterSize,
}

/// A flavor as often as there are nodes; 0 for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSize {
    pub vcores: u64,
    /// Memory in MB.
    pub ram: u64,
    /// Disk in GB.
    #[serde(default)]
    pub disk: u64,
}

impl ClusterSize {
    /// A cluster without nodes has its master, and runs things on that.
    pub fn of(order: &ClusterOrder) -> Self {
        let nodes = u64::from(order.cluster.num_nodes.max(1));
        let times = |amount: u64| amount.saturating_mul(nodes);
        let Flavor { vcpus, ram, disk, .. } = order.flavor;
        Self { vcores: times(vcpus), ram: times(ram), disk: times(disk) }
    }
}

/// Facts of an instance that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// Names of its containers; the first is where a command runs.
    pub containers: Vec<String>,
    /// Address that it listens at, inside the cloudlet.
    pub address: IpAddr,
    /// Its ports that are reached in another way than by their own number at
    /// `address`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PortEndpoint>,
}

/// Address of a port of an instance inside the cloudlet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEndpoint {
    /// The number it has in the instance.
    pub internal: u16,
    pub udp: bool,
    pub at: SocketAddr,
}

impl InstanceFacts {
    /// Address at which a port is reached.
    pub fn place(&self, internal: u16, udp: bool) -> SocketAddr {
        let elsewhere =
            self.places.iter().find(|place| (place.internal, place.udp) == (internal, udp));
        elsewhere.map_or_else(|| SocketAddr::new(self.address, internal), |place| place.at)
    }
}

/// Usage of an instance now, or since its container was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ns: u64,
    pub memory_bytes: u64,
    /// Held on its disk, or written so far where nobody counts that.
    pub disk_bytes: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// Number of times that an instance ended by itself, and why the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restarts {
    pub count: u32,
    /// Exit code and last line of its log; empty when it never ended.
    pub last_reason: String,
}

/// Number of connections that there are, and have been.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    pub active: u64,
    pub total: u64,
}

impl std::ops::AddAssign for Connections {
    fn add_assign(&mut self, other: Self) {
        self.active += other.active;
        self.total += other.total;
    }
}

/// Forward from a public port straight to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortForward {
    pub udp: bool,
    /// Public address it begins at; 0.0.0.0 for all addresses of the machine.
    pub public: SocketAddrV4,
    pub target: SocketAddrV4,
}

/// A public port at an address: whether of udp, and which.
pub type Listener = (bool, SocketAddrV4);

impl PortForward {
    /// Listener it begins at: no two forwards have the same.
    pub fn listener(&self) -> Listener {
        (self.udp, self.public)
    }
}

/// Leads those who come from other machines past the balancer, where something
/// can do that. Ways outlive the process that asked for them.
#[async_trait]
pub trait Forwarder: Send + Sync + 'static {
    /// There are these forwards and no others, except for those of an earlier
    /// process until all is [`settled`](Self::settled). Of a forward that is not
    /// open nothing but its counts is kept.
    async fn set_forwards(&self, forwards: BTreeMap<PortForward, bool>);

    /// The balancer listens at these public ports and no others: instances may
    /// use them as everybody may.
    async fn set_listeners(&self, listeners: BTreeSet<Listener>);

    /// All that an earlier process had forwarded and that is still wanted was asked
    /// for; the rest goes.
    async fn settled(&self);

    /// Gives those who came by forwards that are no more some time to leave, then
    /// cuts them off.
    async fn end(&self, forwards: Vec<PortForward>, grace: Duration);

    /// Counts of connections by the forwards that there are.
    async fn connections(&self) -> HashMap<PortForward, Connections>;
}

/// A cluster that is wanted.
#[derive(Debug, Clone)]
pub struct ClusterOrder {
    pub cluster: ClusterInst,
    pub flavor: Flavor,
    /// Listener to what the work waits for.
    pub progress: Progress,
}

/// Listener to what long work waits for. Clones are the same; the default one
/// listens to nothing.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<ProgressSink>>, Option<Arc<StopSink>>);

/// Takes each sentence about progress.
type ProgressSink = dyn Fn(&str) + Send + Sync;
/// Takes that the version that serves is stopped now.
type StopSink = dyn Fn() + Send + Sync;

impl Progress {
    pub fn new(listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)), None)
    }

    /// Hears when the version that serves is stopped for its successor, too.
    pub(crate) fn on_stop(self, listener: impl Fn() + Send + Sync + 'static) -> Self {
        Self(self.0, Some(Arc::new(listener)))
    }

    /// Tells, before it is done, that the version that serves is stopped for its
    /// successor: nobody may be sent to it.
    pub(crate) fn stops(&self) {
        if let Some(listener) = &self.1 {
            listener();
        }
    }

    /// Tells a sentence.
    pub fn tell(&self, sentence: &str) {
        if let Some(listener) = &self.0 {
            listener(sentence);
        }
    }
}

/// Time for which an instance may start before anybody is told what is waited for.
const SILENT_START: Duration = Duration::from_secs(1);

/// Tells, once, that an instance runs and takes no connections yet.
pub(crate) struct ListenWait<'a> {
    progress: &'a Progress,
    begun: Instant,
    timeout: Duration,
    told: bool,
}

impl<'a> ListenWait<'a> {
    pub(crate) fn new(progress: &'a Progress, timeout: Duration) -> Self {
        Self { progress, begun: Instant::now(), timeout, told: false }
    }

    /// Notes that nobody listens on this port yet.
    pub(crate) fn not_yet(&mut self, port: u16) {
        if self.told || self.begun.elapsed() < SILENT_START {
            return;
        }
        self.told = true;
        let seconds = self.timeout.as_secs();
        self.progress.tell(&format!(
            "It runs. Waiting up to {seconds} s for it to take connections on port {port}"
        ));
    }

    /// Returns whether the time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.timeout
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress(…)")
    }
}

/// An instance that is wanted, with everything it refers to.
#[derive(Debug, Clone)]
pub struct InstanceOrder {
    pub key: AppInstKey,
    pub app: App,
    pub instance: AppInst,
    pub flavor: Flavor,
    /// The cluster it runs in.
    pub cluster: ClusterInstKey,
    /// None for a virtual machine, which is in no cluster.
    pub cluster_facts: Option<ClusterFacts>,
    /// Listener to what the work waits for.
    pub progress: Progress,
}

impl InstanceOrder {
    /// Name of the developer whose app it is.
    pub fn developer(&self) -> &str {
        let app = self.key.app_key.as_ref();
        let developer = app.and_then(|app| app.developer_key.as_ref());
        developer.map_or("", |developer| &developer.name)
    }

    /// Facts of the cluster, for those who need one.
    pub fn in_cluster(&self) -> Result<&ClusterFacts> {
        self.cluster_facts.as_ref().ok_or_else(|| {
            let deployment = &self.app.deployment;
            Error::state(format!("deployment {deployment:?} is in no cluster"))
        })
    }
}

/// A cloudlet's infrastructure.
///
/// Everything may be asked again after a crash at any point: what is there
/// already is used or replaced, what is gone already is not missed. Whatever
/// is made bears a name that follows from the key alone.
#[async_trait]
pub trait Platform: Send + Sync + 'static {
    /// As `cloudlet_kind` has it.
    fn kind(&self) -> &'static str;

    /// Resources of the cloudlet.
    async fn resources(&self) -> Result<Resources>;

    /// Fails while nothing may start, with why.
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Forwarder that leads to instances past the balancer.
    fn forwarder(&self) -> Option<Arc<dyn Forwarder>> {
        None
    }

    /// Plans the facts of a cluster beside those that there are.
    fn plan_cluster(&self, order: &ClusterOrder, others: &[ClusterFacts]) -> Result<ClusterFacts>;

    /// Makes a cluster as planned.
    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()>;

    /// Changes a cluster and returns its facts afterwards.
    async fn update_cluster(
        &self,
        order: &ClusterOrder,
        facts: &ClusterFacts,
    ) -> Result<ClusterFacts>;

    /// Makes sure that what a cluster had is there again after a restart.
    async fn keep_cluster(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()>;

    /// Removes a cluster and whatever half of it there is.
    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()>;

    /// Returns whether the instances of a cluster go with it: they are not
    /// removed one by one before it, so that a cluster that does not answer can
    /// be deleted.
    fn instances_go_with_cluster(&self) -> bool {
        false
    }

    /// Plans the facts of an instance beside the others of its cluster.
    fn plan_instance(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts>;

    /// Makes an instance as planned and lets it run.
    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()>;

    /// Replaces an instance by one as ordered, and returns what that has. It
    /// fails with the old one as it was, wherever the platform can run both.
    /// `others` are those of the cluster, the instance itself among them.
    async fn replace_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
        _others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        self.create_instance(order, facts).await?;
        Ok(facts.clone())
    }

    /// Makes an instance run as ordered again, after replacing it failed. Nothing
    /// is to be done where the old one was kept meanwhile.
    async fn restore_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.create_instance(order, facts).await
    }

    /// Removes what was replaced, now that nobody is sent there any more.
    async fn retire_instance(&self, _: &AppInstKey, _: &InstanceFacts) -> Result<()> {
        Ok(())
    }

    /// Returns the facts of an instance once it is made, where more shows then
    /// than was planned: what its containers are called, where its ports are.
    async fn look_at_instance(
        &self,
        _: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<InstanceFacts> {
        Ok(facts.clone())
    }

    /// Makes sure that an instance runs; whether something had to be done.
    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool>;

    /// Why an instance that should run does not; empty when it does, or where
    /// nobody can tell.
    async fn unhealthy_reason(&self, _: &AppInstKey) -> Result<String> {
        Ok(String::new())
    }

    /// Number of times an instance was started again since it was made or
    /// updated.
    async fn restarts(&self, _: &AppInstKey) -> Result<Restarts> {
        Ok(Restarts::default())
    }

    /// Removes an instance and whatever half of it there is.
    async fn delete_instance(&self, key: &AppInstKey) -> Result<()>;

    /// Removes what bears a name of ours and belongs to none of these; says
    /// what it was.
    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>>;

    /// Ends everything that runs, and removes what there is of it on this
    /// machine outside of the data directory; says what it was.
    async fn stop_all(&self) -> Result<Vec<String>> {
        self.sweep(&[], &[]).await
    }

    /// Removes what was kept for later and was not used in a long time; says
    /// what it was.
    async fn tidy(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Usage of an instance that runs.
    async fn usage(&self, key: &AppInstKey) -> Result<Usage>;

    /// Runs a program in a container of an instance.
    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec>;

    /// The log of a container of an instance.
    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream>;
}
