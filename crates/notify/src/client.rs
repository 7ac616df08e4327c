//! The lower end: connects to one of several servers, and again when it is
//! lost.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::stream::BoxStream;
use parking_lot::Mutex;
use prost::{Message, Name};
use rustls::ClientConfig;
use selvage_kit::{identity::Identity, tasks::Backoff};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::{
    Error, Exchange, PeerInfo, Role, StatsSnapshot, Stream,
    codec::NoticeCodec,
    dial::{Address, Dialer, Link},
    exchange::Receiving,
    frame::{Action, Frame, MAX_NOTICE, VERSION},
    hub::{Hub, Liveness, Offer, Peer, PeerSetup},
    receiver::Receiver,
    sender::Sender,
    server::METHOD,
    stats::{Stats, count},
};

/// Delays before a client connects again.
const RECONNECT: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
    healthy_after: Duration::from_secs(60),
};

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Servers: `host:port`, `http://…`, `https://…` or `unix:/path`. Tried in
    /// turn from a random one on.
    pub addresses: Vec<String>,
    /// Asks only for what concerns the cloudlets that we report on.
    pub filter: bool,
    /// TLS configuration; without it `host:port` means plain HTTP/2.
    pub tls: Option<Arc<ClientConfig>>,
    /// Delay between attempts to connect.
    pub backoff: Backoff,
    /// Timeout of a server's answer, from dialling to its version.
    pub negotiation: Duration,
    /// Interval of pings.
    pub ping_every: Duration,
    /// Time after which a ping without an answer ends the connection.
    pub ping_timeout: Duration,
    /// Asks only for what changed since the last connection.
    pub resume: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            filter: false,
            tls: None,
            backoff: RECONNECT,
            negotiation: Duration::from_secs(5),
            ping_every: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
            resume: true,
        }
    }
}

/// Status of a client, for a status page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientStatus {
    /// The server it is connected to.
    pub connected_to: Option<String>,
    /// True once everything that the server has came by this connection.
    pub in_sync: bool,
    /// Reason why the last attempt or connection ended.
    pub last_error: Option<String>,
    /// Counters since its start.
    pub stats: StatsSnapshot,
}

/// The lower end. Clones are handles of the same one.
#[derive(Clone)]
pub struct NotifyClient {
    shared: Arc<Shared>,
}

struct Shared {
    hub: Arc<Hub>,
    options: ClientOptions,
    addresses: Vec<Address>,
    dialer: Dialer,
    stats: Arc<Stats>,
    next_id: AtomicI64,
    connected: watch::Sender<Option<String>>,
    last_error: Mutex<Option<String>>,
}

impl fmt::Debug for NotifyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotifyClient").field("exchange", &self.shared.hub.exchange).finish()
    }
}

