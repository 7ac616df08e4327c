//! Connections to nodes: made when first needed, kept while they are used.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::dial::{self, Endpoint};
use tokio::time::Instant;
use tonic::{Status, transport::Channel};

/// Connections that are kept; beyond it the longest unused one goes.
const MOST: usize = 4096;

pub(super) struct Pool {
    tls: Option<Arc<rustls::ClientConfig>>,
    idle: Duration,
    kept: Mutex<HashMap<Endpoint, Kept>>,
}

struct Kept {
    channel: Channel,
    used: Instant,
}

impl Pool {
    /// Without TLS everything is in the clear, for laboratories.
    pub(super) fn new(tls: Option<Arc<rustls::ClientConfig>>, idle: Duration) -> Self {
        Self { tls, idle, kept: Mutex::default() }
    }

    /// The connection to a place. A call over it connects when need be.
    pub(super) fn channel(&self, place: &Endpoint) -> Result<Channel, Status> {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if let Some(found) = kept.get_mut(place) {
            found.used = now;
            return Ok(found.channel.clone());
        }
        if kept.len() >= MOST
            && let Some(oldest) = kept.iter().min_by_key(|(_, kept)| kept.used)
        {
            let oldest = oldest.0.clone();
            kept.remove(&oldest);
        }
        let channel = self.connect(place)?;
        kept.insert(place.clone(), Kept { channel: channel.clone(), used: now });
        Ok(channel)
    }

    /// Lets go of what nobody has used for a while. Calls under way keep
    /// their connection to their end.
    pub(super) fn sweep(&self) {
        self.kept.lock().retain(|_, kept| kept.used.elapsed() < self.idle);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.lock().len()
    }

    fn connect(&self, place: &Endpoint) -> Result<Channel, Status> {
        dial::channel(self.tls.clone(), std::slice::from_ref(place))
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
