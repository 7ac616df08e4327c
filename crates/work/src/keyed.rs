//! A reconciler for many objects: a queue of keys, each worked on by one run
//! at a time, several keys at once.
//!
//! A key that is added while its run goes on is run once more, however often
//! it was added. A run that fails or panics is tried again, later after each
//! further failure, and holds up no other key. A key with nothing to do costs
//! nothing.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kit::tasks::Backoff;
use selvage_kit::telemetry::panic_message;
use selvage_store::clock::{Clock, Millis};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::millis;
use crate::{Failure, ReconcilerStatus, Summary};

/// Key of an object in a queue; its text is for the log and for status pages.
pub trait QueueKey: Clone + Eq + Hash + Display + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Display + Send + Sync + 'static> QueueKey for K {}

/// Makes one of many objects more like what is wanted.
#[async_trait]
pub trait KeyedReconcile<K: QueueKey = String>: Send + Sync + 'static {
    /// A name for the log.
    fn name(&self) -> &str;

    /// Looks at the object of that key, and makes a difference smaller.
    async fn run(&self, key: &K) -> Result<Summary, Failure>;
}

#[derive(Debug, Default)]
struct Entry {
    running: bool,
    /// Added while it runs.
    dirty: bool,
    /// Time of the next run; `None` if the current run is the last.
    due: Option<Millis>,
    failures: u32,
}

struct Inner<K> {
    entries: Mutex<HashMap<K, Entry>>,
    changed: Notify,
    clock: Arc<dyn Clock>,
    /// Delay after a failure; none where a failure waits for the next change.
    backoff: Option<Backoff>,
    parallel: usize,
    status: Mutex<ReconcilerStatus>,
}

/// Keys that have to be looked at. Clones are the same queue.
pub struct KeyQueue<K = String> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for KeyQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: QueueKey> fmt::Debug for KeyQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyQueue").field("keys", &self.len()).finish()
    }
}

impl<K: QueueKey> KeyQueue<K> {
    /// An empty queue of which so many keys are run at the same time.
    pub fn new(clock: Arc<dyn Clock>, parallel: usize, backoff: Backoff) -> Self {
        Self::with(clock, parallel.max(1), Some(backoff))
    }

    /// An empty queue that runs each key as soon as it is added, any number at
    /// the same time, and tries a failed one again only when it is added again.
    pub fn without_retries(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, usize::MAX, None)
    }

    fn with(clock: Arc<dyn Clock>, parallel: usize, backoff: Option<Backoff>) -> Self {
        let entries = Mutex::default();
        let status = Mutex::default();
        let inner = Inner { entries, changed: Notify::new(), clock, backoff, parallel, status };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a key as soon as possible, or once more if it runs already.
    pub fn add(&self, key: impl Into<K>) {
        let now = self.inner.clock.now();
        let mut entries = self.inner.entries.lock();
        let entry = entries.entry(key.into()).or_default();
        if entry.running {
            entry.dirty = true;
        } else {
            entry.due = Some(now);
        }
        drop(entries);
        self.inner.changed.notify_one();
    }

    /// Keys that run or are to be run.
    pub fn len(&self) -> usize {
        self.inner.entries.lock().len()
    }

    /// Keys that run now.
    pub fn running(&self) -> usize {
        self.inner.entries.lock().values().filter(|entry| entry.running).count()
    }

    /// Returns the status of its runs, under this name.
    pub fn status(&self, name: &str) -> ReconcilerStatus {
        ReconcilerStatus {
            name: name.to_owned(),
            queue: self.len() as u64,
            running: self.running() > 0,
            ..self.inner.status.lock().clone()
        }
    }

    fn note(&self, key: &K, result: &Result<Summary, Failure>) {
        let now = self.inner.clock.now();
        let mut status = self.inner.status.lock();
        status.runs += 1;
        status.last_finish = Some(now);
        match result {
            Ok(_) => status.failing = 0,
            Err(error) => {
                status.failures += 1;
                status.failing += 1;
                status.last_error = Some(format!("{key}: {error}"));
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs keys until the token is cancelled, then waits for the runs that
    /// are under way.
    pub async fn run(&self, reconciler: Arc<dyn KeyedReconcile<K>>, token: CancellationToken) {
        let mut running = JoinSet::new();
        while !token.is_cancelled() {
            let next = self.start_due(&reconciler, &mut running);
            let sleep = async {
                match next {
                    Some(due) => self.inner.clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = token.cancelled() => break,
                () = self.inner.changed.notified() => {}
                Some(_) = running.join_next() => {}
                () = sleep => {}
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Starts what is due and has room, and says when the next is due.
    fn start_due(
        &self,
        reconciler: &Arc<dyn KeyedReconcile<K>>,
        running: &mut JoinSet<()>,
    ) -> Option<Millis> {
        let now = self.inner.clock.now();
        let mut room = self.inner.parallel.saturating_sub(running.len());
        let mut next: Option<Millis> = None;
        let mut entries = self.inner.entries.lock();
        let mut start = Vec::new();
        for (key, entry) in entries.iter_mut().filter(|(_, entry)| !entry.running) {
            match entry.due {
                Some(due) if due <= now && room > 0 => {
                    room -= 1;
                    entry.running = true;
                    entry.due = None;
                    start.push(key.clone());
                }
                // Without room the end of a run wakes us.
                Some(due) if due > now => next = Some(next.map_or(due, |next| next.min(due))),
                _ => {}
            }
        }
        drop(entries);
        for key in start {
            let (queue, reconciler) = (self.clone(), Arc::clone(reconciler));
            running.spawn(async move { queue.run_one(reconciler.as_ref(), &key).await });
        }
        next
    }

    async fn run_one(&self, reconciler: &dyn KeyedReconcile<K>, key: &K) {
        let result = AssertUnwindSafe(reconciler.run(key)).catch_unwind().await;
        let result = result.unwrap_or_else(|payload| {
            let text = format!("panicked: {}", panic_message(payload.as_ref()));
            Err(Failure::new(Code::Internal, text))
        });
        if let Err(error) = &result {
            tracing::warn!(name = reconciler.name(), %key, %error, "reconciler failed");
        }
        self.note(key, &result);
        self.ended(key, &result);
    }

    fn ended(&self, key: &K, result: &Result<Summary, Failure>) {
        let now = self.inner.clock.now();
        let mut entries = self.inner.entries.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        entry.running = false;
        let after = match result {
            Ok(summary) => {
                entry.failures = 0;
                summary.again
            }
            Err(_) => {
                entry.failures += 1;
                let backoff = self.inner.backoff.as_ref();
                backoff.map(|backoff| backoff.delay(entry.failures, rand::random()))
            }
        };
        let due = after.map(|after: Duration| now.saturating_add(millis(after)));
        // A failing key waits its time, whatever happens to it meanwhile.
        entry.due = match (std::mem::take(&mut entry.dirty), due) {
            (true, _) if result.is_ok() => Some(now),
            (true, due) => Some(due.unwrap_or(now)),
            (false, due) => due,
        };
        if entry.due.is_none() {
            entries.remove(key);
        }
    }
}
