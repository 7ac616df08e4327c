//! The controller through the binary: the smoke order of docs/edge.md, what
//! strangers see by REST, who sees what, and what a power cut leaves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use selvage_tests::{
    Client, Selvage,
    client::http,
    process::{Cli, Printed},
};
use serde_json::Value;

const KEY: [&str; 6] =
    ["--developer", "AcmeAppCo", "--appname", "someapplication1", "--appvers", "1.0"];
const PLACE: [&str; 6] = [
    "--operator",
    "tmus",
    "--cloudlet",
    "tmus-cloud-1",
    "--cluster",
    "autoclustersomeapplication1",
];

/// Everything up to an app that can be instantiated.
fn set_up(cli: &Cli) {
    for (name, ram, vcpus, disk) in [
        ("x1.tiny", "1024", "1", "1"),
        ("x1.small", "2048", "2", "2"),
        ("x1.medium", "4096", "4", "4"),
    ] {
        let size = ["--ram", ram, "--vcpus", vcpus, "--disk", disk];
        cli.ok(&[&["flavor", "create", "--name", name][..], &size].concat());
    }
    cli.ok(&["operator", "create", "--name", "tmus"]);
    cli.ok(&["developer", "create", "--name", "AcmeAppCo"]);
    let cloudlet = ["--operator", "tmus", "--name", "tmus-cloud-1"];
    let place = ["--latitude", "31", "--longitude", "-91", "--numdynamicips", "254"];
    cli.ok(&[&["cloudlet", "create"][..], &cloudlet, &place].concat());
    let limits = ["--state", "ready", "--osmaxram", "65536", "--osmaxvcores", "64"];
    let flavor = [
        "--osmaxvolgb",
        "5000",
        "--set",
        "flavors[0]={name: flavor1, vcpus: 10, ram: 101024, disk: 500}",
    ];
    cli.ok(&[&["cloudletinfo", "create"][..], &cloudlet, &limits, &flavor].concat());
    let app = ["--imagetype", "docker", "--accessports", "tcp:80,http:443,udp:10002"];
    cli.ok(&[&["app", "create"][..], &KEY, &app, &["--defaultflavor", "x1.small"]].concat());
}

fn instance(cli: &Cli, verb: &str) -> Printed {
    let override_ = ["--crmoverride", "IgnoreCrm"];
    let yes: &[&str] = if verb == "delete" { &["--yes"] } else { &[] };
    cli.run(&[&["appinst", verb][..], &KEY, &PLACE, &override_, yes].concat())
}

