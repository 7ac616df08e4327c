//! How another controller is reached.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
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
