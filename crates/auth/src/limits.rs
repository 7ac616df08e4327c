//! How often one may guess: a sliding window for each username on each
//! network and for each network.
//!
//! An attempt holds its place in the window while its password is being
//! hashed, so that a burst cannot pass before the first failure is known. A
//! success gives the place back. Attempts beyond the free places wait for
//! those before them rather than being refused, so that a burst of right
//! passwords all succeed.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_kit::identity::Peer;
use tokio::sync::Notify;

use crate::{
    clock::{self, Clock},
    error::{Error, Result},
    options::RateLimits,
};

/// Addresses that one party is likely to command as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    V4([u8; 3]),
    V6([u16; 4]),
    /// The listener did not say.
    Unknown,
}

impl Network {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        }
    }

    /// `None` for those who have no need to guess: they sit on the machine.
    pub(crate) fn of_peer(peer: Option<&Peer>) -> Option<Self> {
        match peer {
            None => Some(Self::Unknown),
            Some(Peer::Ip(ip)) => Some(Self::of(*ip)),
            Some(Peer::Unix(_)) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    User(String, Network),
    Network(Network),
}

#[derive(Debug, Default)]
struct Entry {
    failures: VecDeque<Timestamp>,
    in_flight: usize,
}

impl Entry {
    fn forget_before(&mut self, now: Timestamp, window: Duration) {
        while self.failures.front().is_some_and(|at| clock::since(now, *at) >= window) {
            self.failures.pop_front();
        }
    }

    fn is_idle(&self) -> bool {
        self.failures.is_empty() && self.in_flight == 0
    }
}

enum Admission {
    Granted,
    Wait,
    Refused { retry_after: u64 },
}

/// Counts failures.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: RateLimits,
    clock: Arc<dyn Clock>,
    entries: Mutex<HashMap<Key, Entry>>,
    resolved: Notify,
}

impl Limiter {
    pub(crate) fn new(limits: RateLimits, clock: Arc<dyn Clock>) -> Self {
        Self { limits, clock, entries: Mutex::default(), resolved: Notify::new() }
    }

    /// A place for one attempt. Without a username, for names that nobody
    /// can have, only the network counts.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        username: Option<&str>,
        peer: Option<&Peer>,
    ) -> Result<Attempt> {
        let Some(network) = Network::of_peer(peer) else {
            return Ok(Attempt { limiter: Arc::clone(self), keys: Vec::new(), failed: false });
        };
        let mut keys = vec![Key::Network(network)];
        keys.extend(username.map(|name| Key::User(name.to_owned(), network)));
        loop {
            let resolved = self.resolved.notified();
            tokio::pin!(resolved);
            resolved.as_mut().enable();
            match self.admit(&keys) {
                Admission::Granted => {
                    return Ok(Attempt { limiter: Arc::clone(self), keys, failed: true });
                }
                Admission::Refused { retry_after } => {
                    return Err(Error::TooManyAttempts { retry_after });
                }
                Admission::Wait => resolved.await,
            }
        }
    }

    fn limit(&self, key: &Key) -> usize {
        match key {
            Key::User(..) => self.limits.per_user.max(1),
            Key::Network(_) => self.limits.per_network.max(1),
        }
    }

    fn admit(&self, keys: &[Key]) -> Admission {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        let mut wait = false;
        for key in keys {
            let Some(entry) = entries.get_mut(key) else { continue };
            entry.forget_before(now, self.limits.window);
            let limit = self.limit(key);
            if entry.failures.len() >= limit {
                let oldest = entry.failures.front().copied().unwrap_or(now);
                let left = self.limits.window.saturating_sub(clock::since(now, oldest));
                return Admission::Refused { retry_after: left.as_millis().div_ceil(1000) as u64 };
            }
            wait |= entry.failures.len() + entry.in_flight >= limit;
        }
        if wait {
            return Admission::Wait;
        }
        for key in keys {
            self.make_room(&mut entries, key, now);
            entries.entry(key.clone()).or_default().in_flight += 1;
        }
        Admission::Granted
    }

    /// Keeps the memory bounded: what is over goes first, then what failed
    /// longest ago.
    fn make_room(&self, entries: &mut HashMap<Key, Entry>, key: &Key, now: Timestamp) {
        if entries.len() < self.limits.max_entries || entries.contains_key(key) {
            return;
        }
        entries.retain(|_, entry| {
            entry.forget_before(now, self.limits.window);
            !entry.is_idle()
        });
        if entries.len() < self.limits.max_entries {
            return;
        }
        let oldest = entries
            .iter()
            .filter(|(_, entry)| entry.in_flight == 0)
            .min_by_key(|(_, entry)| entry.failures.back().copied())
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            entries.remove(&oldest);
        }
    }

    fn resolve(&self, keys: &[Key], failed: bool) {
        if keys.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        for key in keys {
            let Some(entry) = entries.get_mut(key) else { continue };
            entry.in_flight = entry.in_flight.saturating_sub(1);
            if failed {
                entry.failures.push_back(now);
            }
            if entry.is_idle() {
                entries.remove(key);
            }
        }
        drop(entries);
        self.resolved.notify_waiters();
    }

    /// Forgets what lies outside the window.
    pub(crate) fn tidy(&self) {
        let now = self.clock.now();
        self.entries.lock().retain(|_, entry| {
            entry.forget_before(now, self.limits.window);
            !entry.is_idle()
        });
    }
}

