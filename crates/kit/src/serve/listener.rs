//! Sockets and connections: accepting, shaking hands, telling HTTP/1 from
//! HTTP/2, closing those that say nothing, and draining at the end.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Limits, authority,
    census::{Census, Member},
    front::Front,
};
use crate::{
    identity::{Connection, Peer, SharedAuthenticator},
    pki,
    telemetry::Metrics,
};

/// First bytes of every client of HTTP/2.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Connections that the kernel holds for us until we take them. Many clients
/// may come at once, after a restart.
const BACKLOG: u32 = 4096;

/// A socket that is bound and not yet served.
pub struct Socket {
    kind: SocketKind,
}

enum SocketKind {
    Tcp(TcpListener, Option<Arc<rustls::ServerConfig>>),
    Unix(UnixListener, PathBuf),
}

impl Socket {
    /// Binds a TCP address. With a TLS configuration the socket is encrypted.
    pub fn tcp(address: SocketAddr, tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Connections of the process before us may linger; they are not in use.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self { kind: SocketKind::Tcp(socket.listen(BACKLOG)?, tls) })
    }

    /// Binds a unix socket that only this user may open. A socket file that
    /// nobody listens on any more is replaced.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        if path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket()) {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process answers on this socket",
                ));
            }
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { kind: SocketKind::Unix(listener, path.to_owned()) })
    }

    /// Takes no more connections; clients are told at once.
    fn close(self) {
        if let SocketKind::Unix(listener, path) = self.kind {
            drop(listener);
            // Somebody may have removed it before us.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The address that TCP clients reach, with the port that was found.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.kind {
            SocketKind::Tcp(listener, _) => listener.local_addr().ok(),
            SocketKind::Unix(..) => None,
        }
    }
}

pub(super) struct Listener {
    pub(super) front: Front,
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
    /// None where callers need no credentials.
    pub(super) authenticator: Option<SharedAuthenticator>,
}

/// A connection that was accepted, before its first byte.
enum Accepted {
    Tcp(TcpStream, SocketAddr, Option<Arc<rustls::ServerConfig>>),
    Unix(UnixStream),
}

