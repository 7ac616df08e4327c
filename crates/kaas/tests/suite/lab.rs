//! A manager on a store of its own, with simulated machines and a clock that
//! is moved by hand.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use selvage_api::cnct::kaas::api::{
    AddNodePoolMsg, ControlPlaneMachineSpec, CreateClusterMsg, MachineSpec, ScaleNodePoolMsg,
    ScaleNodePoolSpec,
};
use selvage_kaas::{
    Caller, Dependencies, Keyring, Manager, Origin, Result, Settings,
    catalogue::Catalogue,
    pki::Seal,
    plan::Snapshot,
    provider::{local::Local, sim::Sim},
    vault::Vault,
};
use selvage_restic::{Directory, Secret};
use selvage_store::{
    SharedStore,
    clock::{Clock, ManualClock},
    embedded::{Embedded, Options},
};

pub(crate) struct Lab {
    pub(crate) sim: Sim,
    pub(crate) manager: Manager,
    pub(crate) clock: ManualClock,
    pub(crate) store: SharedStore,
    pub(crate) folder: tempfile::TempDir,
}

/// File of the versions on offer, in the folder of a lab.
const CATALOGUE: &str = "catalogue.toml";
/// More rounds than anything here needs.
const ROUNDS: usize = 500;

impl Lab {
    pub(crate) async fn new() -> Self {
        Self::with_step(1).await
    }

    /// One whose upgrades go so many minors forward.
    pub(crate) async fn with_step(step: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("../../catalogue.toml");
        let text = text.replace("step = 1", &format!("step = {step}"));
        std::fs::write(folder.path().join(CATALOGUE), text).unwrap();
        let (sim, clock) = (Sim::default(), ManualClock::new(1_790_000_000_000));
        let store = open(folder.path().join("store.redb")).await;
        let manager = manager(&store, &sim, &clock, folder.path()).await;
        Self { sim, manager, clock, store, folder }
    }

    /// Another controller, with nothing in common but the repository of backups.
    pub(crate) async fn beside(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sim, clock) = (Sim::default(), self.clock.clone());
        let store = open(folder.path().join("store.redb")).await;
        let own = (vault(self.folder.path()), Catalogue::load(None).unwrap(), 9);
        let manager = manager_of(&store, &sim, &clock, own, Settings::default()).await;
        Self { sim, manager, clock, store, folder }
    }

    /// Ends the process, as far as it can be seen from outside, and starts
    /// another.
    pub(crate) async fn restart(&mut self) {
        self.store.close().await.unwrap();
        self.store = open(self.folder.path().join("store.redb")).await;
        self.manager = manager(&self.store, &self.sim, &self.clock, self.folder.path()).await;
    }

    /// A second process on the same store.
    pub(crate) async fn another_manager(&self) -> Manager {
        manager(&self.store, &self.sim, &self.clock, self.folder.path()).await
    }

    /// Ids of backups in the repository.
    pub(crate) async fn stored(&self) -> Vec<String> {
        let stored = vault(self.folder.path()).list().await.unwrap();
        stored.into_iter().map(|one| one.backup.id).collect()
    }

    /// Certificate of the authority of a cluster.
    pub(crate) async fn authority(&self, name: &str) -> String {
        let cluster = self.manager.find(name).unwrap().cluster;
        let config = self.manager.kubeconfig(&cluster, "test").await.unwrap().unwrap();
        let line = config.lines().find(|line| line.contains("certificate-authority-data"));
        line.unwrap().to_owned()
    }

    /// Works on a cluster until nothing is left to do but to watch it.
    pub(crate) async fn settle(&self, name: &str) {
        for _ in 0..ROUNDS {
            match self.manager.reconcile(name).await.unwrap() {
                None => return,
                Some(_) if self.is_settled(name) => return,
                Some(again) => self.clock.advance(again),
            }
        }
        panic!("{name} does not settle: {:#?}", self.manager.snapshot(name));
    }

    fn is_settled(&self, name: &str) -> bool {
        let Some(snapshot) = self.manager.snapshot(name) else { return true };
        let policy = &self.manager.settings().policy;
        let plan = selvage_kaas::plan(&snapshot, policy, self.clock.now());
        plan.actions.is_empty() && plan.wake_at.is_none()
    }

    /// A cluster that runs.
    pub(crate) async fn running(&self, name: &str, control_plane: i32, pools: &[(&str, i32)]) {
        self.create(name, "1.35.8", control_plane, pools).await.unwrap();
        self.settle(name).await;
    }

    pub(crate) async fn create(
        &self,
        name: &str,
        version: &str,
        control_plane: i32,
        pools: &[(&str, i32)],
    ) -> Result<Snapshot> {
        let request = request(name, version, control_plane, pools);
        self.manager.create(&admin(), &Origin::default(), &request).await
    }

    pub(crate) async fn scale(&self, name: &str, pool: &str, count: i32) -> Result<Snapshot> {
        let node_pools = vec![ScaleNodePoolSpec { name: pool.into(), count }];
        let request = ScaleNodePoolMsg { cluster_name: name.into(), node_pools };
        self.manager.scale(&admin(), &request).await
    }

    pub(crate) async fn add_pool(&self, name: &str, pool: &str, count: i32) -> Result<Snapshot> {
        let worker_node_pools = vec![spec(pool, count)];
        let request = AddNodePoolMsg { cluster_name: name.into(), worker_node_pools };
        self.manager.add_pools(&admin(), &request).await
    }

    pub(crate) async fn upgrade(&self, name: &str, version: &str) -> Result<Snapshot> {
        self.manager.upgrade(&admin(), &Origin::default(), name, version).await
    }

    pub(crate) fn status(&self, name: &str) -> String {
        let snapshot = self.manager.find(name).unwrap();
        let status = selvage_kaas::conditions::status(&snapshot.cluster.conditions);
        status.as_str_name().to_owned()
    }
}

