//! An API server in memory for tests: lists, reads, makes, patches and deletes objects of
//! any kind, with finalizers, over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Json, Response},
};
use parking_lot::Mutex;
use selvage_kube::Connection;
use serde_json::{Value, json};

#[derive(Default)]
struct Kept {
    /// By path, such as `/api/v1/namespaces/shop/persistentvolumeclaims/data`.
    objects: BTreeMap<String, Value>,
    version: u64,
}

/// A cluster. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Cluster(Arc<Mutex<Kept>>);

impl Cluster {
    /// Serves it, and returns a connection to it.
    pub(crate) async fn open() -> (Self, Arc<Connection>) {
        let cluster = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(cluster.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
        });
        let connection = Connection::from_kubeconfig(&kubeconfig.to_string()).await.unwrap();
        (cluster, Arc::new(connection))
    }

    /// Puts an object there as a client would.
    pub(crate) fn create(&self, collection: &str, mut object: Value) -> Value {
        let mut kept = self.0.lock();
        let path = path_of(collection, &object);
        let uid = object["metadata"]["uid"].as_str().map_or_else(
            || format!("u-{}", object["metadata"]["name"].as_str().unwrap()),
            str::to_owned,
        );
        object["metadata"]["uid"] = json!(uid);
        kept.put(&path, object)
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    /// Changes an object as a client would.
    pub(crate) fn patch(&self, path: &str, patch: &Value) {
        let mut kept = self.0.lock();
        let mut object = kept.objects.get(path).cloned().unwrap();
        merge(&mut object, patch);
        kept.put(path, object);
    }

    /// Deletes an object as a client would.
    pub(crate) fn delete(&self, path: &str) {
        self.0.lock().delete(path);
    }
}

/// Objects that have a namespace are below it.
fn path_of(collection: &str, object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    match (object["metadata"]["namespace"].as_str(), collection.rsplit_once('/')) {
        (Some(namespace), Some((group, plural))) if !collection.contains("/namespaces/") => {
            format!("{group}/namespaces/{namespace}/{plural}/{name}")
        }
        _ => format!("{collection}/{name}"),
    }
}

impl Kept {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let is_held =
            object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if object["metadata"]["deletionTimestamp"].is_string() && !is_held {
            self.objects.remove(path);
        } else {
            self.objects.insert(path.to_owned(), object.clone());
        }
        object
    }

    fn delete(&mut self, path: &str) -> Option<Value> {
        let mut object = self.objects.get(path)?.clone();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        Some(self.put(path, object))
    }

    /// Objects of a kind, in one namespace or in all.
    fn list(&self, collection: &str) -> Vec<Value> {
        let (group, plural) = collection.rsplit_once('/').unwrap();
        let is_in = |path: &str| {
            let Some((parent, _)) = path.rsplit_once('/') else { return false };
            parent == collection
                || parent.starts_with(&format!("{group}/namespaces/"))
                    && parent.rsplit_once('/').is_some_and(|(_, last)| last == plural)
        };
        self.objects
            .iter()
            .filter(|(path, _)| is_in(path))
            .map(|(_, object)| object.clone())
            .collect()
    }
}

/// Merges as RFC 7396 has it.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            value => merge(&mut object[key.as_str()], value),
        }
    }
}

fn refused(code: StatusCode, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16(),
    });
    (code, Json(status)).into_response()
}

async fn answer(State(cluster): State<Cluster>, method: Method, uri: Uri, body: Bytes) -> Response {
    let path = uri.path().trim_end_matches("/status").to_owned();
    let is_status = uri.path().ends_with("/status");
    let mut kept = cluster.0.lock();
    let missing = || refused(StatusCode::NOT_FOUND, "NotFound");
    let content: Value = serde_json::from_slice(&body).unwrap_or_default();
    match method {
        Method::GET => match kept.objects.get(&path) {
            Some(object) => Json(object.clone()).into_response(),
            // Names of these tests have a dash or a digit in them, names of kinds have not.
            None if path.rsplit('/').next().unwrap().contains(|c: char| !c.is_alphabetic()) => {
                missing()
            }
            None => Json(json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": kept.list(&path) }))
                .into_response(),
        },
        Method::POST => {
            let full = path_of(&path, &content);
            if kept.objects.contains_key(&full) {
                return refused(StatusCode::CONFLICT, "AlreadyExists");
            }
            drop(kept);
            Json(cluster.create(&path, content)).into_response()
        }
        Method::PATCH => {
            let known = kept.objects.get(&path).cloned();
            let is_apply = uri.query().is_some_and(|query| query.contains("force"));
            let Some(mut object) = known.or_else(|| is_apply.then(|| json!({}))) else {
                return missing();
            };
            let meant = &content["metadata"]["resourceVersion"];
            if meant.is_string() && *meant != object["metadata"]["resourceVersion"] {
                return refused(StatusCode::CONFLICT, "Conflict");
            }
            // The status is changed by its own path, and nothing else is.
            let mut patch = content;
            if is_status {
                patch = json!({ "status": patch["status"] });
            } else if let Some(patch) = patch.as_object_mut() {
                patch.remove("status");
            }
            merge(&mut object, &patch);
            Json(kept.put(&path, object)).into_response()
        }
        Method::DELETE => match kept.delete(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(),
        },
        _ => refused(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}
