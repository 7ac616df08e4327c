//! Errors of a machine's files, services and power.

use std::io;

use rustix::io::Errno;
use selvage_api::Code;
use tonic::Status;

/// Errors of calls to the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path does not begin at the root.
    #[error("path is not absolute {path}")]
    NotAbsolute {
        /// The path of the request.
        path: String,
    },
    /// No path at all.
    #[error("path {path:?} {reason}")]
    BadPath {
        /// The path of the request.
        path: String,
        /// Reason why it is refused.
        reason: &'static str,
    },
    /// A path outside the folders that callers may see.
    #[error("path {path:?} leads out of what may be looked at here")]
    Outside {
        /// The path of the request.
        path: String,
    },
    /// A key, a credential or state of this machine.
    #[error("path {path:?} is not served: keys and the state of this machine are for nobody")]
    Protected {
        /// The path of the request.
        path: String,
    },
    /// A folder, a device or a socket.
    #[error("path must be a regular file")]
    NotAFile,
    /// The system says no.
    #[error("{path}: {}", words(.error))]
    System {
        /// The path of the request.
        path: String,
        /// Error of the system call.
        error: Errno,
    },
    /// A field of the request is wrong.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Reason why it is refused.
        reason: String,
    },
    /// Too many files are being sent.
    #[error("too many files are being sent: try again in a moment")]
    Busy,
    /// No service has that name.
    #[error("service {id:?} not defined")]
    NoService {
        /// The service of the request.
        id: String,
    },
    /// The service is not for callers to steer.
    #[error("service {id:?} doesn't support {operation} operation via API")]
    NotSteered {
        /// The service of the request.
        id: String,
        /// `start`, `stop` or `restart`.
        operation: &'static str,
    },
    /// The service did not do as told.
    #[error("service {id:?}: {reason}")]
    Service {
        /// The service of the request.
        id: String,
        /// Reason of the error.
        reason: String,
    },
    /// The log of the request is not there.
    #[error("no log available")]
    NoLog,
    /// Not possible on this machine.
    #[error("{what} is refused: {reason}")]
    Refused {
        /// Action that was asked for.
        what: &'static str,
        /// Reason of the refusal.
        reason: String,
    },
    /// State of the machine could not be read.
    #[error("{what}: {error}")]
    Read {
        /// Thing that failed.
        what: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
}

fn words(error: &Errno) -> String {
    super::confine::plain(*error)
}

impl Error {
    /// Error of a system call on a path.
    pub(super) fn of(path: &str, error: Errno) -> Self {
        match error {
            Errno::XDEV => Self::Outside { path: path.to_owned() },
            error => Self::System { path: path.to_owned(), error },
        }
    }

    /// Code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::NotAbsolute { .. }
            | Self::BadPath { .. }
            | Self::NotAFile
            | Self::Invalid { .. } => Code::InvalidArgument,
            Self::Outside { .. } | Self::Protected { .. } => Code::PermissionDenied,
            Self::System { error, .. } => match *error {
                Errno::NOENT | Errno::NOTDIR => Code::NotFound,
                // A link of the kernel that is not followed gives LOOP.
                Errno::ACCESS | Errno::PERM | Errno::LOOP => Code::PermissionDenied,
                Errno::NAMETOOLONG => Code::InvalidArgument,
                _ => Code::Internal,
            },
            Self::Busy => Code::ResourceExhausted,
            Self::NoService { .. } | Self::NoLog => Code::NotFound,
            Self::NotSteered { .. } | Self::Refused { .. } => Code::FailedPrecondition,
            Self::Service { .. } | Self::Read { .. } => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code().grpc(), error.to_string())
    }
}
