//! The upper end: many peers connect to it.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use parking_lot::Mutex;
use prost::{Message, Name};
use selvage_kit::identity::{Connection, Identity};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming, body::Body, server::NamedService};

use crate::{
    Error, Exchange, Gate, IdentityGate, Lineage, PeerInfo, Role, StatsSnapshot, Stream,
    codec::NoticeCodec,
    frame::{Action, Frame, MAX_NOTICE, VERSION},
    hub::{Hub, Liveness, Offer, Peer, PeerSetup},
    receiver::Receiver,
    sender::Sender,
    stats::Stats,
};

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Permissions of peers. By certificate unless set otherwise.
    pub gate: Arc<dyn Gate>,
    /// Timeout of a peer's opening with its version.
    pub negotiation: Duration,
    /// Timeout after which the end of sending everything no longer waits for a
    /// peer with a filter to say which cloudlets it has.
    pub hold_back: Duration,
    /// Time within which a peer that has silently gone, as by a cut cable, is
    /// noticed. Peers that cannot send heartbeats are noticed by their
    /// connection only.
    pub peer_timeout: Duration,
    /// Names the history that the revisions of the sources count. Servers
    /// with the same sources have the same; at random, and so good for
    /// nobody else, unless said otherwise. 0 for no revisions.
    pub epoch: u64,
    /// Instead of one epoch, where histories outlive the server.
    pub lineage: Option<Arc<dyn Lineage>>,
    /// The `notify_id` of the first stream, others follow. At random, so that
    /// no two servers and no two lives of one give the same.
    pub first_id: i64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            gate: Arc::new(IdentityGate),
            negotiation: Duration::from_secs(5),
            hold_back: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(10),
            epoch: rand::random::<u64>().max(1),
            lineage: None,
            first_id: rand::random_range(1..=i64::MAX / 2),
        }
    }
}

impl ServerOptions {
    fn epoch(&self) -> u64 {
        self.lineage.as_ref().map_or(self.epoch, |lineage| lineage.epoch())
    }

    /// Signs of life on the stream of a peer with this VERSION.
    fn liveness(&self, version: &Frame) -> Liveness {
        Liveness { heartbeat: None, silence: version.heartbeats.then_some(self.peer_timeout) }
    }

    /// Interval at which a peer is to send something: so that one notice may come
    /// late, and no more often, for there are many peers.
    fn heartbeat_ms(&self, liveness: Liveness) -> u32 {
        let interval = liveness.silence.map(|silence| (silence * 9 / 20).as_millis().max(1));
        interval.and_then(|interval| u32::try_from(interval).ok()).unwrap_or(0)
    }

