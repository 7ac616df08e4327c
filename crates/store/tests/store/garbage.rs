//! Files that are not what they should be.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{Error, KeyRange, RangeRequest, SharedStore, Store, StoreExt, transfer};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A sound file with a few hundred keys, some deleted, some on a lease.
static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let options = Options { pending_keys: 100, ..Options::default() };
    runtime().block_on(async {
        let store = Embedded::open(&file, options).await.unwrap();
        let lease = store.lease_grant(std::time::Duration::from_secs(1000)).await.unwrap();
        for group in 0..8 {
            let mut txn = selvage_store::Txn::new();
            for number in 0..40 {
                let key = format!("k/{group}/{number}");
                let lease = (number % 10 == 0).then_some(lease.id);
                txn = txn.then(selvage_store::Op::put_with_lease(key, vec![7; 60], lease));
            }
            store.txn(txn).await.unwrap();
        }
        store.delete(KeyRange::prefix("k/3/")).await.unwrap();
        store.close().await.unwrap();
    });
    std::fs::read(&file).unwrap()
});

/// Opens a file and uses it in every way; errors are fine, panics are not.
async fn use_it(file: &Path) -> Result<(), Error> {
    let store: SharedStore = Embedded::open(file, Options::default()).await?;
    let result = async {
        store.range(RangeRequest::new(KeyRange::All)).await?;
        store.range(RangeRequest::new(KeyRange::All).at(3)).await?;
        store.get("k/1/1").await?;
        store.lease_list().await?;
        store.put("k/1/1", "changed").await?;
        store.delete(KeyRange::prefix("k/2/")).await?;
        let mut watch = store.watch(KeyRange::All, Some(2)).await?;
        match watch.next_events().await {
            Some(batch) => batch.map(drop),
            None => Ok(()),
        }
    }
    .await;
    let closed = store.close().await;
    result.and(closed)
}

fn try_bytes(bytes: &[u8]) -> (Result<(), Error>, Result<transfer::CheckReport, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    runtime().block_on(async {
        std::fs::write(&file, bytes).unwrap();
        let checked = transfer::check(&file).await;
        std::fs::write(&file, bytes).unwrap();
        (use_it(&file).await, checked)
    })
}

/// Panics inside redb are contained; their text need not be shown.
fn quiet() {
    std::panic::set_hook(Box::new(|info| {
        let at = info.location().map(|location| location.file().to_owned()).unwrap_or_default();
        if !at.contains("redb") {
            eprintln!("{info}");
        }
    }));
}

/// Offset of a mutation: mostly in the pages that hold something.
fn offset() -> impl Strategy<Value = usize> {
    prop_oneof![0..512_usize, 0..SOUND.len()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_bytes_never_panic(changes in prop::collection::vec((offset(), any::<u8>()), 1..40)) {
        quiet();
        let mut bytes = SOUND.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = try_bytes(&bytes);
    }

    #[test]
    fn overwritten_pages_never_panic(page in 0..64_usize, fill in any::<u8>(), length in 1..5000_usize) {
        quiet();
        let mut bytes = SOUND.clone();
        let from = (page * 4096).min(bytes.len() - 1);
        let to = (from + length).min(bytes.len());
        bytes[from..to].fill(fill);
        let _ = try_bytes(&bytes);
    }

    #[test]
    fn cut_off_files_are_refused(length in 1..SOUND.len()) {
        quiet();
        let (used, checked) = try_bytes(&SOUND[..length]);
        if let Err(error) = &used {
            prop_assert!(error.to_string().contains("data file"), "{error}");
        }
        // Either both can live with what was cut off, or check says what is wrong.
        prop_assert!(used.is_ok() || checked.map_or(true, |report| !report.problems.is_empty()));
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 1..10_000)) {
        quiet();
        let (used, checked) = try_bytes(&bytes);
        let error = used.unwrap_err();
        prop_assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        prop_assert!(checked.is_err());
    }
}

#[test]
fn the_message_names_the_file_and_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    std::fs::write(&file, "this is a letter, not a store\n".repeat(1000)).unwrap();
    let error = runtime().block_on(Embedded::open(&file, Options::default())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&file.display().to_string()) && text.contains("is damaged"), "{text}");
    assert_eq!(error.code(), selvage_api::Code::DataLoss);
}

#[test]
fn a_sound_file_is_found_sound() {
    let (used, checked) = try_bytes(&SOUND);
    used.unwrap();
    let report = checked.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.keys, report.log_entries, report.leases), (280, 9, 1));
}

#[test]
fn damage_to_a_page_is_found_by_check() {
    let mut bytes = SOUND.clone();
    let value = [7_u8; 60];
    let at = bytes.windows(60).position(|window| window == value).unwrap();
    for start in (at..bytes.len() - 60).filter(|at| SOUND[*at..*at + 60] == value) {
        bytes[start + 5] = 9;
    }
    let (_, checked) = try_bytes(&bytes);
    let found = checked.map(|report| report.problems);
    assert!(found.as_ref().map_or(true, |problems| !problems.is_empty()), "{found:?}");
}
