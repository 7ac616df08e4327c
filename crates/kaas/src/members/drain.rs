//! Moving pods away from a node.

use selvage_kube::{
    Pods,
    k8s_openapi::api::core::v1::Pod,
    kube::{
        Api, Client,
        api::{DeleteParams, ListParams},
    },
};

use crate::driver::{Error, Progress};

/// Asks for the end of every pod that has to go, and says which are left.
/// Grace periods are the API's to keep, and so are disruption budgets, unless pods
/// are deleted with `force`.
pub(super) async fn pass(client: &Client, node: &str, force: bool) -> Result<Progress, Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let listed = pods.list(&on_node).await;
    let listed = listed.map_err(|error| Error::Unavailable(error.to_string()))?;
    let going: Vec<&Pod> = listed.items.iter().filter(|pod| has_to_go(pod)).collect();
    let Some(first) = going.first() else { return Ok(Progress::Done) };
    let mut why = String::new();
    for pod in &going {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let ended = match force {
            true => delete(client, namespace, name).await,
            false => Pods::new(client, namespace).evict(name).await.map_err(|e| e.to_string()),
        };
        why = ended.err().unwrap_or(why);
    }
    let name = first.metadata.name.as_deref().unwrap_or_default();
    let text = match (going.len(), why.as_str()) {
        (1, "") => format!("pod {name} ends"),
        (left, "") => format!("{left} pods end"),
        (left, why) => format!("{left} pods are left: {why}"),
    };
    Ok(Progress::Waiting(text))
}

async fn delete(client: &Client, namespace: &str, name: &str) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let deleted = pods.delete(name, &DeleteParams::default()).await;
    tracing::info!(namespace, pod = name, "pod is deleted: its node was drained for too long");
    deleted.map(drop).map_err(|error| error.to_string())
}

/// Returns whether a pod keeps a node from being empty: not those that belong to the
/// node itself or have ended.
fn has_to_go(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let mirror = annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"));
    let owners = pod.metadata.owner_references.as_ref();
    let daemon = owners.is_some_and(|all| all.iter().any(|owner| owner.kind == "DaemonSet"));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !mirror && !daemon && !matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_the_node_itself_and_those_that_ended_stay() {
        let pod = |value: serde_json::Value| -> Pod { serde_json::from_value(value).unwrap() };
        let daemon =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u" }]);
        let mirror = json!({ "kubernetes.io/config.mirror": "x" });
        assert!(has_to_go(&pod(json!({ "status": { "phase": "Running" } }))));
        assert!(has_to_go(&pod(json!({ "status": { "phase": "Pending" } }))));
        assert!(!has_to_go(&pod(json!({ "status": { "phase": "Succeeded" } }))));
        assert!(!has_to_go(&pod(json!({ "metadata": { "ownerReferences": daemon } }))));
        assert!(!has_to_go(&pod(json!({ "metadata": { "annotations": mirror } }))));
    }
}
