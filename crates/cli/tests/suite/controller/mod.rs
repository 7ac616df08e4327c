//! A controller that keeps objects in memory, does at once what it is told,
//! and remembers every call.

mod derived;
mod objects;
mod operations;

use std::{
    collections::{BTreeMap, HashMap},
    result::Result,
    sync::{Arc, Mutex},
};

use futures::{Stream, StreamExt};
use prost::{Message, Name};
use selvage_api::{
    edgeproto::{
        Result as Line, app_api_server::AppApiServer, app_inst_api_server::AppInstApiServer,
        cloudlet_api_server::CloudletApiServer, cloudlet_info_api_server::CloudletInfoApiServer,
        cloudlet_refs_api_server::CloudletRefsApiServer, cluster_api_server::ClusterApiServer,
        cluster_inst_api_server::ClusterInstApiServer, developer_api_server::DeveloperApiServer,
        flavor_api_server::FlavorApiServer, operator_api_server::OperatorApiServer,
    },
    object::{Filter, Key, Mask, Object, to_dynamic, without_fields},
    selvage::operations::{Operation, operation_service_server::OperationServiceServer},
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

/// State of the controller, and the calls that it got.
#[derive(Default)]
pub(crate) struct ControllerState {
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

impl ControllerState {
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
struct Fake(Arc<ControllerState>);

type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// A running controller; gone when dropped.
pub(crate) struct Running {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<ControllerState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Plain text on a free port, open to everybody.
pub(crate) async fn start() -> Running {
    let state = Arc::new(ControllerState::default());
    let fake = Fake(state.clone());
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
    Running { endpoint, state, task }
}
