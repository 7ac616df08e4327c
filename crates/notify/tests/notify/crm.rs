//! A controller and crms, which get what concerns their cloudlets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use selvage_notify::{ClientOptions, NotifyServer, ServerOptions};

use crate::support::*;

/// A controller with two cloudlets, and a crm that has been told of its one.
async fn with_a_cloudlet(resume: bool) -> (Controller, NotifyServer, Running, Crm) {
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let options = client_options(&[running.address], true);
    let mut crm = crm(ClientOptions { resume, ..options });
    crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    crm.link.start();
    until("its cloudlet", || crm.counts() == [3, 2, 2, 1, 1]).await;
    (controller, server, running, crm)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crm_gets_its_own_cloudlet_only() {
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut crm = crm(client_options(&[running.address], true));
    crm.link.start();
    until("flavors", || crm.flavors.len() == 3).await;
    assert_eq!(crm.counts(), [3, 0, 0, 0, 0]);

    crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    until("its cloudlet", || crm.counts() == [3, 2, 2, 1, 1]).await;

    controller.flavors.remove(&flavor("large")).unwrap();
    controller.clusters.remove(&cluster_inst("c2", "cloud0")).unwrap();
    controller.instances.remove(&app_inst("app0", "c2", "cloud0")).unwrap();
    controller.clusters.remove(&cluster_inst("c2", "cloud1")).unwrap();
    until("deletes", || crm.counts() == [2, 1, 1, 1, 1]).await;
    let names = ["Cloudlet", "Flavor", "ClusterInst", "AppInst"];
    let received = names.map(|name| crm.link.obj_recv(name));
    assert_eq!(received, [1, 4, 3, 3]);
    assert_eq!(names.map(|name| server.peers()[0].stats.obj_send[name]), received);

    crm.instance_infos.put(instance_info("app0", "c1", "cloud0")).unwrap();
    crm.cluster_infos.put(cluster_info("c1", "cloud0")).unwrap();
    crm.nodes.put(node("crm", "cloud0")).unwrap();
    until("infos", || {
        let infos = (controller.instance_infos.len(), controller.cluster_infos.len());
        infos == (1, 1) && controller.nodes.len() == 1 && controller.cloudlet_infos.len() == 1
    })
    .await;
    crm.link.stop().await;
    running.stop(&server).await;
    assert!(controller.cloudlet_infos.is_empty() && controller.nodes.is_empty());
}

/// The original never tells a crm of changes of an app, and lets it keep what
/// was on a cloudlet that it gave up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apps_follow_their_instances() {
    let (controller, server, running, mut crm) = with_a_cloudlet(true).await;

    let mut changed = app("app0");
    changed.image_path = "other".into();
    controller.apps.put(changed.clone()).unwrap();
    until("change of the app", || {
        crm.apps.find(&app_key("app0")).is_some_and(|app| *app == changed)
    })
    .await;
    let mut foreign = app("app1");
    foreign.image_path = "other".into();
    controller.apps.put(foreign).unwrap();

    controller.instances.put(app_inst("app3", "c1", "cloud0")).unwrap();
    until("a second app", || crm.counts() == [3, 2, 3, 1, 2]).await;
    controller.instances.remove(&app_inst("app3", "c1", "cloud0")).unwrap();
    until("gone with its last instance", || crm.counts() == [3, 2, 2, 1, 1]).await;
    assert!(crm.apps.find(&app_key("app1")).is_none());

    crm.cloudlet_infos.put(cloudlet_info("cloud1")).unwrap();
    until("two cloudlets", || crm.counts() == [3, 4, 4, 2, 2]).await;
    crm.cloudlet_infos.remove(&cloudlet_info("cloud0")).unwrap();
    until("one is taken back", || crm.counts() == [3, 2, 2, 1, 1]).await;
    assert!(crm.apps.find(&app_key("app1")).is_some());
    crm.link.stop().await;
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crm_that_comes_back_never_sees_its_mirror_emptied() {
    for resume in [false, true] {
        let (controller, server, running, mut crm) = with_a_cloudlet(resume).await;
        crm.link.in_sync().await;
        let gone = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&gone);
        crm.clusters.on_change(move |change| {
            counted.fetch_add(usize::from(change.now.is_none()), Relaxed);
        });
        let before = crm.link.recv();

        controller.clusters.put(cluster_inst("c3", "cloud0")).unwrap();
        until("told", || crm.clusters.len() == 3).await;
        crm.link.stop().await;
        controller.clusters.remove(&cluster_inst("c1", "cloud0")).unwrap();
        controller.clusters.remove(&cluster_inst("c1", "cloud1")).unwrap();
        crm.link.start();
        until("in sync again", || crm.link.client.status().stats.recv_all == 2).await;
        assert_eq!(crm.counts(), [3, 2, 2, 1, 1]);
        assert_eq!(gone.load(Relaxed), 1, "only what was deleted");
        let sent = crm.link.recv() - before;
        assert_eq!(sent, if resume { 2 } else { 1 + 9 }, "resume {resume}");
        crm.link.stop().await;
        running.stop(&server).await;
    }
}

