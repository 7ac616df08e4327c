//! Three control planes whose parts die, whose network is cut and whose plug is pulled.

use std::process::Command;

use sha2::{Digest, Sha256};

use crate::site::{Site, kill};

const COMPONENTS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
    "coredns",
];

/// Writes to the API as soon as it lets us.
fn writes(site: &Site, name: &str) {
    site.until("a write to the API", || {
        site.kubectl(&["create", "configmap", name]).or_else(|error| {
            if error.contains("already exists") { Ok(String::new()) } else { Err(error) }
        })
    });
}

fn nodes_are_ready(site: &Site, expected: &str) {
    let ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
    site.shows(&["get", "nodes", "-o", ready], expected);
}

/// The machine whose etcd leads, as etcd's own metrics say on each machine.
fn leader(site: &Site) -> String {
    site.until("a leader of etcd", || {
        let leads = |(name, first): &(String, i32)| {
            let metrics = Command::new("nsenter")
                .args(["-t", &first.to_string(), "-n", "curl", "-s", "-m", "5"])
                .arg("http://127.0.0.1:2381/metrics")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&metrics.stdout).into_owned();
            text.lines().any(|line| line == "etcd_server_is_leader 1").then(|| name.clone())
        };
        site.machines().iter().find_map(leads).ok_or_else(|| "nobody leads".to_owned())
    })
}

/// Pulls or plugs in the cable of a machine: its end at the host goes down or up.
fn set_link(machine: &str, state: &str) {
    let digest = hex::encode(Sha256::digest(machine));
    let link = format!("slvm{}", &digest[..10]);
    let output = Command::new("ip").args(["link", "set", &link, state]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Each component of one machine dies.
fn survives_the_death_of_components(site: &Site) {
    let (machine, _) = site.machines().remove(0);
    for component in COMPONENTS {
        let old = site.process(&machine, component).expect(component);
        kill(old);
        writes(site, &format!("without-{component}"));
        site.until(component, || match site.process(&machine, component) {
            Some(new) if new != old => Ok(()),
            other => Err(format!("{other:?} after {old}")),
        });
    }
    nodes_are_ready(site, "True True True");
}

/// etcd dies where it leads: another one does.
fn survives_the_death_of_the_leader(site: &Site) {
    kill(site.process(&leader(site), "etcd").unwrap());
    writes(site, "without-the-leader");
    nodes_are_ready(site, "True True True");
}

/// A machine that nobody reaches: the others go on, and it comes back.
fn survives_a_cut_network(site: &Site) {
    let cut = leader(site);
    set_link(&cut, "down");
    writes(site, "without-a-cable");
    let members = site.members("ha");
    let node = &members.iter().find(|[.., at]| *at == cut).unwrap()[0];
    let status = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    site.shows(&["get", "node", node, "-o", status], "Unknown");
    site.until("a cluster that says so", || {
        let shown = site.cli.ok(&["kaas", "show", "ha"]);
        if shown.contains("DEGRADED") { Ok(()) } else { Err(shown) }
    });
    set_link(&cut, "up");
    nodes_are_ready(site, "True True True");
    site.is_running("ha");
}

/// The plug of the machine where etcd leads is pulled, and it comes back.
fn survives_a_cut_of_the_power(site: &Site) {
    let name = leader(site);
    let first = site.machines().into_iter().find(|(machine, _)| *machine == name).unwrap().1;
    kill(first);
    writes(site, "without-power");
    site.until("the machine", || match site.process(&name, "kube-apiserver") {
        Some(_) => Ok(()),
        None => Err(format!("{:?}", site.machines())),
    });
    nodes_are_ready(site, "True True True");
    site.is_running("ha");
}

#[test]
fn three_control_planes_survive_the_loss_of_any_part() {
    let Some(site) = Site::open(3) else { return };
    site.cli.ok(&["kaas", "create", "ha", "--control-plane", "3", "--wait"]);
    survives_the_death_of_components(&site);
    survives_the_death_of_the_leader(&site);
    survives_a_cut_network(&site);
    survives_a_cut_of_the_power(&site);
    let made = site.kubectl(&["get", "configmaps", "-o", "name"]).unwrap();
    assert_eq!(made.matches("configmap/without-").count(), COMPONENTS.len() + 3, "{made}");
    site.cli.ok(&["kaas", "delete", "ha", "--yes", "--wait"]);
    site.close();
}
