//! The OpenAPI document of everything that can be called over HTTP, from the
//! descriptors and the comments in the proto files.

mod comments;
mod operation;
mod schema;

use std::collections::BTreeMap;

use selvage_api::{Method, methods};
use serde_json::{Map, Value as Json, json};

use self::{
    comments::Comments,
    schema::{Naming, Schemas},
};

const ABOUT: &str = "Every method of every contract, in two forms: Connect \
(POST /package.Service/Method with JSON or protobuf, also under /api) and, where the \
contract names one, a REST route. gRPC and gRPC-Web answer at the same paths as Connect.";

/// The document for a server of this version. `session_cookie` is the name of
/// the cookie that browsers log in with.
pub fn openapi(version: &str, session_cookie: &str) -> Json {
    let comments = Comments::of(&selvage_api::pool_with_comments());
    let mut schemas = Schemas::new(&comments);
    let mut paths = Map::new();
    for method in methods() {
        add(&mut paths, &method.path, "POST", operation::connect(method, &comments, &mut schemas));
        for (index, binding) in method.http.iter().enumerate() {
            let described = operation::rest(method, binding, index, &comments, &mut schemas);
            add(&mut paths, &binding.path, &binding.verb, described);
        }
    }
    for message in selvage_api::pool().all_messages() {
        if selvage_api::method::part_of(message.package_name()).is_some() {
            schemas.message(&message, Naming::Camel);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Selvage", "version": version, "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"cookie": []}],
        "tags": tags(&comments),
        "x-tagGroups": tag_groups(),
        "paths": paths,
        "components": {
            "schemas": schemas.finish(),
            "responses": operation::error_responses(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer",
                    "description": "The token that services.auth.AuthService/Login returns."},
                "cookie": {"type": "apiKey", "in": "cookie", "name": session_cookie,
                    "description": "Set by Login when it is called with the header X-Session: cookie."},
            },
        },
    })
}

fn add(paths: &mut Map<String, Json>, path: &str, verb: &str, operation: Json) {
    let plain = path.replace("=**}", "}").replace("=*}", "}");
    let entry = paths.entry(plain).or_insert_with(|| json!({}));
    entry[verb.to_ascii_lowercase()] = operation;
}

fn tags(comments: &Comments) -> Vec<Json> {
    let mut tags = Vec::new();
    for method in first_methods() {
        let service = method.descriptor.parent_service();
        let mut tag = json!({"name": method.service, "x-part": method.part});
        if let Some(text) = comments.get(&service.parent_file(), service.path()) {
            tag["description"] = Json::String(text.to_owned());
        }
        tags.push(tag);
    }
    tags
}

fn tag_groups() -> Vec<Json> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for method in first_methods() {
        groups.entry(method.part).or_default().push(&method.service);
    }
    groups.into_iter().map(|(part, tags)| json!({"name": part, "tags": tags})).collect()
}

/// One method of each service, in the order of the services' names.
fn first_methods() -> impl Iterator<Item = &'static Method> {
    let methods = methods();
    methods
        .iter()
        .enumerate()
        .filter(move |(i, method)| *i == 0 || methods[i - 1].service != method.service)
        .map(|(_, method)| method)
}
