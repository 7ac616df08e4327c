//! Every field of every object with a value it cannot have: refused with the
//! code and the words of the contract, and nothing is written.
//!
//! Each row takes an object that is good and spoils one field, so the field
//! alone can be why it is refused; `what_is_spoiled_was_good` proves that.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apps;
mod instances;
mod notices;
mod plain;
mod updates;

use prost::Message;
use selvage_api::json;
use selvage_tests::{Client, Selvage};
use serde_json::{Value, json};
use tonic::Code::{self, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Ok as Fine};

/// The service and the object of a method's name: `CreateApp` is of `App`.
fn path(method: &str) -> String {
    let verbs = ["Create", "Update", "Delete", "Show", "Inject", "Evict"];
    let noun = verbs.iter().find_map(|verb| method.strip_prefix(verb)).unwrap();
    format!("/edgeproto.{noun}Api/{method}")
}

async fn call(client: &Client, method: &str, request: &Value) -> (Vec<Value>, Code, String) {
    let method = selvage_api::method(&path(method)).unwrap();
    let options = json::Options::edge();
    let text = request.to_string();
    let message = json::from_json(&method.input, text.as_bytes(), options.strict())
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    let (replies, code, text) = client.raw(&method.path, &message.encode_to_vec()).await;
    let decode = |reply: &bytes::Bytes| {
        let reply = prost_reflect::DynamicMessage::decode(method.output.clone(), reply.as_ref());
        serde_json::from_str(&json::to_json(&reply.unwrap(), options).unwrap()).unwrap()
    };
    (replies.iter().map(decode).collect(), code, text)
}

async fn ok(client: &Client, method: &str, request: &Value) -> Vec<Value> {
    let (replies, code, text) = call(client, method, request).await;
    assert_eq!(code, Fine, "{method} {request}: {text}");
    replies
}

const KINDS: [&str; 13] = [
    "Flavor",
    "Operator",
    "Developer",
    "Cloudlet",
    "CloudletInfo",
    "Cluster",
    "App",
    "ClusterInst",
    "AppInst",
    "CloudletRefs",
    "ClusterRefs",
    "ClusterInstInfo",
    "AppInstInfo",
];

async fn everything(client: &Client) -> Vec<(&'static str, Vec<Value>)> {
    let mut all = Vec::new();
    for kind in KINDS {
        all.push((kind, ok(client, &format!("Show{kind}"), &json!({})).await));
    }
    all
}

/// The object with another value at a JSON pointer.
fn with(object: &Value, at: &str, value: impl Into<Value>) -> Value {
    let mut object = object.clone();
    let mut place = &mut object;
    for part in at.split('/').skip(1) {
        place = match part.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[part],
        };
    }
    *place = value.into();
    object
}

fn flavor() -> Value {
    json!({"key": {"name": "x1.good"}, "ram": 1024, "vcpus": 1, "disk": 1})
}

fn operator() -> Value {
    json!({"key": {"name": "good"}})
}

fn developer() -> Value {
    json!({"key": {"name": "Good Inc."}, "email": "good@example.net"})
}

fn cloudlet() -> Value {
    json!({
        "key": {"operator_key": {"name": "tmus"}, "name": "good"},
        "location": {"latitude": 31.0, "longitude": -91.0},
        "ip_support": "IP_SUPPORT_DYNAMIC", "num_dynamic_ips": 10
    })
}

fn info() -> Value {
    json!({
        "key": {"operator_key": {"name": "tmus"}, "name": "good"},
        "state": "CLOUDLET_STATE_READY", "os_max_ram": 65536, "os_max_vcores": 64,
        "os_max_vol_gb": 5000,
        "flavors": [{"name": "flavor1", "vcpus": 10, "ram": 101_024, "disk": 500}]
    })
}

fn cluster() -> Value {
    json!({"key": {"name": "good"}, "default_flavor": {"name": "x1.small"}})
}

fn app() -> Value {
    json!({
        "key": {"developer_key": {"name": "AcmeAppCo"}, "name": "good", "version": "1.0"},
        "image_type": "IMAGE_TYPE_DOCKER", "access_ports": "tcp:80,udp:10002",
        "default_flavor": {"name": "x1.small"}
    })
}

fn cluster_inst() -> Value {
    json!({
        "key": {
            "cluster_key": {"name": "good"},
            "cloudlet_key": {"operator_key": {"name": "tmus"}, "name": "tmus-cloud-1"},
            "developer": "AcmeAppCo"
        },
        "flavor": {"name": "x1.small"}, "num_masters": 1, "num_nodes": 1,
        "crm_override": "IGNORE_CRM"
    })
}

fn app_inst() -> Value {
    json!({
        "key": {
            "app_key": {
                "developer_key": {"name": "AcmeAppCo"}, "name": "someapplication1", "version": "1.0"
            },
            "cluster_inst_key": {
                "cluster_key": {"name": "autoclustergood"},
                "cloudlet_key": {"operator_key": {"name": "tmus"}, "name": "tmus-cloud-1"},
                "developer": "AcmeAppCo"
            }
        },
        "crm_override": "IGNORE_CRM"
    })
}