/// One attempt. Dropped without a word it counts as a failure: who goes away
/// while his password is being hashed has had the work done all the same.
#[derive(Debug)]
#[must_use]
pub(crate) struct Attempt {
    limiter: Arc<Limiter>,
    keys: Vec<Key>,
    failed: bool,
}

impl Attempt {
    /// It shall not count: the password was right, or could not be checked.
    pub(crate) fn forgive(mut self) {
        self.failed = false;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.limiter.resolve(&self.keys, self.failed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::clock::ManualClock;

    fn limiter(limits: RateLimits) -> (Arc<Limiter>, ManualClock) {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        (Arc::new(Limiter::new(limits, Arc::new(clock.clone()))), clock)
    }

    fn small() -> RateLimits {
        RateLimits {
            window: Duration::from_secs(60),
            per_user: 3,
            per_network: 5,
            max_entries: 100,
        }
    }

    fn peer(ip: &str) -> Option<Peer> {
        Some(Peer::Ip(ip.parse().unwrap()))
    }

    async fn fail(limiter: &Arc<Limiter>, user: &str, from: &str) -> Result<()> {
        limiter.begin(Some(user), peer(from).as_ref()).await.map(drop)
    }

    #[tokio::test]
    async fn failures_of_a_user_count_by_network_and_fade() {
        let (limiter, clock) = limiter(small());
        for _ in 0..3 {
            fail(&limiter, "anna", "192.0.2.1").await.unwrap();
            clock.advance(Duration::from_secs(10));
        }
        // The first failure is 30 s old and leaves after another 30 s.
        let error = fail(&limiter, "anna", "192.0.2.200").await.unwrap_err();
        assert!(matches!(error, Error::TooManyAttempts { retry_after: 30 }), "{error}");
        fail(&limiter, "anna", "192.0.3.1").await.unwrap();
        fail(&limiter, "bert", "192.0.2.1").await.unwrap();
        clock.advance(Duration::from_secs(30));
        fail(&limiter, "anna", "192.0.2.1").await.unwrap();
    }

    #[tokio::test]
    async fn a_network_runs_out_whatever_the_usernames() {
        let (limiter, _clock) = limiter(small());
        for user in ["a", "b", "c", "d", "e"] {
            fail(&limiter, user, "2001:db8:1:2::1").await.unwrap();
        }
        assert!(fail(&limiter, "f", "2001:db8:1:2:ffff::1").await.is_err());
        assert!(limiter.begin(None, peer("2001:db8:1:2::9").as_ref()).await.is_err());
        fail(&limiter, "f", "2001:db8:1:3::1").await.unwrap();
    }

    #[tokio::test]
    async fn successes_do_not_count_and_leave_nothing_behind() {
        let (limiter, _clock) = limiter(small());
        for _ in 0..100 {
            limiter.begin(Some("anna"), peer("192.0.2.1").as_ref()).await.unwrap().forgive();
        }
        assert!(limiter.entries.lock().is_empty());
    }

    #[tokio::test]
    async fn a_burst_waits_for_those_before_it() {
        let (limiter, _clock) = limiter(small());
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limiter.begin(Some("anna"), peer("192.0.2.1").as_ref()).await.unwrap());
        }
        let waiting = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { limiter.begin(Some("anna"), peer("192.0.2.1").as_ref()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.pop().unwrap().forgive();
        waiting.await.unwrap().unwrap();
        // That one failed; the two others fail now: the window is full.
        drop(held);
        assert!(fail(&limiter, "anna", "192.0.2.1").await.is_err());
    }

    #[tokio::test]
    async fn mapped_addresses_are_the_addresses_they_map() {
        let mapped = Network::of("::ffff:192.0.2.9".parse().unwrap());
        assert_eq!(mapped, Network::V4([192, 0, 2]));
    }

    #[tokio::test]
    async fn unix_sockets_are_exempt_and_unknown_peers_are_not() {
        let (limiter, _clock) = limiter(small());
        for _ in 0..100 {
            drop(limiter.begin(Some("anna"), Some(&Peer::Unix(None))).await.unwrap());
        }
        for _ in 0..3 {
            drop(limiter.begin(Some("anna"), None).await.unwrap());
        }
        assert!(limiter.begin(Some("anna"), None).await.is_err());
    }

    #[tokio::test]
    async fn memory_is_bounded_and_the_oldest_goes_first() {
        let (limiter, clock) = limiter(RateLimits { max_entries: 20, ..small() });
        for n in 0..1000 {
            fail(&limiter, "anna", &format!("10.{}.{}.1", n / 250, n % 250)).await.unwrap();
            clock.advance(Duration::from_millis(1));
        }
        assert!(limiter.entries.lock().len() <= 20);
        let newest = Key::Network(Network::V4([10, 3, 249]));
        assert!(limiter.entries.lock().contains_key(&newest));
        clock.advance(Duration::from_secs(61));
        limiter.tidy();
        assert!(limiter.entries.lock().is_empty());
    }
}
