//! Garbage, and peers that speak for others.

use std::sync::Arc;

use prost_types::Any;
use selvage_api::edgeproto::Notice;
use selvage_kit::identity::{Identity, Kind, Machine};
use selvage_notify::{IdentityGate, ServerOptions};

use crate::{
    quirks::{Original, bare, notice},
    support::*,
};

fn raw(action: i32, type_url: &str, value: &[u8]) -> Notice {
    Notice { any: Some(Any { type_url: type_url.into(), value: value.into() }), ..bare(action) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_counted_and_the_stream_lives() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut peer = Original::connect(running.address, &[]).await;
    peer.opening().await;
    let url = "type.googleapis.com/edgeproto.Node";
    let garbage = [
        raw(1, "edgeproto.Node", b""),
        raw(1, "type.googleapis.com/edgeproto.Unheard", b"\x01"),
        raw(1, "type.googleapis.com/edgeproto.Flavor", b""),
        raw(1, url, b"\xff\xff\xff"),
        raw(1, url, b"\x12\x7f"),
        raw(2, url, b"\x12\x03\x0a\x09x"),
        raw(1, url, b"\x12\x03\x0a\x01n\x18"),
        raw(1, url, b"\x12\x03\x0a\x01n\x1a\x01x"),
        raw(0, url, b""),
        raw(99, url, b"\x12\x03\x0a\x01n"),
        bare(0),
        bare(1),
        bare(3),
        bare(-5),
    ];
    let count = garbage.len() as u64;
    for notice in garbage {
        peer.send.send(notice).unwrap();
    }
    peer.send.send(notice(1, &node("good", "cloud0"))).unwrap();
    until("the good one", || controller.nodes.len() == 1).await;
    let stats = server.peers()[0].stats.clone();
    let wrong = stats.recv_errors + stats.unmarshal_errors + stats.unknown_types;
    assert_eq!(wrong, count, "{stats:?}");
    assert_eq!((stats.unknown_types, stats.unmarshal_errors), (2, 5));
    // The one whose object is wrong behind its key was counted as received.
    assert_eq!(stats.recv, 2);
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_do_no_harm() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut peer = Original::connect(running.address, &["edgeproto.App"]).await;
    peer.opening().await;
    let types = ["Node", "CloudletInfo", "AppInstInfo", "ExecRequest", "Metric"];
    let mut seed: u32 = 12345;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 16
    };
    for _ in 0..500 {
        let name = types[random() as usize % types.len()];
        let mut value: Vec<u8> = (0..random() % 40).map(|_| (random() & 0xff) as u8).collect();
        if random() % 2 == 0 {
            value.splice(0..0, [0x12, (random() % 50) as u8, 0x0a]);
        }
        let url = format!("type.googleapis.com/edgeproto.{name}");
        peer.send.send(raw(i32::try_from(random() % 6).unwrap(), &url, &value)).unwrap();
    }
    peer.send.send(notice(1, &node("good", "cloud0"))).unwrap();
    let good = node("good", "cloud0").key.unwrap();
    until("the good one", || controller.nodes.find(&good).is_some()).await;
    running.stop(&server).await;
}

/// Too large for anybody to take: left out, the rest arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_too_large_is_left_out() {
    let controller = Controller::new();
    let mut huge = app("huge");
    huge.config = "x".repeat(5 * 1024 * 1024);
    controller.apps.put(huge).unwrap();
    controller.apps.put(app("small")).unwrap();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut dme = dme(client_options(&[running.address], false));
    dme.link.start();
    dme.link.in_sync().await;
    assert_eq!(dme.apps.len(), 1);
    assert_eq!(server.peers()[0].stats.marshal_errors, 1);
    dme.link.stop().await;
    running.stop(&server).await;
}

fn guarded() -> ServerOptions {
    ServerOptions { gate: Arc::new(IdentityGate), ..ServerOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crm_cannot_speak_for_another_cloudlet() {
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(guarded());
    let identity = Identity::machine(Machine::parse("cloudlet/tmus/cloud0").unwrap());
    let running = serve_as(&server, None, Some(identity)).await;

    // It is filtered though it did not ask for it.
    let mut crm = crm(client_options(&[running.address], false));
    crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    crm.link.start();
    crm.link.in_sync().await;
    assert_eq!(crm.counts(), [3, 2, 2, 1, 1]);

    crm.cloudlet_infos.put(cloudlet_info("cloud1")).unwrap();
    let text = "cloudlet/tmus/cloud0 may not send CloudletInfo of cloudlet/tmus/cloud1";
    until("refused", || {
        crm.link.client.status().last_error.is_some_and(|error| error.contains(text))
    })
    .await;
    assert!(controller.cloudlet_infos.find(&cloudlet_key("cloud1")).is_none());
    crm.cloudlet_infos.remove(&cloudlet_info("cloud1")).unwrap();
    until("good again", || controller.cloudlet_infos.len() == 1).await;
    assert_eq!(crm.counts(), [3, 2, 2, 1, 1]);
    crm.link.stop().await;
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machines_get_no_stream() {
    let controller = Controller::new();
    let server = controller.server(guarded());
    let version = || Notice { version: 1, ..bare(3) };
    let running = serve(&server, None).await;
    let refused = Original::open(running.address, version()).await.err().expect("refused");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    running.stop(&server).await;
    assert!(server.peers().is_empty());

    let server = controller.server(guarded());
    let identity = Identity::all_powerful("insecure", Kind::Insecure);
    let running = serve_as(&server, None, Some(identity)).await;
    let mut peer = Original::open(running.address, version()).await.unwrap();
    peer.opening().await;
    peer.send.send(notice(1, &cloudlet_info("any"))).unwrap();
    until("an info", || controller.cloudlet_infos.len() == 1).await;
    running.stop(&server).await;
}
