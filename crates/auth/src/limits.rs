//! Limits on guessing: a sliding window for each username on each network and
//! for each address.
//!
//! The window of an address holds up whoever tries many usernames. So that
//! nobody can hold up the neighbours with it, it does not concern a user
//! at networks of earlier logins, nor anybody on the machine itself.
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

use parking_lot::Mutex;
use selvage_kit::{clock::Clock, identity::Peer};
use tokio::sync::Notify;

use crate::{
    error::{Error, Result},
    options::RateLimits,
};

/// Time for which the network of a login counts as one where the user is known.
const KNOWN_FOR: Duration = Duration::from_secs(24 * 60 * 60);

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
    /// None where the listener did not say.
    Address(Option<IpAddr>),
}

#[derive(Debug, Default)]
struct Entry {
    failures: VecDeque<Duration>,
    in_flight: usize,
}

impl Entry {
    fn forget_before(&mut self, now: Duration, window: Duration) {
        while self.failures.front().is_some_and(|at| now.saturating_sub(*at) >= window) {
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

/// Counts failures. Times are those of [`Clock::elapsed`]: were the time of
/// day set back, a refusal would last the longer for it.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: RateLimits,
    clock: Arc<dyn Clock>,
    entries: Mutex<HashMap<Key, Entry>>,
    /// Networks that users logged in from, with the time of the latest login.
    known: Mutex<HashMap<(String, Network), Duration>>,
    resolved: Notify,
}

impl Limiter {
    pub(crate) fn new(limits: RateLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            limits,
            clock,
            entries: Mutex::default(),
            known: Mutex::default(),
            resolved: Notify::new(),
        }
    }

    /// A place for one attempt. Without a username, for names that nobody
    /// can have, only the address counts.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        username: Option<&str>,
        peer: Option<&Peer>,
    ) -> Result<Attempt> {
        loop {
            let resolved = self.resolved.notified();
            tokio::pin!(resolved);
            resolved.as_mut().enable();
            let keys = self.keys(username, peer);
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

    /// The windows that the attempt needs a place in.
    fn keys(&self, username: Option<&str>, peer: Option<&Peer>) -> Vec<Key> {
        let Some(network) = Network::of_peer(peer) else { return Vec::new() };
        let address = match peer {
            Some(Peer::Ip(ip)) => Some(ip.to_canonical()),
            _ => None,
        };
        let mut keys = Vec::new();
        let on_this_machine = address.is_some_and(|ip| ip.is_loopback());
        if !on_this_machine && !username.is_some_and(|name| self.is_known(name, network)) {
            keys.push(Key::Address(address));
        }
        keys.extend(username.map(|name| Key::User(name.to_owned(), network)));
        keys
    }

    fn is_known(&self, username: &str, network: Network) -> bool {
        let since = self.known.lock().get(&(username.to_owned(), network)).copied();
        since.is_some_and(|since| self.clock.elapsed().saturating_sub(since) < KNOWN_FOR)
    }

    fn remember(&self, username: &str, network: Network) {
        // Those of whom the listener did not say where they are have no place
        // in common.
        if network == Network::Unknown {
            return;
        }
        let place = (username.to_owned(), network);
        let mut known = self.known.lock();
        if known.len() >= self.limits.max_entries && !known.contains_key(&place) {
            let oldest = known.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(place, _)| place.clone()) {
                known.remove(&oldest);
            }
        }
        known.insert(place, self.clock.elapsed());
    }

    fn limit(&self, key: &Key) -> usize {
        match key {
            Key::User(..) => self.limits.per_user.max(1),
            Key::Address(_) => self.limits.per_address.max(1),
        }
    }

    fn admit(&self, keys: &[Key]) -> Admission {
        let now = self.clock.elapsed();
        let mut entries = self.entries.lock();
        let mut wait = false;
        for key in keys {
            let Some(entry) = entries.get_mut(key) else { continue };
            entry.forget_before(now, self.limits.window);
            let limit = self.limit(key);
            if entry.failures.len() >= limit {
                let oldest = entry.failures.front().copied().unwrap_or(now);
                let left = self.limits.window.saturating_sub(now.saturating_sub(oldest));
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
    fn make_room(&self, entries: &mut HashMap<Key, Entry>, key: &Key, now: Duration) {
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
        let now = self.clock.elapsed();
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

    /// Forgets what lies outside the windows.
    pub(crate) fn tidy(&self) {
        let now = self.clock.elapsed();
        self.known.lock().retain(|_, since| now.saturating_sub(*since) < KNOWN_FOR);
        self.entries.lock().retain(|_, entry| {
            entry.forget_before(now, self.limits.window);
            !entry.is_idle()
        });
    }
}

/// One attempt. Dropped without a word it counts as a failure: who goes away
/// while the password is being hashed has had the work done all the same.
#[derive(Debug)]
#[must_use]
pub(crate) struct Attempt {
    limiter: Arc<Limiter>,
    keys: Vec<Key>,
    failed: bool,
}

impl Attempt {
    /// It shall not count: the password could not be checked.
    pub(crate) fn forgive(mut self) {
        self.failed = false;
    }

    /// The password was right: from here on this is a place where the user
    /// is known.
    pub(crate) fn succeed(mut self) {
        self.failed = false;
        for key in &self.keys {
            if let Key::User(username, network) = key {
                self.limiter.remember(username, *network);
            }
        }
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
    use selvage_kit::clock::ManualClock;

    use super::*;

    fn limiter(limits: RateLimits) -> (Arc<Limiter>, ManualClock) {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        (Arc::new(Limiter::new(limits, Arc::new(clock.clone()))), clock)
    }

    fn small() -> RateLimits {
        RateLimits {
            window: Duration::from_secs(60),
            per_user: 3,
            per_address: 5,
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
    async fn an_address_runs_out_whatever_the_usernames_and_its_neighbours_do_not() {
        let (limiter, _clock) = limiter(small());
        for (from, mapped, neighbour) in [
            ("2001:db8:1:2::1", "2001:db8:1:2::1", "2001:db8:1:2::2"),
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ] {
            for user in ["a", "b", "c", "d", "e"] {
                fail(&limiter, user, from).await.unwrap();
            }
            assert!(fail(&limiter, "f", mapped).await.is_err());
            assert!(limiter.begin(None, peer(from).as_ref()).await.is_err());
            fail(&limiter, "f", neighbour).await.unwrap();
        }
    }

    #[tokio::test]
    async fn where_a_user_is_known_the_failures_of_others_do_not_concern_him() {
        let (limiter, clock) = limiter(small());
        let login = async |from: &str| {
            limiter.begin(Some("anna"), peer(from).as_ref()).await.map(Attempt::succeed)
        };
        login("192.0.2.7").await.unwrap();
        let exhaust = async || {
            for user in ["a", "b", "c", "d", "e"] {
                fail(&limiter, user, "192.0.2.1").await.unwrap();
            }
            assert!(fail(&limiter, "bert", "192.0.2.1").await.is_err());
        };
        exhaust().await;
        login("192.0.2.1").await.unwrap();
        // Their own failures do.
        for _ in 0..3 {
            fail(&limiter, "anna", "192.0.2.1").await.unwrap();
        }
        assert!(fail(&limiter, "anna", "192.0.2.7").await.is_err());
        clock.advance(KNOWN_FOR);
        exhaust().await;
        assert!(login("192.0.2.1").await.is_err());
        limiter.tidy();
        assert!(limiter.known.lock().is_empty());
    }

    #[tokio::test]
    async fn known_places_are_bounded_and_the_oldest_goes_first() {
        let (limiter, clock) = limiter(RateLimits { max_entries: 20, ..small() });
        for n in 0..200 {
            let from = peer(&format!("10.0.{n}.1"));
            limiter.begin(Some("anna"), from.as_ref()).await.unwrap().succeed();
            clock.advance(Duration::from_millis(1));
        }
        assert_eq!(limiter.known.lock().len(), 20);
        assert!(limiter.is_known("anna", Network::V4([10, 0, 199])));
        assert!(!limiter.is_known("anna", Network::V4([10, 0, 0])));
    }

    #[tokio::test]
    async fn on_the_machine_itself_only_ones_own_failures_count() {
        for (from, elsewhere) in [("127.0.0.1", "127.0.0.2"), ("::1", "::ffff:127.0.0.1")] {
            let (limiter, _clock) = limiter(small());
            for n in 0..100 {
                fail(&limiter, &format!("user{n}"), from).await.unwrap();
                drop(limiter.begin(None, peer(from).as_ref()).await.unwrap());
            }
            for _ in 0..3 {
                fail(&limiter, "anna", elsewhere).await.unwrap();
            }
            assert!(fail(&limiter, "anna", elsewhere).await.is_err());
        }
    }

    #[tokio::test]
    async fn setting_the_clock_back_prolongs_nothing() {
        let (limiter, clock) = limiter(small());
        for _ in 0..3 {
            fail(&limiter, "anna", "192.0.2.1").await.unwrap();
        }
        clock.set("2025-01-01T00:00:00Z".parse().unwrap());
        clock.advance(Duration::from_secs(60));
        fail(&limiter, "anna", "192.0.2.1").await.unwrap();
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
        let newest = Key::Address(Some("10.3.249.1".parse().unwrap()));
        assert!(limiter.entries.lock().contains_key(&newest));
        clock.advance(Duration::from_secs(61));
        limiter.tidy();
        assert!(limiter.entries.lock().is_empty());
    }
}
