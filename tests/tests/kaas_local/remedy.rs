//! A machine that is dead is replaced.

use std::fs;

use serde_json::{Value, json};

use crate::site::{Site, kill};

/// Ends a machine so that no agent comes back with it.
fn destroy(site: &Site, machine: &str) {
    let path = site.machine_folder(machine).join("machine.json");
    let mut written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    written["machine"]["command"] = json!(["/bin/sleep", "100000"]);
    fs::write(&path, written.to_string()).unwrap();
    let first = site.machines().into_iter().find(|(name, _)| name == machine).unwrap().1;
    kill(first);
}

#[test]
fn a_dead_worker_is_replaced_by_another_machine() {
    let settings = ["kaas.provider=local", "kaas.local.machines=2", "kaas.remediate_after=5s"];
    let Some(site) = Site::with(&settings) else { return };
    site.cli.ok(&["kaas", "create", "demo", "--pool", "web=1", "--wait"]);
    let worker = || site.members("demo").into_iter().find(|[_, pool, ..]| pool == "web");
    let [dead, _, _, machine] = worker().unwrap();
    destroy(&site, &machine);
    site.until("another worker", || match worker() {
        Some([name, ..]) if name != dead => Ok(()),
        _ => Err(site.cli.ok(&["kaas", "nodes", "demo"])),
    });
    site.is_running("demo");
    let events = site.cli.ok(&["kaas", "events", "demo"]);
    assert!(events.contains(&format!("{dead} is dead and is replaced")), "{events}");
    let [name, ..] = worker().unwrap();
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    site.shows(&["get", "node", &name, "-o", ready], "True");
    let gone = site.kubectl(&["get", "node", &dead]).unwrap_err();
    assert!(gone.contains("not found"), "{gone}");
    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    site.close();
}
