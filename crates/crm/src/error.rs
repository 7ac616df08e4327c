//! Everything that can go wrong in a crm.

use std::{io, path::PathBuf};

use selvage_api::Code;
use selvage_work::Failure;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{field}: {reason}")]
    Invalid { field: String, reason: String },
    #[error("cannot read {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("a cloudlet of kind {kind} cannot be run by this version: use containers")]
    Kind { kind: String },
    /// Something it takes is not on this cloudlet.
    #[error("{what} not found")]
    Missing { what: String },
    #[error("{reason}")]
    State { reason: String },
    #[error("{doing}: {source}")]
    Network { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
    #[error(transparent)]
    Kubernetes(#[from] selvage_kube::Error),
    /// The cluster service refused, in its own words.
    #[error("{}", .0.message())]
    Clusters(Box<tonic::Status>),
    #[error("the cluster service does not answer: {}", .0.message())]
    ClustersAway(Box<tonic::Status>),
    #[error(transparent)]
    Runtime(#[from] selvage_runtime::Error),
    #[error(transparent)]
    Balancer(#[from] selvage_balancer::Error),
    #[error(transparent)]
    Shell(#[from] selvage_shell::Error),
    #[error(transparent)]
    Store(#[from] selvage_store::Error),
    #[error(transparent)]
    Notify(#[from] selvage_notify::Error),
}

impl Error {
    /// Code of the failure for a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::Kind { .. } => Code::Unimplemented,
            Self::Missing { .. } => Code::NotFound,
            Self::File { .. } | Self::State { .. } => Code::FailedPrecondition,
            Self::Kubernetes(error) => error.code(),
            Self::Clusters(status) => Code::from_grpc(status.code()).unwrap_or(Code::Internal),
            Self::ClustersAway(_) => Code::Unavailable,
            Self::Runtime(error) => error.code(),
            Self::Balancer(error) => error.code(),
            Self::Shell(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Network { .. } | Self::Io { .. } | Self::Notify(_) => Code::Internal,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }

    pub(crate) fn state(reason: impl Into<String>) -> Self {
        Self::State { reason: reason.into() }
    }

    pub(crate) fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), selvage_api::chain(&error))
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        // What the service did not say itself has a cause on this side.
        let broke = std::error::Error::source(&status).is_some();
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
                Self::ClustersAway(Box::new(status))
            }
            _ if broke => Self::ClustersAway(Box::new(status)),
            _ => Self::Clusters(Box::new(status)),
        }
    }
}

/// `.during("making a bridge")` on what the kernel answers.
pub(crate) trait During<T> {
    fn during(self, doing: &'static str) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| Error::Io { doing, source })
    }
}

impl<T> During<T> for std::result::Result<T, rtnetlink::Error> {
    fn during(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| Error::Network { doing, source: Box::new(source) })
    }
}

impl<T> During<T> for nix::Result<T> {
    fn during(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| Error::Io { doing, source: source.into() })
    }
}
