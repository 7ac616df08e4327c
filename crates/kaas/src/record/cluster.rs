//! The cluster as a whole.

use std::collections::BTreeMap;

use selvage_store::{Record, clock::Millis};

use crate::pki::STAGES;

/// Events of a cluster that are kept.
const EVENTS: usize = 64;

/// Machines of the control plane.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControlPlane {
    #[prost(uint32, tag = "1")]
    pub count: u32,
    #[prost(string, tag = "2")]
    pub instance_type: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
}

/// One fact about a cluster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Condition {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(bool, tag = "2")]
    pub holds: bool,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(string, tag = "4")]
    pub message: String,
    /// Since when it holds or does not.
    #[prost(uint64, tag = "5")]
    pub since: Millis,
}

/// Something that happened to the cluster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Event {
    #[prost(uint64, tag = "1")]
    pub at: Millis,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Generation of a cluster's certificate authorities, and how far their replacement is.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuthorityRecord {
    /// Generation of the oldest authorities that are still stored.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// Stage that machines are brought to, see [`crate::pki::ClusterPki::signer`].
    #[prost(uint32, tag = "2")]
    pub stage: u32,
    /// Stage at which the replacement is done.
    #[prost(uint32, tag = "3")]
    pub target: u32,
}

impl AuthorityRecord {
    /// Authorities of a generation that are not being replaced.
    pub fn settled(generation: u32) -> Self {
        let stage = generation * STAGES;
        Self { generation, stage, target: stage }
    }

    /// Returns whether the authorities are being replaced.
    pub fn is_rotating(&self) -> bool {
        *self != Self::settled(self.generation)
    }
}

/// A cluster: what was asked for, and what is known of it as a whole.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Cluster {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Empty for the platform's own.
    #[prost(string, tag = "3")]
    pub organisation: String,
    #[prost(string, tag = "4")]
    pub created_by: String,
    #[prost(uint64, tag = "5")]
    pub created_at: Millis,
    /// Version that is wanted.
    #[prost(string, tag = "6")]
    pub version: String,
    #[prost(message, required, tag = "7")]
    pub control_plane: ControlPlane,
    #[prost(bool, tag = "8")]
    pub deleting: bool,
    #[prost(bool, tag = "9")]
    pub paused: bool,
    /// Raised by every change that a caller asked for.
    #[prost(uint64, tag = "10")]
    pub generation: u64,
    /// Raised whenever the set of machines is changed, so that two processes
    /// never both act on the same view of it.
    #[prost(uint64, tag = "11")]
    pub membership: u64,
    #[prost(message, repeated, tag = "12")]
    pub conditions: Vec<Condition>,
    /// `host:port` of its API.
    #[prost(string, tag = "13")]
    pub endpoint: String,
    /// The API has answered once.
    #[prost(bool, tag = "14")]
    pub provisioned: bool,
    /// By which a caller may repeat the request that made it.
    #[prost(string, tag = "15")]
    pub request_id: String,
    #[prost(bytes = "vec", tag = "16")]
    pub request_digest: Vec<u8>,
    /// Machines that failed since one last became ready.
    #[prost(uint32, tag = "17")]
    pub failures: u32,
    /// No new machine is asked for before.
    #[prost(uint64, tag = "18")]
    pub retry_at: Millis,
    #[prost(string, tag = "19")]
    pub provider: String,
    #[prost(message, repeated, tag = "20")]
    pub events: Vec<Event>,
    /// Why the last machine failed.
    #[prost(string, tag = "21")]
    pub last_failure: String,
    /// Snapshot that its etcd started from, empty for one that started empty.
    #[prost(string, tag = "22")]
    pub restored_from: String,
    /// Machines that are older belong to what was there before the snapshot was
    /// restored.
    #[prost(uint64, tag = "23")]
    pub restored_at: Millis,
    /// Version that the last snapshot before an upgrade was taken for.
    #[prost(string, tag = "24")]
    pub backed_up_for: String,
    /// Why the last snapshot could not be taken, and when to try again.
    #[prost(string, tag = "25")]
    pub backup_problem: String,
    #[prost(uint64, tag = "26")]
    pub backup_retry_at: Millis,
    /// Everything on its machines is to be stopped, with all data kept.
    #[prost(bool, tag = "27")]
    pub hibernated: bool,
    #[prost(message, required, tag = "28")]
    pub authorities: AuthorityRecord,
    /// Time at which it was paused.
    #[prost(uint64, tag = "29")]
    pub paused_at: Millis,
    /// Versions that the control plane goes through on its way to the one that is wanted,
    /// one of each minor in between, oldest first.
    #[prost(string, repeated, tag = "30")]
    pub hops: Vec<String>,
    /// The upgrade goes on whatever stands in its way.
    #[prost(bool, tag = "31")]
    pub forced: bool,
    /// Why the upgrade does not go on to its next version.
    #[prost(string, tag = "32")]
    pub preflight_problem: String,
}

impl Cluster {
    /// Versions of an upgrade in their order, the wanted one last.
    pub fn path(&self) -> impl Iterator<Item = &String> {
        self.hops.iter().chain(std::iter::once(&self.version))
    }

    /// Wants another version, to be reached through these.
    pub fn set_target(&mut self, version: String, hops: Vec<String>, forced: bool) {
        (self.version, self.hops, self.forced) = (version, hops, forced);
        // A snapshot of an earlier attempt is no snapshot from before this one.
        self.backed_up_for.clear();
        self.preflight_problem.clear();
    }

    /// Keeps an event, and forgets the oldest if there are too many.
    pub fn add_event(&mut self, at: Millis, message: impl Into<String>) {
        self.events.push(Event { at, message: message.into() });
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
    }
}

impl Record for Cluster {
    const KIND: &'static str = "kaas-cluster";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("organisation", self.organisation.clone())]
    }
}
