//! Long work that outlives the connection.

use std::process::Stdio;

use selvage_api::{
    Code,
    edgeproto::*,
    object::Key,
    selvage::operations::{Operation, State},
};
use tokio::io::AsyncReadExt;

use crate::{controller, harness::Person, person};

const CREATE: [&str; 14] = [
    "appinst",
    "create",
    "--appname",
    "one",
    "--appvers",
    "1.0",
    "--developer",
    "Acme",
    "--cluster",
    "small",
    "--cloudlet",
    "cloud-1",
    "--operator",
    "tmus",
];

fn key(app: &str) -> String {
    let key = AppInstKey {
        app_key: Some(AppKey {
            developer_key: Some(DeveloperKey { name: "Acme".into() }),
            name: app.into(),
            version: "1.0".into(),
        }),
        cluster_inst_key: Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "small".into() }),
            cloudlet_key: Some(CloudletKey {
                operator_key: Some(OperatorKey { name: "tmus".into() }),
                name: "cloud-1".into(),
            }),
            // The server fills what the client leaves out.
            developer: "Acme".into(),
        }),
    };
    Key::from_message(&key).unwrap().to_string()
}

fn work(id: &str, app: &str, state: State) -> Operation {
    Operation {
        id: id.into(),
        kind: "CreateAppInst".into(),
        key: key(app),
        state: state.into(),
        steps_total: 4,
        ..Default::default()
    }
}

async fn at_work() -> controller::Running {
    let server = controller::start().await;
    let mut failed = work("op-3", "three", State::Failed);
    failed.error = "Encountered failures: no room".into();
    failed.error_code = Code::Aborted.grpc() as i32;
    *server.state.operations.lock().unwrap() =
        vec![work("op-2", "two", State::Running), work("op-1", "one", State::Running), failed];
    server
}

#[tokio::test]
async fn operations_are_listed_followed_and_cancelled() {
    let server = at_work().await;
    let mut person = person(&server).await;
    let list = person.run(&["operation", "list"]).await.good();
    let heading = list.lines().next().unwrap_or_default();
    let columns: Vec<&str> = heading.split_whitespace().take(5).collect();
    assert_eq!(columns, ["ID", "KIND", "OBJECT", "STATE", "STEP"], "{list}");
    assert_eq!(list.lines().count(), 4);
    let active = person.run(&["operation", "list", "--active", "-o", "json"]).await.good();
    assert!(active.contains("op-1") && !active.contains("op-3"), "{active}");

    let out = person.run(&["operation", "follow", "op-1"]).await.good();
    assert_eq!(out, "Creating\nReady\nCreated successfully\n");
    let outcome = person.run(&["operation", "follow", "op-3"]).await;
    assert_eq!(outcome.out, "Creating\n");
    let (code, printed) = outcome.bad();
    assert_eq!(code, Code::Aborted.exit());
    assert!(
        printed.starts_with("error: CreateAppInst failed: Encountered failures: no room"),
        "{printed}"
    );
    let (code, printed) = person.run(&["operation", "follow", "op-9"]).await.bad();
    assert!(code == 4 && printed.contains("selvage operation list"), "{printed}");

    let outcome = person.run(&["operation", "cancel", "op-1"]).await;
    assert!(outcome.err.starts_with("It is being undone"), "{}", outcome.err);
    assert!(outcome.good().contains("op-1"));
}

#[tokio::test]
async fn a_watched_change_is_found_again_after_the_connection_broke() {
    let server = at_work().await;
    *server.state.breaks_after.lock().unwrap() = Some(1);
    let mut person = person(&server).await;
    let outcome = person.run(&[&CREATE[..], &["--watch"]].concat()).await;
    assert_eq!(outcome.err, "The connection is lost; coming back to the work.\n");
    assert_eq!(outcome.good(), "Creating\nReady\nCreated successfully\n", "each line once");
}

#[tokio::test]
async fn what_nobody_knows_of_is_not_followed() {
    let server = controller::start().await;
    *server.state.breaks_after.lock().unwrap() = Some(1);
    let mut person = person(&server).await;
    let (code, printed) = person.run(&[&CREATE[..], &["--watch"]].concat()).await.bad();
    assert_eq!(code, Code::Unavailable.exit());
    assert!(printed.contains("error: CreateAppInst failed: the server stops"), "{printed}");
}

/// Body of the next test, in a process of its own, for a signal goes to all
/// of a process.
#[tokio::test]
#[ignore = "run by the test that interrupts it"]
async fn interrupted_child() {
    let Ok(endpoint) = std::env::var("EDGE_TEST_ENDPOINT") else { return };
    let mut person = Person::new();
    person.endpoint = Some(endpoint);
    let (code, printed) = person.run(&CREATE).await.bad();
    assert_eq!(code, Code::Cancelled.exit());
    assert_eq!(
        printed,
        "The operation goes on at the server; follow it with `selvage operation follow op-1`.\n\
         error: interrupted\n"
    );
}

#[tokio::test]
async fn an_interrupted_change_goes_on_and_says_how_to_follow_it() {
    let server = at_work().await;
    *server.state.hangs.lock().unwrap() = true;
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["operations::interrupted_child", "--exact", "--ignored", "--nocapture"])
        .env("EDGE_TEST_ENDPOINT", &server.endpoint)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let deadline = std::time::Duration::from_secs(60);
    tokio::time::timeout(deadline, server.state.opened.notified()).await.unwrap();
    // The handler is in place before the call is sent.
    let id = child.id().unwrap().to_string();
    let sent = tokio::process::Command::new("kill").args(["-INT", &id]).status().await.unwrap();
    assert!(sent.success());
    let status = tokio::time::timeout(deadline, child.wait()).await.unwrap().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).await.unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert!(status.success() && said.contains("1 passed"), "{said}");
}
