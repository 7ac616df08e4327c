//! Watches.

use std::collections::BTreeMap;

use selvage_store::{Error, Event, KeyRange, Op, SharedStore, StoreExt, Txn};

use super::Factory;
use crate::support::{describe, next, next_error};

pub(super) async fn run(factory: &impl Factory) {
    from_now_on(factory.fresh().await).await;
    from_a_revision(factory.fresh().await).await;
    compacted(factory.fresh().await).await;
    many_writers(factory.fresh().await).await;
}

async fn from_now_on(store: SharedStore) {
    store.put("a/1", "before").await.unwrap();
    let mut prefix = store.watch(KeyRange::prefix("a/"), None).await.unwrap();
    let mut single = store.watch(KeyRange::key("a/2"), None).await.unwrap();
    let mut span = store.watch(KeyRange::span("a/2", "b"), None).await.unwrap();

    store.put("b", "elsewhere").await.unwrap();
    let txn = Txn::new()
        .then(Op::put("a/2", "2"))
        .then(Op::put("b", "elsewhere"))
        .then(Op::put("a/3", "3"))
        .then(Op::delete("a/1"));
    let at = store.txn(txn).await.unwrap().revision;

    let batch = next(&mut prefix).await;
    assert_eq!(batch.revision, at);
    assert_eq!(
        describe(&batch),
        [("put", "a/2".into()), ("put", "a/3".into()), ("delete", "a/1".into())]
    );
    assert!(batch.events.iter().all(|event| event.mod_revision() == at));
    let Event::Put(kv) = &batch.events[0] else { panic!("{batch:?}") };
    assert_eq!((&kv.value[..], kv.create_revision, kv.version), (&b"2"[..], at, 1));
    assert_eq!(describe(&next(&mut single).await), [("put", "a/2".into())]);
    assert_eq!(next(&mut span).await.events.len(), 2);

    let at = store.delete(KeyRange::prefix("a/")).await.unwrap();
    let batch = next(&mut prefix).await;
    assert_eq!((batch.revision, batch.events.len()), (at, 2));
    assert_eq!(describe(&next(&mut single).await), [("delete", "a/2".into())]);
}

async fn from_a_revision(store: SharedStore) {
    let first = store.put("k", "1").await.unwrap();
    store.put("k", "2").await.unwrap();
    store.delete(KeyRange::key("k")).await.unwrap();
    let mut watch = store.watch(KeyRange::All, Some(first)).await.unwrap();
    for (offset, kind) in [(0, "put"), (1, "put"), (2, "delete")] {
        let batch = next(&mut watch).await;
        assert_eq!(batch.revision, first + offset);
        assert_eq!(describe(&batch), [(kind, "k".into())]);
    }
    // From a revision that is still to come.
    let mut later = store.watch(KeyRange::All, Some(first + 4)).await.unwrap();
    store.put("k", "3").await.unwrap();
    store.put("k", "4").await.unwrap();
    assert_eq!(next(&mut later).await.revision, first + 4);
    assert_eq!(next(&mut watch).await.revision, first + 3);
}

async fn compacted(store: SharedStore) {
    let first = store.put("k", "1").await.unwrap();
    store.put("k", "2").await.unwrap();
    let deleted = store.delete(KeyRange::key("k")).await.unwrap();
    let last = store.put("l", "1").await.unwrap();
    store.compact(deleted).await.unwrap();
    for from in [first, deleted] {
        let mut watch = store.watch(KeyRange::All, Some(from)).await.unwrap();
        let error = next_error(&mut watch).await;
        assert!(
            matches!(error, Error::Compacted { oldest } if oldest == deleted + 1),
            "from {from}: {error}"
        );
        assert!(watch.next().await.is_none(), "a watch ends after an error");
    }
    let mut watch = store.watch(KeyRange::All, Some(deleted + 1)).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, last);
}

/// Whoever follows from the start ends up with what a listing shows.
async fn many_writers(store: SharedStore) {
    let start = store.revision().await.unwrap();
    let mut early = store.watch(KeyRange::prefix("w/"), Some(start + 1)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            for round in 0..25 {
                let key = format!("w/{writer}/{}", round % 7);
                if round % 5 == 4 {
                    store.delete(KeyRange::key(key)).await.unwrap();
                } else {
                    store.put(key, format!("{round}")).await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    let mark = store.put("w/end", "end").await.unwrap();
    let expected = store.list("w/").await.unwrap().items;
    let mut late = store.watch(KeyRange::prefix("w/"), Some(start + 1)).await.unwrap();
    for watch in [&mut early, &mut late] {
        let mut state = BTreeMap::new();
        let mut last = start;
        while last < mark {
            let batch = next(watch).await;
            assert!(batch.revision > last, "in order and none twice");
            last = batch.revision;
            for event in batch.events {
                match event {
                    Event::Put(kv) => state.insert(kv.key.clone(), kv),
                    Event::Delete { key, .. } => state.remove(&key),
                };
            }
        }
        assert_eq!(state.into_values().collect::<Vec<_>>(), expected);
    }
}
