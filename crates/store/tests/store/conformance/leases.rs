//! Leases, as far as they do not need time to pass.

use std::time::Duration;

use selvage_store::{Error, KeyRange, LeaseId, Op, SharedStore, StoreExt, Txn};

use super::Factory;
use crate::support::next;

pub(super) async fn run(factory: &impl Factory) {
    keys_go_with_their_lease(factory.fresh().await).await;
    unknown_leases(factory.fresh().await).await;
}

async fn keys_go_with_their_lease(store: SharedStore) {
    let lease = store.lease_grant(Duration::from_secs(600)).await.unwrap();
    assert_eq!(lease.ttl, Duration::from_secs(600));
    let other = store.lease_grant(Duration::from_secs(600)).await.unwrap();
    assert_ne!(lease.id, other.id);

    let mut txn = Txn::new();
    for key in ["a", "b", "c", "d"] {
        txn = txn.then(Op::put_with_lease(key, "v", lease.id));
    }
    store.txn(txn).await.unwrap();
    assert_eq!(store.get("a").await.unwrap().unwrap().lease, Some(lease.id));
    // One loses its lease, one changes it, one is gone before.
    store.put("b", "for good").await.unwrap();
    store.txn(Txn::new().then(Op::put_with_lease("c", "v", other.id))).await.unwrap();
    store.delete(KeyRange::key("d")).await.unwrap();

    let kept = store.lease_keep_alive(lease.id).await.unwrap();
    assert_eq!(kept.ttl, lease.ttl);
    assert!(kept.remaining <= kept.ttl && kept.remaining > Duration::from_secs(500));
    assert!(store.lease_list().await.unwrap().contains(&lease.id));
    assert_eq!(store.lease_ttl(lease.id).await.unwrap().ttl, lease.ttl);

    let mut watch = store.watch(KeyRange::All, None).await.unwrap();
    store.lease_revoke(lease.id).await.unwrap();
    assert_eq!(crate::support::describe(&next(&mut watch).await), [("delete", "a".into())]);
    let left = store.list("").await.unwrap();
    let left: Vec<_> = left.items.iter().map(|kv| (&kv.key[..], kv.lease)).collect();
    assert_eq!(left, [(&b"b"[..], None), (&b"c"[..], Some(other.id))]);
    assert!(!store.lease_list().await.unwrap().contains(&lease.id));
    store.lease_revoke(other.id).await.unwrap();
    assert!(store.get("c").await.unwrap().is_none());
}

async fn unknown_leases(store: SharedStore) {
    let id = LeaseId(0x1234);
    let errors = [
        store.lease_keep_alive(id).await.unwrap_err(),
        store.lease_revoke(id).await.unwrap_err(),
        store.lease_ttl(id).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::LeaseNotFound { id: named } if named == id), "{error}");
        assert_eq!(error.to_string(), "there is no lease 0000000000001234");
    }
    let error = store.lease_grant(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), selvage_api::Code::InvalidArgument);
}
