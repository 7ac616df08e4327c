//! Work that is done per key: one after the other for the same key, at the
//! same time for different ones.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    future::Future,
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

type Work<K, V> = Box<dyn Fn(K, V) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs a callback for keys that have changed.
///
/// While the callback runs for a key, further changes of that key are
/// remembered as one, with the `before` of the first of them: the callback
/// looks at the newest state by itself and sees all that happened since its
/// last run.
pub(crate) struct KeyWorker<K, V> {
    inner: Arc<Inner<K, V>>,
}

struct Inner<K, V> {
    work: Work<K, V>,
    /// Keys at work, and what waits for them.
    busy: Mutex<HashMap<K, Option<V>>>,
    tasks: TaskTracker,
    runs: AtomicU64,
    workers: AtomicU64,
}

impl<K, V> Clone for KeyWorker<K, V> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, V> Debug for KeyWorker<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWorker").field("busy", &self.inner.busy.lock().len()).finish()
    }
}

impl<K, V> KeyWorker<K, V>
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    V: Send + 'static,
{
    /// A worker with this callback.
    pub(crate) fn new<F, Fut>(work: F) -> Self
    where
        F: Fn(K, V) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self {
            inner: Arc::new(Inner {
                work: Box::new(move |key, before| Box::pin(work(key, before))),
                busy: Mutex::default(),
                tasks: TaskTracker::new(),
                runs: AtomicU64::new(0),
                workers: AtomicU64::new(0),
            }),
        }
    }

    /// The key has changed; `before` is how it was. Needs a runtime.
    pub(crate) fn changed(&self, key: K, before: V) {
        let mut busy = self.inner.busy.lock();
        if let Some(waiting) = busy.get_mut(&key) {
            waiting.get_or_insert(before);
            return;
        }
        busy.insert(key.clone(), None);
        drop(busy);
        self.inner.workers.fetch_add(1, Relaxed);
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move { inner.run(key, before).await });
    }

    /// Returns true if the callback runs for the key.
    #[cfg(test)]
    fn is_busy(&self, key: &K) -> bool {
        self.inner.busy.lock().contains_key(key)
    }

    /// Returns how often the callback was run, and how many tasks that took.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.inner.runs.load(Relaxed), self.inner.workers.load(Relaxed))
    }

    /// Returns when nothing runs any more. Changes that come later are taken
    /// all the same.
    pub(crate) async fn idle(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.tasks.reopen();
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Eq + Hash + Debug,
{
    async fn run(&self, key: K, mut before: V) {
        loop {
            self.runs.fetch_add(1, Relaxed);
            let work = (self.work)(key.clone(), before);
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                tracing::error!(?key, "the work on an object panicked");
            }
            let mut busy = self.busy.lock();
            match busy.get_mut(&key).and_then(Option::take) {
                Some(next) => before = next,
                None => {
                    busy.remove(&key);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    type Started = mpsc::UnboundedReceiver<(char, u32)>;

    /// A worker that reports each run and waits for a permit before it ends.
    fn stepped() -> (KeyWorker<char, u32>, Started, Arc<Semaphore>) {
        let (runs, started) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let permits = Arc::clone(&gate);
        let worker = KeyWorker::new(move |key, before| {
            let (runs, permits) = (runs.clone(), Arc::clone(&permits));
            async move {
                runs.send((key, before)).unwrap();
                permits.acquire().await.unwrap().forget();
            }
        });
        (worker, started, gate)
    }

    #[tokio::test]
    async fn changes_of_a_busy_key_become_one_with_the_oldest_before() {
        let (worker, mut started, gate) = stepped();
        worker.changed('a', 1);
        assert_eq!(started.recv().await, Some(('a', 1)));
        for before in [2, 3, 4] {
            worker.changed('a', before);
        }
        worker.changed('b', 1);
        worker.changed('c', 1);
        // Other keys do not wait for the busy one.
        let mut others = [started.recv().await.unwrap(), started.recv().await.unwrap()];
        others.sort_unstable();
        assert_eq!(others, [('b', 1), ('c', 1)]);
        assert!(worker.is_busy(&'a'));
        gate.add_permits(4);
        assert_eq!(started.recv().await, Some(('a', 2)));
        worker.idle().await;
        assert_eq!(worker.counts(), (4, 3));
        assert!(!worker.is_busy(&'a') && started.try_recv().is_err());
        worker.changed('a', 9);
        assert_eq!(started.recv().await, Some(('a', 9)), "a worker can be used again");
    }

    #[tokio::test]
    async fn a_panic_does_not_block_the_key() {
        let worker = KeyWorker::new(|_: char, before: u32| async move {
            assert!(before != 1, "made to fail");
        });
        worker.changed('a', 1);
        worker.idle().await;
        worker.changed('a', 2);
        worker.idle().await;
        assert_eq!(worker.counts(), (2, 2));
    }
}
