//! Clusters: names with a default flavor, which ClusterInsts may use.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_api::object::Mask;
use selvage_store::{Revision, Transaction};

use super::remove::{Cascade, Removable};
use super::{Summary, check_object, insert, merge, same_key, summary};
use crate::controller::{Controller, Mode, Progress};
use crate::derive;
use crate::error::{Error, Result};
use crate::guard::refer;
use crate::keys::KeyText;
use crate::row::{Row, StoredObject, index};
use crate::settings::Compat;
use crate::tables::Tables;

#[async_trait]
impl Removable for wire::Cluster {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        Ok(tables.caught_up::<wire::ClusterInst>(revision).await?)
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        if tables.find::<wire::ClusterInst>(index::CLUSTER, &self.key_text()).is_empty() {
            Ok(Cascade::default())
        } else {
            Err(Error::in_use("Cluster in use by ClusterInst"))
        }
    }
}

/// The default flavor, if one is named, must be there and stay.
async fn check_default_flavor(tx: &Transaction, cluster: &wire::Cluster) -> Result<()> {
    let flavor = cluster.default_flavor.as_ref().filter(|key| !key.name.is_empty());
    if let Some(key) = flavor
        && refer::<wire::Flavor>(tx, &key.text()).await?.is_none()
    {
        return Err(Error::missing(format!("default flavor {} not found", key.name)));
    }
    Ok(())
}

impl Controller {
    pub async fn create_cluster(&self, mut cluster: wire::Cluster, mode: Mode) -> Result<Summary> {
        derive::names::check_cluster_not_reserved(&cluster.object_key().name)?;
        cluster.auto = false;
        cluster.fields.clear();
        let cluster = &cluster;
        let done = self
            .transact(mode, |tx| async move {
                check_default_flavor(&tx, cluster).await?;
                check_object(cluster)?;
                insert(&tx, cluster).await
            })
            .await?;
        self.settle::<wire::Cluster>(mode, done.revision).await?;
        Ok(summary::<wire::Cluster>(mode, "create", &cluster.key_text()))
    }

    pub async fn update_cluster(&self, request: wire::Cluster, mode: Mode) -> Result<Summary> {
        if self.settings.compat == Compat::EdgeCloud {
            return Err(Error::unsupported("Update cluster not supported"));
        }
        request.object_key().check()?;
        let mask = Mask::of(&request)?;
        mask.allow_only(&["2", "3"])?;
        let key = request.key_text();
        let (request, mask, key) = (&request, &mask, &key);
        let done = self
            .transact(mode, |tx| async move {
                let (cluster, changes) = merge(&tx, key, mask, request).await?;
                if changes > 0 {
                    check_default_flavor(&tx, &cluster).await?;
                    check_object(&cluster)?;
                    same_key(&cluster, key)?;
                    tx.put(&Row(cluster))?;
                }
                Ok::<_, Error>(())
            })
            .await?;
        self.settle::<wire::Cluster>(mode, done.revision).await?;
        Ok(summary::<wire::Cluster>(mode, "update", key))
    }

    pub async fn delete_cluster(
        self: &Arc<Self>,
        request: &wire::Cluster,
        mode: Mode,
    ) -> Result<Summary> {
        self.remove::<wire::Cluster>(request.object_key(), mode, Progress::default()).await
    }
}
