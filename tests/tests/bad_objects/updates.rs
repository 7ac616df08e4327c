//! Updates: masks, and values that a merged object cannot have.

use serde_json::{Value, json};
use tonic::Code::{
    self, FailedPrecondition, InvalidArgument, NotFound, Ok as Fine, ResourceExhausted,
    Unimplemented,
};

use super::*;

/// What there is, as a request that changes the leaves of a mask.
fn changed(mut object: Value, name: &str, mask: &[&str], at: &str, value: Value) -> Value {
    object["key"]["name"] = name.into();
    object["fields"] = json!(mask);
    with(&object, at, value)
}

#[tokio::test]
async fn updates() {
    let (_selvage, client) = up().await;
    let developer = |mask: &[&str]| changed(developer(), "AcmeAppCo", mask, "/email", "x@y".into());
    let cloudlet = |mask: &[&str], at: &str, value: Value| {
        changed(cloudlet(), "tmus-cloud-1", mask, at, value)
    };
    let app =
        |mask: &[&str], at: &str, value: Value| changed(app(), "someapplication1", mask, at, value);
    let less = "Cannot specify less than one dynamic IP unless Ip Support Static is specified";
    let mut rows = vec![
        row("UpdateDeveloper", developer(&["99"]), InvalidArgument, "99"),
        row("UpdateDeveloper", developer(&["6", "x"]), InvalidArgument, "x"),
        row("UpdateDeveloper", developer(&["6.1"]), InvalidArgument, "6.1"),
        row("UpdateDeveloper", developer(&["1"]), InvalidArgument, "1"),
        row("UpdateDeveloper", developer(&[""]), InvalidArgument, "Developer has no field(s)"),
        row("UpdateDeveloper", developer(&["-6"]), InvalidArgument, "-6"),
        row(
            "UpdateFlavor",
            with(&flavor(), "/fields", json!(["3"])),
            Unimplemented,
            "Update flavor not supported",
        ),
        row(
            "UpdateCluster",
            with(&cluster(), "/fields", json!(["3.1"])),
            Unimplemented,
            "Update cluster not supported",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["8"], "/num_dynamic_ips", 0.into()),
            InvalidArgument,
            less,
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["8"], "/num_dynamic_ips", (-5).into()),
            InvalidArgument,
            less,
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["5.1"], "/location/latitude", 0.into()),
            InvalidArgument,
            "Invalid latitude value of 0",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["5.2"], "/location/longitude", 0.into()),
            InvalidArgument,
            "Invalid longitude value of 0",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["5.1"], "/location/latitude", 90.5.into()),
            InvalidArgument,
            "Invalid latitude value",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["5"], "/location/longitude", 180.5.into()),
            InvalidArgument,
            "Invalid longitude value",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["6"], "/ip_support", 99.into()),
            InvalidArgument,
            "invalid IpSupport",
        ),
        row(
            "UpdateCloudlet",
            cloudlet(&["6"], "/ip_support", 1.into()),
            Unimplemented,
            "Only dynamic IPs are supported currently",
        ),
        row("UpdateCloudlet", cloudlet(&["3"], "/access_uri", "x".into()), InvalidArgument, "3"),
        row(
            "UpdateApp",
            app(&["7"], "/access_ports", "tcp:99999".into()),
            InvalidArgument,
            "Port 99999 out of range",
        ),
        row(
            "UpdateApp",
            app(&["5"], "/image_type", 9.into()),
            InvalidArgument,
            "invalid ImageType",
        ),
        row("UpdateApp", app(&["20"], "/del_opt", 9.into()), InvalidArgument, "invalid DelOpt"),
        row(
            "UpdateApp",
            app(&["9.1"], "/default_flavor/name", "x1.none".into()),
            NotFound,
            "Specified flavor not found",
        ),
        row(
            "UpdateApp",
            app(&["15"], "/deployment", "vm".into()),
            InvalidArgument,
            "deployment is not valid for image type",
        ),
        row(
            "UpdateApp",
            app(&["16"], "/deployment_manifest", bomb().into()),
            InvalidArgument,
            "invalid deployment manifest",
        ),
        row(
            "UpdateApp",
            app(&["14"], "/annotations", "x".repeat(20_000).into()),
            InvalidArgument,
            "annotations is too large",
        ),
        row(
            "UpdateApp",
            app(&["18"], "/android_package_name", "net.example.one".into()),
            InvalidArgument,
            "AndroidPackageName: net.example.one in use by another app",
        ),
        row(
            "UpdateApp",
            app(&["7"], "/access_ports", "tcp:81".into()),
            FailedPrecondition,
            "access_ports",
        ),
        row("UpdateApp", app(&["3"], "/command", "x".into()), InvalidArgument, "3"),
    ];
    rows.extend(instance_updates());
    for (method, object) in [
        ("UpdateDeveloper", with(&developer(&["6"]), "/key/name", "none")),
        (
            "UpdateOperator",
            with(&with(&operator(), "/key/name", "none"), "/fields", json!(["2.1"])),
        ),
        ("UpdateCloudlet", with(&cloudlet(&["4"], "/access_uri", "x".into()), "/key/name", "none")),
        ("UpdateApp", with(&app(&["13"], "/command", "x".into()), "/key/name", "none")),
    ] {
        rows.push(row(method, object, NotFound, "Key not found"));
    }
    // Nothing is named, so nothing changes.
    rows.push(row("UpdateDeveloper", developer(&[]), Fine, ""));
    rows.push(row("UpdateCloudlet", cloudlet(&[], "/access_uri", "x".into()), Fine, ""));
    rows.push(row("UpdateApp", app(&[], "/command", "x".into()), Fine, ""));
    refuse(&client, rows).await;
}

