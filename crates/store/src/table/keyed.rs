//! Subscriptions to single records: of many that wait for something in one
//! table, a change wakes only those that it concerns.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::{Change, Record};

/// Changes of one record kept for a subscriber that is slow; beyond it, it
/// starts over.
const BACKLOG: usize = 32;

type Senders<R> = Mutex<HashMap<String, broadcast::Sender<Change<R>>>>;

/// Subscribers by record.
pub(super) struct Keyed<R> {
    senders: Arc<Senders<R>>,
}

impl<R> Default for Keyed<R> {
    fn default() -> Self {
        Self { senders: Arc::default() }
    }
}

/// Registration of a record among those that are waited for, kept while anybody
/// does. It does not keep the table, whose end is the end of all waiting.
pub(super) struct Registration<R> {
    senders: Weak<Senders<R>>,
    key: String,
}

impl<R> fmt::Debug for Registration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.key).finish()
    }
}

impl<R> Drop for Registration<R> {
    fn drop(&mut self) {
        let Some(senders) = self.senders.upgrade() else { return };
        let mut senders = senders.lock();
        if senders.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            senders.remove(&self.key);
        }
    }
}

impl<R: Record> Keyed<R> {
    pub(super) fn subscribe(&self, key: &str) -> (broadcast::Receiver<Change<R>>, Registration<R>) {
        let mut senders = self.senders.lock();
        let sender = senders.entry(key.to_owned());
        let changes = sender.or_insert_with(|| broadcast::Sender::new(BACKLOG)).subscribe();
        drop(senders);
        (changes, Registration { senders: Arc::downgrade(&self.senders), key: key.to_owned() })
    }

    pub(super) fn announce(&self, changes: &[Change<R>]) {
        if changes.is_empty() {
            return;
        }
        let senders = self.senders.lock();
        if senders.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Put(stored) | Change::Deleted(stored) => {
                    if let Some(sender) = senders.get(&stored.key) {
                        // Fails when the last one is just leaving.
                        let _ = sender.send(change.clone());
                    }
                }
                Change::Reset => {
                    for sender in senders.values() {
                        let _ = sender.send(Change::Reset);
                    }
                }
            }
        }
    }
}
