//! Frontends: public ports of services, with their targets, counters and
//! connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    Health, HealthOptions, Limits, Now, Port, PortStatus, Protocol, health,
    http::Clients,
    published::Published,
    target::{Lease, Target},
    tcp::BufferPool,
};

/// State that all frontends of a balancer share.
pub(crate) struct Context {
    pub(crate) limits: Limits,
    pub(crate) health: HealthOptions,
    pub(crate) now: Now,
    pub(crate) changes: broadcast::Sender<(String, Health)>,
    /// TLS of connections that carry no HTTP, and of those that do.
    pub(crate) raw_tls: Option<TlsAcceptor>,
    pub(crate) web_tls: Option<TlsAcceptor>,
    pub(crate) buffer_pool: BufferPool,
}

#[derive(Default)]
pub(crate) struct Counters {
    now: AtomicUsize,
    total: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    errors: AtomicU64,
}

/// One public port of one service; HTTP services share a port by path.
pub(crate) struct Frontend {
    pub(crate) protocol: Protocol,
    pub(crate) public: u16,
    pub(crate) prefix: String,
    pub(crate) context: Arc<Context>,
    pub(crate) counters: Counters,
    /// Cancelled when no new connection is accepted.
    pub(crate) stop: CancellationToken,
    /// Cancelled when open connections must be closed.
    pub(crate) cut: CancellationToken,
    /// Open connections.
    pub(crate) connections: TaskTracker,
    /// Listeners and health checks.
    pub(crate) tasks: TaskTracker,
    service: Weak<Published>,
    load: Arc<AtomicUsize>,
    targets: ArcSwap<Vec<Arc<Target>>>,
    tls: AtomicBool,
    health_path: ArcSwapOption<String>,
    turn: AtomicUsize,
}

impl Frontend {
    pub(crate) fn new(
        port: &Port,
        service: &Arc<Published>,
        root: &CancellationToken,
    ) -> Arc<Self> {
        let frontend = Arc::new(Self {
            protocol: port.protocol,
            public: port.public,
            prefix: port.path_prefix.clone(),
            context: service.context.clone(),
            counters: Counters::default(),
            stop: root.child_token(),
            cut: root.child_token(),
            connections: TaskTracker::new(),
            tasks: TaskTracker::new(),
            service: Arc::downgrade(service),
            load: service.load.clone(),
            targets: ArcSwap::default(),
            tls: AtomicBool::new(port.tls),
            health_path: ArcSwapOption::default(),
            turn: AtomicUsize::new(0),
        });
        frontend.change(port);
        frontend
    }

    /// Applies changes that are possible while the port is open. Targets that
    /// stay keep their connections and their health.
    pub(crate) fn change(self: &Arc<Self>, port: &Port) {
        self.tls.store(port.tls, Relaxed);
        self.health_path.store(port.health_path.clone().map(Arc::new));
        let before = self.targets.load_full();
        let mut fresh = Vec::new();
        let mut after = Vec::new();
        for address in &port.targets {
            let kept = before.iter().find(|target| target.address == *address);
            let target = kept.cloned().unwrap_or_else(|| Arc::new(self.target(*address)));
            if kept.is_none() {
                fresh.push(target.clone());
            }
            after.push(target);
        }
        let leaving = before.iter().filter(|target| !port.targets.contains(&target.address));
        let leaving: Vec<_> = leaving.cloned().collect();
        self.targets.store(Arc::new(after));
        for target in fresh {
            self.tasks.spawn(health::watch(self.clone(), target));
        }
        for target in leaving {
            self.retire(target);
        }
    }

    fn target(&self, address: SocketAddr) -> Target {
        let limits = &self.context.limits;
        let clients = (self.protocol == Protocol::Http).then(|| Clients::new(limits));
        Target::new(address, clients, &self.stop, &self.cut)
    }

