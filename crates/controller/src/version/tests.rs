#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use selvage_api::edgeproto as wire;
use selvage_store::embedded::{Embedded, Options};

use super::*;
use crate::row::Row;

async fn store() -> SharedStore {
    Embedded::in_memory(Options::default()).await.unwrap()
}

fn newest() -> &'static str {
    hash(*known().last().unwrap())
}

async fn stored_hash(store: &SharedStore) -> String {
    let done = transact(store, |tx| async move {
        Ok::<_, Error>(tx.get::<Model>(CURRENT).await?.unwrap_or_default().hash)
    });
    done.await.unwrap().value
}

/// A store as the fourth model left it: clusters do not say how apps are
/// deployed on them.
async fn fourth_model(clusters: usize) -> SharedStore {
    let store = store().await;
    write(&store, hash(known()[4])).await.unwrap();
    let table = Table::<Row<wire::ClusterInst>>::open(store.clone()).await.unwrap();
    for number in 0..clusters {
        let key = wire::ClusterInstKey { developer: format!("d{number}"), ..Default::default() };
        let inst = wire::ClusterInst { key: Some(key), ..Default::default() };
        table.create(Row(inst)).await.unwrap();
    }
    store
}

async fn deployments(store: &SharedStore) -> Vec<String> {
    let table = Table::<Row<wire::ClusterInst>>::open(store.clone()).await.unwrap();
    table.list().iter().map(|held| held.value.0.deployment.clone()).collect()
}

#[test]
fn the_versions_are_those_of_the_contract_in_order() {
    let hashes: Vec<_> = known().into_iter().map(hash).collect();
    assert_eq!(hashes.len(), 6);
    assert_eq!(hashes[0], "d41d8cd98f00b204e9800998ecf8427e");
    assert_eq!(newest(), "2b79f0b6e402045ee5f68d697b9386ae");
}

#[tokio::test]
async fn an_empty_store_is_of_the_newest_model() {
    let store = store().await;
    prepare(&store, false, STEPS).await.unwrap();
    assert_eq!(stored_hash(&store).await, newest());
    prepare(&store, false, STEPS).await.unwrap();
}

#[tokio::test]
async fn an_older_store_is_upgraded_when_that_is_wanted() {
    let store = fourth_model(300).await;
    let refused = prepare(&store, false, STEPS).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Running version doesn't match the version of etcd, data mode upgrade required"
    );
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(deployments(&store).await.iter().all(String::is_empty));
    prepare(&store, true, STEPS).await.unwrap();
    let after = deployments(&store).await;
    assert_eq!(after.len(), 300);
    assert!(after.iter().all(|deployment| deployment == "kubernetes"));
    assert_eq!(stored_hash(&store).await, newest());
}

#[tokio::test]
async fn what_nobody_knows_is_refused() {
    let store = store().await;
    write(&store, "feedfacefeedfacefeedfacefeedface").await.unwrap();
    let refused = prepare(&store, true, STEPS).await.unwrap_err();
    assert_eq!(refused.to_string(), "fromVersion feedfacefeedfacefeedfacefeedface doesn't exist");
    assert_eq!(stored_hash(&store).await, "feedfacefeedfacefeedfacefeedface");
}

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);

/// Steps run once each, in order; one that fails is run again at the next
/// start, and those before it are not.
#[tokio::test]
async fn an_upgrade_that_was_interrupted_goes_on_where_it_was() {
    let store = store().await;
    let versions = known();
    write(&store, hash(versions[2])).await.unwrap();
    let steps = [
        Step {
            version: versions[4],
            upgrade: |_| {
                async {
                    if SECOND.fetch_add(1, Ordering::SeqCst) == 0 {
                        return Err(Error::unavailable("the power went"));
                    }
                    Ok(())
                }
                .boxed()
            },
        },
        Step {
            version: versions[3],
            upgrade: |_| {
                async {
                    assert_eq!(SECOND.load(Ordering::SeqCst), 0, "in order");
                    FIRST.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
                .boxed()
            },
        },
    ];
    assert!(prepare(&store, true, &steps).await.is_err());
    assert_eq!(stored_hash(&store).await, hash(versions[3]));
    prepare(&store, true, &steps).await.unwrap();
    assert_eq!((FIRST.load(Ordering::SeqCst), SECOND.load(Ordering::SeqCst)), (1, 2));
    assert_eq!(stored_hash(&store).await, newest());
}

/// Half of the records were rewritten when the power went.
#[tokio::test]
async fn records_that_are_rewritten_already_are_left_alone() {
    let store = fourth_model(10).await;
    let table = Table::<Row<wire::ClusterInst>>::open(store.clone()).await.unwrap();
    for held in table.list().iter().take(5) {
        let docker = |row: &mut Row<wire::ClusterInst>| {
            row.0.deployment = "docker".into();
            Ok::<_, selvage_store::Error>(())
        };
        table.update(&held.key, docker).await.unwrap();
    }
    prepare(&store, true, STEPS).await.unwrap();
    let after = deployments(&store).await;
    assert_eq!(after.iter().filter(|deployment| *deployment == "docker").count(), 5);
    assert_eq!(after.iter().filter(|deployment| *deployment == "kubernetes").count(), 5);
}
