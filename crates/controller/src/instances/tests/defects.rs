//! Defects of the original in instances that the other modules do not cover
//! already.

use super::support::*;
use crate::controller::{Mode, Progress};
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
use selvage_api::edgeproto::{
    App, AppInst, Cloudlet, ClusterInst, DeleteType, Flavor, IpAccess, TrackedState,
};
use tonic::Request;

const ROUNDS: usize = 25;

async fn world() -> World {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world
}

/// The original read what was stored into the request, so that what the store
/// left out kept the values of the client, and the other way round.
#[tokio::test]
async fn a_new_life_has_nothing_of_the_old_one() {
    let world = world().await;
    let first = over(&cluster("one"), |inst| {
        inst.num_nodes = 3;
        inst.set_ip_access(IpAccess::Dedicated);
    });
    world.create_cluster(&first).await.ok();
    let failed = over(&world.cluster(&first).unwrap(), |inst| {
        inst.set_state(TrackedState::DeleteError);
        inst.errors = vec!["why".into()];
    });
    world.put(failed).await;
    let second = over(&cluster("one"), |inst| {
        inst.flavor = Some(flavor_key("x1.tiny"));
        inst.set_state(TrackedState::Deleting);
        inst.errors = vec!["mine".into()];
        inst.node_flavor = "mine".into();
        inst.allocated_ip = "192.0.2.1".into();
        inst.auto = true;
    });
    world.create_cluster(&second).await.ok();
    let expected = over(&cluster("one"), |inst| {
        inst.flavor = Some(flavor_key("x1.tiny"));
        inst.set_state(TrackedState::Ready);
        inst.set_liveness(selvage_api::edgeproto::Liveness::Static);
        inst.set_ip_access(IpAccess::Shared);
        inst.node_flavor = "flavor1".into();
        inst.deployment = "kubernetes".into();
    });
    assert_eq!(world.cluster(&second), Some(expected));
    let refs = world.refs("tmus", "cloud-1");
    assert_eq!((refs.used_ram, refs.used_dynamic_ips), (2048, 0));
    world.check();
}

/// The original let the App go on into a cluster that was not ready, and then
/// forgot the cluster while the crm was building it.
#[tokio::test]
async fn an_auto_cluster_that_takes_too_long_is_not_forgotten() {
    let world = world().await;
    world.crm.set("Create ClusterInst", Manner::Hangs);
    let (inst, auto) = (app_inst("app", "autocluster1"), cluster("autocluster1"));
    let answer = world.while_moments_pass(world.create_app(&inst)).await;
    assert!(answer.refused().ends_with(" not ready"));
    world.while_moments_pass(world.idle()).await;
    assert_eq!(world.app(&inst), None);
    assert!(world.cluster(&auto).is_some(), "the crm is at work on it");
    world.check();
    auto.tell(&world.service, TrackedState::Ready, &[], false).await;
    world
        .until::<ClusterInst>(&auto, |row| {
            row.is_none_or(|row| row.state() != TrackedState::Creating)
        })
        .await;
    world.idle().await;
    world.service_caretaker().await;
    assert_eq!(world.cluster(&auto), None);
    assert!(world.crm.script.lock().reality.is_empty(), "and the crm was told");
    world.check();
}

/// The original removed the cloudlet first, and then could not delete what was
/// on it any more.
#[tokio::test]
async fn a_cloudlet_goes_after_what_is_on_it() {
    let world = world().await;
    world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
    world.create_app(&app_inst("side", "autocluster1")).await.ok();
    world.create_cluster(&cluster("kept")).await.ok();
    let request = Cloudlet { key: Some(cloudlet_key("tmus", "cloud-1")), ..Default::default() };
    let delete = || world.controller.delete_cloudlet(&request, Mode::Real, Progress::default());
    let refused = delete().await.unwrap_err();
    assert_eq!(refused.to_string(), "Cloudlet in use by static Cluster Instance");
    assert_eq!(world.controller.tables.app_insts.len(), 1, "nothing goes with what stays");
    world.delete_cluster(&cluster("kept")).await.ok();
    delete().await.unwrap();
    let tables = &world.controller.tables;
    assert!(tables.cloudlets.is_empty() && tables.cloudlet_refs.is_empty());
    assert!(tables.app_insts.is_empty() && tables.cluster_insts.is_empty());
    assert!(world.crm.script.lock().reality.is_empty(), "the crm was told of all of it");
    world.check();
}

/// The original sent progress from the one thread that everything waits for.
#[tokio::test]
async fn a_caller_who_does_not_read_stalls_nobody() {
    let world = world().await;
    let (one, two) = (cluster("one"), cluster("two"));
    let _cluster = world.service.create_cluster_inst(Request::new(one.clone())).await.unwrap();
    world.soon(world.until_state(&one, TrackedState::Ready)).await;
    let inst = app_inst("app", "one");
    let _app = world.service.create_app_inst(Request::new(inst.clone())).await.unwrap();
    world.soon(world.create_cluster(&two)).await.ok();
    world.soon(world.until_state(&inst, TrackedState::Ready)).await;
    world.check();
}

