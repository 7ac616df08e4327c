//! Turns in a repository: many at a time, or one that must be alone.
//!
//! Repositories have locks of their own, which hold for everybody. Here jobs of
//! this process wait for each other, however long that takes, rather than to
//! find such a lock and fail.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Locks of repositories, by name.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<RwLock<()>>>>);

/// A turn, until it is dropped.
pub(super) enum Turn {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl Turns {
    /// Waits for a turn. Those who wait are served in their order.
    pub(super) async fn wait(&self, repository: &str, alone: bool) -> Turn {
        let lock = self.of(repository);
        match alone {
            true => Turn::Alone { _guard: lock.write_owned().await },
            false => Turn::Shared { _guard: lock.read_owned().await },
        }
    }

    fn of(&self, repository: &str) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(repository).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::<RwLock<()>>::default();
        locks.insert(repository.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
