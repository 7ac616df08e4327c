//! A controller that keeps objects in memory, does at once what it is told,
//! and remembers every call.

use std::{
    collections::{BTreeMap, HashMap},
    result::Result,
    sync::{Arc, Mutex},
};

use futures::{Stream, StreamExt};
use prost::{Message, Name};
use selvage_api::{
    distributed_match_engine::AppPort,
    edgeproto::{
        Result as Line, app_api_server::*, app_inst_api_server::*, cloudlet_api_server::*,
        cloudlet_info_api_server::*, cloudlet_refs_api_server::*, cluster_api_server::*,
        cluster_inst_api_server::*, developer_api_server::*, flavor_api_server::*,
        operator_api_server::*, *,
    },
    object::{Filter, Key, Mask, Object, to_dynamic, without_fields},
    selvage::operations::{
        operation_service_server::{OperationService, OperationServiceServer},
        *,
    },
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, service::Routes, transport::Server};

/// A call as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) body: serde_json::Value,
    pub(crate) dry_run: bool,
}

/// What the controller knows and what it was told.
#[derive(Default)]
pub(crate) struct World {
    objects: Mutex<BTreeMap<String, BTreeMap<String, Vec<u8>>>>,
    pub(crate) calls: Mutex<Vec<Call>>,
    /// Methods that are refused.
    pub(crate) refused: Mutex<HashMap<String, Status>>,
    /// After so many lines the streams of changes end as if the server stopped.
    pub(crate) breaks_after: Mutex<Option<usize>>,
    /// Streams of changes never end after their first line.
    pub(crate) hangs: Mutex<bool>,
    /// Told when a stream of a change has been opened.
    pub(crate) opened: tokio::sync::Notify,
    pub(crate) operations: Mutex<Vec<Operation>>,
    /// Says nothing of having only planned.
    pub(crate) silent_about_dry_runs: Mutex<bool>,
}

impl World {
    /// Calls that change something, as `Method key`.
    pub(crate) fn changes(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        let changes = calls.iter().filter(|call| !call.method.starts_with("Show"));
        changes.map(|call| call.method.clone()).collect()
    }

    /// The body of the last call of a method, in canonical JSON.
    pub(crate) fn last(&self, method: &str) -> String {
        let calls = self.calls.lock().unwrap();
        let found = calls.iter().rev().find(|call| call.method == method);
        found.unwrap_or_else(|| panic!("{method} was not called: {calls:?}")).body.to_string()
    }

    pub(crate) fn refuse(&self, method: &str, status: Status) {
        self.refused.lock().unwrap().insert(method.into(), status);
    }

    pub(crate) fn put<M: Object>(&self, object: &M) {
        let key = Key::of(object).unwrap().to_string();
        let object = without_fields(object).unwrap().encode_to_vec();
        self.objects.lock().unwrap().entry(M::full_name()).or_default().insert(key, object);
    }

    pub(crate) fn get<M: Object>(&self, filter: &M) -> Vec<M> {
        let filter = Filter::of(filter).unwrap();
        let objects = self.objects.lock().unwrap();
        let all = objects.get(&M::full_name()).into_iter().flat_map(BTreeMap::values);
        all.filter(|bytes| filter.matches_encoded(bytes).unwrap())
            .map(|bytes| M::decode(bytes.as_slice()).unwrap())
            .collect()
    }

    fn remove<M: Object>(&self, object: &M) -> bool {
        let key = Key::of(object).unwrap().to_string();
        let mut objects = self.objects.lock().unwrap();
        objects.get_mut(&M::full_name()).is_some_and(|all| all.remove(&key).is_some())
    }

    /// Remembers the call; says whether it is a dry run.
    fn note<M: Message + Name>(&self, method: &str, request: &Request<M>) -> Result<bool, Status> {
        let dry_run = request.metadata().contains_key("x-selvage-dry-run");
        let message = to_dynamic(request.get_ref()).unwrap();
        let body = serde_json::to_value(&message).unwrap();
        let call = Call { method: method.into(), body, dry_run };
        self.calls.lock().unwrap().push(call);
        match self.refused.lock().unwrap().get(method) {
            Some(status) => Err(status.clone()),
            None => Ok(dry_run),
        }
    }

