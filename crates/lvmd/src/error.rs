//! Errors of volumes. Texts that clients of the original match
//! on are kept to the byte.

use std::{io, path::PathBuf};

use selvage_api::Code;

/// Of a volume operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a volume operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("device-class not found: {0}")]
    ClassNotFound(String),
    #[error("volume group not found: {0}")]
    GroupNotFound(String),
    /// Some of its devices are gone, and LVM makes nothing new meanwhile.
    #[error("volume group {group} is not complete: devices that are missing: {missing}")]
    GroupIncomplete { group: String, missing: usize },
    #[error("thin pool not found: {group}/{pool}")]
    PoolNotFound { group: String, pool: String },
    #[error("logical volume {0} is not found")]
    VolumeNotFound(String),
    #[error("source logical volume {0} is not found")]
    SourceNotFound(String),
    #[error("no enough space left on VG: free={free}, requested={requested}")]
    NoSpace { free: u64, requested: u64 },
    #[error("shrinking volume size is not allowed")]
    Shrinking,
    #[error("requested size {requested} is smaller than source logical volume: {source_size}")]
    SmallerThanSource { requested: u64, source_size: u64 },
    #[error("Logical Volume \"{name}\" already exists in volume group \"{group}\"")]
    Exists { group: String, name: String },
    #[error("unsupported lvcreate-option-class target: {0}")]
    OptionClass(String),
    /// A name, tag or size that no volume can have.
    #[error("{0}")]
    Invalid(String),
    /// The state of the volume forbids it.
    #[error("{0}")]
    Precondition(String),
    /// An image that cannot be copied as it is at one moment.
    #[error(
        "logical volume {0} was written to each time it was copied, and the file system that \
         holds it cannot take snapshots: mount the volume, which lets it be frozen, or stop what \
         writes to it, or keep volumes on xfs or btrfs"
    )]
    BusyImage(String),
    /// A program said no; this is what it said.
    #[error("{0}")]
    Refused(String),
    #[error("{program} cannot be run")]
    Program { program: String, source: io::Error },
    #[error("{}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {what}", .path.display())]
    Malformed { path: PathBuf, what: String },
    #[error("the state of backups cannot be opened")]
    Backups(#[source] Box<crate::backup::Error>),
    #[error("a task of the volume service ended before its time")]
    Task,
}

impl Error {
    /// Returns its meaning to the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::ClassNotFound(_)
            | Self::GroupNotFound(_)
            | Self::PoolNotFound { .. }
            | Self::VolumeNotFound(_)
            | Self::SourceNotFound(_) => Code::NotFound,
            Self::NoSpace { .. } => Code::ResourceExhausted,
            Self::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Code::ResourceExhausted
            }
            Self::Shrinking | Self::SmallerThanSource { .. } | Self::Invalid(_) => {
                Code::InvalidArgument
            }
            Self::Exists { .. } => Code::AlreadyExists,
            Self::Precondition(_) | Self::BusyImage(_) | Self::GroupIncomplete { .. } => {
                Code::FailedPrecondition
            }
            Self::OptionClass(_)
            | Self::Refused(_)
            | Self::Program { .. }
            | Self::File { .. }
            | Self::Malformed { .. }
            | Self::Backups(_)
            | Self::Task => Code::Internal,
        }
    }

    /// Puts the path to an I/O error.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let code = match error {
            // The original's clients know these by a code that nothing else here has.
            Error::Shrinking | Error::SmallerThanSource { .. } => tonic::Code::OutOfRange,
            ref other => other.code().grpc(),
        };
        Self::new(code, selvage_api::chain(&error))
    }
}
