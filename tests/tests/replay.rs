//! The original's end-to-end scenarios, as far as they need neither agent nor
//! match engine: each cloudlet is spoken for, and instances ignore the crm.
//!
//! Data sets and what they show are in `edge/`, in the form of the original.
//! Of what is shown everything is compared but the time of creation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use selvage_api::json;
use selvage_tests::{Client, Selvage, process::Cli};
use serde_json::{Value, json};
use tonic::Code;

/// In the order in which the original shows them, and what follows from them.
const KINDS: [&str; 10] = [
    "flavor",
    "cluster",
    "clusterinst",
    "operator",
    "developer",
    "cloudlet",
    "app",
    "appinst",
    "cloudletrefs",
    "clusterrefs",
];

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("edge").join(name)
}

fn golden(scenario: &str) -> String {
    std::fs::read_to_string(data(&format!("{scenario}.show.yaml"))).unwrap()
}

fn apply(cli: &Cli, file: &str) -> String {
    cli.ok(&["apply", "-f", data(file).to_str().unwrap()])
}

fn unapply(cli: &Cli, file: &str) -> String {
    cli.ok(&["unapply", "--yes", "-f", data(file).to_str().unwrap()])
}

/// Everything that is shown, as the original prints it.
fn shown(cli: &Cli) -> String {
    let mut all = String::new();
    for kind in KINDS {
        let text = cli.ok(&[kind, "show", "-o", "edgectl"]);
        if !text.trim().is_empty() {
            all += &format!("{kind}:\n{}", without_creation_time(&text));
        }
    }
    all
}

fn without_creation_time(text: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line == "  createdat:" || inside && line.starts_with("    ");
        if !inside {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

fn objects(cli: &Cli, kind: &str) -> Vec<Value> {
    let text = cli.ok(&[kind, "show", "-o", "json"]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Line by line, so that a failure tells what differs and not all there is.
fn assert_shows(cli: &Cli, expected: &str) {
    let shown = shown(cli);
    for (number, (is, should)) in shown.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, should, "line {} of\n{shown}", number + 1);
    }
    assert_eq!(shown.lines().count(), expected.lines().count(), "{shown}");
}

fn assert_nothing_left(cli: &Cli) {
    assert_eq!(shown(cli), "");
    assert!(objects(cli, "cloudletinfo").is_empty());
    let operations = cli.ok(&["operation", "list", "--active", "-o", "json"]);
    assert!(!operations.contains("RUNNING"), "{operations}");
}

/// A request as JSON; the replies likewise.
async fn call(client: &Client, path: &str, request: &Value) -> (Vec<Value>, Code, String) {
    use prost::Message;

    let method = selvage_api::method(path).unwrap();
    let options = json::Options::edge();
    let text = request.to_string();
    let message = json::from_json(&method.input, text.as_bytes(), options.strict()).unwrap();
    let (replies, code, text) = client.raw(path, &message.encode_to_vec()).await;
    let decode = |reply: &bytes::Bytes| {
        let reply = prost_reflect::DynamicMessage::decode(method.output.clone(), reply.as_ref());
        serde_json::from_str(&json::to_json(&reply.unwrap(), options).unwrap()).unwrap()
    };
    (replies.iter().map(decode).collect(), code, text)
}

fn messages(replies: &[Value]) -> Vec<&str> {
    replies.iter().map(|reply| reply["message"].as_str().unwrap()).collect()
}

#[test]
fn add_delete_twice() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let expected = golden("add_delete");
    for round in 1..=2 {
        assert_nothing_left(&cli);
        let told = apply(&cli, "add_delete.yaml");
        assert!(told.lines().all(|line| line.ends_with(": created")), "round {round}: {told}");
        assert_shows(&cli, &expected);
        let told = apply(&cli, "add_delete.yaml");
        assert!(told.lines().all(|line| line.ends_with(": unchanged")), "round {round}: {told}");
        assert_shows(&cli, &expected);

        let told = unapply(&cli, "add_delete.yaml");
        assert!(told.lines().all(|line| line.ends_with(": deleted")), "round {round}: {told}");
    }
    assert_nothing_left(&cli);
}

#[tokio::test]
async fn an_instance_is_deleted_and_made_again() {
    let selvage = Selvage::up(&[]);
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
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let told = apply(&cli, "add_delete_2apps.yaml");
    let ending = |with: &str| told.lines().filter(|line| line.ends_with(with)).count();
    assert_eq!((ending(": created"), ending(": unchanged")), (10, 6), "{told}");
    assert_shows(&cli, &golden("add_delete_2apps"));
    let clusters = objects(&cli, "clusterinst");
    assert_eq!(clusters.len(), 2);
    for cluster in clusters {
        assert_eq!(cluster["auto"], true);
        assert_eq!(cluster["liveness"], "LIVENESS_DYNAMIC");
        assert_eq!(cluster["ip_access"], "IP_ACCESS_SHARED");
        assert_eq!((&cluster["num_masters"], &cluster["num_nodes"]), (&json!(1), &json!(1)));
    }
    let told = unapply(&cli, "add_delete_2apps.yaml");
    let ending = |with: &str| told.lines().filter(|line| line.ends_with(with)).count();
    assert_eq!((ending(": deleted"), ending(": absent")), (10, 6), "{told}");
    assert_nothing_left(&cli);
}

#[test]
fn ten_cloudlets_with_twenty_auto_clusters() {
    let selvage = Selvage::up(&[]);
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

/// Where an instance of the ten cloudlets is, and by which ports.
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
fn crminfo_is_as_it_was_to_the_letter() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "crminfo.yaml");
    assert_shows(&cli, &golden("crminfo"));
    let infos = objects(&cli, "cloudletinfo");
    assert_eq!(infos.len(), 2);
    assert!(infos.iter().all(|info| info["state"] == "CLOUDLET_STATE_READY"), "{infos:?}");
}

