//! Calls that an entry makes for somebody else.

use selvage_api::{
    machine::{LogsRequest, ReadRequest},
    time::time_service_client::TimeServiceClient,
};
use selvage_kit::{
    access::{Access, Rule},
    assertion::{self, Call, Signer},
    identity::{Grant, Identity, Kind, Machine, Role},
    serve::relay,
};
use tonic::{
    Code, Request,
    metadata::{AsciiMetadataValue, BinaryMetadataValue},
};

use super::{Manner, entry, error, lab::Lab, lab::channel, request};

/// Rights of callers to a restart, a log and a file, by way of a controller and
/// of a node alike.
#[tokio::test(flavor = "multi_thread")]
async fn rights_are_the_callers_own_by_way_of_a_node_too() {
    let lab = Lab::new();
    let target = lab.named("t", Manner::Answers("t".into())).await;
    for machine in ["controller", "node/entry"] {
        let entry = entry(&lab, machine, &[("t", &target)]).await;
        let mut client = entry.machine();
        for role in ["operator", "admin"] {
            let answer = client.reboot(request((), role, &[("nodes", "t")])).await.unwrap();
            let text = &answer.get_ref().messages[0].metadata.as_ref().unwrap().error;
            // It got through: this machine's power is nobody's.
            let expected = "rpc error: code = FailedPrecondition desc = reboot is refused: ";
            assert!(text.starts_with(expected), "{machine}: {role}: {text}");
            let logs = LogsRequest { id: "any".into(), ..Default::default() };
            let logs = client.logs(request(logs, role, &[("node", "t")])).await.unwrap();
            assert!(logs.into_inner().message().await.unwrap().is_some(), "{machine}: {role}");
        }
        let read = || ReadRequest { path: "/etc/hostname".into() };
        let file = client.read(request(read(), "admin", &[("node", "t")])).await.unwrap();
        assert!(file.into_inner().message().await.unwrap().is_some(), "{machine}");
        // A caller without rights is refused by the entry already.
        let refused = client.read(request(read(), "operator", &[("node", "t")])).await;
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
        let refused = client.reboot(request((), "viewer", &[("nodes", "t")])).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let refused = client.reset(request((), "operator", &[("nodes", "t")])).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let refused = client.reboot(request((), "", &[("nodes", "t")])).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        let answered = entry.time(&[("nodes", "t")]).await.unwrap();
        assert_eq!(answered[0].server, "t to some viewer viewer", "{machine}");
    }
}

/// An entry without a controller that vouches for the caller calls nobody, and
/// answers for itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_not_vouched_for_answers_for_itself() {
    let lab = Lab::new();
    let target = lab.named("t", Manner::Answers("t".into())).await;
    // The controller signs for another node than the one that asks.
    let other = lab.vouches("node/other");
    let settings = selvage_node::fanout::Settings {
        own: vec![super::OWN.into()],
        ..selvage_node::fanout::Settings::default()
    };
    let known = std::collections::BTreeMap::from([("t".to_owned(), target.name())]);
    let directory = selvage_node::fanout::StaticDirectory::new(&known, 1).unwrap();
    let (directory, tls) = (std::sync::Arc::new(directory), Some(lab.shown_by("node/entry")));
    let fanout = selvage_node::fanout::Fanout::of_node(settings, directory, tls, other);
    let agent = lab.entry(fanout).await;
    let mut client = TimeServiceClient::new(channel(lab.shown_by_nobody(), &agent).await);
    let nodes = format!("t,{}", super::OWN);
    let call = request((), "viewer", &[("nodes", nodes.as_str())]);
    let answered = client.time(call).await.unwrap().into_inner().messages;
    assert!(error(&answered[0]).contains("is for another relay"), "{answered:?}");
    assert_eq!(
        (answered[1].server.as_str(), error(&answered[1])),
        ("entry to some viewer viewer", "")
    );
    // A machine that nobody told of is not called at all.
    let stray = request((), "viewer", &[("node", "127.0.0.1:9")]);
    assert_eq!(client.time(stray).await.unwrap_err().code(), Code::NotFound);
}

fn machine(name: &str) -> Machine {
    Machine::parse(name).unwrap()
}

fn root() -> Identity {
    Identity {
        name: "root".into(),
        kind: Kind::User { session: "s".into(), expires: i64::MAX },
        grants: vec![Grant { role: Role::Admin, organisation: String::new() }],
    }
}

