//! Clusters that the controller makes for an instance.

use selvage_tests::{Client, Selvage, process::Cli};
use serde_json::json;
use tonic::Code;

use crate::scene::{
    ORIGINAL, apply, assert_nothing_left, assert_shows, call, data, golden, messages, objects,
};

/// The key of an instance in an auto-cluster is rewritten to what the cluster
/// is called in kubernetes.
#[tokio::test]
async fn an_auto_cluster_gets_a_lower_case_name() {
    let selvage = Selvage::up(&ORIGINAL);
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
    let selvage = Selvage::up(&ORIGINAL);
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
    let printed = cli.ok(&[&["appinst", "update"][..], &app, &place, &cluster].concat());
    assert_eq!(printed, "Updated successfully\n", "its app is applied anew");
    let printed = cli.ok(&["unapply", "--yes", "-f", file]);
    assert!(printed.lines().all(|line| line.ends_with(": deleted")), "{printed}");
    assert_nothing_left(&cli);
}