impl Listener {
    /// Serves the socket until told to stop, then lets calls in flight finish
    /// within the drain time.
    pub(super) async fn run(self, socket: Socket, stop: CancellationToken) {
        let this = Arc::new(self);
        let census = Census::new(this.limits.connections);
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&socket) => accepted,
            };
            match accepted {
                Ok(accepted) => {
                    let Some(member) = census.admit() else {
                        tracing::debug!("no room for another connection");
                        continue;
                    };
                    let this = this.clone();
                    let stop = stop.clone();
                    connections.spawn(async move { this.serve(accepted, member, stop).await });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others will close.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        socket.close();
        connections.close();
        if tokio::time::timeout(this.limits.drain, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "connections cut after the drain time");
            census.close_all();
        }
    }

    async fn serve(self: Arc<Self>, accepted: Accepted, member: Member, stop: CancellationToken) {
        let _open = self.metrics.connection();
        let outcome = match accepted {
            Accepted::Unix(stream) => {
                let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
                let connection = Connection {
                    peer: Peer::Unix(uid),
                    machine: None,
                    certificate: None,
                    person: None,
                    encrypted: false,
                };
                Box::pin(self.serve_plain(stream, connection, member, stop)).await
            }
            Accepted::Tcp(stream, peer, tls) => {
                // Small replies must not wait for Nagle.
                let _ = stream.set_nodelay(true);
                let connection = Connection {
                    peer: Peer::Ip(peer.ip().to_canonical()),
                    machine: None,
                    certificate: None,
                    person: None,
                    encrypted: tls.is_some(),
                };
                match tls {
                    Some(tls) => {
                        Box::pin(self.serve_tls(stream, tls, connection, member, stop)).await
                    }
                    None => Box::pin(self.serve_plain(stream, connection, member, stop)).await,
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn serve_tls(
        &self,
        stream: TcpStream,
        tls: Arc<rustls::ServerConfig>,
        mut connection: Connection,
        member: Member,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let handshake = TlsAcceptor::from(tls).accept(stream);
        let stream = tokio::select! {
            done = tokio::time::timeout(self.limits.handshake_timeout, handshake) => {
                done.map_err(io::Error::from).and_then(|inner| inner)
            }
            () = member.evicted() => return Ok(()),
            () = stop.cancelled() => return Ok(()),
        };
        let stream = stream.inspect_err(|_| self.metrics.handshake_failure())?;
        let session = stream.get_ref().1;
        let http2 = session.alpn_protocol() == Some(b"h2");
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        if let Some(certificate) = certificate {
            connection.person = pki::person_of(certificate).map_err(io::Error::other)?;
            if connection.person.is_none() {
                connection.machine = pki::machine_of(certificate).map_err(io::Error::other)?;
                let shown = pki::shown_certificate(certificate).map_err(io::Error::other)?;
                connection.certificate = Some(Arc::new(shown));
            }
        }
        self.serve_http(stream, http2, connection, member, stop).await
    }

    async fn serve_plain<S>(
        &self,
        mut stream: S,
        connection: Connection,
        member: Member,
        stop: CancellationToken,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let first = tokio::select! {
            first = tokio::time::timeout(self.limits.header_timeout, sniff(&mut stream)) => {
                first.map_err(io::Error::from).and_then(|inner| inner)?
            }
            () = member.evicted() => return Ok(()),
            () = stop.cancelled() => return Ok(()),
        };
        let http2 = first == HTTP2_PREFACE;
        let stream = Prefixed { first: io::Cursor::new(first), stream };
        if http2 && matches!(connection.peer, Peer::Unix(_)) {
            let stream = authority::Lenient::new(stream);
            return self.serve_http(stream, http2, connection, member, stop).await;
        }
        self.serve_http(stream, http2, connection, member, stop).await
    }

    async fn serve_http<S>(
        &self,
        stream: S,
        http2: bool,
        connection: Connection,
        member: Member,
        stop: CancellationToken,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shown = self.authenticator.as_ref().zip(connection.certificate.clone());
        let outdated =
            || shown.as_ref().is_some_and(|(judge, shown)| !judge.certificate_is_current(shown));
        let service = self.front.for_connection(connection, member.activity());
        let service = TowerToHyperService::new(service);
        let io = TokioIo::new(stream);
        if http2 {
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(self.limits.streams_per_connection)
                .max_header_list_size(32 * 1024)
                .initial_connection_window_size(4 * 1024 * 1024)
                .initial_stream_window_size(1024 * 1024)
                .keep_alive_interval(Duration::from_secs(30))
                .keep_alive_timeout(Duration::from_secs(20))
                .serve_connection(io, service);
            drive(Box::pin(connection), &self.limits, member, stop, outdated).await
        } else {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.header_timeout)
                .max_buf_size(64 * 1024)
                .serve_connection(io, service)
                .with_upgrades();
            drive(Box::pin(connection), &self.limits, member, stop, outdated).await
        }
    }
}

async fn accept(socket: &Socket) -> io::Result<Accepted> {
    match &socket.kind {
        SocketKind::Tcp(listener, tls) => {
            let (stream, peer) = listener.accept().await?;
            Ok(Accepted::Tcp(stream, peer, tls.clone()))
        }
        SocketKind::Unix(listener, _) => Ok(Accepted::Unix(listener.accept().await?.0)),
    }
}

/// Reads until it is clear whether the client means HTTP/2.
async fn sniff(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(HTTP2_PREFACE.len());
    while first.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(&first) {
        let mut limited = (&mut *stream).take((HTTP2_PREFACE.len() - first.len()) as u64);
        if limited.read_buf(&mut first).await? == 0 {
            break;
        }
    }
    Ok(first)
}

/// Hyper's two kinds of connection, as far as closing them goes.
trait Drains: Future<Output = hyper::Result<()>> {
    fn drain(self: Pin<&mut Self>);
}

impl<S, B> Drains
    for hyper::server::conn::http1::UpgradeableConnection<TokioIo<S>, TowerToHyperService<B>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: ConnectionService,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, B> Drains
    for hyper::server::conn::http2::Connection<TokioIo<S>, TowerToHyperService<B>, TokioExecutor>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: ConnectionService,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Service for the requests of one connection.
pub(super) trait ConnectionService:
    tower::Service<
        Request<Incoming>,
        Response = Response<axum::body::Body>,
        Error = std::convert::Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
}

impl<T> ConnectionService for T where
    T: tower::Service<
            Request<Incoming>,
            Response = Response<axum::body::Body>,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// Runs a connection to its end. One that has nothing to say is closed, and
/// so is one that has nothing left to say when the listener stops, or when there
/// is a newer certificate with which its client can come back.
///
/// The connection is in a box, for a future keeps as much room for what it is
/// given as for what it works on, and there may be thousands.
async fn drive(
    mut connection: Pin<Box<impl Drains>>,
    limits: &Limits,
    member: Member,
    stop: CancellationToken,
    outdated: impl Fn() -> bool,
) -> io::Result<()> {
    let period = limits.header_timeout / 2;
    let mut look = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = stop.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().drain();
            }
            () = member.evicted() => return Ok(()),
            _ = look.tick() => {
                if member.activity().idle_for() > limits.idle(member.activity().requests()) {
                    if draining {
                        return Ok(());
                    }
                    draining = !stop.is_cancelled();
                    connection.as_mut().drain();
                } else if !draining && outdated() {
                    draining = true;
                    connection.as_mut().drain();
                }
            }
        }
    }
}

/// A stream whose first bytes were read already.
struct Prefixed<S> {
    first: io::Cursor<Vec<u8>>,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let position = usize::try_from(self.first.position()).unwrap_or(usize::MAX);
        let left = self.first.get_ref().get(position..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let step = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..step]);
        self.first.set_position((position + step) as u64);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
