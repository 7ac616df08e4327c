//! Controllers, crms and match engines made of caches, and waiting for them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey,
    CloudletState, Cluster, ClusterInst, ClusterInstInfo, ClusterInstKey, ClusterKey, DeveloperKey,
    ExecRequest, Flavor, FlavorKey, Metric, Node, NodeKey, NodeType, OperatorKey,
};
use selvage_kit::identity::Identity;
use selvage_notify::{
    Backoff, Cache, ClientOptions, Exchange, Mailbox, NotifyClient, NotifyServer, OpenGate,
    ServerOptions, Stream,
};
pub(crate) use selvage_testkit::wait_until as until;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub(crate) fn lab() -> ServerOptions {
    ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() }
}

/// A listener with one notify server on it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn stop(self, server: &NotifyServer) {
        server.close().await;
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

pub(crate) async fn serve(server: &NotifyServer, address: Option<SocketAddr>) -> Running {
    serve_as(server, address, None).await
}

pub(crate) async fn serve_as(
    server: &NotifyServer,
    address: Option<SocketAddr>,
    identity: Option<Identity>,
) -> Running {
    let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let service = tonic::service::interceptor::InterceptedService::new(
        server.service(),
        move |mut request: tonic::Request<()>| {
            if let Some(identity) = &identity {
                request.extensions_mut().insert(identity.clone());
            }
            Ok(request)
        },
    );
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let serving = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stopped);
    let task = tokio::spawn(async move { serving.await.unwrap() });
    Running { address, stop, task }
}

/// Clients of tests come back quickly.
pub(crate) fn client_options(addresses: &[SocketAddr], filter: bool) -> ClientOptions {
    ClientOptions {
        addresses: addresses.iter().map(ToString::to_string).collect(),
        filter,
        backoff: Backoff {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(10),
            ..Backoff::default()
        },
        ..ClientOptions::default()
    }
}

/// A client and the task that runs it.
pub(crate) struct Link {
    pub(crate) client: NotifyClient,
    token: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Link {
    pub(crate) fn new(exchange: Exchange, options: ClientOptions) -> Self {
        let client = NotifyClient::new(exchange, options).unwrap();
        Self { client, token: CancellationToken::new(), task: None }
    }

    pub(crate) fn start(&mut self) {
        let (client, token) = (self.client.clone(), self.token.clone());
        self.task = Some(tokio::spawn(async move { client.run(token).await }));
    }

    pub(crate) async fn stop(&mut self) {
        std::mem::take(&mut self.token).cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap();
        }
    }

    pub(crate) fn recv(&self) -> u64 {
        self.client.status().stats.recv
    }

    pub(crate) fn obj_recv(&self, name: &str) -> u64 {
        self.client.status().stats.obj_recv[name]
    }

    pub(crate) async fn in_sync(&self) {
        until("in sync", || self.client.status().in_sync).await;
    }
}

/// Objects of a controller.
pub(crate) struct Controller {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) cloudlets: Arc<Cache<Cloudlet>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    metrics: Arc<Mailbox<Metric>>,
    pub(crate) metrics_out: mpsc::Receiver<(Metric, Stream)>,
    execs: Arc<Mailbox<ExecRequest>>,
    pub(crate) execs_out: mpsc::Receiver<(ExecRequest, Stream)>,
}

impl Controller {
    pub(crate) fn new() -> Self {
        let (metrics, metrics_out) = Mailbox::new(100).unwrap();
        let (execs, execs_out) = Mailbox::new(100).unwrap();
        Self {
            flavors: Cache::new().unwrap(),
            cloudlets: Cache::new().unwrap(),
            clusters: Cache::new().unwrap(),
            apps: Cache::new().unwrap(),
            instances: Cache::new().unwrap(),
            cloudlet_infos: Cache::new().unwrap(),
            instance_infos: Cache::new().unwrap(),
            cluster_infos: Cache::new().unwrap(),
            nodes: Cache::new().unwrap(),
            metrics,
            metrics_out,
            execs,
            execs_out,
        }
    }

    pub(crate) fn server(&self, options: ServerOptions) -> NotifyServer {
        let exchange = Exchange::new()
            .send(self.flavors.clone())
            .send(self.cloudlets.clone())
            .send(Cache::<Cluster>::new().unwrap())
            .send(self.clusters.clone())
            .send(self.apps.clone())
            .send(self.instances.clone())
            .send_messages::<ExecRequest>()
            .unwrap()
            .receive(self.cloudlet_infos.clone())
            .receive(self.instance_infos.clone())
            .receive(self.cluster_infos.clone())
            .receive_messages(self.metrics.clone())
            .receive(self.nodes.clone())
            .receive_messages(self.execs.clone());
        NotifyServer::new(exchange, options)
    }

    /// Three flavors, five apps, and two clusters and two instances on each
    /// of two cloudlets; the instances of a cloudlet are of one app.
    pub(crate) fn fill(&self) {
        for name in ["small", "medium", "large"] {
            self.flavors.put(flavor(name)).unwrap();
        }
        for n in 0..5 {
            self.apps.put(app(&format!("app{n}"))).unwrap();
        }
        for n in 0..2 {
            let place = format!("cloud{n}");
            self.cloudlets.put(cloudlet(&place)).unwrap();
            for cluster in ["c1", "c2"] {
                self.clusters.put(cluster_inst(cluster, &place)).unwrap();
                self.instances.put(app_inst(&format!("app{n}"), cluster, &place)).unwrap();
            }
        }
    }
}

