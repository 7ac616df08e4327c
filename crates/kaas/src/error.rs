//! Errors of clusters.

use selvage_api::{Code, google::rpc::bad_request::FieldViolation};
use selvage_work::Failure;

/// Of a call about clusters.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call about clusters failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All fields that are wrong.
    #[error("{}", sentence(.0))]
    Invalid(Vec<FieldViolation>),
    #[error("cluster {0:?} not found")]
    ClusterNotFound(String),
    #[error("cluster {cluster:?} has no pool {}", list(.pools))]
    PoolNotFound { cluster: String, pools: Vec<String> },
    #[error("cluster {0:?} already exists")]
    ClusterExists(String),
    #[error("cluster {cluster:?} already has a pool {}", list(.pools))]
    PoolExists { cluster: String, pools: Vec<String> },
    #[error("{0}")]
    Precondition(String),
    #[error("{0}")]
    Exhausted(String),
    #[error("not authorized: {0}")]
    Denied(String),
    #[error("no machines can be had: {0}")]
    Provider(String),
    #[error("keys of cluster {cluster:?}")]
    Keys { cluster: String, source: crate::pki::Error },
    #[error("machine {0:?} is not in quarantine")]
    NotQuarantined(String),
    #[error("backup {0:?} not found")]
    BackupNotFound(String),
    #[error("no snapshot of etcd could be taken: {0}")]
    Backup(String),
    #[error("backups: {0}")]
    Vault(#[from] crate::vault::Error),
    #[error(transparent)]
    Store(#[from] selvage_store::Error),
}

impl Error {
    /// Code of the error, as the caller sees it.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::ClusterNotFound(_)
            | Self::PoolNotFound { .. }
            | Self::BackupNotFound(_)
            | Self::NotQuarantined(_) => Code::NotFound,
            Self::ClusterExists(_) | Self::PoolExists { .. } => Code::AlreadyExists,
            Self::Precondition(_) | Self::Provider(_) => Code::FailedPrecondition,
            Self::Exhausted(_) => Code::ResourceExhausted,
            Self::Denied(_) => Code::PermissionDenied,
            Self::Backup(_) => Code::Unavailable,
            Self::Vault(error) => error.code(),
            Self::Keys { .. } => Code::DataLoss,
            Self::Store(error) => error.code(),
        }
    }

    /// Refusal of something that a cluster which hibernates cannot do.
    pub(crate) fn hibernated(cluster: &crate::record::Cluster) -> Self {
        let name = &cluster.name;
        Self::Precondition(format!(
            "cluster {name:?} is hibernated: wake it first with `selvage kaas wake {name}`"
        ))
    }

    /// One field that is wrong.
    pub fn field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::Invalid(vec![violation(field, description)])
    }
}

/// A field and why it is wrong.
pub(crate) fn violation(
    field: impl Into<String>,
    description: impl Into<String>,
) -> FieldViolation {
    FieldViolation { field: field.into(), description: description.into() }
}

fn sentence(violations: &[FieldViolation]) -> String {
    let each: Vec<String> =
        violations.iter().map(|v| format!("{}: {}", v.field, v.description)).collect();
    each.join("; ")
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        if let Error::Keys { source, .. } = &error {
            tracing::error!(%error, %source, "keys of a cluster cannot be used");
        }
        let (code, text) = (error.code(), error.to_string());
        match error {
            Error::Invalid(violations) => selvage_api::bad_request(text, violations),
            _ => Self::new(code.grpc(), text),
        }
    }
}
