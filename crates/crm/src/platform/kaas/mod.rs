//! Clusters that the cluster service makes out of machines: each cluster of
//! ours is one of Kubernetes, and its instances run there as in any cluster
//! that a kubeconfig leads to.

mod access;
mod api;
mod wanted;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::{
    Code,
    edgeproto::{AppInstKey, CloudletKey, ClusterInstKey},
};
use selvage_edge::cloudlet_kind;
use selvage_kit::{dial, dial::Endpoint, identity::Machine};
use selvage_kube::Connection;
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream};

use self::{access::Kubeconfigs, api::Api};
use super::{
    ClusterFacts, ClusterOrder, InstanceFacts, InstanceOrder, Platform, Progress, Resources,
    Restarts, Usage,
    kubernetes::{self, Kubernetes},
};
use crate::{Error, KaasSite, Result};

/// Time a cluster may take to come, to change and to go. One that does not
/// come is removed before that is told: both together take less time than the
/// controller waits, so that it hears the reason.
const CREATE_TIMEOUT: Duration = Duration::from_secs(18 * 60);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Until a kubeconfig is asked for again that could not be had.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// Options of the platform.
#[derive(Clone)]
pub struct Options {
    pub site: KaasSite,
    /// `host:port` of controllers.
    pub controllers: Vec<String>,
    /// TLS configuration of a client that shows that it is this cloudlet.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// For each cluster that is made. The kubeconfig is not used.
    pub kubernetes: kubernetes::Options,
}

/// A cluster that is used.
struct Used {
    kubernetes: Kubernetes,
    renew_at: Mutex<SystemTime>,
}

/// The platform.
pub struct Kaas {
    cloudlet: CloudletKey,
    machine: Machine,
    options: Options,
    api: Api,
    kept: Kubeconfigs,
    used: Mutex<HashMap<String, Arc<Used>>>,
}

impl Kaas {
    pub fn open(cloudlet: &CloudletKey, options: Options) -> Result<Self> {
        let machine = wanted::machine(cloudlet);
        let endpoint = |text: &String| {
            Endpoint::parse(text, 0)
                .ok_or_else(|| Error::invalid("controller", format!("{text:?} is not HOST:PORT")))
        };
        let endpoints: Vec<Endpoint> =
            options.controllers.iter().map(endpoint).collect::<Result<_>>()?;
        let channel = dial::channel(options.tls.clone(), &endpoints)?;
        let api = Api { channel, organisation: machine.to_string() };
        let kept = Kubeconfigs::new(&options.kubernetes.data);
        let cloudlet = cloudlet.clone();
        Ok(Self { cloudlet, machine, options, api, kept, used: Mutex::default() })
    }

    fn name(&self, key: &ClusterInstKey) -> Result<String> {
        wanted::name(&self.machine, key)
    }

    /// The cluster of a key, with a kubeconfig that is still good.
    async fn cluster(&self, key: &ClusterInstKey) -> Result<Arc<Used>> {
        let name = self.name(key)?;
        let known = self.used.lock().get(&name).cloned();
        let Some(known) = known else { return self.connect(&name).await };
        if *known.renew_at.lock() <= SystemTime::now() {
            self.renew(&name, &known).await;
        }
        Ok(known)
    }

    /// The cluster that an instance is in.
    async fn cluster_of(&self, key: &AppInstKey) -> Result<Arc<Used>> {
        self.cluster(&key.cluster_inst_key.clone().unwrap_or_default()).await
    }

