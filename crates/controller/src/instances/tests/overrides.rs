//! The five ways to treat a crm, each against one that works, fails or is
//! silent.

use super::support::*;
use selvage_api::edgeproto::{AppInst, ClusterInst, CrmOverride, TrackedState};

async fn world() -> World {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world
}

fn cluster_with(over_: CrmOverride) -> ClusterInst {
    over(&cluster("one"), |inst| inst.set_crm_override(over_))
}

fn app_with(over_: CrmOverride) -> AppInst {
    over(&app_inst("app", "one"), |inst| inst.set_crm_override(over_))
}

#[tokio::test]
async fn errors_of_the_crm_can_be_ignored() {
    let world = world().await;
    world.crm.set("Create", Manner::Fails("no"));
    let (cluster_, app_) =
        (cluster_with(CrmOverride::IgnoreCrmErrors), app_with(CrmOverride::IgnoreCrmErrors));
    assert_eq!(
        world.create_cluster(&cluster_).await.ok(),
        [
            "Creating",
            "CreateError",
            "Create ClusterInst ignoring CRM failure: Encountered failures: no",
            "Created ClusterInst successfully",
        ]
    );
    let row = world.cluster(&cluster_).unwrap();
    assert_eq!((row.state(), row.errors.len(), row.crm_override), (TrackedState::Ready, 0, 0));
    assert_eq!(
        world.create_app(&app_).await.ok()[2..],
        [
            "Create AppInst ignoring CRM failure: Encountered failures: no",
            "Created AppInst successfully",
        ]
    );
    world.crm.set("Update", Manner::Fails("no"));
    assert_eq!(
        world.update_app(&app_).await.ok()[2..],
        [
            "Update AppInst ignoring CRM failure: Encountered failures: no",
            "Updated AppInst successfully",
        ]
    );
    world.crm.set("Delete", Manner::Fails("no"));
    assert_eq!(
        world.delete_app(&app_).await.ok(),
        [
            "Deleting",
            "DeleteError",
            "Delete AppInst ignoring CRM failure: Encountered failures: no",
            "Deleted AppInst successfully",
        ]
    );
    assert_eq!(
        world.delete_cluster(&cluster_).await.ok()[2..],
        [
            "Delete ClusterInst ignoring CRM failure: Encountered failures: no",
            "Deleted ClusterInst successfully",
        ]
    );
    assert_eq!((world.cluster(&cluster_), world.app(&app_)), (None, None));
    world.crm.script.lock().reality.clear();
    world.check();
}

#[tokio::test]
async fn a_silent_crm_counts_as_one_that_fails() {
    let world = world().await;
    world.crm.set("Create", Manner::Silent);
    let inst = cluster_with(CrmOverride::IgnoreCrmErrors);
    let answer = world.while_moments_pass(world.create_cluster(&inst)).await;
    assert_eq!(
        answer.ok(),
        [
            "Create ClusterInst ignoring CRM failure: Timed out; expected state Ready but is CreateRequested",
            "Created ClusterInst successfully",
        ]
    );
    assert_eq!(world.cluster(&inst).unwrap().state(), TrackedState::Ready);
}

#[tokio::test]
async fn the_crm_can_be_left_out() {
    for manner in [Manner::Works, Manner::Fails("no"), Manner::Silent] {
        let world = world().await;
        for verb in ["Create", "Update", "Delete"] {
            world.crm.set(verb, manner.clone());
        }
        let (cluster_, app_) =
            (cluster_with(CrmOverride::IgnoreCrm), app_with(CrmOverride::IgnoreCrm));
        assert_eq!(world.create_cluster(&cluster_).await.ok(), Vec::<String>::new());
        assert_eq!(world.cluster(&cluster_).unwrap().state(), TrackedState::Ready);
        assert_eq!(world.create_app(&app_).await.ok(), ["Created successfully"]);
        let resized = over(&cluster_, |inst| {
            inst.fields = vec!["14".into()];
            inst.num_nodes = 3;
        });
        assert_eq!(world.update_cluster(&resized).await.ok(), Vec::<String>::new());
        let row = world.cluster(&cluster_).unwrap();
        assert_eq!((row.state(), row.num_nodes), (TrackedState::Ready, 3));
        assert_eq!(world.update_app(&app_).await.ok(), ["Updated successfully"]);
        world.check();
        assert_eq!(world.delete_app(&app_).await.ok(), ["Deleted AppInst successfully"]);
        assert_eq!(world.delete_cluster(&cluster_).await.ok(), Vec::<String>::new());
        assert!(world.controller.tables.cluster_insts.is_empty());
        assert!(world.crm.script.lock().taken.is_empty(), "the crm was asked");
        world.check();
    }
}

