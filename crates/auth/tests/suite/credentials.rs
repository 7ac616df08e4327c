//! Tokens and certificates that people hand to programs.

use selvage_api::selvage::identity::{
    CheckCertificateRequest, CreateCertificateRequest, CreateCertificateResponse,
    CreateJoinTokenRequest, CreateTokenRequest, CreateTokenResponse, DeleteCredentialRequest,
    ListCredentialsRequest, RemoveUserRequest, SetPasswordRequest, UpdateUserRequest,
    WhoAmIRequest,
};
use selvage_kit::{
    identity::{
        Authenticator, Credentials, Form, Grant, Identity, Kind, PersonCertificate, Refused, Role,
        Secret,
    },
    pki,
};
use tonic::{Code, Request, Response, Status};

use crate::harness::{Harness, PASSWORD, as_machine, as_root, code, csr, wire_grants};

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

fn asked(name: &str, grants: &[(&str, &str)]) -> CreateTokenRequest {
    let grants = wire_grants(grants);
    CreateTokenRequest { name: name.into(), grants, ..CreateTokenRequest::default() }
}

async fn try_make(
    harness: &Harness,
    request: Request<CreateTokenRequest>,
) -> Result<CreateTokenResponse, Status> {
    harness.identities().create_token(request).await.map(Response::into_inner)
}

/// A token of a user, made with that user's login.
async fn make(harness: &Harness, owner: &str, request: CreateTokenRequest) -> CreateTokenResponse {
    let login = harness.token(owner).await;
    try_make(harness, harness.with_token(&login, request).await).await.unwrap()
}

async fn certificate(
    harness: &Harness,
    owner: &str,
    name: &str,
    grants: &[(&str, &str)],
) -> CreateCertificateResponse {
    let login = harness.token(owner).await;
    let request = CreateCertificateRequest {
        name: name.into(),
        grants: wire_grants(grants),
        csr: csr(),
        ..CreateCertificateRequest::default()
    };
    let request = harness.with_token(&login, request).await;
    harness.identities().create_certificate(request).await.unwrap().into_inner()
}

async fn shown(harness: &Harness, token: &str) -> Result<Identity, Refused> {
    harness.auth.authenticate(&Credentials::Bearer(Secret::new(token))).await
}

async fn shown_certificate(harness: &Harness, pem: &str) -> Result<Identity, Refused> {
    let sha256 = pki::certificate_sha256(pem).unwrap();
    harness.auth.authenticate(&Credentials::Certificate(PersonCertificate { sha256 })).await
}

fn developer(organisation: &str) -> Grant {
    Grant { role: Role::Developer, organisation: organisation.into() }
}

async fn set_grants(harness: &Harness, username: &str, grants: &[(&str, &str)], disabled: bool) {
    let request =
        UpdateUserRequest { username: username.into(), grants: wire_grants(grants), disabled };
    harness.identities().update_user(as_root(request)).await.unwrap();
}

async fn last_use(harness: &Harness, username: &str) -> Option<i64> {
    let request = ListCredentialsRequest { username: username.into() };
    let listed = harness.identities().list_credentials(as_root(request)).await.unwrap();
    listed.into_inner().credentials.pop().unwrap().last_used_at.map(|at| at.seconds)
}

#[tokio::test]
async fn a_token_acts_in_its_owners_name_within_its_grants() {
    let harness = Harness::new().await;
    harness.add("ann", &[("developer", "Acme"), ("developer", "Beta")]).await;
    let mut request = asked("ci", &[("developer", "Acme")]);
    request.methods = vec!["edgeproto.AppInstApi/*".into(), "/metrics".into()];
    let made = make(&harness, "ann", request).await;
    assert!(made.token.starts_with("slvt_") && made.token.len() == 48);
    let identity = shown(&harness, &made.token).await.unwrap();
    assert_eq!((identity.name.as_str(), &identity.grants), ("ann+ci", &vec![developer("Acme")]));
    let Kind::Delegate(limits) = &identity.kind else { panic!("{:?}", identity.kind) };
    assert_eq!((limits.form, limits.methods.len()), (Form::Token, 2));
    // A month unless said otherwise.
    assert_eq!(limits.expires, harness.clock_seconds() + 30 * DAY as i64);

    let who = harness.with_token(&made.token, WhoAmIRequest {}).await;
    let who = harness.identities().who_am_i(who).await.unwrap().into_inner();
    assert_eq!((who.name.as_str(), who.kind.as_str()), ("ann+ci", "token"));
    assert_eq!(who.methods, ["edgeproto.AppInstApi/*", "/metrics"]);
    // A cookie is a browser's session and nothing else.
    let cookie = Credentials::Cookie(Secret::new(&*made.token));
    assert!(harness.auth.authenticate(&cookie).await.is_err());
}