fn signed(signer: &Signer, by: &str, to: &str, method: &str) -> AsciiMetadataValue {
    let (by, to) = (machine(by), machine(to));
    let call = Call { by: &by, to: &to, method };
    signer.sign(&root(), &call, jiff::Timestamp::now()).unwrap().parse().unwrap()
}

/// Everything that somebody with the key of a machine can say about a caller.
fn forgeries(lab: &Lab, rule: &Rule, by: &str) -> Vec<(&'static str, Request<()>)> {
    let path = rule.path.as_str();
    let controller = lab.signer("controller");
    let with = |value: AsciiMetadataValue| {
        let mut call = Request::new(());
        call.metadata_mut().insert(assertion::HEADER, value);
        call
    };
    let mut named = Request::new(());
    named.metadata_mut().insert_bin(relay::CALLER, caller());
    let other =
        if path == "/os.OSService/Memory" { "/os.OSService/Stats" } else { "/os.OSService/Memory" };
    let mut twice = with(signed(&controller, by, "node/t", path));
    twice.metadata_mut().insert_bin(relay::CALLER, caller());
    vec![
        ("nothing", Request::new(())),
        ("its own word", named),
        ("its own signature", with(signed(&lab.signer(by), by, "node/t", path))),
        ("an assertion for another relay", with(signed(&controller, "node/else", "node/t", path))),
        ("an assertion for another machine", with(signed(&controller, by, "node/else", path))),
        ("an assertion for another method", with(signed(&controller, by, "node/t", other))),
        ("an assertion and its own word", twice),
        ("no assertion", with("a.b.c".parse().unwrap())),
    ]
}

fn caller() -> BinaryMetadataValue {
    use base64::Engine;
    let header = relay::caller_header(&root()).unwrap();
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    BinaryMetadataValue::from_bytes(&engine.decode(header.as_bytes()).unwrap())
}

/// The key of a node, a match engine or a cloudlet opens no method of another
/// machine, whatever is said with it.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_machine_opens_nothing_at_another() {
    let lab = Lab::new();
    let target = lab.named("t", Manner::Answers("t".into())).await;
    let access = Access::load().unwrap();
    for by in ["node/n", "dme/d", "cloudlet/tmus/c"] {
        let channel = channel(lab.shown_by(by), &target).await;
        let mut tried = 0;
        let rules = access.rules().filter(|rule| rule.method.part == "node");
        for rule in rules.filter(|rule| !rule.open_to_anyone()) {
            for (what, call) in forgeries(&lab, rule, by) {
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                grpc.ready().await.unwrap();
                let codec = tonic_prost::ProstCodec::<(), ()>::default();
                let reply = grpc.unary(call, rule.path.parse().unwrap(), codec).await;
                let code = reply.unwrap_err().code();
                let refused = [Code::PermissionDenied, Code::Unauthenticated].contains(&code);
                assert!(refused, "{by}: {}: {what}: {code:?}", rule.path);
                tried += 1;
            }
        }
        assert!(tried > 200, "{tried}");
    }
}

/// Nobody makes himself another, with or without a certificate.
#[tokio::test(flavor = "multi_thread")]
async fn people_and_unknown_machines_act_for_nobody() {
    let lab = Lab::new();
    let target = lab.named("t", Manner::Answers("t".into())).await;
    let method = "/time.TimeService/Time";
    let assertion = signed(&lab.signer("controller"), "node/n", "node/t", method);
    for (shown, role) in [
        (lab.shown_by_nobody(), ""),
        (lab.shown_by_nobody(), "viewer"),
        (lab.shown_by_nobody(), "admin"),
        // A token says who calls; then there is nobody to speak for.
        (lab.shown_by("controller"), "viewer"),
        (lab.shown_by("node/n"), "viewer"),
    ] {
        let mut client = TimeServiceClient::new(channel(shown, &target).await);
        let mut named = request((), role, &[("proxyfrom", "entry")]);
        named.metadata_mut().insert_bin(relay::CALLER, caller());
        let mut asserted = request((), role, &[("proxyfrom", "entry")]);
        asserted.metadata_mut().insert(assertion::HEADER, assertion.clone());
        for call in [named, asserted] {
            let refused = client.time(call).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{role}");
            assert!(refused.message().contains("speak for others"), "{refused}");
        }
    }
    // The one whom it was signed for gets through.
    let mut client = TimeServiceClient::new(channel(lab.shown_by("node/n"), &target).await);
    let mut call = request((), "", &[("proxyfrom", "entry")]);
    call.metadata_mut().insert(assertion::HEADER, assertion);
    let answered = client.time(call).await.unwrap().into_inner();
    assert_eq!(answered.messages[0].server, "t to root admin");
}
