//! Records of operations on ClusterInsts.

use selvage_api::edgeproto::{CloudletInfo, ClusterInst, ClusterInstKey};
use selvage_store::Transaction;
use selvage_work::Subject;

use super::error::Error;
use super::state::Override;
use super::steps::Work;
use super::usage;
use crate::keys::{ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;

/// Record of an operation on a ClusterInst.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClusterWork {
    #[prost(message, optional, tag = "1")]
    pub(super) key: Option<ClusterInstKey>,
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
}

impl ClusterWork {
    /// Returns what an operation begins with.
    pub(super) fn of(request: &ClusterInst, before: Option<&ClusterInst>) -> Self {
        Self {
            key: request.key.clone(),
            crm_override: request.crm_override,
            before: before.map_or(0, |before| before.state),
            errors_before: before.map(|before| before.errors.clone()).unwrap_or_default(),
            adopted: false,
        }
    }

    pub(super) fn cluster_key(&self) -> &ClusterInstKey {
        self.key.as_ref().unwrap_or(ClusterInstKey::empty())
    }
}

impl Work for ClusterWork {
    type Instance = ClusterInst;

    const SAYS_DONE: bool = false;

    fn over(&self) -> Override {
        Override::of(self.crm_override)
    }

    fn ignores_crm(&self) -> bool {
        self.over().ignores_crm()
    }

    fn adopted(&self) -> bool {
        self.adopted
    }
}

impl Subject for ClusterWork {
    fn key(&self) -> String {
        self.cluster_key().text()
    }

    fn organisation(&self) -> String {
        self.cluster_key().developer.clone()
    }
}

/// Reads an instance with the state of its cloudlet.
pub(super) async fn read_row(
    tx: &Transaction,
    request: &ClusterInst,
) -> Result<(Option<ClusterInst>, Option<CloudletInfo>), Error> {
    let key = request.object_key();
    let info = usage::get(tx, &key.cloudlet_or_empty().text()).await?;
    Ok((usage::get(tx, &key.text()).await?, info))
}