    /// Begins to use a cluster. Without a controller the kubeconfig of the last
    /// process serves.
    async fn connect(&self, name: &str) -> Result<Arc<Used>> {
        let text = match self.api.kubeconfig(name).await {
            Ok(text) => {
                self.kept.put(name, &text)?;
                text
            }
            Err(error @ Error::ClustersAway(_)) => self.kept.get(name).ok_or(error)?,
            Err(error) => return Err(error),
        };
        let connection = Connection::from_kubeconfig(&text).await?;
        let options = self.options.kubernetes.clone();
        let kubernetes = Kubernetes::with_connection(&self.cloudlet, options, connection)?;
        let renew_at = Mutex::new(access::renewal(&text)?);
        let used = Arc::new(Used { kubernetes, renew_at });
        Ok(Arc::clone(self.used.lock().entry(name.to_owned()).or_insert(used)))
    }

    /// Goes on with a new kubeconfig, if one can be had: its certificate is
    /// good for longer, and it names an API server that answers.
    async fn renew(&self, name: &str, used: &Used) {
        let renewed = async {
            let text = self.api.kubeconfig(name).await?;
            used.kubernetes.connection().replace_kubeconfig(&text).await?;
            self.kept.put(name, &text)?;
            access::renewal(&text)
        };
        let next = match renewed.await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(name, %error, "the kubeconfig was not renewed");
                SystemTime::now()
            }
        };
        *used.renew_at.lock() = next.max(SystemTime::now() + RENEW_AGAIN);
    }

    /// Makes a cluster, or goes on with one, and waits until it runs.
    async fn provide(&self, order: &ClusterOrder) -> Result<()> {
        let request = wanted::request(&self.options.site, &self.machine, order)?;
        let name = request.name.clone();
        if self.api.find(&name).await?.is_some_and(|found| found.status == "STOPPING") {
            self.until_gone(&name).await?;
        }
        match self.api.find(&name).await? {
            None => self.api.create(request).await?,
            Some(found) => {
                let count = wanted::node_count(order)?;
                let pool = found.pools.iter().find(|pool| pool.name == wanted::POOL);
                if pool.is_some_and(|pool| pool.count != count) {
                    self.api.scale(&name, count).await?;
                }
            }
        }
        self.until_running(&name, CREATE_TIMEOUT, &order.progress).await
    }

    async fn until_running(&self, name: &str, limit: Duration, progress: &Progress) -> Result<()> {
        let gone = format!("Kubernetes cluster {name}");
        let mut look = |cluster: Option<&selvage_api::selvage::clusters::Cluster>| {
            let Some(cluster) = cluster else { return Some(Err(Error::missing(gone.clone()))) };
            match cluster.status.as_str() {
                // A pool that was just asked to grow may not count as work yet.
                "RUNNING" if wanted::is_complete(cluster) => Some(Ok(())),
                "ERROR" | "STOPPING" => Some(Err(Error::state(cluster.status_message.clone()))),
                _ => None,
            }
        };
        self.api.follow(name, limit, progress, &mut look).await
    }

    async fn until_gone(&self, name: &str) -> Result<()> {
        let mut look = |cluster: Option<&selvage_api::selvage::clusters::Cluster>| {
            cluster.is_none().then_some(Ok(()))
        };
        self.api.follow(name, CHANGE_TIMEOUT, &Progress::default(), &mut look).await
    }

    /// Asks for the end of clusters of this cloudlet that belong to nothing.
    async fn sweep_clusters(&self, kept: &[String]) -> Result<Vec<String>> {
        let prefix = self.machine.cluster_prefix();
        let mut swept = Vec::new();
        for name in self.api.list().await? {
            if name.starts_with(&prefix) && !kept.contains(&name) {
                self.api.delete(&name).await?;
                self.kept.remove(&name)?;
                swept.push(format!("Kubernetes cluster {name}"));
            }
        }
        Ok(swept)
    }
}

/// Returns whether another kubeconfig may help.
fn is_stale(error: &Error) -> bool {
    let Error::Kubernetes(error) = error else { return false };
    matches!(error.code(), Code::Unavailable | Code::Unauthenticated)
}

