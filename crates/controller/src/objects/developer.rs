//! Developers.

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
impl Removable for wire::Developer {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        Ok(tables.caught_up::<wire::App>(revision).await?)
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        let apps = tables.find::<wire::App>(index::DEVELOPER, &self.key_text());
        let (own, others): (Vec<_>, Vec<_>) =
            apps.iter().partition(|app| app.value.0.del_opt() == wire::DeleteType::AutoDelete);
        if !others.is_empty() {
            return Err(Error::in_use("Developer in use by Application"));
        }
        super::app::going_with(tables, own.into_iter())
    }
}

impl Controller {
    pub async fn create_developer(
        &self,
        mut developer: wire::Developer,
        mode: Mode,
    ) -> Result<Summary> {
        check_object(&developer)?;
        developer.fields.clear();
        self.create_plain(developer, mode).await
    }

    pub async fn update_developer(&self, request: wire::Developer, mode: Mode) -> Result<Summary> {
        self.update_plain(&request, mode, |_| Ok(())).await
    }

    pub async fn delete_developer(
        self: &Arc<Self>,
        request: &wire::Developer,
        mode: Mode,
    ) -> Result<Summary> {
        self.remove::<wire::Developer>(request.object_key(), mode, Progress::default()).await
    }
}
