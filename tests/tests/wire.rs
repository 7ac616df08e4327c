//! One port, every protocol: the contracts as strangers see them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use prost::Message;
use selvage_api::{
    selvage::identity::WhoAmIResponse,
    services::auth::{
        CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse, auth_service_client::AuthServiceClient,
    },
};
use selvage_tests::{Client, Selvage, client::http};
use serde_json::{Value, json};
use tonic::Code;

const LOGIN: &str = "/services.auth.AuthService/Login";
const WHOAMI: &str = "/selvage.identity.IdentityService/WhoAmI";

#[tokio::test]
async fn reflection_lists_every_service_of_the_contracts() {
    let selvage = Selvage::up(&[]);
    let client = Client::anonymous(&selvage).await;
    for version in ["v1", "v1alpha"] {
        // ServerReflectionRequest{list_services: "*"}
        let request = [0x3a, 0x01, b'*'];
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let (replies, code, _) = client.raw(&path, &request).await;
        assert_eq!(code, Code::Ok, "{version}");
        let text = String::from_utf8_lossy(&replies.concat()).into_owned();
        let mut expected: BTreeSet<&str> =
            selvage_api::methods().iter().map(|method| method.service.as_str()).collect();
        expected.insert("grpc.health.v1.Health");
        for service in expected {
            assert!(text.contains(service), "{version} does not list {service}");
        }
        // ServerReflectionRequest{file_containing_symbol: "no.Thing"}: told
        // in an answer, for more questions may follow in the stream.
        let request = [&[0x22, 0x08][..], b"no.Thing"].concat();
        let (replies, code, _) = client.raw(&path, &request).await;
        assert_eq!(code, Code::Ok, "{version}");
        let text = String::from_utf8_lossy(&replies.concat()).into_owned();
        assert!(text.contains("there is no symbol no.Thing"), "{version}: {text}");
    }
}

#[tokio::test]
async fn login_over_every_protocol_gives_a_token_that_works() {
    let selvage = Selvage::up(&[]);
    let http = http(&selvage);
    let login = json!({"username": "admin", "password": selvage.password()});
    let url = |path: &str| format!("{}{path}", selvage.endpoint());

    // Connect-JSON, also where the original dashboard had it.
    for path in [LOGIN.to_owned(), format!("/api{LOGIN}")] {
        let reply = http.post(url(&path)).json(&login).send().await.unwrap();
        assert_eq!(reply.status(), 200, "{path}");
        assert_eq!(reply.headers()["content-type"], "application/json");
        let reply: Value = reply.json().await.unwrap();
        assert!(reply["expires"]["timestamp"].is_string(), "{reply}");
        let who = http
            .get(url("/selvage/v1/whoami"))
            .bearer_auth(reply["token"].as_str().unwrap())
            .send()
            .await
            .unwrap();
        let who: Value = who.json().await.unwrap();
        assert_eq!(who["name"], "admin");
    }

    // gRPC-Web, as bytes.
    let message = LoginRequest { username: "admin".into(), password: selvage.password() };
    let reply = http
        .post(url(LOGIN))
        .header("content-type", "application/grpc-web+proto")
        .body(framed(&message.encode_to_vec()))
        .send()
        .await
        .unwrap();
    assert_eq!(reply.status(), 200);
    let body = reply.bytes().await.unwrap();
    let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
    let token = LoginResponse::decode(&body[5..5 + length]).unwrap().token;

    // gRPC.
    let client = Client { token: Some(token), ..Client::anonymous(&selvage).await };
    let (replies, code, _) = client.raw(WHOAMI, &[]).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(WhoAmIResponse::decode(replies[0].clone()).unwrap().name, "admin");
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    framed
}

#[tokio::test]
async fn logout_ends_the_session_at_once() {
    let selvage = Selvage::up(&[]);
    let client = Client::admin(&selvage).await;
    let mut auth = AuthServiceClient::new(client.channel.clone());
    let token = client.token.clone().unwrap();
    let check = CheckTokenRequest { token };
    let CheckTokenResponse { success } =
        auth.check_token(check.clone()).await.unwrap().into_inner();
    assert!(success);
    let LogoutResponse { success } =
        auth.logout(client.request(LogoutRequest {})).await.unwrap().into_inner();
    assert!(success);
    assert!(!auth.check_token(check).await.unwrap().into_inner().success);
    assert_eq!(client.code(WHOAMI, &[]).await, Code::Unauthenticated);
}

