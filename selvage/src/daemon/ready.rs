//! The ready file: written once everything answers, for scripts and tests.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use selvage_kit::pki;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use super::Sockets;

#[derive(Debug, Serialize)]
pub(super) struct Ready {
    /// None for a daemon without a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<PathBuf>,
    /// None where people are known elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) admin: Option<Admin>,
    pub(super) sockets: Sockets,
    /// Addresses of parts that have one of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) addresses: BTreeMap<&'static str, SocketAddr>,
}

#[derive(Debug, Serialize)]
pub(super) struct Admin {
    pub(super) username: String,
    /// None once its owner has removed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) password_file: Option<PathBuf>,
}

impl Ready {
    /// Writes the file in one step: whoever sees it sees it whole.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        selvage_files::replace(path, &text, 0o644)
            .with_context(|| format!("ready file {}", path.display()))
    }
}

/// Protocol of a listener.
pub(super) enum ListenerProtocol {
    /// Plaintext.
    Plain,
    /// TLS, with this configuration.
    Tls(Arc<rustls::ClientConfig>),
    /// None: that the listener accepts the connection is enough.
    Connect,
}

impl ListenerProtocol {
    /// Returns the protocol TLS with this CA.
    pub(super) fn tls(ca_pem: &str) -> anyhow::Result<Self> {
        let mut client = pki::client_config(ca_pem, None)?;
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self::Tls(Arc::new(client)))
    }
}

/// Asks a TCP listener whether it is alive.
pub(super) async fn answers(address: SocketAddr, speak: ListenerProtocol) -> anyhow::Result<()> {
    let reachable = match address.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => ([127, 0, 0, 1], address.port()).into(),
        ip if ip.is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    };
    within(async {
        let stream = TcpStream::connect(reachable).await?;
        match speak {
            ListenerProtocol::Connect => Ok(()),
            ListenerProtocol::Plain => alive(stream).await,
            ListenerProtocol::Tls(config) => {
                let name = rustls::pki_types::ServerName::from(reachable.ip());
                let connector = tokio_rustls::TlsConnector::from(config);
                alive(connector.connect(name, stream).await?).await
            }
        }
    })
    .await
    .with_context(|| format!("the listener on {address} does not answer"))
}

/// Asks a unix socket whether it is alive.
pub(super) async fn socket_answers(path: &Path) -> anyhow::Result<()> {
    within(async { alive(UnixStream::connect(path).await?).await })
        .await
        .with_context(|| format!("the socket {} does not answer", path.display()))
}

async fn within(check: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::time::timeout(Duration::from_secs(10), check).await.context("within 10 s")?
}

async fn alive(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<()> {
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut reply = Vec::new();
    // A peer that closes without TLS's goodbye has answered all the same.
    let _ = stream.read_to_end(&mut reply).await;
    if !reply.starts_with(b"HTTP/1.1 200") {
        bail!("unexpected answer: {}", String::from_utf8_lossy(&reply[..reply.len().min(80)]));
    }
    Ok(())
}
