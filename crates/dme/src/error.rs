//! Errors, as callers are told.

use selvage_api::Code;

/// The result of most things here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of the match engine. Clients of the original match on some of the
/// texts.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field is missing or makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// The app, or something of it, is not known.
    #[error("{0}")]
    NotFound(String),
    /// A cookie or a token is no good.
    #[error("{0}")]
    Unauthenticated(String),
    /// The registered app may not do this.
    #[error("{0}")]
    Denied(String),
    /// No key to sign cookies with.
    #[error("no signing key")]
    NoSigningKey,
    /// The operating system gives no random bytes.
    #[error("no random bytes for a key")]
    Random,
    /// The controller does not hand out the keys of cookies.
    #[error("the controller does not give the keys of cookies: {}", .0.message())]
    Controller(Box<tonic::Status>),
    /// The store does not give them.
    #[error("keys of cookies")]
    Store(#[from] selvage_store::Error),
    /// Failure to keep on disk what the controller said.
    #[error("the mirror of what the controller said")]
    Mirror(#[source] selvage_store::Error),
    /// The connection to the controller cannot be made as it is configured.
    #[error("notify")]
    Notify(#[from] selvage_notify::Error),
    /// The location API cannot be used as it is configured.
    #[error("location API: {0}")]
    LocationApi(String),
}

impl Error {
    /// Code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::NotFound(_) => Code::NotFound,
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::Denied(_) => Code::PermissionDenied,
            Self::NoSigningKey | Self::Random => Code::Internal,
            Self::Controller(status) => Code::from_grpc(status.code()).unwrap_or(Code::Internal),
            Self::Store(error) | Self::Mirror(error) => error.code(),
            Self::Notify(error) => error.code(),
            Self::LocationApi(_) => Code::InvalidArgument,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Self::new(error.code().grpc(), error.to_string())
    }
}
