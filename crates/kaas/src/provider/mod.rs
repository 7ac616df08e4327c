//! Providers: who delivers machines with agents on them.

pub mod agents;
mod enrolment;
pub mod joined;
pub mod local;
pub mod maas;
pub mod sim;
pub mod ssh;

use std::collections::BTreeSet;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_work::Failure;
use tonic::transport::Channel;

use crate::catalogue::Release;

/// Names an intent to have a machine. The caller stores it before it is used;
/// the provider keeps it with the machine, so that a call which is repeated,
/// by this process or the next, finds what the first one did.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub String);

/// The machine that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub cluster: String,
    /// Name that the machine will have as a node.
    pub name: String,
    /// Empty for any.
    pub instance_type: String,
    /// Version of Kubernetes that it has to be able to run.
    pub version: String,
}

/// A machine that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquired {
    /// Name of the machine at the provider.
    pub id: String,
    pub hostname: String,
}

/// Machines of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub instance_type: String,
    /// Number of machines there are, `None` for any number.
    pub total: Option<u32>,
    /// Number of machines that are free.
    pub free: Option<u32>,
}

/// Progress of a machine at its provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is being installed.
    Deploying,
    /// Its agent answers.
    Up { address: String, agent: String },
    /// It will not come up.
    Failed(String),
}

/// A machine as its provider sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub state: State,
    /// The same in the provider's own words.
    pub detail: String,
}

/// A machine that we have according to the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    pub operation: OperationId,
    pub id: String,
}

/// Treatment of the disks of a machine that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wipe {
    /// Everything of Kubernetes is removed.
    Reset,
    /// The disks are erased, where the provider can.
    Disks,
}

/// Abilities of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// A machine that is given back is destroyed with all that is on it.
    pub disposable: bool,
    /// Why no machine can be had at present, and what to do about it.
    pub problem: Option<String>,
}

/// Why a provider did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No machine fits now; there may be one later.
    #[error("{0}")]
    NoneFree(String),
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
            Self::NoneFree(_) => Code::ResourceExhausted,
            Self::Unavailable(_) => Code::Unavailable,
            Self::Refused(_) => Code::FailedPrecondition,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Delivers machines with agents, and takes them back.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Name in settings and messages.
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// Why its machines cannot run that release, if they cannot.
    fn lacks(&self, release: &Release) -> Option<String> {
        let _ = release;
        None
    }

    /// Returns whether members of an organisation may be root on its machines, as
    /// everybody is who may run privileged pods in a cluster.
    fn trusts(&self, organisation: &str) -> bool {
        let _ = organisation;
        true
    }

    /// Leaves these machines, by their names, out of what it offers and gives. False
    /// where it has no machines that come back under the same name.
    fn exclude(&self, machines: BTreeSet<String>) -> bool {
        drop(machines);
        false
    }

    /// Machines that fit the type, empty for all types.
    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error>;

    /// Sets a machine aside, or finds the one of this operation.
    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error>;

    /// Tells how far the machine of this operation is.
    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error>;

    /// Takes the machine of this operation back; true once it is done, also
    /// when there is none.
    async fn release(&self, operation: &OperationId, wipe: Wipe) -> Result<bool, Error>;

    /// A connection to the agent of the machine of this operation.
    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        Err(Error::Refused(format!("{} has no agent", operation.0)))
    }

    /// All machines that we have.
    async fn list_owned(&self) -> Result<Vec<Owned>, Error>;

    /// Puts right what changed without us; called every few seconds.
    async fn maintain(&self) -> Result<(), Error> {
        Ok(())
    }
}
