//! Logging in through a provider, also one that misbehaves.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response, StatusCode},
};
use selvage_api::selvage::identity::{
    FinishLoginRequest, ListUsersRequest, SetPasswordRequest, UpdateUserRequest, User,
};
use selvage_kit::identity::{Connection, Peer, Role};
use serde_json::{Value, json};
use tonic::Code;
use tower::ServiceExt;
use url::Url;

use crate::{
    harness::{HERE, Harness, PASSWORD, anonymous, as_root, code, wire_grants},
    own_provider::{OwnProvider, Twist},
};

pub(crate) const PUBLIC: &str = "https://edge.example";

/// A browser, as far as these routes need one.
pub(crate) struct Browser {
    routes: Router,
    cookie: String,
}

impl Browser {
    pub(crate) fn new(h: &Harness) -> Self {
        Self { routes: h.auth.http_routes(), cookie: String::new() }
    }

    pub(crate) async fn send(&self, method: &str, path: &str) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if !self.cookie.is_empty() {
            request = request.header("cookie", &self.cookie);
        }
        let peer = Peer::Ip(HERE.parse().unwrap());
        let connection =
            Connection { peer, machine: None, certificate: None, person: None, encrypted: true };
        let request = request.extension(connection).body(Body::empty()).unwrap();
        self.routes.clone().oneshot(request).await.unwrap()
    }

    /// Begins a login; gives the address at the provider.
    pub(crate) async fn begin(&mut self, path: &str) -> Url {
        let reply = self.send("GET", path).await;
        assert_eq!(reply.status(), StatusCode::SEE_OTHER);
        let cookie = set_cookie(&reply, "__Host-oidc").unwrap();
        let (value, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600");
        self.cookie = value.to_owned();
        Url::parse(location(&reply)).unwrap()
    }

    /// Comes back from the provider; gives the session's token or the reason.
    pub(crate) async fn finish(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<String, String> {
        let query =
            url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let reply = self.send("GET", &format!("{path}?{query}")).await;
        assert_eq!(reply.status(), StatusCode::SEE_OTHER);
        assert_eq!(reply.headers()["cache-control"], "no-store");
        let target = location(&reply).to_owned();
        match set_cookie(&reply, "__Host-sid") {
            Some(cookie) => {
                assert_eq!(target, "/");
                assert!(cookie.contains("; SameSite=Strict; "), "{cookie}");
                let value = cookie.strip_prefix("__Host-sid=").unwrap();
                Ok(value.split_once(';').unwrap().0.to_owned())
            }
            None => Err(target.strip_prefix("/?login=failed&reason=").unwrap().to_owned()),
        }
    }
}

fn location(reply: &Response<Body>) -> &str {
    reply.headers()["location"].to_str().unwrap()
}

fn set_cookie(reply: &Response<Body>, name: &str) -> Option<String> {
    let found = reply.headers().get_all("set-cookie").iter().map(|v| v.to_str().unwrap());
    found.into_iter().find(|v| v.starts_with(&format!("{name}="))).map(str::to_owned)
}

pub(crate) fn query(url: &Url, name: &str) -> String {
    url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned()
}

const LOGIN: &str = "/auth/oidc/corp/login";
const CALLBACK: &str = "/auth/oidc/corp/callback";

async fn with_provider() -> (Harness, OwnProvider) {
    let provider = OwnProvider::start("2026-06-01T12:00:00Z".parse().unwrap()).await;
    let settings = provider.settings();
    let h = Harness::with(|options| {
        options.oidc.push(settings);
        options.public_url = Some(PUBLIC.parse().unwrap());
    })
    .await;
    (h, provider)
}

async fn log_in(h: &Harness, provider: &OwnProvider) -> Result<String, String> {
    let mut browser = Browser::new(h);
    let url = browser.begin(LOGIN).await;
    let code = provider.approve(&url);
    browser.finish(CALLBACK, &[("code", &code), ("state", &query(&url, "state"))]).await
}

async fn listed(h: &Harness) -> Vec<User> {
    let reply = h.identities().list_users(as_root(ListUsersRequest {})).await.unwrap();
    reply.into_inner().users
}

#[tokio::test]
async fn a_login_makes_the_user_and_opens_a_session() {
    let (h, provider) = with_provider().await;
    let mut browser = Browser::new(&h);
    let url = browser.begin(LOGIN).await;
    assert_eq!(url.path(), "/authorize");
    assert_eq!(query(&url, "tenant"), "1");
    assert_eq!(query(&url, "redirect_uri"), format!("{PUBLIC}{CALLBACK}"));
    let code = provider.approve(&url);
    let state = query(&url, "state");
    let token = browser.finish(CALLBACK, &[("code", &code), ("state", &state)]).await.unwrap();

    let identity = h.identity(&token).await.unwrap();
    assert_eq!(identity.name, "anna");
    assert_eq!(identity.organisations(Role::Operator).collect::<Vec<_>>(), ["tmus"]);
    let users = listed(&h).await;
    assert_eq!((users.len(), users[0].source.as_str()), (1, "corp"));
    assert!(users[0].password_changed_at.is_none());
    // The same again: neither state nor code is good twice.
    let again = browser.finish(CALLBACK, &[("code", &code), ("state", &state)]).await;
    assert_eq!(again.unwrap_err(), "invalid_state");
    let url = browser.begin(LOGIN).await;
    let replayed = [("code", code.as_str()), ("state", &query(&url, "state"))];
    assert_eq!(browser.finish(CALLBACK, &replayed).await.unwrap_err(), "provider_failed");
}

#[tokio::test]
async fn older_installations_keep_their_addresses() {
    let (h, provider) = with_provider().await;
    let mut browser = Browser::new(&h);
    let url = browser.begin("/api/oauth2/login/corp").await;
    assert_eq!(query(&url, "redirect_uri"), format!("{PUBLIC}/api/oauth2/callback/corp"));
    let code = provider.approve(&url);
    let sent = [("code", code.as_str()), ("state", &query(&url, "state"))];
    assert!(browser.finish("/api/oauth2/callback/corp", &sent).await.is_ok());
}

#[tokio::test]
async fn a_token_that_does_not_hold_opens_nothing() {
    let (h, provider) = with_provider().await;
    for (twist, reason) in [
        (Twist::WrongNonce, "token_invalid"),
        (Twist::WrongAudience, "token_invalid"),
        (Twist::WrongIssuer, "token_invalid"),
        (Twist::Expired, "token_invalid"),
        (Twist::NotYetValid, "token_invalid"),
        (Twist::Unsigned, "token_invalid"),
        (Twist::SharedSecret, "token_invalid"),
        (Twist::UnknownKey, "token_invalid"),
        (Twist::Forged, "token_invalid"),
        (Twist::NoIdToken, "provider_failed"),
        (Twist::Huge, "provider_failed"),
        (Twist::Redirect, "provider_failed"),
        (Twist::ServerError, "provider_failed"),
        (Twist::UserInfoOfAnother, "token_invalid"),
    ] {
        provider.twist(twist);
        assert_eq!(log_in(&h, &provider).await.unwrap_err(), reason, "{twist:?}");
    }
    assert!(listed(&h).await.is_empty());
    provider.twist(Twist::None);
    assert!(log_in(&h, &provider).await.is_ok());
}

#[tokio::test]
async fn a_callback_belongs_to_the_browser_that_began() {
    let (h, provider) = with_provider().await;
    let (mut attacker, mut victim) = (Browser::new(&h), Browser::new(&h));
    let url = attacker.begin(LOGIN).await;
    victim.begin(LOGIN).await;
    let code = provider.approve(&url);
    let state = query(&url, "state");
    let sent = [("code", code.as_str()), ("state", state.as_str())];
    assert_eq!(victim.finish(CALLBACK, &sent).await.unwrap_err(), "invalid_state");
    // The attempt has used the state up.
    assert_eq!(attacker.finish(CALLBACK, &sent).await.unwrap_err(), "invalid_state");

    let url = attacker.begin(LOGIN).await;
    let sent = [("code", provider.approve(&url)), ("state", query(&url, "state"))];
    let sent = [("code", sent[0].1.as_str()), ("state", sent[1].1.as_str())];
    let bare = Browser::new(&h);
    assert_eq!(bare.finish(CALLBACK, &sent).await.unwrap_err(), "invalid_state");
}

#[tokio::test]
async fn odd_callbacks_are_refused_with_fixed_words() {
    let (h, provider) = with_provider().await;
    let browser = Browser::new(&h);
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[], "invalid_request"),
        (&[("code", "x")], "invalid_request"),
        (&[("state", "x"), ("code", "x")], "invalid_state"),
        (&[("state", "x"), ("state", "y")], "invalid_request"),
    ];
    for (sent, reason) in cases {
        assert_eq!(browser.finish(CALLBACK, sent).await.unwrap_err(), reason, "{sent:?}");
    }
    let unknown = browser.finish("/auth/oidc/nobody/callback", &[("state", "x")]).await;
    assert_eq!(unknown.unwrap_err(), "invalid_provider");
    assert_eq!(
        browser.finish("/auth/oidc/nobody/login", &[]).await.unwrap_err(),
        "invalid_provider"
    );

    for (error, reason) in [("access_denied", "denied"), ("<script>\n", "provider_failed")] {
        let mut browser = Browser::new(&h);
        let state = query(&browser.begin(LOGIN).await, "state");
        let sent = [("error", error), ("state", state.as_str())];
        assert_eq!(browser.finish(CALLBACK, &sent).await.unwrap_err(), reason);
    }
    let mut browser = Browser::new(&h);
    let url = browser.begin(LOGIN).await;
    let (code, state) = (provider.approve(&url), query(&url, "state"));
    let sent = [("code", code.as_str()), ("state", &state), ("iss", "http://another")];
    assert_eq!(browser.finish(CALLBACK, &sent).await.unwrap_err(), "invalid_request");

    let mut browser = Browser::new(&h);
    let url = browser.begin(LOGIN).await;
    let (code, state) = (provider.approve(&url), query(&url, "state"));
    h.advance(600);
    let sent = [("code", code.as_str()), ("state", state.as_str())];
    assert_eq!(browser.finish(CALLBACK, &sent).await.unwrap_err(), "invalid_state");
}