fn instance_updates() -> Vec<Row> {
    let cluster = with(&cluster_inst(), "/key/cluster_key/name", "SmallCluster");
    let cluster = |mask: &[&str], nodes: u32| {
        with(&with(&cluster, "/fields", json!(mask)), "/num_nodes", nodes)
    };
    let instance = with(&app_inst(), IN_CLUSTER, "SmallCluster");
    let instance = |mask: &[&str]| with(&instance, "/fields", json!(mask));
    let fixed = "some specified fields cannot be modified";
    let place = "Cannot specify cloudlet location fields as they are inherited";
    let mut rows = vec![
        row("UpdateClusterInst", cluster(&[], 2), InvalidArgument, "nothing specified to update"),
        row(
            "UpdateClusterInst",
            cluster(&["2.1.1", "6"], 2),
            InvalidArgument,
            "nothing specified to update",
        ),
        row(
            "UpdateClusterInst",
            cluster(&["14"], 0),
            Unimplemented,
            "Zero NumNodes not supported yet",
        ),
        row("UpdateClusterInst", cluster(&["14"], u32::MAX), InvalidArgument, "num_nodes"),
        row(
            "UpdateClusterInst",
            cluster(&["14"], 5000),
            ResourceExhausted,
            "Not enough RAM available",
        ),
        row("UpdateClusterInst", cluster(&["99"], 2), InvalidArgument, "99"),
        row("UpdateAppInst", instance(&["3.1"]), InvalidArgument, place),
        row("UpdateAppInst", instance(&["3"]), InvalidArgument, place),
        row("UpdateAppInst", instance(&["99"]), InvalidArgument, "99"),
    ];
    for field in ["3.1", "4", "5", "7", "8", "9", "10", "11", "13", "15"] {
        rows.push(row("UpdateClusterInst", cluster(&[field, "14"], 2), InvalidArgument, fixed));
    }
    for field in ["4", "6", "9", "12.1", "14", "15", "17", "21", "22"] {
        rows.push(row("UpdateAppInst", instance(&[field]), InvalidArgument, "cannot be modified"));
    }
    let missing = with(&cluster(&["14"], 2), "/key/cluster_key/name", "none");
    rows.push(row("UpdateClusterInst", missing, NotFound, "Key not found"));
    rows
}
