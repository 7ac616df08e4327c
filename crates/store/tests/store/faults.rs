//! Power cuts and broken disks, many seeds of each.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{Error, Op, Revision, SharedStore, StoreExt, Txn};

use crate::support::disk::{Disk, FAULTS, Fault};

const WRITERS: usize = 3;
const ROUNDS: u64 = 12;

#[derive(Debug, Clone, Copy, Default)]
struct Acknowledged {
    number: u64,
    revision: Revision,
}

type Progress = Mutex<Vec<Acknowledged>>;

fn options() -> Options {
    Options { log_revisions: 20, pending_keys: 12, cache_bytes: 64 << 10, ..Options::default() }
}

async fn number(store: &SharedStore, key: String) -> Result<u64, Error> {
    let found = store.get(&key).await?;
    Ok(found.map_or(0, |kv| String::from_utf8_lossy(&kv.value[..8]).parse().unwrap()))
}

/// Counts until the rounds are over or the store fails; once it has failed it
/// must keep saying so.
async fn count(store: SharedStore, writer: usize, progress: &Progress) {
    let from = progress.lock()[writer];
    for number in from.number + 1..=from.number + ROUNDS {
        let mut txn = Txn::new().then(Op::put(format!("done/{writer}/{number:08}"), "x"));
        for part in ["a", "b"] {
            // Long enough that pages fill and split.
            let value = format!("{number:08}{}", "-".repeat(300));
            txn = txn.then(Op::put(format!("count/{writer}/{part}"), value));
        }
        match store.txn(txn).await {
            Ok(reply) => {
                progress.lock()[writer] = Acknowledged { number, revision: reply.revision };
            }
            Err(Error::Failed { .. }) => {
                let again = store.put("again", "x").await;
                assert!(matches!(again, Err(Error::Failed { .. })), "{again:?}");
                let status = store.status().await.unwrap();
                assert!(status.failure.is_some());
                return;
            }
            Err(error) => panic!("unexpected: {error}"),
        }
    }
}

async fn load(store: &SharedStore, progress: &Progress) {
    let counting = (0..WRITERS).map(|writer| count(store.clone(), writer, progress));
    futures::future::join_all(counting).await;
}

/// Reads what is there now; fails if something acknowledged is not, or if half
/// of a transaction is.
async fn verify(disk: &Disk, acknowledged: &[Acknowledged], seed: u64) -> Vec<Acknowledged> {
    let store: SharedStore = Embedded::open_with_backend(disk.clone(), options())
        .await
        .unwrap_or_else(|error| panic!("seed {seed}: does not open again: {error}"));
    let revision = store.revision().await.unwrap();
    let mut found = Vec::new();
    for (writer, acked) in acknowledged.iter().enumerate() {
        let there = number(&store, format!("count/{writer}/a")).await.unwrap();
        assert!(there >= acked.number, "seed {seed}: {acked:?} acknowledged, {there} is there");
        assert!(revision >= acked.revision, "seed {seed}: revision went back");
        let other = number(&store, format!("count/{writer}/b")).await.unwrap();
        assert_eq!(there, other, "seed {seed}: half a transaction");
        let done = store.list(&format!("done/{writer}/")).await.unwrap();
        assert_eq!(done.count, there, "seed {seed}: each count left its key");
        found.push(Acknowledged { number: there, revision });
    }
    store.close().await.unwrap();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts_lose_nothing_acknowledged() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = Disk::new(seed);
        let progress = Progress::new(vec![Acknowledged::default(); WRITERS]);
        for cut in 0..4 {
            let store: SharedStore =
                Embedded::open_with_backend(disk.clone(), options()).await.unwrap();
            let enough = revision_sum(&progress) + random.random_range(0..100);
            let rounds = random.random_range(0..200);
            tokio::select! {
                biased;
                () = load(&store, &progress) => {}
                () = until(&progress, enough, rounds) => {}
            }
            // First what is acknowledged, then the cut: all of it must be there.
            let acknowledged = progress.lock().clone();
            disk = disk.power_cut(seed * 10 + cut);
            drop(store);
            *progress.lock() = verify(&disk, &acknowledged, seed).await;
        }
    }
}

fn revision_sum(progress: &Progress) -> Revision {
    progress.lock().iter().map(|acknowledged| acknowledged.revision).sum()
}

/// Returns somewhere in the middle of the work.
async fn until(progress: &Progress, enough: Revision, rounds: u32) {
    while revision_sum(progress) < enough {
        tokio::task::yield_now().await;
    }
    for _ in 0..rounds {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_disks_lose_nothing_acknowledged() {
    let mut struck = 0;
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(1000 + seed);
        let fault = FAULTS[usize::try_from(seed).unwrap() % FAULTS.len()];
        let disk = Disk::new(seed);
        let progress = Progress::new(vec![Acknowledged::default(); WRITERS]);
        let most = if fault == Fault::SyncFails { 20 } else { 150 };
        disk.plan(fault, random.random_range(0..most));
        match Embedded::open_with_backend(disk.clone(), options()).await {
            Ok(store) => {
                let store: SharedStore = store;
                load(&store, &progress).await;
                // Closing says it too if writing had failed.
                let _ = store.close().await;
            }
            // Struck while the file was being made.
            Err(error) => {
                assert!(disk.struck(), "seed {seed}: {error}");
                assert!(matches!(error, Error::Io { .. } | Error::Failed { .. }), "{error:?}");
                struck += 1;
                let again = Embedded::open_with_backend(disk.power_cut(seed), options()).await;
                // A file that was never finished may be unusable, but says so.
                let detected =
                    again.as_ref().err().is_none_or(|e| matches!(e, Error::Corrupt { .. }));
                assert!(detected, "seed {seed}: {again:?}");
                continue;
            }
        }
        struck += u32::from(disk.struck());
        let acknowledged = progress.into_inner();
        verify(&disk.power_cut(seed), &acknowledged, seed).await;
    }
    assert!(struck > 200, "only {struck} faults struck");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_is_not_acknowledged_and_ends_writing() {
    let disk = Disk::new(7);
    let store: SharedStore = Embedded::open_with_backend(disk.clone(), options()).await.unwrap();
    store.put("a", "1").await.unwrap();
    disk.plan(Fault::SyncFails, 0);
    let error = store.put("a", "2").await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    assert!(error.to_string().contains("Input/output error"), "{error}");
    // The disk works again, but what it holds is unknown: no more writes.
    assert!(matches!(store.put("b", "1").await, Err(Error::Failed { .. })));
    assert!(matches!(
        store.lease_grant(std::time::Duration::from_secs(9)).await,
        Err(Error::Failed { .. })
    ));
    assert_eq!(store.revision().await.unwrap(), 2);
    assert!(matches!(store.close().await, Err(Error::Failed { .. })));
    let store: SharedStore =
        Embedded::open_with_backend(disk.power_cut(7), options()).await.unwrap();
    let value = store.get("a").await.unwrap().unwrap().value;
    assert!(value == "1" || value == "2", "{value:?}");
    store.put("b", "1").await.unwrap();
}
