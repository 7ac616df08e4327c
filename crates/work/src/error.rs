//! Errors of the engine itself. Those of an operation are a [`crate::Failure`].

use selvage_api::Code;

/// The operation that holds an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its id.
    pub id: String,
    /// Kind of the operation.
    pub kind: String,
    /// The object.
    pub key: String,
}

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another operation works on the same object.
    #[error("{} is under way on {}: operation {}", .0.kind, .0.key, .0.id)]
    Busy(Running),
    /// No such operation, or it ended and was removed.
    #[error("operation {id:?} not found")]
    NotFound {
        /// The id that was asked for.
        id: String,
    },
    /// The operation has ended already.
    #[error("operation {id} has ended already")]
    Ended {
        /// Id of the operation.
        id: String,
    },
    /// No operation of this kind was registered.
    #[error("operations of kind {kind:?} are not known here")]
    UnknownKind {
        /// Kind of the operation.
        kind: String,
    },
    /// Two operations of one kind were registered.
    #[error("operations of kind {kind:?} are registered already")]
    Registered {
        /// Kind of the operation.
        kind: &'static str,
    },
    /// An operation that has nothing to do.
    #[error("an operation of kind {kind:?} has no steps")]
    NoSteps {
        /// Kind of the operation.
        kind: &'static str,
    },
    /// A stored record cannot be decoded.
    #[error("the state of operation {id} of kind {kind} cannot be read")]
    Unreadable {
        /// Id of the operation.
        id: String,
        /// Its kind.
        kind: String,
        /// Error of decoding.
        source: prost::DecodeError,
    },
    /// Another process registered under our name, later.
    #[error("another process drives operations under the name {driver:?}")]
    Deposed {
        /// The name.
        driver: String,
    },
    /// The store failed.
    #[error("operations could not be read or written")]
    Store(#[from] selvage_store::Error),
}

impl Error {
    /// Returns the code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Busy(_) | Self::Ended { .. } | Self::Deposed { .. } => Code::FailedPrecondition,
            Self::NotFound { .. } => Code::NotFound,
            Self::UnknownKind { .. } | Self::Registered { .. } | Self::NoSteps { .. } => {
                Code::Internal
            }
            Self::Unreadable { .. } => Code::DataLoss,
            Self::Store(error) => error.code(),
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        if matches!(error.code(), Code::Internal | Code::DataLoss | Code::Unavailable) {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, cause, "operation request failed");
        }
        Self::new(error.code().grpc(), error.to_string())
    }
}