/// The same developer's clusters on one cloudlet have names that stay
/// different when they become parts of other names.
#[tokio::test]
async fn clusters_of_a_developer_differ_by_more_than_case() {
    let world = world().await;
    world.create_cluster(&cluster("Small")).await.ok();
    for twin in ["small", "SMALL", "s.mall"] {
        let answer = world.create_cluster(&cluster(twin)).await;
        let code = answer.error.as_ref().map(tonic::Status::code);
        assert_eq!(code, Some(tonic::Code::AlreadyExists), "{twin}");
        assert_eq!(
            answer.refused(),
            format!(
                "ClusterInst {twin} is refused: its domain name small belongs to another \
                 instance on the cloudlet"
            )
        );
    }
    let other = over(&cluster("small"), |inst| {
        inst.key.as_mut().unwrap().developer = "Beta".into();
    });
    world.create_cluster(&other).await.ok();
    world.delete_cluster(&cluster("Small")).await.ok();
    world.create_cluster(&cluster("small")).await.ok();
    // What failed to be deleted can be made anew under its own name.
    let failed = over(&world.cluster(&cluster("small")).unwrap(), |inst| {
        inst.set_state(TrackedState::DeleteError);
    });
    world.put(failed).await;
    world.create_cluster(&cluster("small")).await.ok();
    world.check();
}

/// Something is made while what it needs is deleted: one of the two is
/// refused, or the other was too late; nothing refers to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_race_with_their_cloudlet() {
    let world = world().await;
    for round in 0..ROUNDS {
        let name = format!("race-{round}");
        world.add_cloudlet("tmus", &name, 254).await;
        let inst = over(&cluster("one"), |inst| {
            inst.key.as_mut().unwrap().cloudlet_key = Some(cloudlet_key("tmus", &name));
        });
        let request = Cloudlet { key: Some(cloudlet_key("tmus", &name)), ..Default::default() };
        let delete = world.controller.delete_cloudlet(&request, Mode::Real, Progress::default());
        let (created, deleted) =
            world.soon(async { tokio::join!(world.create_cluster(&inst), delete) }).await;
        let there = world.controller.tables.get::<Cloudlet>(&cloudlet_key("tmus", &name));
        assert_eq!(there.is_some(), deleted.is_err(), "round {round}: {deleted:?}");
        assert_eq!(world.cluster(&inst).is_some(), created.error.is_none(), "{created:?}");
        assert!(world.cluster(&inst).is_none() || there.is_some(), "round {round}");
    }
    world.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_race_with_their_flavor() {
    let world = world().await;
    for round in 0..ROUNDS {
        let name = format!("race-{round}");
        world.put(flavor(&name, 1024, 1, 1)).await;
        let inst = over(&cluster(&name), |inst| inst.flavor = Some(flavor_key(&name)));
        let request = Flavor { key: Some(flavor_key(&name)), ..Default::default() };
        let delete = world.controller.delete_flavor(&request, Mode::Real);
        let (created, deleted) =
            world.soon(async { tokio::join!(world.create_cluster(&inst), delete) }).await;
        let there = world.controller.tables.get::<Flavor>(&flavor_key(&name)).is_some();
        assert_eq!(there, deleted.is_err(), "round {round}: {deleted:?}");
        assert_eq!(world.cluster(&inst).is_some(), created.error.is_none(), "{created:?}");
        assert!(world.cluster(&inst).is_none() || there, "round {round}");
    }
    world.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_race_with_their_app() {
    let world = world().await;
    world.create_cluster(&cluster("one")).await.ok();
    for round in 0..ROUNDS {
        let name = format!("race{round}");
        world.add_app(app(&name, "")).await;
        let inst = app_inst(&name, "one");
        let request = App { key: Some(app_key("Acme", &name)), ..Default::default() };
        let delete = world.controller.delete_app(&request, Mode::Real);
        let (created, deleted) =
            world.soon(async { tokio::join!(world.create_app(&inst), delete) }).await;
        let there = world.controller.tables.get::<App>(&app_key("Acme", &name)).is_some();
        assert_eq!(there, deleted.is_err(), "round {round}: {deleted:?}");
        assert_eq!(world.app(&inst).is_some(), created.error.is_none(), "{created:?}");
        assert!(world.app(&inst).is_none() || there, "round {round}");
    }
    world.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_race_with_their_cluster() {
    let world = world().await;
    for round in 0..ROUNDS {
        let home = cluster(&format!("race-{round}"));
        world.create_cluster(&home).await.ok();
        let inst: AppInst = app_inst("app", &format!("race-{round}"));
        let both = async { tokio::join!(world.create_app(&inst), world.delete_cluster(&home)) };
        let (created, deleted) = world.soon(both).await;
        assert_eq!(world.cluster(&home).is_some(), deleted.error.is_some(), "{deleted:?}");
        assert_eq!(world.app(&inst).is_some(), created.error.is_none(), "{created:?}");
        assert!(world.app(&inst).is_none() || world.cluster(&home).is_some(), "round {round}");
    }
    world.check();
}
