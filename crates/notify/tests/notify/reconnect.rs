//! Coming back, moving between servers, and being refused.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use selvage_api::{Code, edgeproto::Node};
use selvage_notify::{
    Cache, ClientOptions, Error, Exchange, Incoming, Kind, NotifyServer, ServerOptions, Sink,
    Stream,
};

use crate::support::*;

/// An address at which nobody listens.
async fn nobody() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_finds_the_server_that_is_there() {
    let controller = Controller::new();
    controller.fill();
    let (one, two) = (controller.server(lab()), controller.server(lab()));
    let (at_one, at_two) = (serve(&one, None).await, serve(&two, None).await);
    let addresses = [nobody().await, at_one.address, at_two.address];
    let mut crm = crm(client_options(&addresses, true));
    crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    crm.link.start();
    crm.link.in_sync().await;
    until("an info", || controller.cloudlet_infos.len() == 1).await;
    let id = controller.cloudlet_infos.list()[0].notify_id;

    // The one it is connected to goes away; both write into the same caches,
    // as controllers do that share a store.
    let first_was_one = !one.peers().is_empty();
    let (first, at_first, second, at_second) =
        if first_was_one { (one, at_one, two, at_two) } else { (two, at_two, one, at_one) };
    at_first.stop(&first).await;
    until("moved", || second.peers().len() == 1 && controller.cloudlet_infos.len() == 1).await;
    assert_ne!(controller.cloudlet_infos.list()[0].notify_id, id);
    assert_eq!(crm.counts(), [3, 2, 2, 1, 1]);
    at_second.stop(&second).await;
}

/// Objects that came by a new stream are not removed when the old one ends late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_stream_does_not_flush_what_the_new_one_brought() {
    let controller = Controller::new();
    let (old, new) = (controller.server(lab()), controller.server(lab()));
    let (at_old, at_new) = (serve(&old, None).await, serve(&new, None).await);
    let mut before = crm(client_options(&[at_old.address], true));
    let mut after = crm(client_options(&[at_new.address], true));
    before.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    before.link.start();
    until("an info", || controller.cloudlet_infos.len() == 1).await;
    let id = controller.cloudlet_infos.list()[0].notify_id;
    after.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    after.link.start();
    until("another info", || controller.cloudlet_infos.list()[0].notify_id != id).await;
    // Neither its delete nor its end counts any more.
    before.cloudlet_infos.clear();
    until("delete sent", || old.peers()[0].stats.obj_recv["CloudletInfo"] == 2).await;
    before.link.stop().await;
    at_old.stop(&old).await;
    assert_eq!(controller.cloudlet_infos.len(), 1);
    after.link.stop().await;
    at_new.stop(&new).await;
    assert!(controller.cloudlet_infos.is_empty());
}

/// The original hammers a server that refuses it. Time is virtual here.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_refused_waits_longer_and_longer() {
    let begun = tokio::time::Instant::now();
    let options =
        ClientOptions { addresses: vec![nobody().await.to_string()], ..ClientOptions::default() };
    let mut dme = dme(options);
    dme.link.start();
    while dme.link.client.status().stats.tries < 30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(begun.elapsed() < Duration::from_secs(3600));
    }
    // On average 5 s each once the bound is reached, never in step.
    assert!(begun.elapsed() > Duration::from_secs(20), "{:?}", begun.elapsed());
    let status = dme.link.client.status();
    assert!(status.last_error.is_some() && status.connected_to.is_none());
    dme.link.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_differ_between_lives_of_a_server() {
    let ids: Vec<i64> = (0..4).map(|_| ServerOptions::default().first_id).collect();
    assert!(ids.iter().all(|id| *id > 0), "{ids:?}");
    assert!(ids.windows(2).all(|pair| (pair[0] - pair[1]).abs() > 1_000_000), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_break_a_stream() {
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut dme = dme(client_options(&[running.address], false));
    dme.link.start();
    dme.link.in_sync().await;
    server.disconnect(server.peers()[0].id);
    until("again", || dme.link.client.status().stats.recv_all == 2).await;
    let error = dme.link.client.status().last_error.unwrap();
    assert!(error.contains("disconnected by the server"), "{error}");
    dme.link.stop().await;
    running.stop(&server).await;
}

/// Many changes before the peer takes them are one notice with the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_gets_the_newest_only() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut original = crate::quirks::Original::connect(running.address, &["edgeproto.App"]).await;
    original.opening().await;
    // More than the connection holds while nobody reads.
    for round in 0..20_u64 {
        for n in 0..40 {
            let mut app = app(&format!("app{n}"));
            app.config = format!("{round}{}", "x".repeat(20_000));
            controller.apps.put(app).unwrap();
        }
        tokio::task::yield_now().await;
    }
    let mut seen = std::collections::BTreeMap::new();
    let mut notices = 0;
    while seen.values().filter(|config: &&String| config.starts_with("19")).count() < 40 {
        let app: selvage_api::edgeproto::App = original.object().await;
        seen.insert(app.key.unwrap().name, app.config);
        notices += 1;
    }
    assert!(notices < 20 * 40 / 2, "{notices} notices for 40 objects");
    running.stop(&server).await;
}

/// A store that fails a few times before it works.
struct Flaky {
    nodes: Arc<Cache<Node>>,
    failures: AtomicU32,
    code: Code,
}

#[async_trait::async_trait]
impl Sink for Flaky {
    fn kind(&self) -> &Arc<Kind> {
        Sink::kind(self.nodes.as_ref())
    }

    async fn update(&self, object: Incoming, stream: &Stream) -> Result<(), Error> {
        if self.failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(Error::Refused { what: "the store is away".into(), code: self.code });
        }
        self.nodes.update(object, stream).await
    }

    async fn delete(&self, object: Incoming, stream: &Stream) -> Result<(), Error> {
        self.nodes.delete(object, stream).await
    }

    async fn prune(&self, stream: &Stream) -> Result<(), Error> {
        self.nodes.prune(stream).await
    }

    async fn flush(&self, stream: &Stream) -> Result<(), Error> {
        self.nodes.flush(stream).await
    }
}

/// An object that could not be stored comes again, unless it never can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_could_not_be_kept_comes_again() {
    for (code, arrive, connects) in [(Code::Unavailable, 2, 4), (Code::InvalidArgument, 0, 1)] {
        let nodes = Cache::new().unwrap();
        let failures = AtomicU32::new(3);
        let sink = Arc::new(Flaky { nodes: Arc::clone(&nodes), failures, code });
        let server = NotifyServer::new(Exchange::new().receive(sink.clone()), lab());
        let running = serve(&server, None).await;
        let mut dme = dme(client_options(&[running.address], false));
        dme.nodes.put(node("one", "cloud0")).unwrap();
        dme.nodes.put(node("two", "cloud0")).unwrap();
        dme.link.start();
        until("both, or refused", || {
            let refused: u64 = server.peers().iter().map(|peer| peer.stats.recv_errors).sum();
            nodes.len() == 2 || refused == 2
        })
        .await;
        assert_eq!(nodes.len(), arrive, "{code}");
        assert_eq!(dme.link.client.status().stats.connects, connects, "{code}");
        dme.link.stop().await;
        running.stop(&server).await;
    }
}
