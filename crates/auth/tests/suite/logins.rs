//! Login, Logout, CheckToken.

use std::{sync::Arc, time::Duration};

use selvage_api::{
    selvage::identity::{SetPasswordRequest, UpdateUserRequest},
    services::auth::{CheckTokenRequest, LoginRequest, LogoutRequest},
};
use selvage_auth::{Auth, GeneratedPassword, HashCost, OidcProvider, Options};
use selvage_kit::{
    clock::ManualClock,
    identity::{Credentials, Kind, Role, Secret},
};
use selvage_store::{SharedStore, embedded};
use tonic::Code;

use crate::harness::{
    HERE, Harness, PASSWORD, anonymous, as_root, code, memory, options, wire_grants,
};

#[tokio::test]
async fn a_login_gives_a_token_that_says_who_one_is() {
    let h = Harness::new().await;
    h.add("anna", &[("operator", "tmus"), ("viewer", "")]).await;
    let reply = h.login_from(HERE, "anna", PASSWORD).await.unwrap();
    assert!(reply.metadata().get("set-cookie").is_none());
    let reply = reply.into_inner();
    assert_eq!(reply.account_id, "selvage-user-anna");
    assert!(reply.token.starts_with("slv_") && reply.token.len() == 47, "{}", reply.token.len());
    let expires = reply.expires.unwrap().timestamp.unwrap().seconds;
    assert_eq!(expires, "2026-06-02T00:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second());

    let identity = h.identity(&reply.token).await.unwrap();
    assert_eq!(identity.name, "anna");
    assert!(identity.has_role(Role::Viewer) && !identity.has_role(Role::Admin));
    assert_eq!(identity.organisations(Role::Operator).collect::<Vec<_>>(), ["tmus"]);
    assert!(matches!(identity.kind, Kind::User { expires: at, .. } if at == expires));
}

#[tokio::test]
async fn every_failed_login_gets_the_same_answer() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    h.add("bert", &[]).await;
    let grants = wire_grants(&[("viewer", "")]);
    let disable = UpdateUserRequest { username: "bert".into(), grants, disabled: true };
    h.identities().update_user(as_root(disable)).await.unwrap();
    let long = "x".repeat(100_000);
    let cases = [
        ("anna", "wrong horse"),
        ("anna", long.as_str()),
        ("bert", PASSWORD),
        ("nobody", PASSWORD),
        ("no such name!", PASSWORD),
    ];
    for (username, password) in cases {
        let status = h.login_from(HERE, username, password).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{username}");
        assert_eq!(status.message(), "wrong username or password", "{username}");
    }
}

#[tokio::test]
async fn missing_fields_are_named() {
    let h = Harness::new().await;
    for (username, password, field) in [("", "x", "username: "), ("anna", "", "password: ")] {
        let status = h.login_from(HERE, username, password).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
}

#[tokio::test]
async fn a_browser_gets_a_cookie_and_no_token() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let login = LoginRequest { username: "anna".into(), password: PASSWORD.into() };
    let mut request = anonymous(HERE, login.clone());
    request.metadata_mut().insert("x-session", "cookie".parse().unwrap());
    let reply = h.logins().login(request).await.unwrap();
    assert_eq!(reply.get_ref().token, "");
    let cookie = reply.metadata().get("set-cookie").unwrap().to_str().unwrap();
    let (token, attributes) = cookie.strip_prefix("__Host-sid=").unwrap().split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=43200");
    assert!(h.is_valid(token).await);

    // It cannot see its token, so it asks about "this one".
    let ask = CheckTokenRequest::default();
    let reply = h.logins().check_token(h.with_token(token, ask.clone()).await).await.unwrap();
    assert!(reply.into_inner().success);
    assert!(!h.logins().check_token(anonymous(HERE, ask)).await.unwrap().into_inner().success);

    // Logging in anew replaces the session whose cookie is replaced.
    let mut request = h.with_token(token, login.clone()).await;
    request.metadata_mut().insert("x-session", "cookie".parse().unwrap());
    let reply = h.logins().login(request).await.unwrap();
    assert!(!h.is_valid(token).await);
    let cookie = reply.metadata().get("set-cookie").unwrap().to_str().unwrap();
    let token = cookie.strip_prefix("__Host-sid=").unwrap().split_once("; ").unwrap().0;

    let mut logout = h.with_token(token, LogoutRequest {}).await;
    let sent = format!("__Host-sid={token}");
    logout.metadata_mut().insert("cookie", sent.parse().unwrap());
    let reply = h.logins().logout(logout).await.unwrap();
    let cleared = reply.metadata().get("set-cookie").unwrap().to_str().unwrap();
    assert!(cleared.starts_with("__Host-sid=; ") && cleared.ends_with("Max-Age=0"), "{cleared}");
    assert!(!h.is_valid(token).await);

    let mut request = anonymous(HERE, login);
    request.metadata_mut().insert("x-session", "jar".parse().unwrap());
    assert_eq!(code(h.logins().login(request).await), Code::InvalidArgument);
}

