//! Assertions by which a node calls other nodes for a person.

use std::sync::Arc;

use selvage_api::selvage::identity::{
    BlockMachineRequest, CheckAssertionRequest, CreateTokenRequest, DeleteCredentialRequest,
    IssueAssertionsRequest, RevokeSessionRequest, UpdateUserRequest, WhoAmIResponse,
};
use selvage_auth::{Auth, CertificateAuthority};
use selvage_kit::{
    assertion::{self, Call},
    clock::Clock,
    identity::{
        Authenticator, Credentials, Delegation, Form, Identity, Kind, Machine, Role, Secret,
        ShownAssertion,
    },
    pki::Authorities,
};
use tempfile::TempDir;
use tonic::{Code, Response, Status};

use crate::{
    harness::{Harness, as_machine, as_machine_for, as_root, code, options, wire_grants},
    rotation::Signer,
};

const RESTART: &str = "os.OSService/Restart";
const MEMORY: &str = "os.OSService/Memory";

/// A controller with real authorities, on machine `node/c`.
struct Region {
    harness: Harness,
    authorities: Authorities,
    _place: TempDir,
}

impl Region {
    async fn new() -> Self {
        let mut harness = Harness::new().await;
        let place = tempfile::tempdir().unwrap();
        let clock = Arc::new(harness.clock.clone());
        let folder = place.path().join("pki");
        let authorities = Authorities::open_or_create_with(&folder, clock).unwrap();
        let signer = Arc::new(Signer(authorities.clone())) as Arc<dyn CertificateAuthority>;
        let store = Arc::clone(&harness.store);
        harness.auth = Auth::open(store, options(&harness.clock), Some(signer)).await.unwrap();
        harness.auth.name_machine(machine("node/c"));
        Self { harness, authorities, _place: place }
    }

    async fn issue(
        &self,
        by: &str,
        caller: &Identity,
        method: &str,
        machines: &[&str],
    ) -> Result<Vec<String>, Status> {
        let machines = machines.iter().map(|name| (*name).to_owned()).collect();
        let request = IssueAssertionsRequest { method: method.into(), machines };
        let request = as_machine_for(by, caller.clone(), request);
        let issued = self.harness.identities().issue_assertions(request).await?.into_inner();
        Ok(issued.assertions.into_iter().map(|issued| issued.assertion).collect())
    }

    async fn check(&self, machine: &str, assertion: &str) -> Result<WhoAmIResponse, Status> {
        let request = CheckAssertionRequest { assertion: assertion.into() };
        let request = as_machine(machine, request);
        self.harness.identities().check_assertion(request).await.map(Response::into_inner)
    }

    async fn caller(&self, token: &str) -> Identity {
        self.harness.identity(token).await.unwrap()
    }

    fn verify(&self, text: &str, by: &str, to: &str, method: &str) -> Result<Identity, String> {
        let (by, to, method) = (machine(by), machine(to), format!("/{method}"));
        let call = Call { by: &by, to: &to, method: &method };
        let now = self.harness.clock.now();
        let verified = assertion::verify(text, self.authorities.trust(), &call, now);
        verified.and_then(|verified| verified.caller()).map_err(|error| error.to_string())
    }
}

fn machine(name: &str) -> Machine {
    Machine::parse(name).unwrap()
}

#[tokio::test]
async fn a_node_is_given_what_its_caller_may() {
    let region = Region::new().await;
    let harness = &region.harness;
    harness.add("ann", &[("operator", "Tele")]).await;
    harness.add("eve", &[("viewer", "")]).await;
    let login = harness.token("ann").await;
    let ann = region.caller(&login).await;
    let eve = region.caller(&harness.token("eve").await).await;

    let issued = region.issue("node/a", &ann, RESTART, &["node/b", "node/c"]).await.unwrap();
    for (text, to) in issued.iter().zip(["node/b", "node/c"]) {
        assert_eq!(region.verify(text, "node/a", to, RESTART).unwrap(), ann);
    }
    region.verify(&issued[0], "node/a", "node/c", RESTART).unwrap_err();
    region.issue("node/a", &eve, MEMORY, &["node/b"]).await.unwrap();
    assert_eq!(
        code(region.issue("node/a", &eve, RESTART, &["node/b"]).await),
        Code::PermissionDenied
    );

    let token = CreateTokenRequest {
        name: "look".into(),
        grants: wire_grants(&[("operator", "Tele")]),
        methods: vec![MEMORY.into()],
        ..CreateTokenRequest::default()
    };
    let token = harness.with_token(&login, token).await;
    let token = harness.identities().create_token(token).await.unwrap().into_inner();
    let token = region.caller(&token.token).await;
    let text = region.issue("node/a", &token, MEMORY, &["node/b"]).await.unwrap().remove(0);
    let believed = region.verify(&text, "node/a", "node/b", MEMORY).unwrap();
    assert_eq!((believed.name.as_str(), &believed.grants), ("ann+look", &token.grants));
    let refused = region.issue("node/a", &token, RESTART, &["node/b"]).await;
    assert_eq!(code(refused), Code::PermissionDenied);
}

