//! A controller and a match engine, with the original's counts.

use crate::support::*;

/// The original's first test, with the original's numbers: nothing resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_sent_again_to_a_client_that_does_not_resume() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let options = || selvage_notify::ClientOptions {
        resume: false,
        ..client_options(&[running.address], false)
    };
    let mut dme = dme(options());
    let mut crm = crm(selvage_notify::ClientOptions { filter: true, ..options() });
    dme.link.start();
    crm.link.start();
    until("two peers", || server.peers().len() == 2).await;

    for n in 0..5 {
        controller.apps.put(app(&format!("app{n}"))).unwrap();
    }
    for cluster in ["c1", "c2", "c3"] {
        controller.instances.put(app_inst("app0", cluster, "cloud0")).unwrap();
    }
    until("3 instances", || dme.instances.len() == 3 && dme.apps.len() == 5).await;
    assert_eq!((dme.link.recv(), dme.link.obj_recv("AppInst")), (8, 3));
    let of_dme = || server.peers().into_iter().find(|peer| !peer.filtered).unwrap().stats;
    assert_eq!((of_dme().obj_send["App"], of_dme().send), (5, 8));
    assert_eq!(crm.link.recv(), 0, "nothing of cloudlets that were not announced");

    dme.link.client.reconnect();
    until("connected again", || dme.link.client.status().stats.connects == 2).await;
    dme.link.in_sync().await;
    controller.instances.put(app_inst("app1", "c1", "cloud1")).unwrap();
    until("4 instances", || dme.instances.len() == 4).await;
    assert_eq!(dme.link.recv(), 17, "8 before, the same 8 again, 1 new");
    assert_eq!((of_dme().obj_send["AppInst"], of_dme().obj_send["App"]), (4, 5));

    controller.instances.remove(&app_inst("app1", "c1", "cloud1")).unwrap();
    until("3 instances", || dme.instances.len() == 3).await;
    assert_eq!((dme.link.recv(), dme.link.obj_recv("AppInst")), (18, 8));

    dme.link.stop().await;
    until("one peer", || server.peers().len() == 1).await;
    dme.instances.clear();
    dme.link.start();
    until("back", || dme.instances.len() == 3).await;
    dme.link.in_sync().await;

    let address = running.address;
    running.stop(&server).await;
    until("lost", || dme.link.client.status().connected_to.is_none()).await;
    controller.instances.remove(&app_inst("app0", "c3", "cloud0")).unwrap();
    let server = controller.server(lab());
    let running = serve(&server, Some(address)).await;
    until("pruned", || dme.instances.len() == 2).await;
    dme.link.in_sync().await;
    assert_eq!(dme.link.obj_recv("AppInst"), 13);
    dme.link.stop().await;
    crm.link.stop().await;
    running.stop(&server).await;
}

/// The same with resuming: where the original resends everything, ours sends
/// what changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_changes_are_sent_to_a_client_that_resumes() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut dme = dme(client_options(&[running.address], false));
    dme.link.start();
    controller.fill();
    until("4 instances", || dme.instances.len() == 4 && dme.apps.len() == 5).await;
    dme.link.in_sync().await;
    let before = dme.link.recv();

    dme.link.stop().await;
    controller.instances.put(app_inst("app4", "c9", "cloud1")).unwrap();
    controller.instances.remove(&app_inst("app0", "c1", "cloud0")).unwrap();
    // Came and went: there is nothing to know but that it is gone.
    controller.apps.put(app("brief")).unwrap();
    controller.apps.remove(&app("brief")).unwrap();
    dme.link.start();
    until("in sync again", || dme.link.client.status().stats.recv_all == 2).await;
    assert_eq!(dme.link.recv() - before, 3, "one new, two gone");
    assert_eq!(dme.link.client.status().stats.resumed, 1);
    assert_eq!((dme.instances.len(), dme.apps.len()), (4, 5));
    assert!(dme.instances.find(app_inst("app4", "c9", "cloud1").key.as_ref().unwrap()).is_some());

    // A mirror that lost something gets everything.
    dme.link.stop().await;
    dme.instances.clear();
    dme.link.start();
    until("in sync again", || dme.link.client.status().stats.recv_all == 3).await;
    assert_eq!(dme.instances.len(), 4);
    assert_eq!(dme.link.recv() - before, 3 + 4, "apps resumed, instances in full");
    dme.link.stop().await;
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_and_messages_travel_up() {
    let mut controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut dme = dme(client_options(&[running.address], false));
    // Before there is a connection messages wait, the newest three of them.
    for name in ["lost", "one", "two", "three"] {
        assert_eq!(dme.link.client.post(&metric(name)).unwrap(), 0);
    }
    dme.nodes.put(node("engine", "cloud0")).unwrap();
    dme.link.start();
    for name in ["one", "two", "three"] {
        assert_eq!(controller.metrics_out.recv().await.unwrap().0.name, name);
    }
    until("a node", || controller.nodes.len() == 1).await;
    let id = server.peers()[0].id;
    assert_eq!(controller.nodes.list()[0].notify_id, id, "stamped with the stream");
    assert_eq!(dme.link.client.post(&metric("four")).unwrap(), 1);
    assert_eq!(controller.metrics_out.recv().await.unwrap().0.name, "four");
    assert_eq!(server.peers()[0].stats.obj_recv["Metric"], 4);

    dme.link.stop().await;
    until("flushed", || controller.nodes.is_empty()).await;
    dme.link.start();
    until("back", || controller.nodes.len() == 1).await;
    assert_ne!(controller.nodes.list()[0].notify_id, id);
    dme.link.stop().await;
    running.stop(&server).await;
    assert_eq!(server.totals().obj_recv["Node"], 2);
}