/// The smoke order's numbers.
#[test]
fn references_count_what_is_there_and_nothing_after() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "crminfo.yaml");
    let show = ["cloudletrefs", "show", "--name", "tmus-cloud-1", "-o", "json"];
    let key = json!({"operator_key": {"name": "tmus"}, "name": "tmus-cloud-1"});
    assert_eq!(
        cli.json(&show),
        json!({
            "key": key, "clusters": [{"name": "autoclustersomeapplication1"}],
            "used_ram": "4096", "used_vcores": "4", "used_disk": "4",
            "root_lb_ports": {"80": 1, "10002": 2}
        })
    );
    let app = ["--developer", "AcmeAppCo", "--appname", "someapplication1", "--appvers", "1.0"];
    let place = ["--operator", "tmus", "--cloudlet", "tmus-cloud-1"];
    let cluster = ["--cluster", "autoclustersomeapplication1", "--crmoverride", "IgnoreCrm"];
    cli.ok(&[&["appinst", "delete", "--yes"][..], &app, &place, &cluster].concat());
    assert_eq!(cli.json(&show), json!({"key": key}));
    assert_eq!(objects(&cli, "clusterinst").len(), 1, "only that of the other cloudlet");
}

#[test]
fn instances_follow_a_cloudlet_that_moves() {
    let directory = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "crminfo.yaml");
    let told = apply(&cli, "move_cloudlet1.yaml");
    assert_eq!(told.trim(), "cloudlet tmus/tmus-cloud-1: updated");
    let moved = golden("crminfo")
        .replace("latitude: 31\n    longitude: -91", "latitude: 40\n    longitude: -99")
        .replacen("numdynamicips: 254", "numdynamicips: 100", 1);
    assert_eq!(moved.matches("latitude: 40").count(), 2, "the cloudlet and its instance");
    assert_shows(&cli, &moved);

    selvage.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(selvage.wait().success());
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    assert_shows(&Cli::admin_of(&selvage), &moved);

    selvage.kill();
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    assert_shows(&Cli::admin_of(&selvage), &moved);

    // Back again, and the power goes at once.
    apply(&Cli::admin_of(&selvage), "crminfo.yaml");
    selvage.kill();
    let selvage = Selvage::up_in(directory.path(), &[]);
    assert_shows(&Cli::admin_of(&selvage), &golden("crminfo"));
}

