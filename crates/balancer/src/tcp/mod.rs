//! Bare connections: taken, led to a target, and moved byte for byte.

mod buffer_pool;
mod metered;
mod plain;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    frontend::{Counters, Frontend},
    health,
    target::Lease,
};

pub(crate) use buffer_pool::BufferPool;
pub(crate) use metered::Metered;

/// Size of the buffer of a connection that is copied through the memory of this
/// process.
const BUFFER: usize = 16 * 1024;

/// Time after which a silent peer is probed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Delay after a failure to accept a connection.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Takes connections until told to stop.
pub(crate) async fn accept(
    listener: TcpListener,
    stop: CancellationToken,
    mut take: impl FnMut(TcpStream, std::net::SocketAddr),
) {
    let work = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    settle(&stream);
                    take(stream, peer);
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others will close.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Lets a connection in and serves it.
pub(crate) fn enter(frontend: &Arc<Frontend>, client: TcpStream) {
    let Some(admission) = frontend.admit() else {
        frontend.error();
        reset(&client);
        return;
    };
    let frontend = frontend.clone();
    tokio::spawn(async move {
        serve(&frontend, client).await;
        drop(admission);
    });
}

async fn serve(frontend: &Frontend, client: TcpStream) {
    let acceptor = frontend.context.raw_tls.as_ref().filter(|_| frontend.encrypted());
    if let Some(acceptor) = acceptor {
        // Rarely the larger part: what it needs is not kept by the others.
        return Box::pin(serve_encrypted(frontend, client, acceptor)).await;
    }
    let Some((target, lease)) = connect(frontend).await else {
        reset(&client);
        return;
    };
    let ended = plain::join(frontend, &lease, client, target).await;
    if let Err(error) = ended {
        tracing::debug!(port = frontend.public, target = %lease.0.address, %error, "connection cut");
    }
}

async fn serve_encrypted(frontend: &Frontend, client: TcpStream, acceptor: &TlsAcceptor) {
    let limit = frontend.context.limits.handshake;
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(limit, acceptor.accept(client)) => shaken,
        () = frontend.cut.cancelled() => return,
    };
    let client = match shaken.map_err(io::Error::from).and_then(|inner| inner) {
        Ok(client) => client,
        Err(error) => {
            frontend.error();
            tracing::debug!(port = frontend.public, %error, "no agreement on encryption");
            return;
        }
    };
    let Some((mut target, lease)) = connect(frontend).await else {
        reset(client.get_ref().0);
        return;
    };
    let activity = AtomicU64::new(0);
    let mut client = Metered::new(client, &frontend.counters, &activity);
    let limit = frontend.context.limits.tcp_idle;
    let ended = bounded(join(&mut client, &mut target), &activity, limit, &lease.0.cut).await;
    if let Err(error) = ended {
        tracing::debug!(port = frontend.public, target = %lease.0.address, %error, "connection cut");
        reset(client.inner().get_ref().0);
        reset(&target);
    }
}

/// Moves bytes both ways until both sides are done; each learns of the
/// other's end by itself.
pub(crate) async fn join<A, B>(client: &mut A, target: &mut B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    copy_bidirectional_with_sizes(client, target, BUFFER, BUFFER).await.map(drop)
}

/// Work on a connection, until nothing moved for too long or it is cut.
pub(crate) async fn bounded(
    work: impl Future<Output = io::Result<()>>,
    activity: &AtomicU64,
    idle: Duration,
    cut: &CancellationToken,
) -> io::Result<()> {
    tokio::select! {
        ended = work => ended,
        () = cut.cancelled() => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "withdrawn")),
        () = stillness(activity, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "idle")),
    }
}

/// Ends when a count has stood still. Nobody has to look at a clock for each
/// byte that is moved.
async fn stillness(activity: &AtomicU64, limit: Duration) {
    let mut seen = activity.load(Relaxed);
    let mut still = 0;
    while still < 2 {
        tokio::time::sleep(limit / 2).await;
        let now = activity.load(Relaxed);
        still = if now == seen { still + 1 } else { 0 };
        seen = now;
    }
}

/// Finds a target that takes a connection. Nothing was read from the client
/// yet, so that each may be tried.
async fn connect(frontend: &Frontend) -> Option<(TcpStream, Lease)> {
    let mut tried = Vec::new();
    while let Some(lease) = frontend.pick(&tried) {
        let address = lease.0.address;
        let limit = frontend.context.limits.connect;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(limit, TcpStream::connect(address)) => outcome,
            () = frontend.cut.cancelled() => return None,
        };
        match outcome.map_err(io::Error::from).and_then(|inner| inner) {
            Ok(stream) => {
                settle(&stream);
                frontend.served(&lease.0);
                return Some((stream, lease));
            }
            Err(error) => {
                tried.push(address);
                frontend.failed(&lease.0, &health::plain(error));
            }
        }
    }
    frontend.error();
    None
}

/// Sets the options of every connection: small pieces sent at once, and to know
/// when the other side is no more.
pub(crate) fn settle(stream: &TcpStream) {
    // Without these it works as well, only worse.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_INTERVAL);
}

/// The other side shall know that this did not end well.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Counts what goes through for the port, and as a sign of life.
#[derive(Clone, Copy)]
pub(crate) struct Meter<'a> {
    port: &'a AtomicU64,
    activity: &'a AtomicU64,
}

impl<'a> Meter<'a> {
    fn inward(counters: &'a Counters, activity: &'a AtomicU64) -> Self {
        Self { port: &counters.bytes_in, activity }
    }

    fn outward(counters: &'a Counters, activity: &'a AtomicU64) -> Self {
        Self { port: &counters.bytes_out, activity }
    }

    fn count(&self, bytes: usize) {
        self.port.fetch_add(bytes as u64, Relaxed);
        self.activity.fetch_add(1, Relaxed);
    }
}
