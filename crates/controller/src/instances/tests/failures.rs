//! Cloudlets that go away while something is under way on them.

use super::support::*;
use crate::instances::kind::Instance;
use crate::settings::Timeouts;
use selvage_api::edgeproto::{AppInst, CloudletInfo, CloudletState, CrmOverride, TrackedState};
use selvage_store::clock::ManualClock;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// Callers wait no longer than a moment for a cloudlet that is away.
async fn impatient() -> World {
    let clock = ManualClock::new(1_000_000_000_000);
    let store = memory_store(&clock).await;
    let mut settings = settings();
    settings.timeouts = Timeouts { away: Duration::from_millis(40), ..settings.timeouts };
    let world = World::on(store, clock, Arc::default(), settings).await;
    for (name, ram, vcpus, disk) in FLAVORS {
        world.put(flavor(name, *ram, *vcpus, *disk)).await;
    }
    world.add_cloudlet("tmus", "cloud-1", 254).await;
    world.add_app(app("app", "tcp:80")).await;
    world.create_cluster(&cluster("base")).await.ok();
    world
}

async fn set_cloudlet(world: &World, state: CloudletState) {
    let key = cloudlet_key("tmus", "cloud-1");
    let held = world.controller.tables.get::<CloudletInfo>(&key).unwrap();
    world.put(over(&held.value.0, |info| info.set_state(state))).await;
}

/// Calls, and takes the cloudlet away once the crm has begun.
async fn cut_off(world: &World, inst: &AppInst, state: TrackedState) -> Answer {
    let cutting = async {
        world.until_state(inst, state).await;
        set_cloudlet(world, CloudletState::Offline).await;
    };
    let (answer, ()) = tokio::join!(world.soon(world.create_app(inst)), cutting);
    answer
}

/// The original lets the caller wait for half an hour.
#[tokio::test]
async fn a_caller_hears_that_the_cloudlet_is_gone_and_the_work_goes_on() {
    let world = impatient().await;
    world.crm.set("Create", Manner::Hangs);
    let inst = app_inst("app", "base");
    let answer = cut_off(&world, &inst, TrackedState::Creating).await;
    assert_eq!(answer.said, ["Creating"]);
    let error = answer.error.unwrap();
    assert_eq!(error.code(), Code::Unavailable);
    let text = "Cloudlet operator_key:<name:\"tmus\" > name:\"cloud-1\"  not ready, \
                state is CLOUDLET_STATE_OFFLINE; operation ";
    let operation = error.message().strip_prefix(text).unwrap();
    let operation = operation.strip_suffix(" goes on when it is back").unwrap();

    // It was only cut off, and has gone on working.
    let handle = world.controller.engine.attach(operation).unwrap();
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Creating);
    set_cloudlet(&world, CloudletState::Ready).await;
    inst.tell(&world.service, TrackedState::Ready, &[], false).await;
    world.soon(handle.ended()).await.unwrap();
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Ready);
}

/// Nobody to ask is one of the errors that can be ignored.
#[tokio::test]
async fn who_ignores_errors_waits_for_the_end() {
    let world = impatient().await;
    world.crm.set("Create", Manner::Silent);
    let inst = over(&app_inst("app", "base"), |inst| {
        inst.set_crm_override(CrmOverride::IgnoreCrmErrors);
    });
    let calling = async {
        let (answer, ()) = tokio::join!(world.create_app(&inst), async {
            world.until_state(&inst, TrackedState::CreateRequested).await;
            set_cloudlet(&world, CloudletState::Offline).await;
        });
        answer
    };
    let answer = world.soon(world.once(&inst, TrackedState::CreateRequested, calling)).await;
    assert_eq!(answer.ok().last().unwrap(), "Created AppInst successfully");
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Ready);
}

/// The same requests to two controllers that know nothing of each other.
#[tokio::test]
async fn the_same_requests_get_the_same_answers() {
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let world = World::with_cloudlet().await;
        for name in ["a", "b", "c"] {
            world.add_app(app(name, "tcp:80,udp:53,http:443")).await;
        }
        let mut answers = vec![world.create_cluster(&cluster("one")).await.ok()];
        for (name, place) in [("a", "one"), ("b", "autocluster1"), ("c", "one"), ("a", "auto2")] {
            answers.push(world.create_app(&app_inst(name, place)).await.all());
        }
        answers.push(world.delete_app(&app_inst("a", "one")).await.ok());
        answers.push(world.create_app(&app_inst("a", "one")).await.ok());
        let tables = &world.controller.tables;
        let apps = tables.app_insts.list();
        let rows = apps.iter().map(|held| AppInst { created_at: None, ..held.value.0.clone() });
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|inst| Instance::state(inst) == TrackedState::Ready));
        let clusters = tables.cluster_insts.list();
        let clusters: Vec<_> = clusters.iter().map(|held| held.value.0.clone()).collect();
        outcomes.push((answers, rows, clusters, world.refs("tmus", "cloud-1")));
    }
    assert_eq!(outcomes[0], outcomes[1]);
}
