//! Tokens and certificates of people in the wrong hands, on a real process.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use prost::Message;
use selvage_api::selvage::{
    dashboard::{WatchOverviewRequest, dashboard_service_client::DashboardServiceClient},
    identity::{
        AddUserRequest, CreateCertificateRequest, CreateTokenRequest, Credential,
        DeleteCredentialRequest, Grant as WireGrant, UpdateUserRequest, User,
        identity_service_client::IdentityServiceClient,
    },
};
use selvage_kit::{
    access::Delegates,
    identity::{Delegation, Form, Grant, Identity, Kind, Role},
};
use selvage_tests::client::http;
use tonic::transport::Channel;

use super::*;

const WHO_AM_I: &str = "/selvage.identity.IdentityService/WhoAmI";
pub(super) const PASSWORD: &str = "correct horse";

pub(super) fn grants(role: &str, organisation: &str) -> Vec<WireGrant> {
    vec![WireGrant { role: role.into(), organisation: organisation.into() }]
}

/// A name that nothing has yet.
fn fresh(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn api(client: &Client) -> IdentityServiceClient<Channel> {
    IdentityServiceClient::new(client.channel.clone())
}

pub(super) async fn add(admin: &Client, name: &str, grants: Vec<WireGrant>) {
    let user = User { username: name.into(), grants, ..User::default() };
    let request = AddUserRequest { user: Some(user), password: PASSWORD.into() };
    api(admin).add_user(admin.request(request)).await.unwrap();
}

/// A client with nothing but a token of the caller's.
pub(super) async fn token(
    selvage: &Selvage,
    owner: &Client,
    grants: Vec<WireGrant>,
    methods: &[&str],
) -> (Client, Credential) {
    let request = CreateTokenRequest {
        name: fresh("t"),
        grants,
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        ..CreateTokenRequest::default()
    };
    let made = api(owner).create_token(owner.request(request)).await.unwrap().into_inner();
    let thief = Client { token: Some(made.token), ..Client::anonymous(selvage).await };
    (thief, made.credential.unwrap())
}

/// The same with a certificate and its key.
async fn certificate(
    selvage: &Selvage,
    owner: &Client,
    grants: Vec<WireGrant>,
) -> (Client, Credential) {
    let (certificate, key, credential) = key_pair(owner, grants).await;
    (Client::machine(selvage, &certificate, &key).await, credential)
}

/// Certificate and key, both PEM, and what the list says of them.
pub(super) async fn key_pair(
    owner: &Client,
    grants: Vec<WireGrant>,
) -> (String, String, Credential) {
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let name = fresh("c");
    let request = CreateCertificateRequest { name, grants, csr, ..Default::default() };
    let made = api(owner).create_certificate(owner.request(request)).await.unwrap().into_inner();
    (made.certificate, key.serialize_pem(), made.credential.unwrap())
}

fn identity(role: Role, organisation: &str, methods: &[&str]) -> Identity {
    let limits = Delegation {
        form: Form::Token,
        id: String::new(),
        expires: i64::MAX,
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
    };
    let grants = vec![Grant { role, organisation: organisation.into() }];
    Identity { name: "thief".into(), kind: Kind::Delegate(limits.into()), grants }
}

/// Stolen ones against every method that the table closes to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_token_or_certificate_stays_within_its_limits() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let access = Access::load().unwrap();
    let (none, one): (&[&str], &[&str]) = (&[], &["edgeproto.AppApi/ShowApp"]);
    let acme = grants("developer", "Acme");
    let cases = [
        (certificate(&selvage, &admin, acme.clone()).await.0, Role::Developer, "Acme", none),
        (token(&selvage, &admin, acme, none).await.0, Role::Developer, "Acme", none),
        (token(&selvage, &admin, grants("viewer", ""), none).await.0, Role::Viewer, "", none),
        (token(&selvage, &admin, grants("operator", "T"), none).await.0, Role::Operator, "T", none),
        // An administrator's, limited to one method.
        (token(&selvage, &admin, grants("admin", ""), one).await.0, Role::Admin, "", one),
    ];
    for (thief, role, organisation, methods) in &cases {
        let known = identity(*role, organisation, methods);
        let mut refused = 0;
        for rule in access.rules().filter(|rule| rule.decide_early(&known).is_err()) {
            let path = rule.path.as_str();
            assert_eq!(thief.begins(path, &[]).await, Code::PermissionDenied, "{role}: {path}");
            refused += 1;
        }
        assert!(refused > 50, "{role}: {refused}");
        assert_eq!(thief.code(WHO_AM_I, &[]).await, Code::Ok, "{role}");
    }
    // Whatever makes credentials is closed to all of an administrator's.
    let all = ["selvage.identity.IdentityService/*"];
    let (unlimited, _) = token(&selvage, &admin, grants("admin", ""), &[]).await;
    let (service, _) = token(&selvage, &admin, grants("admin", ""), &all).await;
    let (shown, _) = certificate(&selvage, &admin, grants("admin", "")).await;
    for rule in access.rules().filter(|rule| rule.delegates() != Delegates::Welcome) {
        for thief in [&unlimited, &service, &shown] {
            let code = thief.begins(&rule.path, &[]).await;
            assert_eq!(code, Code::PermissionDenied, "{}", rule.path);
        }
    }
}

