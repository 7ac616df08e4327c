//! The typed layer.

use std::sync::Arc;

use prost::Message;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::table::{Change, Migration, migrate_all};
use selvage_store::{Error, KeyRange, Record, SharedStore, StoreExt, Table, transact};

use crate::support::gate::Gate;
use crate::support::records::{App, AppV1, AppV3, Total};
use crate::support::within;

async fn store() -> SharedStore {
    Embedded::in_memory(Options::default()).await.unwrap()
}

fn names(found: &[Arc<selvage_store::Stored<App>>]) -> Vec<&str> {
    found.iter().map(|stored| stored.value.name.as_str()).collect()
}

#[tokio::test]
async fn records_are_found_by_key_prefix_and_index() {
    let table = Table::<App>::open(store().await).await.unwrap();
    for (name, owner) in [("b/2", "x"), ("a", "x"), ("b/1", "y"), ("c", "")] {
        table.create(App::new(name, owner)).await.unwrap();
    }
    assert_eq!(names(&table.list()), ["a", "b/1", "b/2", "c"]);
    assert_eq!(names(&table.list_prefix("b/")), ["b/1", "b/2"]);
    assert_eq!(names(&table.by_index("owner", "x")), ["a", "b/2"]);
    assert_eq!(names(&table.by_index("owner", "")), ["c"]);
    assert!(table.by_index("owner", "z").is_empty());
    assert!(table.by_index("colour", "x").is_empty());

    table.put(App::new("a", "y")).await.unwrap();
    assert_eq!(names(&table.by_index("owner", "x")), ["b/2"]);
    assert_eq!(names(&table.by_index("owner", "y")), ["a", "b/1"]);
    table.delete("b/1").await.unwrap();
    assert_eq!(names(&table.by_index("owner", "y")), ["a"]);
    assert_eq!(table.len(), 3);
}

#[tokio::test]
async fn an_update_that_fails_or_changes_nothing_writes_nothing() {
    let table = Table::<App>::open(store().await).await.unwrap();
    let revision = table.create(App::new("a", "x")).await.unwrap();
    let same = table.update("a", |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(same.mod_revision, revision);

    #[derive(Debug, PartialEq)]
    enum Mine {
        Refused,
        Store(String),
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Self::Store(error.to_string())
        }
    }
    let refused = table.update("a", |app| {
        app.count = 9;
        Err(Mine::Refused)
    });
    assert_eq!(refused.await.unwrap_err(), Mine::Refused);
    let missing = table.update("none", |_| Ok::<_, Mine>(())).await.unwrap_err();
    assert_eq!(missing, Mine::Store("app \"none\" not found".to_owned()));
    let renamed = table.update("a", |app| {
        app.name = "b".to_owned();
        Ok::<_, Error>(())
    });
    assert_eq!(renamed.await.unwrap_err().to_string(), "key: must not be changed by an update");
    assert_eq!(table.get("a").unwrap().mod_revision, revision);
    let error = table.put(App::new("", "x")).await.unwrap_err();
    assert_eq!(error.to_string(), "key: of a app must not be empty");
}

#[tokio::test]
async fn subscribers_receive_changes() {
    let table = Table::<App>::open(store().await).await.unwrap();
    let mut changes = table.subscribe();
    table.create(App::new("a", "x")).await.unwrap();
    table.delete("a").await.unwrap();
    let Some(Change::Put(put)) = changes.next().await else { panic!("no put") };
    assert_eq!(put.value, App::new("a", "x"));
    let Some(Change::Deleted(gone)) = changes.next().await else { panic!("no delete") };
    assert_eq!(gone.value, App::new("a", "x"));

    // A subscriber that does not listen is told to start over, and then
    // continues.
    for _ in 0..1100 {
        let name = App::new("b", "x");
        table.put(name).await.unwrap();
    }
    assert!(matches!(changes.next().await, Some(Change::Reset)));
    drop(table);
    while let Some(change) = within(10, "the end", changes.next()).await {
        assert!(matches!(change, Change::Put(_)));
    }
}

#[tokio::test]
async fn an_update_keeps_the_lease() {
    let store = store().await;
    let table = Table::<App>::open(store.clone()).await.unwrap();
    let lease = store.lease_grant(std::time::Duration::from_secs(100)).await.unwrap();
    table.put_with_lease(App::new("a", "x"), lease.id).await.unwrap();
    let change = |app: &mut App| {
        app.count = 1;
        Ok::<_, Error>(())
    };
    assert_eq!(table.update("a", change).await.unwrap().lease, Some(lease.id));
    store.lease_revoke(lease.id).await.unwrap();
    table.wait_for(store.revision().await.unwrap()).await.unwrap();
    assert!(table.is_empty());
}