#[async_trait]
impl Platform for Kaas {
    fn kind(&self) -> &'static str {
        cloudlet_kind::KUBERNETES
    }

    /// Returns nothing: the number of machines is for the cluster service to
    /// count, which refuses what it cannot have.
    async fn resources(&self) -> Result<Resources> {
        match self.api.problem().await {
            Ok(problem) if problem.is_empty() => Ok(Resources::default()),
            Ok(problem) => Err(Error::state(problem)),
            // Whoever hears of this answers again.
            Err(Error::ClustersAway(_)) => Ok(Resources::default()),
            Err(error) => Err(error),
        }
    }

    fn plan_cluster(&self, order: &ClusterOrder, _: &[ClusterFacts]) -> Result<ClusterFacts> {
        wanted::control_plane(order)?;
        Ok(kubernetes::plan_cluster(&self.options.kubernetes.addresses, order))
    }

    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()> {
        self.provide(order).await?;
        let key = order.cluster.key.clone().unwrap_or_default();
        self.cluster(&key).await?.kubernetes.create_cluster(order, facts).await
    }

    async fn update_cluster(
        &self,
        order: &ClusterOrder,
        facts: &ClusterFacts,
    ) -> Result<ClusterFacts> {
        let key = order.cluster.key.clone().unwrap_or_default();
        let name = self.name(&key)?;
        self.api.scale(&name, wanted::node_count(order)?).await?;
        self.until_running(&name, CHANGE_TIMEOUT, &order.progress).await?;
        self.cluster(&key).await?.kubernetes.update_cluster(order, facts).await
    }

    async fn keep_cluster(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()> {
        let used = self.cluster(key).await?;
        match used.kubernetes.keep_cluster(key, facts).await {
            Err(error) if is_stale(&error) => {
                self.renew(&self.name(key)?, &used).await;
                used.kubernetes.keep_cluster(key, facts).await
            }
            kept => kept,
        }
    }

    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()> {
        let name = self.name(key)?;
        self.api.delete(&name).await?;
        self.until_gone(&name).await?;
        self.used.lock().remove(&name);
        self.kept.remove(&name)
    }

    fn instances_go_with_cluster(&self) -> bool {
        true
    }

    fn plan_instance(&self, order: &InstanceOrder, _: &[InstanceFacts]) -> Result<InstanceFacts> {
        kubernetes::plan_instance(order)
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        let used = self.cluster(&order.cluster).await?;
        used.kubernetes.create_instance(order, facts).await
    }

    async fn look_at_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<InstanceFacts> {
        let used = self.cluster(&order.cluster).await?;
        used.kubernetes.look_at_instance(order, facts).await
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        let used = self.cluster(&order.cluster).await?;
        used.kubernetes.keep_instance(order, facts).await
    }

    async fn unhealthy_reason(&self, key: &AppInstKey) -> Result<String> {
        self.cluster_of(key).await?.kubernetes.unhealthy_reason(key).await
    }

    async fn restarts(&self, key: &AppInstKey) -> Result<Restarts> {
        self.cluster_of(key).await?.kubernetes.restarts(key).await
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        match self.cluster_of(key).await {
            Ok(used) => used.kubernetes.delete_instance(key).await,
            // It went with its cluster.
            Err(Error::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>> {
        let kept = clusters.iter().map(|key| self.name(key)).collect::<Result<Vec<_>>>()?;
        let mut swept = self.sweep_clusters(&kept).await?;
        for key in clusters {
            let within =
                async { self.cluster(key).await?.kubernetes.sweep(clusters, instances).await };
            match within.await {
                Ok(more) => swept.extend(more),
                Err(error) => {
                    let name = self.name(key)?;
                    tracing::warn!(name, %error, "not looked for what belongs to nothing");
                }
            }
        }
        Ok(swept)
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        self.cluster_of(key).await?.kubernetes.usage(key).await
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        self.cluster_of(key).await?.kubernetes.exec(key, container, spec).await
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        self.cluster_of(key).await?.kubernetes.logs(key, container, options).await
    }
}
