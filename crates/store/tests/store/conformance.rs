//! One suite, run on every kind of store.

mod keys;
mod later;
mod leases;
mod life;
mod secured;
mod three_nodes;
mod transactions;
mod typed;
mod watches;

use std::time::Duration;

use selvage_store::embedded::{Embedded, Options};
use selvage_store::etcd::Etcd;
use selvage_store::{Error, KeyRange, SharedStore, Store, StoreExt};

use crate::support::{next, within};
use selvage_testkit::etcd::Cluster;

/// Makes stores that hold nothing.
pub(crate) trait Factory {
    async fn fresh(&self) -> SharedStore;
}

/// Tests that every store passes.
async fn run(factory: &impl Factory) {
    keys::run(factory).await;
    transactions::run(factory).await;
    watches::run(factory).await;
    leases::run(factory).await;
    typed::run(factory).await;
    closing(factory.fresh().await).await;
}

async fn closing(store: SharedStore) {
    store.put("a", "1").await.unwrap();
    let mut watch = store.watch(KeyRange::All, None).await.unwrap();
    store.close().await.unwrap();
    assert!(matches!(store.get("a").await, Err(Error::Closed)));
    assert!(matches!(store.put("a", "2").await, Err(Error::Closed)));
    assert!(matches!(store.status().await, Err(Error::Closed)));
    let end = within(20, "the end of a watch", watch.next_events()).await;
    assert!(end.is_none(), "{end:?}");
    store.close().await.unwrap();
}

struct Files(tempfile::TempDir);

impl Factory for Files {
    async fn fresh(&self) -> SharedStore {
        let folder = tempfile::tempdir_in(self.0.path()).unwrap().keep();
        Embedded::open(folder.join("store"), Options::default()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_in_a_file() {
    run(&Files(tempfile::tempdir().unwrap())).await;
}

/// With a number of keys that may wait for their place in the file.
struct Memory(usize);

impl Factory for Memory {
    async fn fresh(&self) -> SharedStore {
        let options = Options { pending_keys: self.0, ..Options::default() };
        Embedded::in_memory(options).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_in_memory() {
    run(&Memory(Options::default().pending_keys)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_without_delay() {
    for pending_keys in [0, 1, 3] {
        run(&Memory(pending_keys)).await;
    }
}

impl Factory for Cluster {
    async fn fresh(&self) -> SharedStore {
        self.store().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_with_one_node() {
    let Some(cluster) = Cluster::start(1).await else { return };
    run(&cluster).await;
    foreign_keys_do_not_disturb(&cluster).await;
    a_lease_ends_by_itself(&cluster).await;
    wrong_options_are_refused().await;
}

async fn foreign_keys_do_not_disturb(cluster: &Cluster) {
    let (ours, theirs) = (cluster.store_in("a/").await, cluster.store_in("b/").await);
    let mut watch = ours.watch(KeyRange::All, None).await.unwrap();
    theirs.put("k", "theirs").await.unwrap();
    ours.put("k", "ours").await.unwrap();
    assert_eq!(next(&mut watch).await.events.len(), 1);
    assert_eq!(ours.get("k").await.unwrap().unwrap().value, "ours");
    ours.delete(KeyRange::All).await.unwrap();
    assert_eq!(theirs.get("k").await.unwrap().unwrap().value, "theirs");
    assert_eq!(ours.list("").await.unwrap().count, 0);
}

async fn a_lease_ends_by_itself(cluster: &Cluster) {
    let store = cluster.store().await;
    let lease = store.lease_grant(Duration::from_millis(500)).await.unwrap();
    let op = selvage_store::Op::put_with_lease("k", "v", lease.id);
    let mut watch = store.watch(KeyRange::key("k"), None).await.unwrap();
    store.txn(selvage_store::Txn::new().then(op)).await.unwrap();
    next(&mut watch).await;
    let gone = next(&mut watch).await;
    assert_eq!(crate::support::describe(&gone), [("delete", "k".into())]);
}

async fn wrong_options_are_refused() {
    use selvage_store::etcd::{EtcdOptions, TlsOptions};
    let refused = |options| async { Etcd::connect(options).await.unwrap_err().to_string() };
    let none = EtcdOptions::default();
    assert_eq!(refused(none).await, "endpoints: name at least one");
    let endpoints = vec!["127.0.0.1:1".to_owned()];
    let text = refused(EtcdOptions { endpoints, ..EtcdOptions::default() }).await;
    assert!(text.contains("neither http:// nor https://"), "{text}");
    let tls = TlsOptions { cert: Some("/nowhere".into()), ..TlsOptions::default() };
    let endpoints = vec!["https://127.0.0.1:1".to_owned()];
    let text = refused(EtcdOptions { endpoints, tls: Some(tls), ..EtcdOptions::default() }).await;
    assert_eq!(text, "tls.key: must be set together with tls.cert");
    let endpoints = vec!["http://127.0.0.1:1".to_owned()];
    let request_timeout = Duration::from_millis(300);
    let options = EtcdOptions { endpoints, request_timeout, ..EtcdOptions::default() };
    let error = Etcd::connect(options).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
