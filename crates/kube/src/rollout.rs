//! Waiting until what was applied runs, and the reason if it does not, in the
//! cluster's own words.

use std::time::Duration;

use kube::{
    Client,
    api::{ListParams, LogParams},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Error, Objects, Pods, Reference, Result,
    pod::is_running,
    problem::{self, Problem, conditions},
    resource,
};

/// Time that images may take to be pulled.
const PULL_TIMEOUT: Duration = Duration::from_secs(900);
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Lines of a log that tell why a container ended.
const LOG_LINES: i64 = 5;
/// Text of a node in place of a log that it has removed.
const NO_LOG: &str = "unable to retrieve container logs";

/// Objects that were applied and the pods that come of them.
pub struct Rollout<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    /// Workloads to wait for: Deployment, StatefulSet, DaemonSet, Pod.
    pub objects: &'a [Reference],
    /// Label selectors of their pods.
    pub selectors: &'a [String],
    /// Label that tells new pods from those of before the update.
    pub revision: Option<(&'a str, &'a str)>,
    /// Time until pods that run must be ready.
    pub ready_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ready,
    /// All pods run and were not ready in time.
    Running,
}

/// State between two polls.
struct Progress {
    began: Instant,
    running_since: Option<Instant>,
    last: String,
}

impl Rollout<'_> {
    /// Waits until everything is ready, or runs and had its time to become
    /// ready. Fails as soon as waiting longer would not help.
    pub async fn wait(&self) -> Result<Outcome> {
        let mut progress = Progress {
            began: Instant::now(),
            running_since: None,
            last: "nothing was made of it".to_owned(),
        };
        loop {
            let complete = self.check_objects(&mut progress).await?;
            let pods = Pods::new(self.client, self.namespace).find(self.selectors).await?;
            let pods: Vec<Value> = pods.into_iter().filter(|pod| self.is_new(pod)).collect();
            let clean = self.check_pods(&pods, &mut progress).await?;
            if complete && clean {
                return Ok(Outcome::Ready);
            }
            if let Some(outcome) = self.check_time(&pods, clean, &mut progress)? {
                return Ok(outcome);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn is_new(&self, pod: &Value) -> bool {
        self.revision.is_none_or(|(label, value)| pod["metadata"]["labels"][label] == value)
    }

    /// Returns whether all objects are rolled out.
    async fn check_objects(&self, progress: &mut Progress) -> Result<bool> {
        let mut complete = true;
        for reference in self.objects {
            let objects = Objects::namespaced(self.client, self.namespace, &reference.kind);
            let now = objects.get_value(&reference.name).await?;
            let now = now.ok_or_else(|| Error::NotFound { what: reference.title() })?;
            complete &= problem::is_complete(&now);
            if let Some(reason) = self.refusal(reference, &now).await? {
                if problem::is_final(&reason) {
                    return Err(Error::Rollout { reason });
                }
                progress.last = reason;
            }
        }
        Ok(complete)
    }

    /// Returns whether no pod has a problem.
    async fn check_pods(&self, pods: &[Value], progress: &mut Progress) -> Result<bool> {
        let mut clean = true;
        for problem in pods.iter().filter_map(problem::of_pod) {
            clean = false;
            match problem {
                Problem::Permanent(reason) => return Err(Error::Rollout { reason }),
                Problem::Crash { pod, container, reason } => {
                    let log = self.last_log_lines(&pod, &container).await;
                    return Err(Error::Rollout { reason: format!("pod {pod}: {reason}{log}") });
                }
                Problem::Transient(reason) => progress.last = reason,
            }
        }
        Ok(clean)
    }

    fn check_time(
        &self,
        pods: &[Value],
        clean: bool,
        progress: &mut Progress,
    ) -> Result<Option<Outcome>> {
        let now = Instant::now();
        let all_run = !pods.is_empty() && pods.iter().all(is_running);
        progress.running_since = if all_run { progress.running_since.or(Some(now)) } else { None };
        if progress.running_since.is_some_and(|since| now - since >= self.ready_timeout) {
            return Ok(Some(Outcome::Running));
        }
        let pulling = clean && !pods.is_empty();
        if now - progress.began >= if pulling { PULL_TIMEOUT } else { self.ready_timeout } {
            let reason = format!("it does not run: {}", progress.last);
            return Err(Error::Rollout { reason });
        }
        Ok(None)
    }

    /// Returns why pods may not even be made: the quota, the rules for pods.
    async fn refusal(&self, reference: &Reference, now: &Value) -> Result<Option<String>> {
        let title = reference.title();
        let failure =
            conditions(now).find(|of| of["type"] == "ReplicaFailure" && of["status"] == "True");
        if let Some(text) = failure.and_then(|of| of["message"].as_str()) {
            return Ok(Some(format!("{title}: {text}")));
        }
        if !matches!(reference.kind.kind.as_str(), "StatefulSet" | "DaemonSet" | "Job") {
            return Ok(None);
        }
        let uid = now.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let about = format!("reason=FailedCreate,involvedObject.uid={uid}");
        let events = Objects::namespaced(self.client, self.namespace, &resource("", "v1", "Event"));
        let found = events.list(&ListParams::default().fields(&about)).await?;
        let mut texts = found.iter().filter_map(|event| event.data["message"].as_str());
        Ok(texts.next_back().map(|text| format!("{title}: {text}")))
    }

    /// Returns the last lines that a container wrote before it ended. The node
    /// may have removed the one that ended; the one after it says the same.
    async fn last_log_lines(&self, pod: &str, container: &str) -> String {
        let pods = Pods::new(self.client, self.namespace);
        for previous in [true, false, true, false] {
            let params = LogParams {
                container: Some(container.to_owned()),
                tail_lines: Some(LOG_LINES),
                limit_bytes: Some(4096),
                previous,
                ..LogParams::default()
            };
            let text = pods.logs(pod, &params).await.unwrap_or_default();
            let text = text.trim();
            if !text.is_empty() && !text.starts_with(NO_LOG) {
                return format!(": {text}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        String::new()
    }
}
