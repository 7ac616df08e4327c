//! Flavors.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_store::Revision;

use super::remove::{Cascade, Removable};
use super::{Summary, check_object};
use crate::controller::{Controller, Mode, Progress};
use crate::error::{Error, Result};
use crate::row::{StoredObject, index};
use crate::tables::Tables;

#[async_trait]
impl Removable for wire::Flavor {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        tables.caught_up::<wire::ClusterInst>(revision).await?;
        tables.caught_up::<wire::Cluster>(revision).await?;
        tables.caught_up::<wire::App>(revision).await?;
        tables.caught_up::<wire::AppInst>(revision).await?;
        Ok(())
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        let key = self.key_text();
        let clusters = tables.find::<wire::Cluster>(index::FLAVOR, &key);
        if !tables.find::<wire::ClusterInst>(index::FLAVOR, &key).is_empty() || !clusters.is_empty()
        {
            return Err(Error::in_use("Flavor in use by Cluster"));
        }
        let apps = tables.find::<wire::App>(index::FLAVOR, &key);
        let auto = |app: &wire::App| app.del_opt() == wire::DeleteType::AutoDelete;
        if apps.iter().any(|app| !auto(&app.value.0)) {
            return Err(Error::in_use("Flavor in use by App"));
        }
        if !tables.find::<wire::AppInst>(index::FLAVOR, &key).is_empty() {
            return Err(Error::in_use("Flavor in use by App Instance"));
        }
        super::app::going_with(tables, apps.iter())
    }
}

/// Checks a flavor as it is to be stored.
pub(super) fn check_flavor(flavor: &wire::Flavor) -> Result<()> {
    check_object(flavor)?;
    for (value, complaint) in [
        (flavor.ram, "Ram cannot be 0"),
        (flavor.vcpus, "Vcpus cannot be 0"),
        (flavor.disk, "Disk cannot be 0"),
    ] {
        if value == 0 {
            return Err(Error::invalid(complaint));
        }
    }
    Ok(())
}

impl Controller {
    pub async fn create_flavor(&self, mut flavor: wire::Flavor, mode: Mode) -> Result<Summary> {
        check_flavor(&flavor)?;
        flavor.fields.clear();
        self.create_plain(flavor, mode).await
    }

    pub async fn delete_flavor(
        self: &Arc<Self>,
        request: &wire::Flavor,
        mode: Mode,
    ) -> Result<Summary> {
        self.remove::<wire::Flavor>(request.object_key(), mode, Progress::default()).await
    }
}
