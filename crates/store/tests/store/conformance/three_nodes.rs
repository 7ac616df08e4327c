//! The suite on three etcd nodes while one is killed and another cut off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use selvage_store::{Error, Event, KeyRange, SharedStore, Store, StoreExt};
use tokio::task::JoinHandle;

use super::{keys, leases, transactions, typed, watches};
use crate::support::{next, within};
use selvage_testkit::etcd::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_with_three_nodes() {
    let Some(mut cluster) = Cluster::start(3).await else { return };

    let load = Load::start(&cluster, "killed/").await;
    cluster.kill(0);
    load.check().await;
    keys::run(&cluster).await;
    transactions::run(&cluster).await;
    cluster.restart(0).await;

    let load = Load::start(&cluster, "frozen/").await;
    cluster.freeze(1);
    load.check().await;
    watches::run(&cluster).await;
    leases::run(&cluster).await;
    cluster.resume(1);

    let load = Load::start(&cluster, "killed-again/").await;
    cluster.kill(2);
    load.check().await;
    typed::run(&cluster).await;
}

/// Writes that a writer makes before a fault, and again after it.
const ENOUGH: usize = 20;
const WRITERS: u32 = 3;

/// Writers and a watch that go on while a member is lost.
struct Load {
    store: SharedStore,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    writers: Vec<JoinHandle<BTreeSet<String>>>,
    watcher: JoinHandle<BTreeSet<String>>,
}

impl Load {
    /// Returns when the load is under way.
    async fn start(cluster: &Cluster, namespace: &str) -> Self {
        let store: SharedStore = cluster.store_in(namespace).await;
        let start = within(60, "the cluster", async {
            loop {
                if let Ok(revision) = store.revision().await {
                    break revision;
                }
            }
        });
        let watcher = tokio::spawn(follow(store.clone(), start.await + 1));
        let (stop, count) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let write = |writer| {
            tokio::spawn(write(store.clone(), writer, Arc::clone(&stop), Arc::clone(&count)))
        };
        let writers = (0..WRITERS).map(write).collect();
        let load = Self { store, stop, count, writers, watcher };
        load.more().await;
        load
    }

    /// Waits for more acknowledged writes.
    async fn more(&self) {
        let goal = self.count.load(Ordering::Relaxed) + ENOUGH;
        within(90, "more writes", async {
            while self.count.load(Ordering::Relaxed) < goal {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Goes on for a while; then everything acknowledged must be there, and
    /// the watch must have seen all that is there and nothing else.
    async fn check(self) {
        self.more().await;
        self.stop.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeSet::new();
        for writer in self.writers {
            acknowledged.extend(within(60, "a writer", writer).await.unwrap());
        }
        within(60, "the last write", async {
            while self.store.put("end", "end").await.is_err() {}
        })
        .await;
        let listed = self.store.list("").await.unwrap();
        let listed: BTreeSet<_> = listed.items.iter().map(|kv| text(&kv.key)).collect();
        let lost: Vec<_> = acknowledged.difference(&listed).collect();
        assert!(lost.is_empty(), "acknowledged but lost: {lost:?}");
        let seen = within(60, "the watch", self.watcher).await.unwrap();
        assert_eq!(seen, listed);
    }
}

async fn write(
    store: SharedStore,
    writer: u32,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{writer}/{number:06}");
        match store.put(key.clone(), "v").await {
            Ok(_) => {
                count.fetch_add(1, Ordering::Relaxed);
                acknowledged.insert(key);
            }
            Err(Error::Unavailable { .. } | Error::Timeout { .. }) => {}
            Err(error) => panic!("unexpected: {error}"),
        }
    }
    acknowledged
}

/// Follows until the key `end` comes.
async fn follow(store: SharedStore, from: u64) -> BTreeSet<String> {
    let mut watch = store.watch(KeyRange::All, Some(from)).await.unwrap();
    let mut seen = BTreeSet::new();
    let mut last = 0;
    while !seen.contains("end") {
        let batch = watch.next_events().await.unwrap().unwrap();
        assert!(batch.revision > last, "in order and none twice");
        last = batch.revision;
        for event in &batch.events {
            assert!(matches!(event, Event::Put(kv) if kv.version == 1) || event.key() == "end");
            seen.insert(text(event.key()));
        }
    }
    seen
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_where_it_was() {
    let Some(mut cluster) = Cluster::start(1).await else { return };
    let store = cluster.store().await;
    let mut watch = store.watch(KeyRange::All, None).await.unwrap();
    let first = store.put("k", "1").await.unwrap();
    assert_eq!(next(&mut watch).await.revision, first);
    cluster.kill(0);
    let reading = tokio::spawn(async move { (next(&mut watch).await, next(&mut watch).await) });
    cluster.restart(0).await;
    within(60, "the store", async { while store.put("k", "2").await.is_err() {} }).await;
    let third = store.put("k", "3").await.unwrap();
    let (second, last) = within(60, "the watch", reading).await.unwrap();
    assert_eq!((second.revision, last.revision), (first + 1, third));
}
