//! The bytes of each dialect.

use std::sync::atomic::Ordering;

use http::Request;
use http_body_util::BodyExt;
use prost::Message;
use selvage_api::{
    cnct::kaas::api as kaas,
    distributed_match_engine as dme,
    edgeproto::{self, Flavor, FlavorKey, Result as EdgeResult},
    selvage::identity,
};
use serde_json::json;

use crate::harness::*;

fn small() -> Flavor {
    Flavor {
        fields: Vec::new(),
        key: Some(FlavorKey { name: "x1.small".to_owned() }),
        ram: 2048,
        vcpus: 2,
        disk: 2,
    }
}

fn progress(message: &str) -> EdgeResult {
    EdgeResult { message: message.to_owned(), code: 0 }
}

#[tokio::test]
async fn edge_show_streams_results_over_several_lines() {
    let fixture = fixture(Script::ok(&[small()]));
    let answer = fixture.post("/show/flavor", r#"{"key":{"name":"x1.small"}}"#).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    let expected = concat!(
        "{\n \"result\": {\n  \"fields\": [],\n  \"key\": {\n   \"name\": \"x1.small\"\n  },\n",
        "  \"ram\": \"2048\",\n  \"vcpus\": \"2\",\n  \"disk\": \"2\"\n }\n}\n"
    );
    assert_eq!(answer.text(), expected);
    let seen = fixture.last();
    assert_eq!(
        (seen.verb.as_str(), seen.path.as_str()),
        ("POST", "/edgeproto.FlavorApi/ShowFlavor")
    );
    let asked = Flavor::decode(seen.message).unwrap();
    assert_eq!(asked.key.unwrap().name, "x1.small");
}

#[tokio::test]
async fn edge_show_of_nothing_is_an_empty_body() {
    let fixture = fixture(Script::ok::<Flavor>(&[]));
    let answer = fixture.post("/show/flavor", "").await;
    assert_eq!((answer.status, answer.text()), (200, ""));
    assert!(fixture.last().message.is_empty());
}

#[tokio::test]
async fn edge_unary_writes_zeros() {
    let answer = fixture(Script::ok(&[progress("")])).post("/create/flavor", "{}").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), "{\n \"message\": \"\",\n \"code\": 0\n}");
}

#[tokio::test]
async fn edge_unary_error_has_code_message_and_details() {
    let answer = fixture(Script::error(2, "Key already exists")).post("/create/flavor", "{}").await;
    assert_eq!(answer.status, 500);
    assert_eq!(
        answer.text(),
        "{\n \"code\": 2,\n \"message\": \"Key already exists\",\n \"details\": []\n}"
    );
}

#[tokio::test]
async fn edge_create_reports_progress_and_keeps_200_when_it_fails_late() {
    let steps = ["Creating", "Ready", "Created successfully"].map(progress);
    let answer = fixture(Script::ok(&steps)).post("/create/appinst", "{}").await;
    assert_eq!(answer.status, 200);
    let values: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&answer.body)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let texts: Vec<_> = values.iter().map(|v| v["result"]["message"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Creating", "Ready", "Created successfully"]);

    let late = Script::error_after(&steps[..1], 2, "no%20room");
    let answer = fixture(late).post("/create/appinst", "{}").await;
    assert_eq!(answer.status, 200);
    assert!(!answer.text().ends_with('\n'), "the error chunk has no newline");
    let values: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&answer.body)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(values[0]["result"]["message"], "Creating");
    let error = json!({"error": {"grpc_code": 2, "http_code": 500, "message": "no room",
        "http_status": "Internal Server Error", "details": []}});
    assert_eq!(values[1..], [error]);
}

#[tokio::test]
async fn edge_stream_that_fails_at_once_has_the_status_of_its_error() {
    for script in [Script::error(5, "not here"), Script::error_after::<Flavor>(&[], 5, "not here")]
    {
        let answer = fixture(script).post("/show/flavor", "{}").await;
        assert_eq!(answer.status, 404);
        let error = json!({"error": {"grpc_code": 5, "http_code": 404, "message": "not here",
            "http_status": "Not Found", "details": []}});
        assert_eq!(answer.json(), error);
    }
}

