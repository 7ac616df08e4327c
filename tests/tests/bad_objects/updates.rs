//! Updates: masks, and values that a merged object cannot have.

use serde_json::{Value, json};
use tonic::Code::{
    FailedPrecondition, InvalidArgument, NotFound, Ok as Fine, ResourceExhausted, Unimplemented,
};

use super::*;

/// An object as a request that changes the leaves of a mask.
fn changed(mut object: Value, name: &str, mask: &[&str], at: &str, value: Value) -> Value {
    object["key"]["name"] = name.into();
    object["fields"] = json!(mask);
    with(&object, at, value)
}

fn developer_with(mask: &[&str]) -> Value {
    changed(developer(), "AcmeAppCo", mask, "/email", "x@y".into())
}

fn cloudlet_with(mask: &[&str], at: &str, value: Value) -> Value {
    changed(cloudlet(), "tmus-cloud-1", mask, at, value)
}

fn app_with(mask: &[&str], at: &str, value: Value) -> Value {
    changed(app(), "someapplication1", mask, at, value)
}

#[tokio::test]
async fn masks_that_name_nothing() {
    let (_selvage, client) = up().await;
    let mut rows = Vec::new();
    for mask in ["99", "x", "6.1", "1", "", "-6", "06", "6.", "4294967302"] {
        let text = format!("Developer has no field(s) {mask} to be updated");
        rows.push(row("UpdateDeveloper", developer_with(&["6", mask]), InvalidArgument, text));
    }
    let unknown = |mask: &str, value: Value| (json!([mask]), value);
    for (method, (mask, object)) in [
        ("UpdateOperator", unknown("3", with(&operator(), "/key/name", "tmus"))),
        ("UpdateCloudlet", unknown("3", cloudlet_with(&[], "/access_uri", "x".into()))),
        ("UpdateApp", unknown("3", app_with(&[], "/command", "x".into()))),
        ("InjectCloudletInfo", unknown("11", with(&info(), "/key/name", "tmus-cloud-1"))),
    ] {
        let text = "has no field(s)";
        rows.push(row(method, with(&object, "/fields", mask), InvalidArgument, text));
    }
    // Nothing is named, so nothing changes.
    rows.push(row("UpdateDeveloper", developer_with(&[]), Fine, ""));
    rows.push(row("UpdateCloudlet", cloudlet_with(&[], "/access_uri", "x".into()), Fine, ""));
    rows.push(row("UpdateApp", app_with(&[], "/command", "x".into()), Fine, ""));
    let operator = with(&operator(), "/fields", json!(["2.1"]));
    for (method, object) in [
        ("UpdateDeveloper", with(&developer_with(&["6"]), "/key/name", "none")),
        ("UpdateFlavor", with(&flavor(), "/fields", json!(["3"]))),
        ("UpdateCluster", with(&cluster(), "/fields", json!(["3.1"]))),
        ("UpdateOperator", with(&operator, "/key/name", "none")),
        ("UpdateCloudlet", changed(cloudlet(), "none", &["4"], "/access_uri", "x".into())),
        ("UpdateApp", changed(app(), "none", &["13"], "/command", "x".into())),
    ] {
        rows.push(row(method, object, NotFound, "Key not found"));
    }
    refuse(&client, rows).await;
}

#[tokio::test]
async fn cloudlets_cannot_become_so() {
    let (_selvage, client) = up().await;
    let less = "Cannot specify less than one dynamic IP unless Ip Support Static is specified";
    let only = "Only dynamic IPs are supported currently";
    let rows = [
        ("8", "/num_dynamic_ips", json!(0), InvalidArgument, less),
        ("8", "/num_dynamic_ips", json!(-5), InvalidArgument, less),
        ("5.1", "/location/latitude", json!(0), InvalidArgument, "Invalid latitude value of 0"),
        ("5.2", "/location/longitude", json!(0), InvalidArgument, "Invalid longitude value of 0"),
        ("5.1", "/location/latitude", json!(90.5), InvalidArgument, "Invalid latitude value"),
        ("5.1", "/location/latitude", json!("NaN"), InvalidArgument, "Invalid latitude value"),
        ("5", "/location/longitude", json!(180.5), InvalidArgument, "Invalid longitude value"),
        ("6", "/ip_support", json!(99), InvalidArgument, "invalid IpSupport: "),
        ("6", "/ip_support", json!("IP_SUPPORT_STATIC"), Unimplemented, only),
    ];
    let rows = rows.map(|(mask, at, value, code, text)| {
        row("UpdateCloudlet", cloudlet_with(&[mask], at, value), code, text)
    });
    refuse(&client, rows.into()).await;
}

