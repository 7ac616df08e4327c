//! Errors of the balancer.

use std::{io, net::IpAddr};

use selvage_api::Code;

use crate::Protocol;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{field}: {reason}")]
    Invalid { field: String, reason: String },
    #[error("{protocol} port {port} is taken")]
    Taken { port: u16, protocol: Protocol },
    #[error(
        "path prefix /{prefix} of port {port} is wanted by {wanted_by:?} and belongs to {by:?}"
    )]
    PrefixTaken { port: u16, prefix: String, by: String, wanted_by: String },
    #[error("port {port} wants encryption and there is no certificate")]
    NoCertificate { port: u16 },
    #[error("cannot listen on {protocol} port {port} of {address}")]
    Listen {
        port: u16,
        protocol: Protocol,
        address: IpAddr,
        #[source]
        error: io::Error,
    },
    #[error("the load balancer is closed")]
    Closed,
}

impl Error {
    /// Code of the failure for a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::Taken { .. } | Self::PrefixTaken { .. } => Code::AlreadyExists,
            Self::NoCertificate { .. } => Code::FailedPrecondition,
            Self::Listen { error, .. } => match error.kind() {
                io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                io::ErrorKind::AddrNotAvailable => Code::FailedPrecondition,
                _ => Code::Internal,
            },
            Self::Closed => Code::Unavailable,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }
}
