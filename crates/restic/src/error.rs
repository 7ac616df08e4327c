//! Errors of a repository.

use std::io::{self, ErrorKind};

use selvage_api::Code;

use crate::{Id, backend::File};

/// Short for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing that looks like a repository is there.
    #[error("there is no repository at {0}")]
    NoRepository(String),
    /// Something is there that is no repository, or one of another kind.
    #[error("what is at {location} is not a restic repository: {reason}")]
    NotARepository {
        /// Address of the repository.
        location: String,
        /// Cause.
        reason: String,
    },
    /// A repository is there already.
    #[error("there is a repository at {0} already")]
    RepositoryExists(String),
    /// None of the repository's keys opens with this password.
    #[error("the encryption key does not open the repository at {0}")]
    WrongKey(String),
    /// Somebody else holds a lock that forbids it.
    #[error("the repository is locked by process {pid} of {user} on {host}, since {since}")]
    Locked {
        /// On which machine.
        host: String,
        /// By which user.
        user: String,
        /// By which process.
        pid: u32,
        /// Since when, as RFC 3339.
        since: String,
    },
    /// Our own lock was taken away while we worked.
    #[error("the lock on the repository was lost: nothing was finished")]
    LockLost,
    /// No such snapshot.
    #[error("there is no snapshot '{0}' in the repository")]
    NoSnapshot(String),
    /// More than one.
    #[error("more than one snapshot is called '{0}'")]
    AmbiguousSnapshot(String),
    /// The snapshot does not hold what a restore needs.
    #[error("snapshot {snapshot} cannot be restored to a volume: {reason}")]
    NotAVolume {
        /// Which.
        snapshot: String,
        /// Cause.
        reason: String,
    },
    /// The volume to restore to is too small.
    #[error("the snapshot holds {needed} bytes and the target only {available}")]
    TargetTooSmall {
        /// Size of the snapshot in bytes.
        needed: u64,
        /// Size of the target.
        available: u64,
    },
    /// A file of the repository does not hold what it should.
    #[error("{file} is damaged: {reason}")]
    DamagedFile {
        /// Which.
        file: File,
        /// In what way.
        reason: String,
    },
    /// A blob does not hold what it should.
    #[error("blob {id} is damaged: {reason}")]
    DamagedBlob {
        /// Which.
        id: Id,
        /// In what way.
        reason: String,
    },
    /// A blob that is referred to is not in any index.
    #[error("blob {0} is missing from the repository")]
    MissingBlob(Id),
    /// A file that should be there is not.
    #[error("{0} is missing from the repository")]
    MissingFile(File),
    /// Argument that makes no sense.
    #[error("{field}: {reason}")]
    Invalid {
        /// The wrong field.
        field: &'static str,
        /// Reason.
        reason: String,
    },
    /// Reading the volume failed.
    #[error("cannot read the volume at {offset}")]
    Source {
        /// Position in the volume.
        offset: u64,
        /// Cause.
        source: io::Error,
    },
    /// The volume was written to, and what was read is not of one moment.
    #[error("the volume was written to while it was read")]
    SourceChanged,
    /// Writing the volume failed.
    #[error("cannot write the volume at {offset}")]
    Sink {
        /// Position in the volume.
        offset: u64,
        /// Cause.
        source: io::Error,
    },
    /// The file system failed.
    #[error("cannot {action} {path}")]
    Io {
        /// Request that was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The object store said no.
    #[error("{action}: {message} ({status})")]
    Refused {
        /// Request that was tried.
        action: String,
        /// Answer of the store, in short.
        message: String,
        /// The HTTP status.
        status: u16,
    },
    /// The object store did not answer, or not in a way that makes sense.
    #[error("{endpoint} does not answer: {reason}")]
    Unreachable {
        /// Whom we asked.
        endpoint: String,
        /// Failure of the last attempt.
        reason: String,
    },
    /// The store takes files and lets none be removed.
    #[error(
        "nothing can be removed from {0}: its store only lets us add. Prune it where the store is \
         kept, or with keys that may delete"
    )]
    AppendOnly(String),
    /// Backups of several volumes fit.
    #[error("backups of several volumes fit: {0}; say which volume is meant")]
    AmbiguousVolume(String),
    /// Backups of several machines fit.
    #[error(
        "backups of several machines fit: {0}; say which machine is meant, or name the backup by its id"
    )]
    AmbiguousHost(String),
    /// A prune failed after it had begun to remove snapshots.
    #[error("{cause}; before that, {} went: {}", count(snapshots), list(snapshots))]
    AfterForgetting {
        /// Those that are gone.
        snapshots: Vec<Id>,
        /// Why it did not come to its end.
        cause: Box<Error>,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A defect of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Returns its meaning to a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::NoRepository(_) | Self::NoSnapshot(_) => Code::NotFound,
            Self::NotARepository { .. }
            | Self::Locked { .. }
            | Self::NotAVolume { .. }
            | Self::AppendOnly(_)
            | Self::SourceChanged => Code::FailedPrecondition,
            Self::RepositoryExists(_) => Code::AlreadyExists,
            Self::WrongKey(_) => Code::PermissionDenied,
            Self::LockLost => Code::Aborted,
            Self::AmbiguousSnapshot(_)
            | Self::AmbiguousVolume(_)
            | Self::AmbiguousHost(_)
            | Self::Invalid { .. }
            | Self::TargetTooSmall { .. } => Code::InvalidArgument,
            Self::AfterForgetting { cause, .. } => cause.code(),
            Self::DamagedFile { .. }
            | Self::DamagedBlob { .. }
            | Self::MissingBlob(_)
            | Self::MissingFile(_) => Code::DataLoss,
            Self::Io { .. } | Self::Sink { .. } if self.is_no_space() => Code::ResourceExhausted,
            Self::Source { .. } | Self::Sink { .. } | Self::Io { .. } | Self::Internal(_) => {
                Code::Internal
            }
            Self::Refused { status, message, .. } => refused(*status, message),
            Self::Unreachable { .. } => Code::Unavailable,
            Self::Cancelled => Code::Cancelled,
        }
    }

    /// Returns whether there was no room for what was to be written.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Sink { source, .. } => {
                matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            }
            Self::Refused { status, .. } => *status == 507,
            _ => false,
        }
    }

    pub(crate) fn damaged(file: File, reason: impl Into<String>) -> Self {
        Self::DamagedFile { file, reason: reason.into() }
    }

    pub(crate) fn io(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::Io { action, path: path.display().to_string(), source }
    }
}

fn count(snapshots: &[Id]) -> String {
    match snapshots {
        [_] => "one backup".to_owned(),
        several => format!("{} backups", several.len()),
    }
}

fn list(snapshots: &[Id]) -> String {
    snapshots.iter().map(Id::short).collect::<Vec<_>>().join(", ")
}

fn refused(status: u16, message: &str) -> Code {
    match status {
        401 => Code::Unauthenticated,
        400 | 403 if message.contains("Token") => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 | 412 => Code::Aborted,
        429 | 503 => Code::Unavailable,
        507 => Code::ResourceExhausted,
        500.. => Code::Unavailable,
        _ => Code::FailedPrecondition,
    }
}
