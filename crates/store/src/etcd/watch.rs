//! A watch that outlives its connection.
//!
//! It remembers the next revision it wants. etcd is asked from one revision
//! earlier and what is too old is dropped: etcd calls a watch compacted only
//! if it starts before the compacted revision, and versions before 3.4.34 may
//! have thrown away a delete made at that very revision.
//!
//! An etcd that was restored from an older snapshot is at a lower revision than
//! the watch was, and would keep silent until it has caught up. So whenever a
//! connection begins, it is compared with what was seen before; history that is
//! another one is told in the same way as history that is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{ResponseHeader, WatchOptions, WatchResponse, WatchStream};
use futures::stream;
use tokio::time::{sleep, timeout};

use super::Inner;
use super::convert::{revision, signed};
use super::failure::Failure;
use crate::{Error, Event, KeyRange, Result, Revision, Watch, WatchBatch};

const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// One revision comes in one message, however large.
const MAX_MESSAGE: usize = 1 << 30;

struct Watcher {
    inner: Arc<Inner>,
    range: KeyRange,
    next: Revision,
    connection: Option<(WatchStream, usize)>,
    ready: VecDeque<WatchBatch>,
    pause: Duration,
    ended: bool,
    /// The latest of what was seen, over all connections.
    seen: Option<HistoryPosition>,
    /// True once a new token was asked for and the watch not yet granted.
    logged_in_again: bool,
}

/// A place in the history of an etcd cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HistoryPosition {
    cluster: u64,
    term: u64,
    revision: Revision,
}

impl HistoryPosition {
    fn of(header: &ResponseHeader) -> Self {
        Self {
            cluster: header.cluster_id(),
            term: header.raft_term(),
            revision: revision(header.revision()),
        }
    }
}

pub(super) fn watch(inner: Arc<Inner>, range: KeyRange, next: Revision) -> Watch {
    let watcher = Watcher {
        inner,
        range,
        next,
        connection: None,
        ready: VecDeque::new(),
        pause: MIN_BACKOFF,
        ended: false,
        seen: None,
        logged_in_again: false,
    };
    Watch::new(stream::unfold(watcher, |mut watcher| async move {
        let mut closed = watcher.inner.closed.subscribe();
        let item = tokio::select! {
            item = watcher.step() => item?,
            _ = closed.wait_for(|closed| *closed) => return None,
        };
        watcher.ended = item.is_err();
        Some((item, watcher))
    }))
}

impl Watcher {
    async fn step(&mut self) -> Option<Result<WatchBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.advance().await {
                match error {
                    Error::Unavailable { .. } | Error::Timeout { .. } => self.retreat(&error).await,
                    lasting => return Some(Err(lasting)),
                }
            }
        }
    }

    async fn retreat(&mut self, error: &Error) {
        tracing::debug!(%error, next = self.next, "watch interrupted, connecting again");
        if let Some((_, index)) = self.connection.take() {
            self.inner.pool.failed(index);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_BACKOFF);
    }

    async fn advance(&mut self) -> Result<()> {
        let (stream, _) = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let connection = self.connect().await?;
                self.connection.insert(connection)
            }
        };
        match stream.message().await {
            Ok(Some(response)) => {
                self.check_history(&response).await?;
                if is_refused(&response) && !self.logged_in_again {
                    return self.log_in_again(&response).await;
                }
                self.take(&response)
            }
            Ok(None) => Err(Error::Unavailable { reason: "the watch ended".to_owned() }),
            Err(error) => Err(Failure::from(error).error),
        }
    }

    async fn connect(&self) -> Result<(WatchStream, usize)> {
        let (client, index) = self.inner.pool.pick().await?;
        let span = self.inner.namespace.span(&self.range);
        let start = self.next.saturating_sub(1).max(1);
        let mut options = WatchOptions::new().with_start_revision(signed(start));
        if let Some(end) = span.end {
            options = options.with_range(end);
        }
        let mut watches = client.watch_client().max_decoding_message_size(MAX_MESSAGE);
        let opening = watches.watch(span.key, Some(options));
        match timeout(self.inner.pool.connect_timeout(), opening).await {
            Ok(Ok(stream)) => Ok((stream, index)),
            Ok(Err(error)) => {
                self.inner.pool.failed(index);
                Err(Failure::from(error).error)
            }
            Err(_) => {
                self.inner.pool.failed(index);
                Err(Failure::timeout("opening a watch").error)
            }
        }
    }

    /// Fails if this is not the history that was followed so far.
    async fn check_history(&mut self, response: &WatchResponse) -> Result<()> {
        let Some(now) = response.header().map(HistoryPosition::of) else { return Ok(()) };
        let Some(before) = self.seen else {
            self.seen = Some(now);
            return Ok(());
        };
        let mut current = now.revision;
        if now.revision < before.revision {
            // A member may lag behind; what a majority agrees on does not.
            current = self.inner.revision().await?;
        }
        let is_other = now.cluster != before.cluster || now.term < before.term;
        if is_other || current < before.revision {
            tracing::warn!(?before, ?now, "etcd went back in its history");
            return Err(Error::Compacted { oldest: current + 1 });
        }
        self.seen = Some(HistoryPosition { revision: before.revision.max(now.revision), ..now });
        Ok(())
    }

    /// Tokens end; calls get a new one by themselves, a watch does not.
    async fn log_in_again(&mut self, response: &WatchResponse) -> Result<()> {
        self.logged_in_again = true;
        let (client, _) = self.inner.pool.pick().await?;
        client.refresh_token().await.map_err(|error| Failure::from(error).error)?;
        Err(Error::Unavailable { reason: response.cancel_reason().to_owned() })
    }

    fn take(&mut self, response: &WatchResponse) -> Result<()> {
        if response.compact_revision() > 0 {
            let oldest = revision(response.compact_revision()) + 1;
            return Err(Error::Compacted { oldest });
        }
        if response.canceled() {
            let reason = response.cancel_reason().to_owned();
            return Err(match is_refused(response) {
                true => Error::Refused { reason },
                false => Error::Unavailable { reason },
            });
        }
        self.pause = MIN_BACKOFF;
        self.logged_in_again = false;
        let events = response.events().iter().filter_map(|e| self.inner.namespace.event(e));
        let wanted: Vec<Event> = events.filter(|e| e.mod_revision() >= self.next).collect();
        for event in wanted {
            let at = event.mod_revision();
            match self.ready.back_mut() {
                Some(batch) if batch.revision == at => batch.events.push(event),
                _ => self.ready.push_back(WatchBatch { revision: at, events: vec![event] }),
            }
            self.next = self.next.max(at + 1);
        }
        Ok(())
    }
}

/// Returns whether etcd does not let us watch.
fn is_refused(response: &WatchResponse) -> bool {
    let reason = response.cancel_reason();
    response.canceled() && (reason.contains("permission denied") || reason.contains("auth"))
}