/// Every protocol, every way to end: revoked, owner demoted, owner removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_is_refused_by_every_protocol() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    add(&admin, "ann", grants("viewer", "")).await;
    let ann = Client::login(&selvage, "ann", PASSWORD).await.unwrap();
    let (by_token, kept) = token(&selvage, &ann, grants("viewer", ""), &[]).await;
    let (by_certificate, shown) = certificate(&selvage, &ann, grants("viewer", "")).await;
    let text = by_token.token.clone().unwrap();
    assert_eq!(protocols(&selvage, &text).await, [200, 200, 200]);
    assert_eq!(by_token.code(WHO_AM_I, &[]).await, Code::Ok);
    assert_eq!(by_certificate.code(WHO_AM_I, &[]).await, Code::Ok);

    // The owner becomes something else: both are void until that is undone.
    for (roles, code) in
        [(grants("developer", "Acme"), Code::Unauthenticated), (grants("viewer", ""), Code::Ok)]
    {
        let request = UpdateUserRequest { username: "ann".into(), grants: roles, disabled: false };
        api(&admin).update_user(admin.request(request)).await.unwrap();
        for thief in [&by_token, &by_certificate] {
            assert_eq!(thief.code(WHO_AM_I, &[]).await, code);
        }
    }
    for credential in [kept, shown] {
        let request = DeleteCredentialRequest { id: credential.id };
        api(&admin).delete_credential(admin.request(request)).await.unwrap();
    }
    // On the connection that was open already, too.
    for thief in [&by_token, &by_certificate] {
        assert_eq!(thief.code(WHO_AM_I, &[]).await, Code::Unauthenticated);
        assert_eq!(thief.code("/edgeproto.AppApi/ShowApp", &[]).await, Code::Unauthenticated);
    }
    assert_eq!(protocols(&selvage, &text).await, [401, 401, 401]);
}

/// Statuses of REST, Connect and the page of metrics.
async fn protocols(selvage: &Selvage, token: &str) -> [u16; 3] {
    let (http, endpoint) = (http(selvage), selvage.endpoint());
    let mut statuses = [0; 3];
    for (status, request) in statuses.iter_mut().zip([
        http.get(format!("{endpoint}/selvage/v1/whoami")),
        http.post(format!("{endpoint}{WHO_AM_I}")).json(&serde_json::json!({})),
        http.get(format!("{endpoint}/metrics")),
    ]) {
        *status = request.bearer_auth(token).send().await.unwrap().status().as_u16();
    }
    statuses
}

/// Open streams end when what opened them is revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_what_opened_them() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    for (thief, credential) in [
        token(&selvage, &admin, grants("viewer", ""), &[]).await,
        certificate(&selvage, &admin, grants("viewer", "")).await,
    ] {
        let mut overview = DashboardServiceClient::new(thief.channel.clone());
        let request = thief.request(WatchOverviewRequest::default());
        let mut stream = overview.watch_overview(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_some());
        let request = DeleteCredentialRequest { id: credential.id };
        api(&admin).delete_credential(admin.request(request)).await.unwrap();
        let ended = async {
            loop {
                if let Err(status) = stream.message().await {
                    return status.code();
                }
            }
        };
        // Generous: the machine may be busy.
        let ended = tokio::time::timeout(Duration::from_secs(120), ended).await.unwrap();
        assert_eq!(ended, Code::Unauthenticated);
    }
}

/// A list of methods closes the pages, and one may be limited to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_for_scraping_does_nothing_else() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let (scrape, _) = token(&selvage, &admin, grants("viewer", ""), &["/metrics"]).await;
    let (other, _) =
        token(&selvage, &admin, grants("viewer", ""), &["edgeproto.AppApi/ShowApp"]).await;
    let metrics = format!("{}/metrics", selvage.endpoint());
    for (thief, status, code) in [(&scrape, 200, Code::PermissionDenied), (&other, 403, Code::Ok)] {
        let asked = http(&selvage).get(&metrics).bearer_auth(thief.token.as_ref().unwrap());
        assert_eq!(asked.send().await.unwrap().status(), status);
        assert_eq!(thief.code("/edgeproto.AppApi/ShowApp", &[]).await, code);
    }
    // Nor does a token make itself a longer life.
    let request = CreateTokenRequest { grants: grants("viewer", ""), ..Default::default() };
    let path = "/selvage.identity.IdentityService/CreateToken";
    assert_eq!(other.code(path, &request.encode_to_vec()).await, Code::PermissionDenied);
}
