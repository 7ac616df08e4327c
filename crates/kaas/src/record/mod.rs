//! Stored records of clusters, their pools and their machines.

mod backup;
mod cluster;
mod machine;
mod quarantine;

use std::collections::BTreeMap;

use selvage_store::{Record, clock::Millis};

pub use backup::{Backup, BackupTrigger};
pub use cluster::{AuthorityRecord, Cluster, Condition, ControlPlane, Event};
pub use machine::{Machine, NodeFacts, Phase, PhaseChange, Versions};
pub use quarantine::{MachineFailures, failures_key};

/// Index of pools and machines by the cluster they belong to.
pub const BY_CLUSTER: &str = "cluster";
/// Index of machines by the operation that acquired them.
pub const BY_OPERATION: &str = "operation";

/// Worker machines of one kind.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Pool {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Empty for any.
    #[prost(string, tag = "3")]
    pub instance_type: String,
    #[prost(uint32, tag = "4")]
    pub count: u32,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    #[prost(bool, tag = "6")]
    pub deleting: bool,
    #[prost(uint64, tag = "7")]
    pub created_at: Millis,
}

impl Record for Pool {
    const KIND: &'static str = "kaas-pool";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        pool_key(&self.cluster, &self.name)
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(BY_CLUSTER, self.cluster.clone())]
    }
}

/// Turns in which an organisation was given machines, where their number is limited:
/// whoever gives it some changes this record, so that no two do at once.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Reservation {
    #[prost(string, tag = "1")]
    pub organisation: String,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

impl Record for Reservation {
    const KIND: &'static str = "kaas-reservation";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.organisation.clone()
    }
}

/// Key of a pool.
pub fn pool_key(cluster: &str, pool: &str) -> String {
    format!("{cluster}/{pool}")
}

/// Key of a machine.
pub fn machine_key(cluster: &str, machine: &str) -> String {
    format!("{cluster}/{machine}")
}

/// Keys of a cluster's certificate authorities, sealed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Pki {
    /// Of the cluster.
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(bytes = "vec", tag = "2")]
    pub sealed: Vec<u8>,
}

impl Record for Pki {
    const KIND: &'static str = "kaas-pki";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.uid.clone()
    }
}

/// Trace of a cluster that is gone.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Tombstone {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub organisation: String,
    #[prost(string, tag = "4")]
    pub created_by: String,
    #[prost(uint64, tag = "5")]
    pub created_at: Millis,
    #[prost(uint64, tag = "6")]
    pub gone_at: Millis,
}

impl Record for Tombstone {
    const KIND: &'static str = "kaas-tombstone";
    const VERSION: u32 = 1;

    /// Sorts by the time at which the cluster went.
    fn key(&self) -> String {
        format!("{:016x}/{}", self.gone_at, self.uid)
    }
}
