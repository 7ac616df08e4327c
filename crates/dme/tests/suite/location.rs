//! A location API of a carrier, with a small server in its place.

use std::{sync::Arc, time::Duration};

use selvage_api::distributed_match_engine::{
    VerifyLocationRequest, verify_location_reply::GpsLocationStatus as Status,
};
use selvage_dme::{Engine, LocationApi, Settings};
use selvage_kit::identity::Secret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{Semaphore, mpsc},
};

use crate::lab::{Keys, app, clock, engine_with, fill, find, instance, loc, name, session};

/// Answers every request with the same, once it may; tells what it was asked.
async fn api(
    status: &'static str,
    body: &'static str,
    go: Arc<Semaphore>,
) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/location", listener.local_addr().unwrap());
    let (asked, questions) = mpsc::channel(10);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (asked, go) = (asked.clone(), Arc::clone(&go));
            tokio::spawn(async move {
                let mut text = Vec::new();
                // The body is JSON and comes last.
                while !text.ends_with(b"}") {
                    let mut buffer = [0; 1024];
                    let count = stream.read(&mut buffer).await.unwrap();
                    assert_ne!(count, 0, "{}", String::from_utf8_lossy(&text));
                    text.extend_from_slice(&buffer[..count]);
                }
                let _ = asked.send(String::from_utf8(text).unwrap()).await;
                let _permit = go.acquire().await.unwrap();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (url, questions)
}

async fn engine(url: &str, timeout: Duration, token_server: &str) -> Engine {
    let location_api = LocationApi {
        url: url.into(),
        user: "mex".into(),
        password: Secret::new("canary"),
        timeout,
    };
    assert!(!format!("{location_api:?}").contains("canary"));
    let settings = Settings {
        token_server: token_server.into(),
        location_api: Some(location_api),
        ..Settings::default()
    };
    let engine = engine_with(settings, Keys::with(1), clock()).await;
    fill(&engine, &[app(&name("some"))], &[]);
    engine
}

const TOKEN_SERVER: &str = "http://tokens.example/its?followURL=https%3A%2F%2Fdme.example%2Fverloc";
const LONG: Duration = Duration::from_secs(60);

fn request() -> VerifyLocationRequest {
    VerifyLocationRequest {
        carrier_name: "TDG".into(),
        gps_location: Some(loc(50.5, 7.25)),
        verify_loc_token: "token of the device".into(),
        ..VerifyLocationRequest::default()
    }
}

async fn verified(engine: &Engine) -> (Status, f64) {
    let reply = engine.verify_location(&session(&name("some")), &request()).await.unwrap();
    (reply.gps_location_status(), reply.gps_location_accuracy_km)
}

#[tokio::test]
async fn the_api_is_asked_as_the_original_asks() {
    let body = r#"{"matchingDegree":"2","message":"found"}"#;
    let (url, mut questions) = api("200 OK", body, Arc::new(Semaphore::new(1))).await;
    let engine = engine(&url, LONG, TOKEN_SERVER).await;
    assert_eq!(verified(&engine).await, (Status::LocVerified, 10.0));
    let asked = questions.recv().await.unwrap();
    let (head, body) = asked.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /location HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains("authorization: basic bwv4omnhbmfyeq=="), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let expected = serde_json::json!({
        "latitude": 50.5,
        "longitude": 7.25,
        "token": "token of the device",
        "serviceUrl": "https://dme.example/verloc",
    });
    assert_eq!(body, expected);
    let without = VerifyLocationRequest { verify_loc_token: String::new(), ..request() };
    let error = engine.verify_location(&session(&name("some")), &without).await.unwrap_err();
    assert_eq!(error.to_string(), "verifyloc token required");
}

#[tokio::test]
async fn what_the_api_refuses_or_garbles_is_an_error_of_its_own() {
    let go = || Arc::new(Semaphore::new(9));
    for (status, body, expected) in [
        ("401 Unauthorized", "{}", Status::LocErrorUnauthorized),
        ("403 Forbidden", "{}", Status::LocErrorUnauthorized),
        ("500 Oh", "{}", Status::LocErrorOther),
        ("302 Elsewhere", "{}", Status::LocErrorOther),
        (
            "200 OK",
            r#"{"matchingDegree":"-1","message":"invalidToken"}"#,
            Status::LocErrorUnauthorized,
        ),
        ("200 OK", r#"{"matchingDegree":"7","message":""}"#, Status::LocRoamingCountryMismatch),
        ("200 OK", r#"{"degree":1}"#, Status::LocErrorOther),
    ] {
        let (url, _questions) = api(status, body, go()).await;
        let engine = engine(&url, LONG, TOKEN_SERVER).await;
        assert_eq!(verified(&engine).await, (expected, -1.0), "{status} {body}");
    }
    let (url, _questions) = api("200 OK", r#"{"matchingDegree":"1"}"#, go()).await;
    let nowhere = engine(&url, LONG, "http://tokens.example/its").await;
    assert_eq!(verified(&nowhere).await, (Status::LocErrorOther, -1.0));
    let closed = engine("http://127.0.0.1:1/", LONG, TOKEN_SERVER).await;
    assert_eq!(verified(&closed).await, (Status::LocErrorOther, -1.0));
}

#[tokio::test]
async fn an_api_that_says_nothing_is_not_waited_for() {
    let (url, _questions) = api("200 OK", "{}", Arc::new(Semaphore::new(0))).await;
    let engine = engine(&url, Duration::from_millis(50), TOKEN_SERVER).await;
    assert_eq!(verified(&engine).await, (Status::LocErrorOther, -1.0));
}

/// While the API thinks, the table goes on changing and lookups see it.
#[tokio::test]
async fn a_slow_api_holds_up_nobody_else() {
    let go = Arc::new(Semaphore::new(0));
    let body = r#"{"matchingDegree":"1","message":""}"#;
    let (url, mut questions) = api("200 OK", body, Arc::clone(&go)).await;
    let engine = Arc::new(engine(&url, LONG, TOKEN_SERVER).await);
    let waiting = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { verified(&engine).await }
    });
    questions.recv().await.unwrap();
    let some = name("some");
    assert_eq!(find(&engine, &some, "TDG", (50.0, 7.0)), "");
    fill(&engine, &[], &[instance(&some, ("TDG", "Bonn"), (50.7, 7.1), "new")]);
    assert_eq!(find(&engine, &some, "TDG", (50.0, 7.0)), "new");
    assert!(!waiting.is_finished());
    go.add_permits(1);
    assert_eq!(waiting.await.unwrap(), (Status::LocVerified, 2.0));
}
