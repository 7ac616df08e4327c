//! Errors of the controller, with the code that the caller gets.

use std::borrow::Cow;

use selvage_api::Code;
use tonic::Status;

use crate::controller::MeetsDeletions;

/// Cascades go on when they meet it.
pub(crate) const KEY_NOT_FOUND: &str = "Key not found";

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Texts of [`Error::Refused`], [`Error::KeyExists`] and
/// [`Error::KeyNotFound`] are part of the contract: clients match on them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Key already exists")]
    KeyExists,
    #[error("{KEY_NOT_FOUND}")]
    KeyNotFound,
    /// A rule of the contract forbids it.
    #[error("{text}")]
    Refused { code: Code, text: Cow<'static, str> },
    #[error("{kind} {key} is about to be deleted or changed, try again")]
    BeingDeleted { kind: &'static str, key: String },
    #[error("Connect to server {address} failed: {source}")]
    Connect { address: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// Another controller refused; what it said goes on to the caller.
    #[error("{}", source.message())]
    Peer { address: String, source: Box<Status> },
    #[error(transparent)]
    Notify(selvage_notify::Error),
    #[error(transparent)]
    Work(#[from] selvage_work::Error),
    #[error(transparent)]
    Object(#[from] selvage_api::object::Error),
    #[error(transparent)]
    Store(#[from] selvage_store::Error),
    #[error(transparent)]
    Samples(#[from] selvage_samples::Error),
}

impl Error {
    pub fn refused(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { code, text: text.into() }
    }

    /// The request is wrong.
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(Code::InvalidArgument, text)
    }

    /// Error for a request that refers to something that is not there.
    pub fn missing(text: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(Code::NotFound, text)
    }

    /// Others still need it.
    pub fn in_use(text: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(Code::FailedPrecondition, text)
    }

    pub fn unsupported(text: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(Code::Unimplemented, text)
    }

    pub fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(Code::Unavailable, text)
    }

    pub fn code(&self) -> Code {
        match self {
            Self::KeyExists => Code::AlreadyExists,
            Self::KeyNotFound => Code::NotFound,
            Self::Refused { code, .. } => *code,
            Self::BeingDeleted { .. } => Code::Aborted,
            Self::Connect { .. } => Code::Unavailable,
            Self::Peer { source, .. } => {
                Code::from_grpc(source.code()).unwrap_or(Code::Unavailable)
            }
            Self::Notify(error) => error.code(),
            Self::Work(error) => error.code(),
            Self::Object(error) => error.code(),
            // Our own lease, not something the caller named.
            Self::Store(selvage_store::Error::LeaseNotFound { .. }) => Code::Unavailable,
            Self::Store(error) => error.code(),
            Self::Samples(error) => error.code(),
        }
    }
}

impl MeetsDeletions for Error {
    fn is_being_deleted(&self) -> bool {
        matches!(self, Self::BeingDeleted { .. })
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = error.code();
        if code == Code::Internal {
            tracing::error!(%error, "internal error");
        }
        Self::new(code.grpc(), error.to_string())
    }
}
