//! Every method of the contracts that the originals published, called on a whole system:
//! none of them is missing but those that are named here, each with its reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use selvage_tests::{Client, Selvage};
use tonic::Code;

/// Methods that answer UNIMPLEMENTED on purpose, and why.
const ALLOWED: [(&str, &str); 2] = [
    (
        "/securityapi.SecurityService/ReadFile",
        "keys and certificates are not served over the network; machine.MachineService/Read is",
    ),
    (
        "/securityapi.SecurityService/WriteFile",
        "keys and certificates are not written over the network: Certificate signs new ones",
    ),
];

/// Ends the session of whoever asks; the suite of logins calls it.
const LOGOUT: &str = "/services.auth.AuthService/Logout";

#[tokio::test]
async fn no_method_of_a_published_contract_is_missing() {
    let selvage = Selvage::up(&["--set", "kaas.provider=sim"]);
    let admin = Client::admin(&selvage).await;
    let published = selvage_api::methods().iter().filter(|method| {
        let ours = method.service.starts_with("selvage.");
        !ours && method.path != LOGOUT
    });
    let mut called = 0;
    let mut missing = BTreeSet::new();
    for method in published {
        called += 1;
        if admin.begins(&method.path, &[]).await == Code::Unimplemented {
            missing.insert(method.path.as_str());
        }
    }
    assert!(called > 100, "{called} methods are not all of them");
    let allowed = ALLOWED.iter().map(|(path, _)| *path).collect::<BTreeSet<_>>();
    assert_eq!(missing, allowed);
}