const IN_CLUSTER: &str = "/key/cluster_inst_key/cluster_key/name";

/// A world in which each of the good objects could be created.
async fn world(client: &Client) {
    let small = json!({"key": {"name": "x1.small"}, "ram": 2048, "vcpus": 2, "disk": 2});
    let huge = json!({"key": {"name": "x1.huge"}, "ram": 999_999, "vcpus": 2, "disk": 2});
    ok(client, "CreateFlavor", &small).await;
    ok(client, "CreateFlavor", &huge).await;
    ok(client, "CreateOperator", &with(&operator(), "/key/name", "tmus")).await;
    ok(client, "CreateDeveloper", &with(&developer(), "/key/name", "AcmeAppCo")).await;
    let at = "/key/name";
    ok(client, "CreateCloudlet", &with(&cloudlet(), at, "tmus-cloud-1")).await;
    ok(client, "InjectCloudletInfo", &with(&info(), at, "tmus-cloud-1")).await;
    ok(client, "CreateCloudlet", &with(&cloudlet(), at, "silent")).await;
    ok(client, "CreateCluster", &with(&cluster(), at, "SmallCluster")).await;
    ok(client, "CreateApp", &with(&app(), at, "someapplication1")).await;
    let docker = with(&with(&app(), at, "docker"), "/deployment", "docker");
    ok(client, "CreateApp", &with(&docker, "/android_package_name", "net.example.one")).await;
    let cluster = with(&cluster_inst(), "/key/cluster_key/name", "SmallCluster");
    ok(client, "CreateClusterInst", &cluster).await;
    let dedicated = with(&cluster_inst(), "/key/cluster_key/name", "Dedicated");
    ok(client, "CreateClusterInst", &with(&dedicated, "/ip_access", "IP_ACCESS_DEDICATED")).await;
    ok(client, "CreateAppInst", &with(&app_inst(), IN_CLUSTER, "SmallCluster")).await;
}

