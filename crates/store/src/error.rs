//! Errors of a store.

use std::path::PathBuf;

use selvage_api::Code;

use crate::{LeaseId, Revision};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the history asked for is compacted: the oldest revision kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("revision {asked} lies in the future: the store is at {current}")]
    FutureRevision { asked: Revision, current: Revision },
    #[error("there is no lease {id}")]
    LeaseNotFound { id: LeaseId },
    #[error("{kind} {key:?} exists already")]
    AlreadyExists { kind: &'static str, key: String },
    #[error("{kind} {key:?} not found")]
    NotFound { kind: &'static str, key: String },
    #[error("gave up after {attempts} attempts: others keep changing the same records")]
    Aborted { attempts: u32 },
    #[error("{field}: {reason}")]
    InvalidArgument { field: &'static str, reason: String },
    #[error("{what}: {count} in one transaction, the limit is {limit}")]
    TooManyOps { what: &'static str, count: usize, limit: usize },
    #[error("{what} of {found} bytes is too large, the limit is {limit}")]
    TooLarge { what: &'static str, found: usize, limit: usize },
    #[error("the store does not answer: {reason}")]
    Unavailable { reason: String },
    #[error("the store did not answer in time: {reason}")]
    Timeout { reason: String },
    #[error("the store refused the credentials: {reason}")]
    Refused { reason: String },
    #[error("{} is in use by {holder}", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error("{what} has format {found}, this program knows formats up to {supported}")]
    NewerFormat { what: String, found: u64, supported: u64 },
    #[error("{what} is damaged: {detail}")]
    Corrupt { what: String, detail: String },
    #[error("the store refuses writes since a write to disk failed: {reason}")]
    Failed { reason: String },
    #[error("the store is closed")]
    Closed,
    #[error("{what}")]
    Io { what: String, source: std::io::Error },
    #[error("the target already holds {count} keys")]
    NotEmpty { count: u64 },
    #[error("internal error of the store: {detail}")]
    Internal { detail: String },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Compacted { .. }
            | Self::FutureRevision { .. }
            | Self::Locked { .. }
            | Self::NewerFormat { .. }
            | Self::NotEmpty { .. } => Code::FailedPrecondition,
            Self::LeaseNotFound { .. } | Self::NotFound { .. } => Code::NotFound,
            Self::AlreadyExists { .. } => Code::AlreadyExists,
            Self::Aborted { .. } => Code::Aborted,
            Self::InvalidArgument { .. } | Self::TooManyOps { .. } | Self::TooLarge { .. } => {
                Code::InvalidArgument
            }
            Self::Unavailable { .. } | Self::Failed { .. } | Self::Closed | Self::Io { .. } => {
                Code::Unavailable
            }
            Self::Timeout { .. } => Code::DeadlineExceeded,
            // Our own credentials, not those of whoever called us.
            Self::Refused { .. } | Self::Internal { .. } => Code::Internal,
            Self::Corrupt { .. } => Code::DataLoss,
        }
    }

    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { field, reason: reason.into() }
    }

    pub(crate) fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), detail: detail.into() }
    }

    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::Internal { detail: detail.into() }
    }
}