#[tokio::test]
async fn a_view_that_fell_behind_lists_again() {
    let gate = Gate::new(store().await);
    let store: SharedStore = gate.clone();
    let table = Table::<App>::open(store.clone()).await.unwrap();
    table.create(App::new("stays", "x")).await.unwrap();
    table.create(App::new("changes", "x")).await.unwrap();
    table.create(App::new("goes", "x")).await.unwrap();
    let stays = table.get("stays").unwrap();
    let mut changes = table.subscribe();

    gate.set_open(false);
    transact(&store, |tx| async move {
        tx.put(&App::new("changes", "y"))?;
        tx.put(&App::new("comes", "y"))?;
        tx.delete::<App>("goes").await
    })
    .await
    .unwrap();
    let now = store.put("elsewhere", "x").await.unwrap();
    store.compact(now).await.unwrap();
    assert_eq!(names(&table.list()), ["changes", "goes", "stays"]);
    gate.set_open(true);
    within(20, "the view", table.wait_for(now)).await.unwrap();
    assert_eq!(names(&table.list()), ["changes", "comes", "stays"]);
    assert_eq!(names(&table.by_index("owner", "y")), ["changes", "comes"]);
    assert!(Arc::ptr_eq(&stays, &table.get("stays").unwrap()));
    let mut notified = Vec::new();
    for _ in 0..3 {
        notified.push(match within(10, "a change", changes.next()).await.unwrap() {
            Change::Put(put) => format!("put {}", put.key),
            Change::Deleted(gone) => format!("deleted {}", gone.key),
            Change::Reset => "reset".to_owned(),
        });
    }
    notified.sort();
    assert_eq!(notified, ["deleted goes", "put changes", "put comes"]);
}

