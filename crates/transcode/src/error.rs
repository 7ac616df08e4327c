//! Errors of a request before the inner service sees it.

use std::time::Duration;

use http::StatusCode;
use selvage_api::{Code, code::http_status};

/// Error of a body that took too long to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("body came too slowly: it was not whole within {} s", .timeout.as_secs_f32())]
pub struct SlowBody {
    /// Timeout that passed.
    pub timeout: Duration,
}

/// Errors of a request that was not passed on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("nothing is served at {path}")]
    NotFound { path: String },
    #[error("{service} has no method {method}")]
    NoSuchMethod { service: String, method: String },
    #[error("{verb} is not offered here; use {allow}")]
    Verb { verb: String, allow: String },
    #[error("content type {found} is not understood here; send {expected}")]
    ContentType { found: String, expected: &'static str },
    #[error("content encoding {found} is not understood; send the body as it is")]
    ContentEncoding { found: String },
    #[error("path: {reason}")]
    Path { reason: &'static str },
    #[error("query parameter {name}: {reason}")]
    Parameter { name: String, reason: String },
    #[error("path parameter {name}: {reason}")]
    PathParameter { name: String, reason: String },
    #[error("body does not hold {message} in JSON: {reason}")]
    Json { message: String, reason: String },
    #[error("body does not hold {message} in protobuf encoding: {reason}")]
    Proto { message: String, reason: String },
    #[error("body: {reason}")]
    Envelope { reason: String },
    #[error("body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("body broke off before its end")]
    BrokenBody,
    #[error(transparent)]
    SlowBody(SlowBody),
    #[error("header {name}: {reason}")]
    Header { name: &'static str, reason: String },
    #[error("{method} takes a stream from the client, which only gRPC over HTTP/2 carries")]
    ClientStream { method: String },
}

impl Error {
    /// The code in the one vocabulary of failure.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::NoSuchMethod { .. }
            | Self::Verb { .. }
            | Self::ContentEncoding { .. }
            | Self::ClientStream { .. } => Code::Unimplemented,
            Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::BrokenBody => Code::Cancelled,
            Self::SlowBody(_) => Code::DeadlineExceeded,
            Self::ContentType { .. }
            | Self::Path { .. }
            | Self::Parameter { .. }
            | Self::PathParameter { .. }
            | Self::Json { .. }
            | Self::Proto { .. }
            | Self::Envelope { .. }
            | Self::Header { .. } => Code::InvalidArgument,
        }
    }

    /// The HTTP status, where HTTP has a word that gRPC lacks.
    pub(crate) fn own_status(&self) -> Option<StatusCode> {
        match self {
            Self::NotFound { .. } => Some(StatusCode::NOT_FOUND),
            Self::Verb { .. } => Some(StatusCode::METHOD_NOT_ALLOWED),
            Self::SlowBody(_) => Some(StatusCode::REQUEST_TIMEOUT),
            Self::ContentType { .. } | Self::ContentEncoding { .. } => {
                Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            _ => None,
        }
    }

    /// The HTTP status of a REST reply with this error.
    pub fn status(&self) -> StatusCode {
        self.own_status().unwrap_or_else(|| {
            StatusCode::from_u16(http_status(self.code().grpc()))
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }
}
