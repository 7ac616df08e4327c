//! Waiting for a condition, with a limit. Tests never sleep and hope.
//!
//! Each function panics, naming `what`, when the limit is over. Limits go by the
//! clock of tokio, so that in a test with paused time they cost nothing.

use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// Time anything may take before a test gives up. Generous: machines that run
/// tests are slow and shared.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not hold in time.
pub async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, async || holds().then_some(())).await;
}

/// Waits until a look finds something, which is returned.
///
/// # Panics
///
/// If nothing is found in time.
pub async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    wait_ok(what, async || look().await.ok_or("it is not there")).await
}

/// The same for a look that says what it saw instead, which is told if the wait
/// is in vain.
///
/// # Panics
///
/// If nothing is found in time.
pub async fn wait_ok<T, E: Display>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    let mut pause = INTERVAL;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "gave up waiting for {what}: {seen}"),
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Waits for something that must happen.
///
/// # Panics
///
/// If it does not happen in time.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, work)
        .await
        .unwrap_or_else(|_| panic!("gave up waiting for {what} after {TIMEOUT:?}"))
}

/// Pause after one of this length: short at first, then no more than a busy
/// machine bears from many tests at once.
fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(Duration::from_millis(50))
}

/// The same for tests without a runtime.
pub mod blocking {
    use std::{
        fmt::Display,
        time::{Duration, Instant},
    };

    /// Waits until a look finds something, which is returned.
    ///
    /// # Panics
    ///
    /// If nothing is found in time.
    pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        wait_ok(what, super::TIMEOUT, || look().ok_or("it is not there"))
    }

    /// The same for a look that says what it saw instead, and with another limit.
    ///
    /// # Panics
    ///
    /// If nothing is found in time.
    pub fn wait_ok<T, E: Display>(
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<T, E>,
    ) -> T {
        let deadline = Instant::now() + limit;
        let mut pause = super::INTERVAL;
        loop {
            match look() {
                Ok(found) => return found,
                Err(seen) => {
                    assert!(Instant::now() < deadline, "gave up waiting for {what}: {seen}");
                }
            }
            std::thread::sleep(pause);
            pause = super::longer(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_the_answer() {
        let mut looks = 0;
        let found = wait_ok("the third look", async || {
            looks += 1;
            if looks < 3 { Err(format!("look {looks}")) } else { Ok(looks) }
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "gave up waiting for rain: sun")]
    async fn a_wait_in_vain_tells_what_was_seen() {
        wait_ok("rain", async || Err::<(), _>("sun")).await;
    }

    #[test]
    #[should_panic(expected = "gave up waiting for rain: sun")]
    fn a_blocking_wait_in_vain_tells_what_was_seen() {
        blocking::wait_ok("rain", Duration::ZERO, || Err::<(), _>("sun"));
    }
}
