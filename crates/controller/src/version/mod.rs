//! The version of the data model, and the way from an older one to the newest.
//!
//! The contract names every version of the model by a hash, in order. The
//! store holds the hash of the model it was written by. At start a store of
//! an older model is upgraded version by version; each step rewrites record
//! by record, leaves alone what is rewritten already, and is followed by
//! writing its hash, so that it can be stopped anywhere and started again.

mod steps;

use futures::future::BoxFuture;
use selvage_api::Code;
use selvage_api::edgeproto::VersionHash;
use selvage_store::{Record, SharedStore, Table, transact};

use crate::error::{Error, Result};

pub(crate) use steps::STEPS;

/// Rewrites what the model before had otherwise.
pub(crate) type Upgrade = fn(SharedStore) -> BoxFuture<'static, Result<()>>;

/// Rewrites the records that a version has otherwise than the one before. A
/// version that is not listed changed nothing that we keep.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) version: VersionHash,
    pub(crate) upgrade: Upgrade,
}

/// Version of the data model that the store was written by.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Model {
    #[prost(string, tag = "1")]
    pub(crate) hash: String,
}

impl Record for Model {
    const KIND: &'static str = "model-version";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        CURRENT.to_owned()
    }
}

const CURRENT: &str = "current";

/// The versions that the contract knows, the oldest first.
fn known() -> Vec<VersionHash> {
    (0..).map_while(|number| VersionHash::try_from(number).ok()).collect()
}

/// The hash of a version: its name without the prefix.
pub(crate) fn hash(version: VersionHash) -> &'static str {
    let name = version.as_str_name();
    name.strip_prefix("HASH_").unwrap_or(name)
}

/// Makes sure that the store is of the newest model.
pub(crate) async fn prepare(store: &SharedStore, auto_upgrade: bool, steps: &[Step]) -> Result<()> {
    let versions = known();
    let Some(newest) = versions.last().copied() else { return Ok(()) };
    let found = write_if_absent(store, hash(newest)).await?;
    let Some(at) = versions.iter().position(|version| hash(*version) == found) else {
        return Err(Error::refused(
            Code::FailedPrecondition,
            format!("fromVersion {found} doesn't exist"),
        ));
    };
    let missing = versions.get(at + 1..).unwrap_or_default();
    if !missing.is_empty() && !auto_upgrade {
        return Err(Error::refused(
            Code::FailedPrecondition,
            "Running version doesn't match the version of etcd, data mode upgrade required",
        ));
    }
    for version in missing {
        for step in steps.iter().filter(|step| step.version == *version) {
            (step.upgrade)(store.clone()).await?;
        }
        write(store, hash(*version)).await?;
        tracing::info!(version = hash(*version), "the data model is upgraded");
    }
    Ok(())
}

/// The hash in the store; in an empty one, `newest` from now on.
async fn write_if_absent(store: &SharedStore, newest: &'static str) -> Result<String> {
    let done = transact(store, |tx| async move {
        if let Some(model) = tx.get::<Model>(CURRENT).await? {
            return Ok(model.hash);
        }
        tx.put(&Model { hash: newest.to_owned() })?;
        Ok::<_, Error>(newest.to_owned())
    })
    .await?;
    Ok(done.value)
}

pub(crate) async fn write(store: &SharedStore, hash: &str) -> Result<()> {
    transact(store, |tx| async move {
        tx.put(&Model { hash: hash.to_owned() })?;
        Ok::<_, Error>(())
    })
    .await?;
    Ok(())
}

/// Lets `change` work on every record of a type, each in a transaction of its
/// own. What it leaves as it was is not written.
pub(crate) async fn rewrite_each<R: Record>(
    store: &SharedStore,
    change: impl Fn(&mut R) + Sync,
) -> Result<()> {
    let table = Table::<R>::open(store.clone()).await?;
    for held in table.list() {
        let rewritten = table.update(&held.key, |record| {
            change(record);
            Ok::<_, selvage_store::Error>(())
        });
        match rewritten.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
