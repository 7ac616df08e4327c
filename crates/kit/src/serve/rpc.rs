//! The inner stack that every call goes through, whatever protocol it came
//! in by: identity, access, room, deadline, and how it ended.

mod attention;
mod deadline;
mod standing;

use std::{
    collections::HashSet,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Request, Response, request};
use selvage_api::Method;
use selvage_transcode::PROTOCOL_HEADER;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body};
use tower::{Service, ServiceExt};
use tracing::Instrument;

pub use self::attention::Attention;
use self::deadline::deadline_of;
pub(super) use self::standing::Revoked;
pub use self::standing::Standing;
use super::{
    Limits, Server, audit, brief, credentials, frame,
    intake::{Intake, Ticket},
    internal_error,
    relay::{self, OnBehalf},
    request_id::RequestId,
    watched,
};
use crate::{
    access::{Access, Decision, Denied, Effect, Rule},
    identity::{
        Connection, Credentials, Identity, Kind, Peer, Refused, SharedAuthenticator, ShownAssertion,
    },
    telemetry::{Metrics, Protocol},
};

/// Services besides the contracts that answer on every listener and to
/// everybody: they tell nothing that is not published.
const INFRASTRUCTURE: [&str; 2] = ["/grpc.health.v1.", "/grpc.reflection."];

/// The one of them that has a single short answer.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Whom the listener believes.
#[derive(Clone)]
pub enum Trust {
    /// Callers show credentials, which this tells apart.
    Credentials(SharedAuthenticator),
    /// Whoever may open the unix socket may do everything.
    Socket,
    /// Everybody may do everything. For laboratories.
    Everybody,
}

/// The calls of all protocols, as gRPC.
#[derive(Clone)]
pub(super) struct Rpc {
    routes: axum::Router,
    shared: Arc<Shared>,
}

struct Shared {
    access: Arc<Access>,
    trust: Trust,
    metrics: Metrics,
    /// Full names of the services that the routes serve.
    served: HashSet<String>,
    limits: Limits,
    calls: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Streams of infrastructure of strangers. Anybody may open them, so they
    /// get no part of the room for others, and nobody gets all.
    infrastructure: Intake,
    intake: Intake,
    stopping: Stopping,
    relay: Option<Arc<dyn relay::Relay>>,
}

/// The end of the listener, as calls see it. Each has a token for itself only
/// when it has to wait: making one takes a lock that all calls have in common.
#[derive(Clone)]
pub(super) struct Stopping {
    /// No more connections are taken.
    pub(super) soon: Arc<CancellationToken>,
    /// Streams that are still open are ended with a status.
    pub(super) now: Arc<CancellationToken>,
}

impl Rpc {
    pub(super) fn new(server: &Server, trust: Trust, intake: Intake, stopping: Stopping) -> Self {
        let limits = server.limits.clone();
        let calls = Arc::new(Semaphore::new(limits.calls_in_flight));
        let streams = Arc::new(Semaphore::new(limits.streams_in_flight));
        let shared = Shared {
            access: Arc::clone(&server.access),
            trust,
            metrics: server.metrics.clone(),
            served: server.served.clone(),
            limits,
            calls,
            streams,
            infrastructure: Intake::streams(),
            intake,
            stopping,
            relay: server.relay.clone(),
        };
        Self { routes: server.routes.clone(), shared: Arc::new(shared) }
    }

