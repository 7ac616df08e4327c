//! One public port of one service: its targets, its counts, and those who are
//! inside.

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
    tcp::Supplies,
};

/// State that all gates of a balancer share.
pub(crate) struct Context {
    pub(crate) limits: Limits,
    pub(crate) health: HealthOptions,
    pub(crate) now: Now,
    pub(crate) changes: broadcast::Sender<(String, Health)>,
    /// Encryption of bare connections, and of those that carry HTTP.
    pub(crate) raw_tls: Option<TlsAcceptor>,
    pub(crate) web_tls: Option<TlsAcceptor>,
    pub(crate) supplies: Supplies,
}

#[derive(Default)]
pub(crate) struct Counters {
    now: AtomicUsize,
    total: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    errors: AtomicU64,
}

pub(crate) struct Gate {
    pub(crate) protocol: Protocol,
    pub(crate) public: u16,
    pub(crate) prefix: String,
    pub(crate) context: Arc<Context>,
    pub(crate) counters: Counters,
    /// Nobody new comes in.
    pub(crate) stop: CancellationToken,
    /// Those who are inside have to leave.
    pub(crate) cut: CancellationToken,
    /// Those who are inside.
    pub(crate) visits: TaskTracker,
    /// Listeners and health checks.
    pub(crate) helpers: TaskTracker,
    service: Weak<Published>,
    load: Arc<AtomicUsize>,
    targets: ArcSwap<Vec<Arc<Target>>>,
    tls: AtomicBool,
    health_path: ArcSwapOption<String>,
    turn: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(
        port: &Port,
        service: &Arc<Published>,
        root: &CancellationToken,
    ) -> Arc<Self> {
        let gate = Arc::new(Self {
            protocol: port.protocol,
            public: port.public,
            prefix: port.path_prefix.clone(),
            context: service.context.clone(),
            counters: Counters::default(),
            stop: root.child_token(),
            cut: root.child_token(),
            visits: TaskTracker::new(),
            helpers: TaskTracker::new(),
            service: Arc::downgrade(service),
            load: service.load.clone(),
            targets: ArcSwap::default(),
            tls: AtomicBool::new(port.tls),
            health_path: ArcSwapOption::default(),
            turn: AtomicUsize::new(0),
        });
        gate.change(port);
        gate
    }

    /// Takes over what may change while the port stays open. Targets that
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
            self.helpers.spawn(health::watch(self.clone(), target));
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

    /// Lets what a target still has go on for a while.
    fn retire(&self, target: Arc<Target>) {
        target.gone.cancel();
        let (stop, grace) = (self.stop.clone(), self.context.limits.drain);
        self.helpers.spawn(async move {
            tokio::select! {
                // Whoever stops the gate cuts everything, targets included.
                () = stop.cancelled() => {}
                () = tokio::time::sleep(grace) => target.cut.cancel(),
            }
        });
    }

    /// Lets one more in, if there is room.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Visit> {
        if self.load.fetch_add(1, Relaxed) >= self.context.limits.connections {
            self.load.fetch_sub(1, Relaxed);
            return None;
        }
        self.counters.now.fetch_add(1, Relaxed);
        self.counters.total.fetch_add(1, Relaxed);
        Some(Visit { gate: self.clone(), _inside: self.visits.token() })
    }

    /// Somebody did not get what they came for.
    pub(crate) fn error(&self) {
        self.counters.errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn encrypted(&self) -> bool {
        self.tls.load(Relaxed)
    }

    pub(crate) fn health_path(&self) -> Option<Arc<String>> {
        self.health_path.load_full()
    }

    /// The best target that was not tried yet.
    pub(crate) fn pick(&self, tried: &[SocketAddr]) -> Option<Lease> {
        let targets = self.targets.load();
        // Those who are alike take turns.
        let turn = self.turn.fetch_add(1, Relaxed) % targets.len().max(1);
        let (later, sooner) = targets.split_at(turn);
        let fresh = sooner.iter().chain(later).filter(|target| !tried.contains(&target.address));
        let ranked = fresh.filter_map(|target| Some((target.rank()?, target)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, target)| target.lease())
    }

    pub(crate) fn has_targets(&self) -> bool {
        !self.targets.load().is_empty()
    }

    /// A target did what a client asked. With a path to ask on, that alone
    /// decides.
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

/// Somebody who is inside; dropped when they leave.
pub(crate) struct Visit {
    gate: Arc<Gate>,
    _inside: TaskTrackerToken,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.gate.load.fetch_sub(1, Relaxed);
        self.gate.counters.now.fetch_sub(1, Relaxed);
    }
}
