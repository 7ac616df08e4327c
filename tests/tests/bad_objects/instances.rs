//! Instances of clusters and apps.

use serde_json::{Value, json};
use tonic::Code::{
    self, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted,
    Unavailable, Unimplemented,
};

use super::*;

#[tokio::test]
async fn names_and_enums_of_cluster_instances() {
    let (_selvage, client) = up().await;
    let good = cluster_inst();
    let method = "CreateClusterInst";
    let at = "/key/cluster_key/name";
    let mut rows = names(method, &good, at, "Invalid cluster name").split_off(1);
    for name in ["a_b", "a b", "a&b"] {
        rows.push(row(method, with(&good, at, name), InvalidArgument, "Invalid cluster name"));
    }
    let at = "/key/developer";
    rows.extend(names(method, &good, at, "Invalid developer name").split_off(1));
    let long = with(&good, at, "d".repeat(64));
    rows.push(row(method, long, InvalidArgument, "Invalid developer name: "));
    for (at, name) in [
        ("/ip_access", "IpAccess"),
        ("/liveness", "Liveness"),
        ("/state", "State"),
        ("/crm_override", "CrmOverride"),
    ] {
        rows.extend(enums(method, &good, at, name));
    }
    refuse(&client, rows).await;
}

#[tokio::test]
async fn cluster_instances_that_cannot_be() {
    let (_selvage, client) = up().await;
    let good = cluster_inst();
    let method = "CreateClusterInst";
    let at = "/key/cluster_key/name";
    let mut rows = Vec::new();
    let mut bad = |at: &str, value: Value, code: Code, text: &str| {
        rows.push(row(method, with(&good, at, value), code, text));
    };
    bad("/key/developer", "".into(), InvalidArgument, "Developer cannot be empty");
    bad("/key/cloudlet_key/name", "".into(), InvalidArgument, "Cloudlet name cannot be empty");
    let operator = "/key/cloudlet_key/operator_key/name";
    bad(operator, "".into(), InvalidArgument, "Operator name cannot be empty");
    bad(at, "".into(), InvalidArgument, "Cluster name cannot be empty");
    let reserved = "Cluster name prefix \"autocluster\" is reserved";
    bad(at, "autoclusterx".into(), InvalidArgument, reserved);
    bad(at, "k".repeat(64).into(), InvalidArgument, "Invalid cluster name");
    let vm = "ClusterInst is not needed for deployment type vm, just create an AppInst directly";
    bad("/deployment", "vm".into(), InvalidArgument, vm);
    let unknown = "Invalid deployment type x for ClusterInst";
    bad("/deployment", "x".into(), InvalidArgument, unknown);
    bad("/num_masters", 2.into(), InvalidArgument, "NumMasters cannot be greater than 1");
    bad("/num_masters", u32::MAX.into(), InvalidArgument, "NumMasters cannot be greater than 1");
    bad("/num_nodes", 0.into(), Unimplemented, "Zero NumNodes not supported yet");
    // What -1 becomes on the wire.
    bad("/num_nodes", u32::MAX.into(), InvalidArgument, "num_nodes");
    bad("/num_nodes", 5000.into(), ResourceExhausted, "Not enough RAM available");
    bad("/flavor", json!({}), InvalidArgument, "No Flavor specified and no default Flavor");
    bad(
        "/flavor/name",
        "x1.none".into(),
        NotFound,
        "Cluster flavor x1.none node flavor {} not found",
    );
    let smaller = "no suitable platform flavor found for x1.huge, please try a smaller flavor";
    bad("/flavor/name", "x1.huge".into(), ResourceExhausted, smaller);
    bad("/key/cloudlet_key/name", "none".into(), NotFound, "Specified Cloudlet not found");
    let no_info = "No resource information found for Cloudlet {{tmus} silent}";
    bad("/key/cloudlet_key/name", "silent".into(), NotFound, no_info);
    let docker = with(&good, "/deployment", "docker");
    let none = "NumMasters and NumNodes not applicable for deployment type docker";
    rows.push(row(method, docker.clone(), InvalidArgument, none));
    let docker = with(&with(&docker, "/num_masters", 0), "/num_nodes", 0);
    let dedicated = "IpAccess must be dedicated for deployment type docker";
    let shared = with(&docker, "/ip_access", "IP_ACCESS_SHARED");
    rows.push(row(method, shared, InvalidArgument, dedicated));
    // The domain name it would have is another instance's.
    let twin = with(&with(&good, at, "dedicated"), "/ip_access", "IP_ACCESS_DEDICATED");
    let taken = "its domain name dedicated belongs to another instance on the cloudlet";
    rows.push(row(method, twin.clone(), AlreadyExists, taken));
    let twin = with(&with(&twin, at, "Dedicated"), "/key/developer", "Other");
    rows.push(row(method, twin, AlreadyExists, taken));
    // The same developer's clusters, shared ones too, are told apart by more
    // than case.
    for twin in ["smallcluster", "SMALLCLUSTER", "Small.Cluster", "dedicated"] {
        let taken = "belongs to another instance on the cloudlet";
        rows.push(row(method, with(&good, at, twin), AlreadyExists, taken));
    }
    let asked = with(&with(&good, "/crm_override", 0), "/key/cloudlet_key/name", "silent");
    let not_ready = "Cloudlet operator_key:<name:\"tmus\" > name:\"silent\"  not ready, \
                     state is CLOUDLET_STATE_NOT_PRESENT";
    rows.push(row(method, asked, Unavailable, not_ready));
    refuse(&client, rows).await;
}

