//! The suite on three etcd nodes while one is killed and another cut off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use selvage_store::{Error, Event, KeyRange, SharedStore, Store, StoreExt};
use tokio::task::JoinHandle;

use super::{keys, leases, transactions, typed, watches};
use crate::support::etcd::Cluster;
use crate::support::{next, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_with_three_nodes() {
    let Some(mut cluster) = Cluster::start(3).await else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let load = Load::start(&cluster, &stop).await;

    cluster.kill(0);
    settled(&cluster).await;
    keys::run(&cluster).await;
    transactions::run(&cluster).await;
    cluster.restart(0).await;

    cluster.freeze(1);
    settled(&cluster).await;
    watches::run(&cluster).await;
    leases::run(&cluster).await;
    cluster.resume(1);

    cluster.kill(2);
    settled(&cluster).await;
    typed::run(&cluster).await;

    stop.store(true, Ordering::Relaxed);
    load.check().await;
}

/// Waits until the cluster takes writes again after a member was lost.
async fn settled(cluster: &Cluster) {
    within(60, "the cluster", async {
        let store = cluster.store().await;
        while store.put("settled", "yes").await.is_err() {}
    })
    .await;
}

/// Writers and a watch that go on through all of it.
struct Load {
    store: SharedStore,
    writers: Vec<JoinHandle<BTreeSet<String>>>,
    watcher: JoinHandle<BTreeSet<String>>,
}

impl Load {
    async fn start(cluster: &Cluster, stop: &Arc<AtomicBool>) -> Self {
        let store: SharedStore = cluster.store_in("load/").await;
        let start = store.revision().await.unwrap();
        let watcher = tokio::spawn(follow(store.clone(), start + 1));
        let write = |writer| tokio::spawn(write(store.clone(), writer, Arc::clone(stop)));
        let writers = (0..3).map(write).collect();
        Self { store, writers, watcher }
    }

    /// Everything acknowledged is there, and the watch saw all that is there
    /// and nothing else.
    async fn check(self) {
        let mut acknowledged = BTreeSet::new();
        for writer in self.writers {
            acknowledged.extend(within(60, "a writer", writer).await.unwrap());
        }
        within(60, "the last write", async {
            while self.store.put("end", "end").await.is_err() {}
        })
        .await;
        let listed: BTreeSet<_> = self
            .store
            .list("")
            .await
            .unwrap()
            .items
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
            .collect();
        assert!(acknowledged.len() > 20, "the load made only {} writes", acknowledged.len());
        let lost: Vec<_> = acknowledged.difference(&listed).collect();
        assert!(lost.is_empty(), "acknowledged but lost: {lost:?}");
        let seen = within(60, "the watch", self.watcher).await.unwrap();
        assert_eq!(seen, listed);
    }
}

async fn write(store: SharedStore, writer: u32, stop: Arc<AtomicBool>) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{writer}/{number:06}");
        match store.put(key.clone(), "v").await {
            Ok(_) => assert!(acknowledged.insert(key)),
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
        let batch = match watch.next_events().await {
            Some(Ok(batch)) => batch,
            // The suite compacts, and a watch that has nothing to do with it
            // may be far enough behind to notice: list and go on.
            Some(Err(Error::Compacted { .. })) => {
                let list = store.list("").await.unwrap();
                seen = list.items.iter().map(|kv| text(&kv.key)).collect();
                last = list.revision;
                watch = store.watch(KeyRange::All, Some(last + 1)).await.unwrap();
                continue;
            }
            other => panic!("unexpected: {other:?}"),
        };
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
    within(60, "the store", async {
        while store.put("k", "2").await.is_err() {}
    })
    .await;
    let third = store.put("k", "3").await.unwrap();
    let (second, last) = within(60, "the watch", reading).await.unwrap();
    assert_eq!((second.revision, last.revision), (first + 1, third));
}
