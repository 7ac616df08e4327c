//! Transactions.

use bytes::Bytes;
use selvage_store::{
    Compare, CompareOp, Error, KeyRange, LeaseId, Op, OpResult, RangeRequest, SharedStore,
    StoreExt, Txn,
};

use super::Factory;

pub(super) async fn run(factory: &impl Factory) {
    compares(factory.fresh().await).await;
    all_or_nothing(factory.fresh().await).await;
    limits(factory.fresh().await).await;
    counting_together(factory.fresh().await).await;
}

async fn holds(store: &SharedStore, compare: Compare) -> bool {
    let before = store.revision().await.unwrap();
    let reply = store.txn(Txn::new().when(compare)).await.unwrap();
    assert_eq!(reply.revision, before, "a compare alone changes nothing");
    reply.succeeded
}

async fn compares(store: SharedStore) {
    let created = store.put("k", "b").await.unwrap();
    let changed = store.put("k", "b").await.unwrap();
    let key = || Bytes::from("k");
    let none = || Bytes::from("none");
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let cases = [
        (Compare::exists("k"), true),
        (Compare::exists("none"), false),
        (Compare::missing("k"), false),
        (Compare::missing("none"), true),
        (Compare::ModRevision(key(), Equal, changed), true),
        (Compare::ModRevision(key(), Equal, created), false),
        (Compare::ModRevision(key(), Greater, created), true),
        (Compare::ModRevision(key(), Less, changed), false),
        (Compare::ModRevision(none(), Equal, 0), true),
        (Compare::CreateRevision(key(), Equal, created), true),
        (Compare::CreateRevision(key(), NotEqual, created), false),
        (Compare::Version(key(), Equal, 2), true),
        (Compare::Version(key(), Less, 2), false),
        (Compare::Version(none(), Equal, 0), true),
        (Compare::value("k", "b"), true),
        (Compare::Value(key(), Greater, "a".into()), true),
        (Compare::Value(key(), Less, "a".into()), false),
        (Compare::Value(none(), NotEqual, "a".into()), false),
    ];
    for (compare, expected) in cases {
        assert_eq!(holds(&store, compare.clone()).await, expected, "{compare:?}");
    }
}

async fn all_or_nothing(store: SharedStore) {
    let txn = Txn::new()
        .when(Compare::missing("a"))
        .then(Op::put("a", "1"))
        .then(Op::put("b", "1"))
        .then(Op::Get(RangeRequest::new(KeyRange::All)))
        .otherwise(Op::get("a"))
        .otherwise(Op::Delete(KeyRange::All));
    let first = store.txn(txn.clone()).await.unwrap();
    assert!(first.succeeded);
    assert_eq!(first.results[0], OpResult::Put);
    let OpResult::Get(seen) = &first.results[2] else { panic!("{first:?}") };
    assert_eq!(seen.count, 2, "later operations see earlier ones");
    assert!(seen.items.iter().all(|kv| kv.mod_revision == first.revision));
    assert_eq!(store.get("b").await.unwrap().unwrap().create_revision, first.revision);

    let second = store.txn(txn).await.unwrap();
    assert!(!second.succeeded);
    assert_eq!(second.revision, first.revision + 1);
    let OpResult::Get(seen) = &second.results[0] else { panic!("{second:?}") };
    assert_eq!(seen.items[0].value, "1");
    assert_eq!(second.results[1], OpResult::Delete(2));
    assert_eq!(store.list("").await.unwrap().count, 0);

    // One operation that cannot be done leaves all others undone.
    let unknown = LeaseId(4711);
    let txn = Txn::new().then(Op::put("a", "2")).then(Op::put_with_lease("b", "2", unknown));
    let error = store.txn(txn).await.unwrap_err();
    assert!(matches!(error, Error::LeaseNotFound { id } if id == unknown), "{error}");
    assert_eq!(store.list("").await.unwrap().count, 0);
    assert_eq!(store.revision().await.unwrap(), second.revision);
}

async fn limits(store: SharedStore) {
    let put = |number| Op::put(format!("k{number:03}"), "v");
    let txn = Txn { then: (0..128).map(put).collect(), ..Txn::new() };
    let reply = store.txn(txn).await.unwrap();
    let list = store.list("k").await.unwrap();
    assert_eq!(list.count, 128);
    assert!(list.items.iter().all(|kv| kv.mod_revision == reply.revision));

    let txn = Txn { then: (0..129).map(put).collect(), ..Txn::new() };
    let error = store.txn(txn).await.unwrap_err();
    assert_eq!(error.to_string(), "then: 129 in one transaction, the limit is 128");

    let twice = Txn::new().then(Op::put("a", "1")).then(Op::put("a", "2"));
    let error = store.txn(twice).await.unwrap_err();
    assert_eq!(error.to_string(), "then: puts the same key twice");
    let both = Txn::new().then(Op::put("a", "1")).then(Op::Delete(KeyRange::prefix("a")));
    let error = store.txn(both).await.unwrap_err();
    assert_eq!(error.to_string(), "then: puts and deletes the same key");
    assert!(store.get("a").await.unwrap().is_none());
}

async fn increment(store: &SharedStore) {
    loop {
        let found = store.get("n").await.unwrap();
        let number: u64 =
            found.as_ref().map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().unwrap());
        let revision = found.map_or(0, |kv| kv.mod_revision);
        let txn = Txn::new()
            .when(Compare::unchanged("n", revision))
            .then(Op::put("n", (number + 1).to_string()));
        if store.txn(txn).await.unwrap().succeeded {
            return;
        }
    }
}

async fn counting_together(store: SharedStore) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                increment(&store).await;
            }
        });
    }
    tasks.join_all().await;
    let found = store.get("n").await.unwrap().unwrap();
    assert_eq!((&found.value[..], found.version), (&b"40"[..], 40));
}
