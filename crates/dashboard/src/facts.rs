//! Facts from sources, whichever they are: plain values without rules.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    selvage::{
        dashboard::{Object, Severity},
        volumes::JobState,
    },
};

/// A kind of data that a source refreshes as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    Cloudlets,
    Instances,
    Clusters,
    Kaas,
    Machines,
    Hosts,
    Volumes,
    Backups,
    Operations,
    Process,
    Storage,
    Nodes,
    Objects,
    Alerts,
    Exporters,
}

impl Section {
    /// The name callers see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cloudlets => "cloudlets",
            Self::Instances => "instances",
            Self::Clusters => "clusters",
            Self::Kaas => "kaas",
            Self::Machines => "machines",
            Self::Hosts => "hosts",
            Self::Volumes => "volumes",
            Self::Backups => "backups",
            Self::Operations => "operations",
            Self::Process => "process",
            Self::Storage => "storage",
            Self::Nodes => "nodes",
            Self::Objects => "objects",
            Self::Alerts => "alerts",
            Self::Exporters => "exporters",
        }
    }
}

/// The data of one section.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    Cloudlets(Arc<Vec<Cloudlet>>),
    Instances(Arc<Vec<Instance>>),
    Clusters(Arc<Vec<Cluster>>),
    Kaas(Arc<Vec<KaasCluster>>),
    Machines(Arc<Vec<Machine>>),
    Hosts(Arc<Vec<Host>>),
    Volumes(Arc<Volumes>),
    Backups(Arc<Backups>),
    Operations(Arc<Vec<Operation>>),
    Process(Arc<Process>),
    Storage(Arc<Storage>),
    Nodes(Arc<Vec<Node>>),
    Objects(Arc<Objects>),
    Alerts(Arc<Vec<Alert>>),
    Exporters(Arc<Vec<Exporter>>),
}

impl Data {
    /// The section that it belongs to.
    pub fn section(&self) -> Section {
        match self {
            Self::Cloudlets(_) => Section::Cloudlets,
            Self::Instances(_) => Section::Instances,
            Self::Clusters(_) => Section::Clusters,
            Self::Kaas(_) => Section::Kaas,
            Self::Machines(_) => Section::Machines,
            Self::Hosts(_) => Section::Hosts,
            Self::Volumes(_) => Section::Volumes,
            Self::Backups(_) => Section::Backups,
            Self::Operations(_) => Section::Operations,
            Self::Process(_) => Section::Process,
            Self::Storage(_) => Section::Storage,
            Self::Nodes(_) => Section::Nodes,
            Self::Objects(_) => Section::Objects,
            Self::Alerts(_) => Section::Alerts,
            Self::Exporters(_) => Section::Exporters,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cloudlet {
    pub object: Object,
    /// Latitude and longitude.
    pub location: Option<(f64, f64)>,
    pub state: CloudletState,
    pub errors: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    pub object: Object,
    /// Name of its cloudlet's object.
    pub cloudlet: String,
    pub state: TrackedState,
    pub errors: Vec<String>,
    /// Reason why its ports do not answer; empty when they do.
    pub unhealthy: String,
    /// Replacements of its containers in the last ten minutes.
    pub restarts: u32,
    /// Restarts since it was made or updated, and the reason of the last one.
    pub started_again: u32,
    pub last_reason: String,
    /// Number of the revision that it runs.
    pub revision: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub object: Object,
    pub state: TrackedState,
    pub errors: Vec<String>,
}

/// A Kubernetes cluster that is made of machines.
#[derive(Debug, Clone, PartialEq)]
pub struct KaasCluster {
    pub object: Object,
    pub status: ClusterStatus,
    /// Reason why it waits or failed.
    pub message: String,
}

/// A machine of the inventory.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub object: Object,
    /// Without "node/".
    pub name: String,
    pub roles: Vec<String>,
    /// host:port of its agent; empty where it has none.
    pub address: String,
    pub joined: Option<Timestamp>,
    /// Time of its last report, to the minute.
    pub last_seen: Option<Timestamp>,
    pub certificate_ends: Option<Timestamp>,
    /// When a certificate that it had replaced was renewed.
    pub copy_suspected: Option<Timestamp>,
    pub blocked: bool,
}

/// A machine's own numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    pub name: String,
    /// Its clock minus ours, in milliseconds, as far as the call's duration
    /// lets one tell.
    pub skew_ms: i64,
    pub cpu_percent: f64,
    pub memory_bytes: u64,
    pub memory_available: u64,
    /// Of its disks, a second.
    pub io: Io,
    /// Over its network, in bytes a second.
    pub received: f64,
    pub sent: f64,
    /// Reason why it did not answer; the numbers are none then.
    pub error: String,
}

/// A volume group, or the thin pool of a device class.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub object: Object,
    pub size: u64,
    pub free: u64,
    pub missing: bool,
    /// Name of the volume group that a thin pool is in.
    pub parent: Option<String>,
    /// Bytes that are written to a thin pool; where nobody knows, what its volumes
    /// may take of it.
    pub written: u64,
}

