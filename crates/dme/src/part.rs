//! The match engine as one part: what a process opens, mounts and runs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::edgeproto::{CloudletKey, Metric, Node, NodeKey, NodeType, OperatorKey};
use selvage_kit::{
    clock::Clock,
    serve::{Readiness, Services},
    telemetry::Metrics,
};
use selvage_notify::{Cache, ClientOptions, ClientStatus, Exchange, NotifyClient, StatsSnapshot};
use selvage_work::{Failure, Reconcile, Reconcilers, Schedule, Summary};
use tokio::sync::watch;

use crate::{
    engine::{Engine, Settings},
    error::Result,
    keys::KeySource,
    mirror::{Disk, KeptKeys, Mirror, MirrorContents},
    service::Service,
    stats::Origin,
    telemetry,
};

/// Maximum number of samples that wait while there is no controller. They are
/// totals since the start, so the next one makes up for one that is dropped.
const SAMPLES: usize = 5000;
/// Interval of checking that the engine is in sync with a controller.
const SYNC_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of that check until the engine is in sync for the first time.
const FIRST_SYNC_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Delay before keys that could not be fetched are requested again.
const KEYS_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Source of what the engine knows.
pub struct Upstream {
    /// The controllers, and how to speak to them.
    pub controllers: ClientOptions,
    /// The keys of cookies.
    pub keys: Arc<dyn KeySource>,
    /// Mirror for the next start.
    pub mirror: Option<Mirror>,
}

/// A match engine with everything that belongs to it. Clones are the same.
#[derive(Clone)]
pub struct Dme {
    engine: Arc<Engine>,
    client: NotifyClient,
    step: Arc<Step>,
    disk: Option<Arc<Disk>>,
}

/// Time when the engine was last in sync with a controller.
#[derive(Debug, Clone, Copy)]
struct LastSync {
    /// Time by the clock of the engine.
    at: Duration,
    /// Age of its knowledge at the start, if it is from before.
    before: Duration,
}

/// Progress of its synchronisation with a controller.
struct Step {
    last: Mutex<Option<LastSync>>,
    begun: Duration,
    ready: watch::Sender<std::result::Result<(), String>>,
}

impl Dme {
    /// Opens an engine. What its mirror has it knows; the rest it is told when
    /// it runs.
    pub fn open(settings: Settings, upstream: Upstream, clock: Arc<dyn Clock>) -> Result<Self> {
        let node = node(&settings);
        let begun = clock.elapsed();
        let Upstream { controllers, mut keys, mirror } = upstream;
        let (disk, found) = mirror.map(|mirror| (mirror.disk, mirror.found)).unzip();
        if let Some(disk) = &disk {
            keys = Arc::new(KeptKeys { source: keys, disk: Arc::clone(disk) });
        }
        let engine = Arc::new(Engine::new(settings, keys, clock)?);
        let last = match found.flatten() {
            Some(found) => Some(LastSync { at: begun, before: restore(&engine, found)? }),
            None => None,
        };
        let nodes = Cache::new()?;
        nodes.put(node)?;
        let feed = engine.feed();
        let exchange = Exchange::new()
            .send(nodes)
            .send_messages_up_to::<Metric>(SAMPLES)?
            .receive(feed.apps.clone())
            .receive(feed.instances.clone())
            // The original's controllers do not have this one to send.
            .receive(feed.cloudlets.clone());
        if let Some(disk) = &disk {
            disk.follow(&feed.apps);
            disk.follow(&feed.instances);
            disk.follow(&feed.cloudlets);
        }
        let options = ClientOptions { filter: false, ..controllers };
        let client = NotifyClient::new(exchange, options)?;
        let waiting = Err("dme: no controller has told it of apps yet".to_owned());
        let step = Step { last: Mutex::new(last), begun, ready: watch::Sender::new(waiting) };
        Ok(Self { engine, client, step: Arc::new(step), disk })
    }

    /// The engine itself.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Status of its connection to a controller.
    pub fn status(&self) -> ClientStatus {
        self.client.status()
    }

    pub(crate) fn upstream_stats(&self) -> StatsSnapshot {
        self.client.status().stats
    }

    /// Breaks the connection to the controller; it comes back by itself.
    pub fn reconnect(&self) {
        self.client.reconnect();
    }

    /// Mounts the services.
    pub fn add_to(&self, services: &mut Services) {
        services.add(Service::matching(&self.engine));
        services.add(Service::groups(&self.engine));
    }

    /// Shows its counts among a process's metrics.
    pub fn watch(&self, metrics: &Metrics) {
        telemetry::watch(self, metrics);
    }

    /// Readiness: it can answer once it has heard from a controller, before its
    /// start or after, and for as long as that is not too long ago.
    pub fn ready(&self) -> Readiness {
        self.step.ready.subscribe()
    }

    /// Time since it was last in step with a controller.
    pub fn staleness(&self) -> Duration {
        let now = self.engine.clock.elapsed();
        if self.client.status().in_sync {
            return Duration::ZERO;
        }
        let last = self.step.last.lock();
        let last = last.unwrap_or(LastSync { at: self.step.begun, before: Duration::ZERO });
        now.saturating_sub(last.at).saturating_add(last.before)
    }

