//! One call to many nodes.
//!
//! Whoever serves with a [`Fanout`] as its relay is an entry: a caller names
//! nodes in the metadata of a call, and the entry makes the call there.
//!
//! 1. `proxyfrom`: the call has been relayed once. It is answered here, so
//!    that no call goes in circles.
//! 2. `nodes`, any number of them: the call is made at each, all at once. The
//!    answers are joined in the order of the request, each with its node in
//!    `metadata.hostname`, spelled as the caller spelled it. A node that fails
//!    has its reason in `metadata.error` and costs nobody else anything; it
//!    has as long as `node-timeout` (`500m`, `10S`, as gRPC writes time) says.
//!    Streams are passed on message by message as they come. Our own services
//!    end messages of text where a line ends, so lines stay whole.
//! 3. `node`, exactly one: the call is made there, and the answer comes back
//!    as it is.
//! 4. Else the call is for this process.
//!
//! A node is written as a name of the [`Directory`], or as the host or the IPv4
//! or IPv6 address of one that is there, either with or without a port. `all`
//! stands for all nodes of the directory, and `rack=3&role!=spare` for those
//! with such labels. This process itself is not called over the network, and a
//! node that is named twice is called once.
//!
//! # Who is believed
//!
//! The entry has authenticated the caller and has looked up in the access
//! table that it may call the method, before it asks anybody. It connects to
//! nodes as itself, by its own machine certificate, and never passes on the
//! caller's token or cookie. A controller tells the caller's name and roles in
//! [`relay::CALLER`] and is believed. An entry that is a node shows the token to
//! its controller and passes on what that signs, for each node by itself (the
//! reasons are at [`relay`]); nodes check that without the controller. They then
//! consult the same table again for the caller, so an entry that is wrong
//! about somebody's rights does not widen them. From anybody else the headers
//! are refused.

mod behalf;
mod gather;
mod headers;
mod inventory;
mod pool;
mod splice;
mod target;
mod wire;

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use http::HeaderMap;
use prost_reflect::Kind;
use selvage_api::Method;
use selvage_kit::{
    access::Effect,
    dial::Endpoint,
    labels::Selector,
    serve::{
        grpc_timeout,
        relay::{self, Answer, Call, Relay},
    },
};
use tokio::time::Instant;
use tonic::{Status, body::Body};

pub(crate) use self::behalf::{Joined, Own};
pub(crate) use self::wire::text;
pub use self::{
    behalf::AssertionSource,
    inventory::{Inventory, Machines},
    target::{BadEntry, Directory, StaticDirectory},
};
use self::{
    behalf::OnBehalf,
    gather::Round,
    headers::{NODE, NODE_TIMEOUT, NODES, PROXY_FROM, names, outgoing, within_limit},
    pool::Pool,
    wire::Route,
};

/// The port that the agents of the original listen on.
pub const DEFAULT_PORT: u16 = 50_000;

/// Stands for all nodes of the directory.
const ALL: &str = "all";
/// Settings of an entry.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Port of nodes that are written without one.
    pub port: u16,
    /// Names and addresses of this process, each `host` or `host:port`.
    pub own: Vec<String>,
    /// The port of this process, for those of `own` without one.
    pub own_port: u16,
    /// True if nodes may be named that the directory does not know, by host or
    /// address. Who may call can then find out what answers where.
    pub by_address: bool,
    /// Timeout of a node for a call that only reads.
    pub look_timeout: Duration,
    /// Timeout of a node for a call that changes something.
    pub change_timeout: Duration,
    /// Number of nodes called at the same time.
    pub at_once: usize,
    /// Time for which an unused connection is kept.
    pub idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            port: DEFAULT_PORT,
            own: Vec::new(),
            own_port: DEFAULT_PORT,
            by_address: false,
            look_timeout: Duration::from_secs(10),
            // Stopping something may take its whole grace time.
            change_timeout: Duration::from_secs(60),
            at_once: 256,
            idle: Duration::from_secs(15 * 60),
        }
    }
}

/// Takes calls to the nodes they name. Clones share their connections.
#[derive(Clone)]
pub struct Fanout(Arc<Inner>);

struct Inner {
    settings: Settings,
    own: HashSet<(String, u16)>,
    directory: Arc<dyn Directory>,
    pool: Pool,
    /// None of a controller, which is believed.
    source: Option<Arc<dyn AssertionSource>>,
}

