//! Who may work in a repository: many at a time, or one that must be alone.
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

/// By place: who has the turn.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<RwLock<()>>>>);

/// A turn, until it is dropped.
pub(super) enum Turn {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl Turns {
    /// Waits for a turn. Those who wait are served in their order.
    pub(super) async fn wait(&self, place: &str, alone: bool) -> Turn {
        let lock = self.of(place);
        match alone {
            true => Turn::Alone { _guard: lock.write_owned().await },
            false => Turn::Shared { _guard: lock.read_owned().await },
        }
    }

    fn of(&self, place: &str) -> Arc<RwLock<()>> {
        let mut places = self.0.lock();
        places.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = places.get(place).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::<RwLock<()>>::default();
        places.insert(place.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
