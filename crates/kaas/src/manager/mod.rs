//! Clusters: what is stored of them, and what is done about it.

mod backup;
mod change;
mod create;
mod hibernate;
mod keys;
mod membership;
mod preview;
mod quarantine;
mod reconcile;
mod remedy;
mod repository;
mod rotate;
mod step;
mod sweep;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_store::{
    SharedStore, Table,
    clock::{Clock, Millis},
};

pub use change::Origin;

use crate::{
    Error, Result,
    catalogue::{Catalogue, Release, Version},
    conditions,
    driver::Driver,
    endpoint::ApiEndpoint,
    keyring::Keyring,
    plan::{Policy, Snapshot},
    provider::Provider,
    record::{BY_CLUSTER, Backup, Cluster, Condition, Machine, MachineFailures, Pool},
    validate::Limits,
    vault::Vault,
};

/// Settings of clusters.
#[derive(Debug, Clone)]
pub struct Settings {
    pub limits: Limits,
    pub policy: Policy,
    /// Interval at which a step that is not done is taken again.
    pub poll: Duration,
    /// Interval at which nodes are looked at.
    pub health_period: Duration,
    /// Name of clusters' APIs in kubeconfigs; none: the address of a control plane.
    pub endpoint: Option<ApiEndpoint>,
    /// Life of the certificate in a kubeconfig.
    pub kubeconfig_lifetime: Duration,
    /// Clusters that are worked on at the same time.
    pub workers: usize,
    /// Between two snapshots of a cluster's etcd; zero for none on schedule.
    pub snapshot_interval: Duration,
    /// Snapshots of a cluster that are kept of each trigger.
    pub snapshot_keep: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            policy: Policy::default(),
            poll: Duration::from_millis(500),
            health_period: Duration::from_secs(15),
            endpoint: None,
            kubeconfig_lifetime: Duration::from_secs(24 * 3600),
            workers: 64,
            snapshot_interval: Duration::from_secs(3600),
            snapshot_keep: 24,
        }
    }
}

/// Dependencies of the manager.
pub struct Dependencies {
    pub provider: Arc<dyn Provider>,
    pub driver: Arc<dyn Driver>,
    pub catalogue: Catalogue,
    pub keyring: Arc<Keyring>,
    pub clock: Arc<dyn Clock>,
    /// Repository of backups.
    pub vault: Arc<Vault>,
}

/// Clusters, their pools and their machines. Clones are the same.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    store: SharedStore,
    clusters: Arc<Table<Cluster>>,
    pools: Arc<Table<Pool>>,
    machines: Arc<Table<Machine>>,
    backups: Arc<Table<Backup>>,
    failures: Arc<Table<MachineFailures>>,
    dependencies: Dependencies,
    kubeconfigs: Mutex<HashMap<(String, String), keys::CachedKubeconfig>>,
    health: Mutex<HashMap<String, reconcile::Health>>,
    pruning: Mutex<repository::Pruning>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("clusters", &self.inner.clusters.len()).finish()
    }
}

impl Manager {
    /// Opens the tables.
    pub async fn open(
        store: SharedStore,
        settings: Settings,
        dependencies: Dependencies,
    ) -> Result<Self> {
        let (clusters, pools) =
            (Table::open(Arc::clone(&store)).await?, Table::open(Arc::clone(&store)).await?);
        let machines = Table::open(Arc::clone(&store)).await?;
        let backups = Table::open(Arc::clone(&store)).await?;
        let failures = Table::open(Arc::clone(&store)).await?;
        let inner = Inner {
            settings,
            store,
            clusters,
            pools,
            machines,
            backups,
            failures,
            dependencies,
            kubeconfigs: Mutex::default(),
            health: Mutex::default(),
            pruning: Mutex::default(),
        };
        let manager = Self { inner: Arc::new(inner) };
        manager.exclude_quarantined();
        Ok(manager)
    }

    fn now(&self) -> Millis {
        self.inner.dependencies.clock.now()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.dependencies.clock)
    }

    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.inner.dependencies.catalogue
    }

    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.inner.dependencies.provider
    }

    pub(crate) fn clusters(&self) -> &Arc<Table<Cluster>> {
        &self.inner.clusters
    }

    pub(crate) fn machines(&self) -> &Arc<Table<Machine>> {
        &self.inner.machines
    }

    pub(crate) fn pools(&self) -> &Arc<Table<Pool>> {
        &self.inner.pools
    }

    /// All clusters by name.
    pub fn list(&self) -> Vec<Cluster> {
        self.inner.clusters.list().iter().map(|stored| stored.value.clone()).collect()
    }

    /// A cluster with all that belongs to it.
    pub fn snapshot(&self, name: &str) -> Option<Snapshot> {
        let cluster = self.inner.clusters.get(name)?.value.clone();
        let pools = self.inner.pools.by_index(BY_CLUSTER, name);
        let machines = self.inner.machines.by_index(BY_CLUSTER, name);
        Some(Snapshot {
            cluster,
            pools: pools.iter().map(|stored| stored.value.clone()).collect(),
            machines: machines.iter().map(|stored| stored.value.clone()).collect(),
        })
    }

    /// The same, or an error that says that there is none.
    pub fn find(&self, name: &str) -> Result<Snapshot> {
        self.snapshot(name).ok_or_else(|| Error::ClusterNotFound(name.to_owned()))
    }

    /// Conditions of a cluster as the snapshot shows it. Those that are stored were true
    /// when they were written, and views of machines may be behind or ahead of them.
    pub fn conditions(&self, snapshot: &Snapshot) -> Vec<Condition> {
        conditions::evaluate(snapshot, self.now())
    }

    /// Sentence that says what is being waited for.
    pub fn message(&self, snapshot: &Snapshot) -> String {
        conditions::message(snapshot, self.now())
    }

    /// Why newer versions on offer are not reached by one upgrade, a sentence each.
    pub fn obstacles_to_upgrades(&self, snapshot: &Snapshot) -> Vec<String> {
        let (from, oldest) = versions_of(snapshot);
        let Some(from) = from else { return Vec::new() };
        let newer = self.catalogue().releases().iter().filter(|release| release.version > from);
        let lacks = |release: &Release| self.provider().lacks(release);
        let obstacle = |release: &Release| {
            let (to, oldest) = (release.version, oldest.unwrap_or(from));
            let hops = self.catalogue().hops(from, to, oldest, lacks);
            hops.err().or_else(|| lacks(release).map(|text| format!("{to}: {text}")))
        };
        newer.filter_map(obstacle).collect()
    }

    /// Versions that one upgrade reaches. Those that no machine can run are
    /// left out.
    pub fn upgrades(&self, snapshot: &Snapshot) -> Vec<Version> {
        let (from, oldest) = versions_of(snapshot);
        let Some(from) = from else { return Vec::new() };
        let lacks = |release: &Release| self.provider().lacks(release);
        self.catalogue().reachable(from, oldest.unwrap_or(from), lacks)
    }
}

/// Versions of the oldest control plane and of the oldest kubelet.
pub(crate) fn versions_of(snapshot: &Snapshot) -> (Option<Version>, Option<Version>) {
    let read = |text: &String| text.parse::<Version>().ok();
    let running = || snapshot.machines.iter().map(|machine| &machine.running);
    let control_plane = running().filter_map(|versions| read(&versions.control_plane)).min();
    let kubelet = running().filter_map(|versions| read(&versions.kubelet)).min();
    (control_plane.or_else(|| read(&snapshot.cluster.version)), kubelet)
}
