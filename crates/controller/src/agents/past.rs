//! Changes from before this process began to watch, out of the store's own log,
//! for agents that were told by somebody else.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use selvage_notify::History;
use selvage_store::table::{record_at, records};
use selvage_store::{Error, Revision, SharedStore};

/// Revisions read beyond what was asked for: the next agent is a bit further
/// behind.
const SLACK: Revision = 1000;
/// All types together.
const MOST: usize = 4 * History::DEFAULT_LIMIT;

/// Reads the store's log once for all types, as far back as is asked for.
pub(super) struct Past {
    store: SharedStore,
    kinds: &'static [&'static str],
    timeout: Duration,
    /// A record was written at this revision, after everything here began to
    /// watch: a watch that starts before it gets there.
    until: OnceLock<Revision>,
    read: tokio::sync::Mutex<Read>,
}

#[derive(Default)]
struct Read {
    /// All changes after this revision are here; none before the first time.
    after: Option<Revision>,
    changes: HashMap<&'static str, Vec<(i64, String)>>,
    /// There is no more, or it is too much.
    ended: bool,
}

impl Past {
    pub(super) fn new(
        store: SharedStore,
        kinds: &'static [&'static str],
        timeout: Duration,
    ) -> Self {
        Self { store, kinds, timeout, until: OnceLock::new(), read: tokio::sync::Mutex::default() }
    }

    /// A record was written at this revision.
    pub(super) fn began(&self, revision: Revision) {
        // The first one is as good as any.
        let _ = self.until.set(revision);
    }

    /// The changes of a type after a revision that is not later than the one
    /// asked for, with that revision. `None` when they are not known.
    pub(super) async fn since(
        &self,
        revision: i64,
        kind: &str,
    ) -> Option<(i64, Vec<(i64, String)>)> {
        let revision = Revision::try_from(revision).ok()?;
        let mut read = self.read.lock().await;
        let reaches = |read: &Read| read.after.is_some_and(|after| after <= revision);
        if !reaches(&read) && !read.ended {
            let extended =
                tokio::time::timeout(self.timeout, self.extend(&mut read, revision)).await;
            match extended {
                Ok(Ok(())) => {}
                Ok(Err(Error::Unavailable { .. } | Error::Timeout { .. })) => return None,
                Ok(Err(error)) => {
                    tracing::info!(revision, %error, "agents from before get everything");
                    read.ended = true;
                }
                Err(_) => {
                    tracing::info!(revision, "too much to read, agents get everything");
                    read.ended = true;
                }
            }
        }
        let after = read.after.filter(|after| *after <= revision)?;
        let changes = read.changes.get(kind).cloned().unwrap_or_default();
        Some((i64::try_from(after).ok()?, changes))
    }

    async fn extend(&self, read: &mut Read, revision: Revision) -> Result<(), Error> {
        let after = revision.saturating_sub(SLACK);
        match self.collect(read, after).await {
            Err(Error::Compacted { oldest }) if oldest <= revision + 1 => {
                self.collect(read, oldest.saturating_sub(1)).await
            }
            outcome => outcome,
        }
    }

    /// Reads from a revision up to what has been read.
    async fn collect(&self, read: &mut Read, after: Revision) -> Result<(), Error> {
        let Some(up_to) = read.after.or_else(|| self.until.get().copied()) else {
            return Err(Error::Unavailable { reason: "the controller is starting".to_owned() });
        };
        let mut found: HashMap<&'static str, Vec<(i64, String)>> = HashMap::new();
        let mut count = read.changes.values().map(Vec::len).sum::<usize>();
        let mut watch = self.store.watch(records(), Some(after + 1)).await?;
        while let Some(batch) = watch.next().await {
            let batch = batch?;
            let at = i64::try_from(batch.revision).unwrap_or(i64::MAX);
            let news = batch.revision <= up_to;
            for event in batch.events.iter().filter(|_| news) {
                let Some((kind, key)) = record_at(event.key()) else { continue };
                if let Some(kind) = self.kinds.iter().find(|known| **known == kind) {
                    found.entry(kind).or_default().push((at, key.to_owned()));
                    count += 1;
                }
            }
            if count > MOST {
                let reason = "too many changes since then".to_owned();
                return Err(Error::InvalidArgument { field: "revision", reason });
            }
            if batch.revision >= up_to {
                read.after = Some(after);
                for (kind, mut older) in found {
                    let changes = read.changes.entry(kind).or_default();
                    older.append(changes);
                    *changes = older;
                }
                return Ok(());
            }
        }
        Err(Error::Closed)
    }
}
