//! Developers, operators, flavors, clusters, cloudlets.

use serde_json::{Value, json};
use tonic::Code::{self, AlreadyExists, InvalidArgument, NotFound, Unimplemented};

use super::*;

#[tokio::test]
async fn developers_operators_flavors_and_clusters() {
    let (_selvage, client) = up().await;
    let mut rows = names("CreateDeveloper", &developer(), "/key/name", "Invalid developer name");
    rows.extend(names("CreateOperator", &operator(), "/key/name", "Invalid operator name"));
    rows.extend(names("CreateFlavor", &flavor(), "/key/name", "Invalid flavor name"));
    rows.extend(names("CreateCluster", &cluster(), "/key/name", "Invalid cluster name"));
    for name in ["a_b", "a b", "a&b", "a,b", "a!b"] {
        let spoiled = with(&cluster(), "/key/name", name);
        rows.push(row("CreateCluster", spoiled, InvalidArgument, "Invalid cluster name"));
    }
    for (method, words) in [
        ("CreateDeveloper", "Invalid developer name"),
        ("CreateOperator", "Invalid operator name"),
        ("CreateFlavor", "Invalid flavor name"),
        ("CreateCluster", "Invalid cluster name"),
    ] {
        rows.push(row(method, json!({}), InvalidArgument, words));
    }
    rows.extend([
        row(
            "CreateOperator",
            with(&operator(), "/key/name", "developer"),
            InvalidArgument,
            "Cannot create operator with name = developer",
        ),
        row("CreateFlavor", with(&flavor(), "/ram", 0), InvalidArgument, "Ram cannot be 0"),
        row("CreateFlavor", with(&flavor(), "/vcpus", 0), InvalidArgument, "Vcpus cannot be 0"),
        row("CreateFlavor", with(&flavor(), "/disk", 0), InvalidArgument, "Disk cannot be 0"),
        row(
            "CreateCluster",
            with(&cluster(), "/key/name", "autoclusterx"),
            InvalidArgument,
            "Cluster name prefix \"autocluster\" is reserved",
        ),
        row(
            "CreateCluster",
            with(&cluster(), "/default_flavor/name", "x1.none"),
            NotFound,
            "default flavor x1.none not found",
        ),
    ]);
    refuse(&client, rows).await;
}

#[tokio::test]
async fn cloudlets() {
    let (_selvage, client) = up().await;
    let good = cloudlet();
    let mut rows =
        names("CreateCloudlet", &good, "/key/operator_key/name", "Invalid operator name");
    rows.extend(names("CreateCloudlet", &good, "/key/name", "Invalid cloudlet name"));
    rows.extend(enums("CreateCloudlet", &good, "/ip_support", "IpSupport"));
    let mut bad = |at: &str, value: Value, code: Code, text: &str| {
        rows.push(row("CreateCloudlet", with(&good, at, value), code, text));
    };
    bad("/key/name", "n".repeat(64).into(), InvalidArgument, "Invalid cloudlet name");
    bad("/key/operator_key/name", "n".repeat(64).into(), InvalidArgument, "Invalid operator name");
    bad("/key/name", "edge_".into(), InvalidArgument, "Invalid cloudlet name");
    for count in [0, -1, i32::MIN] {
        let text = "Must specify at least one dynamic public IP available";
        bad("/num_dynamic_ips", count.into(), InvalidArgument, text);
    }
    let missing = "location is missing; 0,0 is not a valid location";
    bad("/location", json!({}), InvalidArgument, missing);
    bad("/location", json!({"latitude": 0, "longitude": 0}), InvalidArgument, missing);
    for latitude in [json!(90.1), json!(-90.1), json!(1e308), json!("NaN"), json!("Infinity")] {
        bad("/location/latitude", latitude, InvalidArgument, "Invalid latitude value");
    }
    for longitude in [json!(180.1), json!(-180.1), json!("-Infinity"), json!("NaN")] {
        bad("/location/longitude", longitude, InvalidArgument, "Invalid longitude value");
    }
    let only_dynamic = "Only dynamic IPs are supported currently";
    bad("/ip_support", "IP_SUPPORT_STATIC".into(), Unimplemented, only_dynamic);
    let fixed = with(&good, "/ip_support", "IP_SUPPORT_STATIC");
    for ips in [
        "10.0.0",
        "10.0.0.1/33",
        "host.example.net",
        "10.0.0.9-10.0.0.5",
        "10.0.0.1;10.0.0.2",
        " ",
        ",",
        "10.0.0.1,",
        "10.0.0.1,,10.0.0.2",
        "::/0",
        "0.0.0.0/0",
        "0.0.0.0",
        "224.0.0.1",
    ] {
        let spoiled = with(&fixed, "/static_ips", ips);
        rows.push(row("CreateCloudlet", spoiled, InvalidArgument, "Invalid static IPs: "));
    }
    // The host name it would have is another cloudlet's.
    for twin in ["TMUS-cloud-1", "tmus_cloud-1", "tmus-cloud-1!"] {
        let text = "gives the host name tmus-cloud-1.tmus, which another Cloudlet has";
        rows.push(row("CreateCloudlet", with(&good, "/key/name", twin), AlreadyExists, text));
    }
    let key = json!({"operator_key": {"name": "developer"}, "name": "default"});
    let text = "Cannot create cloudlet developer/default: it is always there";
    rows.push(row("CreateCloudlet", with(&good, "/key", key), InvalidArgument, text));
    refuse(&client, rows).await;
}

#[tokio::test]
async fn what_agents_say_of_cloudlets() {
    let (_selvage, client) = up().await;
    let at = "/key/operator_key/name";
    let mut rows = names("InjectCloudletInfo", &info(), at, "Invalid operator name");
    rows.extend(names("InjectCloudletInfo", &info(), "/key/name", "Invalid cloudlet name"));
    rows.extend(enums("InjectCloudletInfo", &info(), "/state", "State"));
    let unknown = with(&info(), "/fields", json!(["99"]));
    rows.push(row("InjectCloudletInfo", unknown, InvalidArgument, "99"));
    refuse(&client, rows).await;
}

/// Too large for what it is, though the message would go through.
#[tokio::test]
async fn large_objects() {
    let (_selvage, client) = up().await;
    let huge = "x".repeat(65 * 1024);
    let mut rows = Vec::new();
    for (method, object, at) in [
        ("CreateFlavor", flavor(), "/key/name"),
        ("CreateOperator", operator(), "/key/name"),
        ("CreateDeveloper", developer(), "/key/name"),
        ("CreateDeveloper", developer(), "/address"),
        ("CreateCluster", cluster(), "/key/name"),
        ("CreateCloudlet", cloudlet(), "/access_uri"),
        ("InjectCloudletInfo", info(), "/errors"),
    ] {
        let value = if at == "/errors" { json!([huge]) } else { json!(huge) };
        rows.push(row(method, with(&object, at, value), InvalidArgument, "is too large"));
    }
    let kept = with(&developer(), "/key/name", "AcmeAppCo");
    let grown = with(&with(&kept, "/address", huge), "/fields", json!(["5"]));
    rows.push(row("UpdateDeveloper", grown, InvalidArgument, "Developer of "));
    refuse(&client, rows).await;
}
