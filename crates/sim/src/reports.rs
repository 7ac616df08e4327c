//! The crm's side of the contract: what it receives, and what it reports.

use std::sync::Arc;

use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstRuntime, Cloudlet, CloudletInfo, ClusterInst,
    ClusterInstInfo, ExecRequest, Flavor, Node, TrackedState,
};
use selvage_notify::{Cache, Error, Exchange, Letters, Mailbox, ObjectKey};

use crate::What;

/// Peers that resume never do so towards a crm.
const HISTORY: usize = 16;
/// Requests to run a command that may wait.
const EXECS: usize = 32;

pub(crate) struct Reports {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlets: Arc<Cache<Cloudlet>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) nodes: Arc<Cache<Node>>,
}

impl Reports {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            flavors: Cache::with_history(HISTORY)?,
            apps: Cache::with_history(HISTORY)?,
            instances: Cache::with_history(HISTORY)?,
            cloudlets: Cache::with_history(HISTORY)?,
            clusters: Cache::with_history(HISTORY)?,
            cloudlet_infos: Cache::with_history(HISTORY)?,
            instance_infos: Cache::with_history(HISTORY)?,
            cluster_infos: Cache::with_history(HISTORY)?,
            nodes: Cache::with_history(HISTORY)?,
        })
    }

    /// As the original's crm has it.
    pub(crate) fn exchange(&self) -> Result<(Exchange, Letters<ExecRequest>), Error> {
        let (mailbox, letters) = Mailbox::new(EXECS)?;
        let exchange = Exchange::new()
            .send(self.cloudlet_infos.clone())
            .send(self.instance_infos.clone())
            .send(self.cluster_infos.clone())
            .send(self.nodes.clone())
            .send_messages_up_to::<ExecRequest>(EXECS)?
            .receive(self.flavors.clone())
            .receive(self.apps.clone())
            .receive(self.instances.clone())
            .receive(self.cloudlets.clone())
            .receive(self.clusters.clone())
            .receive_messages(mailbox);
        Ok((exchange, letters))
    }

    /// What a process that starts knows: nothing.
    pub(crate) fn forget(&self) {
        self.flavors.clear();
        self.apps.clear();
        self.instances.clear();
        self.cloudlets.clear();
        self.clusters.clear();
        self.instance_infos.clear();
        self.cluster_infos.clear();
    }

    /// The state of an object as the controller has it.
    pub(crate) fn wanted(&self, what: What, key: &ObjectKey) -> Option<TrackedState> {
        match what {
            What::Cluster => self.clusters.object(key).map(|object| object.state()),
            What::Instance => self.instances.object(key).map(|object| object.state()),
        }
    }

    /// The state that was reported last.
    pub(crate) fn reported(&self, what: What, key: &ObjectKey) -> Option<TrackedState> {
        match what {
            What::Cluster => self.cluster_infos.object(key).map(|info| info.state()),
            What::Instance => self.instance_infos.object(key).map(|info| info.state()),
        }
    }

    pub(crate) fn report(
        &self,
        what: What,
        key: &ObjectKey,
        state: TrackedState,
        errors: Vec<String>,
        containers: Vec<String>,
    ) {
        let outcome = match what {
            What::Cluster => key.decode().and_then(|key| {
                self.cluster_infos.put(ClusterInstInfo {
                    key: Some(key),
                    state: state.into(),
                    errors,
                    ..ClusterInstInfo::default()
                })
            }),
            What::Instance => key.decode().and_then(|key| {
                let runtime = AppInstRuntime { container_ids: containers };
                self.instance_infos.put(AppInstInfo {
                    key: Some(key),
                    state: state.into(),
                    errors,
                    runtime_info: (state == TrackedState::Ready).then_some(runtime),
                    ..AppInstInfo::default()
                })
            }),
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "report not made");
        }
    }

    pub(crate) fn withdraw(&self, what: What, key: &ObjectKey) {
        match what {
            What::Cluster => self.cluster_infos.remove_key(key),
            What::Instance => self.instance_infos.remove_key(key),
        };
    }
}
