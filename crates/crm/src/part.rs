//! The crm as one part: what a process opens and runs.

use std::{collections::HashMap, fs::File, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    AppInst, AppInstKey, CloudletInfo, CloudletKey, CloudletState, ClusterInst, ClusterInstKey,
    ExecRequest, Node, NodeKey, NodeType,
};
use selvage_cloudlet::{Desk, What};
use selvage_fetch::Policy;
use selvage_kit::tasks::Tasks;
use selvage_notify::{ClientOptions, ClientStatus, KeyWorker, Letters, NotifyClient, ObjectKey};
use selvage_runtime::Runtime;
use selvage_store::SharedStore;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Egress, Forwarding, ImageFolders, Kind, Platform, Registries, Result, Site,
    books::{self, Books},
    drive::{self, World},
    metrics,
    mirror::Mirror,
    platform::{
        containers::{self, Containers},
        kaas::{self, Kaas},
        kubernetes::{self, Kubernetes},
        vm::{self, Machines},
    },
    publish::Publisher,
    shell,
};

/// The file that everything is remembered in.
const FILE: &str = "crm.redb";
/// What charts are installed with.
const HELM: &str = "helm";
/// How often to look which instances answer.
const HEALTH: Duration = Duration::from_secs(1);
/// How often to look for what nobody has used in a long time.
const TIDY: Duration = Duration::from_secs(3600);
/// How long a virtual machine may take to turn itself off.
const POWERDOWN: Duration = Duration::from_secs(30);

/// What a crm is opened with.
#[derive(Clone)]
pub struct Settings {
    /// Whose crm it is.
    pub cloudlet: CloudletKey,
    /// What this machine is called.
    pub node: String,
    pub site: Site,
    /// Where it remembers things.
    pub data: PathBuf,
    /// How to reach controllers.
    pub notify: ClientOptions,
    /// What runs containers.
    pub runtime: Arc<dyn Runtime>,
    /// The runtime's namespace for instances.
    pub namespace: String,
    /// Where files of this machine may be images.
    pub images: ImageFolders,
    /// Folder with a file `{developer}.json` of registries and passwords for
    /// each developer who has some.
    pub pull_secrets: Option<PathBuf>,
    /// Hosts inside of this network that images may come from, beside the
    /// registry of the site; all others must have public addresses.
    pub private_hosts: Vec<String>,
    /// Where lvmd listens, for instances that ask for volumes.
    pub lvmd: PathBuf,
    /// Where public ports are of clusters without an address of their own.
    pub addresses: Vec<IpAddr>,
    /// Who leads what comes to them from other machines, of containers.
    pub forwarding: Forwarding,
    /// What containers reach beside public addresses.
    pub egress: Egress,
    /// For public ports that speak TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// How long an instance may take until it takes connections.
    pub patience: Duration,
    /// How long something must not have been mentioned before it is removed.
    pub grace: Duration,
    /// How often everything is looked at.
    pub look: Duration,
    /// How often samples are sent.
    pub samples: Duration,
}

impl Settings {
    fn registries(&self) -> Registries {
        Registries::new(self.site.registry.clone(), self.pull_secrets.clone())
    }
}

/// How a crm is doing, for a status page.
#[derive(Debug, Clone)]
pub struct Status {
    /// Its connection to a controller.
    pub client: ClientStatus,
    /// Clusters and instances of which something is there.
    pub clusters: usize,
    pub instances: usize,
    /// Instances that do not answer.
    pub unhealthy: usize,
}

type Worker = KeyWorker<(What, ObjectKey), ()>;

/// The crm of one cloudlet.
pub struct Crm {
    world: Arc<World>,
    worker: Worker,
    mirror: Mutex<Option<Mirror>>,
    execs: Mutex<Option<Letters<ExecRequest>>>,
    store: SharedStore,
    settings: Settings,
    /// The controller has other flavors than before.
    flavors_changed: Arc<Notify>,
    /// Claim of the cloudlet's name on this machine.
    claim: Mutex<Option<File>>,
}

impl Crm {
    /// Opens what is remembered, sees that what should run runs, and removes
    /// what belongs to nothing. Nobody has heard of it before this returns.
    pub async fn open(settings: Settings) -> Result<Self> {
        let platform = Self::platform_of(&settings)?;
        Self::with_platform(settings, platform).await
    }

