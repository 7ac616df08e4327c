//! One simulated crm.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    App, AppInstKey, AppInstRuntime, CloudletInfo, CloudletKey, CloudletState, ExecRequest, Node,
    NodeKey, NodeType, TrackedState,
};
use selvage_cloudlet::AgentCaches;
use selvage_notify::{
    Cache, ClientOptions, ClientStatus, Error, MessageReceiver, NotifyClient, ObjectKey,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    Counters, Exec, FaultRule, Infrastructure, Mode, ObjectKind, SimOptions, Stage, Step, Verb,
    faults::Faults, infra::SimulatedInfra, reconcile, shell, steps::Steps, worker::KeyWorker,
};

type Worker = KeyWorker<(ObjectKind, ObjectKey), ()>;

/// State of a simulated crm: some stays when it dies and starts again.
pub(crate) struct CrmInner {
    pub(crate) options: SimOptions,
    pub(crate) reports: AgentCaches,
    pub(crate) infra: SimulatedInfra,
    pub(crate) faults: Faults,
    steps: Steps,
    client: NotifyClient,
    life: Mutex<Option<Life>>,
    /// Nobody holds it any more: it does not rise again.
    gone: AtomicBool,
}

struct Life {
    token: CancellationToken,
    connection: CancellationToken,
    link: JoinHandle<()>,
    worker: Worker,
}

/// Status of a simulated crm, for a status page.
#[derive(Debug, Clone)]
pub struct SimStatus {
    /// Its connection.
    pub client: ClientStatus,
    /// Counters of its operations.
    pub counters: Counters,
    /// Infrastructure that it has made.
    pub infrastructure: Infrastructure,
}

/// A simulated crm. It runs until it is dropped or stopped.
pub struct SimCrm {
    inner: Arc<CrmInner>,
}

impl fmt::Debug for SimCrm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimCrm").field("cloudlet", &self.inner.options.cloudlet).finish()
    }
}

