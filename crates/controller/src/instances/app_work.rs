//! Records of operations on AppInsts.

use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{AppInst, AppInstKey, Cloudlet, CloudletInfo, ClusterInstKey};
use selvage_store::Transaction;
use selvage_work::Subject;

use super::error::Error;
use super::state::Override;
use super::steps::Work;
use super::usage;
use crate::derive::names;
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts, KeyText};

/// Record of an operation on an AppInst.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AppWork {
    #[prost(message, optional, tag = "1")]
    pub(super) key: Option<AppInstKey>,
    #[prost(int32, tag = "2")]
    pub(super) crm_override: i32,
    /// State and errors before the operation.
    #[prost(int32, tag = "3")]
    pub(super) before: i32,
    #[prost(string, repeated, tag = "4")]
    pub(super) errors_before: Vec<String>,
    /// Begun for an instance that was found without an operation.
    #[prost(bool, tag = "5")]
    pub(super) adopted: bool,
    /// Of a creation: what was asked for, and the time that marks the row as
    /// its own.
    #[prost(message, optional, tag = "6")]
    pub(super) request: Option<AppInst>,
    #[prost(message, optional, tag = "7")]
    pub(super) created_at: Option<Timestamp>,
    /// The row was written when the operation began.
    #[prost(bool, tag = "8")]
    pub(super) placed: bool,
    /// The auto-cluster was created for this instance.
    #[prost(bool, tag = "9")]
    pub(super) own_cluster: bool,
}

impl AppWork {
    /// Returns what an operation on an instance that is there begins with.
    pub(super) fn of(request: &AppInst, key: &AppInstKey, before: Option<&AppInst>) -> Self {
        Self {
            key: Some(key.clone()),
            crm_override: request.crm_override,
            before: before.map_or(0, |before| before.state),
            errors_before: before.map(|before| before.errors.clone()).unwrap_or_default(),
            ..Default::default()
        }
    }

    pub(super) fn app_inst_key(&self) -> &AppInstKey {
        self.key.as_ref().unwrap_or(AppInstKey::empty())
    }

    pub(super) fn cluster_key(&self) -> &ClusterInstKey {
        self.app_inst_key().cluster_inst_or_empty()
    }
}

impl Work for AppWork {
    type Instance = AppInst;

    const SAYS_DONE: bool = true;

    fn over(&self) -> Override {
        Override::of(self.crm_override)
    }

    fn ignores_crm(&self) -> bool {
        let cloudlet = self.cluster_key().cloudlet_or_empty();
        self.over().ignores_crm() || names::is_default_cloudlet(cloudlet)
    }

    fn adopted(&self) -> bool {
        self.adopted
    }
}

impl Subject for AppWork {
    fn key(&self) -> String {
        self.app_inst_key().text()
    }

    fn organisation(&self) -> String {
        self.app_inst_key().app_or_empty().developer_or_empty().name.clone()
    }
}

/// Reads an instance with its cloudlet.
pub(super) async fn read_row(
    tx: &Transaction,
    key: &AppInstKey,
) -> Result<(Option<AppInst>, Option<Cloudlet>, Option<CloudletInfo>), Error> {
    let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty().text();
    let existing = usage::get(tx, &key.text()).await?;
    Ok((existing, usage::get(tx, &cloudlet).await?, usage::get(tx, &cloudlet).await?))
}
