//! The one recipe by which every part is served.
//!
//! ```text
//! socket → TLS → HTTP/1 or HTTP/2 → front ─┬─ gRPC ──────────┐
//!                                          ├─ gRPC-Web ──────┤
//!                                          ├─ REST, Connect ─┴→ rpc → the parts' services
//!                                          └─ pages
//! ```
//! Whatever way a call comes in, it goes through `rpc` as gRPC: there it is
//! identified, authorised, limited, timed, audited and counted, once.

mod audit;
mod authority;
mod brief;
mod census;
mod credentials;
mod frame;
mod front;
mod guard;
mod intake;
mod listener;
mod pages;
mod reflection;
pub mod relay;
mod request_id;
mod rpc;
mod watched;
mod web_socket;
mod web_text;

use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService};
use tower::Service;

pub use selvage_transcode::grpc_timeout;

#[doc(hidden)]
pub use self::authority::fuzz;
pub use self::{
    authority::Lenient,
    credentials::{SESSION_COOKIE, UNATTENDED},
    frame::MAX_MESSAGE,
    front::AUTHORITY,
    listener::Socket,
    rpc::{Attention, Standing, Trust},
    web_socket::{SocketHandler, WebSocket, WebSocketPage},
};
use crate::{access::Access, telemetry::Metrics};

/// Limits of a listener.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Calls with one reply that may run at the same time.
    pub calls_in_flight: usize,
    /// Streams that may be open at the same time.
    pub streams_in_flight: usize,
    /// Streams that one HTTP/2 connection may have open.
    pub streams_per_connection: u32,
    /// Connections that may be open; beyond it the most silent is closed.
    pub connections: usize,
    /// Timeout of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Timeout of the first request of a connection, and of the head of each.
    pub header_timeout: Duration,
    /// Timeout of the body of a request that is not a stream.
    pub body_timeout: Duration,
    /// After how long a connection without calls is closed.
    pub idle_timeout: Duration,
    /// Interval at which callers of open streams are checked again: whether
    /// they are still known and may still do it.
    pub recheck: Duration,
    /// Longest time that calls in flight may go on when the listener stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_in_flight: 1024,
            streams_in_flight: 16_384,
            streams_per_connection: 256,
            connections: 16_384,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            recheck: Duration::from_secs(15),
            drain: Duration::from_secs(10),
        }
    }
}

impl Limits {
    fn idle(&self, requests_so_far: u64) -> Duration {
        if requests_so_far == 0 { self.header_timeout } else { self.idle_timeout }
    }
}

/// The gRPC services of the parts that this process runs.
#[derive(Default)]
pub struct Services {
    routes: tonic::service::RoutesBuilder,
    names: HashSet<String>,
}

impl Services {
    /// Adds a generated server.
    pub fn add<S>(&mut self, service: S)
    where
        S: Service<Request<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        self.names.insert(S::NAME.to_owned());
        self.routes.add_service(service);
    }

    /// Full names of the services that were added.
    pub fn names(&self) -> &HashSet<String> {
        &self.names
    }
}

/// Cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The access table is not right.
    #[error("access table")]
    Access(#[from] crate::access::TableError),
}