#[tokio::test]
async fn a_token_never_does_more_than_its_owner_may_now() {
    let harness = Harness::new().await;
    harness.add("ann", &[("admin", "")]).await;
    harness.add("root", &[("admin", "")]).await;
    let grants = [("admin", ""), ("developer", "Acme"), ("viewer", "")];
    let token = make(&harness, "ann", asked("ci", &grants)).await.token;
    let pem = certificate(&harness, "ann", "laptop", &grants).await.certificate;
    assert_eq!(shown(&harness, &token).await.unwrap().grants.len(), 3);

    set_grants(&harness, "ann", &[("developer", "Acme"), ("operator", "Tele")], false).await;
    for identity in [shown(&harness, &token).await, shown_certificate(&harness, &pem).await] {
        assert_eq!(identity.unwrap().grants, [developer("Acme")]);
    }
    for (grants, disabled) in [
        // Of another organisation, of none, and locked out.
        (&[("developer", "Beta")][..], false),
        (&[("operator", "Acme")][..], false),
        (&[("admin", "")][..], true),
    ] {
        set_grants(&harness, "ann", grants, disabled).await;
        for identity in [shown(&harness, &token).await, shown_certificate(&harness, &pem).await] {
            assert_eq!(identity.unwrap_err().code, selvage_api::Code::Unauthenticated);
        }
    }
    // What is given back is given back to the token too.
    set_grants(&harness, "ann", &[("developer", "Acme")], false).await;
    assert_eq!(shown(&harness, &token).await.unwrap().grants, [developer("Acme")]);
}

