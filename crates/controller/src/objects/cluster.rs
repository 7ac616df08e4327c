//! Clusters: names with a default flavor, which ClusterInsts may use.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_store::Revision;

use super::remove::{Cascade, Removable};
use super::{Told, check_object, insert, told};
use crate::controller::{Controller, Mode, Progress};
use crate::derive;
use crate::error::{Error, Result};
use crate::guard::refer;
use crate::keys::KeyText;
use crate::row::{Kept, index};
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

impl Controller {
    pub async fn create_cluster(&self, mut cluster: wire::Cluster, mode: Mode) -> Result<Told> {
        derive::names::check_cluster_not_reserved(&cluster.object_key().name)?;
        cluster.auto = false;
        cluster.fields.clear();
        let cluster = &cluster;
        let done = self
            .transact(mode, |tx| async move {
                let flavor = cluster.default_flavor.as_ref().filter(|key| !key.name.is_empty());
                if let Some(key) = flavor
                    && refer::<wire::Flavor>(&tx, &key.text()).await?.is_none()
                {
                    return Err(Error::missing(format!("default flavor {} not found", key.name)));
                }
                check_object(cluster)?;
                insert(&tx, cluster).await
            })
            .await?;
        self.settle::<wire::Cluster>(mode, done.revision).await?;
        Ok(told::<wire::Cluster>(mode, "create", &cluster.key_text()))
    }

    #[allow(clippy::unused_async)] // Called like those of other types.
    pub async fn update_cluster(&self, _: wire::Cluster, _: Mode) -> Result<Told> {
        Err(Error::unsupported("Update cluster not supported"))
    }

    pub async fn delete_cluster(
        self: &Arc<Self>,
        request: &wire::Cluster,
        mode: Mode,
    ) -> Result<Told> {
        self.remove::<wire::Cluster>(request.object_key(), mode, Progress::default()).await
    }
}