impl NotifyClient {
    /// A client of this exchange. It does nothing before [`NotifyClient::run`].
    pub fn new(exchange: Exchange, options: ClientOptions) -> Result<Self, Error> {
        let addresses: Result<Vec<Address>, Error> =
            options.addresses.iter().map(|address| Address::parse(address)).collect();
        let addresses = addresses?;
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        let dialer = Dialer {
            tls: options.tls.clone(),
            ping_every: options.ping_every,
            ping_timeout: options.ping_timeout,
        };
        let shared = Shared {
            stats: Arc::new(Stats::new(&exchange)),
            hub: Hub::new(exchange, false),
            options,
            addresses,
            dialer,
            next_id: AtomicI64::new(rand::random_range(1..=i64::MAX / 2)),
            connected: watch::Sender::new(None),
            last_error: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Stays connected until cancelled.
    pub async fn run(&self, token: CancellationToken) {
        let _ = token.run_until_cancelled(self.keep_connected()).await;
        self.shared.disconnected();
    }

    /// Queues a message for the server; 0 when it does not want it. While
    /// there is no connection it waits for one.
    pub fn post<M: Message + Name>(&self, message: &M) -> Result<usize, Error> {
        self.shared.hub.post(&M::full_name(), &message.encode_to_vec().into())
    }

    /// Returns when everything that changed so far is on its way, so that
    /// what changes from now on is told apart; at once without a connection.
    pub async fn flushed(&self) {
        for peer in self.shared.hub.peers() {
            peer.flushed().await;
        }
    }

    /// Breaks the connection; the next attempt follows by the usual rules.
    pub fn reconnect(&self) {
        for peer in self.shared.hub.peers() {
            peer.end(None);
        }
    }

    /// The server we are connected to, as it changes.
    pub fn connected(&self) -> watch::Receiver<Option<String>> {
        self.shared.connected.subscribe()
    }

    /// Returns the status of the client.
    pub fn status(&self) -> ClientStatus {
        let hub = &self.shared.hub;
        ClientStatus {
            connected_to: self.shared.connected.borrow().clone(),
            in_sync: hub.peers().iter().any(|peer| peer.received_all.load(Relaxed)),
            last_error: self.shared.last_error.lock().clone(),
            stats: self.shared.stats.snapshot(&hub.exchange),
        }
    }

    async fn keep_connected(&self) {
        let shared = &self.shared;
        let mut at = rand::random_range(0..shared.addresses.len());
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let name = shared.options.addresses[at].as_str();
            let outcome = self.connect(&shared.addresses[at], name).await;
            shared.disconnected();
            let healthy = begun.elapsed() >= shared.options.backoff.healthy_after;
            failures = if healthy { 1 } else { failures + 1 };
            let reason = outcome.err().unwrap_or_else(|| "the stream ended".to_owned());
            tracing::debug!(server = name, reason, failures, "not connected");
            *shared.last_error.lock() = Some(reason);
            at = (at + 1) % shared.addresses.len();
            tokio::time::sleep(shared.options.backoff.spread(failures, rand::random())).await;
        }
    }

    /// One connection from its beginning to its end.
    async fn connect(&self, address: &Address, name: &str) -> Result<(), String> {
        let shared = &self.shared;
        count(&shared.stats.tries);
        let timeout = shared.options.negotiation;
        let opened = tokio::time::timeout(timeout, async {
            let dialled = shared.dialer.dial(address).await;
            let link = dialled.map_err(|error| selvage_api::chain(&error))?;
            shared.negotiate(link).await.inspect_err(|_| count(&shared.stats.negotiate_errors))
        });
        let opened = opened.await.map_err(|_| {
            count(&shared.stats.negotiate_errors);
            "no answer in time".to_owned()
        })??;
        count(&shared.stats.connects);
        let epoch = opened.version.epoch;
        let peer = shared.peer(&opened.version, name);
        shared.forget_others(epoch);
        shared.hub.add(&peer, &Offer::default());
        let sender = Sender::new(Arc::clone(&shared.hub), Arc::clone(&peer), timeout);
        if opened.start.send(sender).is_err() {
            return Err("the stream ended".to_owned());
        }
        shared.connected.send_replace(Some(name.to_owned()));
        tracing::debug!(server = name, "connected");
        let leave = Leave { shared, peer: &peer };
        let mut receiver = Receiver::new(Arc::clone(&shared.hub), Arc::clone(&peer), None, epoch);
        let outcome = receiver.run(opened.notices).await;
        drop(leave);
        outcome.map_err(|status| format!("{}: {}", status.code(), status.message()))
    }
}

/// Takes the peer out also when the connection is given up half-way.
struct Leave<'a> {
    shared: &'a Shared,
    peer: &'a Arc<Peer>,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.peer.end(None);
        self.shared.hub.remove(self.peer);
        self.shared.hub.park(self.peer);
    }
}

struct Opened {
    version: Frame,
    notices: Streaming<Frame>,
    start: oneshot::Sender<Sender>,
    _link: Link,
}

impl Shared {
    fn disconnected(&self) {
        self.connected.send_replace(None);
    }

    async fn negotiate(&self, link: Link) -> Result<Opened, String> {
        let text = |status: Status| format!("{}: {}", status.code(), status.message());
        let (start, started) = oneshot::channel();
        let mut grpc = tonic::client::Grpc::with_origin(link.clone(), link.origin.clone())
            .max_decoding_message_size(2 * MAX_NOTICE);
        grpc.ready().await.map_err(|error| selvage_api::chain(&error))?;
        let request = tonic::Request::new(outgoing(self.opening(), started));
        let path = http::uri::PathAndQuery::from_static(METHOD);
        let response = grpc.streaming(request, path, NoticeCodec).await.map_err(text)?;
        let mut notices = response.into_inner();
        let version = notices.message().await.map_err(text)?;
        let version = version.ok_or_else(|| "ended before a version came".to_owned())?;
        if version.action() != Action::Version || version.version == 0 {
            return Err("the server did not answer with its version".to_owned());
        }
        Ok(Opened { version, notices, start, _link: link })
    }

