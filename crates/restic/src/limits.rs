//! Limits of bytes a second. Changed at any time, felt at once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The longest time a limited flow may have been idle and still catch up.
const CREDIT: Duration = Duration::from_millis(250);

/// Longest time for which a thread that waits notices nothing.
const SLICE: Duration = Duration::from_millis(50);

/// The limits of a repository's work. Shared by whoever sets them and the
/// jobs that obey.
#[derive(Debug, Default)]
pub struct Limits {
    /// To the repository.
    pub upload: Rate,
    /// From the repository.
    pub download: Rate,
    /// From the volume.
    pub read: Rate,
}

/// Bytes a second, or no limit.
#[derive(Debug, Default)]
pub struct Rate {
    /// 0 is no limit.
    bytes: AtomicU64,
    /// When the flow so far is paid for.
    paid: Mutex<Option<Instant>>,
    /// Counts the times that the limit was set.
    changes: AtomicU64,
    changed: Notify,
}

impl Rate {
    /// A limit from the start.
    pub fn of(bytes_per_second: Option<u64>) -> Self {
        let rate = Self::default();
        rate.set(bytes_per_second);
        rate
    }

    /// Changes the limit, also for those who wait now.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        self.bytes.store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
        *self.paid.lock() = None;
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The limit as it is now.
    pub fn get(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Waits until this many bytes may flow.
    pub(crate) async fn take(&self, bytes: usize) {
        let changed = self.changed.notified();
        if let Some(wait) = self.claim(bytes) {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed => {}
            }
        }
    }

    /// The same for a thread that may block, until `check` fails: at one byte a
    /// second a job would not end for days after it was cancelled.
    pub(crate) fn take_blocking<E>(
        &self,
        bytes: usize,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let changes = self.changes.load(Ordering::Acquire);
        let Some(wait) = self.claim(bytes) else { return Ok(()) };
        let started = Instant::now();
        while let Some(left) = wait.checked_sub(started.elapsed())
            && !left.is_zero()
            && self.changes.load(Ordering::Acquire) == changes
        {
            check()?;
            std::thread::sleep(left.min(SLICE));
        }
        Ok(())
    }

    /// Puts the bytes on the bill and says how long to wait for them.
    fn claim(&self, bytes: usize) -> Option<Duration> {
        let rate = self.get()?;
        let now = Instant::now();
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut paid = self.paid.lock();
        let oldest = now.checked_sub(CREDIT).unwrap_or(now);
        let until = paid.map_or(now, |paid| paid.max(oldest)) + cost;
        *paid = Some(until);
        until.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use super::*;

    #[test]
    fn a_thread_that_waits_goes_on_when_the_limit_is_lifted() {
        let rate = Arc::new(Rate::of(Some(1)));
        let (waits, waited) = (Arc::clone(&rate), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            waits.take_blocking(1 << 20, || {
                let _ = waited.0.send(());
                Ok::<(), Infallible>(())
            })
        });
        assert_eq!(waited.1.recv(), Ok(()), "it waits");
        rate.set(None);
        assert!(thread.join().is_ok_and(|took| took.is_ok()));
    }

    #[test]
    fn a_thread_that_waits_ends_when_its_job_is_cancelled() {
        let rate = Rate::of(Some(1));
        assert_eq!(rate.take_blocking(1 << 20, || Err("cancelled")), Err("cancelled"));
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        assert_eq!(Rate::default().claim(usize::MAX), None);
        assert_eq!(Rate::of(None).get(), None);
    }

    #[test]
    fn what_was_taken_is_paid_for_by_the_next() {
        let rate = Rate::of(Some(1_000));
        let first = rate.claim(1_000).unwrap_or_default();
        let second = rate.claim(1_000).unwrap_or_default();
        assert!(second > first + Duration::from_millis(500), "{first:?} {second:?}");
        rate.set(Some(1_000_000));
        assert!(rate.claim(1_000).unwrap_or_default() < Duration::from_millis(500));
    }
}
