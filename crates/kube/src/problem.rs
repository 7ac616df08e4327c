//! Reasons for which objects and pods do not run, read from their status.

use serde_json::Value;

use crate::object::name;

/// Reasons of a waiting container that waiting longer does not mend.
const PERMANENT: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ImageInspectError",
];
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Reason why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A problem that does not go away by itself.
    Permanent(String),
    /// A container ended and was started again.
    Crash { pod: String, container: String, reason: String },
    /// A problem that may go away.
    Transient(String),
}

/// Returns the problem of a pod, if it has one.
pub(crate) fn of_pod(pod: &Value) -> Option<Problem> {
    let title = name(pod);
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let statuses = statuses.iter().filter_map(|path| pod.pointer(path)?.as_array()).flatten();
    if let Some(found) = statuses.filter_map(|status| of_container(title, status)).next() {
        return Some(found);
    }
    if pod["status"]["phase"] == "Failed" {
        let text = pod["status"]["message"].as_str().or(pod["status"]["reason"].as_str());
        let text = text.unwrap_or("it ended");
        return Some(Problem::Permanent(format!("pod {title} failed: {text}")));
    }
    let placed = conditions(pod).find(|of| of["type"] == "PodScheduled" && of["status"] == "False");
    placed.map(|of| {
        let (reason, text) = (of["reason"].as_str(), of["message"].as_str());
        let (reason, text) = (reason.unwrap_or_default(), text.unwrap_or_default());
        Problem::Transient(format!("pod {title}: {reason}: {text}"))
    })
}

fn of_container(pod: &str, status: &Value) -> Option<Problem> {
    let waiting = &status["state"]["waiting"];
    let reason = waiting["reason"].as_str().unwrap_or_default();
    if PERMANENT.contains(&reason) {
        let text = waiting["message"].as_str().unwrap_or_default();
        return Some(Problem::Permanent(format!("pod {pod}: {reason}: {text}")));
    }
    if reason != CRASH_LOOP && count(status, "/restartCount") == 0 {
        return None;
    }
    let ended = &status["lastState"]["terminated"];
    let container = status["name"].as_str().unwrap_or_default().to_owned();
    let code = ended["exitCode"].as_i64();
    let code = code.map_or_else(String::new, |code| format!(" with code {code}"));
    let why = ended["reason"].as_str().filter(|why| !matches!(*why, "Error" | "Completed"));
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    let reason = format!("{CRASH_LOOP}: the container {container} ended{code}{why}");
    Some(Problem::Crash { pod: pod.to_owned(), container, reason })
}

/// Returns whether a workload is rolled out; kinds without pods always are.
pub(crate) fn is_complete(object: &Value) -> bool {
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let seen = count(object, "/status/observedGeneration") >= count(object, "/metadata/generation");
    let at_least = |path: &str, wanted: i64| count(object, path) >= wanted;
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => {
            seen && at_least("/status/updatedReplicas", replicas)
                && at_least("/status/availableReplicas", replicas)
                && count(object, "/status/replicas") <= replicas
        }
        "StatefulSet" => {
            seen && at_least("/status/readyReplicas", replicas)
                && (at_least("/status/updatedReplicas", replicas)
                    || object["status"]["currentRevision"] == object["status"]["updateRevision"])
        }
        "DaemonSet" => {
            let wanted = count(object, "/status/desiredNumberScheduled");
            seen && at_least("/status/updatedNumberScheduled", wanted)
                && at_least("/status/numberAvailable", wanted)
        }
        "Pod" => object["status"]["phase"] == "Succeeded" || has(object, "Ready"),
        _ => true,
    }
}

/// Returns whether the text of a refusal means that no later try will do better: a
/// service account that is missing will come.
pub(crate) fn is_final(text: &str) -> bool {
    let refused = text.contains("is forbidden") || text.contains("is invalid");
    refused && !text.contains("service account")
}

fn count(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn has(object: &Value, condition: &str) -> bool {
    conditions(object).any(|of| of["type"] == condition && of["status"] == "True")
}

pub(crate) fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    fn waiting(reason: &str, message: &str) -> Value {
        json!({
            "metadata": { "name": "hello-1" },
            "status": {
                "phase": "Pending",
                "containerStatuses": [{
                    "name": "hello",
                    "restartCount": 0,
                    "state": { "waiting": { "reason": reason, "message": message } },
                }],
            },
        })
    }

    #[test]
    fn a_pod_says_why_it_does_not_run() {
        let words = "failed to pull: not found";
        let Some(Problem::Permanent(text)) = of_pod(&waiting("ErrImagePull", words)) else {
            panic!()
        };
        assert_eq!(text, "pod hello-1: ErrImagePull: failed to pull: not found");
        assert_eq!(of_pod(&waiting("ContainerCreating", "")), None);

        let mut crashed = waiting(CRASH_LOOP, "back-off 10s");
        crashed["status"]["containerStatuses"][0]["lastState"] =
            json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let Some(Problem::Crash { reason, container, .. }) = of_pod(&crashed) else { panic!() };
        assert_eq!(reason, "CrashLoopBackOff: the container hello ended with code 137 (OOMKilled)");
        assert_eq!(container, "hello");

        let unplaced = json!({
            "metadata": { "name": "hello-1" },
            "status": { "phase": "Pending", "conditions": [{
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient cpu.",
            }] },
        });
        let Some(Problem::Transient(text)) = of_pod(&unplaced) else { panic!() };
        assert_eq!(
            text,
            "pod hello-1: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
        );
    }

    #[test]
    fn a_deployment_is_complete_when_all_of_the_new_revision_are_available() {
        let of = |status: Value| json!({ "kind": "Deployment", "metadata": { "generation": 2 }, "spec": { "replicas": 2 }, "status": status });
        let done = json!({
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        });
        assert!(is_complete(&of(done.clone())));
        for (field, value) in [
            ("observedGeneration", 1),
            ("replicas", 3),
            ("updatedReplicas", 1),
            ("availableReplicas", 1),
        ] {
            let mut short = done.clone();
            short[field] = json!(value);
            assert!(!is_complete(&of(short)), "{field}");
        }
        assert!(!is_complete(&of(json!({}))));
        assert!(is_complete(&json!({ "kind": "Service" })));
    }

    #[test]
    fn only_a_true_refusal_ends_the_waiting() {
        assert!(is_final("pods \"x\" is forbidden: exceeded quota: selvage-cluster"));
        assert!(is_final("pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\""));
        assert!(!is_final("pods \"x\" is forbidden: error looking up service account a/b"));
        assert!(is_final("Pod \"x\" is invalid: must be less than or equal to memory limit"));
        assert!(!is_final("Internal error occurred"));
    }
}