    /// See [`Lineage::end`].
    fn end(&self, epoch: u64) -> Option<i64> {
        match &self.lineage {
            _ if epoch == 0 => None,
            Some(lineage) => lineage.end(epoch),
            None => (epoch == self.epoch).then_some(i64::MAX),
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("negotiation", &self.negotiation)
            .field("hold_back", &self.hold_back)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// One peer, for a status page.
#[derive(Debug, Clone)]
pub struct PeerStatus {
    /// The `notify_id` of its stream.
    pub id: i64,
    /// Address of the peer.
    pub address: String,
    /// Name of the peer.
    pub name: String,
    /// The protocol version in use.
    pub version: u32,
    /// True if it gets only what concerns its cloudlets.
    pub filtered: bool,
    /// Canonical texts of the keys of its cloudlets, of a filtered peer.
    pub cloudlets: Vec<String>,
    /// Counters of the stream.
    pub stats: StatsSnapshot,
}

/// The upper end. Clones are handles of the same one.
#[derive(Clone)]
pub struct NotifyServer {
    shared: Arc<Shared>,
}

struct Shared {
    hub: Arc<Hub>,
    options: ServerOptions,
    next_id: AtomicI64,
    /// Counters of streams that have ended.
    past: Mutex<StatsSnapshot>,
    streams: TaskTracker,
    closed: tokio_util::sync::CancellationToken,
}

impl fmt::Debug for NotifyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotifyServer").field("exchange", &self.shared.hub.exchange).finish()
    }
}

impl NotifyServer {
    /// A server of this exchange.
    pub fn new(exchange: Exchange, options: ServerOptions) -> Self {
        let shared = Shared {
            hub: Hub::new(exchange, true),
            next_id: AtomicI64::new(options.first_id),
            options,
            past: Mutex::default(),
            streams: TaskTracker::new(),
            closed: tokio_util::sync::CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// `edgeproto.NotifyApi` for a listener.
    pub fn service(&self) -> NotifyService {
        NotifyService { server: self.clone() }
    }

    /// Queues a message for every peer that wants its type and has said that it
    /// has the cloudlet the message is about. How many peers that is.
    pub fn post<M: Message + Name>(&self, message: &M) -> Result<usize, Error> {
        self.shared.hub.post(&M::full_name(), &message.encode_to_vec().into())
    }

    /// The peers that are connected.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let hub = &self.shared.hub;
        let status = |peer: Arc<Peer>| PeerStatus {
            id: peer.stream.id,
            address: peer.stream.peer.address.clone(),
            name: peer.stream.peer.identity.name.clone(),
            version: peer.version,
            filtered: peer.filtered,
            cloudlets: peer.cloudlets().iter().map(ToString::to_string).collect(),
            stats: peer.stats.snapshot(&hub.exchange),
        };
        hub.peers().into_iter().map(status).collect()
    }

    /// Returns the counters of all streams since the start.
    pub fn totals(&self) -> StatsSnapshot {
        let mut totals = self.shared.past.lock().clone();
        for peer in self.shared.hub.peers() {
            totals.add(&peer.stats.snapshot(&self.shared.hub.exchange));
        }
        totals
    }

    /// Ends one stream. The peer may connect again.
    pub fn disconnect(&self, id: i64) {
        for peer in self.shared.hub.peers().iter().filter(|peer| peer.stream.id == id) {
            peer.stream.disconnect();
        }
    }

    /// Ends all streams, takes no more, and returns when what they left has
    /// been cleaned up.
    pub async fn close(&self) {
        self.shared.closed.cancel();
        for peer in self.shared.hub.peers() {
            peer.end(Some(Status::unavailable("the server is shutting down")));
        }
        self.shared.streams.close();
        self.shared.streams.wait().await;
    }

    async fn open(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<BoxStream<'static, Result<Frame, Status>>>, Status> {
        let (shared, options) = (&self.shared, &self.shared.options);
        if shared.closed.is_cancelled() {
            return Err(Status::unavailable("the server is shutting down"));
        }
        let info = peer_info(&request);
        options.gate.admit(&info.identity).map_err(Status::permission_denied)?;
        let mut notices = request.into_inner();
        let negotiated = negotiate(&mut notices, options.negotiation).await;
        let version = negotiated.inspect_err(|status| {
            shared.past.lock().negotiate_errors += 1;
            tracing::info!(peer = ?info, reason = status.message(), "the negotiation with a peer failed");
        })?;
        let epoch = options.epoch();
        let offer = Offer::of(&version, &shared.hub.exchange, options.end(version.epoch));
        for (index, source) in shared.hub.sources() {
            if let Some(revision) = offer.revision(index) {
                source.recall(revision).await;
            }
        }
        let setup = PeerSetup {
            version: version.version.min(VERSION),
            filtered: version.filter_cloudlet_key || options.gate.filters(&info.identity),
            concealed: options.gate.conceals(&info.identity),
            revisions: epoch != 0 && !version.last_revision.is_empty(),
            liveness: options.liveness(&version),
            want_objs: sent_to(options.gate.as_ref(), &info.identity, &version.want_objs),
            stream: Stream {
                id: shared.next_id.fetch_add(1, Relaxed),
                role: Role::Downstream,
                peer: Arc::new(info),
                end: Arc::default(),
            },
        };
        let hub = Arc::clone(&shared.hub);
        let peer = Peer::new(setup, &hub.exchange, Arc::new(Stats::new(&hub.exchange)));
        let reply = Frame {
            version: peer.version,
            want_objs: hub.exchange.wants(),
            epoch: if peer.revisions { epoch } else { 0 },
            heartbeat_ms: options.heartbeat_ms(peer.liveness),
            ..Frame::bare(Action::Version)
        };
        hub.add(&peer, &offer);
        tracing::debug!(peer = ?peer.stream.peer, id = peer.stream.id, "peer connected");
        self.receive(Arc::clone(&peer), notices);
        let sender = Sender::new(hub, peer, options.hold_back);
        let sends = futures::stream::unfold(sender, |mut sender| async move {
            sender.next().await.map(|notice| (notice, sender))
        });
        Ok(Response::new(futures::stream::iter([Ok(reply)]).chain(sends).boxed()))
    }

    fn receive(&self, peer: Arc<Peer>, notices: Streaming<Frame>) {
        let shared = Arc::clone(&self.shared);
        let gate = Some(Arc::clone(&shared.options.gate));
        let mut receiver = Receiver::new(Arc::clone(&shared.hub), Arc::clone(&peer), gate, 0);
        let streams = shared.streams.clone();
        streams.spawn(async move {
            // Closing may have begun after the look at the door.
            if shared.closed.is_cancelled() {
                peer.end(Some(Status::unavailable("the server is shutting down")));
            }
            let outcome = receiver.run(notices).await;
            shared.past.lock().add(&peer.stats.snapshot(&shared.hub.exchange));
            let reason = outcome.as_ref().err().map(Status::message);
            tracing::debug!(peer = ?peer.stream.peer, id = peer.stream.id, reason, "peer gone");
        });
    }
}

/// Types that a peer wants, empty at the indices of those that are not for it: a
/// peer counts revisions by these indices.
fn sent_to(gate: &dyn Gate, who: &Identity, wanted: &[String]) -> Vec<String> {
    let sent = |name: &String| if gate.sends(who, name) { name.clone() } else { String::new() };
    wanted.iter().map(sent).collect()
}

async fn negotiate(notices: &mut Streaming<Frame>, timeout: Duration) -> Result<Frame, Status> {
    let first = tokio::time::timeout(timeout, notices.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no version came in time"))??;
    let version = first.ok_or_else(|| Status::cancelled("ended before a version came"))?;
    if version.action() != Action::Version {
        return Err(Status::invalid_argument("Notify server expected action version"));
    }
    if version.version == 0 {
        return Err(Status::failed_precondition("version: 0 is not a version of the protocol"));
    }
    Ok(version)
}

fn peer_info<T>(request: &Request<T>) -> PeerInfo {
    let extensions = request.extensions();
    let address = match (extensions.get::<Connection>(), request.remote_addr()) {
        (Some(connection), _) => connection.peer.to_string(),
        (None, Some(address)) => address.to_string(),
        (None, None) => "unknown".to_owned(),
    };
    let identity = extensions.get::<Identity>().cloned().unwrap_or_else(Identity::anonymous);
    PeerInfo { address, identity }
}

/// `edgeproto.NotifyApi` as a service of a listener.
#[derive(Clone, Debug)]
pub struct NotifyService {
    server: NotifyServer,
}

impl NamedService for NotifyService {
    const NAME: &'static str = "edgeproto.NotifyApi";
}

/// Path of the one method.
pub(crate) const METHOD: &str = "/edgeproto.NotifyApi/StreamNotice";

struct StreamNotice(NotifyServer);

impl tonic::server::StreamingService<Frame> for StreamNotice {
    type Response = Frame;
    type ResponseStream = BoxStream<'static, Result<Frame, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Frame>>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move { server.open(request).await })
    }
}

impl tower::Service<http::Request<Body>> for NotifyService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(async { Ok(Status::unimplemented("unknown method").into_http()) });
        }
        let method = StreamNotice(self.server.clone());
        Box::pin(async move {
            let mut grpc =
                tonic::server::Grpc::new(NoticeCodec).max_decoding_message_size(2 * MAX_NOTICE);
            Ok(grpc.streaming(method, request).await)
        })
    }
}