#[tokio::test]
async fn apps_cannot_become_so() {
    let (_selvage, client) = up().await;
    let pair = "deployment is not valid for image type";
    let taken = "AndroidPackageName: net.example.one in use by another app";
    let large = "annotations is too large";
    let rows = [
        ("7", "/access_ports", json!("tcp:99999"), InvalidArgument, "Port 99999 out of range"),
        ("7", "/access_ports", json!("tcp:81"), FailedPrecondition, "access_ports"),
        ("5", "/image_type", json!(9), InvalidArgument, "invalid ImageType: "),
        ("20", "/del_opt", json!(9), InvalidArgument, "invalid DelOpt: "),
        ("9.1", "/default_flavor/name", json!("none"), NotFound, "Specified flavor not found"),
        ("15", "/deployment", json!("vm"), InvalidArgument, pair),
        (
            "16",
            "/deployment_manifest",
            json!(bomb()),
            InvalidArgument,
            "invalid deployment manifest",
        ),
        ("14", "/annotations", json!("x".repeat(20_000)), InvalidArgument, large),
        ("18", "/android_package_name", json!("net.example.one"), InvalidArgument, taken),
        (
            "17",
            "/deployment_generator",
            json!("x"),
            InvalidArgument,
            "invalid deployment generator x",
        ),
        ("12", "/auth_public_key", json!("x"), InvalidArgument, "failed to parse public key"),
    ];
    let rows = rows.map(|(mask, at, value, code, text)| {
        row("UpdateApp", app_with(&[mask], at, value), code, text)
    });
    refuse(&client, rows.into()).await;
}

#[tokio::test]
async fn instances_cannot_become_so() {
    let (_selvage, client) = up().await;
    let cluster = with(&cluster_inst(), "/key/cluster_key/name", "SmallCluster");
    let cluster = |mask: &[&str], nodes: u32| {
        with(&with(&cluster, "/fields", json!(mask)), "/num_nodes", nodes)
    };
    let mut rows = Vec::new();
    let mut bad = |mask: &[&str], nodes: u32, code, text: &str| {
        rows.push(row("UpdateClusterInst", cluster(mask, nodes), code, text));
    };
    bad(&[], 2, InvalidArgument, "nothing specified to update");
    bad(&["2.1.1", "6"], 2, InvalidArgument, "nothing specified to update");
    bad(&["14"], 0, Unimplemented, "Zero NumNodes not supported yet");
    bad(&["14"], u32::MAX, InvalidArgument, "num_nodes");
    bad(&["14"], 5000, ResourceExhausted, "Not enough RAM available");
    bad(&["99"], 2, InvalidArgument, "ClusterInst has no field(s) 99 to be updated");
    for field in ["3.1", "4", "5", "7", "8", "9", "10", "11", "13", "15"] {
        bad(&[field, "14"], 2, InvalidArgument, "some specified fields cannot be modified");
    }
    let missing = with(&cluster(&["14"], 2), "/key/cluster_key/name", "none");
    rows.push(row("UpdateClusterInst", missing, NotFound, "Key not found"));

    let instance = with(&app_inst(), IN_CLUSTER, "SmallCluster");
    let mut bad = |mask: &str, text: &str| {
        let spoiled = with(&instance, "/fields", json!([mask]));
        rows.push(row("UpdateAppInst", spoiled, InvalidArgument, text));
    };
    let inherited = "Cannot specify cloudlet location fields as they are inherited from \
                     specified cloudlet";
    bad("3.1", inherited);
    bad("3", inherited);
    bad("99", "AppInst has no field(s) 99 to be updated");
    for field in ["4", "6", "9", "12.1", "14", "15", "17", "21", "22"] {
        bad(field, "cannot be modified");
    }
    refuse(&client, rows).await;
}
