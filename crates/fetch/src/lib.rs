//! Requests to addresses that somebody else chose.
//!
//! Whoever can make this machine fetch a URL can reach what this machine can
//! reach: services on its loopback, the network it is in, the metadata of a
//! cloud with its credentials. So a URL is judged together with the addresses
//! that its host has at that moment, the connection goes to these addresses and
//! no others, and each redirect is judged again.

mod fetcher;
mod policy;

use selvage_api::Code;

pub use fetcher::{Fetcher, Request, Response, read};
pub use policy::Policy;
pub use reqwest::{Error as TransferError, StatusCode, header};
pub use url::Url;

/// A request that did not work out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The policy is against it.
    #[error("{0}")]
    Denied(String),
    #[error("bad response {0}")]
    Status(u16),
    #[error("{0}")]
    Unusable(String),
    #[error("{0}")]
    Unreachable(String),
}

impl Failure {
    pub fn code(&self) -> Code {
        match self {
            Self::Denied(_) => Code::PermissionDenied,
            Self::Status(_) | Self::Unusable(_) => Code::FailedPrecondition,
            Self::Unreachable(_) => Code::Unavailable,
        }
    }
}
