//! Keys of machines in the wrong hands: the keys of a crm, a node and a match
//! engine against everything, on a real process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clusters;
mod credentials;
mod files;
mod notices;
mod own;
mod pages;
mod shells;

use selvage_api::selvage::identity::{
    CheckAssertionRequest, IssueAssertionsRequest, identity_service_client::IdentityServiceClient,
};
use selvage_kit::access::{Access, MachineKind, Who};
use selvage_tests::{Client, Selvage};
use tonic::Code;

/// A machine of each kind whose key was stolen.
const STOLEN: [(MachineKind, &str); 3] = [
    (MachineKind::Cloudlet, "cloudlet/tmus/west"),
    (MachineKind::Node, "node/rack3-7"),
    (MachineKind::Dme, "dme/west"),
];

/// Every key against every method, on the controller's own machine and, by the
/// way to others, on all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_opens_no_method_of_another_kind() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let access = Access::load().unwrap();
    for (kind, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        let closed = access
            .rules()
            .filter(|rule| !rule.open_to_anyone() && !rule.who().contains(&Who::Machine(kind)));
        let mut refused = 0;
        for rule in closed {
            let path = rule.path.as_str();
            assert_eq!(thief.begins(path, &[]).await, Code::PermissionDenied, "{name}: {path}");
            if rule.method.part == "node" {
                let all = thief.begins_with(path, &[], &[("nodes", "all")]).await;
                assert_eq!(all, Code::PermissionDenied, "{name} at all nodes: {path}");
            }
            refused += 1;
        }
        assert!(refused > 100, "{name}: {refused}");
    }
}

/// Nobody becomes somebody else by saying so, not even to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_speaks_for_nobody() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let access = Access::load().unwrap();
    let person = r#"{"person":{"session":"","expires":99999999999}}"#;
    let answered = &format!(r#"{{"name":"admin","kind":{person},"grants":[["admin",""]]}}"#);
    for (kind, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        let closed = access
            .rules()
            .filter(|rule| !rule.open_to_anyone() && !rule.who().contains(&Who::Machine(kind)));
        for rule in closed {
            let path = rule.path.as_str();
            let code = thief.begins_with(path, &[], &[("selvage-caller-bin", answered)]).await;
            assert_eq!(code, Code::PermissionDenied, "{name}: {path}");
            let code = thief.begins_with(path, &[], &[("selvage-assertion", "a.b.c")]).await;
            let refused = [Code::PermissionDenied, Code::Unauthenticated].contains(&code);
            assert!(refused, "{name}: {path}: {code:?}");
        }
    }
}

/// A node has callers vouched for by the token that they showed, and by nothing
/// else: neither its own key nor the certificate of a person that it has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_vouched_for_as_nobody() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let asked = |method: &str| IssueAssertionsRequest {
        method: method.into(),
        machines: vec!["node/other".into()],
    };
    let memory = "os.OSService/Memory";
    for (_, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        let mut identity = IdentityServiceClient::new(thief.channel.clone());
        let refused = identity.issue_assertions(asked(memory)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
        let request = CheckAssertionRequest { assertion: "a.b.c".into() };
        let refused = identity.check_assertion(request).await.unwrap_err();
        let codes = [Code::PermissionDenied, Code::Unauthenticated];
        assert!(codes.contains(&refused.code()), "{name}: {refused}");
        // With somebody's token it has what that opens, where it is a node.
        let viewer = thief.with_token_of(&admin);
        let answer = identity.issue_assertions(viewer.request(asked(memory))).await;
        assert_eq!(answer.is_ok(), name.starts_with("node/"), "{name}: {answer:?}");
    }
    // People have no use for it without a node.
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    let refused = identity.issue_assertions(admin.request(asked(memory))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}
