//! Output of a watch.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt};

use crate::{KeyValue, Result, Revision};

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Put(KeyValue),
    Delete { key: Bytes, mod_revision: Revision },
}

impl Event {
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(kv) => &kv.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn mod_revision(&self) -> Revision {
        match self {
            Self::Put(kv) => kv.mod_revision,
            Self::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

/// All events of one revision that lie in the watched range. Without events
/// it says only that everything up to `revision` has been delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    pub revision: Revision,
    pub events: Vec<Event>,
}

/// Changes in the order they were made, none missing, none twice.
///
/// Ends after an error. [`crate::Error::Compacted`] means that the history
/// asked for is gone, either at the start or because the reader fell too far
/// behind: list again and watch from there.
pub struct Watch {
    inner: BoxStream<'static, Result<WatchBatch>>,
}

impl Watch {
    pub fn new(stream: impl Stream<Item = Result<WatchBatch>> + Send + 'static) -> Self {
        Self { inner: stream.boxed() }
    }

    /// The next batch, with or without events; `None` after an error or when
    /// the store was closed.
    pub async fn next(&mut self) -> Option<Result<WatchBatch>> {
        self.inner.next().await
    }

    /// The next batch that has events.
    pub async fn next_events(&mut self) -> Option<Result<WatchBatch>> {
        loop {
            match self.inner.next().await {
                Some(Ok(batch)) if batch.events.is_empty() => {}
                other => return other,
            }
        }
    }
}

impl Stream for Watch {
    type Item = Result<WatchBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
