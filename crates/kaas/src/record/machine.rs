//! One machine of a cluster.

use std::collections::BTreeMap;

use selvage_store::{Record, clock::Millis};

use super::{BY_CLUSTER, BY_OPERATION, machine_key};

/// Changes of phase that are kept.
const HISTORY: usize = 32;

/// Phase of a machine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Phase {
    /// Wanted; the provider is asked for it.
    Requested = 0,
    /// The provider has set one aside.
    Allocated = 1,
    /// The provider is installing it.
    Deploying = 2,
    /// Its agent answers.
    Booting = 3,
    /// Kubernetes is being started on it.
    Bootstrapping = 4,
    /// Kubernetes runs; the node is not ready for work yet.
    Joining = 5,
    /// The node takes work.
    Ready = 6,
    /// The node was ready and is not.
    NotReady = 7,
    /// No new pods come to it.
    Cordoned = 8,
    /// Its pods are being moved away.
    Draining = 9,
    /// It is given another version.
    Upgrading = 10,
    /// It leaves etcd and the list of nodes.
    Removing = 11,
    /// It is wiped and given back.
    Releasing = 12,
    /// It did not come up; it is given back and replaced.
    Failed = 13,
    /// Kubernetes is stopped on it, its data stay.
    Hibernated = 14,
}

impl Phase {
    /// Name as clients see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requested => "Requested",
            Self::Allocated => "Allocated",
            Self::Deploying => "Deploying",
            Self::Booting => "Booting",
            Self::Bootstrapping => "Bootstrapping",
            Self::Joining => "Joining",
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
            Self::Cordoned => "Cordoned",
            Self::Draining => "Draining",
            Self::Upgrading => "Upgrading",
            Self::Removing => "Removing",
            Self::Releasing => "Releasing",
            Self::Failed => "Failed",
            Self::Hibernated => "Hibernated",
        }
    }

    /// Returns whether the machine was never a node.
    pub fn is_before_kubernetes(self) -> bool {
        matches!(
            self,
            Self::Requested | Self::Allocated | Self::Deploying | Self::Booting | Self::Failed
        )
    }

    /// Returns whether it is on its way to become ready.
    pub fn is_coming_up(self) -> bool {
        matches!(
            self,
            Self::Requested
                | Self::Allocated
                | Self::Deploying
                | Self::Booting
                | Self::Bootstrapping
                | Self::Joining
        )
    }

    /// Returns whether Kubernetes runs on it or is being started.
    pub fn is_member(self) -> bool {
        matches!(
            self,
            Self::Bootstrapping
                | Self::Joining
                | Self::Ready
                | Self::NotReady
                | Self::Cordoned
                | Self::Draining
                | Self::Upgrading
                | Self::Removing
                | Self::Hibernated
        )
    }
}

/// Versions of what runs on a machine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Versions {
    /// API server, controller manager and scheduler; empty on workers.
    #[prost(string, tag = "1")]
    pub control_plane: String,
    /// kubelet and kube-proxy.
    #[prost(string, tag = "2")]
    pub kubelet: String,
    /// Stage of the certificate authorities, see [`crate::pki::ClusterPki::signer`].
    #[prost(uint32, tag = "3")]
    pub authority_stage: u32,
}

/// A phase that a machine came to.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PhaseChange {
    #[prost(uint64, tag = "1")]
    pub at: Millis,
    #[prost(enumeration = "Phase", tag = "2")]
    pub phase: i32,
    #[prost(string, tag = "3")]
    pub reason: String,
}

/// Facts about the node of a machine that only the API knows, kept between two looks at it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeFacts {
    /// No new pods come to it, whoever wanted that.
    #[prost(bool, tag = "1")]
    pub unschedulable: bool,
    /// Its kubelet is silent, so nobody knows whether it is ready.
    #[prost(bool, tag = "2")]
    pub unknown: bool,
    /// Version of its kubelet; empty before anybody looked.
    #[prost(string, tag = "3")]
    pub kubelet: String,
}

/// A machine of a cluster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Machine {
    #[prost(string, tag = "1")]
    pub cluster: String,
    /// Of the machine and of its node.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Empty for the control plane.
    #[prost(string, tag = "3")]
    pub pool: String,
    #[prost(string, tag = "4")]
    pub instance_type: String,
    #[prost(enumeration = "Phase", tag = "5")]
    pub phase: i32,
    #[prost(uint64, tag = "6")]
    pub since: Millis,
    /// By which the provider knows who asked for it. Stored before it is used.
    #[prost(string, tag = "7")]
    pub operation: String,
    /// Name of the machine at its provider.
    #[prost(string, tag = "8")]
    pub provider_id: String,
    #[prost(string, tag = "9")]
    pub hostname: String,
    #[prost(string, tag = "10")]
    pub address: String,
    /// Address of its agent.
    #[prost(string, tag = "11")]
    pub agent: String,
    #[prost(message, required, tag = "12")]
    pub wanted: Versions,
    #[prost(message, required, tag = "13")]
    pub running: Versions,
    /// Reason why it waits, or why it failed.
    #[prost(string, tag = "14")]
    pub reason: String,
    #[prost(uint32, tag = "15")]
    pub retries: u32,
    /// No further attempt before.
    #[prost(uint64, tag = "16")]
    pub retry_at: Millis,
    /// It is to go.
    #[prost(bool, tag = "17")]
    pub removing: bool,
    /// State of the machine in the provider's own words.
    #[prost(string, tag = "18")]
    pub provider_state: String,
    #[prost(btree_map = "string, string", tag = "19")]
    pub labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "20")]
    pub history: Vec<PhaseChange>,
    #[prost(uint64, tag = "21")]
    pub created_at: Millis,
    /// It started etcd from nothing, the others joined it.
    #[prost(bool, tag = "22")]
    pub founder: bool,
    /// No new pods, as long as it is being changed.
    #[prost(bool, tag = "23")]
    pub cordoned: bool,
    /// Generation of the spec that its agent got last.
    #[prost(uint64, tag = "24")]
    pub generation: u64,
    /// Somebody marked its node as the first to go.
    #[prost(bool, tag = "25")]
    pub delete_first: bool,
    /// Number of the machine in its cluster, by which its pods have their
    /// addresses. Free again when the machine is gone.
    #[prost(uint32, tag = "26")]
    pub index: u32,
    /// Since when its agent does not answer while the node is not ready; 0 if it
    /// does.
    #[prost(uint64, tag = "27")]
    pub lost_since: Millis,
    /// Its node as the API showed it last.
    #[prost(message, required, tag = "28")]
    pub node: NodeFacts,
}

impl Machine {
    pub fn is_control_plane(&self) -> bool {
        self.pool.is_empty()
    }

    /// Returns whether it ever took work.
    pub fn was_ready(&self) -> bool {
        self.history.iter().any(|change| change.phase() == Phase::Ready)
    }

    /// Goes to a phase, and keeps when and why.
    pub fn enter(&mut self, phase: Phase, reason: impl Into<String>, at: Millis) {
        let reason = reason.into();
        if self.phase() != phase || self.history.is_empty() {
            self.since = at;
            self.history.push(PhaseChange { at, phase: phase.into(), reason: reason.clone() });
            let surplus = self.history.len().saturating_sub(HISTORY);
            self.history.drain(..surplus);
        }
        self.set_phase(phase);
        self.reason = reason;
    }
}

impl Record for Machine {
    const KIND: &'static str = "kaas-machine";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        machine_key(&self.cluster, &self.name)
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(BY_CLUSTER, self.cluster.clone()), (BY_OPERATION, self.operation.clone())]
    }
}