/// Everything that a listener serves. Cheap to clone: several listeners may
/// serve the same.
#[derive(Clone)]
pub struct Server {
    routes: axum::Router,
    served: HashSet<String>,
    pages: axum::Router,
    /// Nobody else has a page at `/`.
    leads_to_docs: bool,
    access: Arc<Access>,
    metrics: Metrics,
    limits: Limits,
    origins: Arc<[String]>,
    health: Health,
    ready: Option<Readiness>,
    relay: Option<Arc<dyn relay::Relay>>,
    metrics_pages: Vec<(&'static str, MetricsPage)>,
    web_sockets: Vec<(&'static str, WebSocketPage)>,
}

/// Makes a page in the text format of Prometheus.
pub type MetricsPage = Arc<dyn Fn() -> BoxFuture<'static, Bytes> + Send + Sync>;

/// Tells why this process cannot do its work, as long as it cannot.
pub type Readiness = watch::Receiver<Result<(), String>>;

/// State of the gRPC health service.
#[derive(Clone)]
pub struct Health(tonic_health::server::HealthReporter);

impl Health {
    /// Says of all these services whether they serve.
    async fn set(&self, services: &HashSet<String>, status: tonic_health::ServingStatus) {
        for name in services.iter().map(String::as_str).chain([""]) {
            self.0.set_service_status(name, status).await;
        }
    }

    /// Says what `ready` says, for as long as it says something.
    async fn follow(&self, services: &HashSet<String>, mut ready: Readiness) {
        loop {
            let status = match *ready.borrow_and_update() {
                Ok(()) => tonic_health::ServingStatus::Serving,
                Err(_) => tonic_health::ServingStatus::NotServing,
            };
            self.set(services, status).await;
            if ready.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Server {
    /// A server of these services. Health and reflection come with them.
    pub async fn new(services: Services, metrics: Metrics, limits: Limits) -> Result<Self, Error> {
        let access = Arc::new(Access::load()?);
        let Services { mut routes, names } = services;
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let health = Health(reporter);
        health.set(&names, tonic_health::ServingStatus::Serving).await;
        routes.add_service(health_service);
        let (reflection, before_it_was_final) = reflection::services();
        routes.add_service(reflection);
        routes.add_service(before_it_was_final);
        Ok(Self {
            routes: routes.routes().prepare().into_axum_router(),
            served: names,
            pages: axum::Router::new(),
            leads_to_docs: true,
            access,
            metrics,
            limits,
            origins: Arc::from([]),
            health,
            ready: None,
            relay: None,
            metrics_pages: Vec::new(),
            web_sockets: Vec::new(),
        })
    }

    /// Adds plain pages.
    pub fn pages(mut self, pages: axum::Router) -> Self {
        self.pages = self.pages.merge(pages);
        self
    }

    /// Adds plain pages, among them the one at `/`, which else leads to the
    /// page about the API.
    pub fn home(mut self, pages: axum::Router) -> Self {
        self.leads_to_docs = false;
        self.pages(pages)
    }

    /// Adds a page of metrics beside `/metrics`, for those who may see that.
    pub fn metrics_page(mut self, path: &'static str, page: MetricsPage) -> Self {
        self.metrics_pages.push((path, page));
        self
    }

    /// Adds a place where web sockets are opened.
    pub fn web_socket(mut self, path: &'static str, page: WebSocketPage) -> Self {
        self.web_sockets.push((path, page));
        self
    }

    /// Origins whose pages may call us from a browser, with a token.
    pub fn origins(mut self, origins: Vec<String>) -> Self {
        self.origins = origins.into();
        self
    }

    /// Says whether this process can do its work, to `/readiness` and to
    /// gRPC's health. Until told otherwise it can.
    pub fn ready(mut self, ready: Readiness) -> Self {
        self.ready = Some(ready);
        self
    }

    /// Takes calls that are meant for other processes there.
    pub fn relay(mut self, relay: Arc<dyn relay::Relay>) -> Self {
        self.relay = Some(relay);
        self
    }

    /// Serves a socket until told to stop, then drains.
    pub async fn run(self, socket: Socket, trust: Trust, stop: CancellationToken) {
        let intake = intake::Intake::bodies();
        let now = CancellationToken::new();
        let stopping = rpc::Stopping { soon: Arc::new(stop.clone()), now: Arc::new(now.clone()) };
        let authenticator = match &trust {
            Trust::Credentials(authenticator) => Some(Arc::clone(authenticator)),
            Trust::Socket | Trust::Everybody => None,
        };
        let rpc = rpc::Rpc::new(&self, trust, intake.clone(), stopping);
        let pages = pages::router(
            rpc.clone(),
            self.metrics.clone(),
            self.ready.clone(),
            self.metrics_pages,
            self.leads_to_docs,
        );
        let pages = pages.merge(pages::web_sockets(&rpc, self.web_sockets));
        let pages = pages.merge(self.pages);
        let front = front::Front::new(rpc, pages, self.origins, self.limits.body_timeout, intake);
        // Streams without end get the last part of the drain time to be told.
        let drain_timeout = self.limits.drain.mul_f32(0.8);
        let (limits, metrics) = (self.limits, self.metrics);
        let listener = listener::Listener { front, limits, metrics, authenticator };
        let telling = async {
            if let Some(ready) = self.ready {
                let _ = stop.run_until_cancelled(self.health.follow(&self.served, ready)).await;
            }
            stop.cancelled().await;
            self.health.set(&self.served, tonic_health::ServingStatus::NotServing).await;
            tokio::time::sleep(drain_timeout).await;
            now.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = listener.run(socket, stop.clone()) => {}
            () = telling => {}
        }
    }
}

/// Status for the caller of a defect of ours. The log has the rest.
fn internal_error() -> Status {
    Status::internal("internal error: the server's log has the details")
}