    /// Number of objects a crash now would lose from the mirror, if there is
    /// one.
    pub fn mirror_pending(&self) -> Option<usize> {
        self.disk.as_ref().map(|disk| disk.pending())
    }

    /// Starts what the engine does by itself. Ends with the tasks.
    pub fn spawn(&self, reconcilers: &Reconcilers) {
        let tasks = reconcilers.tasks();
        let stop = || tasks.token().clone();
        let client = self.client.clone();
        let token = stop();
        tasks.spawn("dme: connection to controllers", async move { client.run(token).await });
        tasks.spawn("dme: table", self.engine.feed().clone().run(stop()));
        let (dme, refresh) = (self.clone(), self.engine.settings.key_refresh);
        reconcilers.add_fn("dme: keys", Schedule::fixed(refresh, KEYS_RETRY_INTERVAL), move || {
            dme.clone().load_keys()
        });
        let schedule = Schedule::fixed(SYNC_CHECK_INTERVAL, SYNC_CHECK_INTERVAL);
        reconcilers.add(SyncCheck(self.clone()), schedule);
        let (dme, every) = (self.clone(), self.engine.settings.stats_interval);
        reconcilers.add_fn("dme: samples", Schedule::fixed(every, every), move || {
            std::future::ready(dme.send_samples())
        });
        if let Some(disk) = &self.disk {
            tasks.spawn("dme: mirror", Arc::clone(disk).run(stop()));
        }
    }

    /// Loads the keys of cookies.
    async fn load_keys(self) -> std::result::Result<(), Failure> {
        let loaded = self.engine.cookies().load().await;
        loaded.map_err(|error| Failure::new(error.code(), error.to_string()))
    }

    /// Updates the time of the last synchronisation, and the readiness. Returns
    /// whether there has been one.
    fn check_sync(&self) -> bool {
        if self.client.status().in_sync {
            let feed = self.engine.feed();
            feed.in_sync();
            feed.publish();
            let at = self.engine.clock.elapsed();
            *self.step.last.lock() = Some(LastSync { at, before: Duration::ZERO });
            if let Some(disk) = &self.disk {
                disk.in_step(self.engine.clock.now(), feed.knows_cloudlets());
            }
        }
        if self.step.last.lock().is_some() {
            let most = self.engine.settings.max_staleness;
            let age = self.staleness();
            let ready = if self.engine.cookies().newest().is_none() {
                Err("dme: no keys for cookies yet".to_owned())
            } else if most.is_zero() || age <= most {
                Ok(())
            } else {
                Err(format!("dme: no controller has been in touch for {} s", age.as_secs()))
            };
            self.step
                .ready
                .send_if_modified(|known| std::mem::replace(known, ready.clone()) != ready);
        }
        self.step.last.lock().is_some()
    }

    /// Sends the counts that changed.
    fn send_samples(&self) -> std::result::Result<(), Failure> {
        let settings = &self.engine.settings;
        let origin = Origin {
            operator: settings.operator.clone(),
            cloudlet: settings.cloudlet.clone(),
            id: settings.name.clone(),
        };
        let mut sent = Ok(());
        for sample in self.engine.stats.changed(&origin, self.engine.clock.now()) {
            if let Err(error) = self.client.post(&sample) {
                sent = Err(Failure::new(error.code(), error.to_string()));
            }
        }
        sent
    }
}

/// Checks whether an engine is in sync with a controller; more often until it
/// was for the first time.
struct SyncCheck(Dme);

#[async_trait]
impl Reconcile for SyncCheck {
    fn name(&self) -> &str {
        "dme: synchronisation"
    }

    async fn run(&self) -> std::result::Result<Summary, Failure> {
        let again = (!self.0.check_sync()).then_some(FIRST_SYNC_CHECK_INTERVAL);
        Ok(Summary { again, ..Summary::default() })
    }
}

/// Restores what was known before the start. Returns how long ago that was.
fn restore(engine: &Engine, found: MirrorContents) -> Result<Duration> {
    let since = found.in_step;
    engine.cookies().install(found.keys.clone());
    engine.feed().restore(found)?;
    let table = engine.feed().table();
    let (apps, instances) = (table.app_count(), table.instance_count());
    tracing::info!(%since, apps, instances, "the match engine answers from its mirror until a controller is connected");
    Ok(engine.clock.now().duration_since(since).try_into().unwrap_or_default())
}

fn node(settings: &Settings) -> Node {
    let cloudlet = CloudletKey {
        operator_key: Some(OperatorKey { name: settings.operator.clone() }),
        name: settings.cloudlet.clone(),
    };
    let key = NodeKey {
        name: settings.name.clone(),
        node_type: NodeType::NodeDme.into(),
        cloudlet_key: Some(cloudlet),
    };
    Node { key: Some(key), ..Node::default() }
}
