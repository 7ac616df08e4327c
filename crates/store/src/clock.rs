//! Time as the embedded store sees it, so that tests can move it by hand.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

/// Milliseconds since 1970. Leases are kept by this time because it goes on
/// while the process is down.
pub type Millis = u64;

#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    fn now(&self) -> Millis;

    /// Returns once `now()` has reached `deadline`.
    async fn sleep_until(&self, deadline: Millis);
}

/// The time of the machine, read once; from then on it only moves forward.
#[derive(Debug)]
pub struct SystemClock {
    anchor: Instant,
    anchor_millis: Millis,
}

impl SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            anchor: Instant::now(),
            anchor_millis: to_millis(since_epoch.unwrap_or(Duration::ZERO)),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Millis {
        self.anchor_millis.saturating_add(to_millis(self.anchor.elapsed()))
    }

    async fn sleep_until(&self, deadline: Millis) {
        let wait = Duration::from_millis(deadline.saturating_sub(self.now()));
        tokio::time::sleep(wait).await;
    }
}

/// A clock that stands still until it is told otherwise.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Millis>>,
}

impl ManualClock {
    pub fn new(now: Millis) -> Self {
        Self { now: Arc::new(watch::Sender::new(now)) }
    }

    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.saturating_add(to_millis(by)));
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Millis {
        *self.now.borrow()
    }

    async fn sleep_until(&self, deadline: Millis) {
        let mut now = self.now.subscribe();
        // Fails only when the sender is gone, and `self` holds it.
        let _ = now.wait_for(|now| *now >= deadline).await;
    }
}

pub(crate) fn to_millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}
