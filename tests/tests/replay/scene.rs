//! Data sets in, what is shown out.

use std::path::PathBuf;

use selvage_api::json;
use selvage_tests::{Client, process::Cli};
use serde_json::Value;
use tonic::Code;

/// In the order in which the original shows them, and what follows from them.
const KINDS: [&str; 10] = [
    "flavor",
    "cluster",
    "clusterinst",
    "operator",
    "developer",
    "cloudlet",
    "app",
    "appinst",
    "cloudletrefs",
    "clusterrefs",
];

/// Settings under which names are those of the original's data.
pub(crate) const ORIGINAL: [&str; 2] = ["--set", "controller.root_domain=mobiledgex.net"];

pub(crate) fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("edge").join(name)
}

pub(crate) fn golden(scenario: &str) -> String {
    std::fs::read_to_string(data(&format!("{scenario}.show.yaml"))).unwrap()
}

pub(crate) fn apply(cli: &Cli, file: &str) -> String {
    cli.ok(&["apply", "-f", data(file).to_str().unwrap()])
}

pub(crate) fn unapply(cli: &Cli, file: &str) -> String {
    cli.ok(&["unapply", "--yes", "-f", data(file).to_str().unwrap()])
}

/// Everything that is shown, as the original prints it.
pub(crate) fn shown(cli: &Cli) -> String {
    let mut all = String::new();
    for kind in KINDS {
        let text = cli.ok(&[kind, "show", "-o", "edgectl"]);
        if !text.trim().is_empty() {
            all += &format!("{kind}:\n{}", without_changing_fields(&text));
        }
    }
    all
}

fn without_changing_fields(text: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line == "  createdat:" || inside && line.starts_with("    ");
        // The number of an instance's revision is ours.
        if !inside && !line.starts_with("  revision: ") {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

pub(crate) fn objects(cli: &Cli, kind: &str) -> Vec<Value> {
    let text = cli.ok(&[kind, "show", "-o", "json"]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Line by line, so that a failure tells what differs and not all there is.
pub(crate) fn assert_shows(cli: &Cli, expected: &str) {
    let shown = shown(cli);
    for (number, (is, should)) in shown.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, should, "line {} of\n{shown}", number + 1);
    }
    assert_eq!(shown.lines().count(), expected.lines().count(), "{shown}");
}

pub(crate) fn assert_nothing_left(cli: &Cli) {
    assert_eq!(shown(cli), "");
    assert!(objects(cli, "cloudletinfo").is_empty());
    let operations = cli.ok(&["operation", "list", "--active", "-o", "json"]);
    assert!(!operations.contains("RUNNING"), "{operations}");
}

/// A request as JSON; the replies likewise.
pub(crate) async fn call(
    client: &Client,
    path: &str,
    request: &Value,
) -> (Vec<Value>, Code, String) {
    use prost::Message;

    let method = selvage_api::method(path).unwrap();
    let options = json::Options::edge();
    let text = request.to_string();
    let message = json::from_json(&method.input, text.as_bytes(), options.strict()).unwrap();
    let (replies, code, text) = client.raw(path, &message.encode_to_vec()).await;
    let decode = |reply: &bytes::Bytes| {
        let reply = prost_reflect::DynamicMessage::decode(method.output.clone(), reply.as_ref());
        serde_json::from_str(&json::to_json(&reply.unwrap(), options).unwrap()).unwrap()
    };
    (replies.iter().map(decode).collect(), code, text)
}

pub(crate) fn messages(replies: &[Value]) -> Vec<&str> {
    replies.iter().map(|reply| reply["message"].as_str().unwrap()).collect()
}
