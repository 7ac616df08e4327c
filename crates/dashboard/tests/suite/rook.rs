//! Kubernetes by an API server that imitates lists and watches.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{OriginalUri, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use selvage_dashboard::{facts::Facts, source::rook::Rook};
use selvage_kit::tasks::Tasks;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::lab::Lab;

/// The API server.
struct Imitation {
    has_rook: AtomicBool,
    lists: AtomicUsize,
    ready: Mutex<&'static str>,
    events: broadcast::Sender<String>,
}

type Shared = Arc<Imitation>;

fn node(name: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "resourceVersion": "7",
                     "creationTimestamp": "2026-01-01T00:00:00Z",
                     "labels": {"node-role.kubernetes.io/storage": ""}},
        "status": {"conditions": [{"type": "Ready", "status": ready}],
                   "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    })
}

fn items(path: &str, it: &Imitation) -> Option<Vec<Value>> {
    let named = |name: &str| json!({"name": name, "namespace": "rook-ceph"});
    let kind = path.rsplit('/').next()?;
    Some(match kind {
        // As lists of a real server have them: without their kind.
        "nodes" => {
            let ready = *it.ready.lock().unwrap();
            vec![node("worker", ready), node("without-storage", "True")]
        }
        "pods" => vec![json!({"metadata": named("osd-0"), "spec": {"nodeName": "worker"}})],
        "deployments" => vec![json!({"metadata": named("rook-ceph-mgr-a"),
            "spec": {"replicas": 1}, "status": {"readyReplicas": 0}})],
        "cephclusters" if it.has_rook.load(Ordering::SeqCst) => vec![json!({
            "metadata": named("rook-ceph"), "status": {"state": "Created", "ceph": {}}})],
        "cephblockpools" if it.has_rook.load(Ordering::SeqCst) => vec![],
        _ => return None,
    })
}

async fn answer(State(it): State<Shared>, OriginalUri(uri): OriginalUri) -> Response {
    let Some(items) = items(uri.path(), &it) else {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
                            "message": "not found", "code": 404});
        return (StatusCode::NOT_FOUND, axum::Json(status)).into_response();
    };
    if uri.query().is_some_and(|query| query.contains("watch=")) {
        let kind = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let events = it.events.subscribe();
        let lines = futures::stream::unfold((events, kind), |(mut events, kind)| async {
            loop {
                let line = events.recv().await.ok()?;
                if line.contains("\"Node\"") == (kind == "nodes") {
                    let line = Ok::<_, std::convert::Infallible>(format!("{line}\n"));
                    return Some((line, (events, kind)));
                }
            }
        });
        return Body::from_stream(lines).into_response();
    }
    it.lists.fetch_add(1, Ordering::SeqCst);
    axum::Json(json!({"kind": "List", "apiVersion": "v1",
                      "metadata": {"resourceVersion": "9"}, "items": items}))
    .into_response()
}

struct Watched {
    lab: Lab,
    it: Shared,
    tasks: Tasks,
    _folder: tempfile::TempDir,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl Watched {
    async fn new(has_rook: bool) -> Self {
        let it = Arc::new(Imitation {
            has_rook: AtomicBool::new(has_rook),
            lists: AtomicUsize::new(0),
            ready: Mutex::new("True"),
            events: broadcast::Sender::new(64),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&it));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "canary"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        let lab = Lab::new().await;
        let every = Duration::from_secs(600);
        lab.dashboard.add_source(Rook::new(Some(path), "rook-ceph", every));
        let tasks = Tasks::new(CancellationToken::new());
        lab.dashboard.spawn(&tasks);
        Self { lab, it, tasks, _folder: folder }
    }

    async fn until(&self, what: &str, so: impl Fn(&Facts) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            self.lab.dashboard.board().refresh();
            let snapshot = self.lab.dashboard.board().snapshot();
            if so(&snapshot.facts) {
                return;
            }
            let sources = self.lab.dashboard.board().sources();
            assert!(tokio::time::Instant::now() < deadline, "never: {what}; {sources:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn nodes_and_objects_are_listed_once_and_then_watched() {
    let watched = Watched::new(true).await;
    watched.until("nodes", |facts| facts.nodes.is_some()).await;
    watched.until("objects", |facts| facts.objects.is_some()).await;
    let facts = watched.lab.dashboard.board().snapshot().facts.clone();
    let nodes = facts.nodes.unwrap();
    assert_eq!(nodes.len(), 1, "only those that carry storage");
    assert_eq!((nodes[0].name.as_str(), nodes[0].ready), ("worker", Some(true)));
    let objects = facts.objects.unwrap();
    let kinds: Vec<(&str, Option<bool>)> =
        objects.resources.iter().map(|r| (r.kind.as_str(), r.ready)).collect();
    assert_eq!(kinds, [("CephCluster", Some(true))]);
    assert_eq!(
        (objects.deployments[0].kind.as_str(), objects.deployments[0].ready),
        ("Deployment", Some(false))
    );
    let lists = watched.it.lists.load(Ordering::SeqCst);
    let event = json!({"type": "MODIFIED", "object": node("worker", "False")});
    watched.it.events.send(event.to_string()).unwrap();
    let down =
        |facts: &Facts| facts.nodes.as_ref().is_some_and(|nodes| nodes[0].ready == Some(false));
    watched.until("the change", down).await;
    assert_eq!(watched.it.lists.load(Ordering::SeqCst), lists, "a change is no list");
}

#[tokio::test]
async fn a_cluster_without_rook_drops_the_section() {
    let watched = Watched::new(false).await;
    let absent = |_: &Facts| {
        let sources = watched.lab.dashboard.board().sources();
        sources.iter().any(|state| state.section.name() == "objects" && state.absent)
    };
    watched.until("that there is none", absent).await;
    assert!(watched.lab.dashboard.board().snapshot().facts.objects.is_none());
}
