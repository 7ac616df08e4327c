//! Pods of a namespace: found, run in, and listened to.

use futures::AsyncBufRead;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess, DynamicObject, ListParams, LogParams},
};
use serde_json::Value;

use crate::{Context, Objects, Result, object::name, resource};

/// Pods of a namespace.
#[derive(Clone)]
pub struct Pods {
    pub(crate) api: Api<Pod>,
    objects: Objects,
}

impl Pods {
    pub fn new(client: &Client, namespace: &str) -> Self {
        let objects = Objects::namespaced(client, namespace, &resource("", "v1", "Pod"));
        Self { api: Api::namespaced(client.clone(), namespace), objects }
    }

    /// Returns the pods that any of the label selectors finds, by name; those
    /// that are being removed are left out.
    pub async fn find(&self, selectors: &[String]) -> Result<Vec<Value>> {
        let mut pods = Vec::new();
        for selector in selectors {
            let found = self.objects.list(&ListParams::default().labels(selector)).await?;
            let kept = |pod: &DynamicObject| pod.metadata.deletion_timestamp.is_none();
            let kept = found.into_iter().filter(kept);
            pods.extend(kept.filter_map(|pod| serde_json::to_value(pod).ok()));
        }
        pods.sort_by(|one: &Value, other: &Value| name(one).cmp(name(other)));
        pods.dedup_by(|one, other| name(one) == name(other));
        Ok(pods)
    }

    /// Runs a command; wants a client for streams.
    pub async fn exec(
        &self,
        pod: &str,
        argv: Vec<String>,
        params: &AttachParams,
    ) -> Result<AttachedProcess> {
        self.api.exec(pod, argv, params).await.context("running a command")
    }

    /// Streams a log; one that is followed wants a client for streams.
    pub async fn log_stream(
        &self,
        pod: &str,
        params: &LogParams,
    ) -> Result<impl AsyncBufRead + use<>> {
        self.api.log_stream(pod, params).await.context("reading a log")
    }

    pub async fn logs(&self, pod: &str, params: &LogParams) -> Result<String> {
        self.api.logs(pod, params).await.context("reading a log")
    }
}

pub fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Returns the container of a pod that is meant where none is named.
pub fn main_container(pod: &Value) -> Option<String> {
    let named = &pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    let first = pod.pointer("/spec/containers/0/name");
    named.as_str().or(first.and_then(Value::as_str)).map(str::to_owned)
}
