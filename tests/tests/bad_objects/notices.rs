//! Notices of agents that make no sense.

use prost_types::Any;
use selvage_api::edgeproto::{
    CloudletKey, Node, NodeKey, Notice, OperatorKey, notify_api_client::NotifyApiClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

const UPDATE: i32 = 1;
const VERSION: i32 = 3;

fn notice(action: i32, name: &str, value: &[u8]) -> Notice {
    let type_url = format!("type.googleapis.com/edgeproto.{name}");
    Notice { action, any: Some(Any { type_url, value: value.into() }), ..Notice::default() }
}

async fn count(selvage: &Selvage, client: &Client, event: &str) -> u64 {
    let url = format!("{}/metrics", selvage.endpoint());
    let http = selvage_tests::client::http(selvage);
    let request = http.get(url).bearer_auth(client.token.as_ref().unwrap());
    let text = request.send().await.unwrap().text().await.unwrap();
    let line = format!("selvage_notify_events_total{{event=\"{event}\"}} ");
    let found = text.lines().find_map(|shown| shown.strip_prefix(&line));
    found.unwrap_or_else(|| panic!("{line}: {text}")).parse().unwrap()
}

/// Unknown types and bad payloads are counted and skipped, and what comes
/// after them by the same stream is taken.
#[tokio::test]
async fn notices_that_cannot_be_read_are_counted_and_skipped() {
    let (selvage, client) = up().await;
    let (send, receive) = mpsc::unbounded_channel();
    send.send(Notice { action: VERSION, version: 1, ..Notice::default() }).unwrap();
    let request = client.request(UnboundedReceiverStream::new(receive));
    let mut api = NotifyApiClient::new(client.channel.clone());
    let mut notices = api.stream_notice(request).await.unwrap().into_inner();
    assert_eq!(notices.message().await.unwrap().unwrap().action, VERSION);

    for garbage in [
        notice(UPDATE, "Unheard", b"\x01"),
        notice(UPDATE, "Flavor", b""),
        notice(UPDATE, "Node", b"\xff\xff\xff"),
        notice(UPDATE, "CloudletInfo", b"\x12\x7f"),
        notice(99, "Node", b"\x12\x03\x0a\x01n"),
        notice(-1, "AppInstInfo", b""),
    ] {
        send.send(garbage).unwrap();
    }
    let operator_key = Some(OperatorKey { name: "tmus".into() });
    let cloudlet_key = Some(CloudletKey { operator_key, name: "tmus-cloud-1".into() });
    let good = NodeKey { name: "good".into(), cloudlet_key, ..NodeKey::default() };
    let node = Node { key: Some(good), ..Node::default() };
    send.send(notice(UPDATE, "Node", &node.encode_to_vec())).unwrap();
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while ok(&client, "ShowNode", &serde_json::json!({})).await.is_empty() {
        assert!(std::time::Instant::now() < deadline, "the good one never came");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let counted = [
        count(&selvage, &client, "unknown_types").await,
        count(&selvage, &client, "unmarshal_errors").await,
        count(&selvage, &client, "recv_errors").await,
    ];
    assert_eq!(counted, [2, 2, 2]);
    assert_eq!(count(&selvage, &client, "recv").await, 1);
}
