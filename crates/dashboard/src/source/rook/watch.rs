//! Objects of a cluster, kept as they change.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kube::{
    Connection, Objects,
    kube::{
        api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
        core::GroupVersionKind,
    },
};
use serde_json::Value;
use tokio::sync::Notify;

use crate::source::Failure;

/// After how long a stream that broke is begun anew.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// And one of a kind that the cluster does not have.
const ABSENT_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Kind that is watched, and the fields used of it.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    resource: ApiResource,
    /// In the namespace of the cluster, and not everywhere.
    namespaced: bool,
    labels: Option<&'static str>,
}

impl Kind {
    fn name(&self) -> String {
        format!("{}/{}", self.resource.api_version, self.resource.kind)
    }
}

fn kind(group: &str, version: &str, kind: &str, namespaced: bool) -> Kind {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Kind { resource, namespaced, labels: None }
}

pub(super) fn core(name: &str) -> Kind {
    kind("", "v1", name, false)
}

pub(super) fn pods(labels: &'static str) -> Kind {
    Kind { labels: Some(labels), ..kind("", "v1", "Pod", true) }
}

pub(super) fn deployments() -> Kind {
    kind("apps", "v1", "Deployment", true)
}

pub(super) fn rook(group: &str, name: &str) -> Kind {
    kind(group, "v1", name, true)
}

/// The objects of one kind.
#[derive(Default)]
struct KindCache {
    objects: BTreeMap<String, Value>,
    /// None until they were listed once.
    state: Option<Result<(), Failure>>,
}

/// The objects of all kinds.
pub(super) struct Watched {
    connection: Connection,
    namespace: String,
    seen: Mutex<HashMap<String, KindCache>>,
    changed: Notify,
}

impl Watched {
    pub(super) fn new(connection: Connection, namespace: &str) -> Self {
        Self {
            connection,
            namespace: namespace.to_owned(),
            seen: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits until something is different.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The objects of a kind, once they were listed.
    pub(super) async fn objects(&self, kind: &Kind) -> Result<Vec<Value>, Failure> {
        loop {
            let changed = self.changed.notified();
            if let Some(seen) = self.seen.lock().get(&kind.name())
                && let Some(state) = &seen.state
            {
                return state.clone().map(|()| seen.objects.values().cloned().collect());
            }
            changed.await;
        }
    }

    /// Follows a kind for ever.
    pub(super) async fn follow(self: Arc<Self>, kind: Kind) {
        loop {
            let ended = self.follow_once(&kind).await;
            let pause =
                if ended == Err(Failure::Absent) { ABSENT_RETRY_INTERVAL } else { RETRY_INTERVAL };
            if let Err(failure) = ended {
                self.note(&kind, |seen| seen.state = Some(Err(failure)));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn follow_once(&self, kind: &Kind) -> Result<(), Failure> {
        let objects = |client: &selvage_kube::kube::Client| match kind.namespaced {
            true => Objects::namespaced(client, &self.namespace, &kind.resource),
            false => Objects::all(client, &kind.resource),
        };
        let client = self.connection.client().await.map_err(|error| failure(&error))?;
        let streams = self.connection.streams().await.map_err(|error| failure(&error))?;
        let mut params = WatchParams::default();
        let mut listed = ListParams::default();
        if let Some(labels) = kind.labels {
            (params, listed) = (params.labels(labels), listed.labels(labels));
        }
        // The stream is begun before the list, so that nothing is missed
        // between the two; what both tell is told twice.
        let stream = objects(&streams).watch(&params, "0").await;
        let mut stream = Box::pin(stream.map_err(|error| failure(&error))?);
        let list = objects(&client).list(&listed).await.map_err(|error| failure(&error))?;
        self.note(kind, |seen| {
            seen.objects = list.into_iter().map(|object| named(kind, object)).collect();
            seen.state = Some(Ok(()));
        });
        while let Some(event) = stream.next().await {
            match event.map_err(|error| failure(&error))? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (name, value) = named(kind, object);
                    self.note(kind, |seen| drop(seen.objects.insert(name, value)));
                }
                WatchEvent::Deleted(object) => {
                    let (name, _) = named(kind, object);
                    self.note(kind, |seen| drop(seen.objects.remove(&name)));
                }
                WatchEvent::Bookmark(_) => {}
                // The server has forgotten where we were.
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn note(&self, kind: &Kind, change: impl FnOnce(&mut KindCache)) {
        change(self.seen.lock().entry(kind.name()).or_default());
        self.changed.notify_waiters();
    }
}

/// An object by its name. Lists do not repeat the kind of what they list.
fn named(kind: &Kind, object: DynamicObject) -> (String, Value) {
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), kind.resource.api_version.clone().into());
        fields.insert("kind".into(), kind.resource.kind.clone().into());
    }
    (format!("{namespace}/{name}"), value)
}

fn failure(error: &selvage_kube::Error) -> Failure {
    match error.code() {
        Code::NotFound => Failure::Absent,
        _ => Failure::Failed(error.to_string()),
    }
}
