//! The connections that are open. There is room for so many; when it is full
//! the one that has been silent for longest makes place for the next.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Activity of a connection so far.
#[derive(Clone)]
pub(super) struct Activity(Arc<Counters>);

struct Counters {
    requests: AtomicU64,
    in_flight: AtomicUsize,
    last: Mutex<Instant>,
}

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Counters {
            requests: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
        }))
    }

    /// A request begins; it ends when the guard is dropped.
    pub(super) fn begin(&self) -> InFlight {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    /// Number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// For how long nothing has been in flight.
    pub(super) fn idle_for(&self) -> Duration {
        if self.0.in_flight.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.0.last.lock().elapsed()
    }
}

/// A request that has not been answered to the end.
pub(super) struct InFlight(Activity);

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.0.last.lock() = Instant::now();
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All open connections of one listener.
#[derive(Clone)]
pub(super) struct Census(Arc<Inner>);

struct Inner {
    room: usize,
    next: AtomicU64,
    members: Mutex<BTreeMap<u64, (Activity, CancellationToken)>>,
}

impl Census {
    pub(super) fn new(room: usize) -> Self {
        let members = Mutex::new(BTreeMap::new());
        Self(Arc::new(Inner { room, next: AtomicU64::new(0), members }))
    }

    /// Takes in one more, at the cost of the most silent if there is no room.
    /// `None` if all are busy.
    pub(super) fn admit(&self) -> Option<Member> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let activity = Activity::new();
        let evicted = CancellationToken::new();
        let mut members = self.0.members.lock();
        if members.len() >= self.0.room {
            let silent = members
                .iter()
                .filter(|(_, (activity, _))| activity.idle_for() > Duration::ZERO)
                .max_by_key(|(_, (activity, _))| (activity.requests() == 0, activity.idle_for()))
                .map(|(id, _)| *id);
            let (_, token) = silent.and_then(|id| members.remove(&id))?;
            token.cancel();
        }
        members.insert(id, (activity.clone(), evicted.clone()));
        Some(Member { census: self.clone(), id, activity, evicted })
    }

    /// Ends every connection at once.
    pub(super) fn close_all(&self) {
        self.0.members.lock().values().for_each(|(_, token)| token.cancel());
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.members.lock().len()
    }
}

/// One connection's place; given back when dropped.
pub(super) struct Member {
    census: Census,
    id: u64,
    activity: Activity,
    evicted: CancellationToken,
}

impl Member {
    pub(super) fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Completes when the connection has to make place.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.census.0.members.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_most_silent_makes_place() {
        let census = Census::new(3);
        let busy = census.admit().unwrap();
        let _call = busy.activity().begin();
        let spoke = census.admit().unwrap();
        drop(spoke.activity().begin());
        let mute = census.admit().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;

        let newcomer = census.admit().unwrap();
        assert!(mute.evicted.is_cancelled());
        assert!(!busy.evicted.is_cancelled() && !spoke.evicted.is_cancelled());
        assert_eq!(census.len(), 3);

        tokio::time::advance(Duration::from_secs(1)).await;
        drop(newcomer);
        let next = census.admit().unwrap();
        let after = census.admit().unwrap();
        assert!(spoke.evicted.is_cancelled(), "spoke once, silent since");
        assert!(!busy.evicted.is_cancelled(), "a call in flight is never cut");

        let _calls = [next.activity().begin(), after.activity().begin()];
        assert!(census.admit().is_none(), "all are busy");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_counts_from_the_end_of_the_last_request() {
        let census = Census::new(1);
        let member = census.admit().unwrap();
        let call = member.activity().begin();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(member.activity().idle_for(), Duration::ZERO);
        drop(call);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(member.activity().idle_for(), Duration::from_secs(2));
    }
}
