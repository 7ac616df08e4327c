//! A platform that stops for ever at some call, as before a power cut.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use selvage_api::edgeproto::{AppInstKey, ClusterInstKey};
use selvage_crm::{
    Platform, Result,
    platform::{
        ClusterFacts, ClusterOrder, Forwarder, InstanceFacts, InstanceOrder, Resources, Restarts,
        Usage,
    },
};
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream};

/// Platform that stops for ever at a call: the how manieth, before or after it.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) at: usize,
    pub(crate) after: bool,
    calls: AtomicUsize,
    made: AtomicUsize,
    stopped: tokio::sync::Notify,
}

impl Stuck {
    pub(crate) fn new(at: usize, after: bool) -> Arc<Self> {
        Arc::new(Self {
            at,
            after,
            calls: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            stopped: tokio::sync::Notify::new(),
        })
    }

    /// One that never stops, and counts.
    pub(crate) fn nowhere() -> Arc<Self> {
        Self::new(usize::MAX, false)
    }

    /// Number of instances that were made.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    /// Returns when it has stopped.
    pub(crate) async fn reached(&self) {
        self.stopped.notified().await;
    }

    async fn pass<T>(&self, call: impl Future<Output = T>) -> T {
        let here = self.calls.fetch_add(1, Ordering::SeqCst) == self.at;
        if here && !self.after {
            self.stop().await;
        }
        let outcome = call.await;
        if here && self.after {
            self.stop().await;
        }
        outcome
    }

    async fn stop(&self) {
        self.stopped.notify_one();
        std::future::pending().await
    }
}

/// A platform that stops at some call that changes something.
pub(super) struct Stops {
    platform: Arc<dyn Platform>,
    stuck: Arc<Stuck>,
}

impl Stops {
    pub(super) fn new(platform: Arc<dyn Platform>, stuck: &Arc<Stuck>) -> Self {
        Self { platform, stuck: Arc::clone(stuck) }
    }
}

#[async_trait::async_trait]
impl Platform for Stops {
    fn kind(&self) -> &'static str {
        self.platform.kind()
    }

    async fn resources(&self) -> Result<Resources> {
        self.platform.resources().await
    }

    fn forwarder(&self) -> Option<Arc<dyn Forwarder>> {
        self.platform.forwarder()
    }

    fn plan_cluster(&self, order: &ClusterOrder, others: &[ClusterFacts]) -> Result<ClusterFacts> {
        self.platform.plan_cluster(order, others)
    }

    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()> {
        self.stuck.pass(self.platform.create_cluster(order, facts)).await
    }

    async fn update_cluster(
        &self,
        order: &ClusterOrder,
        facts: &ClusterFacts,
    ) -> Result<ClusterFacts> {
        self.stuck.pass(self.platform.update_cluster(order, facts)).await
    }

    async fn keep_cluster(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()> {
        self.platform.keep_cluster(key, facts).await
    }

    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()> {
        self.stuck.pass(self.platform.delete_cluster(key)).await
    }

    fn plan_instance(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        self.platform.plan_instance(order, others)
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.stuck.made.fetch_add(1, Ordering::SeqCst);
        self.stuck.pass(self.platform.create_instance(order, facts)).await
    }

    async fn replace_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        self.stuck.made.fetch_add(1, Ordering::SeqCst);
        self.stuck.pass(self.platform.replace_instance(order, facts, others)).await
    }

    async fn restore_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.platform.restore_instance(order, facts).await
    }

    async fn retire_instance(&self, key: &AppInstKey, facts: &InstanceFacts) -> Result<()> {
        self.platform.retire_instance(key, facts).await
    }

    async fn restarts(&self, key: &AppInstKey) -> Result<Restarts> {
        self.platform.restarts(key).await
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        self.platform.keep_instance(order, facts).await
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        self.stuck.pass(self.platform.delete_instance(key)).await
    }

    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>> {
        self.platform.sweep(clusters, instances).await
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        self.platform.usage(key).await
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        self.platform.exec(key, container, spec).await
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        self.platform.logs(key, container, options).await
    }
}