/// A logical volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    pub group: String,
    pub name: String,
    pub snapshot: bool,
    /// Its content is not complete yet.
    pub pending: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Volumes {
    pub groups: Vec<Group>,
    /// Number of device classes.
    pub classes: u32,
    /// By group and name.
    pub volumes: Vec<Volume>,
}

impl Volumes {
    /// Returns the groups whose sizes add up to all there is, each with its bytes in
    /// use. A thin pool is part of its group and takes of it what is written to the
    /// pool; it stands for itself where no class uses the rest of the group.
    pub fn room(&self) -> Vec<(&Group, u64)> {
        let listed: HashSet<&str> =
            self.groups.iter().map(|group| group.object.name.as_str()).collect();
        let is_part = |group: &&Group| group.parent.as_deref().is_some_and(|p| listed.contains(p));
        let mut unwritten: HashMap<&str, u64> = HashMap::new();
        for pool in self.groups.iter().filter(is_part) {
            let parent = pool.parent.as_deref().unwrap_or_default();
            let rest = pool.size.saturating_sub(pool.written);
            let sum = unwritten.entry(parent).or_default();
            *sum = sum.saturating_add(rest);
        }
        let whole = self.groups.iter().filter(|group| !is_part(group));
        whole
            .map(|group| {
                let rest = unwritten.get(group.object.name.as_str()).copied().unwrap_or_default();
                (group, group.size.saturating_sub(group.free).saturating_sub(rest))
            })
            .collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub volume: String,
    pub state: JobState,
    pub error: String,
    pub ended: Option<Timestamp>,
    /// A backup, and not a restore or upkeep.
    pub backup: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub object: Object,
    pub volume: String,
    pub every_seconds: u64,
    pub error: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backups {
    /// Newest first.
    pub jobs: Vec<Job>,
    pub schedules: Vec<Schedule>,
}

/// An operation that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    pub object: Object,
    pub kind: String,
    pub step: String,
    pub updated: Option<Timestamp>,
}

/// The process that the controller runs in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// "embedded" or "etcd".
    pub store: String,
    /// Reason why the store takes no writes; empty while it does.
    pub store_failure: String,
    /// Addresses of all controllers.
    pub controllers: Vec<String>,
}

/// A Kubernetes node that carries storage.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub name: String,
    /// Condition "Ready"; None where it is not told.
    pub ready: Option<bool>,
    pub cordoned: bool,
    /// Sorted.
    pub roles: Vec<String>,
    pub internal_ip: String,
    pub external_ip: String,
    pub created: Option<Timestamp>,
}

/// A Kubernetes object.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// None where it cannot be told.
    pub ready: Option<bool>,
    /// Message of its status.
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    pub resources: Vec<Resource>,
    pub deployments: Vec<Resource>,
}

/// An alert that fires.
#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    pub name: String,
    /// The name with its labels, by which alerts of one rule differ.
    pub object: String,
    pub severity: Severity,
    pub summary: String,
    pub detail: String,
    pub since: Option<Timestamp>,
    /// Address of a page about it.
    pub runbook: String,
    /// Command that shows what it is about.
    pub command: String,
}

