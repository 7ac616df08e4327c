//! A real API server of Kubernetes with the kinds of Rook: its lists, watches and refusals.
//! The test writes what kubelets and controllers would write.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::{Client, Method, StatusCode};
use selvage_dashboard::{facts::Facts, source::rook::Rook};
use selvage_kit::tasks::Tasks;
use selvage_testkit::{free_port, wait_for};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::lab::Lab;

const TOKEN: &str = "token-of-the-test";
const NAMESPACE: &str = "rook-ceph";
const KINDS: [(&str, &str); 4] = [
    ("CephCluster", "cephclusters"),
    ("CephBlockPool", "cephblockpools"),
    ("CephFilesystem", "cephfilesystems"),
    ("CephObjectStore", "cephobjectstores"),
];

/// etcd and an API server; both end with it.
struct Kubernetes {
    parts: Vec<Child>,
    url: String,
    client: Client,
    folder: tempfile::TempDir,
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        for part in &mut self.parts {
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

/// A program that `./dev kubernetes` built, of the latest version.
fn program(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
    let mut folders = vec![cache.join("selvage/tools/kubernetes")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if entry.file_name() == name {
                found.push(path);
            }
        }
    }
    found.sort();
    found.pop()
}

impl Kubernetes {
    async fn start() -> Option<Self> {
        let (Some(etcd), Some(server)) = (program("etcd"), program("kube-apiserver")) else {
            selvage_testkit::skip("kubernetes", "there are no binaries: run ./dev kubernetes");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let [client, peer, port] = [free_port(), free_port(), free_port()];
        let mut it = Self {
            parts: Vec::new(),
            url: format!("https://127.0.0.1:{port}"),
            client: Client::builder().danger_accept_invalid_certs(true).build().unwrap(),
            folder,
        };
        let (store, peers) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let words = ["--listen-client-urls", &store, "--advertise-client-urls", &store];
        let data = it.path("etcd");
        let peer_words = ["--listen-peer-urls", &peers, "--data-dir", &data];
        it.begin(&etcd, &[&words[..], &peer_words[..]].concat());
        it.begin(&server, &it.server_words(&store, port));
        let ready = async || it.ask(Method::GET, "/readyz", None).await.ok();
        wait_for("an API server", ready).await;
        Some(it)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn begin(&mut self, program: &Path, words: &[impl AsRef<std::ffi::OsStr>]) {
        let name = program.file_name().unwrap().to_str().unwrap();
        let log = std::fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.parts.push(command.spawn().unwrap());
    }

    fn server_words(&self, store: &str, port: u16) -> Vec<String> {
        let key = self.path("account.key");
        let made = Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let tokens = self.path("tokens");
        std::fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
        [
            format!("--etcd-servers={store}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=192.0.2.1".into(),
            format!("--cert-dir={}", self.path("certificates")),
            format!("--token-auth-file={tokens}"),
            "--authorization-mode=RBAC".into(),
            "--service-cluster-ip-range=198.51.100.0/24".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-signing-key-file={key}"),
            format!("--service-account-key-file={key}"),
            // Accounts and their secrets are made by a controller.
            "--disable-admission-plugins=ServiceAccount".into(),
        ]
        .into()
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, (StatusCode, String)> {
        let unsent = |error: reqwest::Error| (StatusCode::BAD_GATEWAY, error.to_string());
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", kind).body(body.to_string());
        }
        let reply = request.bearer_auth(TOKEN).send().await.map_err(unsent)?;
        let status = reply.status();
        let text = reply.text().await.map_err(unsent)?;
        if status.is_success() { Ok(text) } else { Err((status, text)) }
    }

    async fn create(&self, path: &str, object: Value) {
        self.ask(Method::POST, path, Some(&object)).await.unwrap();
    }

    /// Changes an object, or with `/status` behind its path what is known of it.
    async fn change(&self, path: &str, to: Value) {
        self.ask(Method::PATCH, path, Some(&to)).await.unwrap();
    }

    /// Makes the kinds of Rook known, each with a state that its operator writes.
    async fn add_kinds(&self) {
        for (kind, plural) in KINDS {
            let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            let version = json!({"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}});
            let object = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.ceph.rook.io")},
                "spec": {"group": "ceph.rook.io", "scope": "Namespaced", "versions": [version],
                    "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                              "singular": kind.to_lowercase()}},
            });
            self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object).await;
        }
        for (_, plural) in KINDS {
            let path = rook(plural);
            wait_for(plural, async || self.ask(Method::GET, &path, None).await.ok()).await;
        }
    }

    async fn add_node(&self, name: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
            "labels": {"node-role.kubernetes.io/storage": ""}}});
        self.create("/api/v1/nodes", node).await;
        self.set_ready(name, "True").await;
    }