impl std::fmt::Debug for Fanout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fanout").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Fanout {
    /// An entry that shows itself to nodes as a controller by this TLS
    /// configuration; without one it speaks in the clear, for laboratories.
    pub fn of_controller(
        settings: Settings,
        directory: Arc<dyn Directory>,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Self {
        Self::new(settings, directory, tls, None)
    }

    /// An entry that shows itself as a node, and has callers vouched for.
    pub fn of_node(
        settings: Settings,
        directory: Arc<dyn Directory>,
        tls: Option<Arc<rustls::ClientConfig>>,
        source: Arc<dyn AssertionSource>,
    ) -> Self {
        Self::new(settings, directory, tls, Some(source))
    }

    fn new(
        settings: Settings,
        directory: Arc<dyn Directory>,
        tls: Option<Arc<rustls::ClientConfig>>,
        source: Option<Arc<dyn AssertionSource>>,
    ) -> Self {
        let own = settings.own.iter().filter_map(|name| Endpoint::parse(name, settings.own_port));
        let own = own.map(|endpoint| (endpoint.host, endpoint.port)).collect();
        let pool = Pool::new(tls, settings.idle);
        Self(Arc::new(Inner { settings, own, directory, pool, source }))
    }

    /// Lets go of unused connections.
    pub fn sweep(&self) {
        self.0.pool.sweep();
    }

    /// Interval at which to do that.
    pub fn sweep_interval(&self) -> Duration {
        (self.0.settings.idle / 4).max(Duration::from_secs(1))
    }
}

impl Relay for Fanout {
    fn claims(&self, method: &Method, headers: &HeaderMap) -> bool {
        method.part == "node"
            && !headers.contains_key(PROXY_FROM)
            && (headers.contains_key(NODES) || headers.contains_key(NODE))
    }

    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let inner = Arc::clone(&self.0);
        async move {
            let nodes = names(call.request.headers(), NODES)?;
            if nodes.is_empty() {
                inner.to_one(call).await
            } else {
                inner.to_many(call, nodes).await
            }
        }
        .boxed()
    }
}

impl Inner {
    async fn to_one(&self, call: Call) -> Answer {
        let nodes = names(call.request.headers(), NODE)?;
        let [node] = nodes.as_slice() else {
            return Err(Status::invalid_argument("node metadata must be single-valued"));
        };
        if !is_relayed(call.method) {
            return Err(not_supported(call.method));
        }
        let timeout = self.timeout(&call)?;
        let (parts, body) = call.request.into_parts();
        let mut headers = outgoing(&parts.headers, left(call.deadline))?;
        if node == ALL || Selector::is_one(node) {
            return Err(Status::invalid_argument(format!(
                "node {node:?} stands for many: use nodes"
            )));
        }
        let target = self.locate(node).await?;
        let route = self.route(&target, &call.here)?;
        if let Route::There(_) = route {
            let behalf = self.on_behalf(&parts, &call.method.path, [&target]);
            in_time(timeout, behalf).await?.write(&mut headers, &target)?;
        }
        let mut request = wire::request(&call.method.path, headers, body)?;
        if let Route::Here(_) = route {
            *request.extensions_mut() = parts.extensions;
        }
        in_time(timeout, route.send(request)).await
    }

    async fn to_many(self: Arc<Self>, call: Call, nodes: Vec<String>) -> Answer {
        if !is_relayed(call.method) || !is_joinable(call.method) {
            return Err(not_supported(call.method));
        }
        let timeout = self.timeout(&call)?;
        let nodes = self.expand(nodes).await?;
        let mut targets = Vec::with_capacity(nodes.len());
        let mut seen = HashSet::new();
        for node in nodes {
            // An invalid name fails the whole call; an unknown machine fails
            // alone.
            let endpoint = match self.locate(&node).await {
                Err(status) if status.code() == tonic::Code::InvalidArgument => return Err(status),
                endpoint => endpoint,
            };
            let same = endpoint.as_ref().map_or(node.clone(), ToString::to_string);
            if seen.insert(same) {
                targets.push(gather::Target { name: node, endpoint });
            }
        }
        let method = call.method;
        let (parts, body) = call.request.into_parts();
        let deadline = if method.server_streaming { left(call.deadline) } else { Some(timeout) };
        let headers = outgoing(&parts.headers, deadline)?;
        let endpoints = targets.iter().filter_map(|target| target.endpoint.as_ref().ok());
        let behalf = in_time(timeout, self.on_behalf(&parts, &method.path, endpoints)).await;
        let behalf = behalf.unwrap_or_else(OnBehalf::Refused);
        let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
        let round = Round {
            inner: self,
            method,
            headers,
            behalf,
            extensions: parts.extensions,
            body,
            here: call.here,
            timeout,
        };
        if method.server_streaming { round.stream(targets) } else { round.join(targets).await }
    }