/// A machine as its node_exporter tells of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exporter {
    /// host:port that is scraped.
    pub instance: String,
    pub cpu_percent: Option<f64>,
    pub memory_bytes: u64,
    pub memory_available: u64,
    pub filesystems: Vec<Filesystem>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filesystem {
    pub device: String,
    pub mount: String,
    pub size: u64,
    pub available: Option<u64>,
}

impl Filesystem {
    /// Share in use, 0 to 1.
    pub fn share(&self) -> f64 {
        let used = self.size.saturating_sub(self.available.unwrap_or_default());
        used as f64 / self.size.max(1) as f64
    }
}

/// A health check of a storage cluster that does not pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Such as "OSD_DOWN".
    pub code: String,
    /// HEALTH_ERR rather than HEALTH_WARN.
    pub is_error: bool,
    pub message: String,
    pub detail: Vec<String>,
    pub muted: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mon {
    /// All of the map, and those that agree.
    pub names: Vec<String>,
    pub quorum: Vec<String>,
    pub created: Option<Timestamp>,
    pub modified: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mgr {
    pub active: String,
    pub standbys: Vec<String>,
    pub changed: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mds {
    pub up: u64,
    /// Those that are there to take over, hot or not.
    pub standbys: u64,
    pub filesystems: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Osd {
    pub count: u64,
    pub up: u64,
    pub r#in: u64,
    pub up_changed: Option<Timestamp>,
    pub in_changed: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rgw {
    pub daemons: u64,
    pub hosts: Option<u64>,
    pub zones: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    pub name: String,
    /// Copies of replicated pools; data and coding chunks of others.
    pub replicated: bool,
    pub size: u64,
    pub min_size: u64,
    /// Coding chunks of an erasure-coded pool, where known.
    pub coding: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub used: u64,
    pub available: u64,
    pub total: u64,
    /// Share of raw space, 0 to 1.
    pub ratio: f64,
    pub near_full: f64,
    pub full: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Io {
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub reads: f64,
    pub writes: f64,
}

/// A storage cluster. Everything that a source may not see is optional.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Storage {
    pub id: String,
    /// HEALTH_OK, HEALTH_WARN or HEALTH_ERR.
    pub status: String,
    pub checks: Vec<Check>,
    /// New crashes, in words.
    pub crashes: Vec<String>,
    pub mon: Option<Mon>,
    pub mgr: Option<Mgr>,
    pub mds: Option<Mds>,
    pub osd: Option<Osd>,
    /// Hosts that carry OSDs.
    pub hosts: Option<u64>,
    pub rgw: Option<Rgw>,
    pub pools: Option<Vec<Pool>>,
    pub clean_pgs: Option<u64>,
    pub objects: Option<u64>,
    pub stored_bytes: Option<u64>,
    pub usage: Option<Usage>,
    pub io: Option<Io>,
    /// Images and file systems.
    pub volumes: Option<u64>,
}

/// Everything that is known, the newest of each section.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub cloudlets: Option<Arc<Vec<Cloudlet>>>,
    pub instances: Option<Arc<Vec<Instance>>>,
    pub clusters: Option<Arc<Vec<Cluster>>>,
    pub kaas: Option<Arc<Vec<KaasCluster>>>,
    pub machines: Option<Arc<Vec<Machine>>>,
    pub hosts: Option<Arc<Vec<Host>>>,
    pub volumes: Option<Arc<Volumes>>,
    pub backups: Option<Arc<Backups>>,
    pub operations: Option<Arc<Vec<Operation>>>,
    pub process: Option<Arc<Process>>,
    pub storage: Option<Arc<Storage>>,
    pub nodes: Option<Arc<Vec<Node>>>,
    pub objects: Option<Arc<Objects>>,
    pub alerts: Option<Arc<Vec<Alert>>>,
    pub exporters: Option<Arc<Vec<Exporter>>>,
}

/// The reference to a thing that belongs to nobody in particular.
pub(crate) fn object(kind: &str, name: impl Into<String>) -> Object {
    Object { kind: kind.into(), name: name.into(), ..Object::default() }
}

/// All of an optional list.
pub(crate) fn each<T>(list: &Option<Arc<Vec<T>>>) -> impl Iterator<Item = &T> {
    list.iter().flat_map(|list| list.iter())
}
