//! Whatever is sent, there is an answer.

use http::Method;
use proptest::prelude::*;
use selvage_transcode::transcode_request;

use crate::harness::*;

fn path() -> impl Strategy<Value = String> {
    let known: Vec<String> = selvage_api::methods()
        .iter()
        .flat_map(|m| m.http.iter().map(|b| b.path.replace(['{', '}'], "")).chain([m.path.clone()]))
        .collect();
    prop_oneof![
        prop::sample::select(known.clone()),
        (prop::sample::select(known), "[/%a-z0-9.:]{0,6}").prop_map(|(a, b)| a + &b),
        "/[!-~]{0,40}",
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        "\\{\"(key|name|fields|ram|location|ip_support)\":([\\[{\"0-9a-z}\\]]|null){0,20}\\}?"
            .prop_map(String::into_bytes),
        "[\\[\\]{}\",:0-9eE.+\\-nulltrefas ]{0,80}".prop_map(String::into_bytes),
    ]
}

fn verb_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "X"])
}

fn content_type() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "application/json",
        "application/proto",
        "application/connect+json",
        "application/connect+proto",
        "application/json;;=,",
        "\u{7f}/",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn translating_never_panics(
        verb in verb_name(),
        path in path(),
        query in prop::option::of("[ -~]{0,60}"),
        body in body(),
    ) {
        let verb: Method = verb.parse().unwrap();
        match transcode_request(&verb, &path, query.as_deref(), &body) {
            Ok((path, message)) => {
                let method = selvage_api::method(path).unwrap();
                prost_reflect::DynamicMessage::decode(method.input.clone(), message).unwrap();
            }
            Err(error) => {
                prop_assert!(error.status().as_u16() >= 400);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn serving_always_gives_a_status(
        verb in verb_name(),
        path in path(),
        query in "[!-~]{0,40}",
        content_type in content_type(),
        body in body(),
        reply in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let Ok(uri) = format!("{path}?{query}").parse::<http::Uri>() else { return Ok(()) };
        let Ok(content_type) = http::HeaderValue::from_str(content_type) else { return Ok(()) };
        let mut request = http::Request::new(axum::body::Body::from(body));
        *request.method_mut() = verb.parse().unwrap();
        *request.uri_mut() = uri;
        request.headers_mut().insert("content-type", content_type);
        let fixture = fixture(Script::new(vec![Item::Data(reply.into())]));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(fixture.answer(request));
        prop_assert!((200..600).contains(&answer.status));
    }
}