    /// Finds out how to speak for the caller at those that are elsewhere.
    async fn on_behalf<'a>(
        &self,
        request: &http::request::Parts,
        method: &str,
        targets: impl IntoIterator<Item = &'a Endpoint>,
    ) -> Result<OnBehalf, Status> {
        let elsewhere = targets.into_iter().filter(|endpoint| !self.is_here(endpoint));
        let machines = elsewhere.filter_map(|endpoint| endpoint.machine.clone()).collect();
        let source = self.source.as_deref();
        behalf::on_behalf(source, &request.headers, &request.extensions, method, machines).await
    }

    /// The nodes with what stands for many written out.
    async fn expand(&self, nodes: Vec<String>) -> Result<Vec<String>, Status> {
        let mut all = Vec::with_capacity(nodes.len());
        for node in nodes {
            let selector = match Selector::is_one(&node) {
                true => Some(Selector::parse(&node).map_err(|error| {
                    Status::new(error.code().grpc(), format!("invalid target: {error}"))
                })?),
                false if node == ALL => None,
                false => {
                    all.push(node);
                    continue;
                }
            };
            let chosen = self.directory.choose(selector.as_ref()).await?;
            if chosen.is_empty() {
                let text = format!("no machine is known that fits {node:?}");
                return Err(Status::not_found(text));
            }
            all.extend(chosen);
        }
        within_limit(&all).map(|()| all)
    }

    /// Returns the timeout of each node.
    fn timeout(&self, call: &Call) -> Result<Duration, Status> {
        let asked = match call.request.headers().get(NODE_TIMEOUT) {
            Some(value) => {
                Some(value.to_str().ok().and_then(grpc_timeout::parse).ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "{NODE_TIMEOUT} is not 1 to 8 digits and one of H, M, S, m, u, n"
                    ))
                })?)
            }
            None => None,
        };
        let default = match call.effect {
            Effect::Read | Effect::ReadSecret => self.settings.look_timeout,
            Effect::Write => self.settings.change_timeout,
        };
        Ok(within(asked.unwrap_or(default), left(call.deadline)))
    }

    async fn locate(&self, node: &str) -> Result<Endpoint, Status> {
        if let Some(endpoint) = self.directory.find(node).await? {
            return Ok(endpoint);
        }
        let endpoint = Endpoint::parse(node, self.settings.port)
            .ok_or_else(|| Status::invalid_argument(format!("invalid target {node:?}")))?;
        if let Some(known) = self.directory.at(&endpoint.host, endpoint.port).await? {
            return Ok(known);
        }
        if let Some(named) = self.directory.find(&endpoint.host).await? {
            if named.port == endpoint.port {
                return Ok(named);
            }
            // Ports of machines are not for callers to try.
            return Err(Status::not_found(format!(
                "machine {:?} does not answer on port {}: leave the port out",
                endpoint.host, endpoint.port
            )));
        }
        let ours = self.own.contains(&(endpoint.host.clone(), endpoint.port));
        if ours || self.settings.by_address {
            Ok(endpoint)
        } else {
            Err(Status::not_found(format!("no node is known that is called {node:?}")))
        }
    }

    fn is_here(&self, endpoint: &Endpoint) -> bool {
        endpoint.here || self.own.contains(&(endpoint.host.clone(), endpoint.port))
    }

    fn route(&self, endpoint: &Endpoint, here: &relay::Here) -> Result<Route, Status> {
        if self.is_here(endpoint) {
            Ok(Route::Here(Arc::clone(here)))
        } else {
            self.pool.channel(endpoint).map(Route::There)
        }
    }
}

/// A machine's first certificate is for itself to ask for.
fn is_relayed(method: &Method) -> bool {
    method.package != "securityapi"
}

/// Returns whether answers of several nodes can be told apart.
fn is_joinable(method: &Method) -> bool {
    let metadata = |message: &prost_reflect::MessageDescriptor| {
        message.get_field(1).is_some_and(|field| match field.kind() {
            Kind::Message(kind) => kind.full_name() == "common.Metadata" && !field.is_list(),
            _ => false,
        })
    };
    let listed = || {
        method.output.get_field(1).is_some_and(|field| match field.kind() {
            Kind::Message(kind) => field.is_list() && metadata(&kind),
            _ => false,
        })
    };
    let joined = if method.server_streaming { metadata(&method.output) } else { listed() };
    joined && !method.client_streaming
}

fn not_supported(method: &Method) -> Status {
    let path = &method.path;
    Status::invalid_argument(format!("one-2-many proxying is not supported for method {path}"))
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|at| at.saturating_duration_since(Instant::now()))
}

/// Share of a node in the time that is left: a caller in a hurry wants the
/// answers of those who made it, not none at all.
fn within(timeout: Duration, left: Option<Duration>) -> Duration {
    left.map_or(timeout, |left| timeout.min(left.mul_f32(0.9)))
}

async fn in_time<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        let text = format!("the node did not answer within {} ms", timeout.as_millis());
        Err(Status::deadline_exceeded(text))
    })
}

/// The body of a call with one message, framed as it came.
fn body_of(framed: bytes::Bytes) -> Body {
    Body::new(http_body_util::Full::new(framed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn answers_of_nodes_can_be_distinguished() {
        for method in selvage_api::methods().iter().filter(|method| method.part == "node") {
            let alone = ["Start", "Stop", "Certificate", "ReadFile", "WriteFile"];
            // Members of a cluster may be watched together; they are changed one at a time.
            let changes_member = method.service.starts_with("selvage.kubernetes.")
                && !["GetMember", "WatchMember"].contains(&method.name.as_str());
            let expected = !alone.contains(&method.name.as_str()) && !changes_member;
            assert_eq!(is_joinable(method), expected, "{}", method.path);
        }
    }

    #[test]
    fn a_caller_in_a_hurry_gets_those_who_made_it() {
        let (short, long) = (Duration::from_secs(3), Duration::from_secs(10));
        assert_eq!(within(short, None), short);
        assert_eq!(within(short, Some(long)), short);
        assert!(within(long, Some(short)) < short);
    }
}
