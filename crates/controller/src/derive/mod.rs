//! Computations on objects that touch nothing: pure functions over plain
//! values. Handlers read, ask here, and write what they are told.
//!
//! The one exception is [`remote::fetch`], which does the downloads that
//! [`app::needs`] asks for; it is called outside of transactions.

pub(crate) mod app;
pub(crate) mod deployment;
pub(crate) mod flavors;
pub(crate) mod fqdn;
pub(crate) mod ips;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod ports;
pub(crate) mod public_key;
pub(crate) mod remote;
pub(crate) mod resources;
pub(crate) mod volumes;

use selvage_api::Code;
pub(crate) use selvage_edge::access_ports;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a value cannot be derived. The text goes to the caller as it is; where
/// the original has a text, it is the original's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Error {
    code: Code,
    text: String,
}

impl From<access_ports::Error> for Error {
    fn from(error: access_ports::Error) -> Self {
        Self::invalid(error.to_string())
    }
}

impl Error {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    pub(crate) fn exhausted(text: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, text)
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }
}

impl From<selvage_api::object::Error> for Error {
    fn from(error: selvage_api::object::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        Self::refused(error.code(), error.text)
    }
}
