//! Rewriting what older versions of the program stored.

use futures::stream::{self, TryStreamExt};

use super::record::{Record, decode, encode, prefix};
use super::scan;
use super::view::key_of;
use crate::{Compare, KeyRange, KeyValue, Op, Result, SharedStore, Txn};

/// Number of records that are rewritten at the same time.
const PARALLEL: usize = 64;

/// Result of [`migrate_all`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Migration {
    pub examined: u64,
    pub rewritten: u64,
}

/// Brings every stored record of a type to its current version, each in a
/// transaction of its own. It can be stopped at any point and run again: what
/// is rewritten already is left alone, and so is what somebody else changes
/// meanwhile, for that is written in the current version.
pub async fn migrate_all<R: Record>(store: &SharedStore) -> Result<Migration> {
    let (listing, _) = scan(store.as_ref(), KeyRange::prefix(prefix::<R>())).await?;
    let examined = listing.len() as u64;
    let mut outdated = Vec::new();
    for kv in listing {
        let decoded = decode::<R>(&key_of::<R>(&kv.key)?, &kv.value)?;
        if decoded.outdated {
            outdated.push((kv, decoded.value));
        }
    }
    let rewritten = stream::iter(outdated.into_iter().map(Ok))
        .map_ok(|(kv, record)| rewrite(store, kv, record))
        .try_buffer_unordered(PARALLEL)
        .try_fold(0, |done, rewritten| async move { Ok(done + u64::from(rewritten)) })
        .await?;
    if rewritten > 0 {
        tracing::info!(kind = R::KIND, version = R::VERSION, rewritten, "records migrated");
    }
    Ok(Migration { examined, rewritten })
}

async fn rewrite<R: Record>(store: &SharedStore, kv: KeyValue, record: R) -> Result<bool> {
    let txn = Txn::new()
        .when(Compare::unchanged(kv.key.clone(), kv.mod_revision))
        .then(Op::put_with_lease(kv.key, encode(&record), kv.lease));
    Ok(store.txn(txn).await?.succeeded)
}
