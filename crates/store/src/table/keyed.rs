//! Subscriptions to single records: of many that wait for something in one
//! table, a change wakes only those that it concerns.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::{Change, Record};

/// Changes of one record kept for a subscriber that is slow; beyond it he
/// starts over.
const BACKLOG: usize = 32;

type Senders<R> = Mutex<HashMap<String, broadcast::Sender<Change<R>>>>;

/// Who waits for which record.
pub(super) struct Keyed<R> {
    senders: Arc<Senders<R>>,
}

impl<R> Default for Keyed<R> {
    fn default() -> Self {
        Self { senders: Arc::default() }
    }
}

/// The place of a record among those that are waited for, kept while anybody
/// does. It does not keep the table, whose end is the end of all waiting.
pub(super) struct Place<R> {
    senders: Weak<Senders<R>>,
    key: String,
}

impl<R> fmt::Debug for Place<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.key).finish()
    }
}

impl<R> Drop for Place<R> {
    fn drop(&mut self) {
        let Some(senders) = self.senders.upgrade() else { return };
        let mut senders = senders.lock();
        if senders.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            senders.remove(&self.key);
        }
    }
}

impl<R: Record> Keyed<R> {
    pub(super) fn subscribe(&self, key: &str) -> (broadcast::Receiver<Change<R>>, Place<R>) {
        let mut senders = self.senders.lock();
        let sender = senders.entry(key.to_owned());
        let changes = sender.or_insert_with(|| broadcast::Sender::new(BACKLOG)).subscribe();
        drop(senders);
        (changes, Place { senders: Arc::downgrade(&self.senders), key: key.to_owned() })
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
