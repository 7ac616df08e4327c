//! Bare connections: taken, led to a target, and moved byte for byte.

mod metered;
mod plain;
mod supplies;

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
    gate::{Counters, Gate},
    health,
    target::Lease,
};

pub(crate) use metered::Metered;
pub(crate) use supplies::Supplies;

/// For connections that go through this process' memory anyhow.
const BUFFER: usize = 16 * 1024;

/// A peer that is silent for so long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Between two tries to take a connection when that failed.
const BREATH: Duration = Duration::from_millis(50);

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
                    tokio::time::sleep(BREATH).await;
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
pub(crate) fn enter(gate: &Arc<Gate>, client: TcpStream) {
    let Some(visit) = gate.admit() else {
        gate.error();
        reset(&client);
        return;
    };
    let gate = gate.clone();
    tokio::spawn(async move {
        serve(&gate, client).await;
        drop(visit);
    });
}

async fn serve(gate: &Gate, client: TcpStream) {
    let acceptor = gate.context.raw_tls.as_ref().filter(|_| gate.encrypted());
    if let Some(acceptor) = acceptor {
        // Rarely the larger part: what it needs is not kept by the others.
        return Box::pin(serve_encrypted(gate, client, acceptor)).await;
    }
    let Some((target, lease)) = connect(gate).await else {
        reset(&client);
        return;
    };
    let ended = plain::join(gate, &lease, client, target).await;
    if let Err(error) = ended {
        tracing::debug!(port = gate.public, target = %lease.0.address, %error, "connection cut");
    }
}

async fn serve_encrypted(gate: &Gate, client: TcpStream, acceptor: &TlsAcceptor) {
    let limit = gate.context.limits.handshake;
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(limit, acceptor.accept(client)) => shaken,
        () = gate.cut.cancelled() => return,
    };
    let client = match shaken.map_err(io::Error::from).and_then(|inner| inner) {
        Ok(client) => client,
        Err(error) => {
            gate.error();
            tracing::debug!(port = gate.public, %error, "no agreement on encryption");
            return;
        }
    };
    let Some((mut target, lease)) = connect(gate).await else {
        reset(client.get_ref().0);
        return;
    };
    let activity = AtomicU64::new(0);
    let mut client = Metered::new(client, &gate.counters, &activity);
    let limit = gate.context.limits.tcp_idle;
    let ended = bounded(join(&mut client, &mut target), &activity, limit, &lease.0.cut).await;
    if let Err(error) = ended {
        tracing::debug!(port = gate.public, target = %lease.0.address, %error, "connection cut");
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
async fn connect(gate: &Gate) -> Option<(TcpStream, Lease)> {
    let mut tried = Vec::new();
    while let Some(lease) = gate.pick(&tried) {
        let address = lease.0.address;
        let limit = gate.context.limits.connect;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(limit, TcpStream::connect(address)) => outcome,
            () = gate.cut.cancelled() => return None,
        };
        match outcome.map_err(io::Error::from).and_then(|inner| inner) {
            Ok(stream) => {
                settle(&stream);
                gate.served(&lease.0);
                return Some((stream, lease));
            }
            Err(error) => {
                tried.push(address);
                gate.failed(&lease.0, &health::plain(error));
            }
        }
    }
    gate.error();
    None
}

/// Sets the options of every connection: small pieces sent at once, and to know
/// when the other side is no more.
pub(crate) fn settle(stream: &TcpStream) {
    // Without these it works as well, only worse.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
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
