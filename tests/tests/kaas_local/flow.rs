//! The whole flow on machines of this host: a developer asks for a cluster and
//! an app, the crm has the cluster made, the app runs in it and is found.

use std::{fs, path::Path, process::Command};

use selvage_tests::{client::http, process::wait_for, real};
use serde_json::{Value, json};

use crate::site::{Site, WEB, kill};

const PORT: u16 = 18_080;
const CLUSTER: [&str; 8] =
    ["--developer", "acme", "--operator", "op", "--cloudlet", "edge", "--cluster", "demo"];
const APP: [&str; 6] = ["--developer", "acme", "--appname", "web", "--appvers", "1"];

fn settings(folder: &Path) -> Vec<String> {
    let site = folder.join("site.yaml");
    let text = format!("cloudlet_kind: kubernetes\nkaas: {{version: {}}}\n", real::KUBERNETES);
    fs::write(&site, text).unwrap();
    vec![
        "crm.cloudlet=op/edge".to_owned(),
        format!("crm.site={}", site.display()),
        "crm.addresses=127.0.0.1".to_owned(),
        "crm.resync_interval=1s".to_owned(),
    ]
}

/// Manifest of the app, whose image comes from a file and not from a registry.
fn web() -> String {
    format!(
        r#"apiVersion: v1
kind: Service
metadata: {{ name: web-tcp, labels: {{ run: web }} }}
spec:
  type: LoadBalancer
  ports: [{{ name: tcp{PORT}, protocol: TCP, port: {PORT}, targetPort: {PORT} }}]
  selector: {{ run: web }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: web-deployment }}
spec:
  replicas: 1
  selector: {{ matchLabels: {{ run: web }} }}
  template:
    metadata: {{ labels: {{ run: web }} }}
    spec:
      containers:
      - name: web
        image: "{WEB}"
        imagePullPolicy: IfNotPresent
        command: [/bin/httpd, -f, -p, "{PORT}", -h, /www]
        ports: [{{ containerPort: {PORT}, protocol: TCP }}]
"#
    )
}

fn furnish(site: &Site) {
    let cli = &site.cli;
    cli.ok(&["flavor", "create", "--name", "s", "--ram", "64", "--vcpus", "1", "--disk", "1"]);
    cli.ok(&["operator", "create", "--name", "op"]);
    cli.ok(&["developer", "create", "--name", "acme"]);
    let place = ["--latitude", "1", "--longitude", "1", "--numdynamicips", "9"];
    cli.ok(&[&["cloudlet", "create", "--operator", "op", "--name", "edge"][..], &place].concat());
    let port = format!("tcp:{PORT}");
    let runs = ["--imagepath", WEB, "--imagetype", "docker", "--deployment", "kubernetes"];
    let runs = [&runs[..], &["--accessports", &port, "--defaultflavor", "s"]].concat();
    let manifest = site.folder().join("web.yaml");
    fs::write(&manifest, web()).unwrap();
    let manifest = format!("@{}", manifest.display());
    cli.ok(&[&["app", "create"][..], &APP, &runs, &["--deploymentmanifest", &manifest]].concat());
    wait_for("a cloudlet with flavors", || {
        let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
        (shown.contains("CLOUDLET_STATE_READY") && shown.contains("vcpus")).then_some(())
    });
}

fn page() -> Option<String> {
    let address = format!("http://127.0.0.1:{PORT}/");
    let output = Command::new("curl").args(["-s", "-m", "5", "-f", &address]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Answer of a match engine to a device that asks for the app.
async fn found(site: &Site) -> Value {
    let selvage = site.selvage.as_ref().unwrap();
    let ask = async |path: &str, body: Value| -> Value {
        let url = format!("{}/v1/{path}", selvage.endpoint());
        let reply = http(selvage).post(url).body(body.to_string()).send().await.unwrap();
        serde_json::from_str(&reply.text().await.unwrap()).unwrap()
    };
    let names = json!({"dev_name": "acme", "app_name": "web", "app_vers": "1"});
    let cookie = ask("registerclient", names).await["session_cookie"].clone();
    let at = json!({"latitude": 1, "longitude": 1});
    let question = json!({"session_cookie": cookie, "carrier_name": "op", "gps_location": at});
    ask("findcloudlet", question).await
}

fn state(site: &Site, kind: &str) -> String {
    site.cli.ok(&[kind, "show", "-o", "json"])
}

/// Name of the one cluster that kaas has, if it has one.
fn cluster(site: &Site) -> Option<String> {
    let listed = site.cli.ok(&["kaas", "list"]);
    listed.split_whitespace().find(|word| word.starts_with("slv-")).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_inst_becomes_a_cluster_with_an_app_that_is_found() {
    let machines = ["kaas.provider=local", "kaas.local.machines=2"];
    let Some(mut site) = Site::with_files(&machines, settings) else { return };
    furnish(&site);
    // Everything is killed while the cluster is made, and goes on by itself.
    let made = [&["clusterinst", "create"][..], &CLUSTER, &["--flavor", "s", "--nummasters", "1"]];
    let made = [&made.concat()[..], &["--numnodes", "1", "--deployment", "kubernetes"]].concat();
    let selvage = i32::try_from(site.selvage.as_ref().unwrap().pid()).unwrap();
    let printed = std::thread::scope(|scope| {
        // Whoever waits for it loses the connection.
        let waits = scope.spawn(|| site.cli.run(&made));
        wait_for("machines", || (!site.machines().is_empty()).then_some(()));
        wait_for("a word about it", || {
            state(&site, "clusterinst").contains("machines are ready; waiting for").then_some(())
        });
        kill(selvage);
        waits.join().unwrap()
    });
    assert!(format!("{printed:?}").contains("control-plane machines are ready"), "{printed:?}");
    site.without_controller(|_| {});
    site.until("a cluster that is ready", || match state(&site, "clusterinst") {
        shown if shown.contains("\"READY\"") || shown.contains("\"Ready\"") => Ok(()),
        shown => Err(format!("{shown} {}", site.cli.ok(&["kaas", "list"]))),
    });
    let name = cluster(&site).expect("a cluster of kaas");
    site.is_running(&name);
    assert_eq!(site.machines().len(), 2);

    let on = ["--operator", "op", "--cloudlet", "edge", "--cluster", "demo"];
    site.cli.ok(&[&["appinst", "create"][..], &APP, &on].concat());
    assert_eq!(wait_for("the page", page), "hello");
    let reply = found(&site).await;
    assert_eq!(reply["status"], "FIND_FOUND", "{reply}");
    // The tenant's namespace is guarded as in any cluster.
    let enforced = "jsonpath={.items[*].metadata.labels.pod-security\\.kubernetes\\.io/enforce}";
    site.shows(&["get", "namespaces", "-o", enforced], "baseline");

    site.without_controller(|_| {});
    assert_eq!(wait_for("the page after a kill", page), "hello");

    site.cli.ok(&[&["appinst", "delete", "--yes"][..], &APP, &on].concat());
    wait_for("no page", || page().is_none().then_some(()));
    site.cli.ok(&[&["clusterinst", "delete", "--yes"][..], &CLUSTER].concat());
    assert_eq!(cluster(&site), None);
    site.close();
}