    /// The caller of a plain HTTP page, by the same rules as for a method
    /// that reads.
    pub(super) async fn identify(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Result<Identity, Status> {
        self.shared.identify(headers, connection, Effect::Read, false).await
    }

    /// The same for one through which something is changed.
    pub(super) async fn identify_to_change(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Result<Identity, Status> {
        self.shared.identify(headers, connection, Effect::Write, false).await
    }

    /// The caller of a web socket, to be looked at again.
    pub(super) fn standing(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
        caller: &Identity,
    ) -> Standing {
        Standing::of_socket(&self.shared, headers, connection, caller)
    }

    pub(super) async fn handle(self, mut request: Request<Body>) -> Response<Body> {
        let id = RequestId::of(request.headers());
        request.extensions_mut().insert(id.clone());
        let mut response = self.respond(request, &id).await;
        brief::shorten(response.headers_mut());
        id.write(response.headers_mut());
        response
    }

    async fn respond(self, request: Request<Body>, id: &RequestId) -> Response<Body> {
        let started = Instant::now();
        let shared = Arc::clone(&self.shared);
        let protocol = protocol_of(request.headers());
        let path = request.uri().path();
        let call = shared.metrics.call(path, protocol);
        let deadline = match deadline_of(request.headers(), started) {
            Ok(deadline) => deadline,
            Err(status) => {
                call.finish(selvage_api::Code::from_grpc(status.code()));
                return status.into_http();
            }
        };
        let span = tracing::info_span!(
            "call",
            method = path.trim_start_matches('/'),
            protocol = protocol.name(),
            request_id = id.as_str()
        );
        let rule = shared.access.rule(path);
        let stop = if rule.is_some() { &shared.stopping.now } else { &shared.stopping.soon };
        match self.run(request, rule, protocol, deadline).instrument(span).await {
            Ok((response, held, revoked)) => {
                watch(response, deadline, revoked, stop, move |code| {
                    call.finish(selvage_api::Code::from_grpc(code));
                    held.release(code);
                })
            }
            Err(status) => {
                call.finish(selvage_api::Code::from_grpc(status.code()));
                status.into_http()
            }
        }
    }

    async fn run(
        self,
        request: Request<Body>,
        rule: Option<&Rule>,
        protocol: Protocol,
        deadline: Option<Instant>,
    ) -> Result<(Response<Body>, CallResources, Option<Revoked>), Status> {
        let (mut parts, body) = request.into_parts();
        let Some(rule) = rule else {
            let (response, held) = self.run_infrastructure(parts, body, deadline).await?;
            return Ok((response, held, None));
        };
        Standing::offer(&self.shared, rule, &mut parts);
        let admitted = within(deadline, self.shared.admit(parts, body, rule, protocol)).await?;
        let Admitted { request, held } = admitted;
        let standing = Standing::of(&self.shared, rule, &request);
        let attention = standing.as_ref().map(Standing::attention);
        let revoked = standing.map(Standing::watched);
        let request = request.map(|body| {
            if !rule.method.client_streaming {
                return body;
            }
            let limited = frame::Limited::new(body).until(revoked.clone());
            Body::new(limited.noticed_by(attention))
        });
        let answered = self.answer(rule, request, deadline);
        match unless(revoked.clone(), answered).await {
            Ok(response) => Ok((response, held, revoked)),
            Err(status) => {
                held.release(status.code());
                Err(status)
            }
        }
    }

    async fn run_infrastructure(
        self,
        parts: request::Parts,
        body: Body,
        deadline: Option<Instant>,
    ) -> Result<(Response<Body>, CallResources), Status> {
        let path = parts.uri.path();
        if !INFRASTRUCTURE.iter().any(|prefix| path.starts_with(prefix)) {
            return Err(Status::unimplemented(format!(
                "unknown method {}: `selvage api list` names those there are",
                path.trim_start_matches('/').chars().take(200).collect::<String>()
            )));
        }
        let permit = if path == HEALTH_CHECK {
            Permit::Room { _permit: take(&self.shared.calls, "calls")? }
        } else {
            self.shared.infrastructure_stream(&parts).await?
        };
        let request = Request::from_parts(parts, Body::new(frame::Limited::new(body)));
        let response = self.call_routes(request, deadline).await?;
        Ok((response, CallResources { _permit: permit, audit: None }))
    }

    /// Answers here, or takes the call to those it is meant for.
    async fn answer(
        self,
        rule: &Rule,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        let (method, effect) = (rule.method, rule.effect);
        let relay = self.shared.relay.clone();
        let relay = relay.filter(|relay| relay.claims(method, request.headers()));
        let Some(relay) = relay else { return self.answer_here(method, request, deadline).await };
        let here: relay::Here =
            Arc::new(move |request| Box::pin(self.clone().answer_here(method, request, deadline)));
        let call = relay::Call { method, effect, request, deadline, here };
        within(deadline, relay.call(call)).await
    }

    async fn answer_here(
        self,
        method: &'static Method,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        if self.shared.served.contains(&method.service) {
            self.call_routes(request, deadline).await
        } else {
            Err(not_built(method))
        }
    }

    async fn call_routes(
        self,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        let metrics = self.shared.metrics.clone();
        let call = AssertUnwindSafe(self.routes.oneshot(request)).catch_unwind();
        match within(deadline, call.map(Ok)).await? {
            Ok(Ok(mut response)) => {
                // Relays put the texts of many into one answer.
                brief::shorten(response.headers_mut());
                Ok(response.map(Body::new))
            }
            Ok(Err(never)) => match never {},
            Err(_panic) => {
                metrics.panic();
                Err(internal_error())
            }
        }
    }
}

impl Service<Request<Body>> for Rpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(request).await) })
    }
}

/// A call that has passed every check.
struct Admitted {
    request: Request<Body>,
    held: CallResources,
}

/// Room that is given back when this is dropped.
enum Permit {
    /// Of the room for known callers.
    Room { _permit: OwnedSemaphorePermit },
    /// Of the room for strangers.
    Stranger { _ticket: Ticket },
}

/// Resources of a call until its end.
struct CallResources {
    _permit: Permit,
    audit: Option<audit::Entry>,
}