#[tokio::test]
async fn nobody_makes_a_token_above_himself_or_of_another() {
    let harness = Harness::new().await;
    harness.add("ann", &[("developer", "Acme")]).await;
    harness.add("bob", &[("viewer", "")]).await;
    let login = harness.token("ann").await;
    for grants in [
        &[("admin", "")][..],
        &[("viewer", "")],
        &[("operator", "Acme")],
        &[("developer", "Beta")],
        &[("developer", "Acme"), ("viewer", "")],
    ] {
        let request = harness.with_token(&login, asked("ci", grants)).await;
        let refused = try_make(&harness, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{grants:?}");
        assert!(refused.message().contains("ann does not hold"), "{}", refused.message());
    }
    let of_bob = CreateTokenRequest { username: "bob".into(), ..asked("ci", &[("viewer", "")]) };
    let request = harness.with_token(&login, of_bob.clone()).await;
    assert_eq!(code(try_make(&harness, request).await), Code::PermissionDenied);
    // An administrator makes it, and it is bob's.
    let made = try_make(&harness, as_root(of_bob)).await.unwrap();
    assert_eq!(shown(&harness, &made.token).await.unwrap().name, "bob+ci");
    let above = CreateTokenRequest { username: "bob".into(), ..asked("up", &[("admin", "")]) };
    assert_eq!(code(try_make(&harness, as_root(above)).await), Code::PermissionDenied);
    // A certificate is bound in the same way.
    let request = CreateCertificateRequest {
        name: "laptop".into(),
        grants: wire_grants(&[("admin", "")]),
        csr: csr(),
        ..CreateCertificateRequest::default()
    };
    let request = harness.with_token(&login, request).await;
    let refused = harness.identities().create_certificate(request).await;
    assert_eq!(code(refused), Code::PermissionDenied);
}

#[tokio::test]
async fn bad_requests_name_their_field() {
    let harness = Harness::new().await;
    harness.add("ann", &[("developer", "Acme")]).await;
    let good = asked("ci", &[("developer", "Acme")]);
    let with = |change: &dyn Fn(&mut CreateTokenRequest)| {
        let mut request = CreateTokenRequest { username: "ann".into(), ..good.clone() };
        change(&mut request);
        request
    };
    for (field, request) in [
        ("name", with(&|it| it.name = String::new())),
        ("name", with(&|it| it.name = "a+b".into())),
        ("username", with(&|it| it.username = String::new())),
        ("grants", with(&|it| it.grants.clear())),
        ("ttl_seconds", with(&|it| it.ttl_seconds = 1)),
        ("ttl_seconds", with(&|it| it.ttl_seconds = 367 * DAY as u32)),
        ("methods", with(&|it| it.methods = vec!["*".into()])),
        ("methods", with(&|it| it.methods = vec!["edgeproto.AppApi/Nothing".into()])),
        ("methods", with(&|it| it.methods = vec!["edgeproto.AppApi/ShowApp".into(); 65])),
    ] {
        let refused = try_make(&harness, as_root(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{field}: {}", refused.message());
        assert!(refused.message().starts_with(&format!("{field}: ")), "{}", refused.message());
    }
    let nobody = with(&|it| it.username = "nobody".into());
    assert_eq!(code(try_make(&harness, as_root(nobody)).await), Code::NotFound);
    try_make(&harness, as_root(with(&|_| {}))).await.unwrap();
    assert_eq!(code(try_make(&harness, as_root(with(&|_| {}))).await), Code::AlreadyExists);
}

#[tokio::test]
async fn a_user_has_a_limited_number() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let request = |number: usize| CreateTokenRequest {
        username: "ann".into(),
        ..asked(&format!("t{number}"), &[("viewer", "")])
    };
    for number in 0..64 {
        try_make(&harness, as_root(request(number))).await.unwrap();
    }
    assert_eq!(code(try_make(&harness, as_root(request(64))).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn tokens_expire_end_and_are_swept() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let short = CreateTokenRequest { ttl_seconds: 3600, ..asked("short", &[("viewer", "")]) };
    let short = make(&harness, "ann", short).await;
    let long = make(&harness, "ann", asked("long", &[("viewer", "")])).await;
    harness.advance(59 * MINUTE);
    assert!(shown(&harness, &short.token).await.is_ok());
    harness.advance(MINUTE);
    let refused = shown(&harness, &short.token).await.unwrap_err();
    assert!(refused.message.contains("expired"), "{}", refused.message);
    assert!(shown(&harness, &long.token).await.is_ok());

    let id = long.credential.unwrap().id;
    let request = || as_root(DeleteCredentialRequest { id: id.clone() });
    harness.identities().delete_credential(request()).await.unwrap();
    assert!(shown(&harness, &long.token).await.is_err());
    assert_eq!(code(harness.identities().delete_credential(request()).await), Code::NotFound);
    // One sees for a week why a program fails.
    harness.advance(6 * DAY);
    assert_eq!(harness.auth.sweep().await.unwrap().credentials, 0);
    harness.advance(DAY);
    assert_eq!(harness.auth.sweep().await.unwrap().credentials, 1);
}

#[tokio::test]
async fn tokens_outlive_a_password_but_not_their_owner() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let token = make(&harness, "ann", asked("ci", &[("viewer", "")])).await.token;
    let pem = certificate(&harness, "ann", "laptop", &[("viewer", "")]).await.certificate;
    let request = SetPasswordRequest {
        username: "ann".into(),
        current_password: String::new(),
        new_password: "another horse".into(),
    };
    harness.identities().set_password(as_root(request)).await.unwrap();
    assert!(shown(&harness, &token).await.is_ok());

    let request = RemoveUserRequest { username: "ann".into() };
    harness.identities().remove_user(as_root(request)).await.unwrap();
    assert!(shown(&harness, &token).await.is_err());
    // Another ann is another person.
    harness.advance(1);
    harness.add("ann", &[("admin", "")]).await;
    assert!(shown(&harness, &token).await.is_err());
    assert!(shown_certificate(&harness, &pem).await.is_err());
}

#[tokio::test]
async fn another_person_of_the_same_name_is_not_the_owner() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let token = make(&harness, "ann", asked("ci", &[("viewer", "")])).await.token;
    // As if the records had stayed behind when ann was removed.
    let kept: Vec<_> = harness.credentials().await;
    let request = RemoveUserRequest { username: "ann".into() };
    harness.identities().remove_user(as_root(request)).await.unwrap();
    harness.restore(&kept).await;
    harness.advance(1);
    harness.add("ann", &[("admin", "")]).await;
    assert!(shown(&harness, &token).await.is_err());
}

#[tokio::test]
async fn the_last_use_is_written_down_once_a_minute() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let token = make(&harness, "ann", asked("ci", &[("viewer", "")])).await.token;
    assert_eq!(last_use(&harness, "ann").await, None);
    shown(&harness, &token).await.unwrap();
    let first = last_use(&harness, "ann").await.unwrap();
    harness.advance(30);
    shown(&harness, &token).await.unwrap();
    assert_eq!(last_use(&harness, "ann").await, Some(first));
    harness.advance(30);
    shown(&harness, &token).await.unwrap();
    assert_eq!(last_use(&harness, "ann").await, Some(first + 60));
}

#[tokio::test]
async fn one_sees_and_ends_ones_own_and_an_administrator_all() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    harness.add("bob", &[("viewer", "")]).await;
    let of_ann = make(&harness, "ann", asked("ci", &[("viewer", "")])).await.credential.unwrap();
    make(&harness, "bob", asked("ci", &[("viewer", "")])).await;
    let login = harness.token("bob").await;
    let list = async |username: &str, login: &str| {
        let request = ListCredentialsRequest { username: username.into() };
        let request = harness.with_token(login, request).await;
        let listed = harness.identities().list_credentials(request).await?;
        let listed = listed.into_inner().credentials.into_iter();
        Ok::<Vec<String>, Status>(listed.map(|it| format!("{}+{}", it.username, it.name)).collect())
    };
    assert_eq!(list("", &login).await.unwrap(), ["bob+ci"]);
    for other in ["ann", "*"] {
        assert_eq!(code(list(other, &login).await), Code::PermissionDenied);
    }
    let request = || DeleteCredentialRequest { id: of_ann.id.clone() };
    let refused = harness.with_token(&login, request()).await;
    assert_eq!(code(harness.identities().delete_credential(refused).await), Code::NotFound);
    let all = as_root(ListCredentialsRequest { username: "*".into() });
    let all = harness.identities().list_credentials(all).await.unwrap().into_inner();
    assert_eq!(all.credentials.len(), 2);
    harness.identities().delete_credential(as_root(request())).await.unwrap();
}

