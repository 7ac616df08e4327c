//! Keeping a view true: list once, follow the watch, list again if history
//! was compacted away under us.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};

use super::keyed::Keyed;
use super::record::{Record, prefix};
use super::view::{View, key_of};
use super::{Change, scan};
use crate::{Error, Event, KeyRange, Result, Revision, SharedStore, WatchBatch};

const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Changes kept for subscribers that are slow; beyond it they start over.
const SUBSCRIBER_BACKLOG: usize = 1024;
/// About how many changes are taken in before those who wait are told.
const AT_ONCE: usize = 128;

#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) revision: Revision,
    pub(super) ended: bool,
}

/// State shared by a table and the task that feeds it.
pub(super) struct SharedTable<R> {
    pub(super) view: RwLock<View<R>>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) changes: broadcast::Sender<Change<R>>,
    pub(super) keyed: Keyed<R>,
}

impl<R: Record> SharedTable<R> {
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
            keyed: Keyed::default(),
        }))
    }

    pub(super) async fn follow(self: Arc<Self>, store: SharedStore) {
        let mut pause = MIN_BACKOFF;
        loop {
            let before = self.revision();
            match self.follow_once(&store).await {
                Ok(()) | Err(Error::Closed) => break,
                Err(Error::Compacted { oldest }) => {
                    tracing::info!(
                        kind = R::KIND,
                        oldest,
                        "the table fell behind and is listed again"
                    );
                    match self.relist(&store).await {
                        Ok(()) => continue,
                        Err(Error::Closed) => break,
                        Err(error) => {
                            tracing::warn!(kind = R::KIND, %error, "the table could not be listed")
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(kind = R::KIND, %error, "the watch of the table failed")
                }
            }
            pause = if self.revision() > before { MIN_BACKOFF } else { pause };
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
        self.progress.send_modify(|progress| progress.ended = true);
    }

    fn revision(&self) -> Revision {
        self.progress.borrow().revision
    }

    /// Returns `Ok` when the store was closed.
    async fn follow_once(&self, store: &SharedStore) -> Result<()> {
        let from = self.revision() + 1;
        // A store that was restored from an older copy keeps silent until it
        // has caught up.
        let now = store.revision().await?;
        if now + 1 < from {
            return Err(Error::Compacted { oldest: now + 1 });
        }
        let mut watch = store.watch(KeyRange::prefix(prefix::<R>()), Some(from)).await?;
        while let Some(batch) = watch.next().await {
            let batch = batch?;
            let (first, mut changes, mut end) = (batch.revision, Vec::new(), None);
            let mut seen = first;
            self.apply(batch, &mut changes);
            // Takes in all changes that are there before notifying: each
            // waiting task is woken once, not often.
            while changes.len() < AT_ONCE && seen - first < AT_ONCE as Revision {
                match watch.next().now_or_never() {
                    Some(Some(Ok(batch))) => {
                        seen = batch.revision;
                        self.apply(batch, &mut changes);
                    }
                    Some(Some(Err(error))) => end = Some(Err(error)),
                    Some(None) => end = Some(Ok(())),
                    None => break,
                }
                if end.is_some() {
                    break;
                }
            }
            self.announce(changes, seen);
            if let Some(end) = end {
                return end;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: WatchBatch, changes: &mut Vec<Change<R>>) {
        if batch.events.is_empty() {
            return;
        }
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

    async fn relist(&self, store: &SharedStore) -> Result<()> {
        let (listing, revision) = scan(store.as_ref(), KeyRange::prefix(prefix::<R>())).await?;
        let went_back = revision < self.revision();
        if went_back {
            tracing::warn!(kind = R::KIND, revision, "the store went back, so does the view");
        }
        let changes = self.view.write().replace(listing, went_back);
        self.announce(changes, revision);
        // Only a listing may say so: it is newer than all that was seen.
        self.progress.send_modify(|progress| progress.revision = revision);
        Ok(())
    }

    /// Publishes changes together with their revision: a reader that sees one
    /// also sees the other.
    fn announce(&self, changes: Vec<Change<R>>, revision: Revision) {
        self.progress.send_modify(|progress| {
            self.keyed.announce(&changes);
            for change in changes {
                // Fails when nobody has subscribed.
                let _ = self.changes.send(change);
            }
            progress.revision = progress.revision.max(revision);
        });
    }
}