#[tokio::test]
async fn names_and_enums_of_app_instances() {
    let (_selvage, client) = up().await;
    let good = app_inst();
    let method = "CreateAppInst";
    let mut rows = Vec::new();
    // No name: what there is to be done is said instead.
    for name in &BAD_NAMES[1..] {
        rows.push(row(
            method,
            with(&good, IN_CLUSTER, *name),
            InvalidArgument,
            "Invalid cluster name",
        ));
    }
    rows.extend(names(method, &good, "/key/app_key/version", "Invalid app version string"));
    // A part of the key that is missing is named before anything else.
    for (at, empty, bad) in [
        ("/key/app_key/name", "App name cannot be empty", "Invalid app name"),
        (
            "/key/cluster_inst_key/cloudlet_key/name",
            "Cloudlet name cannot be empty",
            "Invalid cloudlet name",
        ),
        (
            "/key/cluster_inst_key/cloudlet_key/operator_key/name",
            "Operator name cannot be empty",
            "Invalid operator name",
        ),
    ] {
        for name in BAD_NAMES {
            let text = if name.is_empty() { empty } else { bad };
            rows.push(row(method, with(&good, at, name), InvalidArgument, text));
        }
    }
    for name in BAD_NAMES {
        let one = with(&good, "/key/app_key/developer_key/name", name);
        let both = with(&one, "/key/cluster_inst_key/developer", name);
        let text = match name {
            "" => "App developer cannot be empty",
            _ => "Invalid developer name",
        };
        rows.push(row(method, both, InvalidArgument, text));
    }
    for (at, name) in [
        ("/liveness", "Liveness"),
        ("/state", "State"),
        ("/crm_override", "CrmOverride"),
        ("/auto_cluster_ip_access", "AutoClusterIpAccess"),
    ] {
        rows.extend(enums(method, &good, at, name));
    }
    let ports = with(&good, "/mapped_ports", json!([{"proto": 99, "internal_port": 1}]));
    rows.push(row(
        method,
        ports,
        InvalidArgument,
        "invalid Proto: mapped_ports.proto cannot be 99",
    ));
    refuse(&client, rows).await;
}

#[tokio::test]
async fn app_instances_that_cannot_be() {
    let (_selvage, client) = up().await;
    let good = app_inst();
    let method = "CreateAppInst";
    let mut rows = Vec::new();
    let mut bad = |at: &str, value: Value, code: Code, text: &str| {
        rows.push(row(method, with(&good, at, value), code, text));
    };
    let unnamed = "No cluster name specified. Create one first or use \"autocluster\" as the name";
    bad(IN_CLUSTER, "".into(), InvalidArgument, unnamed);
    bad(IN_CLUSTER, "none".into(), NotFound, "Specified ClusterInst not found");
    let mismatch = "Developer name mismatch between app: AcmeAppCo and cluster inst: Other";
    bad("/key/cluster_inst_key/developer", "Other".into(), InvalidArgument, mismatch);
    bad("/key/app_key/name", "none".into(), NotFound, "Specified app not found");
    bad("/key/app_key/version", "2.0".into(), NotFound, "Specified app not found");
    let cloudlet = "/key/cluster_inst_key/cloudlet_key/name";
    bad(cloudlet, "none".into(), NotFound, "Specified cloudlet not found");
    bad(cloudlet, "silent".into(), NotFound, "No resource information found for Cloudlet");
    bad("/flavor", json!({"name": "x1.none"}), NotFound, "x1.none");
    bad("/flavor", json!({"name": "x1.huge"}), ResourceExhausted, "no suitable platform flavor");
    let given = "Cannot specify URI example.net for non-default cloudlet";
    bad("/uri", "example.net".into(), InvalidArgument, given);
    let existing = with(&good, IN_CLUSTER, "SmallCluster");
    let docker = with(&existing, "/key/app_key/name", "docker");
    let deploy = "Cannot deploy docker App into kubernetes ClusterInst";
    rows.push(row(method, docker, FailedPrecondition, deploy));
    let key = json!({"operator_key": {"name": "developer"}, "name": "default"});
    let own = with(&good, "/key/cluster_inst_key/cloudlet_key", key);
    let own = with(&own, IN_CLUSTER, "default");
    let required = "URI (Public Fqdn) is required for default cloudlet";
    rows.push(row(method, own.clone(), InvalidArgument, required));
    for uri in [
        "https://a.example",
        "a.example:443",
        "a b",
        "a.example,",
        ",",
        " ",
        "-a.example",
        "a..b",
        "a\u{0}b",
    ] {
        let text = "Invalid URI (Public Fqdn): ";
        rows.push(row(method, with(&own, "/uri", uri), InvalidArgument, text));
    }
    let text = "Invalid URI (Public Fqdn): ";
    rows.push(row(method, with(&own, "/uri", "x".repeat(70_000)), InvalidArgument, text));
    let asked = with(&with(&good, "/crm_override", 0), cloudlet, "silent");
    rows.push(row(method, asked, Unavailable, "not ready, state is CLOUDLET_STATE_NOT_PRESENT"));
    refuse(&client, rows).await;
}
