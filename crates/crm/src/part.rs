//! The crm as one part: what a process opens and runs.

use std::{collections::HashMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::edgeproto::{
    AppInst, AppInstKey, CloudletInfo, CloudletKey, CloudletState, ClusterInst, ClusterInstKey,
    ExecRequest, Node, NodeKey, NodeType,
};
use selvage_cloudlet::{AgentCaches, SiteInstances};
use selvage_edge::ObjectKind;
use selvage_fetch::Policy;
use selvage_kit::tasks::Tasks;
use selvage_notify::{ClientOptions, ClientStatus, MessageReceiver, NotifyClient, ObjectKey};
use selvage_runtime::{Runtime, Users};
use selvage_store::{SharedStore, clock::SystemClock};
use selvage_work::{Failure, KeyQueue, KeyedReconcile, Reconcilers, Schedule, Summary};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    Egress, Forwarding, ImageFolders, Kind, Platform, Registries, Result, Site,
    claim::Claim,
    installed::{self, Installed},
    intent::Intent,
    metrics,
    platform::{
        containers::{self, Containers},
        kaas::{self, Kaas},
        kubernetes::{self, Kubernetes},
        vm::{self, Machines},
    },
    publish::Publisher,
    reconcile::{self, AgentContext},
    shell,
};

/// The file that everything is remembered in.
pub(crate) const FILE: &str = "crm.redb";
/// Program that installs charts.
const HELM: &str = "helm";
/// Names of its reconcilers.
const CLOUDLET: &str = "crm: cloudlet";
const CLUSTERS: &str = "crm: clusters";
const INSTANCES: &str = "crm: instances";
const RESYNC: &str = "crm: resync";
/// Interval of checking which instances answer.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of looking for what nobody has used in a long time.
const TIDY_INTERVAL: Duration = Duration::from_secs(3600);
/// Time a virtual machine may take to turn itself off.
const POWERDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings that a crm is opened with.
#[derive(Clone)]
pub struct Settings {
    /// Cloudlet whose crm it is.
    pub cloudlet: CloudletKey,
    /// Name of this machine.
    pub node: String,
    pub site: Site,
    /// Data directory.
    pub data: PathBuf,
    /// Options of the connection to controllers.
    pub notify: ClientOptions,
    /// Runtime of containers.
    pub runtime: Arc<dyn Runtime>,
    /// The runtime's namespace for instances.
    pub namespace: String,
    /// Folders whose files may be images.
    pub images: ImageFolders,
    /// Folder with a file `{developer}.json` of registries and passwords for
    /// each developer who has some.
    pub pull_secrets: Option<PathBuf>,
    /// Hosts inside of this network that images may come from, beside the
    /// registry of the site; all others must have public addresses.
    pub private_hosts: Vec<String>,
    /// Socket of lvmd, for instances that ask for volumes.
    pub lvmd: PathBuf,
    /// Addresses of the public ports of clusters without an address of their
    /// own.
    pub addresses: Vec<IpAddr>,
    /// Forwarder of what comes to them from other machines.
    pub forwarding: Forwarding,
    /// Users of containers.
    pub users: Users,
    /// Networks that instances reach beside public addresses.
    pub egress: Egress,
    /// For public ports that speak TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Time an instance may take until it takes connections.
    pub start_timeout: Duration,
    /// Time for which something must not have been mentioned before it is
    /// removed.
    pub grace: Duration,
    /// Interval of looking at everything.
    pub resync_interval: Duration,
    /// Interval of sending samples.
    pub samples: Duration,
}

impl Settings {
    fn registries(&self) -> Registries {
        Registries::of_site(&self.site, self.pull_secrets.clone())
    }
}

/// Condition of a crm, for a status page.
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

/// Reconciler of the objects of one kind.
struct Objects {
    agent: Arc<AgentContext>,
    kind: ObjectKind,
}

#[async_trait]
impl KeyedReconcile<ObjectKey> for Objects {
    fn name(&self) -> &str {
        match self.kind {
            ObjectKind::Cluster => CLUSTERS,
            ObjectKind::Instance => INSTANCES,
        }
    }

    async fn run(&self, key: &ObjectKey) -> Result<Summary, Failure> {
        reconcile::consider(&self.agent, self.kind, key).await?;
        Ok(Summary::default())
    }
}

