//! Three control planes: one less, and back.

use crate::site::{Site, kill};

#[test]
fn three_control_planes_go_on_without_one() {
    let Some(site) = Site::open(3) else { return };
    site.cli.ok(&["kaas", "create", "ha", "--control-plane", "3", "--wait"]);
    let machines = site.machines();
    assert_eq!(machines.len(), 3);
    // The plug of one after the other is pulled; each comes back.
    for (index, (name, first)) in machines.iter().enumerate() {
        kill(*first);
        let made = format!("without-{index}");
        site.until("the API without one", || {
            site.kubectl(&["create", "configmap", &made]).or_else(|error| {
                if error.contains("already exists") { Ok(made.clone()) } else { Err(error) }
            })
        });
        site.until("the machine", || match site.process(name, "kube-apiserver") {
            Some(_) => Ok(()),
            None => Err(format!("{:?}", site.machines())),
        });
        let ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
        site.shows(&["get", "nodes", "-o", ready], "True True True");
        site.is_running("ha");
    }
    site.cli.ok(&["kaas", "delete", "ha", "--yes", "--wait"]);
    site.close();
}