fn cluster_on(cloudlet: &str, cluster: &str, flavor: &str) -> Value {
    json!({
        "key": {
            "cluster_key": {"name": cluster},
            "cloudlet_key": {"operator_key": {"name": "golden"}, "name": cloudlet},
            "developer": "AcmeAppCo"
        },
        "flavor": {"name": flavor}, "num_masters": 1, "num_nodes": 1,
        "ip_access": "IP_ACCESS_SHARED", "crm_override": "IGNORE_CRM"
    })
}

#[tokio::test]
async fn the_closest_flavor_is_taken() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let client = Client::admin(&selvage).await;
    apply(&cli, "golden_refs.yaml");
    for (cloudlet, matches) in [
        ("c0", [Some("tiny2"), Some("medium"), Some("medium"), None]),
        ("c1", [Some("small2"), Some("small1"), None, None]),
        ("c2", [Some("medium3"), Some("medium3"), Some("medium2"), None]),
        ("c3", [Some("large"), Some("large"), Some("large"), None]),
    ] {
        for (flavor, expected) in ["tiny", "small", "medium", "large"].into_iter().zip(matches) {
            let name = format!("x1.{flavor}");
            let request = cluster_on(cloudlet, flavor, &name);
            let (replies, code, text) =
                call(&client, "/edgeproto.ClusterInstApi/CreateClusterInst", &request).await;
            let filter = json!({"key": request["key"]});
            let (shown, ..) =
                call(&client, "/edgeproto.ClusterInstApi/ShowClusterInst", &filter).await;
            if let Some(expected) = expected {
                assert_eq!((code, messages(&replies)), (Code::Ok, vec![]), "{cloudlet} {text}");
                assert_eq!(shown[0]["node_flavor"], expected, "{cloudlet} {flavor}");
            } else {
                let says = format!(
                    "no suitable platform flavor found for {name}, please try a smaller flavor"
                );
                assert_eq!((code, text), (Code::ResourceExhausted, says));
                assert!(shown.is_empty());
            }
        }
    }
}

/// Memory, processors, disk, dynamic addresses, ports.
fn golden_refs(cli: &Cli) -> Vec<(String, u64, u64, u64, u64, Value)> {
    let row = |refs: &Value| {
        let number = |field: &str| match &refs[field] {
            Value::String(text) => text.parse().unwrap(),
            other => other.as_u64().unwrap_or(0),
        };
        (
            refs["key"]["name"].as_str().unwrap().to_owned(),
            number("used_ram"),
            number("used_vcores"),
            number("used_disk"),
            number("used_dynamic_ips"),
            refs.get("root_lb_ports").cloned().unwrap_or_else(|| json!({})),
        )
    };
    objects(cli, "cloudletrefs").iter().map(row).collect()
}

#[test]
fn the_golden_sums_of_references() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    apply(&cli, "golden_refs.yaml");
    assert!(golden_refs(&cli).is_empty(), "made with the first instance");
    apply(&cli, "golden_clusters.yaml");
    let with_clusters = [
        ("c0".into(), 11264, 11, 11, 2, json!({})),
        ("c1".into(), 11264, 11, 11, 0, json!({})),
        ("c2".into(), 23552, 23, 23, 1, json!({})),
        ("c3".into(), 16384, 16, 16, 0, json!({})),
    ];
    assert_eq!(golden_refs(&cli), with_clusters);
    apply(&cli, "golden_instances.yaml");
    assert_eq!(
        golden_refs(&cli),
        [
            ("c0".into(), 11264, 11, 11, 2, json!({})),
            ("c1".into(), 13312, 13, 13, 0, json!({"80": 1, "10002": 3})),
            ("c2".into(), 31744, 31, 31, 2, json!({"2024": 2, "10000": 1, "11111": 2})),
            ("c3".into(), 16384, 16, 16, 0, json!({})),
        ]
    );
    unapply(&cli, "golden_instances.yaml");
    assert_eq!(golden_refs(&cli), with_clusters);
    unapply(&cli, "golden_clusters.yaml");
    let nothing = |name: &str| (name.to_owned(), 0, 0, 0, 0, json!({}));
    assert_eq!(golden_refs(&cli), ["c0", "c1", "c2", "c3"].map(nothing));
    unapply(&cli, "golden_refs.yaml");
    assert_nothing_left(&cli);
}

