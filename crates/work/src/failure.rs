//! Failures and interruptions of steps.

use std::fmt;

use selvage_api::Code;

/// Reason why a wait ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// The operation is to be cancelled.
    Cancelled,
    /// The wait took too long, or the operation did.
    TimedOut,
    /// The process stops. The step is run again by whoever comes next.
    Stopping,
    /// Another process drives the operation now.
    Deposed,
}

impl Interrupt {
    /// Returns the code that a caller gets.
    pub fn code(self) -> Code {
        match self {
            Self::Cancelled => Code::Cancelled,
            Self::TimedOut => Code::DeadlineExceeded,
            Self::Stopping | Self::Deposed => Code::Unavailable,
        }
    }

    /// Returns true if the operation goes on elsewhere, so that nothing is to be
    /// undone.
    pub(crate) fn leaves_it_running(self) -> bool {
        matches!(self, Self::Stopping | Self::Deposed)
    }
}

impl fmt::Display for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed out",
            Self::Stopping => "the process is stopping",
            Self::Deposed => "another process drives the operation now",
        })
    }
}

impl std::error::Error for Interrupt {}

/// Failure of a step or of a whole operation: a code and the text that the caller
/// gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    message: String,
    interrupt: Option<Interrupt>,
}

impl Failure {
    /// A failure of that kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), interrupt: None }
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the text for the caller.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Set if the step was interrupted and gave the interruption on.
    pub fn interrupt(&self) -> Option<Interrupt> {
        self.interrupt
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Interrupt> for Failure {
    fn from(interrupt: Interrupt) -> Self {
        Self { code: interrupt.code(), message: interrupt.to_string(), interrupt: Some(interrupt) }
    }
}

impl From<selvage_store::Error> for Failure {
    fn from(error: selvage_store::Error) -> Self {
        let mut failure = Self::new(error.code(), error.to_string());
        // A store that is closed under a step means that the process goes
        // down; it must not look like a reason to undo.
        if matches!(error, selvage_store::Error::Closed) {
            failure.interrupt = Some(Interrupt::Stopping);
        }
        failure
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Store(error) => error.into(),
            other => Self::new(other.code(), other.to_string()),
        }
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> Self {
        Self::new(failure.code.grpc(), failure.message)
    }
}
