//! Bad requests and bad inner replies: a clear status and bounded memory.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use selvage_api::edgeproto::{Flavor, Result as EdgeResult};

use crate::harness::*;

/// Verb, path, content type, body; the status and a part of the text.
type Wrong = (&'static str, &'static str, &'static str, &'static [u8], u16, &'static str);

#[tokio::test]
async fn wrong_requests_get_an_error_that_names_the_field() {
    let create = "/create/flavor";
    let table: &[Wrong] = &[
        ("POST", create, "application/json", b"{", 400, "line 1 column 1"),
        ("POST", create, "application/json", b"{\"key\":\n  7}", 400, "field key"),
        (
            "POST",
            create,
            "application/json",
            b"{\"key\":{\"name\":\n 7}}",
            400,
            "field key.name at line 2 column 2",
        ),
        ("POST", create, "application/json", b"[]", 400, "expected an object"),
        ("POST", create, "application/json", b"{} {}", 400, "trailing characters"),
        ("POST", create, "application/json", b"null", 400, "expected an object"),
        ("POST", create, "application/json", b"\xff\xfe", 400, "expected value"),
        ("POST", create, "application/json", b"{\"key\":{\"name\":\"\xff\"}}", 400, "line 1"),
        (
            "POST",
            create,
            "application/json",
            b"{\"ram\":-1}",
            400,
            "field ram: expected a 64-bit whole number, not negative",
        ),
        ("POST", create, "application/json", b"{\"ram\":1.5}", 400, "a number for field ram"),
        ("POST", create, "application/json", b"{\"ram\":\"many\"}", 400, "field ram"),
        ("POST", create, "application/json", b"{\"ram\":true}", 400, "a number for field ram"),
        ("POST", create, "application/json", b"{\"ram\":1e30}", 400, "field ram"),
        ("POST", create, "application/json", b"{\"fields\":[\"2\",3]}", 400, "field fields[1]"),
        ("POST", create, "application/json", b"{\"fields\":\"2\"}", 400, "a list for field fields"),
        (
            "POST",
            "/create/cloudlet",
            "application/json",
            b"{\"ip_support\":\"Sometimes\"}",
            400,
            "IP_SUPPORT_DYNAMIC",
        ),
        (
            "POST",
            "/create/cloudlet",
            "application/json",
            b"{\"ip_support\":99999999999}",
            400,
            "field ip_support",
        ),
        ("POST", create, "text/html", b"{}", 415, "application/json"),
        ("POST", create, "multipart/form-data", b"{}", 415, "application/json"),
        ("POST", create, "application/json; charset=utf-16", b"{}", 415, "utf-16"),
        ("GET", create, "application/json", b"", 405, "POST"),
        ("BREW", create, "application/json", b"", 405, "POST"),
        ("GET", "/nothing/here", "application/json", b"", 404, "/nothing/here"),
        ("GET", "/nothing/%zz", "application/json", b"", 400, "hexadecimal"),
        ("GET", "/nothing/%ff", "application/json", b"", 400, "UTF-8"),
        (
            "DELETE",
            "/selvage/v1/users/%ff",
            "application/json",
            b"",
            400,
            "path parameter username: is not valid UTF-8",
        ),
        ("DELETE", "/selvage/v1/users/%2", "application/json", b"", 400, "path parameter username"),
        (
            "GET",
            "/selvage/v1/sessions?username=%ff",
            "application/json",
            b"",
            400,
            "query parameter username: is not valid UTF-8",
        ),
        (
            "GET",
            "/selvage/v1/sessions?nobody=1",
            "application/json",
            b"",
            400,
            "query parameter nobody",
        ),
        (
            "GET",
            "/selvage/v1/sessions?username=a&username=b",
            "application/json",
            b"",
            400,
            "more than once",
        ),
    ];
    for (verb, path, content_type, body, status, text) in table {
        let fixture = fixture(Script::ok(&[EdgeResult::default()]));
        let mut request = post("/", content_type, body.to_vec());
        *request.method_mut() = verb.parse().unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let answer = fixture.answer(request).await;
        let shown = format!("{verb} {path} {:?}: {}", Bytes::from_static(body), answer.text());
        assert_eq!(answer.status, *status, "{shown}");
        assert!(answer.text().contains(text), "{shown}");
        assert!(answer.json()["code"].as_i64().unwrap() > 0, "{shown}");
        assert_eq!(fixture.calls(), 0, "{shown}");
    }
}

#[tokio::test]
async fn a_slow_body_is_distinguished_from_one_that_broke_off() {
    let slow = selvage_transcode::SlowBody { timeout: std::time::Duration::from_secs(3) };
    let cut = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let body = |error| Body::from_stream(stream::iter([Ok(Bytes::from_static(b"{")), Err(error)]));
    for path in ["/create/flavor", "/edgeproto.FlavorApi/CreateFlavor"] {
        let fixture = fixture(Script::ok(&[EdgeResult::default()]));
        let answer = fixture.post(path, body(axum::BoxError::from(slow))).await;
        assert_eq!(answer.status, 408, "{}", answer.text());
        assert!(answer.text().contains("too slowly"), "{}", answer.text());
        let answer = fixture.post(path, body(axum::BoxError::from(cut()))).await;
        assert!(answer.text().contains("broke off"), "{}", answer.text());
        assert_eq!(fixture.calls(), 0);
    }
}

#[tokio::test]
async fn deep_nesting_ends_in_an_error_and_not_in_the_stack() {
    for start in ["{\"x\":", "{\"key\":", "", "{\"fields\":"] {
        let deep = format!("{start}{}", "[".repeat(4000));
        let answer =
            fixture(Script::ok(&[EdgeResult::default()])).post("/create/flavor", deep).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}

#[tokio::test]
async fn bodies_over_the_limit_are_not_read() {
    let fixture = fixture(Script::ok(&[EdgeResult::default()]));
    let pulled = Arc::new(AtomicUsize::new(0));
    let counter = pulled.clone();
    let endless = stream::repeat(Bytes::from_static(&[b' '; 512])).map(move |chunk| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::io::Error>(chunk)
    });
    let answer = fixture.post("/create/flavor", Body::from_stream(endless)).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["code"], 8);
    assert!(answer.text().contains("4096 bytes"));
    assert!(pulled.load(Ordering::SeqCst) <= 9, "read on after the limit");

    let mut announced = post("/create/flavor", "application/json", "{}");
    announced.headers_mut().insert("content-length", "5000".parse().unwrap());
    assert_eq!(fixture.answer(announced).await.status, 429);

    let connect = fixture.post("/services.auth.AuthService/Login", vec![b' '; 4097]).await;
    assert_eq!(
        (connect.status, connect.json()["code"].as_str().unwrap()),
        (429, "resource_exhausted")
    );
    assert_eq!(fixture.calls(), 0);

    let just_fits = fixture.post("/create/flavor", vec![b' '; 4096]).await;
    assert_eq!(just_fits.status, 200);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_request() {
    let fixture = fixture(Script::ok(&[EdgeResult::default()]));
    let broken = stream::iter([Ok(Bytes::from_static(b"{}")), Err(std::io::Error::other("gone"))]);
    let answer = fixture.post("/create/flavor", Body::from_stream(broken)).await;
    assert_eq!(answer.status, 408);
    assert_eq!(fixture.calls(), 0);
}

#[tokio::test]
async fn bad_deadlines_and_encodings_are_refused() {
    let fixture = fixture(Script::ok(&[EdgeResult::default()]));
    for (name, value, status) in [("grpc-timeout", "soon", 400), ("content-encoding", "gzip", 415)]
    {
        let mut request = post("/create/flavor", "application/json", "{}");
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(fixture.answer(request).await.status, status);
    }
}

/// A reply that breaks gRPC's rules, the status it becomes, a part of the text.
fn broken_replies() -> Vec<(Script, u16, &'static str)> {
    let trailers = || Item::Trailers(header_map(&[("grpc-status", "0")]));
    let message = || Item::Data(framed(&EdgeResult { message: "x".to_owned(), code: 0 }));
    let cut = |n: usize| {
        let whole = framed(&EdgeResult { message: "x".to_owned(), code: 0 });
        Item::Data(whole.slice(..n))
    };
    let mut not_grpc = Script::new(vec![Item::Data(Bytes::from_static(b"<html>"))]);
    not_grpc.headers.insert("content-type", "text/html".parse().unwrap());
    let mut bad_gateway = not_grpc.clone();
    bad_gateway.status = StatusCode::BAD_GATEWAY;
    vec![
        (Script::new(vec![message()]), 500, "without a status"),
        (Script::new(vec![]), 500, "without a status"),
        (Script::new(vec![cut(3), trailers()]), 500, "within a message"),
        (Script::new(vec![cut(7), trailers()]), 500, "within a message"),
        (Script::new(vec![Item::Data(raw_frame(1, b"zz")), trailers()]), 500, "compressed"),
        (Script::new(vec![Item::Data(raw_frame(0, b"\xff\xff")), trailers()]), 500, "decoded"),
        (
            Script::new(vec![Item::Data(Bytes::from_static(b"\0\xff\xff\xff\xff"))]),
            429,
            "4096 bytes",
        ),
        (Script::new(vec![trailers()]), 500, "without a message"),
        (Script::new(vec![message(), message(), trailers()]), 500, "twice"),
        (
            Script::new(vec![Item::Broken(tonic::Status::unavailable("gone away"))]),
            503,
            "gone away",
        ),
        (not_grpc, 500, "200 OK"),
        (bad_gateway, 503, "502 Bad Gateway"),
    ]
}

#[tokio::test]
async fn broken_replies_become_errors_in_both_protocols() {
    for (script, status, text) in broken_replies() {
        let answer = fixture(script.clone()).post("/create/flavor", "{}").await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(text), "{}", answer.text());
        let answer = fixture(script).post("/edgeproto.FlavorApi/CreateFlavor", "{}").await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}

#[tokio::test]
async fn broken_streams_end_in_an_error_chunk() {
    let good = Item::Data(framed(&Flavor::default()));
    for (items, text) in [
        (vec![good.clone()], "without a status"),
        (vec![good.clone(), Item::Data(raw_frame(0, b"\xff\xff"))], "decoded"),
        (vec![good, Item::Broken(tonic::Status::aborted("over"))], "over"),
    ] {
        let answer = fixture(Script::new(items)).post("/show/flavor", "{}").await;
        assert_eq!(answer.status, 200);
        let last = serde_json::Deserializer::from_slice(&answer.body)
            .into_iter::<serde_json::Value>()
            .last()
            .unwrap()
            .unwrap();
        assert!(last["error"]["message"].as_str().unwrap().contains(text), "{last}");
    }
}