    /// The platform that the settings name. Must be called inside a tokio
    /// runtime.
    pub fn platform_of(settings: &Settings) -> Result<Arc<dyn Platform>> {
        let registries = settings.registries();
        let mut private_hosts = settings.private_hosts.clone();
        private_hosts.extend(registries.host().map(str::to_owned));
        let policy = Policy { private_hosts, ..Policy::default() };
        match settings.site.kind {
            Kind::Containers => Ok(Arc::new(Containers::open(
                &settings.cloudlet,
                containers::Options {
                    runtime: Arc::clone(&settings.runtime),
                    namespace: settings.namespace.clone(),
                    range: settings.site.range,
                    registries,
                    policy,
                    images: settings.images.clone(),
                    data: settings.data.clone(),
                    lvmd: settings.lvmd.clone(),
                    patience: settings.patience,
                    forwarding: settings.forwarding,
                    egress: settings.egress.clone(),
                },
            )?)),
            Kind::Kubernetes => {
                let kubernetes = kubernetes::Options {
                    kubeconfig: settings.site.kubeconfig.clone(),
                    registries,
                    policy,
                    addresses: settings.addresses.clone(),
                    images: settings.images.clone(),
                    data: settings.data.clone(),
                    patience: settings.patience,
                    helm: HELM.into(),
                };
                let Some(site) = settings.site.kaas.clone() else {
                    return Ok(Arc::new(Kubernetes::open(&settings.cloudlet, kubernetes)?));
                };
                let ClientOptions { addresses, tls, .. } = &settings.notify;
                let (controllers, tls) = (addresses.clone(), tls.clone());
                let options = kaas::Options { site, controllers, tls, kubernetes };
                Ok(Arc::new(Kaas::open(&settings.cloudlet, options)?))
            }
            Kind::Machines => Ok(Arc::new(Machines::open(
                &settings.cloudlet,
                vm::Options {
                    data: settings.data.clone(),
                    images: settings.images.clone(),
                    policy,
                    patience: settings.patience,
                    powerdown: POWERDOWN,
                },
            )?)),
        }
    }

    /// The same on a platform that was made elsewhere.
    pub async fn with_platform(settings: Settings, platform: Arc<dyn Platform>) -> Result<Self> {
        let store = books::open_store(&settings.data.join(FILE)).await?;
        let books = Books::open(Arc::clone(&store)).await?;
        let desk = Desk::new()?;
        let mirror = Mirror::open(&desk, Arc::clone(&store)).await?;
        let (exchange, execs) = desk.exchange()?;
        let client =
            NotifyClient::new(exchange, ClientOptions { filter: true, ..settings.notify.clone() })?;
        let publisher =
            Publisher::new(settings.addresses.clone(), settings.tls.clone(), platform.shortcut());
        let world = Arc::new(World {
            desk,
            books,
            platform,
            publisher,
            client,
            grace: settings.grace,
            unmentioned: Mutex::new(HashMap::new()),
            failed: Mutex::new(HashMap::new()),
            troubles: Mutex::default(),
            restarts: Mutex::default(),
            updated: Mutex::new(HashMap::new()),
        });
        let considered = Arc::downgrade(&world);
        let worker = KeyWorker::new(move |(what, key), ()| {
            let world = considered.upgrade();
            async move {
                if let Some(world) = world {
                    drive::consider(world, what, key).await;
                }
            }
        });
        let crm = Self {
            world,
            worker,
            mirror: Mutex::new(Some(mirror)),
            execs: Mutex::new(Some(execs)),
            store,
            settings,
            flavors_changed: Arc::default(),
            claim: Mutex::default(),
        };
        crm.rediscover().await?;
        crm.announce().await?;
        crm.introduce()?;
        crm.watch();
        Ok(crm)
    }

    /// Keeps a claim for as long as the crm lives.
    pub(crate) fn keep_claim(&self, claim: Option<File>) {
        *self.claim.lock() = claim;
    }

