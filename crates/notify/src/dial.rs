//! One HTTP/2 connection to one address, kept alive by pings.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;

use crate::Error;

/// Flow-control window; objects are small and streams are many.
const WINDOW: u32 = 256 * 1024;

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: Option<bool> },
    Unix(String),
}

impl Address {
    /// Reads `host:port`, `http://host:port`, `https://host:port` or
    /// `unix:/path`.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::Address { address: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.trim_start_matches("//") {
                "" => Err(wrong("no path after unix:")),
                path => Ok(Self::Unix(path.to_owned())),
            };
        }
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(false), rest),
            Some(("https", rest)) => (Some(true), rest),
            Some(_) => return Err(wrong("the scheme is not http, https or unix")),
            None => (None, text),
        };
        let (host, port) = rest
            .trim_end_matches('/')
            .rsplit_once(':')
            .ok_or_else(|| wrong("no port: expected host:port"))?;
        let port = port.parse().map_err(|_| wrong("the port is not a number up to 65535"))?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("no host before the port"));
        }
        Ok(Self::Tcp { host: host.to_owned(), port, tls })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) ping_every: Duration,
    pub(crate) ping_timeout: Duration,
}

impl Dialer {
    pub(crate) async fn dial(&self, address: &Address) -> io::Result<Link> {
        match address {
            Address::Unix(path) => {
                self.speak(UnixStream::connect(path).await?, "http", "localhost").await
            }
            Address::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                let named = if host.contains(':') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                };
                stream.set_nodelay(true)?;
                match (&self.tls, tls) {
                    (_, Some(false)) | (None, None) => self.speak(stream, "http", &named).await,
                    (Some(config), _) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        let connector = TlsConnector::from(Arc::clone(config));
                        let stream = connector.connect(name, stream).await?;
                        self.speak(stream, "https", &named).await
                    }
                    (None, Some(true)) => {
                        Err(io::Error::other("an https address, but no CA is configured"))
                    }
                }
            }
        }
    }

    async fn speak<S>(&self, stream: S, scheme: &str, authority: &str) -> io::Result<Link>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(self.ping_every)
            .keep_alive_timeout(self.ping_timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let running = AbortOnDropHandle::new(tokio::spawn(async move {
            // The caller of the pending request gets the error.
            let _ = connection.await;
        }));
        let origin = Uri::builder().scheme(scheme).authority(authority).path_and_query("/");
        let origin = origin.build().map_err(io::Error::other)?;
        Ok(Link { requests, origin, _running: Arc::new(running) })
    }
}

/// A connection that takes requests. It ends with its last clone.
#[derive(Clone)]
pub(crate) struct Link {
    requests: SendRequest<Body>,
    pub(crate) origin: Uri,
    _running: Arc<AbortOnDropHandle<()>>,
}

impl tower::Service<http::Request<Body>> for Link {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.requests.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_as_people_write_them() {
        let tcp = |host: &str, tls| Address::Tcp { host: host.into(), port: 50001, tls };
        assert_eq!(Address::parse("127.0.0.1:50001").unwrap(), tcp("127.0.0.1", None));
        assert_eq!(Address::parse("https://[::1]:50001/").unwrap(), tcp("::1", Some(true)));
        assert_eq!(Address::parse("http://ctrl:50001").unwrap(), tcp("ctrl", Some(false)));
        assert_eq!(Address::parse("unix:/run/x").unwrap(), Address::Unix("/run/x".into()));
        for wrong in ["", "host", "host:", "host:99999", ":50001", "ftp://host:1", "unix:"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
