//! Readiness of an object of Kubernetes.

use serde_json::Value;

use crate::facts::{Node, Resource};

const ROLE: &str = "node-role.kubernetes.io/";

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Describes a node.
pub fn node(value: &Value) -> Node {
    let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready")
        .map(|condition| condition["status"] == "True");
    let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<String> = labels
        .into_iter()
        .flat_map(|labels| labels.keys())
        .filter_map(|key| key.strip_prefix(ROLE))
        .map(str::to_owned)
        .collect();
    roles.sort();
    Node {
        name: text(value, "/metadata/name").into(),
        ready,
        cordoned: value.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
        roles,
        internal_ip: address(value, "InternalIP"),
        external_ip: address(value, "ExternalIP"),
        created: text(value, "/metadata/creationTimestamp").parse().ok(),
    }
}

fn address(value: &Value, kind: &str) -> String {
    let all = value.pointer("/status/addresses").and_then(Value::as_array);
    let found = all.into_iter().flatten().find(|address| address["type"] == kind);
    found.and_then(|address| address["address"].as_str()).unwrap_or_default().to_owned()
}

/// Describes a deployment or an object of Rook.
pub fn resource(value: &Value) -> Resource {
    let kind = text(value, "/kind");
    let ready = match kind {
        "Deployment" => deployment(value),
        "CephCluster" => cluster(value),
        _ => phase(value),
    };
    let message = [text(value, "/status/message"), text(value, "/status/phase")];
    Resource {
        api_version: text(value, "/apiVersion").into(),
        kind: kind.into(),
        namespace: text(value, "/metadata/namespace").into(),
        name: text(value, "/metadata/name").into(),
        ready,
        message: message.into_iter().find(|text| !text.is_empty()).unwrap_or_default().into(),
    }
}

/// As many replicas as were asked for are ready; of one that was scaled to
/// nothing that is none.
fn deployment(value: &Value) -> Option<bool> {
    let number = |path: &str| value.pointer(path).and_then(Value::as_u64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    value.get("status")?;
    let ready = number("/status/readyReplicas").unwrap_or(0);
    let seen = number("/status/observedGeneration") >= number("/metadata/generation");
    Some(seen && ready >= wanted)
}

fn cluster(value: &Value) -> Option<bool> {
    value.pointer("/status/ceph")?;
    Some(matches!(text(value, "/status/state"), "Created" | "Connected"))
}

fn phase(value: &Value) -> Option<bool> {
    value.get("status").filter(|status| !status.is_null())?;
    Some(text(value, "/status/phase") == "Ready")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_ready_when_its_condition_says_so() {
        let value = json!({
            "metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {
                "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/storage": "",
                "other": "node-role.kubernetes.io/decoy"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "DiskPressure", "status": "True"},
                                      {"type": "Ready", "status": "Unknown"}],
                       "addresses": [{"type": "InternalDNS", "address": "n.local"},
                                     {"type": "InternalIP", "address": "10.0.0.1"}]},
        });
        let node = node(&value);
        assert_eq!((node.ready, node.cordoned), (Some(false), true));
        assert_eq!(node.roles, ["storage", "worker"]);
        assert_eq!((node.internal_ip.as_str(), node.external_ip.as_str()), ("10.0.0.1", ""));
        assert!(node.created.is_some());
        assert_eq!(super::node(&json!({})).ready, None);
    }

    #[test]
    fn a_deployment_goes_by_what_was_asked_for() {
        let ready = |spec: Value, status: Value| {
            let value = json!({"kind": "Deployment", "metadata": {"generation": 2},
                               "spec": spec, "status": status});
            resource(&value).ready
        };
        let all = json!({"replicas": 2, "readyReplicas": 2, "observedGeneration": 2});
        assert_eq!(ready(json!({"replicas": 2}), all.clone()), Some(true));
        assert_eq!(ready(json!({"replicas": 3}), all), Some(false));
        // None of its replicas was made yet.
        assert_eq!(ready(json!({"replicas": 1}), json!({"observedGeneration": 2})), Some(false));
        // The controller has not seen the change.
        let old = json!({"readyReplicas": 2, "observedGeneration": 1});
        assert_eq!(ready(json!({"replicas": 2}), old), Some(false));
    }

    #[test]
    fn kinds_of_rook_go_by_their_own_words() {
        let cluster =
            |status: Value| resource(&json!({"kind": "CephCluster", "status": status})).ready;
        assert_eq!(cluster(json!({"state": "Created"})), None);
        assert_eq!(cluster(json!({"state": "Created", "ceph": {}})), Some(true));
        assert_eq!(cluster(json!({"state": "Connecting", "ceph": {}})), Some(false));
        let pool =
            |status: Value| resource(&json!({"kind": "CephBlockPool", "status": status})).ready;
        assert_eq!(pool(Value::Null), None);
        assert_eq!(pool(json!({"phase": "Ready"})), Some(true));
        assert_eq!(pool(json!({"phase": "Progressing"})), Some(false));
    }
}
