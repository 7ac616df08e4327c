//! Details that a failed call carries beside its code.

use prost::Message;
use prost_types::Any;

use crate::google::rpc::{BadRequest, bad_request::FieldViolation};

/// `google.rpc.Status`, which gRPC carries as trailing bytes.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// INVALID_ARGUMENT that names the fields which are wrong, for people in the
/// message and for programs as `google.rpc.BadRequest`.
pub fn bad_request(message: String, field_violations: Vec<FieldViolation>) -> tonic::Status {
    let code = tonic::Code::InvalidArgument;
    let detail = Any {
        type_url: "type.googleapis.com/google.rpc.BadRequest".to_owned(),
        value: BadRequest { field_violations }.encode_to_vec(),
    };
    let status = RpcStatus { code: code as i32, message: message.clone(), details: vec![detail] };
    tonic::Status::with_details(code, message, status.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_named_for_programs_too() {
        let violation = FieldViolation { field: "name".into(), description: "is empty".into() };
        let status = bad_request("name: is empty".into(), vec![violation.clone()]);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let carried = RpcStatus::decode(status.details()).unwrap();
        assert_eq!((carried.code, carried.message.as_str()), (3, "name: is empty"));
        let named = BadRequest::decode(carried.details[0].value.as_slice()).unwrap();
        assert_eq!(named.field_violations, [violation]);
    }
}
