//! Behaviour of the embedded store alone.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use selvage_store::clock::ManualClock;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{Error, KeyRange, Op, SharedStore, Store, StoreExt, Txn};

use crate::support::{describe, next, next_error, within};

fn with_clock(clock: &ManualClock) -> Options {
    Options { clock: Arc::new(clock.clone()), ..Options::default() }
}

#[tokio::test]
async fn a_file_is_opened_by_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let store = Embedded::open(&file, Options::default()).await.unwrap();
    let error = Embedded::open(&file, Options::default()).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Locked { .. }), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains(&file.display().to_string()), "{text}");
    let error = selvage_store::transfer::check(&file).await.unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    store.close().await.unwrap();
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Embedded::open(&file, Options::default()).await.unwrap();
}

#[tokio::test]
async fn dropping_closes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let store = Embedded::open(&file, Options::default()).await.unwrap();
    let mut watch = store.watch(KeyRange::All, None).await.unwrap();
    store.put("a", "1").await.unwrap();
    drop(store);
    next(&mut watch).await;
    assert!(within(10, "the watch", watch.next()).await.is_none());
    let store = within(10, "the lock", async {
        loop {
            match Embedded::open(&file, Options::default()).await {
                Err(Error::Locked { .. }) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        }
    })
    .await;
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "1");
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_named() {
    let error = Embedded::open("/nowhere/at/all", Options::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "opening /nowhere/at/all.lock");
    let folder = tempfile::tempdir().unwrap();
    let error = Embedded::open(folder.path(), Options::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("opening "), "{error}");
}

#[tokio::test]
async fn leases_end_when_their_time_is_over() {
    let clock = ManualClock::new(1_000_000);
    let store: SharedStore = Embedded::in_memory(with_clock(&clock)).await.unwrap();
    let short = store.lease_grant(Duration::from_secs(10)).await.unwrap();
    let long = store.lease_grant(Duration::from_secs(100)).await.unwrap();
    let txn = Txn::new()
        .then(Op::put_with_lease("a", "1", short.id))
        .then(Op::put_with_lease("b", "1", short.id))
        .then(Op::put_with_lease("c", "1", long.id));
    store.txn(txn).await.unwrap();
    let mut watch = store.watch(KeyRange::All, None).await.unwrap();

    clock.advance(Duration::from_secs(9));
    assert_eq!(store.lease_ttl(short.id).await.unwrap().remaining, Duration::from_secs(1));
    store.lease_keep_alive(short.id).await.unwrap();
    clock.advance(Duration::from_secs(9));
    assert_eq!(store.list("").await.unwrap().count, 3);

    clock.advance(Duration::from_secs(1));
    let batch = next(&mut watch).await;
    assert_eq!(describe(&batch), [("delete", "a".into()), ("delete", "b".into())]);
    assert_eq!(store.lease_list().await.unwrap(), [long.id]);
    let error = store.lease_keep_alive(short.id).await.unwrap_err();
    assert!(matches!(error, Error::LeaseNotFound { .. }), "{error}");

    clock.advance(Duration::from_secs(200));
    // Over, even before anybody has cleaned up.
    let late = Txn::new().then(Op::put_with_lease("d", "1", long.id));
    assert!(matches!(store.txn(late).await, Err(Error::LeaseNotFound { .. })));
    assert_eq!(describe(&next(&mut watch).await), [("delete", "c".into())]);
}

#[tokio::test]
async fn leases_outlive_the_process_and_end_on_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let clock = ManualClock::new(1_000_000);
    let store = Embedded::open(&file, with_clock(&clock)).await.unwrap();
    let kept = store.lease_grant(Duration::from_secs(100)).await.unwrap();
    let over = store.lease_grant(Duration::from_secs(20)).await.unwrap();
    for (key, lease) in [("kept", kept.id), ("over", over.id)] {
        store.txn(Txn::new().then(Op::put_with_lease(key, "1", lease))).await.unwrap();
    }
    let revision = store.revision().await.unwrap();
    store.close().await.unwrap();

    clock.advance(Duration::from_secs(50));
    let store = Embedded::open(&file, with_clock(&clock)).await.unwrap();
    let mut watch = store.watch(KeyRange::All, Some(revision + 1)).await.unwrap();
    assert_eq!(describe(&next(&mut watch).await), [("delete", "over".into())]);
    assert_eq!(store.lease_ttl(kept.id).await.unwrap().remaining, Duration::from_secs(50));
    assert!(store.get("kept").await.unwrap().is_some());
}