#[tokio::test]
async fn without_the_crm_auto_clusters_come_and_go_too() {
    let world = world().await;
    let inst = over(&app_inst("app", "autocluster1"), |inst| {
        inst.set_crm_override(CrmOverride::IgnoreCrm);
    });
    assert_eq!(world.create_app(&inst).await.ok(), ["Created successfully"]);
    assert!(world.cluster(&cluster("autocluster1")).unwrap().auto);
    assert_eq!(
        world.delete_app(&inst).await.ok(),
        ["Deleted AppInst successfully", "DELETING auto-cluster inst"]
    );
    assert!(world.controller.tables.cluster_insts.is_empty());
    assert!(world.crm.script.lock().taken.is_empty());
    world.check();
}

/// Whatever state something was left in, and whether or not an operation is
/// under way, it can be taken over.
#[tokio::test]
async fn instances_in_the_middle_of_something_can_be_taken_over() {
    for over_ in [CrmOverride::IgnoreTransientState, CrmOverride::IgnoreCrmAndTransientState] {
        let world = world().await;
        world.create_cluster(&cluster("one")).await.ok();
        world.crm.set("Create", Manner::Hangs);
        let (plain, forced) = (app_inst("app", "one"), app_with(over_));
        let first = world.create_app(&plain);
        let second = async {
            world.until_state(&plain, TrackedState::Creating).await;
            assert_eq!(world.create_app(&plain).await.refused(), "Key already exists");
            assert_eq!(world.delete_app(&plain).await.refused(), "AppInst busy, cannot delete");
            world.crm.set("Create", Manner::Works);
            world.create_app(&forced).await
        };
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first.error.unwrap().code(), tonic::Code::Cancelled);
        second.ok();
        assert_eq!(world.app(&plain).unwrap().state(), TrackedState::Ready);
        assert!(world.service.core.takeovers.is_empty());
        world.check();

        world.crm.set("Delete", Manner::Hangs);
        let first = world.delete_app(&plain);
        let second = async {
            world.until_state(&plain, TrackedState::Deleting).await;
            world.crm.set("Delete", Manner::Works);
            world.delete_app(&forced).await
        };
        let (_, second) = tokio::join!(first, second);
        second.ok();
        assert_eq!(world.app(&plain), None);
        world.crm.script.lock().reality.retain(|key| !key.contains("app_key"));
        world.check();
    }
}

#[tokio::test]
async fn only_transient_states_are_taken_over() {
    let world = world().await;
    let inst = cluster_with(CrmOverride::IgnoreTransientState);
    world.create_cluster(&inst).await.ok();
    assert_eq!(world.create_cluster(&inst).await.refused(), "Key already exists");
    for state in [
        TrackedState::CreateRequested,
        TrackedState::Creating,
        TrackedState::UpdateRequested,
        TrackedState::Updating,
        TrackedState::DeleteRequested,
        TrackedState::Deleting,
        TrackedState::DeletePrepare,
    ] {
        let left = over(&world.cluster(&inst).unwrap(), |inst| inst.set_state(state));
        for verb in ["Create", "Update", "Delete"] {
            world.crm.set(verb, Manner::Silent);
        }
        let (taken, asked) = (world.crm.script.lock().taken.len(), is_requested(state));
        world.put(left).await;
        while asked && world.crm.script.lock().taken.len() == taken {
            tokio::task::yield_now().await;
        }
        world.crm.set("Create", Manner::Works);
        world.create_cluster(&inst).await.ok();
        assert_eq!(world.cluster(&inst).unwrap().state(), TrackedState::Ready, "{state:?}");
        world.check();
    }
}

fn is_requested(state: TrackedState) -> bool {
    matches!(
        state,
        TrackedState::CreateRequested
            | TrackedState::UpdateRequested
            | TrackedState::DeleteRequested
    )
}
