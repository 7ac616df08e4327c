//! HTTP: one listener for all services of a port, each under a path prefix.
//!
//! The prefix is taken off before a request is passed on: a service below
//! `/shop/` sees `/` where its client asked for `/shop/`. `/shop` alone is
//! sent to `/shop/`, so that relative links work.

mod body;
mod clients;
mod forward;
mod headers;
mod routes;
mod tunnel;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    frontend::{Context, Frontend},
    tcp,
};

pub(crate) use clients::Clients;
pub(crate) use routes::Routes;

/// Requests of one HTTP/2 connection at a time.
const STREAMS: u32 = 128;

/// Bytes that the headers of a request may have together.
const HEADERS: u32 = 32 * 1024;

/// A public port that carries HTTP.
pub(crate) struct HttpPort {
    pub(crate) context: Arc<Context>,
    pub(crate) stop: CancellationToken,
    pub(crate) cut: CancellationToken,
    /// Connections of clients.
    pub(crate) connections: TaskTracker,
    /// Listeners.
    pub(crate) tasks: TaskTracker,
    routes: ArcSwap<Routes>,
    tls: AtomicBool,
}

impl HttpPort {
    pub(crate) fn new(context: Arc<Context>, root: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            context,
            stop: root.child_token(),
            cut: root.child_token(),
            connections: TaskTracker::new(),
            tasks: TaskTracker::new(),
            routes: ArcSwap::default(),
            tls: AtomicBool::new(false),
        })
    }

    /// Sets the services of this port.
    pub(crate) fn set(&self, frontends: Vec<Arc<Frontend>>, tls: bool) {
        self.tls.store(tls, Relaxed);
        self.routes.store(Arc::new(Routes::new(frontends)));
    }

    /// Serves a connection, unless there are too many.
    pub(crate) fn enter(self: &Arc<Self>, client: TcpStream, peer: SocketAddr) {
        if self.connections.len() >= self.context.limits.connections {
            tracing::debug!("no room for another connection");
            tcp::reset(&client);
            return;
        }
        let http_port = self.clone();
        self.connections.spawn(async move {
            if let Err(error) = http_port.serve(client, peer).await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }

    async fn serve(self: Arc<Self>, client: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let acceptor = self.context.web_tls.clone().filter(|_| self.tls.load(Relaxed));
        let caller = Caller {
            address: peer.ip().to_canonical(),
            encrypted: acceptor.is_some(),
            activity: Arc::default(),
        };
        let Some(acceptor) = acceptor else { return self.speak(client, caller).await };
        let limit = self.context.limits.handshake;
        let client = tokio::select! {
            shaken = tokio::time::timeout(limit, acceptor.accept(client)) => shaken??,
            () = self.stop.cancelled() => return Ok(()),
        };
        self.speak(client, caller).await
    }

    async fn speak<S>(self: Arc<Self>, client: S, caller: Caller) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = caller.activity.clone();
        let http_port = self.clone();
        let caller = Arc::new(caller);
        let service = service_fn(move |request| {
            let (http_port, caller) = (http_port.clone(), caller.clone());
            async move { Ok::<_, Infallible>(forward::answer(&http_port, &caller, request).await) }
        });
        let limits = &self.context.limits;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_buf_size(64 * 1024)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADERS)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let mut connection =
            pin!(builder.serve_connection_with_upgrades(TokioIo::new(client), service));
        let mut draining = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => return ended.map_err(io::Error::other),
                () = self.cut.cancelled() => return Ok(()),
                () = self.stop.cancelled(), if !draining => {}
                () = activity.silence(limits.header, limits.http_idle) => {
                    if draining {
                        return Ok(());
                    }
                }
            }
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// Sender of the requests of a connection.
struct Caller {
    address: IpAddr,
    encrypted: bool,
    activity: Arc<Activity>,
}

/// Activity of a connection.
#[derive(Default)]
struct Activity {
    open: AtomicUsize,
    begun: AtomicU64,
}

impl Activity {
    fn begin(self: &Arc<Self>) -> Busy {
        self.begun.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        Busy(self.clone())
    }

    /// Ends when nothing was asked for too long: one who never asked gets
    /// less time than one who did.
    async fn silence(&self, first: Duration, later: Duration) {
        let step = first.min(later) / 2;
        let mut seen = self.begun.load(Relaxed);
        let mut silent = Duration::ZERO;
        loop {
            tokio::time::sleep(step).await;
            let begun = self.begun.load(Relaxed);
            let busy = self.open.load(Relaxed) > 0 || begun != seen;
            silent = if busy { Duration::ZERO } else { silent + step };
            seen = begun;
            if silent >= if begun == 0 { first } else { later } {
                return;
            }
        }
    }
}

/// A request that was not answered to the end.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