#[tokio::test]
async fn methods_of_parts_that_do_not_run_here_say_so() {
    let selvage = Selvage::part("controller", &[]);
    let client = Client::admin(&selvage).await;
    let (_, code, text) = client.raw("/cnct.kaas.api.Cluster/GetClusterList", &[]).await;
    assert_eq!(code, Code::Unimplemented);
    assert!(text.contains("kaas"), "{text}");

    let http = http(&selvage);
    let url = format!("{}/api/v1/cluster", selvage.endpoint());
    let reply = http
        .post(&url)
        .bearer_auth(client.token.as_ref().unwrap())
        .body(r#"{"name":"one"}"#)
        .send()
        .await
        .unwrap();
    assert_eq!(reply.status(), 501);
    let body: Value = reply.json().await.unwrap();
    assert_eq!(body["code"], 12);

    // The original's way of saying who is not let in.
    let reply = http.post(&url).body("{}").send().await.unwrap();
    assert_eq!(reply.status(), 401);
    let body: Value = reply.json().await.unwrap();
    assert!(body["message"].as_str().unwrap().starts_with("no token"), "{body}");
}

#[tokio::test]
async fn pages_carry_the_headers_that_browsers_obey() {
    let selvage = Selvage::up(&[]);
    let http = http(&selvage);
    for path in ["/docs", "/openapi.json", "/nowhere", LOGIN, "/healthz"] {
        let reply = http.get(format!("{}{path}", selvage.endpoint())).send().await.unwrap();
        let headers = reply.headers();
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["x-frame-options"], "DENY", "{path}");
        assert!(headers["strict-transport-security"].to_str().unwrap().contains("31536000"));
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}

#[tokio::test]
async fn a_browser_gets_a_cookie_that_only_its_own_pages_can_use() {
    let selvage = Selvage::up(&[]);
    let http = http(&selvage);
    let url = |path: &str| format!("{}{path}", selvage.endpoint());
    let login = json!({"username": "admin", "password": selvage.password()});
    let reply =
        http.post(url(LOGIN)).header("x-session", "cookie").json(&login).send().await.unwrap();
    let cookie = reply.headers()["set-cookie"].to_str().unwrap().to_owned();
    for attribute in ["__Host-sid=", "Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let body: Value = reply.json().await.unwrap();
    assert!(body["token"].as_str().unwrap_or_default().is_empty(), "the token stays in the cookie");

    let cookie = cookie.split(';').next().unwrap().to_owned();
    let add = "/selvage.identity.IdentityService/AddUser";
    let call = |site: &'static str, name: &'static str| {
        http.post(url(add))
            .header("cookie", &cookie)
            .header("sec-fetch-site", site)
            .json(&json!({"user": {"username": name, "grants": [{"role": "viewer"}]}}))
            .send()
    };
    assert_eq!(call("cross-site", "mallory").await.unwrap().status(), 403);
    assert_eq!(call("same-origin", "vera").await.unwrap().status(), 200);
}

#[tokio::test]
async fn counts_are_for_those_who_may_look() {
    let selvage = Selvage::up(&[]);
    let http = http(&selvage);
    let url = format!("{}/metrics", selvage.endpoint());
    assert_eq!(http.get(&url).send().await.unwrap().status(), 401);
    let admin = Client::admin(&selvage).await;
    let reply = http.get(&url).bearer_auth(admin.token.unwrap()).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    let text = reply.text().await.unwrap();
    assert!(text.contains("method=\"Login\"") && text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_kept() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let http = http(&selvage);
    let status = async |timeout: &str| {
        // gRPC's own clients would give up by themselves; this one asks.
        let reply = http
            .post(format!("{}{WHOAMI}", selvage.endpoint()))
            .bearer_auth(admin.token.as_ref().unwrap())
            .header("content-type", "application/grpc-web+proto")
            .header("grpc-timeout", timeout)
            .body(framed(&[]))
            .send()
            .await
            .unwrap();
        reply.headers().get("grpc-status").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(status("1n").await.as_deref(), Some("4"));
    assert_eq!(status("soon").await.as_deref(), Some("3"));
    assert_eq!(status("1M").await, None, "the status is in the body's trailers");
}

#[tokio::test]
async fn insecure_needs_no_login_and_stays_on_loopback() {
    let selvage = Selvage::up(&["--insecure"]);
    assert!(selvage.endpoint().starts_with("http://127.0.0.1:"));
    assert!(selvage.ready().get("ca").is_none());
    assert!(selvage.log().contains("INSECURE"));
    let client = Client::anonymous(&selvage).await;
    let (replies, code, _) = client.raw(WHOAMI, &[]).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(WhoAmIResponse::decode(replies[0].clone()).unwrap().kind, "insecure");

    // A page elsewhere can make a browser call loopback, but not as one of us.
    let http = http(&selvage);
    let users = format!("{}/selvage/v1/users", selvage.endpoint());
    for (name, value) in [
        ("host", "evil.example"),
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let reply = http.get(&users).header(name, value).send().await.unwrap();
        assert_eq!(reply.status(), 403, "{name}: {value}");
    }
    assert_eq!(http.get(&users).send().await.unwrap().status(), 200);

    let refused = selvage_tests::process::command()
        .args(["up", "--insecure", "--address", "0.0.0.0", "--port", "0", "--data"])
        .arg(selvage.data().join("other"))
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("loopback only"));
}
