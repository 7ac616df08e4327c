//! Keys of machines in the wrong hands: the keys of a crm, a node and a match
//! engine against everything, on a real process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clusters;
mod credentials;
mod files;
mod notices;

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

/// Nobody becomes somebody else by saying so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_speaks_for_nobody_above_it() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let person = r#"{"person":{"session":"","expires":99999999999}}"#;
    let told = &format!(r#"{{"name":"admin","kind":{person},"grants":[["admin",""]]}}"#);
    for (_, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        for path in [
            "/machine.MachineService/Read",
            "/machine.MachineService/Kubeconfig",
            "/machine.MachineService/Reboot",
            "/os.OSService/Restart",
            "/proto.LVService/CreateLV",
            "/selvage.identity.IdentityService/ListUsers",
        ] {
            let code = thief.begins_with(path, &[], &[("selvage-caller-bin", told)]).await;
            assert_eq!(code, Code::PermissionDenied, "{name}: {path}");
        }
    }
}
