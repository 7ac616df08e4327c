//! Turns for downloads: few at a time on a cloudlet, one for each developer, so
//! that a server that never ends keeps only its own developer waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Downloads of a cloudlet at a time.
const AT_ONCE: usize = 4;

pub(crate) struct Downloads {
    all: Semaphore,
    developers: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for Downloads {
    fn default() -> Self {
        Self { all: Semaphore::new(AT_ONCE), developers: Mutex::default() }
    }
}

/// A download is under way while this is held.
pub(crate) struct Turn<'a> {
    _own: OwnedMutexGuard<()>,
    /// None if nobody counts any more.
    _all: Option<SemaphorePermit<'a>>,
}

impl Downloads {
    /// Waits for a turn: behind the developer's own, then behind all others.
    pub(crate) async fn turn(&self, developer: &str) -> Turn<'_> {
        let own = self.of(developer).lock_owned().await;
        Turn { _own: own, _all: self.all.acquire().await.ok() }
    }

    fn of(&self, developer: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut developers = self.developers.lock();
        if let Some(known) = developers.get(developer).and_then(Weak::upgrade) {
            return known;
        }
        developers.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        developers.insert(developer.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_developer_waits_for_the_own_download_and_no_other() {
        let downloads = Downloads::default();
        let hanging = downloads.turn("b").await;
        assert!(downloads.turn("b").now_or_never().is_none());
        let other = downloads.turn("a").now_or_never().unwrap();
        drop(hanging);
        let again = downloads.turn("b").now_or_never().unwrap();
        drop((other, again));
        assert_eq!(downloads.developers.lock().len(), 2);
        let _one = downloads.turn("c").await;
        assert_eq!(downloads.developers.lock().len(), 1, "those who are done are forgotten");
    }

    #[tokio::test]
    async fn a_cloudlet_has_few_downloads_at_once() {
        let downloads = Downloads::default();
        let names: Vec<String> = (0..AT_ONCE).map(|number| number.to_string()).collect();
        let mut held = Vec::new();
        for name in &names {
            held.push(downloads.turn(name).now_or_never().unwrap());
        }
        assert!(downloads.turn("one more").now_or_never().is_none());
        held.pop();
        assert!(downloads.turn("one more").now_or_never().is_some());
    }
}
