//! A cluster that sleeps costs nothing but its disk, and wakes with all it had.

use crate::site::Site;

const PROGRAMS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
];

fn running(site: &Site) -> Vec<String> {
    let machines = site.machines();
    let all = machines.iter().flat_map(|(machine, _)| PROGRAMS.map(|program| (machine, program)));
    let found = all.filter(|(machine, program)| site.process(machine, program).is_some());
    found.map(|(machine, program)| format!("{machine}/{program}")).collect()
}

/// Stops the cluster `demo` of two machines with two pods of `web`, and starts it again.
pub(crate) fn hibernates_and_wakes(site: &mut Site) {
    site.kubectl(&["create", "configmap", "kept"]).unwrap();
    assert_eq!(site.pods("sleep").len(), 2, "the pods are seen from here");
    site.cli.ok(&["kaas", "hibernate", "demo", "--wait"]);
    assert_eq!(running(site), [] as [String; 0]);
    assert_eq!(site.pods("sleep"), [] as [i32; 0], "a pod runs on");
    let shown = site.cli.run(&["kaas", "show", "demo"]);
    let said = format!("{}{}", shown.stdout, shown.stderr);
    assert!(said.contains("Hibernated: `selvage kaas wake demo`"), "{said}");
    for refused in [
        vec!["kaas", "scale", "demo", "web=2"],
        vec!["kaas", "backup", "demo"],
        vec!["kaas", "rotate-certificates", "demo"],
    ] {
        let refused = site.cli.run(&refused);
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains("wake it first"), "{}", refused.stderr);
    }
    // Whoever looks after it forgets nothing, and wakes nobody.
    site.without_controller(|_| {});
    let nodes = site.cli.ok(&["kaas", "nodes", "demo"]);
    assert_eq!(nodes.matches("Hibernated").count(), 2, "{nodes}");
    assert_eq!(running(site), [] as [String; 0]);

    site.cli.ok(&["kaas", "wake", "demo", "--wait"]);
    site.shows(&["get", "configmap", "kept", "-o", "jsonpath={.metadata.name}"], "kept");
    site.until("the pods", || match site.pods("sleep").len() {
        2 => Ok(()),
        other => Err(format!("{other} of them")),
    });
}
