//! Keeping a view true: list once, follow the watch, list again if history
//! was compacted away under us.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};

use super::record::{Record, prefix};
use super::view::{View, key_of};
use super::{Change, scan};
use crate::{Error, Event, KeyRange, Result, Revision, SharedStore, WatchBatch};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Changes kept for subscribers that are slow; beyond it they start over.
const SUBSCRIBER_BACKLOG: usize = 1024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) revision: Revision,
    pub(super) ended: bool,
}

/// What a table and the task that feeds it have in common.
pub(super) struct Fed<R> {
    pub(super) view: RwLock<View<R>>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) changes: broadcast::Sender<Change<R>>,
}

impl<R: Record> Fed<R> {
    /// Lists everything. A record that cannot be read is an error here: better
    /// not to start than to start without it.
    pub(super) async fn load(store: &SharedStore) -> Result<Arc<Self>> {
        let (listing, revision) = scan(store.as_ref(), KeyRange::prefix(prefix::<R>())).await?;
        let mut view = View::new();
        for kv in listing {
            let key = key_of::<R>(&kv.key)?;
            view.insert(Arc::new(super::view::to_stored(key, kv)?));
        }
        Ok(Arc::new(Self {
            view: RwLock::new(view),
            progress: watch::Sender::new(Progress { revision, ended: false }),
            changes: broadcast::Sender::new(SUBSCRIBER_BACKLOG),
        }))
    }

    pub(super) async fn follow(self: Arc<Self>, store: SharedStore) {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.revision();
            match self.follow_once(&store).await {
                Ok(()) | Err(Error::Closed) => break,
                Err(Error::Compacted { oldest }) => {
                    tracing::info!(kind = R::KIND, oldest, "fell behind, listing again");
                    match self.relist(&store).await {
                        Ok(()) => continue,
                        Err(Error::Closed) => break,
                        Err(error) => tracing::warn!(kind = R::KIND, %error, "listing failed"),
                    }
                }
                Err(error) => tracing::warn!(kind = R::KIND, %error, "watch failed"),
            }
            pause = if self.revision() > before { FIRST_PAUSE } else { pause };
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.progress.send_modify(|progress| progress.ended = true);
    }

    fn revision(&self) -> Revision {
        self.progress.borrow().revision
    }

    /// Returns `Ok` when the store was closed.
    async fn follow_once(&self, store: &SharedStore) -> Result<()> {
        let from = self.revision() + 1;
        let mut watch = store.watch(KeyRange::prefix(prefix::<R>()), Some(from)).await?;
        while let Some(batch) = watch.next().await {
            self.apply(batch?);
        }
        Ok(())
    }

    fn apply(&self, batch: WatchBatch) {
        let mut changes = Vec::with_capacity(batch.events.len());
        if !batch.events.is_empty() {
            let mut view = self.view.write();
            for event in batch.events {
                changes.extend(match event {
                    Event::Put(kv) => view.put(kv),
                    Event::Delete { key, .. } => {
                        key_of::<R>(&key).ok().and_then(|key| view.remove(&key))
                    }
                });
            }
        }
        self.announce(changes, batch.revision);
    }

    async fn relist(&self, store: &SharedStore) -> Result<()> {
        let (listing, revision) = scan(store.as_ref(), KeyRange::prefix(prefix::<R>())).await?;
        let changes = self.view.write().replace(listing);
        self.announce(changes, revision);
        Ok(())
    }

    fn announce(&self, changes: Vec<Change<R>>, revision: Revision) {
        for change in changes {
            // Fails when nobody has subscribed.
            let _ = self.changes.send(change);
        }
        self.progress.send_modify(|progress| {
            progress.revision = progress.revision.max(revision);
        });
    }
}