#[tokio::test]
async fn edge_messages_appear_by_value_and_dme_messages_as_null() {
    let world_ = fixture(Script::ok(&[edgeproto::Cloudlet::default()]));
    let cloudlet = world_.post("/show/cloudlet", "{}").await.json();
    let result = &cloudlet["result"];
    assert_eq!(result["key"], json!({"operator_key": {"name": ""}, "name": ""}));
    assert_eq!(result["location"]["timestamp"], json!(null));
    assert_eq!(result["location"]["latitude"], json!(0));
    assert_eq!(result["num_dynamic_ips"], json!(0));
    assert!(result["ip_support"].is_string());

    let reply = dme::FindCloudletReply { ver: 1, ..Default::default() };
    let found = fixture(Script::ok(&[reply])).post("/v1/findcloudlet", "{}").await;
    assert_eq!(found.json()["cloudlet_location"], json!(null));
    assert_eq!(found.json()["status"], "FIND_UNKNOWN");
    assert_eq!(found.json()["ports"], json!([]));
}

#[tokio::test]
async fn both_spellings_of_delete_cloudlet_lead_to_one_method() {
    for path in ["/delete/cloudet", "/delete/cloudlet"] {
        let fixture = fixture(Script::ok(&[progress("done")]));
        assert_eq!(fixture.post(path, r#"{"key":{"name":"c"}}"#).await.status, 200);
        assert_eq!(fixture.last().path, "/edgeproto.CloudletApi/DeleteCloudlet");
    }
}

#[tokio::test]
async fn names_numbers_and_enums_are_read_in_every_spelling() {
    for body in [
        r#"{"key":{"operator_key":{"name":"op"}},"num_dynamic_ips":7,"ip_support":"IP_SUPPORT_DYNAMIC","surplus":{"x":[1]}}"#,
        r#"{"key":{"operatorKey":{"name":"op"}},"numDynamicIps":"7","ipSupport":2,"location":null}"#,
        r#" {"key":{"operator_key":{"name":"op"}},"num_dynamic_ips":7.0,"ip_support":2} "#,
    ] {
        let fixture = fixture(Script::ok(&[progress("")]));
        let answer = fixture.post("/create/cloudlet", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let asked = edgeproto::Cloudlet::decode(fixture.last().message).unwrap();
        assert_eq!(asked.num_dynamic_ips, 7);
        assert_eq!(asked.ip_support, 2);
        assert_eq!(asked.key.unwrap().operator_key.unwrap().name, "op");
        assert!(asked.location.is_none());
    }
}

#[tokio::test]
async fn kaas_leaves_zeros_out_and_is_compact() {
    let reply = kaas::GetClusterReply {
        ok: true,
        cluster: Some(kaas::ClusterDetailItem {
            name: "c1".to_owned(),
            status_message: "on its way".to_owned(),
            kubeconfig: String::new(),
            status: kaas::ClusterStatus::Provisioning as i32,
        }),
    };
    let fixture = fixture(Script::ok(&[reply]));
    let answer = fixture.answer(verb("GET", "/api/v1/cluster?name=c%201&nobody=knows")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.text(),
        r#"{"ok":true,"cluster":{"name":"c1","status_message":"on its way","status":"PROVISIONING"}}"#
    );
    let asked = kaas::GetClusterMsg::decode(fixture.last().message).unwrap();
    assert_eq!(asked.name, "c 1");
}

#[tokio::test]
async fn kaas_queries_repeat_keys_and_know_both_spellings() {
    let reply = kaas::DeleteNodePoolReply { ok: true };
    for query in [
        "clusterName=c1&node_pool_names=a&node_pool_names=b+c",
        "cluster%4Eame=c1&nodePoolNames=a&node_pool_names=b%20c",
    ] {
        let fixture = fixture(Script::ok(std::slice::from_ref(&reply)));
        let answer = fixture.answer(verb("DELETE", &format!("/api/v1/cluster/pool?{query}"))).await;
        assert_eq!(answer.text(), r#"{"ok":true}"#);
        let asked = kaas::DeleteNodePoolMsg::decode(fixture.last().message).unwrap();
        assert_eq!(asked.cluster_name, "c1");
        assert_eq!(asked.node_pool_names, ["a", "b c"]);
    }
}

#[tokio::test]
async fn of_several_values_for_one_the_first_counts_as_it_did_in_the_gateways() {
    let fixture = fixture(Script::ok(&[kaas::GetClusterReply::default()]));
    let answer = fixture.answer(verb("GET", "/api/v1/cluster?name=a&name=b")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked = kaas::GetClusterMsg::decode(fixture.last().message).unwrap();
    assert_eq!(asked.name, "a");
}

#[tokio::test]
async fn kaas_errors_say_it_twice() {
    let answer =
        fixture(Script::error(5, "gone")).answer(verb("GET", "/api/v1/cluster?name=x")).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.text(), r#"{"error":"gone","message":"gone","code":5}"#);
    let fixture = fixture(Script::ok(&[kaas::GetClusterReply::default()]));
    for (verb_, path, status, text) in [
        ("GET", "/api/v1/nothing", 404, "Not Found\n"),
        ("PATCH", "/api/v1/cluster", 405, "Method Not Allowed\n"),
    ] {
        let answer = fixture.answer(verb(verb_, path)).await;
        assert_eq!((answer.status, answer.text()), (status, text));
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    }
    assert_eq!(fixture.calls(), 0);
}

#[tokio::test]
async fn selvage_routes_take_path_query_and_body() {
    let user = identity::User { username: "ann".to_owned(), disabled: true, ..Default::default() };
    let fixture = fixture(Script::ok(&[identity::UpdateUserResponse { user: Some(user) }]));
    let request = Request::put("/selvage/v1/users/ann%40b")
        .header("content-type", "application/json")
        .body(r#"{"username":"eve","disabled":true}"#.into())
        .unwrap();
    let answer = fixture.answer(request).await;
    assert_eq!(answer.text(), r#"{"user":{"username":"ann","disabled":true}}"#);
    let asked = identity::UpdateUserRequest::decode(fixture.last().message).unwrap();
    assert_eq!((asked.username.as_str(), asked.disabled), ("ann@b", true), "the path wins");
}

#[tokio::test]
async fn selvage_queries_fill_fields() {
    let fixture = fixture(Script::ok(&[identity::ListSessionsResponse::default()]));
    let answer = fixture.answer(verb("GET", "/selvage/v1/sessions?username=*")).await;
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    let asked = identity::ListSessionsRequest::decode(fixture.last().message).unwrap();
    assert_eq!(asked.username, "*");
}

#[tokio::test]
async fn selvage_errors_carry_details_that_nobody_knows() {
    // google.rpc.Status with one detail of a type outside the contracts and
    // one of a type within.
    let flavor = small().encode_to_vec();
    let details = prost_types::Any {
        type_url: "type.googleapis.com/edgeproto.Flavor".to_owned(),
        value: flavor,
    };
    let unknown =
        prost_types::Any { type_url: "type.googleapis.com/x.Y".to_owned(), value: vec![1, 2] };
    let mut status = Vec::new();
    for any in [&details, &unknown] {
        prost::encoding::message::encode(3, any, &mut status);
    }
    use base64::Engine;
    let encoded = base64::prelude::BASE64_STANDARD_NO_PAD.encode(status);
    let script = Script::error(3, "wrong%0Aname").header("grpc-status-details-bin", &encoded);
    let answer = fixture(script.clone()).answer(verb("GET", "/selvage/v1/users")).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text(),
        concat!(
            r#"{"code":3,"message":"wrong\nname","details":["#,
            r#"{"@type":"type.googleapis.com/edgeproto.Flavor","key":{"name":"x1.small"},"ram":"2048","vcpus":"2","disk":"2"},"#,
            r#"{"@type":"type.googleapis.com/x.Y","value":"AQI="}]}"#
        )
    );
    assert!(!answer.headers.contains_key("grpc-status-details-bin"));
    let kaas = fixture(script).answer(verb("GET", "/api/v1/version")).await;
    assert_eq!(kaas.json()["details"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn every_code_has_the_status_of_the_originals() {
    let expected = [
        (1, 408),
        (2, 500),
        (3, 400),
        (4, 504),
        (5, 404),
        (6, 409),
        (7, 403),
        (8, 429),
        (9, 412),
        (10, 409),
        (11, 400),
        (12, 501),
        (13, 500),
        (14, 503),
        (15, 500),
        (16, 401),
    ];
    for (code, status) in expected {
        let answer = fixture(Script::error(code, "no")).post("/create/flavor", "{}").await;
        assert_eq!(answer.status, status, "code {code}");
        assert_eq!(answer.json()["code"], code);
    }
}

#[tokio::test]
async fn the_inner_call_keeps_the_callers_headers_and_extensions() {
    let fixture = fixture(Script::ok(&[progress("")]));
    let mut request = post("/create/flavor", "application/json; charset=utf-8", "{}");
    request.extensions_mut().insert(Peer("node/rack1"));
    for (name, value) in header_map(&[
        ("authorization", "Bearer t"),
        ("cookie", "a=b"),
        ("origin", "https://edge.example"),
        ("sec-fetch-site", "same-origin"),
        ("user-agent", "test"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-session", "cookie"),
        ("x-selvage-protocol", "forged"),
        ("grpc-timeout", "5S"),
        ("accept", "text/html"),
    ]) {
        request.headers_mut().append(name.unwrap(), value);
    }
    assert_eq!(fixture.answer(request).await.status, 200);
    let seen = fixture.last();
    assert_eq!(seen.peer, Some(Peer("node/rack1")));
    for (name, value) in [
        ("authorization", "Bearer t"),
        ("cookie", "a=b"),
        ("origin", "https://edge.example"),
        ("sec-fetch-site", "same-origin"),
        ("user-agent", "test"),
        ("x-session", "cookie"),
        ("x-selvage-protocol", "rest"),
        ("x-selvage-content-type", "application/json; charset=utf-8"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "5S"),
    ] {
        assert_eq!(seen.headers[name], value);
    }
    assert_eq!(seen.headers.get_all("x-selvage-protocol").iter().count(), 1);
    assert!(seen.headers.contains_key("traceparent"));
}

#[tokio::test]
async fn cookies_and_metadata_come_back_and_grpcs_own_headers_do_not() {
    let mut script = Script::ok(&[progress("")])
        .header("set-cookie", "a=1")
        .header("set-cookie", "b=2")
        .header("x-request-id", "7")
        .header("grpc-encoding", "identity");
    script.items.pop();
    script.items.push(Item::Trailers(header_map(&[("grpc-status", "0"), ("x-cost", "3")])));
    let answer = fixture(script).post("/create/flavor", "{}").await;
    assert_eq!(answer.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(answer.headers["x-request-id"], "7");
    assert_eq!(answer.headers["grpc-trailer-x-cost"], "3");
    assert_eq!(answer.headers["content-type"], "application/json");
    assert!(!answer.headers.contains_key("grpc-encoding"));

    let refused = Script::error(16, "log in first").header("www-authenticate", "Bearer");
    let answer = fixture(refused).post("/create/flavor", "{}").await;
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    assert!(!answer.headers.contains_key("grpc-status"));
}

#[tokio::test]
async fn a_stream_is_passed_on_message_by_message_and_ends_when_dropped() {
    let script = Script::new(vec![Item::Data(framed(&progress("first"))), Item::Wait]);
    let fixture = fixture(script);
    let mut body =
        fixture.send(post("/create/appinst", "application/json", "{}")).await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("first"));
    assert_eq!(fixture.inner.dropped.load(Ordering::SeqCst), 0);
    drop(body);
    assert_eq!(fixture.inner.dropped.load(Ordering::SeqCst), 1, "the inner stream is cancelled");
}

#[tokio::test]
async fn messages_cut_anywhere_across_chunks_are_put_together() {
    let mut bytes = framed(&small()).to_vec();
    bytes.extend_from_slice(&framed(&small()));
    let mut items: Vec<Item> =
        bytes.iter().map(|byte| Item::Data(bytes::Bytes::copy_from_slice(&[*byte]))).collect();
    items.push(Item::Trailers(header_map(&[("grpc-status", "0")])));
    let answer = fixture(Script::new(items)).post("/show/flavor", "{}").await;
    assert_eq!(answer.text().matches("x1.small").count(), 2);
}

#[tokio::test]
async fn head_is_get_without_a_body_and_options_names_the_verbs() {
    let fixture = fixture(Script::ok(&[kaas::GetVersionReply { ok: true, ..Default::default() }]));
    let answer = fixture.answer(verb("HEAD", "/api/v1/version")).await;
    assert_eq!((answer.status, answer.text()), (200, ""));
    assert_eq!(fixture.calls(), 1);
    let answer = fixture.answer(verb("OPTIONS", "/api/v1/cluster")).await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.headers["allow"], "DELETE, GET, HEAD, OPTIONS, POST");
    assert_eq!(fixture.calls(), 1);
}

#[tokio::test]
async fn grpc_passes_as_it_is_also_under_api() {
    let fixture = fixture(Script::ok(&[progress("hello")]));
    for path in ["/edgeproto.FlavorApi/CreateFlavor", "/api/edgeproto.FlavorApi/CreateFlavor"] {
        let mut request = post(path, "application/grpc+proto", framed(&small()));
        request.headers_mut().insert("x-selvage-protocol", "rest".parse().unwrap());
        let response = fixture.send(request).await;
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(collected.to_bytes(), framed(&progress("hello")));
        let seen = fixture.last();
        assert_eq!(seen.path, "/edgeproto.FlavorApi/CreateFlavor");
        assert!(!seen.headers.contains_key("x-selvage-protocol"));
    }
}
