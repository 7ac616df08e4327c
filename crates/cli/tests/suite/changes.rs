//! Output while something changes, and the text of failures.

use selvage_api::{Code, edgeproto::AppInst};
use tonic::Status;

use crate::{controller, person};

const KEY: [&str; 12] = [
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

fn instance<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["appinst", verb], &KEY[..], more].concat()
}

#[tokio::test]
async fn progress_is_printed_line_by_line() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let outcome = person.run(&instance("create", &[])).await;
    assert_eq!(outcome.err, "", "nothing but the lines");
    assert_eq!(outcome.good(), "Creating\nReady\nCreated successfully\n");
    let out = person.run(&instance("delete", &["--yes", "-o", "json"])).await.good();
    assert_eq!(out, "{\"message\":\"Deleting\"}\n{\"message\":\"NotPresent\"}\n");
    assert!(server.state.get(&AppInst::default()).is_empty());
    let out = person.run(&instance("create", &["-o", "yaml"])).await.good();
    assert_eq!(out, "message: Creating\n---\nmessage: Ready\n---\nmessage: Created successfully\n");
}

#[tokio::test]
async fn on_a_terminal_work_is_shown_while_it_lasts() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.at_terminal = true;
    let data = "kind: AppInst\nkey: {app_key: {developer_key: {name: a}, name: b, version: c}, cluster_inst_key: {cluster_key: {name: d}, cloudlet_key: {operator_key: {name: e}, name: f}}}";
    let outcome = person.piping(data).run(&["apply", "-f", "-"]).await;
    assert_eq!(outcome.out, "appinst a/b/c/d/e/f: created\n");
    assert!(outcome.err.contains("s  Created successfully"), "{:?}", outcome.err);
    assert!(outcome.err.ends_with("\r\x1b[2K"), "and gone afterwards: {:?}", outcome.err);
    assert_eq!(person.run(&["flavor", "show"]).await.err, "No flavors here.\n");
}

#[tokio::test]
async fn the_result_of_a_call_without_a_stream_is_not_in_the_output() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let line = ["cloudlet", "create", "--name", "cloud-1", "--operator", "tmus"];
    let outcome = person.run(&line).await;
    assert_eq!(outcome.err, "cloudlet tmus/cloud-1 is created.\n");
    assert_eq!(outcome.good(), "");
    let outcome = person.run(&["operator", "create", "--name", "tmus"]).await;
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("", "operator tmus is created.\n"));
}

#[tokio::test]
async fn a_failure_names_the_method_and_ends_with_its_code() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.run(&["operator", "create", "--name", "tmus"]).await.good();
    let (code, stderr) = person.run(&["operator", "create", "--name", "tmus"]).await.bad();
    assert_eq!(code, Code::AlreadyExists.exit());
    assert!(stderr.starts_with("error: CreateOperator failed: Key already exists\n"), "{stderr}");
    let (code, stderr) = person.run(&["operator", "delete", "--name", "none", "--yes"]).await.bad();
    assert_eq!(code, Code::NotFound.exit());
    assert!(stderr.starts_with("error: DeleteOperator failed: Key not found\n"), "{stderr}");

    let status = Status::aborted("Encountered failures: crm create failed");
    server.state.refuse("CreateAppInst", status);
    let (code, stderr) = person.run(&instance("create", &[])).await.bad();
    assert_eq!(code, Code::Aborted.exit());
    assert!(stderr.starts_with("error: CreateAppInst failed: Encountered failures: "), "{stderr}");
    server.state.refuse("ShowAppInst", Status::permission_denied("not yours"));
    let (code, stderr) = person.run(&["appinst", "show"]).await.bad();
    assert_eq!(code, Code::PermissionDenied.exit());
    assert!(stderr.starts_with("error: ShowAppInst failed: not yours\n"), "{stderr}");
}

#[tokio::test]
async fn lines_before_a_failure_are_printed() {
    let server = controller::start().await;
    *server.state.breaks_after.lock().unwrap() = Some(1);
    let mut person = person(&server).await;
    let outcome = person.run(&instance("create", &[])).await;
    assert_eq!(outcome.out, "Creating\n");
    assert_eq!(outcome.bad().0, Code::Unavailable.exit());
}

#[tokio::test]
async fn a_person_is_asked_before_something_is_deleted() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let line = ["flavor", "delete", "--name", "x1.small"];
    let (code, stderr) = person.answering(&["n"]).run(&line).await.bad();
    assert_eq!(code, Code::Cancelled.exit());
    assert!(stderr.starts_with("Delete flavor x1.small? [y/N] "), "{stderr}");
    assert!(server.state.changes().is_empty());
    let (code, _) = person.run(&[&line[..], &["--no-input"]].concat()).await.bad();
    assert_eq!(code, Code::FailedPrecondition.exit());

    person.answering(&["y"]).run(&line).await.bad();
    person.answering(&[]).run(&[&line[..], &["--yes"]].concat()).await.bad();
    // A script must say that it means it.
    let (code, stderr) = person.run(&line).await.bad();
    assert_eq!(code, Code::FailedPrecondition.exit());
    assert!(stderr.contains("--yes"), "{stderr}");
    assert_eq!(server.state.changes().len(), 2);
}

#[tokio::test]
async fn a_dry_run_says_so_to_the_server_and_prints_its_plan() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let outcome = person.run(&instance("create", &["--dry-run"])).await;
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("plan: 1 step\n", ""));
    assert!(server.state.calls.lock().unwrap().iter().all(|call| call.dry_run));
    assert!(server.state.get(&AppInst::default()).is_empty());
    let flavor = ["flavor", "create", "--name", "a", "--dry-run"];
    assert_eq!(person.run(&flavor).await.err, "flavor a would be created.\n");

    *server.state.silent_about_dry_runs.lock().unwrap() = true;
    let (code, stderr) = person.run(&flavor).await.bad();
    assert_eq!(code, Code::Unimplemented.exit());
    assert!(
        stderr.contains("CreateFlavor: the server does not confirm that it only planned"),
        "{stderr}"
    );
    let two = "flavors: [{key: {name: b}}, {key: {name: c}}]";
    person.piping(two).run(&["apply", "-f", "-", "--dry-run"]).await.bad();
    assert!(server.state.last("CreateFlavor").contains("\"b\""), "the second was not sent");
}

/// There is nothing about an instance to be changed but what its app is by
/// now.
#[tokio::test]
async fn an_instance_is_updated_by_its_key_alone() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let key = ["--developer", "Acme", "--appname", "app", "--appvers", "1.0"];
    let place = ["--operator", "tmus", "--cloudlet", "one", "--cluster", "autoclusterApp"];
    person.run(&[&["appinst", "create"][..], &key, &place].concat()).await.good();
    person.run(&[&["appinst", "update"][..], &key, &place].concat()).await.good();
    let sent = server.state.last("UpdateAppInst");
    assert!(sent.contains("\"autoclusterapp\"") && !sent.contains("fields"), "{sent}");
}