impl SimCrm {
    /// Starts one. Needs a runtime.
    pub fn start(options: SimOptions) -> Result<Self, Error> {
        let reports = AgentCaches::new()?;
        let (exchange, execs) = reports.exchange()?;
        let client_options = ClientOptions { filter: true, ..options.client.clone() };
        let inner = Arc::new(CrmInner {
            client: NotifyClient::new(exchange, client_options)?,
            reports,
            options,
            infra: SimulatedInfra::default(),
            faults: Faults::default(),
            steps: Steps::default(),
            life: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        watch(&inner);
        tokio::spawn(answer(Arc::downgrade(&inner), execs));
        let crm = Self { inner };
        if crm.inner.options.announce {
            crm.announce(CloudletState::Ready)?;
        }
        crm.inner.begin();
        Ok(crm)
    }

    /// Reports its cloudlet in a state, and its node.
    pub fn announce(&self, state: CloudletState) -> Result<(), Error> {
        let (options, reports) = (&self.inner.options, &self.inner.reports);
        reports.cloudlet_infos.put(CloudletInfo {
            key: Some(options.cloudlet.clone()),
            state: state.into(),
            os_max_ram: options.limits.ram,
            os_max_vcores: options.limits.vcores,
            os_max_vol_gb: options.limits.volume,
            flavors: options.flavors.clone(),
            ..CloudletInfo::default()
        })?;
        reports.nodes.put(Node {
            key: Some(NodeKey {
                name: format!("sim-{}", options.node),
                node_type: NodeType::NodeCrm.into(),
                cloudlet_key: Some(options.cloudlet.clone()),
            }),
            ..Node::default()
        })?;
        Ok(())
    }

    /// Makes operations go wrong.
    pub fn script(&self, rule: FaultRule) {
        self.inner.faults.add(rule);
    }

    /// Lets all operations that begin from now on go well.
    pub fn forgive(&self) {
        self.inner.faults.clear();
    }

    /// The operations that wait to be let go, oldest first.
    pub fn pending(&self) -> Vec<Step> {
        self.inner.steps.pending()
    }

    /// Waits for the next verb that can go on, and lets it.
    pub async fn step(&self) -> Step {
        self.inner.steps.step(|_| true).await
    }

    /// Does what [`SimCrm::step`] does, only for matching steps.
    pub async fn step_where(&self, fits: impl Fn(&Step) -> bool) -> Step {
        self.inner.steps.step(fits).await
    }

    /// Lets one step go; whether it was waiting.
    pub fn release(&self, id: u64) -> bool {
        self.inner.steps.release(id)
    }

    /// Reports whatever one likes about an object, true or not.
    pub fn report(
        &self,
        kind: ObjectKind,
        key: &ObjectKey,
        state: TrackedState,
        errors: Vec<String>,
    ) {
        let containers = self.inner.infra.containers(key);
        self.inner.reports.report(kind, key, state, errors, runtime(containers));
    }

    /// Takes back what was reported about an object.
    pub fn withdraw(&self, kind: ObjectKind, key: &ObjectKey) {
        self.inner.reports.withdraw(kind, key);
    }

    /// Returns the infrastructure that it would have made.
    pub fn infrastructure(&self) -> Infrastructure {
        self.inner.infra.snapshot()
    }

    /// Loses everything it made, as if a building had burnt down.
    pub fn destroy_infrastructure(&self) {
        self.inner.infra.destroy();
    }

    /// Returns the counters of its operations.
    pub fn counters(&self) -> Counters {
        self.inner.infra.counters.lock().clone()
    }

    /// Returns its status.
    pub fn status(&self) -> SimStatus {
        SimStatus {
            client: self.inner.client.status(),
            counters: self.counters(),
            infrastructure: self.infrastructure(),
        }
    }

    /// The cloudlet it is the crm of.
    pub fn cloudlet(&self) -> &CloudletKey {
        &self.inner.options.cloudlet
    }

    /// The instances that the controller wants here.
    pub fn instances(&self) -> &Arc<Cache<selvage_api::edgeproto::AppInst>> {
        &self.inner.reports.instances
    }

    /// The clusters that the controller wants here.
    pub fn clusters(&self) -> &Arc<Cache<selvage_api::edgeproto::ClusterInst>> {
        &self.inner.reports.clusters
    }

    /// The apps, flavors and cloudlet as the controller has them: how many.
    pub fn mirrored(&self) -> [usize; 3] {
        let reports = &self.inner.reports;
        [reports.apps.len(), reports.flavors.len(), reports.cloudlets.len()]
    }

    /// Returns the status of its connection.
    pub fn client(&self) -> ClientStatus {
        self.inner.client.status()
    }

    /// Breaks the connection; it comes back by itself.
    pub fn break_connection(&self) {
        self.inner.client.reconnect();
    }

    /// Cuts the network: work goes on, nobody hears of it.
    pub async fn go_offline(&self) {
        self.inner.disconnect_for_good().await;
    }

    /// Ends what [`SimCrm::go_offline`] began.
    pub fn go_online(&self) {
        self.inner.connect();
    }

    /// Dies, work under way included, and starts again. One that remembers
    /// finds what is on its infrastructure and reports it.
    pub async fn restart(&self, remember: bool) {
        self.inner.die().await;
        self.inner.rise(remember);
    }

    /// Dies and stays dead. ObjectKind it made stays too.
    pub async fn stop(&self) {
        self.inner.die().await;
    }
}

impl Drop for SimCrm {
    fn drop(&mut self) {
        self.inner.gone.store(true, Relaxed);
        if let Some(life) = self.inner.life.lock().take() {
            life.token.cancel();
            life.connection.cancel();
        }
    }
}

impl CrmInner {
    pub(crate) fn app_of(&self, instance: &ObjectKey) -> Option<Arc<App>> {
        let key: AppInstKey = instance.decode().ok()?;
        self.reports.apps.find(&key.app_key.unwrap_or_default())
    }

    pub(crate) async fn pass(&self, kind: ObjectKind, verb: Verb, key: &ObjectKey, stage: Stage) {
        if self.options.mode == Mode::Explicit {
            self.steps.pass(kind, verb, key.text(), stage).await;
        }
    }

    pub(crate) async fn flushed(&self) {
        self.client.flushed().await;
    }

    fn begin(self: &Arc<Self>) {
        let token = CancellationToken::new();
        let (inner, alive) = (Arc::downgrade(self), token.clone());
        let worker = KeyWorker::new(move |(kind, key), ()| {
            let (inner, alive) = (inner.upgrade(), alive.clone());
            async move {
                if let Some(inner) = inner {
                    let considered = reconcile::consider(inner, kind, key);
                    let _ = alive.run_until_cancelled(considered).await;
                }
            }
        });
        let (link, connection) = self.link();
        *self.life.lock() = Some(Life { token, connection, link, worker });
    }

    fn link(&self) -> (JoinHandle<()>, CancellationToken) {
        let connection = CancellationToken::new();
        let (client, until) = (self.client.clone(), connection.clone());
        (tokio::spawn(async move { client.run(until).await }), connection)
    }

    fn poke(&self, kind: ObjectKind, key: &ObjectKey) {
        if let Some(life) = self.life.lock().as_ref() {
            life.worker.changed((kind, key.clone()), ());
        }
    }

    /// Breaks the connection and waits until it is broken.
    pub(crate) async fn disconnect(&self) {
        let mut connected = self.client.connected();
        self.client.reconnect();
        // Ends only when the client is gone, and it is ours.
        let _ = connected.wait_for(Option::is_none).await;
    }

    async fn disconnect_for_good(&self) {
        let link = self.life.lock().as_mut().map(|life| {
            life.connection.cancel();
            std::mem::replace(&mut life.link, tokio::spawn(async {}))
        });
        if let Some(link) = link {
            // A task that cannot fail.
            let _ = link.await;
        }
    }

    fn connect(&self) {
        if let Some(life) = self.life.lock().as_mut()
            && life.connection.is_cancelled()
        {
            (life.link, life.connection) = self.link();
        }
    }

    async fn die(&self) {
        let life = self.life.lock().take();
        if let Some(life) = life {
            life.token.cancel();
            life.connection.cancel();
            // Neither can fail.
            let _ = life.link.await;
            life.worker.idle().await;
        }
    }

    /// Dies and rises on behalf of work that dies with it.
    pub(crate) fn crash(self: &Arc<Self>, remember: bool) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            inner.die().await;
            inner.rise(remember);
        });
    }

    fn rise(self: &Arc<Self>, remember: bool) {
        if self.gone.load(Relaxed) {
            return;
        }
        self.reports.forget();
        self.infra.count(|counters| counters.restarts += 1);
        if remember {
            for (kind, key) in self.infra.keys() {
                let containers = self.infra.containers(&key);
                self.reports.report(
                    kind,
                    &key,
                    TrackedState::Ready,
                    Vec::new(),
                    runtime(containers),
                );
            }
        }
        self.begin();
    }
}