/// The view at any moment is the store at some revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_never_shows_half_a_transaction() {
    let store = store().await;
    let table = Table::<Total>::open(store.clone()).await.unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for sum in 1..=200 {
                transact(&store, |tx| async move {
                    tx.put(&Total { name: "a".to_owned(), sum })?;
                    tx.put(&Total { name: "b".to_owned(), sum })
                })
                .await
                .unwrap();
            }
        })
    };
    while !writer.is_finished() {
        let sums: Vec<_> = table.list().iter().map(|total| total.value.sum).collect();
        assert!(sums.is_empty() || sums[0] == sums[1], "{sums:?}");
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_count_together() {
    let store = store().await;
    let table = Table::<Total>::open(store.clone()).await.unwrap();
    table.create(Total { name: "n".to_owned(), sum: 0 }).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (store, table) = (store.clone(), Arc::clone(&table));
        tasks.spawn(async move {
            for _ in 0..50 {
                if task % 2 == 0 {
                    transact(&store, |tx| async move {
                        let mut total = tx.get::<Total>("n").await?.unwrap();
                        total.sum += 1;
                        tx.put(&total)?;
                        assert_eq!(tx.get::<Total>("n").await?.unwrap(), total, "own writes");
                        Ok::<_, Error>(())
                    })
                    .await
                    .unwrap();
                } else {
                    let change = |total: &mut Total| {
                        total.sum += 1;
                        Ok::<_, Error>(())
                    };
                    table.update("n", change).await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    table.wait_for(store.revision().await.unwrap()).await.unwrap();
    assert_eq!(table.get("n").unwrap().value.sum, 400);
    assert_eq!(table.get("n").unwrap().version, 401);
}

#[tokio::test]
async fn a_transaction_sees_one_moment_and_gives_up_in_the_end() {
    let store = store().await;
    let put = |name: &str, sum| store.put(format!("records/total/{name}"), envelope(name, sum));
    put("a", 1).await.unwrap();
    put("b", 1).await.unwrap();
    let mut runs = 0;
    let inside = store.clone();
    let result = transact(&store, |tx| {
        runs += 1;
        let (store, sum) = (inside.clone(), runs + 1);
        async move {
            let a = tx.get::<Total>("a").await?.unwrap();
            // Somebody always comes in between.
            store.put("records/total/a", envelope("a", sum)).await?;
            store.put("records/total/b", envelope("b", sum)).await?;
            let b = tx.get::<Total>("b").await?.unwrap();
            assert_eq!(a.sum, b.sum, "both from the same moment");
            tx.put(&Total { name: "c".to_owned(), sum: a.sum + b.sum })
        }
    })
    .await;
    assert!(matches!(result, Err(Error::Aborted { attempts: 100 })), "{result:?}");
    assert_eq!(runs, 100);
    assert!(store.get("records/total/c").await.unwrap().is_none());

    let refused = transact(&store, |tx| async move {
        tx.put(&Total { name: "c".to_owned(), sum: 1 })?;
        tx.delete::<Total>("none").await
    });
    assert!(matches!(refused.await, Err(Error::NotFound { .. })));
    assert!(store.get("records/total/c").await.unwrap().is_none());
}

/// A record that is not there now may have been there at the moment that the
/// others were read at: who says something without a commit says it of one
/// moment.
#[tokio::test]
async fn a_body_without_a_commit_saw_one_moment_too() {
    let store = store().await;
    let put = |name: &str, sum| store.put(format!("records/total/{name}"), envelope(name, sum));
    put("a", 1).await.unwrap();
    put("b", 1).await.unwrap();
    for fails in [false, true] {
        let (mut runs, inside) = (0, store.clone());
        let result = transact(&store, |tx| {
            runs += 1;
            let (store, first) = (inside.clone(), runs == 1);
            async move {
                let a = tx.get::<Total>("a").await?.is_some();
                if first {
                    let both = KeyRange::prefix("records/total/");
                    store.delete(both).await?;
                } else {
                    store.put("records/total/other", envelope("other", 1)).await?;
                }
                let b = tx.get::<Total>("b").await?.is_some();
                match fails {
                    true => Err(Error::Unavailable { reason: format!("{a} {b}") }),
                    false => Ok(format!("{a} {b}")),
                }
            }
        });
        let seen = match result.await {
            Ok(committed) => committed.value,
            Err(Error::Unavailable { reason }) => reason,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(seen, "false false");
        assert_eq!(runs, 2);
        put("a", 1).await.unwrap();
        put("b", 1).await.unwrap();
    }
    // With a commit nothing is said before the store has agreed.
    let inside = store.clone();
    let mut runs = 0;
    let committed = transact(&store, |tx| {
        runs += 1;
        let (store, first) = (inside.clone(), runs == 1);
        async move {
            let a = tx.get::<Total>("a").await?.unwrap();
            if first {
                store.delete(KeyRange::key("records/total/b")).await?;
            }
            let b = tx.get::<Total>("b").await?;
            tx.put(&Total { name: "c".to_owned(), sum: a.sum })?;
            Ok::<_, Error>(b.is_some())
        }
    });
    assert!(!committed.await.unwrap().value, "that it is gone is what was committed");
    assert_eq!(runs, 1, "nothing that was read has changed since");
}

#[tokio::test]
async fn waiters_for_one_record_receive_its_change() {
    let store = store().await;
    let table = Table::<Total>::open(store.clone()).await.unwrap();
    let mut waiting = table.subscribe_key("a");
    let mut other = table.subscribe_key("a");
    for (name, sum) in [("b", 1), ("a", 1), ("b", 2), ("a", 2)] {
        table.put(Total { name: name.to_owned(), sum }).await.unwrap();
    }
    table.delete("b").await.unwrap();
    table.delete("a").await.unwrap();
    let mut sums = Vec::new();
    loop {
        match waiting.next().await.unwrap() {
            Change::Put(stored) => sums.push(stored.value.sum),
            Change::Deleted(stored) => {
                assert_eq!(stored.key, "a");
                break;
            }
            Change::Reset => panic!("nothing was missed"),
        }
    }
    assert_eq!(sums, [1, 2]);
    drop(waiting);
    assert!(matches!(other.next().await, Some(Change::Put(stored)) if stored.value.sum == 1));

    // A subscriber that sleeps for too long is told so.
    let mut late = table.subscribe_key("a");
    for sum in 0..100 {
        table.put(Total { name: "a".to_owned(), sum }).await.unwrap();
    }
    assert!(matches!(late.next().await, Some(Change::Reset)));
    drop((late, other));
    let mut again = table.subscribe_key("a");
    table.put(Total { name: "a".to_owned(), sum: 1000 }).await.unwrap();
    assert!(matches!(again.next().await, Some(Change::Put(stored)) if stored.value.sum == 1000));
    drop(table);
    assert!(within(20, "the end of the table", again.next()).await.is_none());
}

/// The stored form, written out by hand: kind, version, record.
fn envelope(name: &str, sum: u64) -> Vec<u8> {
    wrap("total", 1, &Total { name: name.to_owned(), sum })
}

fn wrap(kind: &str, version: u8, record: &impl Message) -> Vec<u8> {
    let record = record.encode_to_vec();
    let mut bytes = vec![0x0a, kind.len().try_into().unwrap()];
    bytes.extend(kind.as_bytes());
    bytes.extend([0x10, version, 0x1a, record.len().try_into().unwrap()]);
    bytes.extend(record);
    bytes
}

/// Bytes as version 1 of the program wrote them: kind "app", version 1, name
/// "old" and 7 uses.
const OLD_RECORD: &[u8] = b"\x0a\x03app\x10\x01\x1a\x07\x0a\x03old\x10\x07";

#[tokio::test]
async fn older_records_are_read_and_rewritten() {
    let store = store().await;
    store.put("records/app/old", OLD_RECORD).await.unwrap();
    for number in 0..100 {
        let old = AppV1 { name: format!("n{number}"), uses: number };
        store.put(format!("records/app/n{number}"), wrap("app", 1, &old)).await.unwrap();
    }
    let table = Table::<App>::open(store.clone()).await.unwrap();
    let expected = App { name: "old".to_owned(), owner: "nobody".to_owned(), count: 7 };
    assert_eq!(table.get("old").unwrap().value, expected);
    assert_eq!(table.by_index("owner", "nobody").len(), 101);

    table
        .update("n5", |app| {
            app.owner = "somebody".to_owned();
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    let first = migrate_all::<App>(&store).await.unwrap();
    assert_eq!(first, Migration { examined: 101, rewritten: 100 });
    let again = migrate_all::<App>(&store).await.unwrap();
    assert_eq!(again, Migration { examined: 101, rewritten: 0 });
    table.wait_for(store.revision().await.unwrap()).await.unwrap();
    assert_eq!(table.get("old").unwrap().value, expected);
    assert_eq!(table.get("n5").unwrap().value.owner, "somebody");
    let kv = store.get("records/app/old").await.unwrap().unwrap();
    assert_eq!(&kv.value[..], &wrap("app", 2, &expected)[..]);
}

#[tokio::test]
async fn newer_and_foreign_records_are_refused() {
    let refused = |bytes: Vec<u8>| async move {
        let store = store().await;
        store.put("records/app/a", bytes).await.unwrap();
        let opened = Table::<App>::open(store.clone()).await.unwrap_err().to_string();
        let migrated = migrate_all::<App>(&store).await.unwrap_err().to_string();
        assert_eq!(opened, migrated);
        opened
    };
    let newer = wrap("app", 3, &AppV3 { name: "a".to_owned() });
    assert_eq!(
        refused(newer).await,
        "record app \"a\" has format 3, this program knows formats up to 2"
    );
    let foreign = wrap("total", 1, &App::new("a", "x"));
    assert_eq!(
        refused(foreign).await,
        "record app \"a\" is damaged: it says it is of kind \"total\""
    );
    let misplaced = wrap("app", 2, &App::new("b", "x"));
    assert_eq!(
        refused(misplaced).await,
        "record app \"a\" is damaged: the record within has key \"b\""
    );
    assert!(refused(b"\xff\xff\xff".to_vec()).await.contains("is damaged"));
    assert!(refused(Vec::new()).await.contains("names no kind"));
}

/// A newer program beside us writes something we cannot read: what we had
/// stays, and it is said.
#[tokio::test]
async fn a_record_that_becomes_unreadable_is_reported() {
    let store = store().await;
    let table = Table::<App>::open(store.clone()).await.unwrap();
    table.create(App::new("a", "x")).await.unwrap();
    let newer = wrap("app", 3, &AppV3 { name: "a".to_owned() });
    let revision = store.put("records/app/a", newer).await.unwrap();
    table.wait_for(revision).await.unwrap();
    assert_eq!(table.get("a").unwrap().value, App::new("a", "x"));
    let faults = table.faults();
    assert!(faults["a"].contains("has format 3"), "{faults:?}");
    // Writing over it from what we had would destroy it: it has changed since.
    let error = table
        .update("a", |app| {
            app.count += 1;
            Ok::<_, Error>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NewerFormat { .. }), "{error}");
    store.delete(KeyRange::key("records/app/a")).await.unwrap();
    table.wait_for(store.revision().await.unwrap()).await.unwrap();
    assert!(table.faults().is_empty() && table.is_empty());
}

#[tokio::test]
async fn a_kind_must_fit_into_a_key() {
    #[derive(Clone, PartialEq, Message)]
    struct Odd {}
    impl Record for Odd {
        const KIND: &'static str = "Odd/kind";
        const VERSION: u32 = 1;
        fn key(&self) -> String {
            String::new()
        }
    }
    let error = Table::<Odd>::open(store().await).await.unwrap_err();
    assert!(error.to_string().starts_with("kind: "), "{error}");
}
