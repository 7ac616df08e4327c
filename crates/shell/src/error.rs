//! Errors of the connection between the two ends.

use selvage_api::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Text of the other end that is no description of a session.
    #[error("{what}: {reason}")]
    Description { what: &'static str, reason: String },
    #[error("no address of this machine can be used")]
    NoAddress,
    #[error("webrtc: {0}")]
    Rtc(#[from] str0m::RtcError),
    #[error("cannot reach the controller at {address}")]
    Dial { address: String, source: tonic::transport::Error },
    /// The controller that both ends meet at says no.
    #[error("{}", .0.message())]
    Relay(Box<tonic::Status>),
    /// Message of a relay that does not belong into a conversation.
    #[error("not part of a conversation: {0}")]
    Piece(&'static str),
}

impl Error {
    /// Code of this error for callers.
    pub fn code(&self) -> Code {
        match self {
            Self::Description { .. } | Self::Piece(_) => Code::InvalidArgument,
            Self::NoAddress => Code::FailedPrecondition,
            Self::Dial { .. } => Code::Unavailable,
            Self::Rtc(_) => Code::Internal,
            Self::Relay(status) => Code::from_grpc(status.code()).unwrap_or(Code::Internal),
        }
    }

    pub(crate) fn description(what: &'static str, reason: impl ToString) -> Self {
        Self::Description { what, reason: reason.to_string() }
    }
}