    async fn set_ready(&self, name: &str, ready: &str) {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
        self.change(&format!("/api/v1/nodes/{name}/status"), status).await;
    }

    async fn add_deployment(&self, name: &str) {
        let labels = json!({"app": name});
        let containers = json!([{"name": "main", "image": "registry.example/none:1"}]);
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name}, "spec": {"replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}});
        self.create(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"), deployment).await;
    }

    async fn add_storage_pod(&self, node: &str) {
        let labels = json!({"app.kubernetes.io/component": "cephclusters.ceph.rook.io"});
        let containers = json!([{"name": "osd", "image": "registry.example/none:1"}]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "rook-ceph-osd-0", "labels": labels},
            "spec": {"nodeName": node, "containers": containers}});
        self.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), pod).await;
    }

    /// A namespace with a cluster of Rook whose operator has not begun, on one of two nodes.
    async fn add_rook(&self) {
        self.add_kinds().await;
        let named = json!({"name": NAMESPACE});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": named});
        self.create("/api/v1/namespaces", namespace).await;
        self.add_node("worker").await;
        self.add_node("without-storage").await;
        self.add_storage_pod("worker").await;
        self.add_deployment("rook-ceph-mgr-a").await;
        let api = "ceph.rook.io/v1";
        let cluster = json!({"apiVersion": api, "kind": "CephCluster", "metadata": named});
        self.create(&rook("cephclusters"), cluster).await;
    }

    fn kubeconfig(&self) -> PathBuf {
        let cluster = json!({"server": self.url, "insecure-skip-tls-verify": true});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let path = self.folder.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

fn rook(plural: &str) -> String {
    format!("/apis/ceph.rook.io/v1/namespaces/{NAMESPACE}/{plural}")
}

async fn until(lab: &Lab, what: &str, so: impl Fn(&Facts) -> bool) {
    wait_for(what, async || {
        lab.dashboard.board().refresh();
        so(&lab.dashboard.board().snapshot().facts).then_some(())
    })
    .await;
}

/// Readiness of an object by its kind.
fn ready(facts: &Facts, kind: &str) -> Option<Option<bool>> {
    let objects = facts.objects.as_ref()?;
    let mut all = objects.resources.iter().chain(&objects.deployments);
    all.find(|one| one.kind == kind).map(|one| one.ready)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_api_server_tells_of_rooks_objects_as_they_change() {
    let Some(kubernetes) = Kubernetes::start().await else { return };
    kubernetes.add_rook().await;
    let lab = Lab::new().await;
    let source = Rook::new(Some(kubernetes.kubeconfig()), NAMESPACE, Duration::from_secs(600));
    lab.dashboard.add_source(source);
    let tasks = Tasks::new(CancellationToken::new());
    lab.dashboard.spawn(&tasks);
    until(&lab, "the node with storage", |facts| {
        facts.nodes.as_ref().is_some_and(|nodes| {
            let found: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.ready)).collect();
            found == [("worker", Some(true))]
        })
    })
    .await;
    until(&lab, "a cluster of which nothing is known", |facts| {
        ready(facts, "CephCluster") == Some(None)
    })
    .await;

    let state = json!({"status": {"state": "Created", "ceph": {"health": "HEALTH_OK"}}});
    kubernetes.change(&format!("{}/{NAMESPACE}/status", rook("cephclusters")), state).await;
    until(&lab, "a cluster that works", |facts| ready(facts, "CephCluster") == Some(Some(true)))
        .await;
    let deployment =
        format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/rook-ceph-mgr-a/status");
    let status = json!({"status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1,
                                   "availableReplicas": 1, "updatedReplicas": 1}});
    kubernetes.change(&deployment, status).await;
    until(&lab, "a ready deployment", |facts| ready(facts, "Deployment") == Some(Some(true))).await;
    kubernetes.set_ready("worker", "False").await;
    until(&lab, "a node that is not ready", |facts| {
        facts.nodes.as_ref().is_some_and(|nodes| nodes.iter().any(|node| node.ready == Some(false)))
    })
    .await;
    let pool = json!({"apiVersion": "ceph.rook.io/v1", "kind": "CephBlockPool",
                      "metadata": {"name": "replicapool"}});
    kubernetes.create(&rook("cephblockpools"), pool).await;
    until(&lab, "a pool", |facts| ready(facts, "CephBlockPool") == Some(None)).await;
    let gone = format!("{}/replicapool", rook("cephblockpools"));
    kubernetes.ask(Method::DELETE, &gone, None).await.unwrap();
    until(&lab, "no pool", |facts| ready(facts, "CephBlockPool").is_none()).await;
    tasks.token().cancel();
}
