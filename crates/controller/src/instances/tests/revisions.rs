//! Revisions: what is kept of them, and the ways back.

use super::support::*;
use futures::TryStreamExt;
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::{App, AppInst, TrackedState};
use selvage_api::selvage::revisions::revision_service_server::RevisionService;
use selvage_api::selvage::revisions::{ListRevisionsRequest, Revision, RollBackRequest, State};
use selvage_kit::identity::Identity;
use tonic::Request;

use crate::keys::KeyText;

/// A cloudlet with an instance of an App.
async fn world() -> (World, AppInst) {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.create_cluster(&cluster("one")).await.ok();
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    (world, inst)
}

fn stored_app(world: &World) -> App {
    let key = app_inst("app", "one").key.unwrap().app_key.unwrap();
    world.controller.tables.apps.get(&key.text()).unwrap().value.0.clone()
}

async fn set_image(world: &World, image: &str) {
    world
        .put(App { image_path: image.into(), command: "secret".into(), ..stored_app(world) })
        .await;
}

async fn roll_back(world: &World, inst: &AppInst, revision: u64) -> Answer {
    let mut request = Request::new(RollBackRequest { key: inst.key.clone(), revision });
    let anna = Identity { name: "anna".into(), ..Identity::anonymous() };
    request.extensions_mut().insert(anna);
    collect(world.service.roll_back(request).await).await
}

async fn revisions(world: &World, inst: &AppInst) -> Vec<Revision> {
    let request = Request::new(ListRevisionsRequest { key: inst.key.clone() });
    world.service.list_revisions(request).await.unwrap().into_inner().revisions
}

fn summary(revisions: &[Revision]) -> Vec<(u64, State, bool)> {
    revisions.iter().map(|one| (one.number, one.state(), one.current)).collect()
}

#[tokio::test]
async fn an_instance_runs_an_earlier_revision_again() {
    let (world, inst) = world().await;
    let first = stored_app(&world);
    set_image(&world, "registry/app:2").await;
    world.update_app(&inst).await.ok();
    assert_eq!(world.app(&inst).unwrap().pinned_app, None, "it runs its App as it is");

    assert_eq!(
        roll_back(&world, &inst, 0).await.ok(),
        ["Updating", "Ready", "Updated successfully"]
    );
    let row = world.app(&inst).unwrap();
    assert_eq!((row.revision, row.pinned_app), (3, Some(first)));
    let listed = revisions(&world, &inst).await;
    use State::Deployed;
    assert_eq!(summary(&listed), [(3, Deployed, true), (2, Deployed, false), (1, Deployed, false)]);
    assert_eq!((listed[0].started_by.as_str(), listed[0].rollback_of), ("anna", 1));
    assert!(listed.iter().all(|one| one.started_at.is_some()), "{listed:?}");
    assert_eq!(listed[1].changed, ["image_path", "command"]);
    assert_eq!(listed[1].image_path, "registry/app:2");

    // The way back from a rollback, and the next update, which ends it.
    roll_back(&world, &inst, 2).await.ok();
    assert_eq!(world.app(&inst).unwrap().pinned_app, None);
    roll_back(&world, &inst, 1).await.ok();
    world.update_app(&inst).await.ok();
    let row = world.app(&inst).unwrap();
    assert_eq!((row.revision, row.pinned_app), (6, None));
    world.delete_app(&inst).await.ok();
    world.create_app(&inst).await.ok();
    assert_eq!(summary(&revisions(&world, &inst).await), [(1, Deployed, true)]);
    world.check();
}

/// An instance runs what its revision says, also after a failure.
#[tokio::test]
async fn a_failed_update_goes_back_to_what_runs() {
    let (world, inst) = world().await;
    let first = stored_app(&world);
    set_image(&world, "registry/app:2").await;
    world.crm.set("Update", Manner::Fails("it crashed"));
    world.update_app(&inst).await.refused();
    let row = world.app(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::UpdateError);
    assert_eq!((row.revision, row.pinned_app), (1, Some(first.clone())));
    let listed = revisions(&world, &inst).await;
    assert_eq!(summary(&listed), [(2, State::Failed, false), (1, State::Deployed, true)]);
    assert!(listed[0].error.contains("it crashed"), "{listed:?}");

    // Whoever goes back then means the version that serves.
    world.crm.set("Update", Manner::Works);
    roll_back(&world, &inst, 0).await.ok();
    let row = world.app(&inst).unwrap();
    assert_eq!((row.state(), row.pinned_app), (TrackedState::Ready, Some(first)));
    world.check();
}

#[tokio::test]
async fn the_last_five_are_kept_and_the_one_that_runs() {
    let (world, inst) = world().await;
    world.crm.set("Update", Manner::Fails("no"));
    for _ in 0..7 {
        world.update_app(&inst).await.refused();
    }
    let numbers: Vec<u64> = revisions(&world, &inst).await.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [8, 7, 6, 5, 1]);
    let refused = roll_back(&world, &inst, 2).await.refused();
    assert!(refused.contains("Revision 2"), "{refused}");
}

#[tokio::test]
async fn there_may_be_nothing_to_go_back_to() {
    let (world, inst) = world().await;
    let refused = roll_back(&world, &inst, 0).await.refused();
    assert_eq!(refused, "AppInst has no earlier revision to go back to");
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Ready, "nothing was begun");
    world.delete_app(&inst).await.ok();
    assert_eq!(roll_back(&world, &inst, 0).await.refused(), "Key not found");
}

/// The App of a pinned instance may hold secrets.
#[tokio::test]
async fn what_an_instance_is_pinned_to_is_not_shown() {
    let (world, inst) = world().await;
    set_image(&world, "registry/app:2").await;
    world.update_app(&inst).await.ok();
    set_image(&world, "registry/app:3").await;
    world.update_app(&inst).await.ok();
    roll_back(&world, &inst, 0).await.ok();
    assert!(world.app(&inst).unwrap().pinned_app.is_some());
    let filter = AppInst {
        pinned_app: Some(App { command: "secret".into(), ..App::default() }),
        ..AppInst::default()
    };
    let shown = world.service.show_app_inst(Request::new(filter)).await.unwrap().into_inner();
    let shown: Vec<AppInst> = shown.try_collect().await.unwrap();
    assert_eq!(shown.len(), 1, "the filter does not know of it");
    assert_eq!((shown[0].pinned_app.clone(), shown[0].revision), (None, 4));
}