pub(crate) fn spec(name: &str, count: i32) -> MachineSpec {
    MachineSpec { name: name.into(), count, ..MachineSpec::default() }
}

pub(crate) fn request(
    name: &str,
    version: &str,
    control_plane: i32,
    pools: &[(&str, i32)],
) -> CreateClusterMsg {
    let count = control_plane;
    CreateClusterMsg {
        name: name.into(),
        k8s_version: version.into(),
        control_plane_nodes: Some(ControlPlaneMachineSpec {
            count,
            ..ControlPlaneMachineSpec::default()
        }),
        worker_node_pools: pools.iter().map(|(name, count)| spec(name, *count)).collect(),
    }
}

pub(crate) fn admin() -> Caller {
    Caller { name: "admin".into(), admin: true, ..Caller::default() }
}

pub(crate) fn developer(organisation: &str) -> Caller {
    let organisations = vec![organisation.to_owned()];
    Caller { name: format!("dev of {organisation}"), organisations, ..Caller::default() }
}

async fn open(path: PathBuf) -> SharedStore {
    Embedded::open(path, Options::default()).await.unwrap()
}

pub(crate) async fn manager(
    store: &SharedStore,
    sim: &Sim,
    clock: &ManualClock,
    folder: &Path,
) -> Manager {
    manager_with(store, sim, clock, folder, Settings::default()).await
}

/// The repository of backups in a folder.
pub(crate) fn vault(folder: &Path) -> Vault {
    let backend = Arc::new(Directory::new(folder.join("repository")));
    Vault::new(backend, Secret::new("password"), folder.join("scratch"))
}

pub(crate) async fn manager_with(
    store: &SharedStore,
    sim: &Sim,
    clock: &ManualClock,
    folder: &Path,
    settings: Settings,
) -> Manager {
    let catalogue = Catalogue::load(Some(&folder.join(CATALOGUE))).unwrap();
    manager_of(store, sim, clock, (vault(folder), catalogue, 7), settings).await
}

/// A manager whose machines are of this host, and what it runs is not.
pub(crate) async fn manager_of_host(lab: &Lab, trusted: &[&str]) -> Manager {
    let folder = lab.folder.path();
    let trusted = trusted.iter().map(|name| (*name).to_owned()).collect();
    let local = Local::new(folder, 9, None, "/bin/true".into(), Vec::new()).with_trusted(trusted);
    let seal = Seal::new(&[7; 32], "test").unwrap();
    let clock = Arc::new(lab.clock.clone());
    let keyring = Keyring::open(Arc::clone(&lab.store), seal, clock.clone()).await.unwrap();
    let dependencies = Dependencies {
        provider: Arc::new(local),
        driver: Arc::new(lab.sim.clone()),
        catalogue: Catalogue::load(None).unwrap(),
        keyring,
        clock,
        vault: Arc::new(vault(folder)),
    };
    Manager::open(Arc::clone(&lab.store), Settings::default(), dependencies).await.unwrap()
}

/// The same with a repository of backups, versions on offer and a key that seals.
async fn manager_of(
    store: &SharedStore,
    sim: &Sim,
    clock: &ManualClock,
    (vault, catalogue, key): (Vault, Catalogue, u8),
    settings: Settings,
) -> Manager {
    let seal = Seal::new(&[key; 32], "test").unwrap();
    let keyring = Keyring::open(Arc::clone(store), seal, Arc::new(clock.clone())).await.unwrap();
    let dependencies = Dependencies {
        provider: Arc::new(sim.clone()),
        driver: Arc::new(sim.clone()),
        catalogue,
        keyring,
        clock: Arc::new(clock.clone()),
        vault: Arc::new(vault),
    };
    Manager::open(Arc::clone(store), settings, dependencies).await.unwrap()
}