impl CallResources {
    fn release(self, code: Code) {
        if let Some(audit) = self.audit {
            audit.write(code);
        }
    }
}

impl Shared {
    async fn admit(
        &self,
        mut parts: request::Parts,
        body: Body,
        rule: &Rule,
        protocol: Protocol,
    ) -> Result<Admitted, Status> {
        let connection = parts.extensions.get::<Connection>().cloned().ok_or_else(|| {
            tracing::error!("request without a connection");
            internal_error()
        })?;
        let caller =
            self.identify(&parts.headers, &connection, rule.effect, rule.open_to_anyone()).await?;
        let peer = &connection.peer;
        let behalf = self.on_behalf(&caller, &parts.headers, rule, false).await;
        let behalf = behalf.map_err(|denied| refused(&rule.path, &caller, peer, &denied))?;
        let caller = behalf.unwrap_or(caller);
        let refuse = |denied: Denied| match rule.audits_refusal_of(&caller) {
            true => refused(&rule.path, &caller, peer, &denied),
            false => Status::new(denied.code.grpc(), denied.message),
        };
        rule.decide_early(&caller).map_err(refuse)?;
        let (body, message) = if rule.method.client_streaming {
            (body, Bytes::new())
        } else {
            let received = self.read_message(&parts.headers, body, &caller, peer).await?;
            parts.headers.remove(frame::ENCODING);
            let message = received.message();
            let body = match rule.decide(&caller, &message).map_err(refuse)? {
                Decision::Allow => received.into_body(&[]),
                Decision::Narrow(appended) => received.into_body(&appended),
            };
            (body, message)
        };
        // Room is taken when there is something to do, not while it is on its
        // way: nobody can hold it with a request that does not come.
        let streams = rule.method.client_streaming || rule.method.server_streaming;
        let permit =
            if streams { take(&self.streams, "streams")? } else { take(&self.calls, "calls")? };
        let audit = (rule.effect == Effect::Write)
            .then(|| audit::Entry::new(rule.method, &message, &caller, &connection.peer, protocol))
            .map(|entry| entry.with_id(parts.extensions.get::<RequestId>()));
        parts.extensions.insert(caller);
        let held = CallResources { _permit: Permit::Room { _permit: permit }, audit };
        Ok(Admitted { request: Request::from_parts(parts, body), held })
    }

    /// Caller for whom the peer calls, if it calls for another and may. A call
    /// that goes on is looked at again.
    async fn on_behalf(
        &self,
        peer: &Identity,
        headers: &HeaderMap,
        rule: &Rule,
        goes_on: bool,
    ) -> Result<Option<Identity>, Denied> {
        let shown = match relay::on_behalf(peer, headers, rule)? {
            OnBehalf::Nobody => return Ok(None),
            OnBehalf::Named(caller) => return Ok(Some(caller)),
            OnBehalf::Asserted(shown) => ShownAssertion { goes_on, ..shown },
        };
        let Trust::Credentials(authenticator) = &self.trust else { return Ok(None) };
        let caller = authenticator.authenticate(&Credentials::Assertion(shown)).await;
        caller.map(Some).map_err(|Refused { code, message }| Denied { code, message })
    }

    /// Room for a stream of infrastructure: known callers have that of all
    /// streams, strangers a little of their own.
    async fn infrastructure_stream(&self, parts: &request::Parts) -> Result<Permit, Status> {
        let connection = parts.extensions.get::<Connection>().ok_or_else(internal_error)?;
        let caller = self.identify(&parts.headers, connection, Effect::Read, true).await?;
        if caller.is_person() || matches!(caller.kind, Kind::Machine(_)) {
            return Ok(Permit::Room { _permit: take(&self.streams, "streams")? });
        }
        let ticket = self.infrastructure.admit(&connection.peer)?;
        Ok(Permit::Stranger { _ticket: ticket })
    }

    async fn read_message(
        &self,
        headers: &HeaderMap,
        body: Body,
        caller: &Identity,
        peer: &Peer,
    ) -> Result<frame::Received, Status> {
        let unknown = caller.kind == Kind::Anonymous;
        let room = || if unknown { self.intake.admit(peer).map(Some) } else { Ok(None) };
        let (coding, limit) = (frame::coding(headers), frame::limit_of(caller));
        frame::read_message(body, coding, limit, self.limits.body_timeout, room).await
    }

    async fn identify(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
        effect: Effect,
        open_to_anyone: bool,
    ) -> Result<Identity, Status> {
        let attended = !headers.contains_key(credentials::UNATTENDED);
        let asked = IdentifyFor { effect, open_to_anyone, attended };
        self.identify_as(headers, connection, asked).await
    }

