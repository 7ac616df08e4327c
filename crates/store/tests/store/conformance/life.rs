//! etcd as people run it: tokens end, certificates are replaced, a member comes
//! back from an older copy.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use selvage_store::etcd::{Credentials, Etcd, EtcdOptions};
use selvage_store::{KeyRange, SharedStore, Store, StoreExt, Table};

use super::secured::{certificates, demand_passwords};
use crate::support::records::App;
use crate::support::{next, within};
use selvage_testkit::etcd::Cluster;

fn with_password(cluster: &Cluster) -> EtcdOptions {
    let (user, password) = ("root".to_owned(), "a good word".to_owned());
    EtcdOptions { credentials: Some(Credentials { user, password }), ..cluster.options() }
}

/// Waits until a token that is made now and not used has ended.
async fn let_tokens_end(cluster: &Cluster) {
    let mut unused = Vec::new();
    for _ in 0..40 {
        let options = ConnectOptions::new().with_user("root", "a good word");
        unused.push(Client::connect(cluster.options().endpoints, Some(options)).await.unwrap());
    }
    // A use makes a token live longer, so each is used once.
    for mut client in unused {
        tokio::time::sleep(Duration::from_millis(250)).await;
        if client.get("k", None).await.is_err() {
            return;
        }
    }
    panic!("no token ended");
}

async fn has(table: &Table<App>, wanted: &[&str]) {
    let names = || table.list().iter().map(|app| app.value.name.clone()).collect::<Vec<_>>();
    within(60, "the view", async {
        while names() != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_have_ended_are_replaced() {
    let flags = &["--auth-token-ttl", "1"];
    let Some(mut cluster) = Cluster::start_with(1, None, flags).await else { return };
    demand_passwords(&cluster.options()).await;
    let store = Etcd::connect(with_password(&cluster)).await.unwrap();
    store.put("k", "0").await.unwrap();
    let start = store.revision().await.unwrap();

    // Each with a token that has ended when it begins.
    let_tokens_end(&cluster).await;
    let mut watch = store.watch(KeyRange::All, Some(start + 1)).await.unwrap();
    let reading = tokio::spawn(async move { (next(&mut watch).await, watch) });
    let writer = Etcd::connect(with_password(&cluster)).await.unwrap();
    writer.put("k", "1").await.unwrap();
    let (batch, mut watch) = within(60, "the watch", reading).await.unwrap();
    assert_eq!(batch.revision, start + 1);
    let_tokens_end(&cluster).await;
    store.put("k", "2").await.unwrap();
    assert_eq!(next(&mut watch).await.revision, start + 2);
    let lease = store.lease_grant(Duration::from_secs(600)).await.unwrap();
    let_tokens_end(&cluster).await;
    store.lease_keep_alive(lease.id).await.unwrap();

    // A server that starts again knows none of its tokens.
    cluster.kill(0);
    cluster.restart_unseen(0);
    let shared: SharedStore = store;
    let table = within(60, "the server", async {
        loop {
            if let Ok(table) = Table::<App>::open(Arc::clone(&shared)).await {
                break table;
            }
        }
    });
    let table = table.await;
    table.create(App::new("a", "x")).await.unwrap();
    has(&table, &["a"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_while_a_store_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let Some(mut cluster) = Cluster::start_with(1, Some(tls.clone().into()), &[]).await else {
        return;
    };
    let store: SharedStore = cluster.store().await;
    let table = Table::<App>::open(Arc::clone(&store)).await.unwrap();
    table.create(App::new("a", "x")).await.unwrap();

    // Files that do not belong together, as whoever replaces them leaves them
    // for a moment, end nothing.
    let key = std::fs::read(tls.key.as_ref().unwrap()).unwrap();
    std::fs::write(tls.key.as_ref().unwrap(), "half").unwrap();
    for number in 0..12 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        table.create(App::new(&format!("b{number}"), "x")).await.unwrap();
    }
    std::fs::write(tls.key.as_ref().unwrap(), key).unwrap();

    // Another authority altogether, for both ends.
    cluster.kill(0);
    certificates(folder.path());
    cluster.restart(0).await;
    within(60, "the store", async { while store.put("k", "v").await.is_err() {} }).await;
    table.create(App::new("c", "x")).await.unwrap();
    assert!(table.get("c").is_some() && table.get("a").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_follows_a_server_that_was_put_back_to_an_older_copy() {
    let Some(mut cluster) = Cluster::start(1).await else { return };
    let store: SharedStore = cluster.store_in("region/").await;
    let table = Table::<App>::open(Arc::clone(&store)).await.unwrap();
    table.create(App::new("kept", "before")).await.unwrap();
    table.create(App::new("removed later", "before")).await.unwrap();
    cluster.kill(0);
    let copy = cluster.copy(0);
    cluster.restart(0).await;
    within(60, "the store", async { while store.revision().await.is_err() {} }).await;

    table
        .update("kept", |app| {
            app.owner = "after".into();
            Ok::<_, selvage_store::Error>(())
        })
        .await
        .unwrap();
    table.delete("removed later").await.unwrap();
    for number in 0..20 {
        table.create(App::new(&format!("lost{number:02}"), "after")).await.unwrap();
    }
    let mut changes = table.subscribe();
    let before = table.revision();
    cluster.kill(0);
    cluster.put_back(0, &copy);
    cluster.restart(0).await;

    has(&table, &["kept", "removed later"]).await;
    assert_eq!(table.get("kept").unwrap().value.owner, "before");
    assert!(table.revision() < before, "the view goes by the server's history");
    within(20, "word of it", changes.next()).await.unwrap();
    // New writes are seen at once, at revisions that have existed.
    table.create(App::new("new", "now")).await.unwrap();
    assert!(table.get("new").is_some() && table.revision() < before);
}
