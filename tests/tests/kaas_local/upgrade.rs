//! One minor forward, while somebody uses the cluster.

use std::{collections::BTreeSet, net::SocketAddr};

use selvage_tests::real;
use serde_json::Value;

use crate::{
    load::{Load, ask},
    site::{IMAGE, ROUND, Site},
    skew::{Watch, version},
};

pub(crate) const PORT: u16 = 30080;

/// A service with two replicas of which a budget keeps as many as it says.
pub(crate) fn workload(keeps: u32) -> String {
    format!(
        r#"apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: web }}
spec:
  minAvailable: {keeps}
  selector: {{ matchLabels: {{ app: web }} }}
---
apiVersion: v1
kind: Service
metadata: {{ name: web }}
spec:
  type: NodePort
  selector: {{ app: web }}
  ports: [{{ port: 80, targetPort: 8080, nodePort: {PORT} }}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: web }}
spec:
  replicas: 2
  selector: {{ matchLabels: {{ app: web }} }}
  template:
    metadata: {{ labels: {{ app: web }} }}
    spec:
      terminationGracePeriodSeconds: 40
      containers:
      - name: web
        image: "{IMAGE}"
        command: [sh, -c, "echo hello > /www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {{ httpGet: {{ path: /, port: 8080 }}, periodSeconds: 1 }}
        # Until no proxy leads here any more.
        lifecycle: {{ preStop: {{ sleep: {{ seconds: 15 }} }} }}
"#
    )
}

/// Refused while no pod may go, and taken back before it began.
fn is_safe_to_begin(site: &Site) {
    let next = real::KUBERNETES_NEXT;
    let refused = site.cli.run(&["kaas", "upgrade", "demo", next]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("default/web lets no pod go"), "{}", refused.stderr);
    site.apply(&workload(1));
    site.cli.ok(&["kaas", "pause", "demo"]);
    site.until("an upgrade that may begin", || {
        let asked = site.cli.run(&["kaas", "upgrade", "demo", next]);
        if asked.code == 0 { Ok(()) } else { Err(asked.stderr) }
    });
    site.cli.ok(&["kaas", "upgrade", "demo", "--abort"]);
    let shown = site.cli.json(&["kaas", "show", "demo", "-o", "json"]);
    assert_eq!(shown["version"], real::KUBERNETES);
}

/// Minor of a version such as `v1.36.4`.
fn minor(version: &str) -> u32 {
    version.trim().split('.').nth(1).and_then(|minor| minor.parse().ok()).expect(version)
}

/// Versions of the API server and of all kubelets at one moment; none while the API
/// server is being replaced.
fn running(site: &Site) -> Option<(u32, Vec<u32>)> {
    let api = || {
        let text = site.kubectl(&["get", "--raw", "/version"]).ok()?;
        let version: Value = serde_json::from_str(&text).ok()?;
        Some(minor(version["gitVersion"].as_str()?))
    };
    let before = api()?;
    let kubelets = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
    let kubelets = site.kubectl(&["get", "nodes", "-o", kubelets]).ok()?;
    let kubelets = kubelets.split_whitespace().map(minor).collect();
    (api()? == before).then_some((before, kubelets))
}

/// Looks at the versions that run until all are the new one; how many combinations
/// were seen. No kubelet is ever ahead of the API server.
fn stays_within_the_skew(site: &Site, next: &str) -> usize {
    let mut seen = BTreeSet::new();
    site.until_within("the new version", ROUND, || {
        let Some((api, mut kubelets)) = running(site) else { return Err("no API".into()) };
        kubelets.sort_unstable();
        assert!(kubelets.iter().all(|kubelet| *kubelet <= api), "{kubelets:?} with API {api}");
        let done = kubelets.iter().all(|kubelet| *kubelet == minor(next));
        seen.insert((api, kubelets));
        if done {
            Ok(())
        } else {
            Err(format!("{seen:?} {}", site.cli.ok(&["kaas", "nodes", "demo"])))
        }
    });
    seen.len()
}

/// Versions that one upgrade reaches, as the cluster says.
fn reachable(site: &Site) -> String {
    let said = site.cli.run(&["kaas", "upgrade", "demo"]);
    assert_eq!(said.code, 0, "{said:?}");
    said.stdout + &said.stderr
}

/// Waits until a machine of the pool is between two versions.
fn moves(site: &Site, pool: &str) {
    site.until_within("a machine between two versions", ROUND, || {
        let shown = site.cli.ok(&["kaas", "nodes", "demo"]);
        let moving = |line: &str| {
            line.contains(pool) && ["Upgrading", "Draining"].iter().any(|p| line.contains(p))
        };
        if shown.lines().any(moving) { Ok(()) } else { Err(shown) }
    });
}

/// The control plane has begun: there is a snapshot, and no way back but that.
fn cannot_go_back(site: &Site) {
    let backups = site.cli.ok(&["kaas", "backups", "demo"]);
    let before = format!("before the upgrade to {}", real::KUBERNETES_NEXT);
    assert!(backups.contains(&before), "{backups}");
    site.cli.ok(&["kaas", "pause", "demo"]);
    let refused = site.cli.run(&["kaas", "upgrade", "demo", "--abort"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    site.cli.ok(&["kaas", "resume", "demo"]);
}

#[test]
fn an_upgrade_goes_one_minor_forward_under_load() {
    if real::kubernetes_upgrade().is_none() {
        return;
    }
    let Some(mut site) = Site::open(3) else { return };
    let (old, next) = (real::KUBERNETES, real::KUBERNETES_NEXT);
    site.cli.ok(&["kaas", "create", "demo", "--kubernetes", old, "--pool", "web=2", "--wait"]);
    site.apply(&workload(2));
    let ready = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];
    site.shows(&ready, "2");
    assert_eq!(reachable(&site).trim(), next);
    is_safe_to_begin(&site);

    let members = site.members("demo");
    let plane = members.iter().find(|[_, pool, ..]| pool.is_empty()).unwrap();
    let address = SocketAddr::new(plane[2].parse().unwrap(), PORT);
    site.until("the service", || ask(address).map_err(|error| error.to_string()));
    let (load, watch) = (Load::start(address), Watch::start(&plane[3]));
    site.cli.ok(&["kaas", "upgrade", "demo", next]);
    site.cli.ok(&["kaas", "resume", "demo"]);
    // The controller dies while the control plane is between two versions, and again
    // while a worker is.
    moves(&site, "control-plane");
    cannot_go_back(&site);
    site.without_controller(|_| {});
    moves(&site, "web");
    site.without_controller(|_| {});
    let combinations = stays_within_the_skew(&site, next);
    assert!(combinations >= 2, "one node after the other: {combinations}");
    site.is_running("demo");
    let (good, bad) = load.end();
    assert!(bad.is_empty() && good > 100, "{good} were answered, and not: {bad:#?}");
    let (seen, wrong) = watch.end();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let both = format!("kube-controller-manager {old}, kube-apiserver {old}");
    assert!(seen.contains(&both), "{seen:#?}");
    assert!(seen.contains(&both.replace(old, next)), "{seen:#?}");

    let kubelets = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
    site.shows(&["get", "nodes", "-o", kubelets], &vec![format!("v{next}"); 3].join(" "));
    assert_eq!(version(&plane[3], "etcd").as_deref(), Some("3.7.0"));
    assert!(reachable(&site).contains("no version that demo can go to"), "{}", reachable(&site));
    site.shows(&ready, "2");
    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    site.close();
}