    /// Makes what was made run again, and ends what was begun to be removed.
    async fn rediscover(&self) -> Result<()> {
        let world = &self.world;
        for (text, row) in world.books.all(What::Cluster) {
            if !row.phase.is_whole() {
                continue;
            }
            if let (Some(facts), Ok(key)) = (
                row.facts.cluster(),
                <ClusterInstKey as prost::Message>::decode(row.key.as_slice()),
            ) && let Err(error) = world.platform.keep_cluster(&key, &facts).await
            {
                tracing::warn!(cluster = text, %error, "is not as it should be");
            }
        }
        let (clusters, instances) = self.known();
        match world.platform.sweep(&clusters, &instances).await {
            Ok(swept) => {
                for what in swept {
                    tracing::info!(what, "removed, as it belongs to nothing");
                }
            }
            // What cannot be reached now may be reached later: the crm runs.
            Err(error) => tracing::warn!(%error, "not looked for what belongs to nothing"),
        }
        let made = world.books.all(What::Instance).into_iter();
        let made = made.filter(|(_, row)| row.phase.is_whole());
        let keys = made.filter_map(|(_, row)| instance_key(&row));
        let settled = keys.map(|key| async move { drive::rediscover(world, &key).await });
        futures::future::join_all(settled).await;
        world.publisher.settled().await;
        Ok(())
    }

    /// Keys of everything in the books.
    fn known(&self) -> (Vec<ClusterInstKey>, Vec<AppInstKey>) {
        fn keys<K: prost::Message + Default>(rows: Vec<(String, books::Row)>) -> Vec<K> {
            rows.into_iter().filter_map(|(_, row)| K::decode(row.key.as_slice()).ok()).collect()
        }
        let books = &self.world.books;
        (keys(books.all(What::Cluster)), keys(books.all(What::Instance)))
    }

    /// Reports the cloudlet and what it can hold.
    async fn announce(&self) -> Result<()> {
        let mut info = CloudletInfo {
            key: Some(self.settings.cloudlet.clone()),
            state: CloudletState::Ready.into(),
            dns_zone: self.settings.site.dns_zone.clone(),
            ..CloudletInfo::default()
        };
        match self.world.platform.resources().await {
            Ok(resources) => {
                info.os_max_ram = resources.ram;
                info.os_max_vcores = resources.vcores;
                info.os_max_vol_gb = resources.disk;
                info.flavors = match resources.flavors.is_empty() {
                    true => self.world.offered_flavors(),
                    false => resources.flavors,
                };
            }
            Err(error) => {
                info.state = CloudletState::Errors.into();
                info.errors = vec![format!("get limits failed: {error}")];
            }
        }
        let infos = &self.world.desk.cloudlet_infos;
        if infos.find(&self.settings.cloudlet).is_none_or(|told| *told != info) {
            for error in &info.errors {
                tracing::warn!(error, "the cloudlet cannot be used");
            }
            infos.put(info)?;
        }
        Ok(())
    }

    /// Reports anew what has changed of the cloudlet, and tidies it up.
    async fn watch_cloudlet(self: Arc<Self>, stop: CancellationToken) {
        let pause = || async {
            tokio::select! {
                () = tokio::time::sleep(self.settings.look) => {}
                () = self.flavors_changed.notified() => {}
            }
        };
        let mut tidied = Instant::now();
        while stop.run_until_cancelled(pause()).await.is_some() {
            match stop.run_until_cancelled(self.announce()).await {
                Some(Err(error)) => tracing::warn!(%error, "the cloudlet was not reported"),
                Some(Ok(())) => {}
                None => return,
            }
            if tidied.elapsed() >= TIDY {
                tidied = Instant::now();
                match self.world.platform.tidy().await {
                    Ok(gone) => {
                        gone.iter().for_each(|what| tracing::info!(what, "removed, as unused"));
                    }
                    Err(error) => tracing::warn!(%error, "the cloudlet was not tidied up"),
                }
            }
        }
    }

    fn introduce(&self) -> Result<()> {
        self.world.desk.nodes.put(Node {
            key: Some(NodeKey {
                name: self.settings.node.clone(),
                node_type: NodeType::NodeCrm.into(),
                cloudlet_key: Some(self.settings.cloudlet.clone()),
            }),
            ..Node::default()
        })?;
        Ok(())
    }