    /// Our VERSION, with how far our mirrors go.
    fn opening(&self) -> Frame {
        let receives = &self.hub.exchange.receives;
        let checkpoints: Vec<_> = receives
            .iter()
            .map(|receiving| match receiving {
                Receiving::Objects(sink) if self.options.resume => sink.checkpoint(),
                _ => None,
            })
            .collect();
        let known = || checkpoints.iter().flatten();
        // Resuming needs checkpoints of one history and one scope.
        let epoch = known().map(|checkpoint| checkpoint.epoch).next().unwrap_or(0);
        let scope = known().map(|checkpoint| checkpoint.scope).max().unwrap_or(0);
        let usable = |c: &crate::Checkpoint| c.epoch == epoch && (c.scope == 0 || c.scope == scope);
        let revision = |c: &Option<crate::Checkpoint>| {
            c.filter(usable).map_or(0, |checkpoint| checkpoint.revision)
        };
        Frame {
            version: VERSION,
            want_objs: self.hub.exchange.wants(),
            filter_cloudlet_key: self.options.filter,
            last_revision: if self.options.resume {
                checkpoints.iter().map(revision).collect()
            } else {
                Vec::new()
            },
            epoch,
            scope,
            heartbeats: true,
            ..Frame::bare(Action::Version)
        }
    }

    fn peer(&self, version: &Frame, address: &str) -> Arc<Peer> {
        let setup = PeerSetup {
            stream: Stream {
                id: self.next_id.fetch_add(1, Relaxed),
                role: Role::Upstream,
                peer: Arc::new(PeerInfo {
                    address: address.to_owned(),
                    identity: Identity::anonymous(),
                }),
                end: Arc::default(),
            },
            version: version.version.min(VERSION),
            want_objs: version.want_objs.clone(),
            filtered: false,
            concealed: false,
            revisions: false,
            liveness: Liveness { heartbeat: heartbeat(version), silence: None },
        };
        Peer::new(setup, &self.hub.exchange, Arc::clone(&self.stats))
    }

    /// Forgets checkpoints of another epoch: revisions of one history mean
    /// nothing in another.
    fn forget_others(&self, epoch: u64) {
        for receiving in &self.hub.exchange.receives {
            if let Receiving::Objects(sink) = receiving
                && sink.checkpoint().is_some_and(|checkpoint| checkpoint.epoch != epoch)
            {
                sink.set_checkpoint(None);
            }
        }
    }
}

/// Interval of heartbeats that the server asks for. One of nothing is none.
fn heartbeat(version: &Frame) -> Option<Duration> {
    let interval = u64::from(version.heartbeat_ms);
    (interval > 0).then(|| Duration::from_millis(interval))
}

/// Our VERSION, and what follows once the server's has come.
fn outgoing(opening: Frame, started: oneshot::Receiver<Sender>) -> BoxStream<'static, Frame> {
    enum State {
        Opening(Frame, oneshot::Receiver<Sender>),
        Waiting(oneshot::Receiver<Sender>),
        Sending(Sender),
    }
    Box::pin(futures::stream::unfold(State::Opening(opening, started), |state| async {
        let mut sender = match state {
            State::Opening(frame, started) => return Some((frame, State::Waiting(started))),
            State::Waiting(started) => started.await.ok()?,
            State::Sending(sender) => sender,
        };
        let frame = sender.next().await?.ok()?;
        Some((frame, State::Sending(sender)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_spread_over_all_of_it() {
        let delay = |failures, chance| RECONNECT.spread(failures, chance).as_millis();
        assert_eq!((delay(1, 1.0), delay(2, 1.0), delay(4, 1.0)), (100, 200, 800));
        assert_eq!((delay(8, 1.0), delay(u32::MAX, 1.0)), (10_000, 10_000));
        assert_eq!((delay(1, 0.0), delay(8, 0.5)), (0, 5_000));
    }
}
