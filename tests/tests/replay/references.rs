//! Resources that cloudlets have given away, by the original's numbers.

use selvage_tests::{Client, Selvage, process::Cli};
use serde_json::{Value, json};
use tonic::Code;

use crate::scene::{ORIGINAL, apply, assert_nothing_left, call, messages, objects, unapply};

/// The smoke order's numbers.
#[test]
fn references_count_what_is_there_and_nothing_after() {
    let selvage = Selvage::up(&ORIGINAL);
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
    let selvage = Selvage::up(&ORIGINAL);
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
    let selvage = Selvage::up(&ORIGINAL);
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