    async fn identify_as(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
        asked: IdentifyFor,
    ) -> Result<Identity, Status> {
        let IdentifyFor { effect, open_to_anyone, attended } = asked;
        let authenticator = match &self.trust {
            Trust::Everybody if credentials::from_this_machine(headers) => {
                return Ok(Identity::all_powerful("insecure", Kind::Insecure));
            }
            Trust::Everybody => {
                return Err(Status::permission_denied(
                    "cross-site request refused: --insecure serves this machine's own names only",
                ));
            }
            Trust::Socket => return Ok(Identity::all_powerful("local", Kind::Local)),
            Trust::Credentials(authenticator) => authenticator,
        };
        let shown = match credentials::shown(headers, effect) {
            Ok(shown) => shown,
            Err(_) if open_to_anyone => None,
            Err(denied) => {
                return Err(refused("", &Identity::anonymous(), &connection.peer, &denied));
            }
        };
        let of_connection = || connection.person.clone().map(Credentials::Certificate);
        if let Some(shown) = shown.or_else(of_connection) {
            let found = match attended {
                true => authenticator.authenticate(&shown).await,
                false => authenticator.recheck(&shown).await,
            };
            match found {
                Ok(identity) => return Ok(identity),
                // Somebody with a token that has ended must be able to log in.
                Err(_) if open_to_anyone => {}
                Err(error) => {
                    let denied = Denied { code: error.code, message: error.message };
                    return Err(refused("", &Identity::anonymous(), &connection.peer, &denied));
                }
            }
        }
        let Some(machine) = &connection.machine else { return Ok(Identity::anonymous()) };
        let identity = Identity::machine(machine.clone());
        let shown = connection.certificate.as_ref();
        let denied = if !authenticator.machine_allowed(machine) {
            Denied {
                code: selvage_api::Code::PermissionDenied,
                message: format!("not authorized: {machine} is blocked"),
            }
        } else if shown.is_some_and(|shown| !authenticator.certificate_allowed(shown)) {
            Denied {
                code: selvage_api::Code::Unauthenticated,
                message: "the CA of the certificate is not believed any more: connect again".into(),
            }
        } else {
            return Ok(identity);
        };
        Err(refused("", &identity, &connection.peer, &denied))
    }
}

/// Purpose that a caller is identified for.
#[derive(Clone, Copy)]
struct IdentifyFor {
    effect: Effect,
    /// Returns nobody, not an error, for credentials that are not good.
    open_to_anyone: bool,
    /// Counts as a use of the credentials.
    attended: bool,
}

/// Says no, and that it was said.
fn refused(path: &str, caller: &Identity, peer: &Peer, denied: &Denied) -> Status {
    let who = if caller.name.is_empty() { "nobody" } else { &caller.name };
    let method = path.trim_start_matches('/');
    tracing::info!(
        target: "audit", method, who, %peer, code = %denied.code, why = denied.message, "refused"
    );
    Status::new(denied.code.grpc(), denied.message.clone())
}

fn take(semaphore: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Status> {
    semaphore.clone().try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(format!("too many {what} in flight: try again in a moment"))
    })
}

/// Runs it, but not past the deadline; what is late already is not begun.
async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let too_late = || Status::deadline_exceeded("deadline exceeded");
    match deadline {
        None => work.await,
        Some(at) if at <= Instant::now() => Err(too_late()),
        Some(at) => tokio::time::timeout_at(at, work).await.unwrap_or_else(|_| Err(too_late())),
    }
}

/// Runs it, but not past the right to it.
async fn unless<T>(
    revoked: Option<Revoked>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(revoked) = revoked else { return work.await };
    tokio::select! {
        done = work => done,
        status = revoked => Err(status),
    }
}

fn not_built(method: &Method) -> Status {
    Status::unimplemented(format!(
        "{} is part of the contract, but the {} part that answers it is not running here",
        method.path.trim_start_matches('/'),
        method.part
    ))
}

fn watch(
    response: Response<Body>,
    deadline: Option<Instant>,
    revoked: Option<Revoked>,
    stop: &Arc<CancellationToken>,
    on_end: impl FnOnce(Code) + Send + 'static,
) -> Response<Body> {
    // A reply that is all headers has its status there.
    if let Some(code) = watched::status_code(response.headers()) {
        on_end(code);
        return response;
    }
    let stop = Arc::clone(stop);
    response.map(|body| {
        let watched = watched::Watched::new(body, deadline, stop, Box::new(on_end));
        Body::new(watched.until(revoked))
    })
}

fn protocol_of(headers: &HeaderMap) -> Protocol {
    match headers.get(PROTOCOL_HEADER).map(|value| value.as_bytes()) {
        Some(b"rest") => Protocol::Rest,
        Some(b"connect") => Protocol::Connect,
        Some(b"grpc-web") => Protocol::GrpcWeb,
        _ => Protocol::Grpc,
    }
}
