//! A snapshot of a cluster's etcd, and what it takes to make a cluster of it.

use selvage_store::{Record, clock::Millis};

use super::{BY_CLUSTER, ControlPlane, Pool};

/// BackupTrigger on which a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum BackupTrigger {
    /// Somebody asked for it.
    Asked = 0,
    /// It was time.
    Schedule = 1,
    /// The cluster is about to be upgraded.
    Upgrade = 2,
}

/// A snapshot. Its bytes are in the repository of backups, under its id.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Backup {
    #[prost(string, tag = "1")]
    pub id: String,
    /// Name of the cluster.
    #[prost(string, tag = "2")]
    pub cluster: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(string, tag = "4")]
    pub organisation: String,
    #[prost(uint64, tag = "5")]
    pub taken_at: Millis,
    #[prost(enumeration = "BackupTrigger", tag = "6")]
    pub occasion: i32,
    /// Why it was taken, a few words.
    #[prost(string, tag = "7")]
    pub reason: String,
    /// Version of the oldest control plane.
    #[prost(string, tag = "8")]
    pub version: String,
    #[prost(uint64, tag = "9")]
    pub size: u64,
    /// Keys of the cluster, sealed for its uid.
    #[prost(bytes = "vec", tag = "10")]
    pub sealed_keys: Vec<u8>,
    #[prost(message, required, tag = "11")]
    pub control_plane: ControlPlane,
    #[prost(message, repeated, tag = "12")]
    pub pools: Vec<Pool>,
    /// Repository that it is in.
    #[prost(string, tag = "13")]
    pub repository: String,
    /// Snapshot in that repository.
    #[prost(string, tag = "14")]
    pub snapshot: String,
}

impl Record for Backup {
    const KIND: &'static str = "kaas-backup";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.id.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(BY_CLUSTER, self.cluster.clone())]
    }
}
