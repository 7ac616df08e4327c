//! A controller that does nothing but keep objects and apply what is reported,
//! by the rules of the contract.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey,
    ClusterInst, ClusterInstInfo, ClusterInstKey, ClusterKey, ExecRequest, Flavor, FlavorKey, Node,
    OperatorKey, TrackedState,
};
use selvage_notify::{
    Backoff, Cache, ClientOptions, Exchange, Mailbox, MessageReceiver, NotifyServer, OpenGate,
    ServerOptions,
};
use selvage_sim::SimOptions;
pub(crate) use selvage_testkit::wait_until as until;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct Controller {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) infos: Arc<Cache<CloudletInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) server: NotifyServer,
    address: String,
    pub(crate) execs: MessageReceiver<ExecRequest>,
    /// Every state that was reported, errors included.
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    _running: DropGuard,
}

fn legal(from: TrackedState, to: TrackedState) -> bool {
    use TrackedState as S;
    match from {
        S::CreateRequested => [S::Creating, S::Ready, S::CreateError].contains(&to),
        S::Creating => [S::Ready, S::CreateError].contains(&to),
        S::UpdateRequested => [S::Updating, S::Ready, S::UpdateError].contains(&to),
        S::Updating => [S::Ready, S::UpdateError].contains(&to),
        S::DeleteRequested => [S::Deleting, S::DeleteError].contains(&to),
        S::Deleting => to == S::DeleteError,
        _ => false,
    }
}

fn deletable(state: TrackedState) -> bool {
    [TrackedState::DeleteRequested, TrackedState::Deleting].contains(&state)
}

/// Applies reports of one type to the objects of another.
macro_rules! apply {
    ($infos:expr, $objects:expr, $seen:expr) => {
        let (objects, seen) = (Arc::clone(&$objects), Arc::clone(&$seen));
        $infos.on_change(move |change| {
            let Some(object) = objects.object(change.key) else { return };
            let mut object = object.as_ref().clone();
            match change.now {
                Some(info) => {
                    let errors = info.errors.join(", ");
                    seen.lock().push(format!("{:?} {errors}", info.state()).trim_end().to_owned());
                    if legal(object.state(), info.state()) {
                        object.state = info.state;
                        object.errors = info.errors.clone();
                        objects.put(object).unwrap();
                    }
                }
                None if deletable(object.state()) => {
                    seen.lock().push("gone".into());
                    objects.remove(&object).unwrap();
                }
                None => {}
            }
        });
    };
}

impl Controller {
    pub(crate) async fn start() -> Self {
        let (flavors, apps) = (Cache::<Flavor>::new().unwrap(), Cache::<App>::new().unwrap());
        let clusters = Cache::<ClusterInst>::new().unwrap();
        let instances = Cache::<AppInst>::new().unwrap();
        let (infos, nodes) = (Cache::<CloudletInfo>::new().unwrap(), Cache::<Node>::new().unwrap());
        let cluster_infos: Arc<Cache<ClusterInstInfo>> = Cache::new().unwrap();
        let instance_infos: Arc<Cache<AppInstInfo>> = Cache::new().unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        apply!(cluster_infos, clusters, seen);
        apply!(instance_infos, instances, seen);
        let (mailbox, execs) = Mailbox::new(10).unwrap();
        let exchange = Exchange::new()
            .send(flavors.clone())
            .send(Cache::<Cloudlet>::new().unwrap())
            .send(clusters.clone())
            .send(apps.clone())
            .send(instances.clone())
            .send_messages::<ExecRequest>()
            .unwrap()
            .receive(infos.clone())
            .receive(instance_infos.clone())
            .receive(cluster_infos.clone())
            .receive(nodes.clone())
            .receive_messages(mailbox);
        let options = ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() };
        let server = NotifyServer::new(exchange, options);
        let (address, running) = serve(&server).await;
        Self {
            flavors,
            apps,
            clusters,
            instances,
            infos,
            instance_infos,
            cluster_infos,
            nodes,
            server,
            address,
            execs,
            seen,
            _running: running,
        }
    }

    pub(crate) fn options(&self) -> SimOptions {
        let mut options = SimOptions::new(vec![self.address.clone()], place());
        options.client = self.client();
        options
    }

    pub(crate) fn client(&self) -> ClientOptions {
        ClientOptions {
            addresses: vec![self.address.clone()],
            backoff: Backoff {
                first: Duration::from_millis(1),
                longest: Duration::from_millis(10),
                ..Backoff::default()
            },
            ..ClientOptions::default()
        }
    }

    pub(crate) fn ask_cluster(&self, name: &str, state: TrackedState) {
        self.clusters.put(cluster(name, state)).unwrap();
    }

    pub(crate) fn ask_instance(&self, name: &str, state: TrackedState) {
        self.instances.put(instance(name, state)).unwrap();
    }

    pub(crate) fn cluster_state(&self, name: &str) -> Option<TrackedState> {
        let key = cluster(name, TrackedState::Ready).key.unwrap();
        self.clusters.find(&key).map(|object| object.state())
    }

    pub(crate) fn instance_state(&self, name: &str) -> Option<TrackedState> {
        let key = instance(name, TrackedState::Ready).key.unwrap();
        self.instances.find(&key).map(|object| object.state())
    }

    pub(crate) async fn cluster_is(&self, name: &str, state: Option<TrackedState>) {
        until(&format!("{name} {state:?}"), || self.cluster_state(name) == state).await;
    }

    pub(crate) async fn instance_is(&self, name: &str, state: Option<TrackedState>) {
        until(&format!("{name} {state:?}"), || self.instance_state(name) == state).await;
    }

    pub(crate) fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }

    pub(crate) fn prepare(&self) {
        let flavor = Flavor { key: Some(FlavorKey { name: "small".into() }), ..Flavor::default() };
        self.flavors.put(flavor).unwrap();
        self.apps.put(App { key: Some(app_key()), ..App::default() }).unwrap();
    }
}

async fn serve(server: &NotifyServer) -> (String, DropGuard) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let token = CancellationToken::new();
    let stopped = token.clone().cancelled_owned();
    let serving = tonic::transport::Server::builder()
        .add_service(server.service())
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::TcpListenerStream::new(listener),
            stopped,
        );
    tokio::spawn(serving);
    (address, token.drop_guard())
}

pub(crate) fn place() -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: "tmus".into() }), name: "west".into() }
}

pub(crate) fn app_key() -> AppKey {
    AppKey { name: "go".into(), version: "1".into(), ..AppKey::default() }
}

pub(crate) fn cluster(name: &str, state: TrackedState) -> ClusterInst {
    ClusterInst {
        key: Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: name.into() }),
            cloudlet_key: Some(place()),
            developer: "Acme".into(),
        }),
        state: state.into(),
        num_nodes: 2,
        ..ClusterInst::default()
    }
}

pub(crate) fn instance(name: &str, state: TrackedState) -> AppInst {
    AppInst {
        key: Some(AppInstKey {
            app_key: Some(app_key()),
            cluster_inst_key: cluster(name, state).key,
        }),
        flavor: Some(FlavorKey { name: "small".into() }),
        state: state.into(),
        ..AppInst::default()
    }
}
