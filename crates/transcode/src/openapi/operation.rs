//! One operation of the document: a method in one of its two forms.

use prost_reflect::{Kind, MessageDescriptor};
use selvage_api::{HttpBinding, Method};
use serde_json::{Value as Json, json};

use super::{
    comments::Comments,
    schema::{Naming, Schemas},
};
use crate::Dialect;

/// Depth to which query parameters reach into messages.
const PARAMETER_DEPTH: usize = 3;

pub(super) fn connect(method: &Method, comments: &Comments, schemas: &mut Schemas<'_>) -> Json {
    let mut operation = head(method, comments);
    operation["operationId"] = Json::String(format!("{}.{}", method.service, method.name));
    operation["x-selvage"] = json!({
        "protocol": "connect",
        "method": method.path,
        "part": method.part,
        "serverStreaming": method.server_streaming,
        "clientStreaming": method.client_streaming,
        "input": method.input.full_name(),
        "output": method.output.full_name(),
    });
    let input = schemas.message(&method.input, Naming::Camel);
    let output = schemas.message(&method.output, Naming::Camel);
    let streams = method.server_streaming || method.client_streaming;
    operation["requestBody"] = json!({"required": true, "content": bodies(&input, streams)});
    let answer = if streams {
        "A stream of enveloped messages; the last envelope carries the outcome."
    } else {
        "The reply."
    };
    operation["responses"] = json!({
        "200": {"description": answer, "content": bodies(&output, streams)},
        "default": {"$ref": "#/components/responses/connect"},
    });
    if method.client_streaming {
        operation["description"] = Json::String(format!(
            "{}Takes a stream from the client, which only gRPC over HTTP/2 carries: over HTTP it \
             answers that it is not implemented.",
            operation["description"].as_str().map(|text| format!("{text}\n\n")).unwrap_or_default()
        ));
    }
    operation
}

fn bodies(schema: &Json, streams: bool) -> Json {
    let binary = json!({"schema": {"type": "string", "format": "binary"}});
    if streams {
        json!({"application/connect+json": {"schema": schema}, "application/connect+proto": binary})
    } else {
        json!({"application/json": {"schema": schema}, "application/proto": binary})
    }
}

pub(super) fn rest(
    method: &Method,
    binding: &HttpBinding,
    index: usize,
    comments: &Comments,
    schemas: &mut Schemas<'_>,
) -> Json {
    let mut operation = head(method, comments);
    let number = if index == 0 { String::new() } else { (index + 1).to_string() };
    operation["operationId"] =
        Json::String(format!("{}.{}.rest{number}", method.service, method.name));
    operation["x-selvage"] =
        json!({"protocol": "rest", "method": method.path, "part": method.part});
    let parameters = parameters(method, binding, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = Json::Array(parameters);
    }
    let body = match binding.body.as_str() {
        "" => None,
        "*" => Some(schemas.message(&method.input, Naming::Original)),
        name => method.input.get_field_by_name(name).map(|f| schemas.field(&f, Naming::Original)),
    };
    if let Some(schema) = body {
        operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
    }
    let dialect = Dialect::of_package(&method.package);
    operation["responses"] = json!({
        "200": reply(method, binding, schemas),
        "default": {"$ref": format!("#/components/responses/{}", response_name(dialect))},
    });
    operation
}

fn reply(method: &Method, binding: &HttpBinding, schemas: &mut Schemas<'_>) -> Json {
    let schema = match method.output.get_field_by_name(&binding.response_body) {
        Some(field) => schemas.field(&field, Naming::Original),
        None => schemas.message(&method.output, Naming::Original),
    };
    if !method.server_streaming {
        return json!({"description": "The reply.", "content": {"application/json": {"schema": schema}}});
    }
    json!({
        "description": "One object after another, each with a result; an object with an error ends a stream that failed.",
        "content": {"application/json": {"schema": {
            "type": "object",
            "properties": {"result": schema, "error": stream_error()},
        }}},
    })
}

fn head(method: &Method, comments: &Comments) -> Json {
    let file = method.descriptor.parent_file();
    let mut operation = json!({"tags": [method.service], "summary": method.name});
    if let Some(text) = comments.get(&file, method.descriptor.path()) {
        operation["description"] = Json::String(text.to_owned());
    }
    operation
}

fn parameters(method: &Method, binding: &HttpBinding, schemas: &mut Schemas<'_>) -> Vec<Json> {
    let mut parameters = Vec::new();
    let mut taken: Vec<&str> = binding.path_fields().collect();
    for name in &taken {
        let schema = resolve(&method.input, name, schemas);
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if binding.body != "*" {
        taken.push(&binding.body);
        query_parameters(&method.input, "", &taken, schemas, &mut parameters, 0);
    }
    parameters
}

fn resolve(message: &MessageDescriptor, name: &str, schemas: &mut Schemas<'_>) -> Json {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    let Some(field) = message.get_field_by_name(first) else {
        return json!({"type": "string"});
    };
    match field.kind() {
        Kind::Message(inner) if !rest.is_empty() => resolve(&inner, rest, schemas),
        _ => schemas.field(&field, Naming::Original),
    }
}

fn query_parameters(
    message: &MessageDescriptor,
    prefix: &str,
    taken: &[&str],
    schemas: &mut Schemas<'_>,
    found: &mut Vec<Json>,
    depth: usize,
) {
    for field in message.fields() {
        let name = format!("{prefix}{}", field.name());
        if taken.contains(&name.as_str()) || field.is_map() {
            continue;
        }
        match field.kind() {
            Kind::Message(inner) if !crate::scalar::is_well_known(inner.full_name()) => {
                if !field.is_list() && depth < PARAMETER_DEPTH {
                    let prefix = format!("{name}.");
                    query_parameters(&inner, &prefix, taken, schemas, found, depth + 1);
                }
            }
            _ => {
                let schema = schemas.field(&field, Naming::Original);
                found.push(json!({"name": name, "in": "query", "schema": schema}));
            }
        }
    }
}

fn response_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Edge | Dialect::Selvage => "rest",
        Dialect::Kaas => "kaas",
    }
}

fn stream_error() -> Json {
    json!({"type": "object", "properties": {
        "grpc_code": {"type": "integer"},
        "http_code": {"type": "integer"},
        "message": {"type": "string"},
        "http_status": {"type": "string"},
        "details": {"type": "array", "items": {"type": "object"}},
    }})
}

pub(super) fn error_responses() -> Json {
    let response = |description: &str, properties: Json| {
        let schema = json!({"type": "object", "properties": properties});
        json!({"description": description, "content": {"application/json": {"schema": schema}}})
    };
    let details = json!({"type": "array", "items": {"type": "object"}});
    json!({
        "connect": response("The call failed.", json!({
            "code": {"type": "string", "examples": ["unauthenticated"]},
            "message": {"type": "string"},
            "details": details,
        })),
        "rest": response("The call failed; code is gRPC's.", json!({
            "code": {"type": "integer"}, "message": {"type": "string"}, "details": details,
        })),
        "kaas": response("The call failed; code is gRPC's, error and message say the same.", json!({
            "error": {"type": "string"}, "message": {"type": "string"},
            "code": {"type": "integer"}, "details": details,
        })),
    })
}
