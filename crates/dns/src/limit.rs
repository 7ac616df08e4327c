//! Limits for those who ask, so that the server is of no use against others:
//! addresses of senders by UDP are easily forged.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::clock::Clock;

/// Most networks that are remembered.
const NETWORKS: usize = 16_384;
/// Seconds of silence that a network may save up.
const BURST: f64 = 2.0;
/// Of the questions beyond the limit every second one is answered with the
/// advice to come by TCP, so that those who are real get through.
const ADVISED: u64 = 2;

/// Treatment of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Answer,
    ComeByTcp,
    Ignore,
}

/// A network from which questions come, as far as its owner can choose
/// addresses in it.
type Network = (bool, u128);

fn network(ip: IpAddr) -> Network {
    match ip.to_canonical() {
        IpAddr::V4(ip) => (false, u128::from(ip.to_bits() >> 8)),
        IpAddr::V6(ip) => (true, ip.to_bits() >> 72),
    }
}

/// Answers that a network may still have.
struct Bucket {
    left: f64,
    at: Duration,
    beyond: u64,
}

/// Limits the answers to each network by UDP.
pub(crate) struct RateLimit {
    /// Answers in a second; 0 for no limit.
    rate: f64,
    clock: Arc<dyn Clock>,
    buckets: Mutex<HashMap<Network, Bucket>>,
}

impl RateLimit {
    pub(crate) fn new(rate: u32, clock: Arc<dyn Clock>) -> Self {
        Self { rate: f64::from(rate), clock, buckets: Mutex::default() }
    }

    /// Judges one question.
    pub(crate) fn judge(&self, ip: IpAddr) -> Verdict {
        if self.rate == 0.0 {
            return Verdict::Answer;
        }
        let (now, most) = (self.clock.elapsed(), self.rate * BURST);
        let mut buckets = self.buckets.lock();
        if buckets.len() >= NETWORKS && !buckets.contains_key(&network(ip)) {
            // Whoever has been silent long enough has nothing to be remembered
            // for. If all are busy, forgetting them is the lesser evil.
            let full = |bucket: &Bucket| self.refilled(bucket, now) >= most;
            buckets.retain(|_, bucket| !full(bucket));
            if buckets.len() >= NETWORKS {
                buckets.clear();
            }
        }
        let fresh = Bucket { left: most, at: now, beyond: 0 };
        let bucket = buckets.entry(network(ip)).or_insert(fresh);
        bucket.left = self.refilled(bucket, now).min(most);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Verdict::Answer;
        }
        bucket.beyond += 1;
        if bucket.beyond.is_multiple_of(ADVISED) { Verdict::ComeByTcp } else { Verdict::Ignore }
    }

    fn refilled(&self, bucket: &Bucket, now: Duration) -> f64 {
        bucket.left + now.saturating_sub(bucket.at).as_secs_f64() * self.rate
    }
}

/// Limits TCP connections: all of them, and those of one network.
pub(crate) struct ConnectionLimit {
    most: usize,
    open: Mutex<HashMap<Network, usize>>,
}

/// Part of the connections that one network may have.
const SHARE: usize = 4;

impl ConnectionLimit {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Room for a connection, if there is any.
    pub(crate) fn enter(self: &Arc<Self>, ip: IpAddr) -> Option<ConnectionSlot> {
        let network = network(ip);
        let mut open = self.open.lock();
        let (all, own) = (open.values().sum::<usize>(), open.get(&network).copied().unwrap_or(0));
        if all >= self.most || own >= self.most.div_ceil(SHARE) {
            return None;
        }
        *open.entry(network).or_default() += 1;
        Some(ConnectionSlot { limit: Arc::clone(self), network })
    }
}

/// A connection's place, given back when it ends.
pub(crate) struct ConnectionSlot {
    limit: Arc<ConnectionLimit>,
    network: Network,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_kit::clock::ManualClock;

    use super::*;

    fn clock() -> ManualClock {
        ManualClock::new(jiff::Timestamp::from_second(1_800_000_000).unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn verdicts(limit: &RateLimit, from: &str, count: usize) -> [usize; 3] {
        let mut counted = [0; 3];
        for _ in 0..count {
            counted[limit.judge(ip(from)) as usize] += 1;
        }
        counted
    }

    #[test]
    fn one_network_cannot_have_more_than_its_rate() {
        let clock = clock();
        let limit = RateLimit::new(10, Arc::new(clock.clone()));
        assert_eq!(verdicts(&limit, "192.0.2.1", 100), [20, 40, 40]);
        // A neighbour is of the same network, others are not.
        assert_eq!(verdicts(&limit, "192.0.2.200", 4), [0, 2, 2]);
        assert_eq!(verdicts(&limit, "192.0.3.1", 5), [5, 0, 0]);
        assert_eq!(verdicts(&limit, "2001:db8::1", 20), [20, 0, 0]);
        assert_eq!(verdicts(&limit, "2001:db8:0:7f::9", 2), [0, 1, 1]);
        clock.advance(Duration::from_secs(1));
        assert_eq!(verdicts(&limit, "192.0.2.1", 20), [10, 5, 5]);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(verdicts(&limit, "192.0.2.1", 30), [20, 5, 5], "not for an hour's silence");
    }

    #[test]
    fn without_a_limit_all_are_answered() {
        let limit = RateLimit::new(0, Arc::new(clock()));
        assert_eq!(verdicts(&limit, "192.0.2.1", 1000), [1000, 0, 0]);
    }

    #[test]
    fn forged_senders_fill_no_memory() {
        let limit = RateLimit::new(10, Arc::new(clock()));
        for count in 0..u32::try_from(NETWORKS * 3).unwrap() {
            limit.judge(IpAddr::from((count << 8).to_be_bytes()));
        }
        assert!(limit.buckets.lock().len() <= NETWORKS);
    }

    #[test]
    fn connections_are_few_and_nobody_has_all() {
        let limit = ConnectionLimit::new(8);
        let mut held: Vec<_> = (0..2).map(|_| limit.enter(ip("192.0.2.1")).unwrap()).collect();
        assert!(limit.enter(ip("192.0.2.9")).is_none(), "a quarter for one network");
        held.extend((0..6).map(|n| limit.enter(ip(&format!("198.51.{n}.1"))).unwrap()));
        assert!(limit.enter(ip("203.0.113.1")).is_none(), "all are taken");
        held.pop();
        assert!(limit.enter(ip("203.0.113.1")).is_some());
        held.clear();
        assert!(limit.open.lock().is_empty());
    }
}
