//! The OpenAPI document and the page that shows it.

use std::collections::{BTreeSet, HashSet};

use selvage_api::methods;
use selvage_transcode::{CONTENT_SECURITY_POLICY, openapi, page};
use serde_json::Value;

fn document() -> Value {
    openapi("1.2.3", "__Host-session")
}

#[test]
fn every_method_and_route_is_in_the_document() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], "1.2.3");
    for method in methods() {
        let connect = &document["paths"][&method.path]["post"];
        assert_eq!(connect["tags"][0], method.service.as_str(), "{}", method.path);
        assert_eq!(connect["x-selvage"]["serverStreaming"], method.server_streaming);
        for route in &method.http {
            // OpenAPI has no patterns in a path: only the field's name stands there.
            let path = route.path.replace("=**}", "}").replace("=*}", "}");
            let rest = &document["paths"][&path][route.verb.to_lowercase()];
            assert_eq!(rest["x-selvage"]["method"], method.path.as_str(), "{route}");
            let named = rest["parameters"].as_array().map_or(0, |list| {
                list.iter().filter(|p| p["in"] == "path" && p["required"] == true).count()
            });
            assert_eq!(named, route.path_fields().count(), "{route}");
        }
    }
}

#[test]
fn operation_ids_are_unique_and_references_lead_somewhere() {
    let document = document();
    let mut ids = HashSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} at {path} is not unique");
        }
    }
    let mut references = BTreeSet::new();
    collect_references(&document, &mut references);
    assert!(references.len() > 100);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some_and(|found| !found.is_null()), "{reference}");
    }
}

fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                found.insert(reference.clone());
            }
            map.values().for_each(|inner| collect_references(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| collect_references(inner, found)),
        _ => {}
    }
}

#[test]
fn comments_of_the_contracts_are_its_descriptions() {
    let document = document();
    let whoami = &document["paths"]["/selvage.identity.IdentityService/WhoAmI"]["post"];
    assert_eq!(whoami["description"], "Returns the identity and rights of the caller.");
    let schemas = &document["components"]["schemas"];
    let user = &schemas["selvage.identity.User"];
    assert!(user["description"].as_str().unwrap().contains("logs in"));
    assert!(user["properties"]["createdAt"]["description"].is_string());
    assert_eq!(user["properties"]["createdAt"]["format"], "date-time");
    assert!(schemas["rest.selvage.identity.User"]["properties"]["created_at"].is_object());
}

#[test]
fn query_parameters_and_security_are_described() {
    let document = document();
    let delete = &document["paths"]["/api/v1/cluster/pool"]["delete"];
    let names: Vec<_> = delete["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["clusterName", "node_pool_names"]);
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(schemes["cookie"]["name"], "__Host-session");
    assert_eq!(schemes["bearer"]["scheme"], "bearer");
    assert_eq!(document, self::document(), "the same each time");
}

#[test]
fn the_page_obeys_its_own_policy() {
    let text = |path: &str| {
        let (content_type, bytes) = page(path).unwrap();
        (content_type, std::str::from_utf8(bytes).unwrap())
    };
    let (content_type, html) = text("/docs");
    assert_eq!(content_type, "text/html; charset=utf-8");
    assert_eq!(page("/docs/").unwrap().1, html.as_bytes());
    assert_eq!(text("/docs/docs.js").0, "text/javascript; charset=utf-8");
    assert_eq!(text("/docs/docs.css").0, "text/css; charset=utf-8");
    assert!(page("/docs/../secret").is_none() && page("/").is_none());
    for forbidden in ["<style", " style=", " onclick=", "http://", "https://", "javascript:"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    let script = text("/docs/docs.js").1;
    for forbidden in
        ["eval(", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "https://"]
    {
        assert!(!script.contains(forbidden), "{forbidden}");
    }
    assert!(!text("/docs/docs.css").1.contains("url(http"));
    assert!(CONTENT_SECURITY_POLICY.starts_with("default-src 'none'"));
    for needed in
        ["id=\"filter\"", "id=\"login-form\"", "id=\"methods\"", "/docs/docs.js", "/docs/docs.css"]
    {
        assert!(html.contains(needed), "{needed}");
    }
}