/// Runtime information of an instance, as it is reported.
pub(crate) fn runtime(container_ids: Vec<String>) -> AppInstRuntime {
    AppInstRuntime { container_ids, ..AppInstRuntime::default() }
}

/// Considers whatever changes.
fn watch(inner: &Arc<CrmInner>) {
    let seen = Arc::downgrade(inner);
    inner.reports.clusters.on_change(move |change| {
        if let Some(inner) = seen.upgrade() {
            inner.poke(ObjectKind::Cluster, change.key);
        }
    });
    let seen = Arc::downgrade(inner);
    inner.reports.instances.on_change(move |change| {
        if let Some(inner) = seen.upgrade() {
            inner.poke(ObjectKind::Instance, change.key);
        }
    });
    let seen = Arc::downgrade(inner);
    inner.reports.apps.on_change(move |change| {
        let (Some(inner), Some(app), None) = (seen.upgrade(), change.now, change.before) else {
            return;
        };
        for instance in inner.reports.instances.list() {
            let key = instance.key.as_ref();
            if key.is_some_and(|key| key.app_key == app.key)
                && let Ok(key) = ObjectKey::of(instance.as_ref())
            {
                inner.poke(ObjectKind::Instance, &key);
            }
        }
    });
}

/// Answers requests to run a command for as long as the crm is there.
async fn answer(inner: Weak<CrmInner>, mut execs: MessageReceiver<ExecRequest>) {
    while let Some((request, _)) = execs.recv().await {
        let Some(inner) = inner.upgrade() else { return };
        inner.infra.count(|counters| counters.execs += 1);
        let key = request.app_inst_key.clone().unwrap_or_default();
        let there = inner.reports.instances.find(&key).is_some();
        let id = if inner.options.numbers { request.id } else { 0 };
        let request = ExecRequest { id, ..request };
        let reply = match &inner.options.exec {
            Exec::Silent => continue,
            _ if !there => {
                let name = key.app_key.unwrap_or_default().name;
                ExecRequest { err: format!("app inst {name} not found"), ..request }
            }
            Exec::Error(text) => ExecRequest { err: text.clone(), ..request },
            Exec::Answer => shell::answer(request, inner.options.client.tls.clone()).await,
        };
        if let Err(error) = inner.client.post(&reply) {
            tracing::error!(%error, "the answer to a command was not sent");
        }
    }
}
