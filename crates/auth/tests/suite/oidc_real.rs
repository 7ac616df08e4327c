//! A login through a provider that we did not write.
//!
//! `SELVAGE_OIDC_PROVIDER` is the command that starts one; `--port N` is
//! added to it.

use std::{env, process::Stdio, time::Duration};

use selvage_api::selvage::identity::FinishLoginRequest;
use selvage_auth::{GroupGrant, OidcProvider};
use selvage_kit::{
    clock::SystemClock,
    identity::{Role, Secret},
};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::{
    harness::{HERE, Harness, anonymous},
    oidc::{Browser, PUBLIC, query},
};

const PROVIDER_TIMEOUT: Duration = Duration::from_secs(120);

struct RealProvider {
    process: Child,
    issuer: String,
}

/// `Err` says why there is none.
async fn start() -> Result<RealProvider, String> {
    let command = env::var("SELVAGE_OIDC_PROVIDER")
        .unwrap_or_else(|_| "python3 -m oidc_provider_mock".into());
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("SELVAGE_OIDC_PROVIDER is empty")?;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut process = Command::new(program)
        .args(words)
        .args(["--port", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{command}: {error}"))?;
    let issuer = format!("http://127.0.0.1:{port}");
    let answers = async {
        let url = format!("{issuer}/.well-known/openid-configuration");
        while reqwest::get(&url).await.is_err() {
            if let Some(status) = process.try_wait().unwrap() {
                return Err(format!("{command}: {status}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    match tokio::time::timeout(PROVIDER_TIMEOUT, answers).await {
        Ok(Ok(())) => Ok(RealProvider { process, issuer }),
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err(format!("{command}: no answer within {PROVIDER_TIMEOUT:?}")),
    }
}

/// Does what the user does at the provider; gives the address of the redirect.
async fn approve(url: &url::Url, subject: &str) -> url::Url {
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let request = client.build().unwrap().post(url.clone()).form(&[("sub", subject)]);
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), 302, "{url}");
    reply.headers()["location"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_login_through_a_real_provider_works() {
    let mut provider = match start().await {
        Ok(provider) => provider,
        Err(reason) => return selvage_testkit::skip("oidc", &reason),
    };
    let mut settings = OidcProvider::new("mock", &provider.issuer, "selvage");
    settings.client_secret = Some(Secret::new("any"));
    settings.group_grants = vec![GroupGrant {
        group: "edge-admins".into(),
        role: "admin".into(),
        organisation: String::new(),
    }];
    let h = Harness::with(|options| {
        options.clock = std::sync::Arc::new(SystemClock);
        options.oidc.push(settings);
        options.public_url = Some(PUBLIC.parse().unwrap());
    })
    .await;
    for (subject, groups) in [("s-anna", json!(["edge-admins"])), ("s-eve", json!(["guests"]))] {
        let claims = json!({"preferred_username": &subject[2..], "groups": groups});
        let url = format!("{}/users/{subject}", provider.issuer);
        let reply = reqwest::Client::new().put(url).json(&claims).send().await.unwrap();
        assert!(reply.status().is_success());
    }

    let mut browser = Browser::new(&h);
    let url = browser.begin("/auth/oidc/mock/login").await;
    let back = approve(&url, "s-anna").await;
    assert_eq!(back.path(), "/auth/oidc/mock/callback");
    let (code, state) = (query(&back, "code"), query(&back, "state"));
    let sent = [("code", code.as_str()), ("state", state.as_str())];
    let token = browser.finish(back.path(), &sent).await.unwrap();
    let identity = h.identity(&token).await.unwrap();
    assert_eq!(identity.name, "anna");
    assert!(identity.has_role(Role::Admin));

    let url = browser.begin("/auth/oidc/mock/login").await;
    let back = approve(&url, "s-eve").await;
    let (code, state) = (query(&back, "code"), query(&back, "state"));
    let sent = [("code", code.as_str()), ("state", state.as_str())];
    assert_eq!(browser.finish(back.path(), &sent).await.unwrap_err(), "not_allowed");
    // A program on the person's machine, by way of the same provider.
    let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let begin = format!("/auth/oidc/mock/login?port=7123&challenge={challenge}&state=s1");
    let url = browser.begin(&begin).await;
    let back = approve(&url, "s-anna").await;
    let place = browser.send("GET", &format!("{}?{}", back.path(), back.query().unwrap())).await;
    let place: url::Url = place.headers()["location"].to_str().unwrap().parse().unwrap();
    assert_eq!((place.host_str(), place.port()), (Some("127.0.0.1"), Some(7123)));
    assert_eq!(query(&place, "state"), "s1");
    let code = query(&place, "code");
    let request = FinishLoginRequest { code, verifier: verifier.into() };
    let answer = h.identities().finish_login(anonymous(HERE, request)).await.unwrap().into_inner();
    assert_eq!(answer.username, "anna");
    assert_eq!(h.identity(&answer.token).await.unwrap().name, "anna");
    provider.process.kill().await.unwrap();
}
