//! How this process, as a controller or a machine's agent, reaches its peers:
//! over TLS, showing a certificate that its own CA gave it.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use selvage_controller::registry::PeerConnector;
use selvage_kit::{
    identity::Machine,
    pki::{self, Ca, KeyRequest, RotatingIdentity},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

const CONNECT: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(3600);

/// A process's own identity, and the way to others.
pub(crate) struct Peers {
    machine: Machine,
    ca: Arc<Ca>,
    identity: RotatingIdentity,
    tls: Arc<rustls::ClientConfig>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

impl Peers {
    /// Makes an identity: a new one at every start, for the CA may be another.
    pub(crate) fn open(data: &Path, ca: Arc<Ca>, machine: Machine) -> anyhow::Result<Self> {
        let path = data.join(match machine {
            Machine::Controller => "controller.pem",
            Machine::Cloudlet { .. } => "crm.pem",
            _ => "node.pem",
        });
        let request = KeyRequest::new()?;
        let signed = ca.sign_machine(request.csr_pem(), &machine)?;
        let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem)
            .with_context(|| path.display().to_string())?;
        let tls = Arc::new(pki::client_config(ca.pem(), Some(&identity))?);
        Ok(Self { machine, ca, identity, tls })
    }

    /// How to speak to others.
    pub(crate) fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// Keeps the identity fresh.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            if self.identity.needs_renewal()
                && let Err(error) = self.renew()
            {
                tracing::warn!(%error, "our certificate for peers was not renewed");
            }
        }
    }

    fn renew(&self) -> Result<(), pki::Error> {
        let request = KeyRequest::new()?;
        let signed = self.ca.sign_machine(request.csr_pem(), &self.machine)?;
        self.identity.renew(&request, &signed.certificate_pem)
    }
}

#[async_trait]
impl PeerConnector for Peers {
    async fn connect(
        &self,
        address: &str,
    ) -> Result<Channel, Box<dyn std::error::Error + Send + Sync>> {
        let connector = connector(Arc::clone(&self.tls), address);
        Ok(endpoint(address)?.connect_with_connector(connector).await?)
    }
}

/// A connection that is made when it is needed, and again when it is lost, to
/// the first of several addresses that is there.
pub(crate) fn channel(
    tls: Arc<rustls::ClientConfig>,
    addresses: &[String],
) -> anyhow::Result<Channel> {
    let first = addresses.first().context("no address to go to")?;
    let patience = CONNECT * u32::try_from(addresses.len())?;
    let connecting = tower::service_fn({
        let (tls, addresses) = (TlsConnector::from(tls), addresses.to_vec());
        move |_: http::Uri| {
            let (tls, addresses) = (tls.clone(), addresses.clone());
            async move { connect_first(&tls, &addresses).await }
        }
    });
    Ok(endpoint(first)?.connect_timeout(patience).connect_with_connector_lazy(connecting))
}

async fn connect_first(tls: &TlsConnector, addresses: &[String]) -> std::io::Result<Connection> {
    let mut failed = std::io::ErrorKind::NotConnected.into();
    for address in addresses {
        match tokio::time::timeout(CONNECT, connect(tls, address)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = std::io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

/// A connection to a socket of this machine, made when it is needed.
pub(crate) fn local(path: &Path) -> anyhow::Result<Channel> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Ok(endpoint("localhost")?.connect_with_connector_lazy(connector))
}

fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(CONNECT))
}

fn connector(
    tls: Arc<rustls::ClientConfig>,
    address: &str,
) -> impl tower::Service<http::Uri, Response = Connection, Error = std::io::Error, Future: Send>
+ Send
+ 'static {
    let tls = TlsConnector::from(tls);
    let address = address.to_owned();
    tower::service_fn(move |_: http::Uri| {
        let (tls, address) = (tls.clone(), address.clone());
        async move { connect(&tls, &address).await }
    })
}

type Connection = TokioIo<TlsStream<TcpStream>>;

async fn connect(tls: &TlsConnector, address: &str) -> std::io::Result<Connection> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(tls.connect(name, stream).await?))
}