/// Neither a machine by itself, nor a person whose key only the node saw, nor a
/// person without a node.
#[tokio::test]
async fn nobody_else_is_vouched_for() {
    let region = Region::new().await;
    region.harness.add("ann", &[("admin", "")]).await;
    let ann = region.caller(&region.harness.token("ann").await).await;
    let limits =
        Delegation { form: Form::Certificate, id: "x".into(), expires: i64::MAX, methods: vec![] };
    let certificate = Identity { kind: Kind::Delegate(Arc::new(limits)), ..ann.clone() };
    let machines = ["node/a", "controller"].map(|name| Identity::machine(machine(name)));
    for caller in [certificate, Identity::anonymous()].iter().chain(&machines) {
        let refused = region.issue("node/a", caller, MEMORY, &["node/b"]).await.unwrap_err();
        let codes = [Code::PermissionDenied, Code::Unauthenticated];
        assert!(codes.contains(&refused.code()), "{refused}");
    }
    let block = BlockMachineRequest { machine: "node/stolen".into() };
    region.harness.identities().block_machine(as_root(block)).await.unwrap();
    for by in ["controller", "dme/d", "cloudlet/t/c", "node/stolen"] {
        let refused = region.issue(by, &ann, MEMORY, &["node/b"]).await;
        assert_eq!(code(refused), Code::PermissionDenied, "{by}");
    }
    for (method, machines, field) in [
        ("", &["node/b"][..], "method"),
        ("selvage.identity.IdentityService/AddUser", &["node/b"], "method"),
        ("os.OSService/Nothing", &["node/b"], "method"),
        (MEMORY, &[], "machines"),
        (MEMORY, &["node/b", "dme/d"], "machines"),
        (MEMORY, &["b"], "machines"),
        (MEMORY, &["node/b"; 4097], "machines"),
    ] {
        let refused = region.issue("node/a", &ann, method, machines).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{method} {refused}");
        assert!(refused.message().starts_with(field), "{refused}");
    }
}

#[tokio::test]
async fn what_goes_on_ends_with_the_right_to_it() {
    let region = Region::new().await;
    let harness = &region.harness;
    harness.add("ann", &[("operator", "Tele")]).await;
    let login = harness.token("ann").await;
    let ann = region.caller(&login).await;
    let token = CreateTokenRequest {
        name: "ci".into(),
        grants: wire_grants(&[("operator", "Tele")]),
        ..CreateTokenRequest::default()
    };
    let token = harness.with_token(&login, token).await;
    let token = harness.identities().create_token(token).await.unwrap().into_inner();
    let by_token = region.caller(&token.token).await;

    let first = region.issue("node/a", &ann, MEMORY, &["node/b"]).await.unwrap().remove(0);
    let second = region.issue("node/a", &by_token, MEMORY, &["node/b"]).await.unwrap().remove(0);
    // Long after a call could begin with it.
    harness.advance(30 * 60);
    region.verify(&first, "node/a", "node/b", MEMORY).unwrap_err();
    assert_eq!(region.check("node/b", &first).await.unwrap().name, "ann");
    assert_eq!(region.check("node/b", &second).await.unwrap().name, "ann+ci");
    for other in ["node/a", "node/c", "dme/b"] {
        assert_eq!(code(region.check(other, &first).await), Code::PermissionDenied, "{other}");
    }
    assert_eq!(code(region.check("node/b", "a.b.c").await), Code::Unauthenticated);

    // Roles are those of now.
    let update = UpdateUserRequest {
        username: "ann".into(),
        grants: wire_grants(&[("viewer", "")]),
        disabled: false,
    };
    harness.identities().update_user(as_root(update)).await.unwrap();
    assert_eq!(code(region.check("node/b", &first).await), Code::Unauthenticated);
    assert_eq!(code(region.check("node/b", &second).await), Code::Unauthenticated);
    let ann = region.caller(&harness.token("ann").await).await;
    let third = region.issue("node/a", &ann, MEMORY, &["node/b"]).await.unwrap().remove(0);
    let grants = region.check("node/b", &third).await.unwrap().grants;
    assert_eq!(grants, wire_grants(&[("viewer", "")]));
    let Kind::User { session, .. } = &ann.kind else { panic!("{ann:?}") };
    let revoke = RevokeSessionRequest { id: session.clone() };
    harness.identities().revoke_session(as_root(revoke)).await.unwrap();
    assert_eq!(code(region.check("node/b", &third).await), Code::Unauthenticated);
}

