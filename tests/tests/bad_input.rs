//! Requests that no honest client sends. A clear status, bounded memory, no panic,
//! and everybody else is served meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use selvage_api::services::auth::{LoginRequest, auth_service_client::AuthServiceClient};
use selvage_tests::{Client, Selvage, client::http};
use serde_json::{Value, json};
use tonic::Code;

const LOGIN: &str = "/services.auth.AuthService/Login";
const WHOAMI: &str = "/selvage.identity.IdentityService/WhoAmI";

/// The server is well: it answers, and nothing in its log tells of a panic.
async fn assert_well(selvage: &Selvage) {
    let admin = Client::admin(selvage).await;
    assert_eq!(admin.code(WHOAMI, &[]).await, Code::Ok);
    assert!(!selvage.log().contains("panic"), "{}", selvage.log());
}

fn say(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = said(address, bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    rest(&mut stream)
}

fn said(address: &str, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

#[tokio::test]
async fn garbage_on_the_socket_is_answered_or_cut() {
    let secure = Selvage::up(&[]);
    let plain = Selvage::up(&["--insecure"]);
    let garbage: Vec<u8> =
        (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let broken_frames = [preface.as_slice(), &garbage].concat();
    let endless_header = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(300_000));
    for bytes in [
        &garbage[..],
        b"GET /healthz HTTP/1.1\r\n",
        b"\r\n\r\n\r\n",
        b"BREW /pot HTCPCP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
        b"\x16\x03\x01\xff\xff\x01\x00",
        &broken_frames,
        endless_header.as_bytes(),
        &preface[..10],
    ] {
        say(secure.address(), bytes);
        say(plain.address(), bytes);
    }
    let answered = say(
        plain.address(),
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    assert!(answered.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answered));
    assert_well(&secure).await;
}

#[tokio::test]
async fn grpc_that_is_not_grpc_gets_a_status() {
    let selvage = Selvage::up(&[]);
    let client = Client::anonymous(&selvage).await;
    // Not a LoginRequest: field 1 as a number, then bytes that end too early.
    let (_, code, text) = client.raw(LOGIN, &[0x08, 0x01, 0x12, 0x7f, 0x00]).await;
    assert!(matches!(code, Code::InvalidArgument | Code::Internal), "{code:?} {text}");
    let (_, code, _) = client.raw(LOGIN, &[0x0a, 0x02, 0xff, 0xfe]).await;
    assert!(matches!(code, Code::InvalidArgument | Code::Internal), "invalid UTF-8: {code:?}");
    let (_, code, text) = client.raw("/no.such.Service/Method", &[]).await;
    assert_eq!(code, Code::Unimplemented);
    assert!(text.contains("no.such.Service/Method"), "{text}");
    // Unknown fields are ignored, as protobuf wants it.
    let (_, code, _) = client.raw(LOGIN, &[0xba, 0x3e, 0x01, b'x']).await;
    assert!(matches!(code, Code::Unauthenticated | Code::InvalidArgument), "{code:?}");
    assert_well(&selvage).await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_before_it_is_kept() {
    let selvage = Selvage::up(&[]);
    let client = Client::anonymous(&selvage).await;
    let password = "x".repeat(5 * 1024 * 1024);
    let request = LoginRequest { username: "admin".into(), password: password.clone() };
    let refused = AuthServiceClient::new(client.channel).login(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");

    let http = http(&selvage);
    let url = format!("{}{LOGIN}", selvage.endpoint());
    let body = json!({"username": "admin", "password": password});
    let reply = http.post(&url).json(&body).send().await.unwrap();
    assert_eq!(reply.status(), 429);
    let reply: Value = reply.json().await.unwrap();
    assert_eq!(reply["code"], "resource_exhausted");
    assert_well(&selvage).await;
}

#[tokio::test]
async fn wrong_content_types_and_wrong_json_are_named() {
    let selvage = Selvage::up(&[]);
    let http = http(&selvage);
    let login = format!("{}{LOGIN}", selvage.endpoint());
    let send = |content_type: &'static str, body: &'static [u8]| {
        http.post(&login).header("content-type", content_type).body(body).send()
    };
    assert_eq!(send("text/html", b"<p>").await.unwrap().status(), 415);
    assert_eq!(send("application/json", b"{").await.unwrap().status(), 400);
    assert_eq!(send("application/json", b"{\"username\": 7}").await.unwrap().status(), 400);
    assert_eq!(send("application/json", b"\xff\xfe").await.unwrap().status(), 400);
    let refused: Value =
        send("application/json", b"{\"username\": 7}").await.unwrap().json().await.unwrap();
    assert_eq!(refused["code"], "invalid_argument");
    assert!(refused["message"].as_str().unwrap().contains("username"), "{refused}");

    let flavor = format!("{}/create/flavor", selvage.endpoint());
    let reply = http.get(&flavor).send().await.unwrap();
    assert_eq!(reply.status(), 405);
    let reply = http.get(format!("{}/no/such/page", selvage.endpoint())).send().await.unwrap();
    assert_eq!(reply.status(), 404);
    assert_well(&selvage).await;
}

#[test]
fn a_slow_body_does_not_keep_its_place_for_ever() {
    // Seen from outside only as: others are served while it trickles.
    let selvage = Selvage::up(&["--insecure", "--set", "listen.calls_in_flight=8"]);
    let mut trickles: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(selvage.address()).unwrap();
            let head = format!("POST {LOGIN} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{{");
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    for stream in &mut trickles {
        let _ = stream.write_all(b" ");
    }
    // Whoever hangs up before the answer is not waited for.
    let asked = b"GET /selvage/v1/whoami HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let reply = rest(&mut said(selvage.address(), asked));
    assert!(reply.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reply));
}

#[tokio::test]
async fn ten_thousand_silent_connections_cost_little_and_block_nobody() {
    let selvage = Selvage::up(&[]);
    let wanted = silent_connections();
    let before = selvage.resident_memory();
    let silent: Vec<TcpStream> =
        (0..wanted).filter_map(|_| TcpStream::connect(selvage.address()).ok()).collect();
    assert!(silent.len() >= wanted / 2, "only {} connections were taken", silent.len());
    assert_well(&selvage).await;
    let grown = selvage.resident_memory().saturating_sub(before);
    let each = grown / silent.len() as u64;
    assert!(each < 64 * 1024, "{each} bytes for each of {} silent connections", silent.len());
    drop(silent);
    assert_well(&selvage).await;
}

/// As many as this process may open, up to ten thousand.
fn silent_connections() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    usize::try_from(hard.saturating_sub(500)).unwrap_or(usize::MAX).min(10_000)
}
