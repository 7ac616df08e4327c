//! Errors of etcd as errors of a store.

use etcd_client as api;
use selvage_api::Code;

use crate::{Error, LeaseId};

/// An error of a call, and whether the call certainly had no effect.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Another endpoint may do better.
    pub(super) transient: bool,
    pub(super) without_effect: bool,
}

impl Failure {
    pub(super) fn timeout(what: &str) -> Self {
        let reason = format!("{what} took too long");
        Self { error: Error::Timeout { reason }, transient: true, without_effect: false }
    }

    fn lasting(error: Error) -> Self {
        Self { error, transient: false, without_effect: true }
    }
}

impl From<api::Error> for Failure {
    fn from(error: api::Error) -> Self {
        let refused = connection_refused(&error);
        let reason = error.to_string();
        match error {
            api::Error::GRpcStatus(status) => {
                from_status(Code::from_grpc(status.code()), status.message(), refused)
            }
            api::Error::InvalidArgs(reason) => {
                Self::lasting(Error::InvalidArgument { field: "etcd", reason })
            }
            api::Error::InvalidUri(_) => Self::lasting(Error::invalid("endpoints", reason)),
            api::Error::LeaseKeepAliveError(_) => {
                Self::lasting(Error::LeaseNotFound { id: LeaseId(0) })
            }
            _ => Self {
                error: Error::Unavailable { reason },
                transient: true,
                without_effect: refused,
            },
        }
    }
}

fn from_status(code: Option<Code>, message: &str, refused: bool) -> Failure {
    let reason = message.to_owned();
    let says = |text: &str| message.contains(text);
    if says("revision has been compacted") {
        return Failure::lasting(Error::Compacted { oldest: 0 });
    }
    if says("is a future revision") {
        return Failure::lasting(Error::FutureRevision { asked: 0, current: 0 });
    }
    if says("lease not found") {
        return Failure::lasting(Error::LeaseNotFound { id: LeaseId(0) });
    }
    if says("too many operations") || says("request is too large") {
        return Failure::lasting(Error::invalid("txn", reason));
    }
    if says("authentication failed") || says("user name is empty") {
        return Failure::lasting(Error::Refused { reason });
    }
    match code {
        Some(Code::Unauthenticated | Code::PermissionDenied) => {
            Failure::lasting(Error::Refused { reason })
        }
        Some(Code::InvalidArgument | Code::FailedPrecondition) => {
            Failure::lasting(Error::invalid("request", reason))
        }
        Some(Code::Unimplemented) => Failure::lasting(Error::internal(reason)),
        Some(Code::DeadlineExceeded) => {
            Failure { error: Error::Timeout { reason }, transient: true, without_effect: false }
        }
        _ => {
            let without_effect = refused || says("no leader") || says("space exceeded");
            let transient = !says("space exceeded");
            Failure { error: Error::Unavailable { reason }, transient, without_effect }
        }
    }
}

/// Returns whether nothing was sent because nobody listens there.
fn connection_refused(error: &api::Error) -> bool {
    let error: &(dyn std::error::Error + 'static) = match error {
        api::Error::GRpcStatus(status) => status,
        api::Error::TransportError(error) => error,
        _ => return false,
    };
    selvage_api::causes(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
}
