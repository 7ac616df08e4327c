//! Support for several tests.

pub(crate) mod disk;
pub(crate) mod gate;
pub(crate) mod records;

use std::time::Duration;

use bytes::Bytes;
use selvage_store::{Event, Watch, WatchBatch};

/// Waits for something that must happen, but not for ever.
pub(crate) async fn within<T>(seconds: u64, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future)
        .await
        .unwrap_or_else(|_| panic!("{what}: nothing happened within {seconds} s"))
}

/// The next batch that has events.
pub(crate) async fn next(watch: &mut Watch) -> WatchBatch {
    within(20, "a watch", watch.next_events()).await.expect("the watch ended").unwrap()
}

/// The error that a watch ends with.
pub(crate) async fn next_error(watch: &mut Watch) -> selvage_store::Error {
    within(20, "a watch", watch.next_events()).await.expect("the watch ended").unwrap_err()
}

pub(crate) fn describe(batch: &WatchBatch) -> Vec<(&'static str, Bytes)> {
    batch
        .events
        .iter()
        .map(|event| match event {
            Event::Put(kv) => ("put", kv.key.clone()),
            Event::Delete { key, .. } => ("delete", key.clone()),
        })
        .collect()
}
