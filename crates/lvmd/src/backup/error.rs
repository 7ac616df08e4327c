//! Errors of backups.

use std::{io, path::PathBuf};

use selvage_api::Code;
use selvage_work::Failure;

/// Of work on backups.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why work on backups was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("backup is not configured")]
    NotConfigured,
    /// The original's sentence.
    #[error("No logical volume named \"{0}\" found. Stop backing up. Exit script.")]
    NoVolume(String),
    #[error("{0} is required")]
    Missing(&'static str),
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("the same is under way with other content or another repository: {0}")]
    Elsewhere(String),
    #[error("a backup of that name is under way for another request: job {0}")]
    UnderWay(String),
    #[error("there is no job {0}")]
    NoJob(String),
    #[error("there is no schedule {0}")]
    NoSchedule(String),
    #[error("credentials {name}: {reason}")]
    Credentials { name: String, reason: String },
    #[error("{} cannot be read", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// The snapshot that was being read lost its content.
    #[error("snapshot overflow: the volume changed more than the snapshot could hold")]
    Overflow,
    /// A volume that is written to, and that there is no room to copy.
    #[error(
        "logical volume {0} was written to each time it was read, and the disk has no room for a \
         copy: stop what writes to it, or make room"
    )]
    BusyInPlace(String),
    /// A repository that held backups, and is empty or not there now.
    #[error(
        "there is no repository at {0} any more, where earlier backups were stored: is its disk \
         mounted? To begin a new one there, run `selvage backup create` once"
    )]
    RepositoryGone(String),
    /// A backup that would fill the pool of thin volumes.
    #[error(
        "the backup holds {needed} bytes, and there are only {free} left for thin volumes: make \
         room, or choose another device class"
    )]
    NoRoom { needed: u64, free: u64 },
    /// Damages that a verify found, and could not heal.
    #[error("{0}")]
    Damaged(String),
    #[error(transparent)]
    Volume(#[from] crate::Error),
    #[error(transparent)]
    Repository(#[from] selvage_restic::Error),
    #[error(transparent)]
    Store(#[from] selvage_store::Error),
    #[error(transparent)]
    Work(#[from] selvage_work::Error),
    #[error("a task of the backup service ended before its time")]
    Task,
}

impl Error {
    /// Returns its meaning to the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::NotConfigured
            | Self::Credentials { .. }
            | Self::Overflow
            | Self::BusyInPlace(_)
            | Self::RepositoryGone(_)
            | Self::Elsewhere(_) => Code::FailedPrecondition,
            Self::NoRoom { .. } => Code::ResourceExhausted,
            Self::UnderWay(_) => Code::AlreadyExists,
            Self::NoVolume(_) | Self::NoJob(_) | Self::NoSchedule(_) => Code::NotFound,
            Self::Missing(_) | Self::Invalid { .. } => Code::InvalidArgument,
            Self::File { .. } | Self::Task => Code::Internal,
            Self::Damaged(_) => Code::DataLoss,
            Self::Volume(error) => error.code(),
            Self::Repository(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Work(error) => error.code(),
        }
    }

    /// The code on the wire.
    pub(crate) fn grpc(&self) -> tonic::Code {
        match self {
            Self::Volume(crate::Error::SmallerThanSource { .. })
            | Self::Repository(selvage_restic::Error::TargetTooSmall { .. }) => {
                tonic::Code::OutOfRange
            }
            other => other.code().grpc(),
        }
    }

    /// All there is to say, down to the first cause.
    pub(crate) fn text(&self) -> String {
        selvage_api::chain(self)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // Knows whether the process is going down.
            Error::Store(error) => error.into(),
            Error::Work(error) => error.into(),
            other => Self::new(other.code(), other.text()),
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Self::new(error.grpc(), error.text())
    }
}
