//! The Connect protocol on the wire.

use prost::Message;
use selvage_api::{
    edgeproto::{Flavor, FlavorKey},
    resources::timestamp,
    services::auth::{LoginRequest, LoginResponse},
};
use serde_json::json;

use crate::harness::*;

const LOGIN: &str = "/services.auth.AuthService/Login";
const SHOW: &str = "/edgeproto.FlavorApi/ShowFlavor";

fn session() -> LoginResponse {
    LoginResponse {
        token: "t".to_owned(),
        expires: Some(timestamp::Timestamp { ..Default::default() }),
        account_id: "ann".to_owned(),
    }
}

fn small() -> Flavor {
    Flavor { key: Some(FlavorKey { name: "s".to_owned() }), ram: 7, ..Default::default() }
}

#[tokio::test]
async fn unary_json_is_canonical_under_both_prefixes() {
    for path in [LOGIN.to_owned(), format!("/api{LOGIN}")] {
        let fixture = fixture(Script::ok(&[session()]).header("set-cookie", "s=1"));
        let answer = fixture.post(&path, r#"{"username":"ann","password":"pw","more":1}"#).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-type"], "application/json");
        assert_eq!(answer.headers["set-cookie"], "s=1");
        assert_eq!(answer.json()["accountId"], "ann");
        let seen = fixture.last();
        assert_eq!(seen.path, LOGIN);
        assert_eq!(seen.headers["x-selvage-protocol"], "connect");
        assert_eq!(seen.headers["x-selvage-content-type"], "application/json");
        let asked = LoginRequest::decode(seen.message).unwrap();
        assert_eq!((asked.username.as_str(), asked.password.as_str()), ("ann", "pw"));
    }
}

#[tokio::test]
async fn unary_protobuf_passes_bytes() {
    let fixture = fixture(Script::ok(&[session()]));
    let request = LoginRequest { username: "ann".to_owned(), password: "pw".to_owned() };
    let answer = fixture.answer(post(LOGIN, "application/proto", request.encode_to_vec())).await;
    assert_eq!(answer.headers["content-type"], "application/proto");
    assert_eq!(LoginResponse::decode(answer.body).unwrap(), session());
    assert_eq!(fixture.last().message, request.encode_to_vec());
}

#[tokio::test]
async fn unary_trailers_become_headers() {
    let mut script = Script::ok(&[session()]);
    script.items.pop();
    script.items.push(Item::Trailers(header_map(&[("grpc-status", "0"), ("x-cost", "3")])));
    let answer = fixture(script).post(LOGIN, "{}").await;
    assert_eq!(answer.headers["trailer-x-cost"], "3");
    assert!(!answer.headers.contains_key("trailer-grpc-status"));
}

#[tokio::test]
async fn unary_errors_have_connects_names_and_statuses() {
    let expected = [
        (1, "canceled", 499),
        (2, "unknown", 500),
        (3, "invalid_argument", 400),
        (4, "deadline_exceeded", 504),
        (5, "not_found", 404),
        (6, "already_exists", 409),
        (7, "permission_denied", 403),
        (8, "resource_exhausted", 429),
        (9, "failed_precondition", 400),
        (10, "aborted", 409),
        (11, "out_of_range", 400),
        (12, "unimplemented", 501),
        (13, "internal", 500),
        (14, "unavailable", 503),
        (15, "data_loss", 500),
        (16, "unauthenticated", 401),
    ];
    for (code, name, status) in expected {
        for content_type in ["application/json", "application/proto"] {
            let fixture = fixture(Script::error(code, "no%20way"));
            let answer = fixture.answer(post(LOGIN, content_type, "")).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.headers["content-type"], "application/json");
            assert_eq!(answer.text(), format!(r#"{{"code":"{name}","message":"no way"}}"#));
        }
    }
}

#[tokio::test]
async fn streams_are_enveloped_and_end_with_an_end() {
    let mut script = Script::ok(&[small(), small()]);
    script.items.pop();
    script.items.push(Item::Trailers(header_map(&[("grpc-status", "0"), ("x-cost", "3")])));
    let fixture = fixture(script);
    let request = raw_frame(0, br#"{"key":{"name":"s"}}"#);
    let answer = fixture.answer(post(SHOW, "application/connect+json", request)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/connect+json");
    let found = envelopes(&answer.body);
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], (0, br#"{"key":{"name":"s"},"ram":"7"}"#.to_vec()));
    assert_eq!(found[2], (2, br#"{"metadata":{"x-cost":["3"]}}"#.to_vec()));
    assert_eq!(Flavor::decode(fixture.last().message).unwrap().key.unwrap().name, "s");

    let request = raw_frame(0, &small().encode_to_vec());
    let answer = fixture.answer(post(SHOW, "application/connect+proto", request)).await;
    let found = envelopes(&answer.body);
    assert_eq!(Flavor::decode(found[1].1.as_slice()).unwrap(), small());
    assert_eq!(found[2].0, 2);
}

#[tokio::test]
async fn stream_errors_come_in_the_end_before_and_after_messages() {
    for (script, messages) in [
        (Script::error(7, "not yours"), 0),
        (Script::error_after::<Flavor>(&[], 7, "not yours"), 0),
        (Script::error_after(&[small()], 7, "not yours"), 1),
    ] {
        let request = post(SHOW, "application/connect+json", raw_frame(0, b"{}"));
        let answer = fixture(script).answer(request).await;
        assert_eq!(answer.status, 200);
        let found = envelopes(&answer.body);
        assert_eq!(found.len(), messages + 1);
        let (flags, end) = found.last().unwrap();
        assert_eq!(*flags, 2);
        let end: serde_json::Value = serde_json::from_slice(end).unwrap();
        assert_eq!(end, json!({"error": {"code": "permission_denied", "message": "not yours"}}));
    }
}

#[tokio::test]
async fn streams_that_are_no_streams_are_refused_in_the_stream() {
    for (request, reason) in [
        (bytes::Bytes::new(), "one enveloped message"),
        (raw_frame(1, b"{}"), "compressed"),
        (raw_frame(4, b"{}"), "unknown flags"),
        (bytes::Bytes::from_static(b"\0\0\0\0\x09{}"), "shorter"),
        (bytes::Bytes::from_static(b"\0\0\0\0\x02{}\0\0\0\0\x02{}"), "more than one"),
        (raw_frame(0, b"{"), "JSON"),
    ] {
        let fixture = fixture(Script::ok(&[small()]));
        let answer = fixture.answer(post(SHOW, "application/connect+json", request)).await;
        assert_eq!(answer.status, 200);
        let found = envelopes(&answer.body);
        assert_eq!((found.len(), found[0].0), (1, 2));
        let end: serde_json::Value = serde_json::from_slice(&found[0].1).unwrap();
        assert_eq!(end["error"]["code"], "invalid_argument");
        assert!(end["error"]["message"].as_str().unwrap().contains(reason), "{end}");
        assert_eq!(fixture.calls(), 0);
    }
}

#[tokio::test]
async fn client_streams_are_unimplemented_with_a_sentence() {
    let path = "/edgeproto.NotifyApi/StreamNotice";
    let fixture = fixture(Script::ok(&[small()]));
    let answer = fixture.post(path, "{}").await;
    assert_eq!((answer.status, &answer.json()["code"]), (501, &json!("unimplemented")));
    assert!(answer.text().contains("only gRPC over HTTP/2"), "{}", answer.text());
    let answer = fixture.answer(post(path, "application/connect+json", raw_frame(0, b"{}"))).await;
    assert_eq!(answer.status, 200);
    assert!(String::from_utf8_lossy(&envelopes(&answer.body)[0].1).contains("unimplemented"));
    assert_eq!(fixture.calls(), 0);
}

#[tokio::test]
async fn reflection_is_passed_on_in_its_own_frames() {
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        for prefix in ["", "/api"] {
            let fixture = fixture(Script::ok(&[small()]));
            let asked = raw_frame(0, b"question");
            let there = format!("{prefix}{path}");
            let answer = fixture.answer(post(&there, "application/connect+proto", asked)).await;
            let found = envelopes(&answer.body);
            assert_eq!(found, [(0, small().encode_to_vec()), (2, b"{}".to_vec())]);
            let seen = fixture.last();
            assert_eq!((seen.path.as_str(), &seen.message[..]), (path.as_str(), &b"question"[..]));
            assert_eq!(seen.headers["content-type"], "application/grpc");
        }
        let fixture = fixture(Script::ok(&[small()]));
        let answer = fixture.answer(post(&path, "application/connect+json", "{}")).await;
        assert_eq!(answer.status, 415);
        assert!(answer.text().contains("send application/connect+proto"), "{}", answer.text());
        assert_eq!(fixture.answer(verb("GET", &path)).await.status, 405);
        assert_eq!(fixture.calls(), 0);
    }
}

#[tokio::test]
async fn manners_are_checked_before_the_call() {
    let fixture = fixture(Script::ok(&[session()]));
    let answer =
        fixture.answer(verb("GET", &format!("{LOGIN}?encoding=json&message=%7B%7D"))).await;
    assert_eq!((answer.status, answer.headers["allow"].to_str().unwrap()), (405, "OPTIONS, POST"));
    assert_eq!(fixture.answer(verb("OPTIONS", LOGIN)).await.status, 204);

    for content_type in
        ["text/plain", "application/connect+json", "application/x-www-form-urlencoded"]
    {
        let answer = fixture.answer(post(LOGIN, content_type, "{}")).await;
        assert_eq!(answer.status, 415, "{content_type}");
        assert!(answer.headers["accept-post"].to_str().unwrap().contains("application/json"));
    }
    assert_eq!(fixture.answer(verb("POST", LOGIN)).await.status, 415, "no content type");
    assert_eq!(fixture.answer(post(SHOW, "application/json", "{}")).await.status, 415);

    for (name, value, status) in [
        ("connect-protocol-version", "2", 400),
        ("connect-timeout-ms", "soon", 400),
        ("content-encoding", "gzip", 415),
    ] {
        let mut request = post(LOGIN, "application/json", "{}");
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(fixture.answer(request).await.status, status, "{name}");
    }
    let answer = fixture.post("/services.auth.AuthService/Logon", "{}").await;
    assert_eq!((answer.status, &answer.json()["code"]), (501, &json!("unimplemented")));
    assert_eq!(fixture.calls(), 0);

    let mut request = post(LOGIN, "application/json; charset=utf-8", "{}");
    request.headers_mut().insert("connect-protocol-version", "1".parse().unwrap());
    request.headers_mut().insert("connect-timeout-ms", "1500".parse().unwrap());
    assert_eq!(fixture.answer(request).await.status, 200);
    assert_eq!(fixture.last().headers["grpc-timeout"], "1500m");
}
