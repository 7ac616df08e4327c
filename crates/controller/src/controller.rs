//! The core that every service of the controller works on.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use selvage_api::edgeproto as wire;
use selvage_kit::clock::{Clock, SystemClock};
use selvage_notify::{NotifyServer, ServerOptions};
use selvage_samples::{Archive, Limits, Sink};
use selvage_store::table::Committed;
use selvage_store::{LeaseId, SharedStore, Transaction, transact};
use selvage_work::Engine;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::notify_glue::Downstream;
use crate::objects::reconcile_locations;
use crate::registry::{PeerConnector, Plaintext};
use crate::settings::Settings;
use crate::tables::Tables;
use crate::version;

/// How long a caller waits for a deletion that is in his way.
const DELETION_PATIENCE: Duration = Duration::from_secs(2);
const DELETION_POLL: Duration = Duration::from_millis(20);

/// Whether a call does what it says or only tells what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Real,
    /// All checks are made and the plan is told; nothing is written.
    DryRun,
}

/// What the plain objects need of the instances: cascades, and the reports of
/// agents.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Deletes an instance as the API would, with the default override, and
    /// returns when it is gone. Progress goes to `progress`.
    async fn delete_app_inst(&self, key: &wire::AppInstKey, progress: &Progress) -> Result<()>;

    async fn delete_cluster_inst(
        &self,
        key: &wire::ClusterInstKey,
        progress: &Progress,
    ) -> Result<()>;

    /// An agent says how an instance is; `gone` when it says that it is not
    /// there any more.
    async fn app_inst_info(&self, info: wire::AppInstInfo, gone: bool);

    async fn cluster_inst_info(&self, info: wire::ClusterInstInfo, gone: bool);

    /// The agent of these cloudlets has reported everything it has. Deletions
    /// that it did not mention are requested again.
    async fn resume_deletions(&self, cloudlets: &[wire::CloudletKey]) -> Result<()>;
}

/// Where the messages go that a streamed call shows while it works. Nobody
/// need be listening.
#[derive(Debug, Clone, Default)]
pub struct Progress(Option<tokio::sync::mpsc::UnboundedSender<wire::Result>>);

impl Progress {
    pub fn new(sink: tokio::sync::mpsc::UnboundedSender<wire::Result>) -> Self {
        Self(Some(sink))
    }

    pub fn say(&self, message: impl Into<String>) {
        if let Some(sink) = &self.0 {
            // The caller may have gone; the work goes on.
            let _ = sink.send(wire::Result { message: message.into(), code: 0 });
        }
    }
}

/// The controller: its state, its settings, its connections.
pub struct Controller {
    pub store: SharedStore,
    pub tables: Tables,
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    /// Long work: the operations of instances.
    pub engine: Engine,
    pub(crate) lease: RwLock<LeaseId>,
    pub(crate) memory: Memory,
    pub(crate) peers: Arc<dyn PeerConnector>,
    downstream: OnceLock<Downstream>,
    instances: OnceLock<Arc<dyn Instances>>,
}

/// What a controller is made of besides its settings.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub clock: Arc<dyn Clock>,
    pub peers: Arc<dyn PeerConnector>,
    pub engine: selvage_work::Options,
    pub notify: ServerOptions,
    /// How long agents that come back wait for what changed to be looked up:
    /// they would rather have everything than wait longer.
    pub recall: Duration,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            peers: Arc::new(Plaintext),
            engine: selvage_work::Options::default(),
            notify: ServerOptions::default(),
            recall: Duration::from_secs(2),
        }
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("address", &self.settings.external_address).finish()
    }
}

impl Controller {
    /// Brings the store to the newest model, reads everything into memory and
    /// registers. When it returns the controller can serve; what it does by
    /// itself is started by [`Controller::run`].
    pub async fn open(
        store: SharedStore,
        settings: Settings,
        surroundings: Surroundings,
    ) -> Result<Arc<Self>> {
        version::prepare(&store, settings.auto_upgrade, version::STEPS).await?;
        let tables = Tables::open(&store).await?;
        let lease = store.lease_grant(settings.lease).await?;
        let driver = settings.external_address.clone();
        let engine = Engine::open(Arc::clone(&store), driver, surroundings.engine).await?;
        let samples = Archive::new(Limits {
            count: settings.samples_kept,
            bytes: settings.samples_bytes,
            age: settings.samples_age,
        });
        let influx = settings.influx.clone().map(Sink::new).transpose()?;
        let controller = Arc::new(Self {
            store,
            tables,
            clock: surroundings.clock,
            engine,
            lease: RwLock::new(lease.id),
            memory: Memory::new(samples, influx),
            peers: surroundings.peers,
            downstream: OnceLock::new(),
            instances: OnceLock::new(),
            settings,
        });
        if let Some(folder) = controller.settings.samples_folder.clone() {
            controller.memory.samples.recall(folder, controller.clock.now()).await;
        }
        let runs = controller.join_run().await?;
        let downstream =
            Downstream::open(&controller, surroundings.notify, surroundings.recall, runs)?;
        downstream.began(controller.register().await?);
        // Just made: nobody else can have set it.
        let _ = controller.downstream.set(downstream);
        Ok(controller)
    }