#[tokio::test]
async fn logout_ends_this_session_only_and_may_be_repeated() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let (first, second) = (h.token("anna").await, h.token("anna").await);
    let logout = h.with_token(&first, LogoutRequest {}).await;
    assert!(h.logins().logout(logout).await.unwrap().into_inner().success);
    assert!(!h.is_valid(&first).await);
    assert!(h.is_valid(&second).await);

    let mut again = anonymous(HERE, LogoutRequest {});
    again.metadata_mut().insert("authorization", format!("Bearer {first}").parse().unwrap());
    assert!(h.logins().logout(again).await.unwrap().into_inner().success);
    // Over the unix socket the listener knows the caller by other means.
    let mut local = as_root(LogoutRequest {});
    local.metadata_mut().insert("authorization", second.parse().unwrap());
    assert!(h.logins().logout(local).await.unwrap().into_inner().success);
    assert!(!h.is_valid(&second).await);
    assert!(h.logins().logout(anonymous(HERE, LogoutRequest {})).await.is_ok());
}

#[tokio::test]
async fn texts_that_are_no_tokens_are_not_valid() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    let mut other = token.clone();
    other.replace_range(10..11, if &token[10..11] == "A" { "B" } else { "A" });
    for wrong in ["x", "slv_", &token[4..], &other, &format!("{token} "), &token.to_uppercase()] {
        assert!(!h.is_valid(wrong).await, "{wrong}");
    }
}

#[tokio::test]
async fn logins_and_logouts_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    let open = async || {
        let options = embedded::Options::default();
        let store: SharedStore = embedded::Embedded::open(&file, options).await.unwrap();
        store
    };

    let store = open().await;
    let h = Harness::on(Arc::clone(&store), clock.clone(), |_| {}).await;
    h.add("anna", &[("admin", "")]).await;
    let (kept, ended) = (h.token("anna").await, h.token("anna").await);
    h.logins().logout(h.with_token(&ended, LogoutRequest {}).await).await.unwrap();
    drop(h);
    store.close().await.unwrap();
    drop(store);

    let h = Harness::on(open().await, clock, |_| {}).await;
    assert!(h.is_valid(&kept).await);
    assert!(!h.is_valid(&ended).await);
    assert!(h.identity(&kept).await.unwrap().has_role(Role::Admin));
    assert!(h.login_from(HERE, "anna", PASSWORD).await.is_ok());
    assert!(!h.auth.bootstrap_admin(&GeneratedPassword::generate()).await.unwrap());
}

#[tokio::test]
async fn another_server_on_the_same_store_follows() {
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    let store = memory().await;
    let here = Harness::on(Arc::clone(&store), clock.clone(), |_| {}).await;
    let there = Harness::on(store, clock, |_| {}).await;
    let until = async |token: &str, wanted: bool| {
        let seen = async {
            while there.is_valid(token).await != wanted {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), seen).await.unwrap();
    };
    here.add("anna", &[]).await;
    let token = here.token("anna").await;
    until(&token, true).await;
    here.logins().logout(here.with_token(&token, LogoutRequest {}).await).await.unwrap();
    until(&token, false).await;
}

