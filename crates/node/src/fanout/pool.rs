//! Connections to nodes: made when first needed, kept while they are used.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::dial::{self, Endpoint};
use tokio::time::Instant;
use tonic::{Status, transport::Channel};

/// Maximum number of connections; beyond it, the one unused for longest is
/// closed.
const MAX_CONNECTIONS: usize = 4096;

pub(super) struct Pool {
    tls: Option<Arc<rustls::ClientConfig>>,
    idle: Duration,
    channels: Mutex<HashMap<Endpoint, PooledChannel>>,
}

struct PooledChannel {
    channel: Channel,
    used: Instant,
}

impl Pool {
    /// Creates a pool. Without TLS everything is sent in plaintext, for
    /// laboratories.
    pub(super) fn new(tls: Option<Arc<rustls::ClientConfig>>, idle: Duration) -> Self {
        Self { tls, idle, channels: Mutex::default() }
    }

    /// The connection to an endpoint. A call over it connects when need be.
    pub(super) fn channel(&self, endpoint: &Endpoint) -> Result<Channel, Status> {
        let now = Instant::now();
        let mut channels = self.channels.lock();
        if let Some(found) = channels.get_mut(endpoint) {
            found.used = now;
            return Ok(found.channel.clone());
        }
        if channels.len() >= MAX_CONNECTIONS
            && let Some(oldest) = channels.iter().min_by_key(|(_, pooled)| pooled.used)
        {
            let oldest = oldest.0.clone();
            channels.remove(&oldest);
        }
        let channel = self.connect(endpoint)?;
        channels.insert(endpoint.clone(), PooledChannel { channel: channel.clone(), used: now });
        Ok(channel)
    }

    /// Lets go of what nobody has used for a while. Calls under way keep
    /// their connection to their end.
    pub(super) fn sweep(&self) {
        self.channels.lock().retain(|_, pooled| pooled.used.elapsed() < self.idle);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.channels.lock().len()
    }

    fn connect(&self, endpoint: &Endpoint) -> Result<Channel, Status> {
        dial::channel(self.tls.clone(), std::slice::from_ref(endpoint))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_not_used_is_let_go() {
        let pool = Pool::new(None, Duration::from_secs(900));
        pool.channel(&Endpoint::new("a", 1)).unwrap();
        tokio::time::advance(Duration::from_secs(600)).await;
        pool.channel(&Endpoint::new("b", 1)).unwrap();
        pool.channel(&Endpoint::new("b", 1)).unwrap();
        assert_eq!(pool.len(), 2);
        tokio::time::advance(Duration::from_secs(400)).await;
        pool.sweep();
        assert_eq!(pool.len(), 1);
    }
}
