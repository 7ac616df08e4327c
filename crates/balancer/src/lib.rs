//! Public ports that really lead somewhere: a load balancer for tcp, udp and
//! HTTP in front of whatever runs on this machine or behind it.
//!
//! A [`Service`] is published with all of its ports or not at all, changed by
//! publishing it again, and withdrawn. Meanwhile its targets are checked, its
//! connections counted, and [`Status`] tells both.
//!
//! * tcp: to the target with the fewest connections; the next one when it does
//!   not take it. What ends on one side ends on the other in the same way:
//!   half, whole, or by a reset. In bulk, bytes never leave the kernel.
//! * udp: one session for each client address and address of ours that it
//!   asks; the answer comes from the latter.
//! * HTTP/1.1 and HTTP/2, by path prefix; upgrades (WebSocket) and gRPC pass.
//!
//! There is no RPC here and no policy: what is to be published, under which
//! name and port, is for those who call. Nothing is kept on disk either: after
//! a restart they publish again.

mod check;
mod datagram;
mod error;
mod frontend;
mod health;
mod http;
mod listen;
mod options;
mod published;
mod table;
mod target;
mod tcp;
mod types;
mod udp;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{sync::broadcast, task::JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    frontend::Context,
    table::{Draining, Table},
};

pub use error::{Error, Result};
pub use options::{HealthOptions, Limits, Now, Options};
pub use types::{Health, Port, PortStatus, Protocol, Service, Status, TargetStatus};

/// Changes of health that a listener may be behind.
const CHANGES: usize = 1024;

/// A handle; all clones are the same balancer. When the last one is dropped,
/// everything ends at once.
#[derive(Clone)]
pub struct Balancer(Arc<Inner>);

struct Inner {
    table: Mutex<Table>,
    /// Lock that a change holds until it has closed its sockets: a port that is
    /// being closed does not count as taken.
    turns: tokio::sync::Mutex<()>,
    context: Arc<Context>,
    _everything: DropGuard,
}

impl Balancer {
    pub fn new(options: Options) -> Self {
        let (changes, _) = broadcast::channel(CHANGES);
        let acceptor = |protocols: &[&[u8]]| {
            let mut tls = rustls::ServerConfig::clone(options.tls.as_ref()?);
            tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Some(TlsAcceptor::from(Arc::new(tls)))
        };
        let context = Arc::new(Context {
            raw_tls: acceptor(&[]),
            web_tls: acceptor(&[b"h2", b"http/1.1"]),
            limits: options.limits,
            health: options.health,
            now: options.now,
            changes,
            buffer_pool: tcp::BufferPool::default(),
        });
        let root = CancellationToken::new();
        let table = Table::new(options.addresses, context.clone(), root.clone());
        Self(Arc::new(Inner {
            table: Mutex::new(table),
            turns: tokio::sync::Mutex::default(),
            context,
            _everything: root.drop_guard(),
        }))
    }

    /// Opens all ports of a service, or none of them and says why. A service
    /// that is published already is changed: ports and targets that stay keep
    /// their connections, those of others are drained behind the scenes.
    pub async fn publish(&self, service: Service) -> Result<()> {
        let service = check::service(service)?;
        let _turn = self.0.turns.lock().await;
        let draining = self.0.table.lock().publish(service)?;
        self.leave(draining).await;
        Ok(())
    }

    /// Closes all ports of a service at once and lets its connections go on
    /// for a while. When this returns, nothing is left. What is not published
    /// is withdrawn already.
    pub async fn withdraw(&self, id: &str) {
        let turn = self.0.turns.lock().await;
        let draining = self.0.table.lock().withdraw(id);
        let drained = self.leave(draining).await;
        drop(turn);
        finished(drained).await;
    }

    /// Withdraws everything. Nothing can be published any more.
    pub async fn close(&self) {
        let turn = self.0.turns.lock().await;
        let draining = self.0.table.lock().close();
        let drained = self.leave(draining).await;
        drop(turn);
        finished(drained).await;
    }

    /// Closes sockets; draining goes on by itself, whether or not somebody
    /// waits for it.
    async fn leave(&self, draining: Draining) -> Option<JoinHandle<()>> {
        if draining.is_empty() {
            return None;
        }
        draining.stop();
        let draining = Arc::new(draining);
        let (leaving, grace) = (draining.clone(), self.0.context.limits.drain);
        let drained = tokio::spawn(async move { leaving.drain(grace).await });
        draining.closed().await;
        Some(drained)
    }

    pub fn status(&self, id: &str) -> Option<Status> {
        let service = self.0.table.lock().get(id);
        service.map(|service| service.status())
    }

    /// All services by their ids.
    pub fn all(&self) -> Vec<(String, Status)> {
        let services = self.0.table.lock().all();
        services.into_iter().map(|service| (service.id.clone(), service.status())).collect()
    }

    /// Services whose health changed, from now on. Whoever lags behind asks
    /// for [`all`](Self::all).
    pub fn health_changes(&self) -> broadcast::Receiver<(String, Health)> {
        self.0.context.changes.subscribe()
    }
}

async fn finished(drained: Option<JoinHandle<()>>) {
    if let Some(drained) = drained
        && let Err(error) = drained.await
    {
        tracing::error!(%error, "draining connections broke off");
    }
}