/// A crm whose cloudlets are not those it was in step with gets them in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crm_with_other_cloudlets_than_before_gets_them_in_full() {
    let (controller, server, running, mut crm) = with_a_cloudlet(true).await;
    crm.link.in_sync().await;
    crm.link.stop().await;
    crm.cloudlet_infos.clear();
    crm.cloudlet_infos.put(cloudlet_info("cloud1")).unwrap();
    crm.link.start();
    until("in sync again", || crm.link.client.status().stats.recv_all == 2).await;
    assert_eq!(crm.counts(), [3, 2, 2, 1, 1]);
    assert!(crm.cloudlets.find(&cloudlet_key("cloud1")).is_some());
    assert!(crm.apps.find(&app_key("app1")).is_some());

    // A change of cloudlets during the stream counts too.
    crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    until("both", || crm.counts() == [3, 4, 4, 2, 2]).await;
    until("told so", || server.peers()[0].stats.obj_send["AppInst"] == 4).await;
    let before = crm.link.recv();
    controller.flavors.put(flavor("last")).unwrap();
    until("the revisions before it", || crm.flavors.len() == 4).await;
    crm.link.stop().await;
    crm.link.start();
    until("in sync again", || crm.link.client.status().stats.recv_all == 3).await;
    assert_eq!(crm.counts(), [4, 4, 4, 2, 2]);
    assert_eq!(crm.link.recv() - before, 1, "nothing but the flavor");
    crm.link.stop().await;
    running.stop(&server).await;
}

/// A crm that has no cloudlet yet is not left without an end for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crm_that_announces_nothing_gets_an_end_all_the_same() {
    let controller = Controller::new();
    controller.fill();
    let options = ServerOptions { hold_back: Duration::from_millis(20), ..lab() };
    let server = controller.server(options);
    let running = serve(&server, None).await;
    let mut crm = crm(client_options(&[running.address], true));
    crm.link.start();
    crm.link.in_sync().await;
    assert_eq!(crm.counts(), [3, 0, 0, 0, 0]);
    crm.cloudlet_infos.put(cloudlet_info("cloud1")).unwrap();
    until("its cloudlet", || crm.counts() == [3, 2, 2, 1, 1]).await;
    crm.link.stop().await;
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_to_the_crm_it_concerns() {
    let mut controller = Controller::new();
    controller.fill();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let mut engine = dme(client_options(&[running.address], false));
    engine.link.start();
    let mut crms = Vec::new();
    for place in ["cloud0", "cloud1"] {
        let mut crm = crm(client_options(&[running.address], true));
        crm.cloudlet_infos.put(cloudlet_info(place)).unwrap();
        crm.link.start();
        crm.link.in_sync().await;
        crms.push(crm);
    }
    engine.link.in_sync().await;
    assert_eq!(server.post(&exec("cloud1", "first")).unwrap(), 1);
    assert_eq!(server.post(&exec("cloud0", "second")).unwrap(), 1);
    assert_eq!(server.post(&exec("nowhere", "third")).unwrap(), 0);
    assert!(server.post(&metric("not sent down")).is_err());
    assert_eq!(crms[1].execs_out.recv().await.unwrap().0.command, "first");
    assert_eq!(crms[0].execs_out.recv().await.unwrap().0.command, "second");
    assert!(crms[1].execs_out.try_recv().is_err());
    assert_eq!(crms[0].link.client.post(&exec("cloud0", "answer")).unwrap(), 1);
    let (answer, stream) = controller.execs_out.recv().await.unwrap();
    assert_eq!(answer.command, "answer");
    assert!(server.peers().iter().any(|peer| peer.id == stream.id && peer.filtered));
    assert_eq!(engine.link.client.status().stats.unknown_types, 0, "never heard of it");
    running.stop(&server).await;
}

/// Every object goes once, whatever is on its way when a crm says which
/// cloudlets it has, and what is not there is not told of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_sync_sends_every_object_once() {
    let controller = Controller::new();
    let names: Vec<String> = (0..50).map(|n| format!("app{n:02}")).collect();
    controller.flavors.put(flavor("small")).unwrap();
    for cloud in ["cloud0", "cloud1"] {
        controller.cloudlets.put(cloudlet(cloud)).unwrap();
        controller.clusters.put(cluster_inst("c1", cloud)).unwrap();
        for name in &names {
            controller.instances.put(app_inst(name, "c1", cloud)).unwrap();
        }
    }
    // The app of every second instance is missing.
    for name in names.iter().step_by(2) {
        controller.apps.put(app(name)).unwrap();
    }
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    for resume in [false, true] {
        let options = client_options(&[running.address], true);
        let mut crm = crm(ClientOptions { resume, ..options });
        crm.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
        crm.link.start();
        crm.link.in_sync().await;
        let types = ["Flavor", "Cloudlet", "ClusterInst", "App", "AppInst"];
        assert_eq!(types.map(|name| crm.link.obj_recv(name)), [1, 1, 1, 25, 50]);
        assert_eq!(crm.link.recv(), 78);
        let sent = server.peers()[0].stats.clone();
        assert_eq!((sent.send, sent.obj_send["App"]), (78, 25));

        // A second cloudlet does not bring the apps again.
        crm.cloudlet_infos.put(cloudlet_info("cloud1")).unwrap();
        until("its instances", || crm.instances.len() == 100).await;
        assert_eq!(types.map(|name| crm.link.obj_recv(name)), [1, 2, 2, 25, 100]);

        // An app that comes late reaches whoever has an instance of it.
        controller.apps.put(app("app01")).unwrap();
        until("the late app", || crm.apps.len() == 26).await;
        assert_eq!(crm.link.obj_recv("App"), 26);
        controller.apps.remove(&app("app01")).unwrap();
        until("its end", || crm.apps.len() == 25).await;
        crm.link.stop().await;
        until("gone", || server.peers().is_empty()).await;
    }
    running.stop(&server).await;
}
