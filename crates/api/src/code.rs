//! Error codes. Every error type of every crate has one of these; only this
//! file decides what it means on gRPC, on HTTP and for the exit code of a
//! command.

use std::fmt;

/// Kinds of failure, from the caller's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request is wrong whatever the state of the system.
    InvalidArgument,
    /// The request names something that is not there.
    NotFound,
    /// The request would make something that is there already.
    AlreadyExists,
    /// Nobody, or somebody we do not know.
    Unauthenticated,
    /// The caller is known and does not have this right.
    PermissionDenied,
    /// The state of the system forbids it now; the message says which state.
    FailedPrecondition,
    /// A concurrent change of the same object; retrying is right.
    Aborted,
    /// A limit: of size, of rate, of capacity.
    ResourceExhausted,
    /// The deadline of the caller has passed.
    DeadlineExceeded,
    /// The caller went away.
    Cancelled,
    /// A part that is needed does not answer; trying again later is right.
    Unavailable,
    /// This build does not do it.
    Unimplemented,
    /// Data that was acknowledged cannot be read back.
    DataLoss,
    /// A defect of ours.
    Internal,
}

/// All codes, for tables and documentation.
pub const ALL: [Code; 14] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::ResourceExhausted,
    Code::DeadlineExceeded,
    Code::Cancelled,
    Code::Unavailable,
    Code::Unimplemented,
    Code::DataLoss,
    Code::Internal,
];

impl Code {
    /// The code as gRPC spells it.
    pub fn grpc(self) -> tonic::Code {
        match self {
            Self::InvalidArgument => tonic::Code::InvalidArgument,
            Self::NotFound => tonic::Code::NotFound,
            Self::AlreadyExists => tonic::Code::AlreadyExists,
            Self::Unauthenticated => tonic::Code::Unauthenticated,
            Self::PermissionDenied => tonic::Code::PermissionDenied,
            Self::FailedPrecondition => tonic::Code::FailedPrecondition,
            Self::Aborted => tonic::Code::Aborted,
            Self::ResourceExhausted => tonic::Code::ResourceExhausted,
            Self::DeadlineExceeded => tonic::Code::DeadlineExceeded,
            Self::Cancelled => tonic::Code::Cancelled,
            Self::Unavailable => tonic::Code::Unavailable,
            Self::Unimplemented => tonic::Code::Unimplemented,
            Self::DataLoss => tonic::Code::DataLoss,
            Self::Internal => tonic::Code::Internal,
        }
    }

    /// The exit code of a command that failed with this. 1 is left to errors
    /// without a code, 2 to wrong usage.
    pub fn exit(self) -> u8 {
        match self {
            Self::InvalidArgument => 3,
            Self::NotFound => 4,
            Self::AlreadyExists => 5,
            Self::Unauthenticated => 6,
            Self::PermissionDenied => 7,
            Self::FailedPrecondition => 8,
            Self::Aborted => 9,
            Self::ResourceExhausted => 10,
            Self::DeadlineExceeded => 11,
            Self::Cancelled => 12,
            Self::Unavailable => 13,
            Self::Unimplemented => 14,
            Self::DataLoss => 15,
            Self::Internal => 16,
        }
    }

    /// The name as it stands in documentation and in `selvage explain`.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Cancelled => "CANCELLED",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::DataLoss => "DATA_LOSS",
            Self::Internal => "INTERNAL",
        }
    }

    /// The code that a gRPC status carries. UNKNOWN and OUT_OF_RANGE, which we
    /// never send, come from foreign servers only.
    pub fn from_grpc(code: tonic::Code) -> Option<Self> {
        match code {
            tonic::Code::Ok => None,
            tonic::Code::Unknown => Some(Self::Internal),
            tonic::Code::OutOfRange => Some(Self::InvalidArgument),
            other => ALL.into_iter().find(|code| code.grpc() == other),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The HTTP status of a gRPC code, as the gateways of the originals map it.
/// 499 and the like are not used: Cancelled is 408 there.
pub fn http_status(code: tonic::Code) -> u16 {
    match code {
        tonic::Code::Ok => 200,
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange => 400,
        tonic::Code::Unauthenticated => 401,
        tonic::Code::PermissionDenied => 403,
        tonic::Code::NotFound => 404,
        tonic::Code::Cancelled => 408,
        tonic::Code::AlreadyExists | tonic::Code::Aborted => 409,
        tonic::Code::FailedPrecondition => 412,
        tonic::Code::ResourceExhausted => 429,
        tonic::Code::Unknown | tonic::Code::Internal | tonic::Code::DataLoss => 500,
        tonic::Code::Unimplemented => 501,
        tonic::Code::Unavailable => 503,
        tonic::Code::DeadlineExceeded => 504,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire_and_exits_differently() {
        let mut exits = std::collections::HashSet::new();
        for code in ALL {
            assert_eq!(Code::from_grpc(code.grpc()), Some(code));
            assert!(exits.insert(code.exit()), "{code} shares an exit code");
            assert!(code.exit() > 2);
        }
    }
}
