//! Every route and every method of the contracts can be reached.

use selvage_api::methods;
use selvage_transcode::Claim;

use crate::harness::*;

#[tokio::test]
async fn every_route_leads_to_its_method_with_a_zero_message() {
    let mut count = 0;
    for method in methods() {
        for binding in &method.http {
            count += 1;
            let captured = binding.path_fields().count();
            let path = filled(&binding.path);
            let fixture = fixture(Script::ok::<()>(&[()]));
            let request = verb(&binding.verb, &path);
            assert!(
                matches!(fixture.transcoder.claims(&request), Claim::Rest(route) if route.method.path == method.path)
            );
            let answer = fixture.answer(request).await;
            assert_eq!(answer.status, 200, "{binding}: {}", answer.text());
            let seen = fixture.last();
            assert_eq!(seen.path, method.path, "{binding}");
            // Each captured "x" is a string field: tag, length, one byte.
            assert_eq!(seen.message.len(), captured * 3, "{binding}");
        }
    }
    assert!(count >= 70, "{count} routes");
}

fn filled(template: &str) -> String {
    let mut path = String::new();
    for part in template.split('{') {
        match part.split_once('}') {
            Some((_, rest)) => path.extend(["x", rest]),
            None => path.push_str(part),
        }
    }
    path
}

#[tokio::test]
async fn every_method_answers_connect_in_json_and_protobuf() {
    for method in methods() {
        for codec in ["json", "proto"] {
            let fixture = fixture(Script::ok::<()>(&[()]));
            let empty: &[u8] = if codec == "json" { b"{}" } else { b"" };
            let request = if method.server_streaming || method.client_streaming {
                post(&method.path, &format!("application/connect+{codec}"), raw_frame(0, empty))
            } else {
                post(&method.path, &format!("application/{codec}"), empty.to_vec())
            };
            assert!(matches!(fixture.transcoder.claims(&request), Claim::Connect));
            let answer = fixture.answer(request).await;
            assert_eq!(answer.status, 200, "{} {codec}: {:?}", method.path, answer.body);
            if method.client_streaming {
                assert_eq!(fixture.calls(), 0);
            } else {
                assert_eq!(fixture.last().path, method.path);
                assert!(fixture.last().message.is_empty());
            }
        }
    }
}

#[test]
fn claims_tell_protocols_apart() {
    let fixture = fixture(Script::ok::<()>(&[]));
    let claim = |request| fixture.transcoder.claims(&request);
    for content_type in
        ["application/grpc", "application/grpc-web+proto", "application/grpc-web-text"]
    {
        assert!(matches!(claim(post("/a.B/C", content_type, "")), Claim::Grpc));
    }
    assert!(matches!(claim(verb("GET", "/services.auth.AuthService/Login")), Claim::Connect));
    assert!(matches!(claim(verb("PATCH", "/show/app")), Claim::Rest(_)));
    for path in ["/", "/docs", "/metrics", "/openapi.json", "/api/ping", "/show", "/show/app/x"] {
        assert!(matches!(claim(verb("GET", path)), Claim::None), "{path}");
    }
}
