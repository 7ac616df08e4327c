//! One place that connections are led to: how many it has, and whether it
//! takes them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Health, HealthOptions, Now, TargetStatus, http::Clients};

const UNKNOWN: u8 = 0;
const HEALTHY: u8 = 1;
const UNHEALTHY: u8 = 2;

pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// Cancelled when the target is removed: it gets no new connections.
    pub(crate) gone: CancellationToken,
    /// Cancelled when what is still led here ends now.
    pub(crate) cut: CancellationToken,
    /// Clients of an HTTP target.
    pub(crate) clients: Option<Clients>,
    active: AtomicUsize,
    total: AtomicU64,
    /// The health once more, for whoever picks a target.
    mark: AtomicU8,
    /// The last thing heard was a failure.
    failing: AtomicBool,
    /// One may try although it is unhealthy.
    probe: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    health: Health,
    failures: u32,
    successes: u32,
}

impl Target {
    pub(crate) fn new(
        address: SocketAddr,
        clients: Option<Clients>,
        stop: &CancellationToken,
        cut: &CancellationToken,
    ) -> Self {
        Self {
            address,
            gone: stop.child_token(),
            cut: cut.child_token(),
            clients,
            active: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            mark: AtomicU8::new(UNKNOWN),
            failing: AtomicBool::new(false),
            probe: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Number of connections it has. Nothing when it must not be used.
    pub(crate) fn rank(&self) -> Option<usize> {
        let usable = self.mark.load(Relaxed) != UNHEALTHY || self.probe.load(Relaxed);
        usable.then(|| self.active.load(Relaxed))
    }

    /// Counts one more here until it is dropped.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        self.probe.store(false, Relaxed);
        self.active.fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
        Lease(self.clone())
    }

    pub(crate) fn health(&self) -> Health {
        self.state.lock().health.clone()
    }

    pub(crate) fn status(&self) -> TargetStatus {
        TargetStatus {
            address: self.address,
            health: self.health(),
            connections: self.active.load(Relaxed),
            total: self.total.load(Relaxed),
        }
    }

    /// Records a success. Returns whether that changed the health.
    pub(crate) fn succeeded(&self, options: &HealthOptions) -> bool {
        if self.mark.load(Relaxed) == HEALTHY && !self.failing.load(Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        self.failing.store(false, Relaxed);
        state.failures = 0;
        state.successes = state.successes.saturating_add(1);
        if state.health.is_healthy() || state.successes < options.successes {
            return false;
        }
        state.health = Health::Healthy;
        self.mark.store(HEALTHY, Relaxed);
        true
    }

    /// Records a failure. Returns whether that changed the health.
    pub(crate) fn failed(
        &self,
        reason: impl Into<String>,
        options: &HealthOptions,
        now: &Now,
    ) -> bool {
        let mut state = self.state.lock();
        self.failing.store(true, Relaxed);
        state.successes = 0;
        state.failures = state.failures.saturating_add(1);
        if state.health.is_unhealthy() || state.failures < options.failures {
            return false;
        }
        state.health = Health::Unhealthy { reason: reason.into(), since: now() };
        self.mark.store(UNHEALTHY, Relaxed);
        true
    }

    /// Lets one client try an unhealthy target that has no health check. If the
    /// previous try was not refused, the health becomes unknown. Returns
    /// whether that changed the health.
    pub(crate) fn give_chance(&self) -> bool {
        let mut state = self.state.lock();
        if !state.health.is_unhealthy() {
            return false;
        }
        // The refusals that led here are over when a probe was taken since.
        let tried = !self.probe.swap(true, Relaxed);
        if self.failing.swap(false, Relaxed) || !tried {
            return false;
        }
        self.probe.store(false, Relaxed);
        *state = State::default();
        self.mark.store(UNKNOWN, Relaxed);
        true
    }
}

/// One connection, request or session that a target has.
pub(crate) struct Lease(pub(crate) Arc<Target>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use jiff::Timestamp;

    use super::*;

    fn target() -> Arc<Target> {
        let token = CancellationToken::new();
        Arc::new(Target::new("127.0.0.1:1".parse().unwrap(), None, &token, &token))
    }

    fn options() -> HealthOptions {
        HealthOptions { failures: 3, successes: 2, ..HealthOptions::default() }
    }

    #[test]
    fn health_turns_only_after_so_many_in_a_row() {
        let (target, options) = (target(), options());
        let now: Now = Arc::new(|| Timestamp::UNIX_EPOCH);
        assert!(!target.succeeded(&options));
        assert_eq!(target.health(), Health::Unknown);
        assert!(target.succeeded(&options));
        assert_eq!(target.health(), Health::Healthy);
        let fail = |reason: &str| target.failed(reason, &options, &now);
        assert!(!fail("one") && !fail("two"));
        assert!(!target.succeeded(&options), "it was healthy all the time");
        assert!(!fail("one") && !fail("two") && fail("three"));
        let expected = Health::Unhealthy { reason: "three".into(), since: Timestamp::UNIX_EPOCH };
        assert_eq!(target.health(), expected);
        assert!(!fail("four"));
        assert_eq!(target.health(), expected, "since and why it began");
        assert_eq!(target.rank(), None);
        assert!(!target.succeeded(&options) && target.succeeded(&options));
        assert_eq!(target.rank(), Some(0));
    }

    #[test]
    fn a_target_that_cannot_be_asked_is_tried_again() {
        let (target, options) = (target(), options());
        let now: Now = Arc::new(|| Timestamp::UNIX_EPOCH);
        for _ in 0..3 {
            target.failed("refused", &options, &now);
        }
        assert!(!target.give_chance());
        assert!(target.rank().is_some(), "one may try");
        drop(target.lease());
        assert!(target.rank().is_none(), "but only one");
        target.failed("refused", &options, &now);
        assert!(!target.give_chance(), "that one was refused");
        drop(target.lease());
        assert!(target.give_chance(), "this one was not");
        assert_eq!(target.health(), Health::Unknown);
    }

    #[test]
    fn leases_are_counted_and_given_back() {
        let target = target();
        let first = target.lease();
        let second = target.lease();
        assert_eq!(target.status().connections, 2);
        drop((first, second));
        assert_eq!((target.status().connections, target.status().total), (0, 2));
    }
}