/// The crm of one cloudlet.
pub struct Crm {
    agent: Arc<AgentContext>,
    clusters: KeyQueue<ObjectKey>,
    instances: KeyQueue<ObjectKey>,
    intent: Mutex<Option<Intent>>,
    execs: Mutex<Option<MessageReceiver<ExecRequest>>>,
    store: SharedStore,
    settings: Settings,
    /// When it was last looked for what nobody uses any more.
    tidied: Mutex<Instant>,
    /// Claim of the cloudlet's name on this machine.
    claim: Mutex<Option<Claim>>,
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
                    start_timeout: settings.start_timeout,
                    forwarding: settings.forwarding,
                    users: settings.users,
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
                    start_timeout: settings.start_timeout,
                    helm: HELM.into(),
                    egress: settings.egress.clone(),
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
                    start_timeout: settings.start_timeout,
                    powerdown: POWERDOWN_TIMEOUT,
                    range: settings.site.range,
                    forwarding: settings.forwarding,
                    egress: settings.egress.clone(),
                },
            )?)),
        }
    }

    /// The same on a platform that was made elsewhere.
    pub async fn with_platform(settings: Settings, platform: Arc<dyn Platform>) -> Result<Self> {
        let store = installed::open_store(&settings.data.join(FILE)).await?;
        let installed = Installed::open(Arc::clone(&store)).await?;
        let caches = Arc::new(AgentCaches::new()?);
        let intent = Intent::open(&caches, Arc::clone(&store)).await?;
        let (exchange, execs) = caches.exchange()?;
        let client =
            NotifyClient::new(exchange, ClientOptions { filter: true, ..settings.notify.clone() })?;
        let publisher =
            Publisher::new(settings.addresses.clone(), settings.tls.clone(), platform.forwarder());
        let agent = Arc::new(AgentContext {
            caches,
            installed,
            platform,
            publisher,
            client,
            grace: settings.grace,
            unmentioned: Mutex::new(HashMap::new()),
            failed: Mutex::new(HashMap::new()),
            unhealthy_reasons: Mutex::default(),
            restarts: Mutex::default(),
            updated: Mutex::new(HashMap::new()),
        });
        let clock = Arc::new(SystemClock::new());
        let crm = Self {
            agent,
            clusters: KeyQueue::without_retries(Arc::<SystemClock>::clone(&clock)),
            instances: KeyQueue::without_retries(clock),
            intent: Mutex::new(Some(intent)),
            execs: Mutex::new(Some(execs)),
            store,
            settings,
            tidied: Mutex::new(Instant::now()),
            claim: Mutex::default(),
        };
        crm.rediscover().await?;
        crm.announce().await?;
        crm.introduce()?;
        crm.watch();
        Ok(crm)
    }

    /// Keeps a claim for as long as the crm lives.
    pub(crate) fn keep_claim(&self, claim: Option<Claim>) {
        *self.claim.lock() = claim;
    }

    /// Instances as this crm sees them, for other parts of its process.
    pub(crate) fn instances(&self) -> SiteInstances {
        SiteInstances::of(&self.agent.caches)
    }

    /// Makes what was made run again, and ends what was begun to be removed.
    async fn rediscover(&self) -> Result<()> {
        let agent = &self.agent;
        for (text, row) in agent.installed.all(ObjectKind::Cluster) {
            if !row.phase.is_whole() {
                continue;
            }
            if let (Some(facts), Ok(key)) = (
                row.facts.cluster(),
                <ClusterInstKey as prost::Message>::decode(row.key.as_slice()),
            ) && let Err(error) = agent.platform.keep_cluster(&key, &facts).await
            {
                tracing::warn!(cluster = text, %error, "is not as it should be");
            }
        }
        let (clusters, instances) = self.known();
        match agent.platform.sweep(&clusters, &instances).await {
            Ok(swept) => {
                for what in swept {
                    tracing::info!(what, "removed, as it belongs to nothing");
                }
            }
            // What cannot be reached now may be reached later: the crm runs.
            Err(error) => tracing::warn!(%error, "not looked for what belongs to nothing"),
        }
        let made = agent.installed.all(ObjectKind::Instance).into_iter();
        let made = made.filter(|(_, row)| row.phase.is_whole());
        let keys = made.filter_map(|(_, row)| instance_key(&row));
        let settled = keys.map(|key| async move { reconcile::rediscover(agent, &key).await });
        futures::future::join_all(settled).await;
        agent.publisher.settled().await;
        Ok(())
    }

    /// Keys of everything in the records.
    fn known(&self) -> (Vec<ClusterInstKey>, Vec<AppInstKey>) {
        fn keys<K: prost::Message + Default>(rows: Vec<(String, installed::Row)>) -> Vec<K> {
            rows.into_iter().filter_map(|(_, row)| K::decode(row.key.as_slice()).ok()).collect()
        }
        let installed = &self.agent.installed;
        (keys(installed.all(ObjectKind::Cluster)), keys(installed.all(ObjectKind::Instance)))
    }

    /// Reports the cloudlet and what it can hold.
    async fn announce(&self) -> Result<()> {
        let mut info = CloudletInfo {
            key: Some(self.settings.cloudlet.clone()),
            state: CloudletState::Ready.into(),
            dns_zone: self.settings.site.dns_zone.clone(),
            kind: self.agent.platform.kind().into(),
            ..CloudletInfo::default()
        };
        match self.agent.platform.resources().await {
            Ok(resources) => {
                info.os_max_ram = resources.ram;
                info.os_max_vcores = resources.vcores;
                info.os_max_vol_gb = resources.disk;
                info.flavors = match resources.flavors.is_empty() {
                    true => self.agent.offered_flavors(),
                    false => resources.flavors,
                };
            }
            Err(error) => {
                info.state = CloudletState::Errors.into();
                info.errors = vec![format!("get limits failed: {error}")];
            }
        }
        if let Err(error) = self.agent.platform.check().await {
            info.state = CloudletState::Errors.into();
            info.errors.push(error.to_string());
        }
        let infos = &self.agent.caches.cloudlet_infos;
        if infos.find(&self.settings.cloudlet).is_none_or(|reported| *reported != info) {
            for error in &info.errors {
                tracing::warn!(error, "the cloudlet cannot be used");
            }
            infos.put(info)?;
        }
        Ok(())
    }

    /// Reports anew what has changed of the cloudlet, and tidies it up.
    async fn look_after_cloudlet(&self) -> Result<()> {
        self.announce().await?;
        if self.tidied.lock().elapsed() < TIDY_INTERVAL {
            return Ok(());
        }
        *self.tidied.lock() = Instant::now();
        let removed = self.agent.platform.tidy().await?;
        removed.iter().for_each(|what| tracing::info!(what, "removed, as unused"));
        Ok(())
    }

    fn introduce(&self) -> Result<()> {
        self.agent.caches.nodes.put(Node {
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
    fn resync(&self) {
        let (caches, installed) = (&self.agent.caches, &self.agent.installed);
        let wanted = caches.clusters.list().into_iter();
        let wanted = wanted.filter_map(|object| ObjectKey::of(object.as_ref()).ok());
        let made =
            installed.all(ObjectKind::Cluster).into_iter().filter_map(|(_, row)| cluster_key(&row));
        wanted.chain(made).for_each(|key| self.clusters.add(key));
        let wanted = caches.instances.list().into_iter();
        let wanted = wanted.filter_map(|object| ObjectKey::of(object.as_ref()).ok());
        let made = installed
            .all(ObjectKind::Instance)
            .into_iter()
            .filter_map(|(_, row)| instance_key(&row));
        wanted.chain(made).for_each(|key| self.instances.add(key));
    }

    /// Considers whatever changes.
    fn watch(&self) {
        let caches = &self.agent.caches;
        let clusters = self.clusters.clone();
        caches.clusters.on_change(move |change| clusters.add(change.key.clone()));
        let instances = self.instances.clone();
        caches.instances.on_change(move |change| instances.add(change.key.clone()));
        let (instances, agent) = (self.instances.clone(), Arc::downgrade(&self.agent));
        caches.apps.on_change(move |change| {
            let (Some(agent), Some(app), None) = (agent.upgrade(), change.now, change.before)
            else {
                return;
            };
            for instance in agent.caches.instances.list() {
                let of_app = instance.key.as_ref().is_some_and(|key| key.app_key == app.key);
                if of_app && let Ok(key) = ObjectKey::of(instance.as_ref()) {
                    instances.add(key);
                }
            }
        });
    }

    /// Returns its condition.
    pub fn status(&self) -> Status {
        let installed = &self.agent.installed;
        let sick =
            |(key, _): &(String, installed::Row)| !self.agent.unhealthy_reason(key).is_empty();
        Status {
            client: self.agent.client.status(),
            clusters: installed.all(ObjectKind::Cluster).len(),
            instances: installed.all(ObjectKind::Instance).len(),
            unhealthy: installed.all(ObjectKind::Instance).iter().filter(|row| sick(row)).count(),
        }
    }

    /// Starts everything that runs.
    pub fn spawn(self: &Arc<Self>, tasks: &Tasks) -> Reconcilers {
        let reconcilers = Reconcilers::new(tasks.clone(), Arc::new(SystemClock::new()));
        self.spawn_among(&reconcilers);
        reconcilers
    }

    /// The same, with its reconcilers among those of the process.
    pub(crate) fn spawn_among(self: &Arc<Self>, reconcilers: &Reconcilers) {
        let tasks = reconcilers.tasks();
        let stop = tasks.token().clone();
        self.add_to(reconcilers);
        if let Some(intent) = self.intent.lock().take() {
            tasks.spawn("crm's intent", intent.run(stop.clone()));
        }
        if let Some(execs) = self.execs.lock().take() {
            let tls = self.settings.notify.tls.clone();
            let answering = shell::answer(Arc::clone(&self.agent), tls, execs, stop.clone());
            tasks.spawn("crm's shells", answering);
        }
        let samples = metrics::run(
            Arc::clone(&self.agent),
            self.settings.cloudlet.clone(),
            self.settings.samples,
            stop.clone(),
        );
        tasks.spawn("crm's samples", samples);
        let client = self.agent.client.clone();
        let until = stop.clone();
        tasks.spawn("crm's controller", async move { client.run(until).await });
        tasks.spawn("crm", Arc::clone(self).run(stop));
    }

    fn add_to(self: &Arc<Self>, reconcilers: &Reconcilers) {
        let every = self.settings.resync_interval;
        let (crm, stop) = (Arc::clone(self), reconcilers.tasks().token().clone());
        let cloudlet =
            reconcilers.add_fn(CLOUDLET, Schedule::fixed(every, every), move || {
                let (crm, stop) = (Arc::clone(&crm), stop.clone());
                // A platform that does not answer keeps no process from its end.
                async move {
                    stop.run_until_cancelled(crm.look_after_cloudlet()).await.unwrap_or(Ok(()))
                }
            });
        self.agent.caches.flavors.on_change(move |_| cloudlet.wake());
        let crm = Arc::clone(self);
        reconcilers.add_fn(RESYNC, Schedule::fixed(every, every), move || {
            crm.resync();
            std::future::ready(Ok::<(), Failure>(()))
        });
        reconcilers.show(CLUSTERS, &self.clusters);
        reconcilers.show(INSTANCES, &self.instances);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let objects = |kind| Arc::new(Objects { agent: Arc::clone(&self.agent), kind });
        // What is under way is begun again by the next process, or ends now.
        tokio::join!(
            self.clusters.run(objects(ObjectKind::Cluster), stop.clone()),
            self.instances.run(objects(ObjectKind::Instance), stop.clone()),
            self.follow_health(&stop),
        );
        self.agent.publisher.close().await;
        let instances = self.agent.installed.all(ObjectKind::Instance).len();
        if instances > 0 {
            tracing::info!(
                instances,
                "apps run on without their agent, which takes them over when it starts again; to \
                 stop them: selvage down --data {}",
                self.settings.data.display()
            );
        }
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "the crm's file was not closed");
        }
    }

    /// Measures which instances answer. Ends before their ports are closed, so
    /// that it takes no port for dead that this process no longer serves.
    async fn follow_health(&self, stop: &CancellationToken) {
        let mut clock = tokio::time::interval(HEALTH_INTERVAL);
        while stop.run_until_cancelled(clock.tick()).await.is_some() {
            self.agent.report_health();
            self.agent.publisher.follow_health().await;
        }
    }
}

fn cluster_key(row: &installed::Row) -> Option<ObjectKey> {
    let key = prost::Message::decode(row.key.as_slice()).ok();
    ObjectKey::of(&ClusterInst { key, ..ClusterInst::default() }).ok()
}

fn instance_key(row: &installed::Row) -> Option<ObjectKey> {
    let key = prost::Message::decode(row.key.as_slice()).ok();
    ObjectKey::of(&AppInst { key, ..AppInst::default() }).ok()
}