#[tokio::test]
async fn a_provider_cannot_take_over_anybody() {
    let provider = OwnProvider::start("2026-06-01T12:00:00Z".parse().unwrap()).await;
    let h = Harness::with(|options| {
        let mut twin = provider.settings();
        twin.name = "twin".into();
        options.oidc = vec![provider.settings(), twin];
        options.public_url = Some(PUBLIC.parse().unwrap());
    })
    .await;
    h.add("anna", &[("admin", "")]).await;
    assert_eq!(log_in(&h, &provider).await.unwrap_err(), "account_conflict");
    provider.set_claim("preferred_username", json!("bert"));
    log_in(&h, &provider).await.unwrap();
    provider.set_claim("sub", json!("subject-2"));
    assert_eq!(log_in(&h, &provider).await.unwrap_err(), "account_conflict");

    // Nor does a user of one provider pass for that of another.
    provider.set_claim("sub", json!("subject-1"));
    let mut browser = Browser::new(&h);
    let url = browser.begin("/auth/oidc/twin/login").await;
    let (code, state) = (provider.approve(&url), query(&url, "state"));
    let sent = [("code", code.as_str()), ("state", state.as_str())];
    let outcome = browser.finish("/auth/oidc/twin/callback", &sent).await;
    assert_eq!(outcome.unwrap_err(), "account_conflict");
}

