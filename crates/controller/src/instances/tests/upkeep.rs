//! Restarts, reports out of season, and the caretaker.

use super::support::*;
use selvage_api::edgeproto::{
    AppInst, AppInstRuntime, CloudletInfo, ClusterInst, ClusterInstInfo, TrackedState,
};
use std::sync::Arc;

use crate::controller::Instances;
use crate::instances::state::{Report, Verb, moved};

const ALL: [TrackedState; 13] = [
    TrackedState::Unknown,
    TrackedState::NotPresent,
    TrackedState::CreateRequested,
    TrackedState::Creating,
    TrackedState::CreateError,
    TrackedState::Ready,
    TrackedState::UpdateRequested,
    TrackedState::Updating,
    TrackedState::UpdateError,
    TrackedState::DeleteRequested,
    TrackedState::Deleting,
    TrackedState::DeleteError,
    TrackedState::DeletePrepare,
];

/// A world whose crm never says anything by itself.
async fn mute() -> World {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.create_cluster(&cluster("one")).await.ok();
    world.create_app(&app_inst("app", "one")).await.ok();
    for verb in ["Create", "Update", "Delete"] {
        world.crm.set(verb, Manner::Silent);
    }
    world
}

#[tokio::test]
async fn every_report_meets_every_state() {
    let world = mute().await;
    let apps = [app_inst("app", "one")];
    let clusters = [cluster("one")];
    for from in ALL {
        for said in ALL.map(Some).into_iter().chain([None]) {
            let report = said.map_or(Report::Gone, Report::Is);
            check_report(&world, &apps[0], from, report).await;
            check_report(&world, &clusters[0], from, report).await;
        }
    }
}

async fn check_report<I: Reported>(world: &World, inst: &I, from: TrackedState, report: Report) {
    let key = inst.key_text();
    let table = world.controller.tables.of::<I>();
    let before = table.get(&key).unwrap().value.0.clone();
    let mut row = before.clone();
    row.set_state(from);
    row.set_errors(vec!["old".into()]);
    world.put(row).await;
    let (state, gone) = match report {
        Report::Is(state) => (state, false),
        Report::Gone => (TrackedState::NotPresent, true),
    };
    inst.tell(&world.service, state, &["new".into()], gone).await;
    let now = table.get(&key).map(|held| held.value.0.clone());
    match moved(from, report) {
        Some(TrackedState::NotPresent) => assert!(now.is_none(), "{from:?} {report:?}"),
        Some(to) => {
            let now = now.unwrap();
            assert_eq!(now.state(), to, "{from:?} {report:?}");
            let expected: &[String] = match Verb::of(from).unwrap().failed() == to {
                true => &["new".into()],
                false => &[],
            };
            assert_eq!(now.errors(), expected);
        }
        None => {
            let now = now.unwrap();
            assert_eq!((now.state(), now.errors()), (from, ["old".to_owned()].as_slice()));
        }
    }
    if table.get(&key).is_none() {
        // Written anew as it was, for the next report.
        world.put(before).await;
    }
}

#[tokio::test]
async fn a_ready_app_may_change_its_containers() {
    let world = mute().await;
    let inst = app_inst("app", "one");
    let info = selvage_api::edgeproto::AppInstInfo {
        key: inst.key.clone(),
        state: TrackedState::Ready.into(),
        runtime_info: Some(AppInstRuntime {
            container_ids: vec!["c2".into()],
            ..AppInstRuntime::default()
        }),
        ..Default::default()
    };
    world.service.app_inst_info(info, false).await;
    assert_eq!(world.app(&inst).unwrap().runtime_info.unwrap().container_ids, ["c2"]);
    let nobody = ClusterInstInfo { state: TrackedState::Ready.into(), ..Default::default() };
    world.service.cluster_inst_info(nobody, false).await;
}

/// The process dies while something is under way; the next one brings it to
/// its end.
#[tokio::test]
async fn operations_survive_the_process() {
    let world = mute().await;
    let (two, three) = (cluster("two"), cluster("three"));
    world.crm.set("Delete", Manner::Works);
    let begin = async |world: &World, inst: &ClusterInst| {
        use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
        drop(world.service.create_cluster_inst(tonic::Request::new(inst.clone())).await.unwrap());
    };
    begin(&world, &two).await;
    begin(&world, &three).await;
    let world = world.crash().await;
    two.tell(&world.service, TrackedState::Creating, &[], false).await;
    let world = world.crash().await;
    two.tell(&world.service, TrackedState::Ready, &[], false).await;
    three.tell(&world.service, TrackedState::CreateError, &["no".into()], false).await;
    world.idle().await;
    assert_eq!(world.cluster(&two).unwrap().state(), TrackedState::Ready);
    assert_eq!(world.cluster(&three), None);
    world.check();
}

