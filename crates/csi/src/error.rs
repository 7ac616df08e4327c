//! Reasons why a volume cannot be had.

use std::{io, path::PathBuf};

use selvage_api::Code;
use tonic::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field that is missing or wrong.
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("volume {0:?} is not on this machine")]
    NoVolume(String),
    #[error("snapshot {0:?} is not on this machine")]
    NoSnapshot(String),
    #[error("{}: there is nothing", .0.display())]
    NoPath(PathBuf),
    /// A volume of that name that is something else.
    #[error("{0}")]
    Exists(String),
    #[error("capacity_range: {0}")]
    Range(String),
    /// Something has to be done first.
    #[error("{0}")]
    Precondition(String),
    #[error("another call works on volume {0:?}: try again later")]
    Busy(String),
    /// A place in a list that is none.
    #[error("starting_token: {0:?} is not known, list from the beginning")]
    Token(String),
    #[error("there is no room on this machine: {0}")]
    NoRoom(String),
    #[error("lvmd: {}", .0.message())]
    Lvmd(Box<Status>),
    #[error("{program}: {text}")]
    Program { program: &'static str, text: String },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Kube(#[from] selvage_kube::Error),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Range(_) => Code::InvalidArgument,
            Self::NoVolume(_) | Self::NoSnapshot(_) | Self::NoPath(_) => Code::NotFound,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Busy(_) | Self::Token(_) => Code::Aborted,
            Self::NoRoom(_) => Code::ResourceExhausted,
            Self::Lvmd(status) => match status.code() {
                tonic::Code::NotFound => Code::NotFound,
                tonic::Code::InvalidArgument => Code::InvalidArgument,
                tonic::Code::FailedPrecondition => Code::FailedPrecondition,
                tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => Code::Unavailable,
                _ => Code::Internal,
            },
            Self::Program { .. } | Self::File { .. } => Code::Internal,
            Self::Kube(error) => error.code(),
        }
    }

    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }

    /// Makes an error of a file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        match status.code() {
            tonic::Code::ResourceExhausted => Self::NoRoom(status.message().to_owned()),
            _ => Self::Lvmd(Box::new(status)),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            // Callers of this contract tell a size that cannot be from a wrong one.
            Error::Range(_) => tonic::Code::OutOfRange,
            other => other.code().grpc(),
        };
        Self::new(code, error.to_string())
    }
}