/// The key of an instance in an auto-cluster is rewritten to what the cluster
/// is called in kubernetes.
#[tokio::test]
async fn an_auto_cluster_gets_a_lower_case_name() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let client = Client::admin(&selvage).await;
    apply(&cli, "golden_refs.yaml");
    let instance = |cluster: &str| {
        json!({
            "key": {
                "app_key": {
                    "developer_key": {"name": "AcmeAppCo"}, "name": "shared", "version": "1.0"
                },
                "cluster_inst_key": {
                    "cluster_key": {"name": cluster},
                    "cloudlet_key": {"operator_key": {"name": "golden"}, "name": "c2"},
                    "developer": "AcmeAppCo"
                }
            },
            "crm_override": "IGNORE_CRM"
        })
    };
    let create = "/edgeproto.AppInstApi/CreateAppInst";
    let (replies, code, text) = call(&client, create, &instance("autoclusterShared")).await;
    assert_eq!((code, messages(&replies)), (Code::Ok, vec!["Created successfully"]), "{text}");
    let shown = objects(&cli, "appinst").remove(0);
    assert_eq!(shown["key"]["cluster_inst_key"]["cluster_key"]["name"], "autoclustershared");
    assert_eq!(objects(&cli, "clusterinst")[0]["key"]["cluster_key"]["name"], "autoclustershared");
    let (_, code, text) = call(&client, create, &instance("autoclusterShared")).await;
    assert_eq!((code, text.as_str()), (Code::AlreadyExists, "Key already exists"));
    let delete = "/edgeproto.AppInstApi/DeleteAppInst";
    let (_, code, text) = call(&client, delete, &instance("autoclustershared")).await;
    assert_eq!(code, Code::Ok, "{text}");
    assert!(objects(&cli, "clusterinst").is_empty());
}

/// Whoever wrote the file need not know how the server spells the clusters
/// that it makes itself.
#[test]
fn an_instance_of_an_auto_cluster_goes_with_its_file_however_it_is_spelled() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let data = std::fs::read_to_string(data("crminfo.yaml")).unwrap();
    let mixed = data.replace("autoclustersomeapplication1", "autoclusterSomeApplication1");
    assert_ne!(mixed, data);
    let file = cli.home().join("mixed.yaml");
    std::fs::write(&file, mixed).unwrap();
    let file = file.to_str().unwrap();
    cli.ok(&["apply", "-f", file]);
    assert_shows(&cli, &golden("crminfo"));
    let again = cli.ok(&["apply", "-f", file]);
    assert!(again.lines().all(|line| line.ends_with(": unchanged")), "{again}");
    let place = ["--operator", "tmus", "--cloudlet", "tmus-cloud-1"];
    let app = ["--developer", "AcmeAppCo", "--appname", "someapplication1", "--appvers", "1.0"];
    let cluster = ["--cluster", "autoclusterSomeApplication1", "--crmoverride", "IgnoreCrm"];
    let told = cli.ok(&[&["appinst", "update"][..], &app, &place, &cluster].concat());
    assert_eq!(told, "Updated successfully\n", "its app is applied anew");
    let told = cli.ok(&["unapply", "--yes", "-f", file]);
    assert!(told.lines().all(|line| line.ends_with(": deleted")), "{told}");
    assert_nothing_left(&cli);
}
