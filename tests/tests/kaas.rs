//! Clusters on simulated machines, through the whole system: as the original's
//! clients see them, and from the command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, ChildStdout, Stdio},
    time::Duration,
};

use nix::{sys::signal::Signal, unistd::Pid};
use reqwest::StatusCode;
use selvage_tests::{Client, Selvage, client::http, process::Cli, real};
use serde_json::{Value, json};

const SIM: [&str; 2] = ["--set", "kaas.provider=sim"];

/// The REST interface as the original's clients speak it.
struct Rest {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Rest {
    async fn of(selvage: &Selvage) -> Self {
        let client = Client::admin(selvage).await;
        let base = format!("{}/api/v1", selvage.endpoint());
        Self { http: http(selvage), base, token: client.token.unwrap() }
    }

    async fn send(&self, verb: &str, path: &str, body: Option<Value>) -> (StatusCode, String) {
        let url = format!("{}{path}", self.base);
        let mut request = self.http.request(verb.parse().unwrap(), url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let reply = request.send().await.unwrap();
        (reply.status(), reply.text().await.unwrap())
    }

    async fn json(&self, verb: &str, path: &str, body: Option<Value>) -> Value {
        let (status, text) = self.send(verb, path, body).await;
        assert_eq!(status, 200, "{verb} {path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Polls as the original's own script does.
    async fn until(&self, path: &str, right: impl Fn(StatusCode, &Value) -> bool) -> Value {
        for _ in 0..600 {
            let (status, text) = self.send("GET", path, None).await;
            let body = serde_json::from_str(&text).unwrap_or_default();
            if right(status, &body) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{path} does not come to that");
    }
}

#[tokio::test]
async fn clients_of_the_original_make_use_and_delete_a_cluster() {
    let selvage = Selvage::up(&SIM);
    let rest = Rest::of(&selvage).await;
    assert_eq!(rest.send("GET", "/cluster/list", None).await.1, r#"{"ok":true}"#);

    let asked = json!({
        "name": "c1", "k8s_version": "1.35.8", "nonsense": 1,
        "control_plane_nodes": {"count": 1, "instanceType": "standard"},
        "worker_node_pools": [{"name": "pool", "count": 1, "labels": [{"name": "a", "value": "b"}]}],
    });
    let made = rest.json("POST", "/cluster", Some(asked.clone())).await;
    assert_eq!(made["cluster"]["status"], "PROVISIONING");
    let running = |_: StatusCode, body: &Value| body["cluster"]["status"] == "RUNNING";
    let cluster = rest.until("/cluster?name=c1", running).await;
    let config = cluster["cluster"]["kubeconfig"].as_str().unwrap();
    assert!(config.contains("client-certificate-data"), "{config}");
    let (status, text) = rest.send("POST", "/cluster", Some(asked)).await;
    assert_eq!(status, 409, "{text}");
    assert!(text.starts_with(r#"{"error":"cluster \"c1\" already exists","message":"#), "{text}");

    let scale = json!({"clusterName": "c1", "node_pools": [{"name": "pool", "count": 3}]});
    assert_eq!(rest.json("PUT", "/cluster/pool", Some(scale)).await, json!({"ok": true}));
    let four = |_: StatusCode, body: &Value| body["count"] == 4;
    let nodes = rest.until("/cluster/nodesstatus?clusterName=c1", four).await;
    assert_eq!(nodes["Name"], "c1");
    rest.until("/cluster?name=c1", running).await;
    let upgrade = json!({"name": "c1", "version": "1.36.4"});
    assert_eq!(
        rest.json("GET", "/cluster/upgrade?name=c1", None).await,
        json!({"ok": true, "versions": ["1.36.4"]})
    );
    assert_eq!(rest.json("PUT", "/cluster/upgrade", Some(upgrade)).await, json!({"ok": true}));
    rest.until("/cluster?name=c1", running).await;
    let gone = rest.json("DELETE", "/cluster/pool?clusterName=c1&node_pool_names=pool", None).await;
    assert_eq!(gone, json!({"ok": true}));

    let deleted = rest.json("DELETE", "/cluster?name=c1", None).await;
    assert_eq!(deleted, json!({"ok": true, "status": "Deleting"}));
    rest.until("/cluster?name=c1", |status, _| status == 404).await;
    assert!(!selvage.log().contains("client-key-data"), "a kubeconfig is in the log");
    let version = rest.json("GET", "/version", None).await;
    assert_eq!(version["version_information"]["compiler"], "rustc");
}

/// All eleven methods and their routes, by a client that knows numbers and names alone,
/// without TLS and without a password, as the original had it.
fn replay(compat: &str) {
    let Some(python) = real::python() else { return };
    let setting = format!("kaas.compat={compat}");
    let selvage = Selvage::up(&[&SIM[..], &["--insecure", "--set", &setting]].concat());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign");
    let mut client = std::process::Command::new(python);
    client.arg(folder.join("kaas.py")).arg(folder.join("kaas_wire.proto"));
    real::must_end_ok(client.arg(selvage.address()).arg(format!("compat={compat}")));
}

#[test]
fn a_client_compiled_from_the_wire_facts_gets_precise_answers() {
    replay("");
}

#[test]
fn a_client_compiled_from_the_wire_facts_gets_the_originals_answers() {
    replay("ims-kaas");
}

#[tokio::test]
async fn clusters_survive_a_kill_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(folder.path(), &SIM);
    let rest = Rest::of(&selvage).await;
    for name in ["a", "b", "c"] {
        rest.json("POST", "/cluster", Some(json!({"name": name}))).await;
    }
    selvage.kill();
    let selvage = Selvage::up_in(folder.path(), &SIM);
    let rest = Rest::of(&selvage).await;
    for name in ["a", "b", "c"] {
        let running = |_: StatusCode, body: &Value| body["cluster"]["status"] == "RUNNING";
        rest.until(&format!("/cluster?name={name}"), running).await;
    }
}

#[tokio::test]
async fn without_machines_the_daemon_serves_and_says_what_is_missing() {
    let selvage = Selvage::up(&["--set", "kaas.provider=agents"]);
    let rest = Rest::of(&selvage).await;
    assert_eq!(rest.json("GET", "/cluster/list", None).await, json!({"ok": true}));
    let (status, text) = rest.send("POST", "/cluster", Some(json!({"name": "c1"}))).await;
    assert_eq!(status, 412, "{text}");
    assert!(text.contains("no machines can be had"), "{text}");
    // By default they are of this host, which needs root and programs to run.
    let selvage = Selvage::up(&[]);
    let rest = Rest::of(&selvage).await;
    let (status, text) = rest.send("POST", "/cluster", Some(json!({"name": "c1"}))).await;
    assert_eq!(status, 412, "{text}");
    let reasons = ["set kaas.artifacts to a folder", "machines on this host need"];
    assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
    assert!(selvage.log().contains("clusters cannot be made: "), "{}", selvage.log());
    let bad = Selvage::up(&[&SIM[..], &["--set", "kaas.compat=ims-kaas"]].concat());
    let rest = Rest::of(&bad).await;
    let (status, text) = rest.send("GET", "/cluster?name=c1", None).await;
    assert_eq!(status, 404);
    assert!(text.contains("CnctCluster.cluster.cnct.sds.samsung.com"), "{text}");
}

#[test]
fn the_command_line_makes_shows_changes_and_deletes_a_cluster() {
    let selvage = Selvage::up(&SIM);
    let cli = Cli::admin_of(&selvage);
    let plan = cli.ok(&["kaas", "create", "demo", "--pool", "web=1", "--dry-run"]);
    assert!(plan.contains("  1. add a control-plane machine with Kubernetes 1.37.1"), "{plan}");
    assert_eq!(cli.ok(&["kaas", "list"]).lines().count(), 1, "nothing was made");

    let create = ["kaas", "create", "demo", "--kubernetes", "1.35.8", "--pool", "web=1", "--wait"];
    let progress = cli.ok(&create);
    assert!(progress.contains(": Ready") && progress.contains("demo is RUNNING"), "{progress}");
    let nodes = cli.ok(&["kaas", "nodes", "demo"]);
    assert!(nodes.contains("control-plane-") && nodes.contains("web-"), "{nodes}");
    assert!(cli.ok(&["kaas", "kubeconfig", "demo"]).contains("current-context"));
    assert_eq!(cli.ok(&["kaas", "upgrade", "demo"]), "1.36.4\n");
    let progress = cli.ok(&["kaas", "scale", "demo", "web=5", "--wait"]);
    assert_eq!(progress.matches(": Ready").count(), 6, "{progress}");
    cli.ok(&["kaas", "scale", "demo", "web=2", "--wait"]);
    cli.ok(&["kaas", "pool", "add", "demo", "gpu=1:gpu", "--label", "tier=fast", "--wait"]);
    let progress = cli.ok(&["kaas", "upgrade", "demo", "1.36.4", "--wait"]);
    assert!(progress.contains("Draining") && progress.contains("demo is RUNNING"), "{progress}");
    let shown = cli.json(&["kaas", "show", "demo", "-o", "json"]);
    assert_eq!((&shown["status"], &shown["version"]), (&json!("RUNNING"), &json!("1.36.4")));
    assert!(cli.ok(&["kaas", "events", "demo"]).contains("asked for an upgrade to 1.36.4"));
    cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    assert_eq!(cli.ok(&["kaas", "list"]).lines().count(), 1);

    let wide = cli.ok(&["status", "-o", "wide"]);
    for name in ["unknown machines", "backups of clusters", "machines of clusters"] {
        assert!(wide.contains(name), "{name} in:\n{wide}");
    }
    let status = cli.json(&["status", "-o", "json"]);
    let kaas = status["parts"].as_array().unwrap().iter().find(|part| part["name"] == "kaas");
    assert_eq!(kaas.unwrap()["state"], "serving", "{status}");

    let refused = cli.run(&["kaas", "create", "Bad", "--control-plane", "2"]);
    assert_ne!(refused.code, 0);
    let text = &refused.stderr;
    assert!(text.contains("name:") && text.contains("control_plane_nodes.count:"), "{text}");
}

#[test]
fn a_cluster_is_made_by_a_file() {
    let selvage = Selvage::up(&SIM);
    let cli = Cli::admin_of(&selvage);
    // As it stands in docs/clusters.md.
    let text = "name: prod\nk8s_version: 1.36.4\n\
                control_plane_nodes: { count: 3, instanceType: standard }\n\
                worker_node_pools:\n  \
                - { name: web, count: 3, labels: [{ name: tier, value: front }] }\n";
    let file = cli.home().join("prod.yaml");
    fs::write(&file, text).unwrap();
    let progress = cli.ok(&["kaas", "create", "-f", file.to_str().unwrap(), "--wait"]);
    assert!(progress.contains("prod is RUNNING"), "{progress}");
    let nodes = cli.ok(&["kaas", "nodes", "prod"]);
    assert_eq!((nodes.matches("control-plane-").count(), nodes.matches("web-").count()), (3, 3));
    let shown = cli.json(&["kaas", "show", "prod", "-o", "json"]);
    let web = shown["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "web");
    assert_eq!(web.unwrap()["labels"], json!({"tier": "front"}), "{shown}");
    assert_eq!(shown["version"], "1.36.4");
    fs::write(&file, text.replace("count: 3, inst", "count: 2, inst")).unwrap();
    let refused = cli.run(&["kaas", "create", "-f", file.to_str().unwrap()]);
    assert!(
        refused.code != 0 && refused.stderr.contains("control_plane_nodes.count"),
        "{refused:?}"
    );
}

/// A command of a user that is still running, and what it prints.
fn begin(cli: &Cli, args: &[&str], kubectl: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut command = selvage_tests::process::command();
    command.args(args).env("HOME", cli.home()).env_remove("XDG_CONFIG_HOME");
    command.env("SELVAGE_KUBECTL", kubectl).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let printed = BufReader::new(child.stdout.take().unwrap());
    (child, printed)
}

fn signal(child: &Child, signal: Signal) {
    nix::sys::signal::kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn a_kubeconfig_for_one_run_is_gone_however_the_run_ends() {
    let selvage = Selvage::up(&SIM);
    let cli = Cli::admin_of(&selvage);
    cli.ok(&["kaas", "create", "demo", "--wait"]);
    let script = cli.home().join("kubectl");
    // Ends with a number of its own when it is asked to.
    let text = "#!/bin/bash\ntrap 'kill $!; exit 7' TERM\nhead -1 $KUBECONFIG\necho $KUBECONFIG\n\
                sleep 1000 >/dev/null 2>&1 &\nwait\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let (mut child, mut printed) = begin(&cli, &["kubectl", "--", "get", "nodes"], &script);
    let mut progress = [String::new(), String::new()];
    for line in &mut progress {
        printed.read_line(line).unwrap();
    }
    let config = Path::new(progress[1].trim());
    assert!(!progress[0].is_empty() && config.is_file(), "{progress:?}");
    // A terminal sends this to kubectl too, which does with it as it likes.
    signal(&child, Signal::SIGINT);
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(!config.exists(), "{} is left", config.display());

    let missing = cli.run_with(&["kubectl", "--", "get", "nodes"], &[("PATH", "/nowhere")], None);
    assert_ne!(missing.code, 0);
    assert!(missing.stderr.contains("SELVAGE_KUBECTL"), "{}", missing.stderr);
}