/// Wherever an App with an auto-cluster is when the process dies.
#[tokio::test]
async fn an_app_and_its_cluster_survive_the_process() {
    use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
    let hangs: [Option<&'static str>; 3] =
        [None, Some("Create ClusterInst"), Some("Create AppInst")];
    for hang in hangs {
        let world = World::with_cloudlet().await;
        world.add_app(app("app", "tcp:80")).await;
        if let Some(what) = hang {
            world.crm.set(what, Manner::Hangs);
        }
        let (inst, auto) = (app_inst("app", "autocluster1"), cluster("autocluster1"));
        drop(world.service.create_app_inst(tonic::Request::new(inst.clone())).await.unwrap());
        match hang {
            None => {}
            Some("Create AppInst") => world.until_state(&inst, TrackedState::Creating).await,
            Some(_) => world.until_state(&auto, TrackedState::Creating).await,
        }
        let world = world.crash().await;
        match hang {
            None => {}
            Some("Create AppInst") => {
                inst.tell(&world.service, TrackedState::Ready, &[], false).await
            }
            Some(_) => auto.tell(&world.service, TrackedState::Ready, &[], false).await,
        }
        world.until_state(&inst, TrackedState::Ready).await;
        world.idle().await;
        world.check();
        drop(AppInstApi::delete_app_inst(&*world.service, tonic::Request::new(inst.clone())).await);
        let world = world.crash().await;
        world.until::<ClusterInst>(&auto, |row| row.is_none()).await;
        world.idle().await;
        assert!(world.crm.script.lock().reality.is_empty());
        world.check();
    }
}

#[tokio::test]
async fn what_is_under_way_without_an_operation_gets_one() {
    let world = mute().await;
    let (one, app_) = (cluster("one"), app_inst("app", "one"));
    let force_cluster = async |state: TrackedState| {
        world.put(over(&world.cluster(&one).unwrap(), |inst| inst.set_state(state))).await;
    };
    force_cluster(TrackedState::DeletePrepare).await;
    assert_eq!(world.service_caretaker().await, 1);
    assert_eq!(world.cluster(&one).unwrap().state(), TrackedState::Ready);
    assert_eq!(world.service_caretaker().await, 0);

    for verb in ["Create", "Update"] {
        world.crm.set(verb, Manner::Hangs);
    }
    force_cluster(TrackedState::Updating).await;
    let reporting = async {
        world.until_driven(&one).await;
        one.tell(&world.service, TrackedState::UpdateError, &["no".into()], false).await;
    };
    let (changes, ()) = tokio::join!(world.service_caretaker(), reporting);
    assert_eq!(changes, 1);
    assert_eq!(world.cluster(&one).unwrap().state(), TrackedState::UpdateError);
    world
        .put(over(&world.cluster(&one).unwrap(), |inst| inst.set_state(TrackedState::Ready)))
        .await;

    world
        .put(over(&world.app(&app_).unwrap(), |inst| inst.set_state(TrackedState::Deleting)))
        .await;
    world.crm.script.lock().reality.remove(&crate::row::StoredObject::key_text(&app_));
    let reporting = async {
        world.until_driven(&app_).await;
        app_.tell(&world.service, TrackedState::NotPresent, &[], true).await;
    };
    tokio::join!(world.service_caretaker(), reporting);
    assert_eq!(world.app(&app_), None);
    world.check();
}

#[tokio::test]
async fn an_auto_cluster_that_nobody_uses_is_found() {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.crm.set("Delete ClusterInst", Manner::Fails("not now"));
    let inst = app_inst("app", "autocluster1");
    world.create_app(&inst).await.ok();
    world.delete_app(&inst).await.ok();
    let auto = cluster("autocluster1");
    assert_eq!(world.cluster(&auto).unwrap().state(), TrackedState::Ready);
    world.check();
    world.crm.set("Delete ClusterInst", Manner::Works);
    assert_eq!(world.service_caretaker().await, 1);
    world.until::<ClusterInst>(&auto, |row| row.is_none()).await;
    world.check();
}

/// A crm that was started anew says nothing of what it was deleting.
#[tokio::test]
async fn a_forgotten_deletion_is_asked_for_again() {
    let world = mute().await;
    let key = cloudlet_key("tmus", "cloud-1");
    let info = world.controller.tables.get::<CloudletInfo>(&key).unwrap();
    let ours = world.controller.settings.controller_id();
    world.put(over(&info.value.0, |info| info.controller = ours)).await;
    let inst = app_inst("app", "one");
    world.crm.set("Delete", Manner::Hangs);
    let calling = world.delete_app(&inst);
    let caring = async {
        world.until_state(&inst, TrackedState::Deleting).await;
        world.crm.set("Delete", Manner::Works);
        let caretaker = world.service.caretaker();
        use selvage_work::Reconcile;
        assert_eq!(caretaker.run().await.unwrap().changes, 0);
        assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Deleting);
        assert_eq!(caretaker.run().await.unwrap().changes, 1);
    };
    let (answer, ()) = tokio::join!(calling, caring);
    answer.ok();
    assert_eq!(world.app(&inst), None);
    world.check();
}

/// An operation that runs on after its time is up is followed to its end.
#[tokio::test]
async fn a_creation_that_took_too_long_is_looked_after() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Hangs);
    let inst = cluster("one");
    world.once(&inst, TrackedState::Creating, world.create_cluster(&inst)).await.ok();
    world.idle().await;
    let reporting = async {
        world.until_driven(&inst).await;
        inst.tell(&world.service, TrackedState::CreateError, &["late".into()], false).await;
    };
    let (changes, ()) = tokio::join!(world.service_caretaker(), reporting);
    assert_eq!(changes, 1);
    let row = world.cluster(&inst).unwrap();
    assert_eq!((row.state(), row.errors), (TrackedState::CreateError, vec!["late".to_owned()]));
    world.delete_cluster(&inst).await.ok();
    world.check();
}

/// Nothing keeps a controller alive that nobody holds.
#[tokio::test]
async fn a_controller_can_go() {
    let world = World::with_cloudlet().await;
    let inst: AppInst = app_inst("app", "one");
    world.create_app(&inst).await.refused();
    let weak = Arc::downgrade(&world.controller);
    drop(world);
    for _ in 0..1000 {
        if weak.strong_count() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} still hold the controller", weak.strong_count());
}
