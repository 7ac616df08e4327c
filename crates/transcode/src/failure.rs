//! A failed call, ours or the inner service's, before a protocol gives it a
//! body.

use base64::{
    Engine,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, StatusCode};
use prost::Message;
use prost_types::Any;
use selvage_api::code::http_status;
use tonic::Code;

use crate::Error;

/// Reads base64 with or without padding, as peers write both.
pub(crate) const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The part of `google.rpc.Status` that carries details.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub code: Code,
    pub message: String,
    pub details: Vec<Any>,
    /// Set where HTTP says more than the code does.
    pub own_status: Option<StatusCode>,
    /// The verbs that a 405 must name.
    pub allow: Option<String>,
    /// Metadata that came with the error. Boxed to keep results small.
    pub metadata: Box<HeaderMap>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
            own_status: None,
            allow: None,
            metadata: Box::default(),
        }
    }

    /// The outcome that trailers (or the headers of a reply without a body)
    /// tell: `None` when they carry no `grpc-status`.
    pub(crate) fn outcome(trailers: &HeaderMap) -> Option<Result<(), Self>> {
        let status = trailers.get("grpc-status")?;
        let number = status.to_str().ok().and_then(|text| text.parse::<i32>().ok());
        let code = match number {
            Some(0) => return Some(Ok(())),
            Some(number) => Code::from_i32(number),
            None => Code::Unknown,
        };
        let mut failure = Self::new(code, message_of(trailers));
        failure.details = details_of(trailers);
        failure.metadata = Box::new(trailers.clone());
        Some(Err(failure))
    }

    /// The HTTP status of a REST reply.
    pub(crate) fn rest_status(&self) -> StatusCode {
        self.own_status.unwrap_or_else(|| {
            StatusCode::from_u16(http_status(self.code))
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut failure = Self::new(error.code().grpc(), error.to_string());
        failure.own_status = error.own_status();
        if let Error::Verb { allow, .. } = error {
            failure.allow = Some(allow);
        }
        failure
    }
}

fn message_of(trailers: &HeaderMap) -> String {
    let raw = trailers.get("grpc-message").map_or(&b""[..], |value| value.as_bytes());
    percent_encoding::percent_decode(raw).decode_utf8_lossy().into_owned()
}

/// Details are an extra: what cannot be read is left out, never fatal.
fn details_of(trailers: &HeaderMap) -> Vec<Any> {
    trailers
        .get("grpc-status-details-bin")
        .and_then(|value| LENIENT_BASE64.decode(value.as_bytes()).ok())
        .and_then(|bytes| RpcStatus::decode(bytes.as_slice()).ok())
        .map(|status| status.details)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderValue;

    use super::*;

    fn trailers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| ((*k).parse().unwrap(), HeaderValue::from_str(v).unwrap()))
            .collect()
    }

    #[test]
    fn status_message_and_details_come_out_of_trailers() {
        let any = Any { type_url: "type.googleapis.com/x.Y".to_owned(), value: vec![8, 1] };
        let details = RpcStatus { code: 5, message: String::new(), details: vec![any.clone()] };
        let encoded = base64::prelude::BASE64_STANDARD_NO_PAD.encode(details.encode_to_vec());
        let failure = Failure::outcome(&trailers(&[
            ("grpc-status", "5"),
            ("grpc-message", "no such app%3A %C3%A9"),
            ("grpc-status-details-bin", &encoded),
        ]))
        .unwrap()
        .unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (Code::NotFound, "no such app: é"));
        assert_eq!(failure.details, [any]);
    }

    #[test]
    fn odd_trailers_still_give_an_outcome() {
        assert!(Failure::outcome(&trailers(&[("x", "y")])).is_none());
        assert!(Failure::outcome(&trailers(&[("grpc-status", "0")])).unwrap().is_ok());
        for bad in ["", "x", "99", "-1"] {
            let failure =
                Failure::outcome(&trailers(&[("grpc-status", bad)])).unwrap().unwrap_err();
            assert_eq!(failure.code, Code::Unknown, "{bad}");
        }
        let failure = Failure::outcome(&trailers(&[
            ("grpc-status", "13"),
            ("grpc-message", "%ff%"),
            ("grpc-status-details-bin", "***"),
        ]));
        assert!(failure.unwrap().unwrap_err().details.is_empty());
    }
}
