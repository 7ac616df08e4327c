//! Operators.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_store::Revision;

use super::remove::{Cascade, Removable};
use super::{Summary, check_object};
use crate::controller::{Controller, Mode, Progress};
use crate::derive;
use crate::error::{Error, Result};
use crate::row::{StoredObject, index};
use crate::tables::Tables;

#[async_trait]
impl Removable for wire::Operator {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        Ok(tables.caught_up::<wire::Cloudlet>(revision).await?)
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        if tables.find::<wire::Cloudlet>(index::OPERATOR, &self.key_text()).is_empty() {
            Ok(Cascade::default())
        } else {
            Err(Error::in_use("Operator in use by Cloudlet"))
        }
    }
}

impl Controller {
    pub async fn create_operator(
        &self,
        mut operator: wire::Operator,
        mode: Mode,
    ) -> Result<Summary> {
        check_object(&operator)?;
        derive::names::check_operator(&operator.object_key().name)?;
        operator.fields.clear();
        self.create_plain(operator, mode).await
    }

    /// There is nothing about an operator that could be updated.
    pub async fn update_operator(&self, request: wire::Operator, mode: Mode) -> Result<Summary> {
        self.update_plain(&request, mode, |_| Ok(())).await
    }

    pub async fn delete_operator(
        self: &Arc<Self>,
        request: &wire::Operator,
        mode: Mode,
    ) -> Result<Summary> {
        self.remove::<wire::Operator>(request.object_key(), mode, Progress::default()).await
    }
}
