//! From nothing to a pod, through a drain, the death of everything and a long sleep,
//! back to nothing.

use crate::{
    hibernate::hibernates_and_wakes,
    kubectl::serves_people_and_pods,
    site::{IMAGE, Site, agent, kill},
};

/// Two pods of which a budget keeps as many as it says.
fn workload(keeps: u32) -> String {
    format!(
        r#"apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: web }}
spec:
  minAvailable: {keeps}
  selector: {{ matchLabels: {{ app: web }} }}
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
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: "{IMAGE}"
        command: [sleep, "100000"]
        resources: {{ requests: {{ memory: 16Mi }}, limits: {{ memory: 64Mi, cpu: 500m }} }}
"#
    )
}

const READY: [&str; 5] = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];
const PODS: [&str; 7] = [
    "get",
    "pods",
    "-l",
    "app=web",
    "--sort-by=.metadata.name",
    "-o",
    "jsonpath={.items[*].status.containerStatuses[0].containerID}",
];

fn nodes(site: &Site) -> usize {
    site.kubectl(&["get", "nodes", "-o", "name"]).unwrap().lines().count()
}

/// The pool shrinks as soon as the budget lets a pod go.
fn drains_within_the_budget(site: &Site) {
    site.apply(&workload(2));
    site.shows(&READY, "2");
    let spread = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"];
    let on: Vec<String> = site.kubectl(&spread).unwrap().split(' ').map(str::to_owned).collect();
    assert_ne!(on[0], on[1], "the scheduler spreads pods over nodes");
    site.cli.ok(&["kaas", "scale", "demo", "web=1"]);
    site.until("a drain that waits", || {
        let shown = site.cli.ok(&["kaas", "nodes", "demo"]);
        if shown.contains("disruption budget") { Ok(()) } else { Err(shown) }
    });
    assert_eq!(nodes(site), 3, "a node left before its pods");
    site.apply(&workload(1));
    site.cli.ok(&["kaas", "scale", "demo", "web=1", "--wait"]);
    assert_eq!(nodes(site), 2);
    site.shows(&READY, "2");
}

/// Kills whatever runs a cluster; pods notice nothing.
fn survives(site: &mut Site) {
    let before = site.kubectl(&PODS).unwrap();
    let config = site.cli.home().join("kubeconfig");
    let file = config.to_str().unwrap();
    site.cli.ok(&["kaas", "kubeconfig", "demo", "--file", file]);
    let keeps = tempfile::tempdir().unwrap();
    let kept = keeps.path().join("kubeconfig");
    std::fs::copy(&config, &kept).unwrap();
    site.without_controller(|site| {
        site.kubectl_by(&kept, &["create", "configmap", "meanwhile"]).unwrap();
    });
    site.is_running("demo");
    site.shows(&["get", "configmap", "meanwhile", "-o", "jsonpath={.metadata.name}"], "meanwhile");
    let machines = site.machines();
    for (name, first) in &machines {
        let old = agent(*first).expect(name);
        kill(old);
        site.until("another agent", || match agent(*first) {
            Some(new) if new != old => Ok(()),
            other => Err(format!("{other:?} after {old}")),
        });
        for component in ["etcd", "kube-apiserver", "kubelet", "kube-proxy"] {
            let Some(old) = site.process(name, component) else { continue };
            kill(old);
            site.until(component, || match site.process(name, component) {
                Some(new) if new != old => Ok(()),
                other => Err(format!("{other:?} after {old}")),
            });
        }
    }
    site.shows(&READY, "2");
    assert_eq!(site.kubectl(&PODS).unwrap(), before, "pods noticed something");
    // As by a cut of the power of all machines.
    machines.iter().for_each(|(_, first)| kill(*first));
    site.until("machines that are back", || match site.machines() {
        now if now.iter().zip(&machines).all(|(now, old)| now.1 != old.1) => Ok(()),
        now => Err(format!("{now:?}")),
    });
    site.until("other containers", || match site.kubectl(&PODS)? {
        same if same == before => Err(same),
        _ => Ok(()),
    });
    site.shows(&READY, "2");
    site.is_running("demo");
}

#[test]
fn a_cluster_runs_pods_drains_survives_sleeps_and_leaves_nothing() {
    let Some(mut site) = Site::open(3) else { return };
    let printed = site.cli.ok(&["kaas", "create", "demo", "--pool", "web=2", "--wait"]);
    assert!(printed.contains("demo is RUNNING"), "{printed}");
    site.has_machines();
    assert_eq!(nodes(&site), 3);
    site.apply(
        &format!("{{apiVersion: v1, kind: Pod, metadata: {{name: first}}, spec: {{restartPolicy: Never, containers: [{{name: first, image: '{IMAGE}', command: [echo, hello]}}]}}}}"),
    );
    site.shows(&["logs", "first"], "hello");
    serves_people_and_pods(&site);
    drains_within_the_budget(&site);
    survives(&mut site);
    hibernates_and_wakes(&mut site);
    site.shows(&READY, "2");
    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    site.close();
}
