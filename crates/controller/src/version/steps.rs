//! One entry for each version of the model that changed what is kept.
//!
//! The changes up to version 4 were made to the form in which the original
//! wrote its records, which is not ours: no store of ours has been written
//! before them.

use futures::FutureExt;
use futures::future::BoxFuture;
use selvage_api::edgeproto::{ClusterInst, VersionHash};
use selvage_store::SharedStore;

use super::{Step, rewrite_each};
use crate::derive::deployment::KUBERNETES;
use crate::error::Result;
use crate::row::Row;

pub(crate) const STEPS: &[Step] = &[Step {
    version: VersionHash::Hash2b79f0b6e402045ee5f68d697b9386ae,
    upgrade: name_deployment_of_clusters,
}];

/// ClusterInsts say since then how apps are deployed on them; before, it was
/// always kubernetes.
fn name_deployment_of_clusters(store: SharedStore) -> BoxFuture<'static, Result<()>> {
    async move {
        rewrite_each::<Row<ClusterInst>>(&store, |row| {
            if row.0.deployment.is_empty() {
                row.0.deployment = KUBERNETES.to_owned();
            }
        })
        .await
    }
    .boxed()
}