fn show(cli: &Cli, kind: &str) -> Vec<Value> {
    let text = cli.ok(&[kind, "show", "-o", "json"]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_smoke_order() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let app = show(&cli, "app").remove(0);
    assert_eq!(app["deployment"], "kubernetes");
    assert_eq!(app["deployment_generator"], "kubernetes-basic");
    assert_eq!(app["deployment_manifest"].as_str().unwrap().matches("\n---\n").count(), 2);

    let created = instance(&cli, "create");
    assert_eq!(created.code, 0, "{created:?}");
    assert!(created.stdout.trim_end().ends_with("Created successfully"), "{created:?}");
    let cluster = show(&cli, "clusterinst").remove(0);
    for (field, expected) in [
        ("state", "READY"),
        ("liveness", "LIVENESS_DYNAMIC"),
        ("ip_access", "IP_ACCESS_SHARED"),
        ("node_flavor", "flavor1"),
    ] {
        assert_eq!(cluster[field], expected, "{cluster}");
    }
    let inst = show(&cli, "appinst").remove(0);
    assert_eq!(inst["uri"], "tmus-cloud-1.tmus.selvage.internal");
    let public: Vec<_> =
        inst["mapped_ports"].as_array().unwrap().iter().map(|port| &port["public_port"]).collect();
    assert_eq!(public, [80, 443, 10002]);
    let refs = show(&cli, "cloudletrefs").remove(0);
    let used = ["used_ram", "used_vcores", "used_disk"].map(|field| refs[field].as_str().unwrap());
    assert_eq!(used, ["4096", "4", "4"]);

    let name = ["--operator", "tmus", "--name", "tmus-cloud-1", "--yes"];
    for (args, says) in [
        (&["flavor", "delete", "--name", "x1.small", "--yes"][..], "Flavor in use by Cluster"),
        (
            &[&["app", "delete", "--yes"][..], &KEY].concat(),
            "Application in use by static Application Instance",
        ),
        (
            &[&["cloudlet", "delete"][..], &name].concat(),
            "Cloudlet in use by static Application Instance",
        ),
        (&["operator", "delete", "--name", "tmus", "--yes"], "Operator in use by Cloudlet"),
        (
            &["developer", "delete", "--name", "AcmeAppCo", "--yes"],
            "Developer in use by Application",
        ),
    ] {
        let refused = cli.run(args);
        assert_eq!(refused.code, i32::from(selvage_api::Code::FailedPrecondition.exit()));
        assert!(refused.stderr.contains(says), "{refused:?}");
    }

    let deleted = instance(&cli, "delete");
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert!(show(&cli, "appinst").is_empty());
    assert!(show(&cli, "clusterinst").is_empty(), "the auto-cluster goes with its last instance");
    let refs = show(&cli, "cloudletrefs").remove(0);
    assert!(refs.get("used_ram").is_none() && refs.get("root_lb_ports").is_none(), "{refs}");
}

#[tokio::test]
async fn rest_answers_as_the_original_did() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let http = http(&selvage);
    let post = async |path: &str, body: &'static str| {
        let url = format!("{}{path}", selvage.endpoint());
        let token = admin.token.as_ref().unwrap();
        let reply = http.post(url).bearer_auth(token).body(body).send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let flavor = r#"{"key":{"name":"x1.small"},"ram":"2048","vcpus":2,"disk":2}"#;
    let (status, body) = post("/create/flavor", flavor).await;
    assert_eq!((status, body.as_str()), (200, "{\n \"message\": \"\",\n \"code\": 0\n}"));
    let (status, body) = post("/create/flavor", flavor).await;
    assert_eq!(status, 409);
    let refused: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(refused["message"], "Key already exists");
    assert_eq!(refused["details"], serde_json::json!([]));
    let (status, body) = post("/show/flavor", r#"{"key":{"name":"x1.small"}}"#).await;
    assert_eq!(status, 200);
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        shown,
        serde_json::json!({"result": {
            "fields": [], "key": {"name": "x1.small"}, "ram": "2048", "vcpus": "2", "disk": "2"
        }})
    );
    let (status, body) = post("/show/flavor", r#"{"key":{"name":"none"}}"#).await;
    assert_eq!((status, body.as_str()), (200, ""), "an empty show is an empty body");
}

#[tokio::test]
async fn a_developer_sees_and_touches_only_what_is_his() {
    let selvage = Selvage::up(&[]);
    let admin = Cli::admin_of(&selvage);
    set_up(&admin);
    let password = admin.home().join("password");
    std::fs::write(&password, "a long enough password").unwrap();
    let file = password.to_str().unwrap();
    for developer in ["AcmeAppCo", "Beta"] {
        let role = format!("developer:{developer}");
        admin.ok(&["user", "add", developer, "--role", &role, "--password-file", file]);
    }
    let apps = async |name: &str| {
        let client = Client::login(&selvage, name, "a long enough password").await.unwrap();
        client.raw("/edgeproto.AppApi/ShowApp", &[]).await.0.len()
    };
    assert_eq!(apps("AcmeAppCo").await, 1);
    assert_eq!(apps("Beta").await, 0);
}

#[test]
fn kill_9_keeps_objects_and_finishes_operations() {
    let directory = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    assert_eq!(instance(&cli, "create").code, 0);
    selvage.kill();

    let selvage = Selvage::up_in(directory.path(), &[]);
    let cli = Cli::admin_of(&selvage);
    let states: Vec<_> = show(&cli, "appinst").iter().map(|inst| inst["state"].clone()).collect();
    assert_eq!(states, ["READY"]);
    let operations = cli.json(&["operation", "list", "-o", "json"]);
    assert!(!operations.to_string().contains("RUNNING"), "{operations}");
    assert_eq!(show(&cli, "flavor").len(), 3);
}

#[test]
fn a_dry_run_writes_nothing() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let size = ["--ram", "1", "--vcpus", "1", "--disk", "1"];
    let create = [&["flavor", "create", "--name", "x", "--dry-run"][..], &size].concat();
    let printed = cli.run(&create);
    assert_eq!(printed.code, 0, "{printed:?}");
    assert!(show(&cli, "flavor").is_empty());
}