    fn create<M: Object>(&self, object: &M, dry_run: bool) -> Result<(), Status> {
        let key = Key::of(object).unwrap();
        key.check().map_err(|error| Status::invalid_argument(error.to_string()))?;
        let objects = self.objects.lock().unwrap();
        if objects.get(&M::full_name()).is_some_and(|all| all.contains_key(&key.to_string())) {
            return Err(Status::already_exists("Key already exists"));
        }
        drop(objects);
        if !dry_run {
            self.put(object);
        }
        Ok(())
    }

    fn update<M: Object>(&self, request: &M, dry_run: bool) -> Result<(), Status> {
        let key = Key::of(request).unwrap().to_string();
        let objects = self.objects.lock().unwrap();
        let there = objects.get(&M::full_name()).and_then(|all| all.get(&key)).cloned();
        drop(objects);
        let there = there.ok_or_else(|| Status::not_found("Key not found"))?;
        let mut there = M::decode(there.as_slice()).unwrap();
        let mask = Mask::of(request).map_err(|e| Status::invalid_argument(e.to_string()))?;
        mask.apply(&mut there, request).unwrap();
        if !dry_run {
            self.put(&there);
        }
        Ok(())
    }

    fn delete<M: Object>(&self, request: &M, dry_run: bool) -> Result<(), Status> {
        if dry_run || self.remove(request) {
            return Ok(());
        }
        Err(Status::not_found("Key not found"))
    }

    fn shown<M: Object + 'static>(&self, method: &str, request: &Request<M>) -> Reply<Answers<M>> {
        self.note(method, request)?;
        let found: Vec<_> = self.get(request.get_ref()).into_iter().map(Ok).collect();
        Ok(Response::new(futures::stream::iter(found).boxed()))
    }

    fn answer<T>(&self, content: T, dry_run: bool) -> Response<T> {
        let mut response = Response::new(content);
        if dry_run && !*self.silent_about_dry_runs.lock().unwrap() {
            response.metadata_mut().insert("x-selvage-dry-run", "true".parse().unwrap());
        }
        response
    }

    fn lines(&self, lines: &[&str], dry_run: bool) -> Response<Answers<Line>> {
        let plan = ["plan: 1 step"];
        let lines: &[&str] = if dry_run { &plan } else { lines };
        let mut all: Vec<Result<Line, Status>> =
            lines.iter().map(|&message| Ok(Line { message: message.into(), code: 0 })).collect();
        if let Some(count) = *self.breaks_after.lock().unwrap() {
            all.truncate(count);
            all.push(Err(Status::unavailable("the server stops")));
        }
        let stream = futures::stream::iter(all);
        self.opened.notify_one();
        if *self.hangs.lock().unwrap() {
            return self.answer(stream.take(1).chain(futures::stream::pending()).boxed(), dry_run);
        }
        self.answer(stream.boxed(), dry_run)
    }
}

#[derive(Clone)]
struct Fake(Arc<World>);

type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// Fills what the server fills.
trait Derived {
    /// What a key leaves out.
    fn complete(&mut self) {}
    fn derive(&mut self, _: &World) {}
}

impl Derived for Flavor {}
impl Derived for Operator {}
impl Derived for Developer {}
impl Derived for Cluster {}
impl Derived for Cloudlet {}

impl Derived for App {
    fn derive(&mut self, _: &World) {
        if self.deployment_manifest.is_empty() {
            self.deployment_generator = "kubernetes-basic".into();
            self.deployment_manifest = "kind: Service\n---\nkind: Deployment\n".into();
        }
        if self.deployment.is_empty() {
            self.deployment = "kubernetes".into();
        }
    }
}

impl Derived for ClusterInst {
    fn derive(&mut self, _: &World) {
        self.liveness = Liveness::Static.into();
        self.state = TrackedState::Ready.into();
        self.node_flavor = "flavor1".into();
        self.crm_override = 0;
    }
}

impl Derived for AppInst {
    fn complete(&mut self) {
        let key = self.key.as_mut().unwrap();
        let app = key.app_key.clone().unwrap();
        let cluster = key.cluster_inst_key.as_mut().unwrap();
        if cluster.developer.is_empty() {
            cluster.developer = app.developer_key.unwrap().name;
        }
    }