pub(crate) struct Dme {
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) link: Link,
}

pub(crate) fn dme(options: ClientOptions) -> Dme {
    let (apps, instances) = (Cache::new().unwrap(), Cache::new().unwrap());
    let nodes = Cache::new().unwrap();
    let exchange = Exchange::new()
        .send(nodes.clone())
        .send_messages_up_to::<Metric>(3)
        .unwrap()
        .receive(apps.clone())
        .receive(instances.clone());
    Dme { apps, instances, nodes, link: Link::new(exchange, options) }
}

pub(crate) struct Crm {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) cloudlets: Arc<Cache<Cloudlet>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) execs_out: mpsc::Receiver<(ExecRequest, Stream)>,
    pub(crate) link: Link,
}

pub(crate) fn crm(options: ClientOptions) -> Crm {
    let c = Controller::new();
    let exchange = Exchange::new()
        .send(c.cloudlet_infos.clone())
        .send(c.instance_infos.clone())
        .send(c.cluster_infos.clone())
        .send(c.nodes.clone())
        .send_messages::<ExecRequest>()
        .unwrap()
        .receive(c.flavors.clone())
        .receive(c.apps.clone())
        .receive(c.instances.clone())
        .receive(c.cloudlets.clone())
        .receive(c.clusters.clone())
        .receive_messages(c.execs.clone());
    Crm {
        flavors: c.flavors,
        cloudlets: c.cloudlets,
        clusters: c.clusters,
        apps: c.apps,
        instances: c.instances,
        cloudlet_infos: c.cloudlet_infos,
        instance_infos: c.instance_infos,
        cluster_infos: c.cluster_infos,
        nodes: c.nodes,
        execs_out: c.execs_out,
        link: Link::new(exchange, options),
    }
}

impl Crm {
    /// Flavors, clusters, instances, cloudlets, apps.
    pub(crate) fn counts(&self) -> [usize; 5] {
        [
            self.flavors.len(),
            self.clusters.len(),
            self.instances.len(),
            self.cloudlets.len(),
            self.apps.len(),
        ]
    }
}

pub(crate) fn flavor(name: &str) -> Flavor {
    Flavor { key: Some(FlavorKey { name: name.into() }), ram: 1, ..Flavor::default() }
}

pub(crate) fn app_key(name: &str) -> AppKey {
    AppKey {
        developer_key: Some(DeveloperKey { name: "Acme".into() }),
        name: name.into(),
        version: "1.0".into(),
    }
}

pub(crate) fn app(name: &str) -> App {
    App { key: Some(app_key(name)), image_path: "image".into(), ..App::default() }
}

pub(crate) fn cloudlet_key(name: &str) -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: "tmus".into() }), name: name.into() }
}

pub(crate) fn cloudlet(name: &str) -> Cloudlet {
    Cloudlet { key: Some(cloudlet_key(name)), num_dynamic_ips: 3, ..Cloudlet::default() }
}

pub(crate) fn cluster_key(name: &str, place: &str) -> ClusterInstKey {
    ClusterInstKey {
        cluster_key: Some(ClusterKey { name: name.into() }),
        cloudlet_key: Some(cloudlet_key(place)),
        developer: "Acme".into(),
    }
}

pub(crate) fn cluster_inst(name: &str, place: &str) -> ClusterInst {
    ClusterInst { key: Some(cluster_key(name, place)), num_nodes: 1, ..ClusterInst::default() }
}

pub(crate) fn app_inst(app: &str, cluster: &str, place: &str) -> AppInst {
    let key = AppInstKey {
        app_key: Some(app_key(app)),
        cluster_inst_key: Some(cluster_key(cluster, place)),
    };
    AppInst { key: Some(key), uri: "uri".into(), ..AppInst::default() }
}

pub(crate) fn cloudlet_info(place: &str) -> CloudletInfo {
    CloudletInfo {
        key: Some(cloudlet_key(place)),
        state: CloudletState::Ready.into(),
        ..CloudletInfo::default()
    }
}

pub(crate) fn instance_info(app: &str, cluster: &str, place: &str) -> AppInstInfo {
    AppInstInfo { key: app_inst(app, cluster, place).key, ..AppInstInfo::default() }
}

pub(crate) fn cluster_info(cluster: &str, place: &str) -> ClusterInstInfo {
    ClusterInstInfo { key: Some(cluster_key(cluster, place)), ..ClusterInstInfo::default() }
}

pub(crate) fn node(name: &str, place: &str) -> Node {
    let key = NodeKey {
        name: name.into(),
        node_type: NodeType::NodeCrm.into(),
        cloudlet_key: Some(cloudlet_key(place)),
    };
    Node { key: Some(key), ..Node::default() }
}

pub(crate) fn exec(place: &str, command: &str) -> ExecRequest {
    ExecRequest {
        app_inst_key: app_inst("app0", "c1", place).key,
        command: command.into(),
        ..ExecRequest::default()
    }
}

pub(crate) fn metric(name: &str) -> Metric {
    Metric { name: name.into(), ..Metric::default() }
}