    /// Removes a target; its connections may continue for a while.
    fn retire(&self, target: Arc<Target>) {
        target.gone.cancel();
        let (stop, grace) = (self.stop.clone(), self.context.limits.drain);
        self.tasks.spawn(async move {
            tokio::select! {
                // Stopping the frontend closes the connections of all targets.
                () = stop.cancelled() => {}
                () = tokio::time::sleep(grace) => target.cut.cancel(),
            }
        });
    }

    /// Admits a connection, unless there are too many.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Admission> {
        if self.load.fetch_add(1, Relaxed) >= self.context.limits.connections {
            self.load.fetch_sub(1, Relaxed);
            return None;
        }
        self.counters.now.fetch_add(1, Relaxed);
        self.counters.total.fetch_add(1, Relaxed);
        Some(Admission { frontend: self.clone(), _token: self.connections.token() })
    }

    /// Counts a client that could not be served.
    pub(crate) fn error(&self) {
        self.counters.errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn encrypted(&self) -> bool {
        self.tls.load(Relaxed)
    }

    pub(crate) fn health_path(&self) -> Option<Arc<String>> {
        self.health_path.load_full()
    }

    /// Returns the best target that was not tried yet.
    pub(crate) fn pick(&self, tried: &[SocketAddr]) -> Option<Lease> {
        let targets = self.targets.load();
        // Equally good targets take turns.
        let turn = self.turn.fetch_add(1, Relaxed) % targets.len().max(1);
        let (later, sooner) = targets.split_at(turn);
        let fresh = sooner.iter().chain(later).filter(|target| !tried.contains(&target.address));
        let ranked = fresh.filter_map(|target| Some((target.rank()?, target)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, target)| target.lease())
    }

    pub(crate) fn has_targets(&self) -> bool {
        !self.targets.load().is_empty()
    }

    /// Records that a target served a client. With a health check path, only the
    /// check decides.
    pub(crate) fn served(&self, target: &Target) {
        if self.health_path.load().is_none() {
            self.succeeded(target);
        }
    }

    pub(crate) fn succeeded(&self, target: &Target) {
        if target.succeeded(&self.context.health) {
            tracing::info!(target = %target.address, port = self.public, "target is healthy");
            self.changed();
        }
    }

    pub(crate) fn failed(&self, target: &Target, reason: &str) {
        if target.failed(reason, &self.context.health, &self.context.now) {
            tracing::warn!(target = %target.address, port = self.public, reason, "target is unhealthy");
            self.changed();
        }
    }

    pub(crate) fn changed(&self) {
        if let Some(service) = self.service.upgrade() {
            service.refresh();
        }
    }

    pub(crate) fn health(&self) -> Health {
        let all: Vec<_> = self.targets.load().iter().map(|target| target.health()).collect();
        if all.iter().any(Health::is_healthy) {
            return Health::Healthy;
        }
        let mut last: Option<Health> = None;
        for health in all {
            match (&health, &last) {
                (Health::Unhealthy { since, .. }, Some(Health::Unhealthy { since: other, .. }))
                    if since < other => {}
                (Health::Unhealthy { .. }, _) => last = Some(health),
                _ => return Health::Unknown,
            }
        }
        last.unwrap_or_else(|| Health::Unhealthy {
            reason: "no targets".into(),
            since: (self.context.now)(),
        })
    }

    pub(crate) fn status(&self) -> PortStatus {
        PortStatus {
            protocol: self.protocol,
            public: self.public,
            path_prefix: self.prefix.clone(),
            health: self.health(),
            connections: self.counters.now.load(Relaxed),
            total: self.counters.total.load(Relaxed),
            bytes_in: self.counters.bytes_in.load(Relaxed),
            bytes_out: self.counters.bytes_out.load(Relaxed),
            errors: self.counters.errors.load(Relaxed),
            targets: self.targets.load().iter().map(|target| target.status()).collect(),
        }
    }
}

/// Admission of a connection; dropped when the connection is closed.
pub(crate) struct Admission {
    frontend: Arc<Frontend>,
    _token: TaskTrackerToken,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.frontend.load.fetch_sub(1, Relaxed);
        self.frontend.counters.now.fetch_sub(1, Relaxed);
    }
}
