//! Other certificate authorities, while the cluster is used.

use std::{net::SocketAddr, path::Path};

use base64::Engine;
use serde_json::Value;

use crate::{
    load::{Load, ask},
    site::{ROUND, Site},
    upgrade::{PORT, workload},
};

/// A kubeconfig as it is given out now.
fn kubeconfig(site: &Site, path: &Path) -> String {
    site.cli.ok(&["kaas", "kubeconfig", "demo", "--file", path.to_str().unwrap()]);
    std::fs::read_to_string(path).unwrap()
}

/// Certificates of authorities that a kubeconfig trusts.
fn trusted(config: &str) -> Vec<String> {
    let config: Value = serde_json::from_str(config).unwrap();
    let data = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    let pem = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    let pem = String::from_utf8(pem).unwrap();
    pem.split_inclusive("-----END CERTIFICATE-----")
        .map(|one| one.trim().to_owned())
        .filter(|one| !one.is_empty())
        .collect()
}

#[test]
fn authorities_are_replaced_without_a_failed_request() {
    let Some(mut site) = Site::open(3) else { return };
    site.cli.ok(&["kaas", "create", "demo", "--pool", "web=2", "--wait"]);
    site.apply(&workload(1));
    let ready = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];
    site.shows(&ready, "2");
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let before = trusted(&kubeconfig(&site, &old));
    assert_eq!(before.len(), 1);

    let members = site.members("demo");
    let worker = members.iter().find(|[_, pool, ..]| pool == "web").unwrap();
    let address = SocketAddr::new(worker[2].parse().unwrap(), PORT);
    site.until("the service", || ask(address).map_err(|error| error.to_string()));
    let load = Load::start(address);
    site.cli.ok(&["kaas", "rotate-certificates", "demo"]);
    // Somewhere in the middle, with both trusted.
    site.until_within("both authorities", ROUND, || {
        let known = trusted(&kubeconfig(&site, &new));
        if known.len() == 2 { Ok(()) } else { Err(format!("{known:?}")) }
    });
    site.without_controller(|_| {});
    site.until_within("the end of the rotation", ROUND, || {
        let shown = site.cli.ok(&["kaas", "show", "demo"]);
        if shown.contains("RUNNING") { Ok(()) } else { Err(shown) }
    });
    let (good, bad) = load.end();
    assert!(bad.is_empty() && good > 100, "{good} were answered, and not: {bad:#?}");

    let after = trusted(&kubeconfig(&site, &new));
    assert_eq!(after.len(), 1);
    assert_ne!(after, before);
    site.kubectl_by(&new, &["get", "nodes"]).unwrap();
    let refused = site.kubectl_by(&old, &["get", "nodes"]).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    // Everything in the cluster still knows everything else.
    let pod = site.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).unwrap();
    let pod = pod.lines().next().unwrap();
    site.shows(&["exec", pod, "--", "echo", "through the kubelet"], "through the kubelet");
    site.kubectl(&["rollout", "restart", "deployment/web"]).unwrap();
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=170s"]).unwrap();
    let events = site.cli.ok(&["kaas", "events", "demo"]);
    assert!(events.contains("the old certificate authorities are gone"), "{events}");
    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    site.close();
}
