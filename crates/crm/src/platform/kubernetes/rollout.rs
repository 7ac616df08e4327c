//! Whether what was applied runs, and if not, why: in the cluster's own words.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, LogParams},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    apply::Objects,
    client::{Told, kind, objects},
    manifest::Reference,
    names::REVISION,
};
use crate::{Error, Result};

/// How long images may take to be fetched.
const FETCHING: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(300);
/// Lines of a log that tell why a container ended.
const LAST_WORDS: i64 = 5;
/// A container that waits for one of these will not run by waiting longer.
const HOPELESS: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ImageInspectError",
];
/// What a node answers instead of a log that it has cleared away.
const NO_LOG: &str = "unable to retrieve container logs";
const CRASHES: &str = "CrashLoopBackOff";

/// What keeps an instance from running.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trouble {
    /// It will not pass by itself.
    Lasting(String),
    /// A container ended and was started again.
    Crash { pod: String, container: String, said: String },
    /// It may pass.
    Passing(String),
}

/// Waits until everything runs that should. Containers that run and are not
/// ready after `patience` count as made; the balancer says how they are.
pub(super) async fn until_it_runs(
    objects: &Objects<'_>,
    selectors: &[String],
    wanted: &[Reference],
    revision: Option<&str>,
    patience: Duration,
) -> Result<()> {
    let began = Instant::now();
    let mut running = None;
    let mut last = "nothing was made of it".to_owned();
    loop {
        let pods = pods(&objects.client, &objects.names.namespace, selectors).await?;
        let pods: Vec<Value> = pods.into_iter().filter(|pod| is_of(pod, revision)).collect();
        let mut done = true;
        for reference in wanted {
            let now = objects.now(reference).await?;
            let now = now.ok_or_else(|| {
                Error::missing(format!("{} {}", reference.kind.kind, reference.name))
            })?;
            done &= is_done(&now);
            if let Some(words) = refused(objects, reference, &now).await? {
                if is_final(&words) {
                    return Err(Error::state(words));
                }
                last = words;
            }
        }
        let troubles: Vec<Trouble> = pods.iter().filter_map(trouble).collect();
        for trouble in &troubles {
            match trouble {
                Trouble::Lasting(reason) => return Err(Error::state(reason.clone())),
                Trouble::Crash { pod, container, said } => {
                    let words = last_words(objects, pod, container).await;
                    return Err(Error::state(format!("pod {pod}: {said}{words}")));
                }
                Trouble::Passing(reason) => last.clone_from(reason),
            }
        }
        if done && troubles.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let all_run = !pods.is_empty() && pods.iter().all(is_running);
        running = if all_run { running.or(Some(now)) } else { None };
        if running.is_some_and(|since| now - since >= patience) {
            tracing::warn!(instance = objects.names.id, "runs and is not ready yet");
            return Ok(());
        }
        let fetching = troubles.is_empty() && !pods.is_empty();
        if now - began >= if fetching { FETCHING } else { patience } {
            return Err(Error::state(format!("it does not run: {last}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The pods of an instance, sorted by name; those that are ending left out.
pub(super) async fn pods(
    client: &Client,
    namespace: &str,
    selectors: &[String],
) -> Result<Vec<Value>> {
    let api = objects(client, namespace, &kind("", "v1", "Pod"));
    let mut pods = Vec::new();
    for selector in selectors {
        let found = api.list(&ListParams::default().labels(selector)).await.told("listing pods")?;
        let alive = |pod: &DynamicObject| pod.metadata.deletion_timestamp.is_none();
        let alive = found.into_iter().filter(alive);
        pods.extend(alive.filter_map(|pod| serde_json::to_value(pod).ok()));
    }
    pods.sort_by(|one: &Value, other: &Value| name(one).cmp(name(other)));
    pods.dedup_by(|one, other| name(one) == name(other));
    Ok(pods)
}

pub(super) fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// Whether a pod is of the revision that is waited for.
fn is_of(pod: &Value, revision: Option<&str>) -> bool {
    let of = pod["metadata"]["labels"][REVISION].as_str();
    revision.is_none() || of == revision
}

pub(super) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

fn count(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

/// Whether an object is as far as it will get.
fn is_done(object: &Value) -> bool {
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

fn has(object: &Value, condition: &str) -> bool {
    conditions(object).any(|of| of["type"] == condition && of["status"] == "True")
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

/// Why pods may not even be made: the quota, the rules for pods.
async fn refused(
    objects: &Objects<'_>,
    reference: &Reference,
    now: &Value,
) -> Result<Option<String>> {
    let title = format!("{} {}", reference.kind.kind, reference.name);
    let failure =
        conditions(now).find(|of| of["type"] == "ReplicaFailure" && of["status"] == "True");
    if let Some(words) = failure.and_then(|of| of["message"].as_str()) {
        return Ok(Some(format!("{title}: {words}")));
    }
    if !matches!(reference.kind.kind.as_str(), "StatefulSet" | "DaemonSet" | "Job") {
        return Ok(None);
    }
    let uid = now.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let events =
        super::client::objects(&objects.client, &objects.names.namespace, &kind("", "v1", "Event"));
    let about = format!("reason=FailedCreate,involvedObject.uid={uid}");
    let found = events.list(&ListParams::default().fields(&about)).await.told("listing events")?;
    let mut words = found.items.iter().filter_map(|event| event.data["message"].as_str());
    Ok(words.next_back().map(|words| format!("{title}: {words}")))
}

/// An account that is not there yet will come.
fn is_final(words: &str) -> bool {
    let refused = words.contains("is forbidden") || words.contains("is invalid");
    refused && !words.contains("service account")
}

/// What is wrong with a pod, if anything is.
fn trouble(pod: &Value) -> Option<Trouble> {
    let title = name(pod);
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let statuses = statuses.iter().filter_map(|path| pod.pointer(path)?.as_array()).flatten();
    for status in statuses {
        let waiting = &status["state"]["waiting"];
        let reason = waiting["reason"].as_str().unwrap_or_default();
        if HOPELESS.contains(&reason) {
            let words = waiting["message"].as_str().unwrap_or_default();
            return Some(Trouble::Lasting(format!("pod {title}: {reason}: {words}")));
        }
        if reason == CRASHES || count(status, "/restartCount") > 0 {
            let ended = &status["lastState"]["terminated"];
            let container = status["name"].as_str().unwrap_or_default().to_owned();
            let code = ended["exitCode"]
                .as_i64()
                .map_or_else(String::new, |code| format!(" with code {code}"));
            let why = ended["reason"].as_str().filter(|why| !matches!(*why, "Error" | "Completed"));
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let said = format!("{CRASHES}: the container {container} ended{code}{why}");
            return Some(Trouble::Crash { pod: title.to_owned(), container, said });
        }
    }
    if pod["status"]["phase"] == "Failed" {
        let words = pod["status"]["message"].as_str().or(pod["status"]["reason"].as_str());
        return Some(Trouble::Lasting(format!(
            "pod {title} failed: {}",
            words.unwrap_or("it ended")
        )));
    }
    let placed = conditions(pod).find(|of| of["type"] == "PodScheduled" && of["status"] == "False");
    placed.map(|of| {
        let (reason, words) = (of["reason"].as_str(), of["message"].as_str());
        let (reason, words) = (reason.unwrap_or_default(), words.unwrap_or_default());
        Trouble::Passing(format!("pod {title}: {reason}: {words}"))
    })
}

/// The last lines that a container wrote before it ended. The node may have
/// cleared away the one that ended; the one after it says the same.
async fn last_words(objects: &Objects<'_>, pod: &str, container: &str) -> String {
    let api: Api<Pod> = Api::namespaced(objects.client.clone(), &objects.names.namespace);
    for previous in [true, false, true, false] {
        let lines = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(LAST_WORDS),
            limit_bytes: Some(4096),
            previous,
            ..LogParams::default()
        };
        let words = api.logs(pod, &lines).await.unwrap_or_default();
        let words = words.trim();
        if !words.is_empty() && !words.starts_with(NO_LOG) {
            return format!(": {words}");
        }
        tokio::time::sleep(LOOK).await;
    }
    String::new()
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
        let Some(Trouble::Lasting(told)) = trouble(&waiting("ErrImagePull", words)) else {
            panic!()
        };
        assert_eq!(told, "pod hello-1: ErrImagePull: failed to pull: not found");
        assert_eq!(trouble(&waiting("ContainerCreating", "")), None);

        let mut crashed = waiting(CRASHES, "back-off 10s");
        crashed["status"]["containerStatuses"][0]["lastState"] =
            json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let Some(Trouble::Crash { said, container, .. }) = trouble(&crashed) else { panic!() };
        assert_eq!(said, "CrashLoopBackOff: the container hello ended with code 137 (OOMKilled)");
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
        let Some(Trouble::Passing(told)) = trouble(&unplaced) else { panic!() };
        assert_eq!(
            told,
            "pod hello-1: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
        );
    }

    #[test]
    fn a_deployment_is_done_when_all_of_the_new_revision_are_available() {
        let of = |status: Value| json!({ "kind": "Deployment", "metadata": { "generation": 2 }, "spec": { "replicas": 2 }, "status": status });
        let done = json!({
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        });
        assert!(is_done(&of(done.clone())));
        for (field, value) in [
            ("observedGeneration", 1),
            ("replicas", 3),
            ("updatedReplicas", 1),
            ("availableReplicas", 1),
        ] {
            let mut short = done.clone();
            short[field] = json!(value);
            assert!(!is_done(&of(short)), "{field}");
        }
        assert!(!is_done(&of(json!({}))));
        assert!(is_done(&json!({ "kind": "Service" })));
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
