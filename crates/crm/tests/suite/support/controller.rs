//! A controller's end of notify.

use std::{fmt::Debug, net::SocketAddr, sync::Arc};

use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstKey, Cloudlet, CloudletInfo, ClusterInst, ClusterInstInfo,
    ClusterInstKey, ExecRequest, Flavor, FlavorKey, Metric, Node, TrackedState,
};
use selvage_notify::{
    Cache, Exchange, Mailbox, MessageReceiver, NotifyServer, OpenGate, ServerOptions,
};
use tokio_util::sync::CancellationToken;

use super::{TEST_TIMEOUT, TestCloudlet, wait_for};

/// The controller's end: what it wants, and what it is told.
pub(crate) struct TestController {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlets: Arc<Cache<Cloudlet>>,
    pub(crate) cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    server: NotifyServer,
    /// Answers of the crm to requests to run a command.
    answers: tokio::sync::Mutex<MessageReceiver<ExecRequest>>,
    samples: tokio::sync::Mutex<MessageReceiver<Metric>>,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
}

impl TestController {
    pub(crate) async fn start() -> Self {
        let (flavors, apps) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (clusters, instances) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (cloudlets, nodes) = (Cache::new().unwrap(), Cache::<Node>::new().unwrap());
        let (cloudlet_infos, cluster_infos) = (Cache::new().unwrap(), Cache::new().unwrap());
        let instance_infos: Arc<Cache<AppInstInfo>> = Cache::new().unwrap();
        let (mailbox, answers) = Mailbox::<ExecRequest>::new(8).unwrap();
        // Those that nobody reads are dropped.
        let (metrics, samples) = Mailbox::<Metric>::new(8).unwrap();
        let exchange = Exchange::new()
            .send(flavors.clone())
            .send(cloudlets.clone())
            .send(clusters.clone())
            .send(apps.clone())
            .send(instances.clone())
            .receive(cloudlet_infos.clone())
            .receive(instance_infos.clone())
            .receive(cluster_infos.clone())
            .receive(nodes)
            .receive_messages(mailbox)
            .receive_messages(metrics)
            .send_messages::<ExecRequest>()
            .unwrap();
        let options = ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() };
        let server = NotifyServer::new(exchange, options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let service = server.service();
        let until = stop.clone();
        tokio::spawn(async move {
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, until.cancelled_owned())
                .await
        });
        Self {
            flavors,
            apps,
            clusters,
            instances,
            cloudlets,
            cloudlet_infos,
            cluster_infos,
            instance_infos,
            server,
            answers: tokio::sync::Mutex::new(answers),
            samples: tokio::sync::Mutex::new(samples),
            address,
            stop,
        }
    }

    /// Asks the crm to run a command.
    pub(crate) async fn ask(&self, request: ExecRequest) -> ExecRequest {
        let mut answers = self.answers.lock().await;
        assert_eq!(self.server.post(&request).unwrap(), 1, "there is one crm");
        answers.recv().await.unwrap().0
    }

    /// The next sample of this name of the app `Hello`. What the one before
    /// was shows when none comes.
    pub(crate) async fn sample(&self, name: &str, before: &impl Debug) -> Metric {
        let of_hello = |metric: &Metric| {
            metric.tags.iter().any(|tag| (tag.name.as_str(), tag.val.as_str()) == ("app", "Hello"))
        };
        let mut samples = self.samples.lock().await;
        let next = async {
            loop {
                let (metric, _) = samples.recv().await.unwrap();
                if metric.name == name && of_hello(&metric) {
                    return metric;
                }
            }
        };
        let next = tokio::time::timeout(TEST_TIMEOUT, next).await;
        next.unwrap_or_else(|_| panic!("no sample {name} after {before:?}"))
    }

    /// Wants a cluster, and all that an app needs.
    pub(crate) fn furnish(&self, site: &TestCloudlet) {
        self.flavors
            .put(Flavor {
                key: Some(FlavorKey { name: "small".into() }),
                ram: 64,
                vcpus: 1,
                disk: 1,
                ..Flavor::default()
            })
            .unwrap();
        self.apps.put(site.app()).unwrap();
        self.cloudlets.put(Cloudlet { key: Some(site.cloudlet()), ..Cloudlet::default() }).unwrap();
    }

    pub(crate) async fn cluster_state(&self, key: &ClusterInstKey, state: TrackedState) {
        wait_for(&format!("the cluster in {state:?}"), || async {
            let info = self.cluster_infos.find(key)?;
            assert!(info.errors.is_empty() || is_error(state), "{:?}", info.errors);
            (info.state() == state).then_some(())
        })
        .await;
    }

    pub(crate) async fn instance_state(
        &self,
        key: &AppInstKey,
        state: TrackedState,
    ) -> Arc<AppInstInfo> {
        wait_for(&format!("the instance in {state:?}"), || async {
            let info = self.instance_infos.find(key)?;
            assert!(info.errors.is_empty() || is_error(state), "{:?}", info.errors);
            (info.state() == state).then_some(info)
        })
        .await
    }

    /// Wants an instance and its cluster, and waits until both are there.
    pub(crate) async fn make(&self, site: &TestCloudlet) {
        self.furnish(site);
        self.clusters.put(site.cluster(TrackedState::CreateRequested)).unwrap();
        self.cluster_state(&site.cluster_key(), TrackedState::Ready).await;
        self.clusters.put(site.cluster(TrackedState::Ready)).unwrap();
        self.instances.put(site.instance(TrackedState::CreateRequested)).unwrap();
        self.instance_state(&site.instance_key(), TrackedState::Ready).await;
        self.instances.put(site.instance(TrackedState::Ready)).unwrap();
    }

    /// From now on an instance that is to be updated is in the state that its
    /// crm reports.
    pub(crate) fn believe(&self, site: &Arc<TestCloudlet>) {
        use TrackedState::{Ready, UpdateRequested, Updating};
        let (instances, site) = (Arc::clone(&self.instances), Arc::clone(site));
        self.instance_infos.on_change(move |change| {
            let state = change.now.map(|info| info.state());
            let held = instances.find(&site.instance_key());
            let pinned_app = held.as_ref().and_then(|held| held.pinned_app.clone());
            match (held.map(|held| held.state()), state) {
                (Some(UpdateRequested), Some(state @ (Updating | Ready)))
                | (Some(Updating), Some(state @ Ready)) => {
                    instances.put(AppInst { pinned_app, ..site.instance(state) }).unwrap();
                }
                _ => {}
            }
        });
    }

    /// Asks for an update, and waits until the crm says that it is made.
    pub(crate) async fn update(&self, site: &TestCloudlet) {
        self.instances.put(site.instance(TrackedState::UpdateRequested)).unwrap();
        self.is_ready(site).await;
    }

    /// Waits until what the crm reports made an instance ready.
    pub(crate) async fn is_ready(&self, site: &TestCloudlet) {
        wait_for("the end of the update", || async {
            let held = self.instances.find(&site.instance_key())?;
            (held.state() == TrackedState::Ready).then_some(())
        })
        .await;
    }

    /// Wants both gone, as a controller does, and waits until they are.
    pub(crate) async fn unmake(&self, site: &TestCloudlet) {
        self.instances.put(site.instance(TrackedState::DeleteRequested)).unwrap();
        wait_for("the instance's end", || async {
            self.instance_infos.find(&site.instance_key()).is_none().then_some(())
        })
        .await;
        self.instances.remove(&site.instance(TrackedState::Ready)).unwrap();
        self.clusters.put(site.cluster(TrackedState::DeleteRequested)).unwrap();
        wait_for("the cluster's end", || async {
            self.cluster_infos.find(&site.cluster_key()).is_none().then_some(())
        })
        .await;
        self.clusters.remove(&site.cluster(TrackedState::Ready)).unwrap();
    }
}

impl Drop for TestController {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn is_error(state: TrackedState) -> bool {
    use TrackedState::{CreateError, DeleteError, UpdateError};
    matches!(state, CreateError | UpdateError | DeleteError)
}
