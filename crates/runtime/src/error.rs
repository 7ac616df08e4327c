//! Everything that can go wrong with a runtime.

use std::io;

use selvage_api::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("namespace can't be empty")]
    NamespaceEmpty,
    #[error("CRI inspector is supported only for K8s namespace")]
    NotKubernetes,
    #[error("unsupported driver \"{0}\"")]
    UnsupportedDriver(i32),
    #[error("container {id:?} not found")]
    NotFound { id: String },
    #[error("container {id:?} is ambiguous: {} match", candidates.join(", "))]
    Ambiguous { id: String, candidates: Vec<String> },
    #[error("container {id:?} exists already")]
    Exists { id: String },
    #[error("image {name:?} not found")]
    ImageNotFound { name: String },
    #[error("process already finished")]
    ProcessFinished,
    #[error("no log available")]
    NoLog,
    #[error("{field}: {reason}")]
    Invalid { field: String, reason: String },
    #[error("{reason}")]
    State { reason: String },
    #[error("{runtime} does not support {what}")]
    Unsupported { runtime: &'static str, what: &'static str },
    #[error("error connecting to CRI: {reason}")]
    CriUnreachable { reason: String },
    #[error("{runtime} does not answer: {reason}")]
    Unreachable { runtime: &'static str, reason: String },
    #[error("{what} took longer than {} s", after.as_secs())]
    Timeout { what: &'static str, after: std::time::Duration },
    /// Answer of the runtime itself.
    #[error("{text}")]
    Refused { code: Code, text: String },
    #[error("{program} failed: {text}")]
    Program { program: String, text: String },
    #[error("{what} is damaged: {reason}")]
    Damaged { what: String, reason: String },
    #[error("registry: {reason}")]
    Registry { code: Code, reason: String },
    #[error("{doing}: {error}")]
    Io { doing: &'static str, error: io::Error },
}

impl Error {
    /// Code of the failure for a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::NamespaceEmpty
            | Self::NotKubernetes
            | Self::UnsupportedDriver(_)
            | Self::Ambiguous { .. }
            | Self::Invalid { .. } => Code::InvalidArgument,
            Self::NotFound { .. }
            | Self::ImageNotFound { .. }
            | Self::ProcessFinished
            | Self::NoLog => Code::NotFound,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::State { .. } => Code::FailedPrecondition,
            Self::Unsupported { .. } => Code::Unimplemented,
            Self::CriUnreachable { .. } | Self::Unreachable { .. } => Code::Unavailable,
            Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::Refused { code, .. } | Self::Registry { code, .. } => *code,
            Self::Damaged { .. } => Code::DataLoss,
            Self::Program { .. } | Self::Io { .. } => Code::Internal,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }

    pub(crate) fn state(reason: impl Into<String>) -> Self {
        Self::State { reason: reason.into() }
    }
}

/// `.during("reading the log")` on what std answers.
pub(crate) trait During<T> {
    fn during(self, doing: &'static str) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, doing: &'static str) -> Result<T> {
        self.map_err(|error| Error::Io { doing, error })
    }
}

impl<T> During<T> for rustix::io::Result<T> {
    fn during(self, doing: &'static str) -> Result<T> {
        self.map_err(|error| Error::Io { doing, error: error.into() })
    }
}
