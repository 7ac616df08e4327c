//! Connections to other processes: over TCP with or without TLS, to the first
//! of several endpoints that is there, or to a unix socket. All clients of
//! controllers and agents connect through here.

use std::{fmt, io, net::IpAddr, path::Path, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;
use tonic::{
    Status,
    transport::{self, Channel},
};

/// Port of processes that are written without one.
pub const DEFAULT_PORT: u16 = 8443;

/// Timeout of making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for all of several endpoints together.
const CONNECT_ALL_TIMEOUT: Duration = Duration::from_secs(8);
/// A silent peer is pinged after so long, and given up when it does not answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Host and port of a process, and the name in its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Name or address to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// The name that its certificate must have, if that is not the host.
    pub certificate_name: Option<String>,
    /// The machine that answers there, such as `node/rack3-7`, if that is known.
    pub machine: Option<String>,
    /// It is this very process.
    pub here: bool,
}

impl Endpoint {
    /// An endpoint whose certificate has the name by which it is reached.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, certificate_name: None, machine: None, here: false }
    }

    /// Reads `host`, `host:port`, an IPv4 or IPv6 address, `[ipv6]` or
    /// `[ipv6]:port`.
    pub fn parse(text: &str, default_port: u16) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::new(address.to_string(), default_port));
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) = rest.split_once(']')?;
            let address: std::net::Ipv6Addr = inside.parse().ok()?;
            let port = match after.strip_prefix(':') {
                Some(port) => parse_port(port)?,
                None if after.is_empty() => default_port,
                None => return None,
            };
            return Some(Self::new(address.to_string(), port));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, parse_port(port)?),
            None => (text, default_port),
        };
        is_host(host).then(|| Self::new(host.to_ascii_lowercase(), port))
    }

    /// The name that is looked for in the certificate.
    pub fn server_name(&self) -> &str {
        self.certificate_name.as_deref().unwrap_or(&self.host)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && text.split('.').all(label)
}

/// A connection that is made when it is first used, and anew when it broke:
/// each time to the first of the endpoints that is there. Without TLS it is in
/// the clear.
pub fn channel(
    tls: Option<Arc<rustls::ClientConfig>>,
    endpoints: &[Endpoint],
) -> Result<Channel, Status> {
    let first = endpoints.first().ok_or_else(|| Status::invalid_argument("no endpoint given"))?;
    let endpoint = transport::Endpoint::from_shared(format!("http://{first}"))
        .map_err(|error| Status::invalid_argument(format!("{first}: {error}")))?
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let (tls, endpoints) = (tls.map(TlsConnector::from), endpoints.to_vec());
    let connector = tower::service_fn(move |_: http::Uri| {
        let (tls, endpoints) = (tls.clone(), endpoints.clone());
        async move { open_first(tls, &endpoints).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// A connection that is made now.
pub async fn connect(
    tls: Option<Arc<rustls::ClientConfig>>,
    to: &Endpoint,
    timeout: Duration,
) -> Result<Channel, transport::Error> {
    let tls = tls.map(TlsConnector::from);
    let endpoint = transport::Endpoint::from_shared(format!("http://{to}"))?;
    let to = to.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let (tls, to) = (tls.clone(), to.clone());
        async move { open(tls, &to).await.map(TokioIo::new) }
    });
    endpoint.connect_timeout(timeout).connect_with_connector(connector).await
}

/// A connection to a unix socket, made when it is first used.
pub fn unix(path: &Path) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    transport::Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

async fn open_first(
    tls: Option<TlsConnector>,
    endpoints: &[Endpoint],
) -> io::Result<Box<dyn Stream>> {
    let mut failures: Vec<(String, io::Error)> = Vec::new();
    // Whoever waits for an answer waits for all of this.
    let each = match u32::try_from(endpoints.len()).unwrap_or(u32::MAX) {
        0 | 1 => CONNECT_TIMEOUT,
        several => CONNECT_ALL_TIMEOUT / several,
    };
    for endpoint in endpoints {
        let opened = tokio::time::timeout(each, open(tls.clone(), endpoint)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        match opened.unwrap_or_else(|_| Err(late())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failures.push((endpoint.to_string(), error)),
        }
    }
    if failures.len() < 2 {
        return Err(failures.pop().map_or_else(|| io::ErrorKind::NotConnected.into(), |one| one.1));
    }
    let all: Vec<_> = failures.iter().map(|(to, error)| format!("{to}: {error}")).collect();
    Err(io::Error::other(all.join("; ")))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn open(tls: Option<TlsConnector>, to: &Endpoint) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((to.host.as_str(), to.port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(to.server_name().to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tls.connect(name, stream).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn of_several_endpoints_the_first_is_taken_that_is_there() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint =
            |of: &TcpListener| Endpoint::new("127.0.0.1", of.local_addr().unwrap().port());
        let (absent, present) = (endpoint(&gone), endpoint(&there));
        drop(gone);
        let endpoints = [absent.clone(), present];
        let (opened, met) = tokio::join!(open_first(None, &endpoints), there.accept());
        assert!(opened.is_ok() && met.is_ok());
        let error = open_first(None, &[absent.clone(), absent.clone()]).await.err().unwrap();
        let text = error.to_string();
        assert_eq!(text.matches(&absent.to_string()).count(), 2, "{text}");
        let error = open_first(None, &[absent]).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn endpoints_can_be_written_in_many_ways() {
        for (text, endpoint) in [
            ("10.5.0.2", "10.5.0.2:50000"),
            ("10.5.0.2:7443", "10.5.0.2:7443"),
            ("::1", "[::1]:50000"),
            ("2001:DB8::7", "[2001:db8::7]:50000"),
            ("[::1]", "[::1]:50000"),
            ("[::1]:7443", "[::1]:7443"),
            ("Rack-3.example.org", "rack-3.example.org:50000"),
            ("node_1:1", "node_1:1"),
        ] {
            assert_eq!(Endpoint::parse(text, 50_000).unwrap().to_string(), endpoint);
        }
        for wrong in [
            "",
            ":",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:b",
            "a b",
            "a/b",
            "a..b",
            "[::1",
            "[::1]x",
            "[a]",
            "::1:2:3:4:5:6:7:8:9",
            "user@host",
            "a:1:2",
            "\u{1f}",
        ] {
            assert_eq!(Endpoint::parse(wrong, 1), None, "{wrong:?}");
        }
    }
}