#[tokio::test]
async fn grants_follow_the_groups_at_every_login() {
    let (h, provider) = with_provider().await;
    let first = log_in(&h, &provider).await.unwrap();
    let second = log_in(&h, &provider).await.unwrap();
    assert!(h.is_valid(&first).await, "the same grants end no session");
    // Somebody gave the user more by hand; the provider has the last word.
    let change = UpdateUserRequest {
        username: "anna".into(),
        grants: wire_grants(&[("admin", "")]),
        disabled: false,
    };
    h.identities().update_user(as_root(change)).await.unwrap();
    assert!(!h.is_valid(&second).await);
    let third = log_in(&h, &provider).await.unwrap();
    assert!(!h.identity(&third).await.unwrap().has_role(Role::Admin));

    provider.set_claim("groups", json!(["others"]));
    assert_eq!(log_in(&h, &provider).await.unwrap_err(), "not_allowed");
    provider.set_claim("groups", json!(["ops"]));
    let grants = wire_grants(&[("viewer", "")]);
    let disable = UpdateUserRequest { username: "anna".into(), grants, disabled: true };
    h.identities().update_user(as_root(disable)).await.unwrap();
    assert_eq!(log_in(&h, &provider).await.unwrap_err(), "not_allowed");
}

#[tokio::test]
async fn somebody_from_a_provider_has_no_password() {
    let (h, provider) = with_provider().await;
    log_in(&h, &provider).await.unwrap();
    for password in [PASSWORD, " "] {
        assert_eq!(code(h.login_from(HERE, "anna", password).await), Code::Unauthenticated);
    }
    let change = SetPasswordRequest {
        username: "anna".into(),
        new_password: PASSWORD.into(),
        ..SetPasswordRequest::default()
    };
    let status = h.identities().set_password(as_root(change)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn groups_may_come_from_user_info() {
    let (h, provider) = with_provider().await;
    provider.twist(Twist::GroupsInUserInfo);
    let token = log_in(&h, &provider).await.unwrap();
    // What the signed token says is not overruled.
    assert_eq!(h.identity(&token).await.unwrap().name, "anna");
}

#[tokio::test]
async fn keys_are_cached_and_fetched_again_when_they_change() {
    let (h, provider) = with_provider().await;
    log_in(&h, &provider).await.unwrap();
    log_in(&h, &provider).await.unwrap();
    assert_eq!(provider.key_fetches(), 1);
    provider.rotate_key("k2");
    // Too soon after the last fetch to believe in a new key.
    for _ in 0..3 {
        assert_eq!(log_in(&h, &provider).await.unwrap_err(), "token_invalid");
    }
    assert_eq!(provider.key_fetches(), 1);
    h.advance(10);
    log_in(&h, &provider).await.unwrap();
    assert_eq!(provider.key_fetches(), 2);
}

#[tokio::test]
async fn a_provider_that_is_not_there_fails_the_login_only() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let h = Harness::with(|options| {
        options.oidc.push(selvage_auth::OidcProvider::new("corp", issuer, "selvage"));
        options.public_url = Some(PUBLIC.parse().unwrap());
    })
    .await;
    h.add("anna", &[]).await;
    let failed = Browser::new(&h).finish(LOGIN, &[]).await;
    assert_eq!(failed.unwrap_err(), "provider_failed");
    assert!(h.login_from(HERE, "anna", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn the_plain_routes_answer_as_the_original() {
    let (h, _provider) = with_provider().await;
    let browser = Browser::new(&h);
    let body = async |reply: Response<Body>| -> Value {
        serde_json::from_slice(&to_bytes(reply.into_body(), 1 << 20).await.unwrap()).unwrap()
    };
    let config = body(browser.send("POST", "/api/config").await).await;
    assert_eq!(
        config["login"],
        json!({"providers": [{"name": "corp", "label": "corp"}], "password": true})
    );
    assert!(config["version"].is_string());
    let pong = body(browser.send("GET", "/api/ping").await).await;
    assert_eq!(pong, json!({"message": "Pong"}));
    let reply = browser.send("GET", "/api/clear-site-data").await;
    assert!(reply.status().is_success());
    assert_eq!(reply.headers()["clear-site-data"], r#""cache", "cookies", "storage""#);
}

const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Place to which a browser goes back that a program sent.
async fn sent_by_a_program(h: &Harness, provider: &OwnProvider) -> Url {
    let mut browser = Browser::new(h);
    let query_of = format!("{LOGIN}?port=7123&challenge={CHALLENGE}&state=s1");
    let url = browser.begin(&query_of).await;
    let code = provider.approve(&url);
    let path = format!("{CALLBACK}?code={code}&state={}", query(&url, "state"));
    let reply = browser.send("GET", &path).await;
    assert!(set_cookie(&reply, "__Host-sid").is_none(), "the session is the program's");
    Url::parse(location(&reply)).unwrap()
}

async fn trade(h: &Harness, code: &str, verifier: &str) -> Result<String, Code> {
    let request = FinishLoginRequest { code: code.into(), verifier: verifier.into() };
    let answer = h.identities().finish_login(anonymous(HERE, request)).await;
    answer.map(|answer| answer.into_inner().token).map_err(|status| status.code())
}

#[tokio::test]
async fn a_program_gets_a_session_for_its_code_once() {
    let (h, provider) = with_provider().await;
    let place = sent_by_a_program(&h, &provider).await;
    assert_eq!(place.origin().ascii_serialization(), "http://127.0.0.1:7123");
    assert_eq!(query(&place, "state"), "s1");
    assert!(listed(&h).await.is_empty(), "nobody is in before the code is traded");
    let code = query(&place, "code");
    let token = trade(&h, &code, VERIFIER).await.unwrap();
    assert_eq!(h.identity(&token).await.unwrap().name, "anna");
    assert_eq!(trade(&h, &code, VERIFIER).await, Err(Code::Unauthenticated));
}

#[tokio::test]
async fn a_code_in_other_hands_is_worth_nothing() {
    let (h, provider) = with_provider().await;
    let code = query(&sent_by_a_program(&h, &provider).await, "code");
    assert_eq!(trade(&h, &code, "another verifier").await, Err(Code::Unauthenticated));
    // Who tried has spent it.
    assert_eq!(trade(&h, &code, VERIFIER).await, Err(Code::Unauthenticated));
    let code = query(&sent_by_a_program(&h, &provider).await, "code");
    h.advance(60);
    assert_eq!(trade(&h, &code, VERIFIER).await, Err(Code::Unauthenticated));
    assert_eq!(trade(&h, "", VERIFIER).await, Err(Code::InvalidArgument));
    assert_eq!(trade(&h, &"x".repeat(257), VERIFIER).await, Err(Code::InvalidArgument));
    assert!(listed(&h).await.is_empty());
}

#[tokio::test]
async fn a_browser_is_sent_to_this_machine_or_nowhere() {
    let (h, _provider) = with_provider().await;
    let browser = Browser::new(&h);
    for wrong in [
        "port=70000&challenge=x&state=s",
        "port=7123",
        "port=evil.example&challenge=x&state=s",
        "challenge=x&state=s",
    ] {
        let reply = browser.send("GET", &format!("{LOGIN}?{wrong}")).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{wrong}");
    }
    // What the provider refuses, the program hears in a fixed word.
    let mut browser = Browser::new(&h);
    let begin = format!("{LOGIN}?port=7123&challenge={CHALLENGE}&state=s1");
    let url = browser.begin(&begin).await;
    let path = format!("{CALLBACK}?error=access_denied&state={}", query(&url, "state"));
    let reply = browser.send("GET", &path).await;
    assert_eq!(location(&reply), "http://127.0.0.1:7123/?error=denied&state=s1");
}
