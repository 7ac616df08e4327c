//! Resuming at a server that is not the one it was, and at one that forgot.

use std::sync::Arc;

use selvage_api::edgeproto::{App, AppInst, Node};
use selvage_notify::{Cache, Exchange, NotifyServer, ServerOptions};

use crate::support::*;

fn with_epoch(epoch: u64) -> ServerOptions {
    ServerOptions { epoch, ..lab() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_of_the_same_history_resumes() {
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(with_epoch(7));
    let running = serve(&server, None).await;
    let address = running.address;
    let mut dme = dme(client_options(&[address], false));
    dme.link.start();
    dme.link.in_sync().await;
    running.stop(&server).await;
    until("lost", || dme.link.client.status().connected_to.is_none()).await;
    controller.apps.remove(&app("app4")).unwrap();
    let server = controller.server(with_epoch(7));
    let running = serve(&server, Some(address)).await;
    until("in sync again", || dme.link.client.status().stats.recv_all == 2).await;
    assert_eq!(dme.link.recv(), 9 + 1);
    assert_eq!((dme.apps.len(), server.peers()[0].stats.resumed), (4, 1));

    // One of another history cannot: what it lacks is pruned.
    running.stop(&server).await;
    until("lost", || dme.link.client.status().connected_to.is_none()).await;
    let other = Controller::new();
    other.apps.put(app("app0")).unwrap();
    let server = other.server(with_epoch(8));
    let running = serve(&server, Some(address)).await;
    until("in sync again", || dme.link.client.status().stats.recv_all == 3).await;
    assert_eq!((dme.apps.len(), dme.instances.len()), (1, 0));
    assert_eq!(dme.link.client.status().stats.resumed, 1);
    dme.link.stop().await;
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forgotten_is_sent_in_full() {
    let apps: Arc<Cache<App>> = Cache::with_history(4).unwrap();
    let instances: Arc<Cache<AppInst>> = Cache::new().unwrap();
    let exchange = Exchange::new()
        .send(apps.clone())
        .send(instances.clone())
        .receive(Cache::<Node>::new().unwrap());
    let server = NotifyServer::new(exchange, lab());
    let running = serve(&server, None).await;
    for n in 0..3 {
        apps.put(app(&format!("app{n}"))).unwrap();
        instances.put(app_inst("app0", &format!("c{n}"), "cloud0")).unwrap();
    }
    let mut dme = dme(client_options(&[running.address], false));
    dme.link.start();
    dme.link.in_sync().await;
    dme.link.stop().await;
    for n in 3..9 {
        apps.put(app(&format!("app{n}"))).unwrap();
    }
    apps.remove(&app("app0")).unwrap();
    dme.link.start();
    until("in sync again", || dme.link.client.status().stats.recv_all == 2).await;
    assert_eq!((dme.apps.len(), dme.instances.len()), (8, 3));
    assert_eq!((dme.link.obj_recv("App"), dme.link.obj_recv("AppInst")), (3 + 8, 3));
    dme.link.stop().await;
    running.stop(&server).await;
}

/// A checkpoint before everything has come would keep what is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_half_way_leaves_no_checkpoint() {
    let controller = Controller::new();
    controller.fill();
    let mut script = crate::quirks::Script::new(1);
    script.epoch = 1;
    let last = crate::quirks::notice(1, &app("left over"));
    script.notices.push(selvage_api::edgeproto::Notice { revision: 5, ..last });
    let (address, script) = script.serve().await;
    let mut dme = dme(client_options(&[address], false));
    dme.link.start();
    until("half", || dme.apps.len() == 1).await;
    dme.link.stop().await;
    script.abort();
    let _ = script.await;
    let server = controller.server(with_epoch(1));
    let running = serve(&server, Some(address)).await;
    dme.link.start();
    dme.link.in_sync().await;
    assert_eq!((dme.apps.len(), dme.instances.len()), (5, 4));
    dme.link.stop().await;
    running.stop(&server).await;
}
