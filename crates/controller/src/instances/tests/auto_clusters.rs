//! Clusters that are made for an App and go with it.

use super::support::*;
use selvage_api::edgeproto::{ClusterInst, DeleteType, IpAccess, Liveness, TrackedState};

const TRIPLE: [&str; 3] = ["Creating", "Ready", "Created successfully"];

fn lines<const N: usize>(groups: [&[&str]; N]) -> Vec<String> {
    groups.concat().into_iter().map(str::to_owned).collect()
}

async fn world() -> World {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80,http:443,udp:10002")).await;
    world
}

#[tokio::test]
async fn an_auto_cluster_comes_before_its_app_and_goes_after_it() {
    let world = world().await;
    let inst = app_inst("app", "autoclusterApp");
    assert_eq!(world.create_app(&inst).await.ok(), lines([&TRIPLE, &TRIPLE]));
    // From now on the name is in lower case.
    let inst = app_inst("app", "autoclusterapp");
    let row = world.cluster(&cluster("autoclusterapp")).unwrap();
    assert!(row.auto);
    assert_eq!(row.liveness(), Liveness::Dynamic);
    assert_eq!(row.ip_access(), IpAccess::Shared);
    assert_eq!((row.num_masters, row.num_nodes), (1, 1));
    assert_eq!(row.node_flavor, "flavor1");
    let refs = world.refs("tmus", "cloud-1");
    assert_eq!((refs.used_ram, refs.used_vcores, refs.used_disk), (4096, 4, 4));
    assert_eq!(refs.root_lb_ports, [(80, 1), (10002, 2)].into());
    assert_eq!(refs.clusters[0].name, "autoclusterapp");
    world.check();
    assert_eq!(
        world.delete_app(&inst).await.ok(),
        lines([
            &["Deleting", "NotPresent", "Deleted AppInst successfully"],
            &["DELETING auto-cluster inst"],
            &["Deleting", "NotPresent", "Deleted ClusterInst successfully"],
        ])
    );
    let refs = world.refs("tmus", "cloud-1");
    assert_eq!((refs.used_ram, refs.used_vcores, refs.used_disk), (0, 0, 0));
    assert!(refs.root_lb_ports.is_empty() && refs.clusters.is_empty());
    assert!(world.crm.script.lock().reality.is_empty());
    world.check();
}

#[tokio::test]
async fn apps_that_go_with_the_cluster_do_not_keep_it() {
    let world = world().await;
    world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
    let inst = app_inst("app", "autocluster1");
    world.create_app(&inst).await.ok();
    world.create_app(&app_inst("side", "autocluster1")).await.ok();
    assert_eq!(
        world.delete_app(&inst).await.ok(),
        lines([
            &["Deleting", "NotPresent", "Deleted AppInst successfully"],
            &["DELETING auto-cluster inst", "Autodeleting appinst side"],
            &["Deleting", "NotPresent", "Deleted AppInst successfully"],
            &["Deleting", "NotPresent", "Deleted ClusterInst successfully"],
        ])
    );
    world.check();
}

#[tokio::test]
async fn an_auto_cluster_stays_while_others_use_it() {
    let world = world().await;
    world.add_app(app("other", "")).await;
    world.create_app(&app_inst("app", "autocluster1")).await.ok();
    assert_eq!(world.create_app(&app_inst("other", "autocluster1")).await.ok(), lines([&TRIPLE]));
    world.delete_app(&app_inst("app", "autocluster1")).await.ok();
    assert!(world.cluster(&cluster("autocluster1")).is_some());
    world.delete_app(&app_inst("other", "autocluster1")).await.ok();
    assert_eq!(world.cluster(&cluster("autocluster1")), None);
    world.check();
}

#[tokio::test]
async fn a_docker_app_gets_a_docker_host_of_its_own() {
    let world = World::with_cloudlet().await;
    world.add_app(over(&app("app", "tcp:80"), |app| app.deployment = "docker".into())).await;
    world.create_app(&app_inst("app", "autocluster1")).await.ok();
    let row = world.cluster(&cluster("autocluster1")).unwrap();
    assert_eq!(row.ip_access(), IpAccess::Dedicated);
    assert_eq!((row.num_masters, row.num_nodes), (0, 0));
    assert_eq!(world.refs("tmus", "cloud-1").used_dynamic_ips, 1);
    world.delete_app(&app_inst("app", "autocluster1")).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").used_dynamic_ips, 0);
}

#[tokio::test]
async fn a_failed_app_takes_its_cluster_along_and_the_crm_knows() {
    let world = world().await;
    world.crm.set("Create AppInst", Manner::Fails("bad image"));
    assert_eq!(
        world.create_app(&app_inst("app", "autocluster1")).await.all(),
        lines([
            &TRIPLE,
            &["Creating", "CreateError", "DELETING AppInst due to failure"],
            &["DELETING auto-ClusterInst due to failure"],
            &["! Encountered failures: bad image"],
        ])
    );
    assert!(world.crm.script.lock().reality.is_empty());
    assert!(world.controller.tables.cluster_insts.is_empty());
    assert!(world.controller.tables.app_insts.is_empty());
    world.check();
}

