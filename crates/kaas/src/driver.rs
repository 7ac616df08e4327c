//! Kubernetes on the machines of a cluster: what the steps of the planner are
//! made of.

use async_trait::async_trait;
use selvage_api::Code;

use crate::{catalogue::Version, plan::Snapshot, record::Machine, vault::Writer};

/// Result of a step: done, or still under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// Not yet; says what is being waited for.
    Waiting(String),
}

/// A node as the API of its cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub ready: bool,
    /// Its kubelet is silent, so nobody knows whether it is ready.
    pub unknown: bool,
    /// Why it is not ready.
    pub reason: String,
    pub schedulable: bool,
    pub kubelet_version: String,
    /// Somebody marked it as the first to go when its pool shrinks.
    pub delete_first: bool,
    /// It is of the control plane, and pods stay away from it.
    pub tainted: bool,
}

/// Why a step was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Trying again later may help.
    #[error("{0}")]
    Unavailable(String),
    /// Trying again does not help.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Unavailable(_) => Code::Unavailable,
            Self::Refused(_) => Code::FailedPrecondition,
        }
    }
}

/// Starts, watches and stops Kubernetes on machines. Every method is short and
/// may be repeated.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Brings a machine to the versions it is to run.
    async fn configure(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error>;

    /// Stops everything on a machine and keeps its data.
    async fn hibernate(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error>;

    /// Address of the API, once it has answered.
    async fn api(&self, cluster: &Snapshot) -> Result<Option<String>, Error>;

    /// Sees whether the node is ready for work, gives it its labels, taints
    /// and role, and lets pods come.
    async fn join(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error>;

    /// All nodes of the cluster.
    async fn nodes(&self, cluster: &Snapshot) -> Result<Vec<Node>, Error>;

    /// Keeps new pods away from a node.
    async fn cordon(&self, cluster: &Snapshot, machine: &Machine) -> Result<(), Error>;

    /// Evicts pods, as far as their disruption budgets allow; deletes them with `force`.
    async fn drain(
        &self,
        cluster: &Snapshot,
        machine: &Machine,
        force: bool,
    ) -> Result<Progress, Error>;

    /// Keeps new pods away from a node of the control plane where the cluster has
    /// workers, and lets them come where it has none.
    async fn taint(&self, cluster: &Snapshot, machine: &Machine) -> Result<(), Error>;

    /// Takes the machine out of etcd and its node out of the API.
    async fn leave(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error>;

    /// Returns whether the agent of the machine answers.
    async fn answers(&self, machine: &Machine) -> bool;

    /// Removes everything of Kubernetes from the machine.
    async fn reset(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error>;

    /// Reasons not to upgrade the cluster to that version now, a sentence each.
    async fn obstacles(&self, cluster: &Snapshot, to: Version) -> Result<Vec<String>, Error> {
        let _ = (cluster, to);
        Ok(Vec::new())
    }

    /// Writes a snapshot of the cluster's etcd.
    async fn save(&self, cluster: &Snapshot, into: &mut Writer) -> Result<(), Error>;

    /// Tells members of a cluster what changed around them, such as machines
    /// that came and went. One that does not answer holds up nobody else; the error
    /// names it.
    async fn sync(&self, cluster: &Snapshot) -> Result<(), Error> {
        let _ = cluster;
        Ok(())
    }
}
