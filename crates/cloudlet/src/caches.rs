//! Caches of an agent: what it receives, and what it reports.

use std::sync::Arc;

use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstRuntime, Cloudlet, CloudletInfo, ClusterInst,
    ClusterInstInfo, ExecRequest, Flavor, Metric, Node, TrackedState,
};
use selvage_notify::{Cache, Error, Exchange, Mailbox, MessageReceiver, ObjectKey};

use selvage_edge::ObjectKind;

/// Peers that resume never do so towards a crm.
const HISTORY: usize = 16;
/// Requests to run a command that may wait.
const EXECS: usize = 32;
/// Samples that may wait while the controller is away.
const METRICS: usize = 1000;

/// Caches of an agent: the objects that came in, and the reports that go out.
#[derive(Debug)]
pub struct AgentCaches {
    /// Objects as the controller has them.
    pub flavors: Arc<Cache<Flavor>>,
    pub apps: Arc<Cache<App>>,
    pub instances: Arc<Cache<AppInst>>,
    pub cloudlets: Arc<Cache<Cloudlet>>,
    pub clusters: Arc<Cache<ClusterInst>>,
    /// Reports to the controller.
    pub cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub instance_infos: Arc<Cache<AppInstInfo>>,
    pub cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub nodes: Arc<Cache<Node>>,
}

impl AgentCaches {
    /// An empty one.
    pub fn new() -> Result<Self, Error> {
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

    /// Types that are sent and received, in the original's order.
    pub fn exchange(&self) -> Result<(Exchange, MessageReceiver<ExecRequest>), Error> {
        let (mailbox, letters) = Mailbox::new(EXECS)?;
        let exchange = Exchange::new()
            .send(self.cloudlet_infos.clone())
            .send(self.instance_infos.clone())
            .send(self.cluster_infos.clone())
            .send(self.nodes.clone())
            .send_messages_up_to::<ExecRequest>(EXECS)?
            .send_messages_up_to::<Metric>(METRICS)?
            .receive(self.flavors.clone())
            .receive(self.apps.clone())
            .receive(self.instances.clone())
            .receive(self.cloudlets.clone())
            .receive(self.clusters.clone())
            .receive_messages(mailbox);
        Ok((exchange, letters))
    }

    /// Forgets everything, as a process that starts anew.
    pub fn forget(&self) {
        self.flavors.clear();
        self.apps.clear();
        self.instances.clear();
        self.cloudlets.clear();
        self.clusters.clear();
        self.instance_infos.clear();
        self.cluster_infos.clear();
    }

    /// The state of an object as the controller has it.
    pub fn wanted(&self, kind: ObjectKind, key: &ObjectKey) -> Option<TrackedState> {
        match kind {
            ObjectKind::Cluster => self.clusters.object(key).map(|object| object.state()),
            ObjectKind::Instance => self.instances.object(key).map(|object| object.state()),
        }
    }

    /// The state that was reported last.
    pub fn reported(&self, kind: ObjectKind, key: &ObjectKey) -> Option<TrackedState> {
        match kind {
            ObjectKind::Cluster => self.cluster_infos.object(key).map(|info| info.state()),
            ObjectKind::Instance => self.instance_infos.object(key).map(|info| info.state()),
        }
    }

    /// Reports on an object; what runs is told of instances that are ready, and
    /// of those whose update failed.
    pub fn report(
        &self,
        kind: ObjectKind,
        key: &ObjectKey,
        state: TrackedState,
        errors: Vec<String>,
        runtime: AppInstRuntime,
    ) {
        let outcome = match kind {
            ObjectKind::Cluster => key.decode().and_then(|key| {
                self.cluster_infos.put(ClusterInstInfo {
                    key: Some(key),
                    state: state.into(),
                    errors,
                    ..ClusterInstInfo::default()
                })
            }),
            ObjectKind::Instance => key.decode().and_then(|key| {
                self.instance_infos.put(AppInstInfo {
                    key: Some(key),
                    state: state.into(),
                    errors,
                    runtime_info: matches!(state, TrackedState::Ready | TrackedState::UpdateError)
                        .then_some(runtime),
                    ..AppInstInfo::default()
                })
            }),
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "the state of an object could not be reported");
        }
    }

    /// Says what the work on an object waits for, beside the state that was
    /// reported last.
    pub fn report_progress(&self, kind: ObjectKind, key: &ObjectKey, progress: &str) {
        let progress = progress.to_owned();
        let outcome = match kind {
            ObjectKind::Cluster => self.cluster_infos.object(key).map(|last| {
                self.cluster_infos.put(ClusterInstInfo { progress, ..last.as_ref().clone() })
            }),
            ObjectKind::Instance => self.instance_infos.object(key).map(|last| {
                self.instance_infos.put(AppInstInfo { progress, ..last.as_ref().clone() })
            }),
        };
        if let Some(Err(error)) = outcome {
            tracing::error!(%error, "the state of an object could not be reported");
        }
    }

    /// Reports that an instance that is updated does not serve until its new version
    /// does, if it is being updated.
    pub fn report_replaced(&self, key: &ObjectKey) {
        let last = self.instance_infos.object(key);
        let Some(last) = last.filter(|last| last.state() == TrackedState::Updating) else { return };
        let unhealthy = "is being replaced".to_owned();
        let runtime_info = Some(AppInstRuntime { unhealthy, ..AppInstRuntime::default() });
        let replaced = AppInstInfo { runtime_info, ..last.as_ref().clone() };
        if let Err(error) = self.instance_infos.put(replaced) {
            tracing::error!(%error, "the state of an object could not be reported");
        }
    }

    /// Takes a report back.
    pub fn withdraw(&self, kind: ObjectKind, key: &ObjectKey) {
        match kind {
            ObjectKind::Cluster => self.cluster_infos.remove_key(key),
            ObjectKind::Instance => self.instance_infos.remove_key(key),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::AppInstKey;

    use super::*;

    #[test]
    fn only_an_instance_that_is_updated_is_reported_as_being_replaced() {
        let caches = AgentCaches::new().unwrap();
        let instance = AppInst { key: Some(AppInstKey::default()), ..AppInst::default() };
        let key = ObjectKey::of(&instance).unwrap();
        let report = |state| {
            let runtime = AppInstRuntime::default();
            caches.report(ObjectKind::Instance, &key, state, Vec::new(), runtime);
        };
        let unhealthy = || {
            let info = caches.instance_infos.object(&key).unwrap();
            info.runtime_info.clone().map(|runtime| runtime.unhealthy)
        };
        report(TrackedState::Creating);
        caches.report_replaced(&key);
        assert_eq!(unhealthy(), None);
        report(TrackedState::Updating);
        assert_eq!(unhealthy(), None, "the old version serves");
        caches.report_replaced(&key);
        caches.report_progress(ObjectKind::Instance, &key, "It boots");
        assert_eq!(unhealthy().as_deref(), Some("is being replaced"));
        report(TrackedState::Ready);
        assert_eq!(unhealthy().as_deref(), Some(""));
    }
}
