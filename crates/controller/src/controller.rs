//! The core that every service of the controller works on.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_kit::clock::{Clock, SystemClock};
use selvage_notify::{NotifyServer, ServerOptions};
use selvage_store::SharedStore;
use selvage_work::Engine;
use tokio_util::sync::CancellationToken;

use crate::agents::Downstream;
use crate::error::Result;
use crate::objects::reconcile_locations;
use crate::registry::{PeerConnector, Plaintext};
use crate::settings::Settings;
use crate::state::ControllerState;

/// Mode of a call: it acts, or only tells what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Real,
    /// All checks are made and the plan is told; nothing is written.
    DryRun,
}

/// Interface of the instances to the plain objects: cascades, and the reports
/// of agents.
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

/// Receiver of the messages that a streamed call shows while it works. Nobody
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

/// The controller: its state, what it does by itself, its connections.
pub struct Controller {
    state: Arc<ControllerState>,
    /// Long work: the operations of instances.
    pub engine: Engine,
    pub(crate) instances: Arc<dyn Instances>,
    downstream: Downstream,
}

impl Deref for Controller {
    type Target = ControllerState;

    fn deref(&self) -> &ControllerState {
        &self.state
    }
}

/// Dependencies of a controller besides its settings.
#[derive(Debug, Clone)]
pub struct Dependencies {
    pub clock: Arc<dyn Clock>,
    pub peers: Arc<dyn PeerConnector>,
    pub engine: selvage_work::Options,
    pub notify: ServerOptions,
    /// Longest time that agents that come back wait for what changed to be
    /// looked up: they would rather have everything than wait longer.
    pub recall: Duration,
}

impl Default for Dependencies {
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

/// Everything of a controller that instances work with.
#[derive(Debug)]
pub struct Foundation {
    pub state: Arc<ControllerState>,
    pub engine: Engine,
    notify: ServerOptions,
    recall: Duration,
}

impl Foundation {
    /// Brings the store to the newest model and reads everything into memory.
    pub async fn open(
        store: SharedStore,
        settings: Settings,
        dependencies: Dependencies,
    ) -> Result<Self> {
        let state = ControllerState::open(store, settings, &dependencies).await?;
        let driver = state.settings.external_address.clone();
        let engine = Engine::open(Arc::clone(&state.store), driver, dependencies.engine).await?;
        let Dependencies { notify, recall, .. } = dependencies;
        Ok(Self { state, engine, notify, recall })
    }
}

impl Controller {
    /// Registers the controller. When it returns the controller can serve; what
    /// it does by itself is started by [`Controller::run`].
    pub async fn open(foundation: Foundation, instances: Arc<dyn Instances>) -> Result<Arc<Self>> {
        let Foundation { state, engine, notify, recall } = foundation;
        let runs = state.join_run().await?;
        let downstream = Downstream::open(&state, &instances, notify, recall, runs)?;
        downstream.began(state.register().await?);
        let controller = Arc::new(Self { state, engine, instances, downstream });
        controller.claim_folders().await?;
        Ok(controller)
    }

    /// Hands a request to the agents that report on its cloudlet; says to how
    /// many.
    pub(crate) fn send_to_agents(&self, request: &wire::ExecRequest) -> usize {
        self.downstream.server.post(request).unwrap_or_else(|error| {
            tracing::error!(%error, "a command cannot be sent to agents");
            0
        })
    }

    pub(crate) fn state(&self) -> &Arc<ControllerState> {
        &self.state
    }

    /// The server that agents connect to.
    pub fn notify(&self) -> &NotifyServer {
        &self.downstream.server
    }

    /// Background work of the controller: keeping its lease, telling agents of
    /// changes, driving operations, moving instances with their cloudlets.
    /// Returns after `stop`, when all of it has ended, or when operations
    /// cannot be driven any more.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<()> {
        let stop = stop.child_token();
        let driving = async {
            let ended = self.engine.run(stop.clone()).await;
            stop.cancel();
            ended
        };
        let (ended, ..) = tokio::join!(
            driving,
            Arc::clone(&self.state).keep_registered(stop.clone()),
            reconcile_locations(Arc::clone(&self), stop.clone()),
            self.downstream.run(stop.clone()),
        );
        Ok(ended?)
    }
}

/// An error that can say that something is being deleted, so that trying
/// again after a moment is right.
pub trait MeetsDeletions {
    fn is_being_deleted(&self) -> bool;
}