#[tokio::test]
async fn old_history_goes_by_itself() {
    let clock = ManualClock::new(1_000_000);
    let options = Options { log_revisions: 50, ..with_clock(&clock) };
    let store: SharedStore = Embedded::in_memory(options).await.unwrap();
    for number in 0..200 {
        store.put("k", number.to_string()).await.unwrap();
    }
    let status = store.status().await.unwrap();
    let kept = status.revision - status.compacted;
    assert!((50..=55).contains(&kept), "{kept} revisions kept");

    clock.advance(Duration::from_secs(25 * 3600));
    let last = store.put("k", "new").await.unwrap();
    assert_eq!(store.status().await.unwrap().compacted, last - 1);
    let mut watch = store.watch(KeyRange::All, Some(last - 5)).await.unwrap();
    let error = next_error(&mut watch).await;
    assert!(matches!(error, Error::Compacted { oldest } if oldest == last), "{error}");
}

/// A watch that does not read costs nothing and loses nothing: it goes on from
/// the log, or is told that the log does not go back that far.
#[tokio::test]
async fn a_slow_watch_reads_the_log() {
    let options = Options { ring_revisions: 8, log_revisions: 1000, ..Options::default() };
    let store: SharedStore = Embedded::in_memory(options).await.unwrap();
    let mut slow = store.watch(KeyRange::prefix("k"), None).await.unwrap();
    let start = store.revision().await.unwrap();
    for number in 0..600 {
        store.put(format!("k{number}"), "v").await.unwrap();
    }
    for number in 0..600 {
        let batch = next(&mut slow).await;
        assert_eq!(batch.revision, start + 1 + number);
    }
    for number in 0..50 {
        store.put(format!("k{number}"), "w").await.unwrap();
    }
    let now = store.revision().await.unwrap();
    store.compact(now - 10).await.unwrap();
    let error = next_error(&mut slow).await;
    assert!(matches!(error, Error::Compacted { oldest } if oldest == now - 9), "{error}");
}

#[tokio::test]
async fn a_watch_says_how_far_it_is() {
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let mut watch = store.watch(KeyRange::key("a"), None).await.unwrap();
    let revision = store.put("b", "1").await.unwrap();
    let batch = within(10, "progress", watch.next()).await.unwrap().unwrap();
    assert_eq!((batch.revision, batch.events.len()), (revision, 0));
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let store = Embedded::open(&file, Options::default()).await.unwrap();
    let first = store.put("a", "1").await.unwrap();
    store.put("a", "2").await.unwrap();
    store.delete(KeyRange::key("b")).await.unwrap();
    store.compact(first).await.unwrap();
    let before = (store.list("").await.unwrap(), store.status().await.unwrap());
    store.close().await.unwrap();
    let store = Embedded::open(&file, Options::default()).await.unwrap();
    let after = (store.list("").await.unwrap(), store.status().await.unwrap());
    assert_eq!(before.0, after.0);
    assert_eq!((before.1.revision, before.1.compacted), (after.1.revision, after.1.compacted));
    let mut watch = store.watch(KeyRange::All, Some(first + 1)).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, first + 1);
}

/// Many callers share one write to disk, and each still gets a revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_a_write_but_not_a_revision() {
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let puts = (0..500).map(|number| {
        let store = store.clone();
        async move { store.put(format!("k{number}"), "v").await.unwrap() }
    });
    let mut revisions = futures::future::join_all(puts).await;
    revisions.sort_unstable();
    assert_eq!(revisions, (2..502).collect::<Vec<_>>());
}

/// Rows are moved about below while readers look: each sees one moment, and
/// never an older one than before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_moment() {
    let options = Options { pending_keys: 3, log_revisions: 500, ..Options::default() };
    let store: SharedStore = Embedded::in_memory(options).await.unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 0..400_u64 {
                let mut txn = Txn::new();
                for key in ["a", "b", "c"] {
                    let op = Op::put(format!("{key}{}", number % 2), number.to_string());
                    txn = txn.then(op).then(Op::Delete(KeyRange::key(format!("{key}-"))));
                }
                store.txn(txn).await.unwrap();
            }
        })
    };
    let mut last = 0;
    while !writer.is_finished() {
        let now = store.list("").await.unwrap();
        assert!(now.revision >= last);
        for parity in ["0", "1"] {
            let mut values: Vec<_> =
                now.items.iter().filter(|kv| kv.key.ends_with(parity.as_bytes())).collect();
            values.dedup_by(|a, b| a.value == b.value);
            assert!(values.len() < 2, "{values:?}");
        }
        let newest = now.items.iter().map(|kv| kv.mod_revision).max().unwrap_or(1);
        assert_eq!(newest, now.revision, "the newest change is there");
        let request = selvage_store::RangeRequest::new(KeyRange::All).at(now.revision);
        assert_eq!(store.range(request).await.unwrap().items, now.items);
        last = now.revision;
    }
    writer.await.unwrap();
    assert_eq!(store.list("").await.unwrap().revision, 401);
}