#[tokio::test]
async fn a_certificate_counts_while_it_is_known() {
    let harness = Harness::new().await;
    harness.add("ann", &[("operator", "Tele")]).await;
    let made = certificate(&harness, "ann", "laptop", &[("operator", "Tele")]).await;
    let identity = shown_certificate(&harness, &made.certificate).await.unwrap();
    assert_eq!((identity.name.as_str(), identity.grants.len()), ("ann+laptop", 1));
    let sha256 = pki::certificate_sha256(&made.certificate).unwrap();
    // Its digest, which is no secret, opens nothing.
    for text in [sha256.clone(), format!("slvt_{}", &sha256[..43])] {
        assert!(shown(&harness, &text).await.is_err());
    }
    // Agents ask for it.
    let check = |sha256: &str| CheckCertificateRequest { sha256: sha256.into() };
    let asked = as_machine("node/a", check(&sha256));
    let who = harness.identities().check_certificate(asked).await.unwrap().into_inner();
    assert_eq!((who.name.as_str(), who.kind.as_str()), ("ann+laptop", "certificate"));
    let token = make(&harness, "ann", asked_operator()).await.token;
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&token));
    let asked = as_machine("node/a", check(&digest));
    assert_eq!(code(harness.identities().check_certificate(asked).await), Code::Unauthenticated);

    let id = made.credential.unwrap().id;
    let request = as_root(DeleteCredentialRequest { id });
    harness.identities().delete_credential(request).await.unwrap();
    assert!(shown_certificate(&harness, &made.certificate).await.is_err());
}

fn asked_operator() -> CreateTokenRequest {
    asked("ci", &[("operator", "Tele")])
}

#[tokio::test]
async fn a_certificate_ends_by_the_clock_even_on_an_open_connection() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    let made = certificate(&harness, "ann", "laptop", &[("viewer", "")]).await;
    harness.advance(12 * 60 * MINUTE - 1);
    assert!(shown_certificate(&harness, &made.certificate).await.is_ok());
    harness.advance(1);
    assert!(shown_certificate(&harness, &made.certificate).await.is_err());
}

#[tokio::test]
async fn operators_let_their_own_cloudlets_in_and_programs_no_controller() {
    let harness = Harness::new().await;
    harness.add("ops", &[("operator", "tmus")]).await;
    harness.add("root", &[("admin", "")]).await;
    let operator = harness.token("ops").await;
    let program = make(&harness, "root", asked("boot", &[("admin", "")])).await.token;
    for (token, machine, outcome) in [
        (&operator, "cloudlet/tmus/west", Ok(())),
        (&operator, "cloudlet/other/west", Err(Code::PermissionDenied)),
        (&operator, "node/rack3", Err(Code::PermissionDenied)),
        (&operator, "dme/west", Err(Code::PermissionDenied)),
        (&operator, "controller", Err(Code::PermissionDenied)),
        (&program, "node/rack3", Ok(())),
        (&program, "controller", Err(Code::PermissionDenied)),
    ] {
        let request = CreateJoinTokenRequest { machine: machine.into(), ..Default::default() };
        let request = harness.with_token(token, request).await;
        let made = harness.identities().create_join_token(request).await;
        assert_eq!(made.map(drop).map_err(|status| status.code()), outcome, "{machine}");
    }
}

#[tokio::test]
async fn tokens_are_kept_as_digests_only() {
    let harness = Harness::new().await;
    harness.add("ann", &[("viewer", "")]).await;
    assert!(!PASSWORD.is_empty());
    let token = make(&harness, "ann", asked("ci", &[("viewer", "")])).await.token;
    for (key, value) in harness.credentials().await {
        let text = format!("{key}{}", String::from_utf8_lossy(&value));
        assert!(!text.contains(&token[5..]), "{text}");
    }
}
