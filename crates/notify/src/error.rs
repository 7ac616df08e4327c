//! Errors besides those of the network.

use selvage_api::Code;

/// Errors of objects, addresses and types.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The type has no key and can only be a message.
    #[error("{0} has no key")]
    NoKey(String),
    /// The key is not one.
    #[error("the key of {message} cannot be read")]
    Key {
        /// Type of the object.
        message: String,
        /// Cause of the error.
        source: selvage_api::object::Error,
    },
    /// A text that is not the canonical one of any key.
    #[error("{text:?} is not the text of a key of {message}")]
    KeyText {
        /// Type of the object.
        message: String,
        /// The text.
        text: String,
    },
    /// The bytes are not an object of the type.
    #[error("bytes that are not a {message}")]
    Payload {
        /// The message type that they should have been.
        message: String,
        /// Cause of the error.
        source: prost::DecodeError,
    },
    /// The receiver of the object could not take it. With UNAVAILABLE,
    /// ABORTED or DEADLINE_EXCEEDED the stream is ended, so that the object
    /// comes again; with any other code it is counted and left.
    #[error("{what}")]
    Refused {
        /// Description of what was not done.
        what: String,
        /// The code of whoever refused.
        code: Code,
    },
    /// An address cannot be dialled.
    #[error("address {address:?}: {reason}")]
    Address {
        /// Address as configured.
        address: String,
        /// Reason.
        reason: &'static str,
    },
    /// No address to connect to.
    #[error("addresses: at least one is needed")]
    NoAddress,
}

impl Error {
    /// Returns true if the same object may be accepted when it comes again.
    pub(crate) fn passes(&self) -> bool {
        let codes = [Code::Unavailable, Code::Aborted, Code::DeadlineExceeded];
        matches!(self, Self::Refused { code, .. } if codes.contains(code))
    }

    /// Returns the code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::NoKey(_) | Self::KeyText { .. } => Code::Internal,
            Self::Key { source, .. } => source.code(),
            Self::Payload { .. } | Self::Address { .. } | Self::NoAddress => Code::InvalidArgument,
            Self::Refused { code, .. } => *code,
        }
    }
}