/// The controller's own machine is one of those that are called.
#[tokio::test]
async fn the_controllers_own_machine_looks_into_its_store() {
    let region = Region::new().await;
    let harness = &region.harness;
    harness.add("ann", &[("operator", "Tele")]).await;
    let login = harness.token("ann").await;
    let token = CreateTokenRequest {
        name: "ci".into(),
        grants: wire_grants(&[("operator", "Tele")]),
        ..CreateTokenRequest::default()
    };
    let token = harness.with_token(&login, token).await;
    let token = harness.identities().create_token(token).await.unwrap().into_inner();
    let caller = region.caller(&token.token).await;
    let text = region.issue("node/a", &caller, RESTART, &["node/c"]).await.unwrap().remove(0);
    let shown = |by: &str, method: &str, goes_on| {
        Credentials::Assertion(ShownAssertion {
            text: Secret::new(&*text),
            by: machine(by),
            method: format!("/{method}"),
            goes_on,
        })
    };
    let auth = &harness.auth;
    let caller = auth.authenticate(&shown("node/a", RESTART, false)).await.unwrap();
    assert!(caller.name == "ann+ci" && caller.has_role(Role::Operator));
    for wrong in [shown("node/b", RESTART, false), shown("node/a", MEMORY, false)] {
        auth.authenticate(&wrong).await.unwrap_err();
    }
    harness.advance(3 * 60);
    auth.authenticate(&shown("node/a", RESTART, false)).await.unwrap_err();
    auth.authenticate(&shown("node/a", RESTART, true)).await.unwrap();
    let id = token.credential.unwrap().id;
    let delete = DeleteCredentialRequest { id };
    harness.identities().delete_credential(as_root(delete)).await.unwrap();
    auth.authenticate(&shown("node/a", RESTART, true)).await.unwrap_err();
}

/// Whoever believes only the authority of before believes what is signed while
/// it is being replaced; the signer follows.
#[tokio::test]
async fn what_is_signed_is_believed_while_the_authority_is_replaced() {
    let region = Region::new().await;
    region.harness.add("ann", &[("admin", "")]).await;
    let ann = region.caller(&region.harness.token("ann").await).await;
    let before = selvage_kit::pki::Trust::of(&region.authorities.pem()).unwrap();
    let old = region.issue("node/a", &ann, MEMORY, &["node/b"]).await.unwrap().remove(0);
    let next = region.authorities.signer().next().unwrap();
    let after = selvage_kit::pki::Trust::of(next.pem()).unwrap();
    let both = vec![Arc::new(next), region.authorities.signer()];
    region.authorities.replace(both).unwrap();
    let new = region.issue("node/a", &ann, MEMORY, &["node/b"]).await.unwrap().remove(0);
    let (by, to, method) = (machine("node/a"), machine("node/b"), format!("/{MEMORY}"));
    let call = Call { by: &by, to: &to, method: &method };
    let now = region.harness.clock.now();
    assertion::verify(&old, &before, &call, now).unwrap();
    assertion::verify(&old, &after, &call, now).unwrap_err();
    assertion::verify(&new, &before, &call, now).unwrap();
    assertion::verify(&new, &after, &call, now).unwrap();
}
