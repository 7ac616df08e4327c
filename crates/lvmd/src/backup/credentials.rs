//! Credentials of the repositories of jobs. They are kept in memory alone.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Access;

/// Failures that are remembered at most.
const REMEMBERED: usize = 1024;

/// Credentials of the repositories of jobs that run, by job.
#[derive(Default)]
pub(crate) struct Keychain {
    held: Mutex<HashMap<String, Arc<Access>>>,
    brought: Notify,
    /// Credentials that jobs that failed were begun with, hashed with a secret of this
    /// process.
    failed: Mutex<HashMap<String, u64>>,
    hasher: RandomState,
}

impl Keychain {
    pub(crate) fn put(&self, job: &str, access: Arc<Access>) {
        self.held.lock().insert(job.to_owned(), access);
        self.brought.notify_waiters();
    }

    /// Leaves what is there already; says whether nothing was.
    pub(crate) fn offer(&self, job: &str, access: &Arc<Access>) -> bool {
        let mut held = self.held.lock();
        let free = !held.contains_key(job);
        held.entry(job.to_owned()).or_insert_with(|| Arc::clone(access));
        drop(held);
        self.brought.notify_waiters();
        free
    }

    pub(crate) fn get(&self, job: &str) -> Option<Arc<Access>> {
        self.held.lock().get(job).cloned()
    }

    pub(crate) fn drop_for(&self, job: &str) {
        self.held.lock().remove(job);
    }

    /// The same for a job that failed: another attempt with other keys need not
    /// wait.
    pub(crate) fn drop_failed(&self, job: &str) {
        let Some(access) = self.held.lock().remove(job) else { return };
        let mut failed = self.failed.lock();
        if failed.len() >= REMEMBERED {
            failed.clear();
        }
        failed.insert(job.to_owned(), self.hasher.hash_one(&*access));
    }

    /// Returns whether a job failed that was begun with other keys than these.
    pub(crate) fn failed_with_others(&self, job: &str, access: &Access) -> bool {
        let failed = self.failed.lock();
        failed.get(job).is_some_and(|known| *known != self.hasher.hash_one(access))
    }

    /// Waits for somebody to bring it.
    pub(crate) async fn wait(&self, job: &str) -> Arc<Access> {
        loop {
            let brought = self.brought.notified();
            tokio::pin!(brought);
            brought.as_mut().enable();
            if let Some(access) = self.get(job) {
                return access;
            }
            brought.await;
        }
    }
}
