//! Plain HTTP in front of gRPC: the REST routes of the contracts and the
//! Connect protocol, both translated by descriptors into calls of one inner
//! gRPC service in the same process.
//!
//! It knows descriptors and bytes. Who the caller is, whether it
//! may, how many calls run at once and what is written to the audit log are
//! questions of the inner service, which therefore answers them once for all
//! protocols. TLS, connections, CORS and time limits on slow senders belong
//! to the listener.

mod connect;
mod dialect;
mod error;
mod failure;
mod grpc;
pub mod grpc_timeout;
mod headers;
mod media;
mod openapi;
mod page;
mod query;
mod read;
mod request;
mod rest;
mod route;
mod scalar;
mod service;
mod write;

pub use dialect::Dialect;
pub use error::{Error, SlowBody};
pub use headers::{CONTENT_TYPE_HEADER, PROTOCOL_HEADER, strip_internal};
pub use openapi::openapi;
pub use page::{CONTENT_SECURITY_POLICY, page};
pub use request::transcode_request;
pub use route::Route;
pub use service::{Claim, Limits, Transcoder};