#[tokio::test]
async fn a_failed_cluster_fails_the_app() {
    let world = world().await;
    world.crm.set("Create ClusterInst", Manner::Fails("no quota"));
    assert_eq!(
        world.create_app(&app_inst("app", "autocluster1")).await.all(),
        lines([
            &["Creating", "CreateError", "DELETING ClusterInst due to failures"],
            &["! Encountered failures: no quota"],
        ])
    );
    assert!(world.controller.tables.cluster_insts.is_empty());
    world.check();
}

#[tokio::test]
async fn a_wrong_request_is_refused_before_anything_is_made() {
    let world = world().await;
    let wrong = over(&app_inst("app", "autocluster1"), |inst| inst.uri = "x.example".into());
    assert_eq!(
        world.create_app(&wrong).await.refused(),
        "Cannot specify URI x.example for non-default cloudlet"
    );
    let unknown =
        over(&app_inst("app", "autocluster1"), |inst| inst.flavor = Some(flavor_key("nope")));
    assert_eq!(world.create_app(&unknown).await.refused(), "Flavor nope not found");
    world.put(flavor("huge", 1 << 40, 1, 1)).await;
    let huge =
        over(&app_inst("app", "autocluster1"), |inst| inst.flavor = Some(flavor_key("huge")));
    assert_eq!(
        world.create_app(&huge).await.refused(),
        "no suitable platform flavor found for huge, please try a smaller flavor"
    );
    assert!(world.crm.script.lock().taken.is_empty());
    assert!(world.controller.engine.list().is_empty());
}

#[tokio::test]
async fn whoever_comes_second_waits_for_the_cluster() {
    let world = world().await;
    world.add_app(app("other", "")).await;
    world.crm.set("Create ClusterInst", Manner::Hangs);
    let (one, two) = (app_inst("app", "autocluster1"), app_inst("other", "autocluster1"));
    let first = world.create_app(&one);
    let auto = cluster("autocluster1");
    let finishing = async {
        world.until_state(&auto, TrackedState::Creating).await;
        auto.tell(&world.service, TrackedState::Ready, &[], false).await;
    };
    let second = async {
        world.until::<ClusterInst>(&auto, |row| row.is_some()).await;
        world.create_app(&two).await
    };
    let (first, second, ()) = tokio::join!(first, second, finishing);
    assert_eq!(first.ok(), lines([&TRIPLE, &TRIPLE]));
    assert_eq!(second.ok(), lines([&TRIPLE]));
    assert_eq!(
        world.crm.script.lock().taken.iter().filter(|t| t.ends_with("ClusterInst")).count(),
        1
    );
    world.check();
}

#[tokio::test]
async fn many_at_once_share_one_cluster() {
    let world = world().await;
    let names: Vec<_> = (0..8).map(|number| format!("app{number}")).collect();
    for name in &names {
        world.add_app(app(name, "tcp:80")).await;
    }
    let insts: Vec<_> = names.iter().map(|name| app_inst(name, "autocluster1")).collect();
    let answers = world
        .soon(futures::future::join_all(insts.iter().map(|inst| world.create_app(inst))))
        .await;
    for answer in answers {
        answer.ok();
    }
    assert_eq!(world.controller.tables.cluster_insts.len(), 1);
    world.check();
    let answers = world
        .soon(futures::future::join_all(insts.iter().map(|inst| world.delete_app(inst))))
        .await;
    for answer in answers {
        answer.ok();
    }
    world.idle().await;
    world.service_caretaker().await;
    world.until::<ClusterInst>(&cluster("autocluster1"), |row| row.is_none()).await;
    world.check();
}

#[tokio::test]
async fn two_of_the_same_name_are_not_both_made() {
    let world = world().await;
    let inst = app_inst("app", "autocluster1");
    let (one, two) = tokio::join!(world.create_app(&inst), world.create_app(&inst));
    let errors: Vec<_> = [one.error, two.error].into_iter().flatten().collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].message(), "Key already exists");
    assert!(world.app(&inst).is_some());
    world.check();
}

#[tokio::test]
async fn cancelling_takes_the_cluster_along() {
    let world = world().await;
    world.crm.set("Create ClusterInst", Manner::Hangs);
    let inst = app_inst("app", "autocluster1");
    let calling = world.create_app(&inst);
    let cancelling = async {
        world.until_state(&cluster("autocluster1"), TrackedState::Creating).await;
        let operations = world.controller.engine.list();
        let own = operations.iter().find(|operation| operation.kind == "CreateAppInst").unwrap();
        world.controller.engine.cancel(&own.id, "tester").await.unwrap();
    };
    let both = async { tokio::join!(calling, cancelling) };
    let (answer, ()) = world.while_moments_pass(both).await;
    assert_eq!(answer.error.unwrap().code(), tonic::Code::Cancelled);
    world.idle().await;
    assert!(world.controller.tables.cluster_insts.is_empty());
    assert!(world.crm.script.lock().reality.is_empty());
    world.check();
}
