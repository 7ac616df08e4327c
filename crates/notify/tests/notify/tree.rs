//! Nodes in the middle: server and client on the same caches.

use std::sync::Arc;

use selvage_api::edgeproto::CloudletInfo;
use selvage_notify::{Cache, Exchange, NotifyServer};

use crate::support::*;

/// A crm that others are below of.
struct Mid {
    crm: Crm,
    server: NotifyServer,
}

fn mid_crm(above: &Running) -> Mid {
    let crm = crm(client_options(&[above.address], true));
    let exchange = Exchange::new()
        .send(crm.flavors.clone())
        .send(crm.cloudlets.clone())
        .send(crm.clusters.clone())
        .send(crm.apps.clone())
        .send(crm.instances.clone())
        .receive(crm.cloudlet_infos.clone())
        .receive(crm.instance_infos.clone())
        .receive(crm.cluster_infos.clone())
        .receive(crm.nodes.clone());
    Mid { crm, server: NotifyServer::new(exchange, lab()) }
}

fn low_crm(above: &Running, place: &str) -> Crm {
    let mut low = crm(client_options(&[above.address], true));
    low.cloudlet_infos.put(cloudlet_info(place)).unwrap();
    low.link.start();
    low
}

fn low_dme(above: &Running) -> Dme {
    let mut low = dme(client_options(&[above.address], false));
    low.link.start();
    low
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_of_three_levels() {
    let top = Controller::new();
    top.fill();
    for (cluster, place) in [("x1", "cloud2"), ("x2", "cloud2"), ("x3", "cloud3")] {
        top.instances.put(app_inst("app4", cluster, place)).unwrap();
    }
    let top_server = top.server(lab());
    let top_at = serve(&top_server, None).await;

    let mut mid1 = dme(client_options(&[top_at.address], false));
    let mid1_infos: Arc<Cache<CloudletInfo>> = Cache::new().unwrap();
    let exchange = Exchange::new()
        .send(mid1.apps.clone())
        .send(mid1.instances.clone())
        .receive(mid1.nodes.clone())
        .receive(mid1_infos.clone());
    let mid1_server = NotifyServer::new(exchange, lab());
    let mid1_at = serve(&mid1_server, None).await;
    mid1.link.start();
    let mut mid2 = mid_crm(&top_at);
    let mid2_at = serve(&mid2.server, None).await;
    mid2.crm.link.start();

    let (low11, low12) = (low_dme(&mid1_at), low_dme(&mid1_at));
    let mut low21 = low_crm(&mid2_at, "cloud0");
    let low22 = low_crm(&mid2_at, "cloud1");
    for engine in [&mid1, &low11, &low12] {
        until("every engine has all", || engine.instances.len() == 7).await;
    }
    until("low21", || low21.counts() == [3, 2, 2, 1, 1]).await;
    until("low22", || low22.counts() == [3, 2, 2, 1, 1]).await;
    assert_eq!(mid2.crm.counts(), [3, 4, 4, 2, 2], "the union of both");
    until("infos at the top", || top.cloudlet_infos.len() == 2).await;
    assert_eq!((mid1_infos.len(), mid2.crm.cloudlet_infos.len()), (0, 2));
    let ids = |cache: &Cache<CloudletInfo>| -> Vec<i64> {
        cache.list().iter().map(|info| info.notify_id).collect()
    };
    let of_mid2 = top_server.peers().into_iter().find(|peer| peer.filtered).unwrap().id;
    assert_eq!(ids(&top.cloudlet_infos), [of_mid2; 2], "a new id at each hop");
    assert_ne!(ids(&mid2.crm.cloudlet_infos), ids(&top.cloudlet_infos));

    low21.link.stop().await;
    until("one info left", || top.cloudlet_infos.len() == 1).await;
    assert_eq!(mid2.crm.cloudlet_infos.len(), 1);
    assert!(top.cloudlet_infos.find(&cloudlet_key("cloud0")).is_none());
    until("mid2 keeps low22's", || mid2.crm.counts() == [3, 2, 2, 1, 1]).await;
    low21.link.start();
    until("restored", || mid2.crm.counts() == [3, 4, 4, 2, 2]).await;
    until("restored below", || low21.counts() == [3, 2, 2, 1, 1]).await;

    top.instances.clear();
    top.clusters.clear();
    top.cloudlets.clear();
    top.apps.clear();
    top.flavors.clear();
    for crm in [&mid2.crm, &low21, &low22] {
        until("all gone", || crm.counts() == [0; 5]).await;
    }
    until("all gone", || low11.instances.is_empty() && low12.apps.is_empty()).await;
    mid2_at.stop(&mid2.server).await;
    mid1_at.stop(&mid1_server).await;
    top_at.stop(&top_server).await;
}