/// A request, and what is answered.
type Row = (&'static str, Value, Code, String);

fn row(method: &'static str, request: Value, code: Code, text: impl Into<String>) -> Row {
    (method, request, code, text.into())
}

/// All that is not as it should be, at once.
async fn refuse(client: &Client, rows: Vec<Row>) {
    let before = everything(client).await;
    let mut wrong = Vec::new();
    for (method, request, code, text) in rows {
        let (_, is, says) = call(client, method, &request).await;
        if is != code || !says.contains(&text) {
            let mut request = request.to_string();
            request.truncate(600);
            wrong.push(format!(
                "{method} {request}\n   answers {is:?} {says:?}\n   and not {code:?} {text:?}"
            ));
        }
    }
    let after = everything(client).await;
    for (before, after) in before.iter().zip(&after) {
        if before != after {
            wrong.push(format!("something was written: {before:?}\n   became {after:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Texts that no name may be, one for each class of characters.
const BAD_NAMES: [&str; 26] = [
    "",
    " name",
    "-name",
    "_name",
    ".name",
    "&name",
    "!name",
    ",name",
    "a;sldfj",
    "$fadf",
    "a/b",
    "a\\b",
    "a:b",
    "a@b",
    "a\"b",
    "a'b",
    "a<b>",
    "a(b)",
    "a%20b",
    "a\nb",
    "name\n",
    "a\tb",
    "a\0b",
    "na\u{ef}ve",
    "\u{202e}evil",
    "a\u{1f600}",
];

fn names(method: &'static str, good: &Value, at: &str, text: &str) -> Vec<Row> {
    let spoiled = |name: &&str| row(method, with(good, at, *name), InvalidArgument, text);
    BAD_NAMES.iter().map(spoiled).collect()
}

/// An enum's field with numbers that mean nothing.
fn enums(method: &'static str, good: &Value, at: &str, name: &str) -> Vec<Row> {
    let spoiled = |number: i32| {
        row(method, with(good, at, number), InvalidArgument, format!("invalid {name}"))
    };
    [99, -1, i32::MAX, i32::MIN].map(spoiled).into()
}

async fn up() -> (Selvage, Client) {
    let selvage = Selvage::part("controller", &[]);
    let client = Client::admin(&selvage).await;
    world(&client).await;
    (selvage, client)
}

fn bomb() -> String {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        let items = vec![below; 10].join(", ");
        text += &format!("a{level}: &a{level} [{items}]\n");
    }
    text
}

#[tokio::test]
async fn what_is_there_and_what_is_not() {
    let (_selvage, client) = up().await;
    let named = |object: Value, name: &str| with(&object, "/key/name", name);
    let cluster_in = "/key/cluster_key/name";
    let good = [
        ("Flavor", flavor(), named(flavor(), "x1.small")),
        ("Operator", operator(), named(operator(), "tmus")),
        ("Developer", developer(), named(developer(), "AcmeAppCo")),
        ("Cloudlet", cloudlet(), named(cloudlet(), "tmus-cloud-1")),
        ("Cluster", cluster(), named(cluster(), "SmallCluster")),
        ("App", app(), named(app(), "someapplication1")),
        ("ClusterInst", cluster_inst(), with(&cluster_inst(), cluster_in, "SmallCluster")),
        ("AppInst", app_inst(), with(&app_inst(), IN_CLUSTER, "SmallCluster")),
    ];
    let mut rows = vec![row("EvictCloudletInfo", info(), NotFound, "Key not found")];
    for (kind, absent, present) in good {
        let method: &'static str = format!("Create{kind}").leak();
        rows.push(row(method, present, AlreadyExists, "Key already exists"));
        let method: &'static str = format!("Delete{kind}").leak();
        rows.push(row(method, absent, NotFound, "Key not found"));
    }
    for (kind, object) in [("ClusterInst", cluster_inst()), ("AppInst", app_inst())] {
        let method: &'static str = format!("Delete{kind}").leak();
        rows.extend(enums(method, &object, "/crm_override", "CrmOverride"));
    }
    refuse(&client, rows).await;
}

#[tokio::test]
async fn what_others_need_stays() {
    let (_selvage, client) = up().await;
    let named = |object: Value, name: &str| with(&object, "/key/name", name);
    let cluster_in = "/key/cluster_key/name";
    let in_use = |method, object, text: &str| row(method, object, FailedPrecondition, text);
    let rows = vec![
        in_use("DeleteFlavor", named(flavor(), "x1.small"), "Flavor in use by Cluster"),
        in_use("DeleteOperator", named(operator(), "tmus"), "Operator in use by Cloudlet"),
        in_use(
            "DeleteDeveloper",
            named(developer(), "AcmeAppCo"),
            "Developer in use by Application",
        ),
        in_use(
            "DeleteCloudlet",
            named(cloudlet(), "tmus-cloud-1"),
            "Cloudlet in use by static Application Instance",
        ),
        in_use("DeleteCluster", named(cluster(), "SmallCluster"), "Cluster in use by ClusterInst"),
        in_use(
            "DeleteApp",
            named(app(), "someapplication1"),
            "Application in use by static Application Instance",
        ),
        in_use(
            "DeleteClusterInst",
            with(&cluster_inst(), cluster_in, "SmallCluster"),
            "ClusterInst in use by Application Instance",
        ),
    ];
    refuse(&client, rows).await;
}

/// The good objects can be made; a mask given with them is not kept, nor is
/// what only the server may say.
#[tokio::test]
async fn what_is_spoiled_was_good() {
    let (_selvage, client) = up().await;
    for (kind, mut object) in [
        ("Flavor", flavor()),
        ("Operator", operator()),
        ("Developer", developer()),
        ("Cloudlet", cloudlet()),
        ("Cluster", cluster()),
        ("App", app()),
        ("ClusterInst", cluster_inst()),
        ("AppInst", app_inst()),
    ] {
        object["fields"] = json!(["2.1", "99", "frob"]);
        if kind.ends_with("Inst") {
            object["state"] = json!("DELETING");
            object["errors"] = json!(["frob"]);
            object["liveness"] = json!("LIVENESS_DYNAMIC");
        }
        ok(&client, &format!("Create{kind}"), &object).await;
        let shown = ok(&client, &format!("Show{kind}"), &json!({"key": object["key"]})).await;
        assert_eq!(shown.len(), 1, "{kind}");
        assert_eq!(shown[0]["fields"], json!([]), "{kind}");
        if kind.ends_with("Inst") {
            assert_eq!(shown[0]["state"], "READY");
            assert_eq!(shown[0]["errors"], json!([]));
            assert_eq!(shown[0]["liveness"], "LIVENESS_STATIC");
            assert_eq!(shown[0]["crm_override"], "NO_OVERRIDE");
        }
    }
    let masked = with(&info(), "/fields", json!(["3", "6"]));
    ok(&client, "InjectCloudletInfo", &masked).await;
    let shown = ok(&client, "ShowCloudletInfo", &json!({"key": info()["key"]})).await;
    assert_eq!(shown[0]["fields"], json!([]));
    assert_eq!(shown[0]["os_max_vcores"], "64", "what was not there is taken whole");
}

/// The original's gateway spoke to the controller in its own name, whoever
/// asked.
#[tokio::test]
async fn nobody_gets_in_by_rest_without_saying_who_he_is() {
    let (selvage, client) = up().await;
    let before = everything(&client).await;
    let http = selvage_tests::client::http(&selvage);
    for (path, object) in [
        ("/create/flavor", flavor()),
        ("/create/appinst", app_inst()),
        ("/delete/cloudlet", cloudlet()),
        ("/delete/cloudet", cloudlet()),
        ("/update/developer", developer()),
        ("/show/app", json!({})),
        ("/show/cloudletinfo", json!({})),
    ] {
        let url = format!("{}{path}", selvage.endpoint());
        for token in [None, Some("slv_nobody")] {
            let mut request = http.post(&url).body(object.to_string());
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let reply = request.send().await.unwrap();
            assert_eq!(reply.status().as_u16(), 401, "{path} {token:?}");
        }
    }
    assert_eq!(everything(&client).await, before);
}
