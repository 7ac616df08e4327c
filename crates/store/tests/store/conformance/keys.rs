//! Keys, ranges and older revisions.

use selvage_store::{Error, KeyRange, RangeReply, RangeRequest, SharedStore, StoreExt};

use super::Factory;

pub(super) async fn run(factory: &impl Factory) {
    history_of_a_key(factory.fresh().await).await;
    ranges(factory.fresh().await).await;
    older_revisions(factory.fresh().await).await;
    bad_requests(factory.fresh().await).await;
}

async fn history_of_a_key(store: SharedStore) {
    assert!(store.get("k").await.unwrap().is_none());
    let before = store.revision().await.unwrap();
    let first = store.put("k", "1").await.unwrap();
    assert!(first > before);
    let second = store.put("k", "2").await.unwrap();
    assert!(second > first);
    let kv = store.get("k").await.unwrap().unwrap();
    assert_eq!((&kv.key[..], &kv.value[..]), (&b"k"[..], &b"2"[..]));
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (first, second, 2));
    assert_eq!(kv.lease, None);

    let gone = store.delete(KeyRange::key("k")).await.unwrap();
    assert!(gone > second);
    assert!(store.get("k").await.unwrap().is_none());
    // Deleting nothing makes no revision.
    assert_eq!(store.delete(KeyRange::key("k")).await.unwrap(), gone);

    let third = store.put("k", "").await.unwrap();
    let kv = store.get("k").await.unwrap().unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (third, third, 1));
    assert_eq!(kv.value.len(), 0);
    assert_eq!(store.status().await.unwrap().failure, None);
}

fn keys(reply: &RangeReply) -> Vec<String> {
    reply.items.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
}

async fn ranges(store: SharedStore) {
    for key in ["a", "b/1", "b/2", "b/3", "b0", "c"] {
        store.put(key, format!("value of {key}")).await.unwrap();
    }
    store.put(&b"\xff\xff"[..], "last").await.unwrap();
    let ask = |request| store.range(request);

    let reply = ask(RangeRequest::prefix("b/")).await.unwrap();
    assert_eq!(keys(&reply), ["b/1", "b/2", "b/3"]);
    assert!(!reply.more);
    assert_eq!(reply.count, 3);
    assert_eq!(reply.revision, store.revision().await.unwrap());
    assert_eq!(reply.items[2].value, "value of b/3");

    let reply = ask(RangeRequest::prefix("b/").limit(2)).await.unwrap();
    assert_eq!(
        (keys(&reply), reply.more, reply.count),
        (vec!["b/1".into(), "b/2".into()], true, 3)
    );
    let reply = ask(RangeRequest::prefix("b/").limit(2).descending()).await.unwrap();
    assert_eq!(keys(&reply), ["b/3", "b/2"]);
    let reply = ask(RangeRequest::prefix("b/").limit(3)).await.unwrap();
    assert!(!reply.more);

    let reply = ask(RangeRequest::new(KeyRange::span("b/2", "c"))).await.unwrap();
    assert_eq!(keys(&reply), ["b/2", "b/3", "b0"]);
    let reply = ask(RangeRequest::new(KeyRange::All).keys_only()).await.unwrap();
    assert_eq!(reply.count, 7);
    assert!(reply.items.iter().all(|kv| kv.value.is_empty() && kv.mod_revision > 0));
    let reply = ask(RangeRequest::prefix(&b"\xff"[..])).await.unwrap();
    assert_eq!(reply.count, 1);

    store.delete(KeyRange::prefix("b/")).await.unwrap();
    let reply = ask(RangeRequest::new(KeyRange::All).keys_only()).await.unwrap();
    assert_eq!(reply.count, 4);
    store.delete(KeyRange::All).await.unwrap();
    assert_eq!(ask(RangeRequest::new(KeyRange::All)).await.unwrap().count, 0);
}

async fn older_revisions(store: SharedStore) {
    store.put("a", "1").await.unwrap();
    let old = store.put("b", "1").await.unwrap();
    store.put("b", "2").await.unwrap();
    store.put("c", "1").await.unwrap();
    store.delete(KeyRange::key("a")).await.unwrap();
    let now = store.put("b", "3").await.unwrap();

    let then = store.range(RangeRequest::new(KeyRange::All).at(old)).await.unwrap();
    assert_eq!(keys(&then), ["a", "b"]);
    assert_eq!(then.items[1].value, "1");
    assert_eq!(then.revision, now);
    let then = store.range(RangeRequest::new(KeyRange::All).at(old).descending()).await.unwrap();
    assert_eq!(keys(&then), ["b", "a"]);
    let then = store.range(RangeRequest::new(KeyRange::All).at(old).limit(1)).await.unwrap();
    assert_eq!((keys(&then), then.more, then.count), (vec!["a".into()], true, 2));
    let then = store.range(RangeRequest::key("c").at(old)).await.unwrap();
    assert!(then.items.is_empty());
    let then = store.range(RangeRequest::key("a").at(old + 2)).await.unwrap();
    assert_eq!(then.items.len(), 1);

    let error = store.range(RangeRequest::key("a").at(now + 1)).await.unwrap_err();
    assert!(
        matches!(error, Error::FutureRevision { asked, current } if asked == now + 1 && current == now),
        "{error}"
    );

    store.compact(old + 1).await.unwrap();
    let error = store.range(RangeRequest::key("b").at(old)).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { oldest } if oldest == old + 1), "{error}");
    let then = store.range(RangeRequest::key("b").at(old + 1)).await.unwrap();
    assert_eq!(then.items[0].value, "2");
    assert_eq!(store.get("b").await.unwrap().unwrap().value, "3");
    // A compacted revision can be compacted again, a future one cannot.
    store.compact(old).await.unwrap();
    let error = store.compact(now + 10).await.unwrap_err();
    assert!(matches!(error, Error::FutureRevision { .. }), "{error}");
}

async fn bad_requests(store: SharedStore) {
    let refused = |error: Error| {
        assert_eq!(error.code(), selvage_api::Code::InvalidArgument, "{error}");
        error.to_string()
    };
    let text = refused(store.put("", "x").await.unwrap_err());
    assert_eq!(text, "key: must not be empty");
    let text = refused(store.put(vec![b'k'; 5000], "x").await.unwrap_err());
    assert_eq!(text, "key: has 5000 bytes, the limit is 4096");
    let text = refused(store.put("k", vec![0; (1 << 20) + 1]).await.unwrap_err());
    assert!(text.starts_with("value of 1048577 bytes is too large"), "{text}");
    store.put("k", vec![7; 1 << 20]).await.unwrap();
    assert_eq!(store.get("k").await.unwrap().unwrap().value.len(), 1 << 20);
    refused(store.delete(KeyRange::span("b", "a")).await.unwrap_err());
    refused(store.range(RangeRequest::new(KeyRange::span("a", "a"))).await.unwrap_err());
}