    /// Looks at everything that is wanted or there.
    fn look(&self) {
        let (desk, books) = (&self.world.desk, &self.world.books);
        let wanted = desk.clusters.list().into_iter();
        let wanted = wanted.filter_map(|object| ObjectKey::of(object.as_ref()).ok());
        let made = books.all(What::Cluster).into_iter().filter_map(|(_, row)| cluster_key(&row));
        wanted.chain(made).for_each(|key| self.worker.changed((What::Cluster, key), ()));
        let wanted = desk.instances.list().into_iter();
        let wanted = wanted.filter_map(|object| ObjectKey::of(object.as_ref()).ok());
        let made = books.all(What::Instance).into_iter().filter_map(|(_, row)| instance_key(&row));
        wanted.chain(made).for_each(|key| self.worker.changed((What::Instance, key), ()));
    }

    /// Considers whatever changes.
    fn watch(&self) {
        let desk = &self.world.desk;
        let flavors_changed = Arc::clone(&self.flavors_changed);
        desk.flavors.on_change(move |_| flavors_changed.notify_one());
        let worker = self.worker.clone();
        desk.clusters.on_change(move |change| {
            worker.changed((What::Cluster, change.key.clone()), ());
        });
        let worker = self.worker.clone();
        desk.instances.on_change(move |change| {
            worker.changed((What::Instance, change.key.clone()), ());
        });
        let (worker, world) = (self.worker.clone(), Arc::downgrade(&self.world));
        desk.apps.on_change(move |change| {
            let (Some(world), Some(app), None) = (world.upgrade(), change.now, change.before)
            else {
                return;
            };
            for instance in world.desk.instances.list() {
                let of_app = instance.key.as_ref().is_some_and(|key| key.app_key == app.key);
                if of_app && let Ok(key) = ObjectKey::of(instance.as_ref()) {
                    worker.changed((What::Instance, key), ());
                }
            }
        });
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        let books = &self.world.books;
        let sick = |(key, _): &(String, books::Row)| !self.world.trouble(key).is_empty();
        Status {
            client: self.world.client.status(),
            clusters: books.all(What::Cluster).len(),
            instances: books.all(What::Instance).len(),
            unhealthy: books.all(What::Instance).iter().filter(|row| sick(row)).count(),
        }
    }

    /// Starts everything that runs.
    pub fn spawn(self: &Arc<Self>, tasks: &Tasks) {
        let stop = tasks.token().clone();
        if let Some(mirror) = self.mirror.lock().take() {
            tasks.spawn("crm's mirror", mirror.run(stop.clone()));
        }
        if let Some(execs) = self.execs.lock().take() {
            let tls = self.settings.notify.tls.clone();
            let answering = shell::answer(Arc::clone(&self.world), tls, execs, stop.clone());
            tasks.spawn("crm's shells", answering);
        }
        let samples = metrics::run(
            Arc::clone(&self.world),
            self.settings.cloudlet.clone(),
            self.settings.samples,
            stop.clone(),
        );
        tasks.spawn("crm's samples", samples);
        let client = self.world.client.clone();
        let until = stop.clone();
        tasks.spawn("crm's controller", async move { client.run(until).await });
        tasks.spawn("crm's cloudlet", Arc::clone(self).watch_cloudlet(stop.clone()));
        tasks.spawn("crm", Arc::clone(self).run(stop));
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut look = tokio::time::interval(self.settings.look);
        let mut health = tokio::time::interval(HEALTH);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = look.tick() => self.look(),
                _ = health.tick() => {
                    self.world.tell_health();
                    self.world.publisher.follow_health().await;
                }
            }
        }
        // What is under way is begun again by the next process, or ends now.
        self.worker.idle().await;
        self.world.publisher.close().await;
        let instances = self.world.books.all(What::Instance).len();
        if instances > 0 {
            tracing::info!(
                instances,
                "apps run on without their agent, which takes them over when it starts again; to \
                 stop one, delete it before: `selvage appinst delete`"
            );
        }
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "the crm's file was not closed");
        }
    }
}

fn cluster_key(row: &books::Row) -> Option<ObjectKey> {
    let key = prost::Message::decode(row.key.as_slice()).ok();
    ObjectKey::of(&ClusterInst { key, ..ClusterInst::default() }).ok()
}

fn instance_key(row: &books::Row) -> Option<ObjectKey> {
    let key = prost::Message::decode(row.key.as_slice()).ok();
    ObjectKey::of(&AppInst { key, ..AppInst::default() }).ok()
}