    /// The part that runs the instances; set once at start.
    pub fn set_instances(&self, instances: Arc<dyn Instances>) {
        if self.instances.set(instances).is_err() {
            tracing::error!("the instances were set twice, the first ones stay");
        }
    }

    /// Hands a request to the agents that report on its cloudlet; says to how
    /// many.
    pub(crate) fn send_to_agents(&self, request: &wire::ExecRequest) -> usize {
        let Some(downstream) = self.downstream.get() else { return 0 };
        downstream.server.post(request).unwrap_or_else(|error| {
            tracing::error!(%error, "a command cannot be sent to agents");
            0
        })
    }

    /// The server that agents connect to.
    pub fn notify(&self) -> Option<&NotifyServer> {
        self.downstream.get().map(|downstream| &downstream.server)
    }

    /// What the controller does by itself: keeping its lease, telling agents
    /// of changes, driving operations, moving instances with their cloudlets.
    /// Returns after `stop`, when all of it has ended, or when operations
    /// cannot be driven any more.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<()> {
        let stop = stop.child_token();
        let telling = async {
            match self.downstream.get() {
                Some(downstream) => downstream.run(stop.clone()).await,
                None => stop.cancelled().await,
            }
        };
        let driving = async {
            let ended = self.engine.run(stop.clone()).await;
            stop.cancel();
            ended
        };
        let (ended, ..) = tokio::join!(
            driving,
            Arc::clone(&self).keep_registered(stop.clone()),
            reconcile_locations(Arc::clone(&self), stop.clone()),
            telling,
        );
        Ok(ended?)
    }

    pub(crate) fn instances(&self) -> Result<&Arc<dyn Instances>> {
        self.instances.get().ok_or_else(|| Error::unavailable("the controller is starting"))
    }

    /// The lease that what this controller owns hangs on.
    pub fn lease(&self) -> LeaseId {
        *self.lease.read()
    }

    /// Runs a transaction, again whenever somebody came in between and while
    /// something it refers to is being deleted. In a dry run nothing is
    /// committed and the revision is 0.
    pub async fn transact<T, E, F, Fut>(&self, mode: Mode, mut body: F) -> Result<Committed<T>, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<selvage_store::Error> + MeetsDeletions,
    {
        let give_up = Instant::now() + DELETION_PATIENCE;
        loop {
            let result = match mode {
                // Boxed, since the futures of most callers hold one of these.
                Mode::Real => Box::pin(transact(&self.store, &mut body)).await,
                Mode::DryRun => Box::pin(rehearse(&self.store, &mut body)).await,
            };
            match result {
                Err(error) if error.is_being_deleted() && Instant::now() < give_up => {
                    tokio::time::sleep(DELETION_POLL).await;
                }
                result => return result,
            }
        }
    }
}

/// An error that can say that something is being deleted, so that trying
/// again after a moment is right.
pub trait MeetsDeletions {
    fn is_being_deleted(&self) -> bool;
}

/// How a body ends that must not be committed.
enum Rehearsal<T, E> {
    Ended(T),
    Failed(E),
}

impl<T, E: From<selvage_store::Error>> From<selvage_store::Error> for Rehearsal<T, E> {
    fn from(error: selvage_store::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs the body and drops what it wrote.
async fn rehearse<T, E, F, Fut>(store: &SharedStore, body: &mut F) -> Result<Committed<T>, E>
where
    F: FnMut(Transaction) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: From<selvage_store::Error>,
{
    let attempt = transact(store, |tx| {
        let run = body(tx);
        async move {
            Err(match run.await {
                Ok(value) => Rehearsal::Ended(value),
                Err(error) => Rehearsal::Failed(error),
            })
        }
    });
    match attempt.await {
        Ok(Committed { value, .. }) | Err(Rehearsal::Ended(value)) => {
            Ok(Committed { value, revision: 0 })
        }
        Err(Rehearsal::Failed(error)) => Err(error),
    }
}
