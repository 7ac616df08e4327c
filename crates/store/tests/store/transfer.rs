//! Export, import, check.

use std::path::Path;

use proptest::prelude::*;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::transfer::{self, Existing, Imported, check, export};
use selvage_store::{Error, Op, SharedStore, Store, StoreExt, Table, Txn};

use crate::support::records::App;
use selvage_testkit::etcd::Cluster;

async fn memory() -> SharedStore {
    Embedded::in_memory(Options::default()).await.unwrap()
}

async fn import(store: &dyn Store, file: &Path, existing: Existing) -> Result<Imported, Error> {
    transfer::import(store, transfer::read(file).await?, existing).await
}

async fn fill(store: &SharedStore) {
    let table = Table::<App>::open(store.clone()).await.unwrap();
    for number in 0..150 {
        let app = App::new(&format!("app-{number}"), "owner");
        store.txn(Txn::new().then(Op::put(format!("k{number}"), "v"))).await.unwrap();
        table.create(app).await.unwrap();
    }
    store.put(&b"\x00\xff binary"[..], &b"\xfe\x00"[..]).await.unwrap();
    store.put("large", vec![9; 1 << 20]).await.unwrap();
    store.put("empty", "").await.unwrap();
    let lease = store.lease_grant(std::time::Duration::from_secs(1000)).await.unwrap();
    store.txn(Txn::new().then(Op::put_with_lease("leased", "x", lease.id))).await.unwrap();
}

/// Keys and values, in order, without those on a lease.
async fn content(store: &SharedStore) -> Vec<(bytes::Bytes, bytes::Bytes)> {
    let items = store.list("").await.unwrap().items;
    items.into_iter().filter(|kv| kv.lease.is_none()).map(|kv| (kv.key, kv.value)).collect()
}

async fn carry(from: &SharedStore, to: &SharedStore) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export");
    let exported = export(from.as_ref(), &file).await.unwrap();
    assert_eq!((exported.keys, exported.leased), (303, 1));
    assert_eq!(exported.revision, from.revision().await.unwrap());
    let imported = import(to.as_ref(), &file, Existing::Refuse).await.unwrap();
    assert_eq!((imported.keys, imported.source_revision), (303, exported.revision));
    assert_eq!(imported.revision, to.revision().await.unwrap());
    assert_eq!(content(from).await, content(to).await);
    let table = Table::<App>::open(to.clone()).await.unwrap();
    assert_eq!(table.by_index("owner", "owner").len(), 150);

    let again = import(to.as_ref(), &file, Existing::Refuse).await.unwrap_err();
    assert!(matches!(again, Error::NotEmpty { count: 303 }), "{again}");
    to.put("more", "kept").await.unwrap();
    import(to.as_ref(), &file, Existing::Merge).await.unwrap();
    assert_eq!(content(to).await.len(), 304);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_embedded_to_etcd_and_back() {
    let Some(cluster) = Cluster::start(1).await else { return };
    let embedded = memory().await;
    fill(&embedded).await;
    let etcd: SharedStore = cluster.store().await;
    carry(&embedded, &etcd).await;
    let etcd: SharedStore = cluster.store().await;
    fill(&etcd).await;
    carry(&etcd, &memory().await).await;
}

#[tokio::test]
async fn from_embedded_to_embedded() {
    let source = memory().await;
    fill(&source).await;
    carry(&source, &memory().await).await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A small export, as text.
fn sample(folder: &Path) -> Vec<u8> {
    let file = folder.join("sample");
    runtime().block_on(async {
        let store = memory().await;
        for number in 0..20 {
            store.put(format!("k{number:02}"), format!("value {number}")).await.unwrap();
        }
        export(store.as_ref(), &file).await.unwrap();
    });
    std::fs::read(&file).unwrap()
}

/// The error and whether anything was written in spite of it.
fn try_import(bytes: &[u8]) -> (Result<(), Error>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, bytes).unwrap();
    runtime().block_on(async {
        let store = memory().await;
        let result = import(store.as_ref(), &file, Existing::Refuse).await.map(drop);
        (result, store.list("").await.unwrap().count)
    })
}

#[test]
fn every_cut_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = sample(folder.path());
    assert!(try_import(&bytes).0.is_ok());
    for length in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        let (result, written) = try_import(&bytes[..length]);
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert_eq!(written, 0);
    }
}

#[test]
fn messages_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let text = String::from_utf8(sample(folder.path())).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let refused = |text: String| try_import(text.as_bytes()).0.unwrap_err().to_string();
    let error = refused(lines[..10].join("\n") + "\n");
    assert!(error.ends_with("line 11: the file ends here, it was cut off"), "{error}");
    let error = refused(text.replace("\"version\":1", "\"version\":2"));
    assert!(error.ends_with("has format 2, this program knows formats up to 1"), "{error}");
    let error = refused(text.replace("selvage-store-export", "something-else"));
    assert!(error.ends_with("its format is \"something-else\""), "{error}");
    let error = refused([&lines[..5], &lines[6..]].concat().join("\n") + "\n");
    assert!(error.contains("20 keys expected, 19 found"), "{error}");
    let other = lines[5].replace("value\":\"d", "value\":\"e");
    assert_ne!(other, lines[5]);
    let error = refused(text.replace(lines[5], &other));
    assert!(error.ends_with("the checksum does not match, the file was altered"), "{error}");
    let error = refused(text.clone() + "\n");
    assert!(error.ends_with("there is more after the last line"), "{error}");
    let missing = runtime().block_on(async {
        import(memory().await.as_ref(), &folder.path().join("none"), Existing::Refuse).await
    });
    assert!(matches!(missing, Err(Error::Io { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_exports_are_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = sample(folder.path());
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        let (result, written) = try_import(&bytes);
        prop_assert!(result.is_err());
        prop_assert_eq!(written, 0);
    }
}

#[tokio::test]
async fn check_finds_records_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let store = Embedded::open(&file, Options::default()).await.unwrap();
    let table = Table::<App>::open(store.clone()).await.unwrap();
    table.create(App::new("good", "x")).await.unwrap();
    store.put("records/app/bad", "garbage").await.unwrap();
    store.put("not a record", "anything").await.unwrap();
    store.close().await.unwrap();
    let report = check(&file).await.unwrap();
    assert_eq!((report.keys, report.records), (3, 2));
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].starts_with("record \"app/bad\": "), "{report:?}");
    let error = check(&folder.path().join("none")).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}
