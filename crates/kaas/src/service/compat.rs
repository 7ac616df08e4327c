//! Codes and texts of the original, for clients that know no others.

use tonic::{Code, Status};

use crate::{Compat, Error, record::Phase};

const CLUSTERS: &str = "CnctCluster.cluster.cnct.sds.samsung.com";
/// Kind, as a read says it that misses, and resource, as a refused write does.
const MACHINE_SET: &str = "CnctMachineSet.cluster.cnct.sds.samsung.com";
const MACHINE_SETS: &str = "cnctmachinesets.cluster.cnct.sds.samsung.com";

impl Compat {
    /// The error as clients expect it.
    pub(super) fn status(self, error: Error) -> Status {
        if self == Self::Precise {
            return error.into();
        }
        match &error {
            Error::ClusterNotFound(name) => {
                Status::not_found(format!("{CLUSTERS} {name:?} not found"))
            }
            Error::PoolNotFound { pools, .. } => {
                let name = pools.first().map_or("", String::as_str);
                Status::not_found(format!("{MACHINE_SET} {name:?} not found"))
            }
            Error::ClusterExists(name) => {
                Status::internal(format!("namespaces {name:?} already exists"))
            }
            Error::PoolExists { pools, .. } => {
                let name = pools.first().map_or("", String::as_str);
                Status::internal(format!("{MACHINE_SETS} {name:?} already exists"))
            }
            // It had no callers to refuse.
            Error::Denied(_) => error.into(),
            _ => Status::new(Code::Internal, error.to_string()),
        }
    }

    /// State of a machine that was asked to be deleted.
    pub(super) fn deleting(self) -> &'static str {
        match self {
            Self::Precise => "Deleting",
            Self::ImsKaas => "Deleted",
        }
    }

    /// The phase of a machine in the original's words.
    pub(super) fn phase(phase: Phase) -> &'static str {
        match phase {
            Phase::Ready | Phase::NotReady | Phase::Hibernated => "ReadyMachine",
            Phase::Upgrading => "UpgradingMachine",
            Phase::Cordoned | Phase::Draining | Phase::Removing | Phase::Releasing => {
                "DeletingMachine"
            }
            Phase::Failed => "ErrorMachine",
            _ => "CreatingMachine",
        }
    }
}