    fn derive(&mut self, world: &World) {
        self.complete();
        let cluster = self.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        let name = &mut cluster.cluster_key.as_mut().unwrap().name;
        if name.starts_with("autocluster") {
            *name = name.to_lowercase();
            let mut auto =
                ClusterInst { key: Some(cluster.clone()), auto: true, ..Default::default() };
            auto.derive(world);
            world.put(&auto);
        }
        if self.uri.is_empty() {
            self.uri = "tmus-cloud-1.tmus.mobiledgex.net".into();
        }
        self.mapped_ports = vec![
            AppPort { proto: 1, internal_port: 80, public_port: 80, ..Default::default() },
            AppPort { proto: 3, internal_port: 8443, public_port: 443, ..Default::default() },
        ];
        self.liveness = Liveness::Static.into();
        self.state = TrackedState::Ready.into();
        self.crm_override = 0;
    }
}

macro_rules! plain {
    ($api:ident, $object:ident, $create:ident, $update:ident, $delete:ident, $show:ident, $stream:ident) => {
        #[tonic::async_trait]
        impl $api for Fake {
            type $stream = Answers<$object>;

            async fn $show(&self, request: Request<$object>) -> Reply<Self::$stream> {
                self.0.shown(concat!("Show", stringify!($object)), &request)
            }

            async fn $create(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Create", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                object.derive(&self.0);
                self.0.create(&object, dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }

            async fn $update(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Update", stringify!($object)), &request)?;
                self.0.update(request.get_ref(), dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }

            async fn $delete(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Delete", stringify!($object)), &request)?;
                self.0.delete(request.get_ref(), dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }
        }
    };
}

macro_rules! streamed {
    ($api:ident, $object:ident, $create:ident, $update:ident, $delete:ident, $show:ident,
     $stream:ident, $creates:ident, $updates:ident, $deletes:ident, $lines:expr) => {
        #[tonic::async_trait]
        impl $api for Fake {
            type $stream = Answers<$object>;

            async fn $show(&self, request: Request<$object>) -> Reply<Self::$stream> {
                self.0.shown(concat!("Show", stringify!($object)), &request)
            }
            type $creates = Answers<Line>;
            type $updates = Answers<Line>;
            type $deletes = Answers<Line>;

            async fn $create(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Create", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                if dry {
                    self.0.create(&object, dry)?;
                } else {
                    object.derive(&self.0);
                    self.0.create(&object, dry)?;
                }
                let lines: &[&str] = &["Creating", "Ready", "Created successfully"];
                Ok(self.0.lines(if $lines { lines } else { &[] }, dry))
            }

            async fn $update(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Update", stringify!($object)), &request)?;
                self.0.update(request.get_ref(), dry)?;
                Ok(self.0.lines(if $lines { &["Updating", "Ready"] } else { &[] }, dry))
            }

            async fn $delete(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Delete", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                object.complete();
                self.0.delete(&object, dry)?;
                Ok(self.0.lines(if $lines { &["Deleting", "NotPresent"] } else { &[] }, dry))
            }
        }
    };
}

plain!(
    FlavorApi,
    Flavor,
    create_flavor,
    update_flavor,
    delete_flavor,
    show_flavor,
    ShowFlavorStream
);
plain!(
    OperatorApi,
    Operator,
    create_operator,
    update_operator,
    delete_operator,
    show_operator,
    ShowOperatorStream
);
plain!(
    DeveloperApi,
    Developer,
    create_developer,
    update_developer,
    delete_developer,
    show_developer,
    ShowDeveloperStream
);
plain!(
    ClusterApi,
    Cluster,
    create_cluster,
    update_cluster,
    delete_cluster,
    show_cluster,
    ShowClusterStream
);
plain!(AppApi, App, create_app, update_app, delete_app, show_app, ShowAppStream);
streamed!(
    CloudletApi,
    Cloudlet,
    create_cloudlet,
    update_cloudlet,
    delete_cloudlet,
    show_cloudlet,
    ShowCloudletStream,
    CreateCloudletStream,
    UpdateCloudletStream,
    DeleteCloudletStream,
    false
);
streamed!(
    ClusterInstApi,
    ClusterInst,
    create_cluster_inst,
    update_cluster_inst,
    delete_cluster_inst,
    show_cluster_inst,
    ShowClusterInstStream,
    CreateClusterInstStream,
    UpdateClusterInstStream,
    DeleteClusterInstStream,
    true
);
streamed!(
    AppInstApi,
    AppInst,
    create_app_inst,
    update_app_inst,
    delete_app_inst,
    show_app_inst,
    ShowAppInstStream,
    CreateAppInstStream,
    UpdateAppInstStream,
    DeleteAppInstStream,
    true
);

#[tonic::async_trait]
impl CloudletInfoApi for Fake {
    type ShowCloudletInfoStream = Answers<CloudletInfo>;

    async fn show_cloudlet_info(
        &self,
        request: Request<CloudletInfo>,
    ) -> Reply<Self::ShowCloudletInfoStream> {
        self.0.shown("ShowCloudletInfo", &request)
    }

    async fn inject_cloudlet_info(&self, request: Request<CloudletInfo>) -> Reply<Line> {
        let dry = self.0.note("InjectCloudletInfo", &request)?;
        if self.0.update(request.get_ref(), dry).is_err() {
            self.0.put(request.get_ref());
        }
        Ok(self.0.answer(Line::default(), dry))
    }

    async fn evict_cloudlet_info(&self, request: Request<CloudletInfo>) -> Reply<Line> {
        let dry = self.0.note("EvictCloudletInfo", &request)?;
        self.0.delete(request.get_ref(), dry)?;
        Ok(self.0.answer(Line::default(), dry))
    }
}

#[tonic::async_trait]
impl CloudletRefsApi for Fake {
    type ShowCloudletRefsStream = Answers<CloudletRefs>;

    async fn show_cloudlet_refs(
        &self,
        request: Request<CloudletRefs>,
    ) -> Reply<Self::ShowCloudletRefsStream> {
        self.0.shown("ShowCloudletRefs", &request)
    }
}

#[tonic::async_trait]
impl OperationService for Fake {
    type FollowOperationStream = Answers<OperationEvent>;

    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Reply<ListOperationsResponse> {
        let ListOperationsRequest { active, kind, .. } = request.into_inner();
        let mut operations = self.0.operations.lock().unwrap().clone();
        operations.retain(|it| kind.is_empty() || it.kind == kind);
        operations.retain(|it| !active || it.state == i32::from(State::Running));
        Ok(Response::new(ListOperationsResponse { operations }))
    }

    /// Three lines; then, if it failed, its error.
    async fn follow_operation(
        &self,
        request: Request<FollowOperationRequest>,
    ) -> Reply<Self::FollowOperationStream> {
        let operations = self.0.operations.lock().unwrap();
        let found = operations.iter().find(|it| it.id == request.get_ref().id);
        let work = found.ok_or_else(|| Status::not_found("there is no such operation"))?.clone();
        let mut events: Vec<Result<OperationEvent, Status>> =
            ["Creating", "Ready", "Created successfully"]
                .iter()
                .map(|&message| {
                    let operation = Some(work.clone());
                    Ok(OperationEvent { message: message.into(), operation })
                })
                .collect();
        if work.error_code != 0 {
            events.truncate(1);
            events.push(Err(Status::new(work.error_code.into(), work.error)));
        }
        Ok(Response::new(futures::stream::iter(events).boxed()))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Reply<CancelOperationResponse> {
        let mut operations = self.0.operations.lock().unwrap();
        let found = operations.iter_mut().find(|it| it.id == request.get_ref().id);
        let found = found.ok_or_else(|| Status::not_found("there is no such operation"))?;
        found.cancelling = true;
        Ok(Response::new(CancelOperationResponse { operation: Some(found.clone()) }))
    }
}

/// A running controller; gone when dropped.
pub(crate) struct Running {
    pub(crate) endpoint: String,
    pub(crate) world: Arc<World>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Plain text on a free port, open to everybody.
pub(crate) async fn start() -> Running {
    let world = Arc::new(World::default());
    let fake = Fake(world.clone());
    let routes = Routes::new(FlavorApiServer::new(fake.clone()))
        .add_service(OperatorApiServer::new(fake.clone()))
        .add_service(DeveloperApiServer::new(fake.clone()))
        .add_service(ClusterApiServer::new(fake.clone()))
        .add_service(AppApiServer::new(fake.clone()))
        .add_service(CloudletApiServer::new(fake.clone()))
        .add_service(CloudletInfoApiServer::new(fake.clone()))
        .add_service(CloudletRefsApiServer::new(fake.clone()))
        .add_service(ClusterInstApiServer::new(fake.clone()))
        .add_service(AppInstApiServer::new(fake.clone()))
        .add_service(OperationServiceServer::new(fake));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_routes(routes);
    let task = tokio::spawn(async move {
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    Running { endpoint, world, task }
}
