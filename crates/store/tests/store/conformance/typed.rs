//! The typed layer, as far as it depends on the store below.

use selvage_store::{Error, KeyRange, SharedStore, StoreExt, Table, transact};

use super::Factory;
use crate::support::records::{App, Total};
use crate::support::within;

pub(super) async fn run(factory: &impl Factory) {
    reading_ones_own_writes(factory.fresh().await).await;
    two_tables_at_once(factory.fresh().await).await;
}

async fn reading_ones_own_writes(store: SharedStore) {
    let table = Table::<App>::open(store.clone()).await.unwrap();
    let other = Table::<App>::open(store.clone()).await.unwrap();
    for number in 0..10 {
        let name = format!("app-{number}");
        let revision = table.create(App::new(&name, "o")).await.unwrap();
        assert_eq!(table.get(&name).unwrap().mod_revision, revision);
        other.wait_for(revision).await.unwrap();
        assert!(other.get(&name).is_some());
    }
    // A revision at which nothing of this table changed.
    let elsewhere = store.put("unrelated", "x").await.unwrap();
    table.wait_for(elsewhere).await.unwrap();
    let error = table.create(App::new("app-3", "o")).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");

    let changed = table
        .update("app-3", |app| {
            app.count += 1;
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    assert_eq!(*changed, *table.get("app-3").unwrap());
    assert_eq!((changed.value.count, changed.version), (1, 2));
    table.delete("app-3").await.unwrap();
    assert!(table.get("app-3").is_none());
    assert!(matches!(table.delete("app-3").await.unwrap_err(), Error::NotFound { .. }));
    store.delete(KeyRange::All).await.unwrap();
    let now = store.revision().await.unwrap();
    within(20, "an empty table", table.wait_for(now)).await.unwrap();
    assert!(table.is_empty());
}

async fn two_tables_at_once(store: SharedStore) {
    let apps = Table::<App>::open(store.clone()).await.unwrap();
    let totals = Table::<Total>::open(store.clone()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for owner in 0..3 {
        let store = store.clone();
        tasks.spawn(async move {
            for number in 0..5 {
                let name = format!("{owner}-{number}");
                transact(&store, |tx| {
                    let name = name.clone();
                    async move {
                        tx.create(&App::new(&name, "o")).await?;
                        let total = tx.get::<Total>("all").await?.unwrap_or_default();
                        tx.put(&Total { name: "all".to_owned(), sum: total.sum + 1 })?;
                        Ok::<_, Error>(())
                    }
                })
                .await
                .unwrap();
            }
        });
    }
    tasks.join_all().await;
    let now = store.revision().await.unwrap();
    apps.wait_for(now).await.unwrap();
    totals.wait_for(now).await.unwrap();
    assert_eq!((apps.len(), totals.get("all").unwrap().value.sum), (15, 15));
}