#[tokio::test]
async fn a_login_brings_an_old_hash_up_to_date() {
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    let store = memory().await;
    let old = Harness::on(Arc::clone(&store), clock.clone(), |_| {}).await;
    old.add("anna", &[]).await;
    let kept = old.token("anna").await;

    let cost = HashCost { memory_kib: 128, iterations: 1, lanes: 1 };
    let new = Harness::on(store, clock, |options| options.argon2 = cost).await;
    new.token("anna").await;
    assert!(new.is_valid(&kept).await, "a new hash of the same password ends no session");
    let dump = new.store.range(selvage_store::RangeRequest::prefix("records/auth-user/"));
    let stored = String::from_utf8_lossy(&dump.await.unwrap().items[0].value).into_owned();
    assert!(stored.contains("$argon2id$v=19$m=128,t=1,p=1$"), "{stored}");
    assert!(new.login_from(HERE, "anna", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn where_passwords_are_off_the_error_says_where_to_go() {
    let h = Harness::with(|options| {
        options.password_login = false;
        let mut provider = OidcProvider::new("corp", "https://id.example", "selvage");
        provider.label = "Corporate login".into();
        options.oidc.push(provider);
        options.public_url = Some("https://edge.example".parse().unwrap());
    })
    .await;
    let status = h.login_from(HERE, "anna", PASSWORD).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("Corporate login"), "{}", status.message());
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    let provider = OidcProvider::new("corp", "https://id.example", "selvage");
    let cases: [(&str, Options); 3] = [
        ("password_login: ", Options { password_login: false, ..options(&clock) }),
        ("public_url: ", Options { oidc: vec![provider.clone()], ..options(&clock) }),
        (
            "oidc.corp: ",
            Options {
                oidc: vec![provider.clone(), provider],
                public_url: Some("https://edge.example".parse().unwrap()),
                ..options(&clock)
            },
        ),
    ];
    for (key, options) in cases {
        let error = Auth::open(memory().await, options, None).await.err().unwrap();
        assert!(error.to_string().starts_with(key), "{error}");
    }
}

#[tokio::test]
async fn the_first_administrator_is_made_once() {
    let h = Harness::new().await;
    let password = GeneratedPassword::generate();
    assert!(h.auth.bootstrap_admin(&password).await.unwrap());
    assert!(!h.auth.bootstrap_admin(&GeneratedPassword::generate()).await.unwrap());
    let login = h.login_from(HERE, "admin", password.expose()).await.unwrap();
    let identity = h.identity(&login.into_inner().token).await.unwrap();
    assert!(identity.has_role(Role::Admin));
    // Once somebody else is there, nothing is made either.
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    assert!(!h.auth.bootstrap_admin(&GeneratedPassword::generate()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_one_makes_the_first_administrator() {
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    let store = memory().await;
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let h = Harness::on(Arc::clone(&store), clock.clone(), |_| {}).await;
        let password = GeneratedPassword::generate();
        starts.spawn(async move { h.auth.bootstrap_admin(&password).await.unwrap() });
    }
    let made = starts.join_all().await.into_iter().filter(|made| *made).count();
    assert_eq!(made, 1);
}

/// Whatever the order, a session that was opened with the old password does
/// not outlive the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_meets_a_password_change_does_not_survive_it() {
    let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
    for round in 0..10 {
        let store = memory().await;
        Harness::on(Arc::clone(&store), clock.clone(), |_| {}).await.add("anna", &[]).await;
        // At another cost, so that the logins write the user too.
        let cost = HashCost { memory_kib: 128, iterations: 1, lanes: 1 };
        let h = Harness::on(store, clock.clone(), |options| options.argon2 = cost).await;
        let h = Arc::new(h);
        let mut logins = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let h = Arc::clone(&h);
            logins.spawn(async move { h.login_from(HERE, "anna", PASSWORD).await });
        }
        let change = SetPasswordRequest {
            username: "anna".into(),
            new_password: "another horse".into(),
            ..SetPasswordRequest::default()
        };
        h.identities().set_password(as_root(change)).await.unwrap();
        for outcome in logins.join_all().await {
            match outcome {
                Ok(reply) => assert!(!h.is_valid(&reply.into_inner().token).await, "{round}"),
                Err(status) => assert_eq!(status.code(), Code::Unauthenticated, "{round}"),
            }
        }
        assert!(h.login_from(HERE, "anna", "another horse").await.is_ok());
        assert!(h.login_from(HERE, "anna", PASSWORD).await.is_err());
    }
}

#[tokio::test]
async fn credentials_that_are_not_good_are_refused_with_a_sentence() {
    use selvage_kit::identity::Authenticator;
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    let token = h.token("anna").await;
    let change = UpdateUserRequest {
        username: "anna".into(),
        grants: wire_grants(&[("admin", "")]),
        disabled: false,
    };
    h.identities().update_user(as_root(change)).await.unwrap();
    for credentials in
        [Credentials::Bearer(Secret::new(token.clone())), Credentials::Cookie(Secret::new(token))]
    {
        let refused = h.auth.authenticate(&credentials).await.unwrap_err();
        assert_eq!(refused.code, selvage_api::Code::Unauthenticated);
        assert_eq!(refused.message, "the session has ended: log in again");
    }
}

#[tokio::test]
async fn a_failing_store_is_reported_to_the_caller() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    h.store.close().await.unwrap();
    let status = h.login_from(HERE, "anna", PASSWORD).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the store is closed"), "{}", status.message());
}
