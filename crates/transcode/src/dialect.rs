//! The manners of the REST routes: how messages and errors are written, as
//! the gateways of the originals did.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use prost_reflect::{DynamicMessage, ReflectMessage};
use serde::Serialize;
use serde_json::{Value as Json, json};

use axum::body::Body;

use crate::{
    failure::Failure,
    write::{self, ShownAny, ShownField, Style, Styled},
};

/// Conventions that a route follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// edgeproto and distributed_match_engine: zeros written, over several
    /// lines.
    Edge,
    /// cnct.kaas.api: zeros left out; paths and verbs it does not know are
    /// answered in plain text.
    Kaas,
    /// All other methods: zeros are left out.
    Selvage,
}

impl Dialect {
    pub fn of_package(package: &str) -> Self {
        match package {
            "edgeproto" | "distributed_match_engine" => Self::Edge,
            "cnct.kaas.api" => Self::Kaas,
            _ => Self::Selvage,
        }
    }

    /// The dialect that owns a path which leads nowhere.
    pub(crate) fn of_unknown_path(path: &str) -> Self {
        if path == "/api/v1" || path.starts_with("/api/v1/") { Self::Kaas } else { Self::Selvage }
    }

    pub(crate) fn style(self) -> Style {
        let edge = self == Self::Edge;
        Style { original_names: true, zeros: edge, indent: edge }
    }

    /// Returns whether unknown query parameters are passed over instead of
    /// refused.
    pub(crate) fn lenient_query(self) -> bool {
        self != Self::Selvage
    }

    /// A whole reply, or the field of it that `response_body` names.
    pub(crate) fn reply(
        self,
        message: &DynamicMessage,
        response_body: &str,
    ) -> Result<Vec<u8>, serde_json::Error> {
        let style = self.style();
        match message.descriptor().get_field_by_name(response_body) {
            Some(field) => {
                let value = message.get_field(&field);
                write::to_vec(&ShownField::alone(&value, &field, style), style.indent)
            }
            None => write::to_vec(&Styled::new(message, style), style.indent),
        }
    }

    /// One message of a stream, newline included.
    pub(crate) fn result_chunk(self, message: &DynamicMessage) -> Result<Bytes, serde_json::Error> {
        #[derive(Serialize)]
        struct Chunk<'a> {
            result: Styled<'a>,
        }
        let style = self.style();
        let mut chunk =
            write::to_vec(&Chunk { result: Styled::new(message, style) }, style.indent)?;
        chunk.push(b'\n');
        Ok(chunk.into())
    }

    /// The end of a stream that failed; no newline follows.
    pub(crate) fn error_chunk(self, failure: &Failure) -> Bytes {
        let status = failure.rest_status();
        self.written(&json!({"error": {
            "grpc_code": failure.code as i32,
            "http_code": status.as_u16(),
            "message": failure.message,
            "http_status": status.canonical_reason().unwrap_or_default(),
            "details": self.details(failure),
        }}))
    }

    /// A failed call as a whole response.
    pub(crate) fn error_response(self, failure: &Failure) -> Response<Body> {
        let status = failure.rest_status();
        let plain = self == Self::Kaas
            && (status == StatusCode::METHOD_NOT_ALLOWED
                || failure.own_status == Some(StatusCode::NOT_FOUND));
        let mut response = if plain {
            plain_text(status)
        } else {
            let mut response = Response::new(Body::from(self.error_body(failure)));
            response.headers_mut().insert(header::CONTENT_TYPE, crate::media::JSON);
            response
        };
        *response.status_mut() = status;
        if let Some(allow) = failure.allow.as_deref().and_then(|a| HeaderValue::from_str(a).ok()) {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        crate::headers::pass_on(&failure.metadata, response.headers_mut(), "");
        response
    }

    fn error_body(self, failure: &Failure) -> Bytes {
        let details = self.details(failure);
        let code = failure.code as i32;
        let body = match self {
            Self::Kaas => {
                let mut body =
                    json!({"error": failure.message, "message": failure.message, "code": code});
                if !details.is_empty() {
                    body["details"] = Json::Array(details);
                }
                body
            }
            Self::Edge | Self::Selvage => {
                json!({"code": code, "message": failure.message, "details": details})
            }
        };
        self.written(&body)
    }

    fn details(self, failure: &Failure) -> Vec<Json> {
        let style = self.style();
        failure
            .details
            .iter()
            .filter_map(|any| serde_json::to_value(ShownAny { any, style }).ok())
            .collect()
    }

    fn written(self, body: &Json) -> Bytes {
        // A tree of strings and numbers always has a text.
        write::to_vec(body, self.style().indent).unwrap_or_default().into()
    }
}

fn plain_text(status: StatusCode) -> Response<Body> {
    let text = format!("{}\n", status.canonical_reason().unwrap_or_default());
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
