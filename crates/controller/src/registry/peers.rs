//! Connections to other controllers.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kit::dial;
use tonic::transport::{Channel, Endpoint};

const CONNECT: Duration = Duration::from_secs(3);

/// Connects to other controllers. Whoever runs the controller gives one that
/// shows its certificate.
#[async_trait]
pub trait PeerConnector: fmt::Debug + Send + Sync + 'static {
    async fn connect(
        &self,
        address: &str,
    ) -> Result<Channel, Box<dyn std::error::Error + Send + Sync>>;
}

/// Connects without TLS.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plaintext;

#[async_trait]
impl PeerConnector for Plaintext {
    async fn connect(
        &self,
        address: &str,
    ) -> Result<Channel, Box<dyn std::error::Error + Send + Sync>> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        Ok(endpoint.connect_timeout(CONNECT).connect().await?)
    }
}

/// Connects over TLS, showing this controller's certificate.
#[derive(Debug, Clone)]
pub struct Encrypted(pub Arc<rustls::ClientConfig>);

#[async_trait]
impl PeerConnector for Encrypted {
    async fn connect(
        &self,
        address: &str,
    ) -> Result<Channel, Box<dyn std::error::Error + Send + Sync>> {
        let endpoint = dial::Endpoint::parse(address, dial::DEFAULT_PORT)
            .ok_or_else(|| format!("{address:?} is not host:port"))?;
        Ok(dial::connect(Some(Arc::clone(&self.0)), &endpoint, CONNECT).await?)
    }
}
