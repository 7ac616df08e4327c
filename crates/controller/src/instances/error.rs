//! Why a request about an instance is refused, or why it failed. The texts are
//! matched on by clients of the original and are kept to the byte.

use selvage_api::Code;
use selvage_work::{Failure, Running};

use crate::controller::MeetsDeletions;
use crate::derive;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Key already exists")]
    KeyExists,
    #[error("Key not found")]
    KeyNotFound,
    #[error("Specified app not found")]
    AppNotFound,
    #[error("Specified cloudlet not found")]
    CloudletNotFound,
    /// The same for clusters, whose text begins its noun with a capital.
    #[error("Specified Cloudlet not found")]
    ClusterCloudletNotFound,
    #[error("Specified ClusterInst not found")]
    ClusterInstNotFound,
    #[error("Cluster instance does not exist for app")]
    NoClusterForApp,
    #[error("Flavor {0} not found")]
    FlavorNotFound(String),
    #[error("Cluster flavor {0} node flavor {{}} not found")]
    ClusterFlavorNotFound(String),
    #[error("No resource information found for Cloudlet {{{{{operator}}} {name}}}")]
    NoCloudletInfo { operator: String, name: String },

    #[error("Revision {0} of the AppInst is not kept; list its revisions to see those that are")]
    RevisionNotFound(u64),
    #[error("AppInst has no earlier revision to go back to")]
    NoEarlierRevision,

    #[error("AppInst busy, cannot delete")]
    AppInstBusyDelete,
    #[error("AppInst busy, cannot update")]
    AppInstBusyUpdate,
    #[error("ClusterInst busy, cannot delete")]
    ClusterInstBusyDelete,
    #[error("ClusterInst busy, cannot update")]
    ClusterInstBusyUpdate,
    #[error("cluster is not ready")]
    ClusterNotReady,
    #[error("ClusterInst {0} not ready")]
    ClusterInstNotReady(String),
    #[error("ClusterInst expected state DELETE_PREPARE")]
    NotPrepared,
    #[error("ClusterInst in use by Application Instance")]
    ClusterInUse,
    #[error("Failed to auto-delete applications from clusterInst {cluster}, {reason}")]
    AutoDelete { cluster: String, reason: String },
    /// Another operation works on the object; never told to a caller.
    #[error("{} is under way on {}", .0.kind, .0.key)]
    Busy(Running),

    /// A rule of the contract that needs no value to be told.
    #[error("{0}")]
    Invalid(&'static str),
    #[error("Developer name mismatch between app: {app} and cluster inst: {cluster}")]
    DeveloperMismatch { app: String, cluster: String },
    #[error("num_nodes cannot be {0}, the limit is {MAX_NODES}")]
    TooManyNodes(u32),
    #[error(
        "{noun} {name} is refused: its domain name {label} belongs to another instance on the cloudlet"
    )]
    NameTaken { noun: &'static str, name: String, label: String },

    #[error(
        "Cloudlet operator_key:<name:{operator:?} > name:{name:?}  not ready, state is {state}"
    )]
    CloudletNotReady { operator: String, name: String, state: &'static str },

    /// Its agent is in touch and can do nothing.
    #[error("Cloudlet operator_key:<name:{operator:?} > name:{name:?}  cannot be used: {reason}")]
    CloudletUnusable { operator: String, name: String, reason: String },

    /// The same once something is under way there.
    #[error(
        "Cloudlet operator_key:<name:{operator:?} > name:{name:?}  not ready, state is {state}; operation {operation} goes on when it is back"
    )]
    CloudletAway { operator: String, name: String, state: &'static str, operation: String },

    #[error("Encountered failures: {0}")]
    Crm(String),
    #[error("Unknown failure")]
    Vanished,
    #[error("Timed out; expected state {expected} but is {found}")]
    TimedOut { expected: String, found: String },

    /// Failure of another operation.
    #[error("{0}")]
    Other(Failure),
    #[error(transparent)]
    Core(#[from] crate::Error),
}

/// More workers than any cloudlet has machines for; beyond it is a typing
/// mistake, and counting resources stays far from any limit of arithmetic.
pub(super) const MAX_NODES: u32 = 10_000;

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::KeyExists => Code::AlreadyExists,
            Self::KeyNotFound
            | Self::AppNotFound
            | Self::CloudletNotFound
            | Self::ClusterCloudletNotFound
            | Self::ClusterInstNotFound
            | Self::NoClusterForApp
            | Self::FlavorNotFound(_)
            | Self::RevisionNotFound(_)
            | Self::ClusterFlavorNotFound(_)
            | Self::NoCloudletInfo { .. } => Code::NotFound,
            Self::AppInstBusyDelete
            | Self::AppInstBusyUpdate
            | Self::ClusterInstBusyDelete
            | Self::ClusterInstBusyUpdate
            | Self::ClusterNotReady
            | Self::ClusterInstNotReady(_)
            | Self::NotPrepared
            | Self::NoEarlierRevision
            | Self::ClusterInUse
            | Self::AutoDelete { .. }
            | Self::Busy(_) => Code::FailedPrecondition,
            Self::Invalid(_) | Self::DeveloperMismatch { .. } | Self::TooManyNodes(_) => {
                Code::InvalidArgument
            }
            Self::NameTaken { .. } => Code::AlreadyExists,
            Self::CloudletNotReady { .. }
            | Self::CloudletUnusable { .. }
            | Self::CloudletAway { .. } => Code::Unavailable,
            Self::Crm(_) | Self::Vanished => Code::Aborted,
            Self::TimedOut { .. } => Code::DeadlineExceeded,
            Self::Other(failure) => failure.code(),
            Self::Core(error) => error.code(),
        }
    }
}

impl Error {
    /// Returns true if it was the store that did not do its part, so that the
    /// same may go well a moment later.
    pub(super) fn is_of_the_store(&self) -> bool {
        let passes =
            |code| matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted);
        match self {
            Self::Core(crate::Error::Store(selvage_store::Error::Closed)) => false,
            Self::Core(crate::Error::Store(error)) => passes(error.code()),
            // Of the engine, which has no other reason for these.
            Self::Other(failure) => failure.interrupt().is_none() && passes(failure.code()),
            _ => false,
        }
    }
}

impl From<derive::Error> for Error {
    fn from(error: derive::Error) -> Self {
        Self::Core(error.into())
    }
}

impl From<selvage_api::object::Error> for Error {
    fn from(error: selvage_api::object::Error) -> Self {
        Self::Core(error.into())
    }
}

impl From<selvage_store::Error> for Error {
    fn from(error: selvage_store::Error) -> Self {
        Self::Core(error.into())
    }
}

impl From<selvage_work::Error> for Error {
    fn from(error: selvage_work::Error) -> Self {
        match error {
            selvage_work::Error::Busy(running) => Self::Busy(running),
            other => Self::Other(other.into()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Other(failure) => failure,
            Error::Core(crate::Error::Store(error)) => error.into(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::KeyExists => Self::KeyExists,
            Error::KeyNotFound => Self::KeyNotFound,
            Error::Core(error) => error,
            error => Self::refused(error.code(), error.to_string()),
        }
    }
}

impl MeetsDeletions for Error {
    fn is_being_deleted(&self) -> bool {
        matches!(self, Self::Core(error) if error.is_being_deleted())
    }
}

/// An error and what the caller is told before it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) notes: Vec<String>,
    pub(crate) error: Error,
}

impl<E: Into<Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self { notes: Vec::new(), error: error.into() }
    }
}

impl MeetsDeletions for Refusal {
    fn is_being_deleted(&self) -> bool {
        self.error.is_being_deleted()
    }
}
