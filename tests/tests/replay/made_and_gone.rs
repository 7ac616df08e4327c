//! Objects that are made from a data set, and gone with it.

use selvage_tests::{Client, Selvage, process::Cli};
use serde_json::{Value, json};
use tonic::Code;

use crate::scene::{
    ORIGINAL, apply, assert_nothing_left, assert_shows, call, golden, messages, objects, shown,
    unapply,
};

#[test]
fn add_delete_twice() {
    let selvage = Selvage::up(&ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    let expected = golden("add_delete");
    for round in 1..=2 {
        assert_nothing_left(&cli);
        let printed = apply(&cli, "add_delete.yaml");
        assert!(
            printed.lines().all(|line| line.ends_with(": created")),
            "round {round}: {printed}"
        );
        assert_shows(&cli, &expected);
        let printed = apply(&cli, "add_delete.yaml");
        assert!(
            printed.lines().all(|line| line.ends_with(": unchanged")),
            "round {round}: {printed}"
        );
        assert_shows(&cli, &expected);

        let printed = unapply(&cli, "add_delete.yaml");
        assert!(
            printed.lines().all(|line| line.ends_with(": deleted")),
            "round {round}: {printed}"
        );
    }
    assert_nothing_left(&cli);
}

#[tokio::test]
async fn an_instance_is_deleted_and_made_again() {
    let selvage = Selvage::up(&ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    let client = Client::admin(&selvage).await;
    apply(&cli, "add_delete.yaml");
    let first = json!({
        "key": {
            "app_key": {
                "developer_key": {"name": "AcmeAppCo"}, "name": "someapplication1", "version": "1.0"
            },
            "cluster_inst_key": {
                "cluster_key": {"name": "SmallCluster"},
                "cloudlet_key": {"operator_key": {"name": "tmus"}, "name": "tmus-cloud-1"},
                "developer": "AcmeAppCo"
            }
        },
        "crm_override": "IGNORE_CRM"
    });
    let (replies, code, text) = call(&client, "/edgeproto.AppInstApi/DeleteAppInst", &first).await;
    assert_eq!(code, Code::Ok, "{text} {replies:?}");
    let refs = cli.json(&["cloudletrefs", "show", "--name", "tmus-cloud-1", "-o", "json"]);
    assert_eq!(
        refs["root_lb_ports"],
        json!({"9090": 1, "10000": 2, "10002": 1}),
        "its ports are free, those of others are not"
    );

    let (replies, code, text) = call(&client, "/edgeproto.AppInstApi/CreateAppInst", &first).await;
    assert_eq!(code, Code::Ok, "{text}");
    assert_eq!(messages(&replies), ["Created successfully"]);
    assert_shows_same_but_for_the_order_of_cluster_apps(&cli, &golden("add_delete"));
    unapply(&cli, "add_delete.yaml");
    assert_nothing_left(&cli);
}

/// The apps of a cluster are listed in the order in which they came.
fn assert_shows_same_but_for_the_order_of_cluster_apps(cli: &Cli, expected: &str) {
    let sorted = |text: &str| {
        let (objects, refs) = text.split_once("clusterrefs:\n").unwrap();
        let mut refs: Vec<_> = refs.lines().map(str::to_owned).collect();
        refs.sort();
        (objects.to_owned(), refs)
    };
    assert_eq!(sorted(&shown(cli)), sorted(expected));
}

#[test]
fn objects_named_twice_are_made_once() {
    let selvage = Selvage::up(&ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    let printed = apply(&cli, "add_delete_2apps.yaml");
    let ending = |with: &str| printed.lines().filter(|line| line.ends_with(with)).count();
    assert_eq!((ending(": created"), ending(": unchanged")), (10, 6), "{printed}");
    assert_shows(&cli, &golden("add_delete_2apps"));
    let clusters = objects(&cli, "clusterinst");
    assert_eq!(clusters.len(), 2);
    for cluster in clusters {
        assert_eq!(cluster["auto"], true);
        assert_eq!(cluster["liveness"], "LIVENESS_DYNAMIC");
        assert_eq!(cluster["ip_access"], "IP_ACCESS_SHARED");
        assert_eq!((&cluster["num_masters"], &cluster["num_nodes"]), (&json!(1), &json!(1)));
    }
    let printed = unapply(&cli, "add_delete_2apps.yaml");
    let ending = |with: &str| printed.lines().filter(|line| line.ends_with(with)).count();
    assert_eq!((ending(": deleted"), ending(": absent")), (10, 6), "{printed}");
    assert_nothing_left(&cli);
}

#[test]
fn ten_cloudlets_with_twenty_auto_clusters() {
    let selvage = Selvage::up(&ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "appdata_10.yaml");
    assert_eq!(objects(&cli, "cloudlet").len(), 10);

    let clusters = objects(&cli, "clusterinst");
    assert_eq!(clusters.len(), 20);
    for cluster in &clusters {
        let operator = cluster["key"]["cloudlet_key"]["operator_key"]["name"].as_str().unwrap();
        let access = if operator == "tmus" { "IP_ACCESS_SHARED" } else { "IP_ACCESS_DEDICATED" };
        assert_eq!(cluster["ip_access"], access, "{cluster}");
        assert_eq!((&cluster["auto"], &cluster["state"]), (&json!(true), &json!("READY")));
        assert_eq!(cluster["liveness"], "LIVENESS_DYNAMIC");
        assert_eq!(cluster["node_flavor"], "flavor1");
        assert_eq!(cluster.get("allocated_ip"), None, "addresses per service are not ours");
    }

    let instances = objects(&cli, "appinst");
    assert_eq!(instances.len(), 23);
    for instance in &instances {
        assert_ten(instance);
    }
    let own = instances.iter().filter(|inst| operator_of(inst) == "developer").count();
    assert_eq!(own, 3);

    let refs = objects(&cli, "cloudletrefs");
    assert_eq!(refs.len(), 10, "none for the default cloudlet");
    for refs in &refs {
        let ports = match refs["key"]["operator_key"]["name"].as_str().unwrap() {
            "tmus" => Some(json!({"80": 1, "2024": 2, "10000": 1, "10002": 2})),
            _ => None,
        };
        assert_eq!(refs.get("root_lb_ports"), ports.as_ref(), "{refs}");
        let used = ["used_ram", "used_vcores", "used_disk"].map(|field| refs[field].clone());
        assert_eq!(used, ["6144", "6", "6"], "{refs}");
        assert_eq!(refs.get("used_dynamic_ips"), None, "{refs}");
    }
    unapply(&cli, "appdata_10.yaml");
    assert_nothing_left(&cli);
}

fn operator_of(instance: &Value) -> &str {
    let cloudlet = &instance["key"]["cluster_inst_key"]["cloudlet_key"];
    cloudlet["operator_key"]["name"].as_str().unwrap()
}

/// Checks address and ports of an instance of the ten cloudlets.
fn assert_ten(instance: &Value) {
    let app = instance["key"]["app_key"]["name"].as_str().unwrap();
    let developer = instance["key"]["app_key"]["developer_key"]["name"].as_str().unwrap();
    let cluster_key = &instance["key"]["cluster_inst_key"];
    let cluster = cluster_key["cluster_key"]["name"].as_str().unwrap();
    let cloudlet = cluster_key["cloudlet_key"]["name"].as_str().unwrap();
    let operator = operator_of(instance);
    let uri = match operator {
        "developer" => format!("{app}.{developer}.com").to_lowercase(),
        "tmus" => format!("{cloudlet}.tmus.mobiledgex.net"),
        _ => format!("acmeappco{app}10.{cluster}.{cloudlet}.{operator}.mobiledgex.net"),
    };
    assert_eq!(instance["uri"], uri);
    assert_eq!(instance["state"], "READY");
    assert_eq!(instance["liveness"], "LIVENESS_STATIC");
    let ports = instance["mapped_ports"].as_array().unwrap().iter();
    let public: Vec<_> = ports.map(|port| port["public_port"].as_u64().unwrap_or(0)).collect();
    let expected: &[u64] = match (operator, app) {
        ("developer", "SamsungEnablingLayer") => &[0],
        ("developer", "someapplication1") => &[0, 0, 0],
        ("developer", _) => &[0, 0],
        (_, "someapplication1") => &[80, 443, 10002],
        ("tmus", _) => &[10000, 2024],
        (_, _) => &[80, 2024],
    };
    assert_eq!(public, expected, "{instance}");
}

#[test]
fn instances_follow_a_cloudlet_that_moves() {
    let directory = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(directory.path(), &ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "crminfo.yaml");
    let printed = apply(&cli, "move_cloudlet1.yaml");
    assert_eq!(printed.trim(), "cloudlet tmus/tmus-cloud-1: updated");
    let moved = golden("crminfo")
        .replace("latitude: 31\n    longitude: -91", "latitude: 40\n    longitude: -99")
        .replacen("numdynamicips: 254", "numdynamicips: 100", 1);
    assert_eq!(moved.matches("latitude: 40").count(), 2, "the cloudlet and its instance");
    assert_shows(&cli, &moved);

    selvage.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(selvage.wait().success());
    let mut selvage = Selvage::up_in(directory.path(), &ORIGINAL);
    assert_shows(&Cli::admin_of(&selvage), &moved);

    selvage.kill();
    let mut selvage = Selvage::up_in(directory.path(), &ORIGINAL);
    assert_shows(&Cli::admin_of(&selvage), &moved);

    // Back again, and the power goes at once.
    apply(&Cli::admin_of(&selvage), "crminfo.yaml");
    selvage.kill();
    let selvage = Selvage::up_in(directory.path(), &ORIGINAL);
    assert_shows(&Cli::admin_of(&selvage), &golden("crminfo"));
}

#[test]
fn crminfo_is_as_it_was_to_the_letter() {
    let selvage = Selvage::up(&ORIGINAL);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "crminfo.yaml");
    assert_shows(&cli, &golden("crminfo"));
    let infos = objects(&cli, "cloudletinfo");
    assert_eq!(infos.len(), 2);
    assert!(infos.iter().all(|info| info["state"] == "CLOUDLET_STATE_READY"), "{infos:?}");
}
