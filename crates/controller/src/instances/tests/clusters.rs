//! ClusterInsts: the streams, and what is left after each.

use super::support::*;
use selvage_api::edgeproto::{ClusterInst, IpAccess, TrackedState};

#[tokio::test]
async fn a_cluster_lives_and_dies_with_the_canonical_words() {
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    assert_eq!(
        world.create_cluster(&inst).await.ok(),
        ["Creating", "Ready", "Created successfully"]
    );
    let row = world.cluster(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::Ready);
    assert_eq!(row.node_flavor, "flavor1");
    assert_eq!(row.deployment, "kubernetes");
    assert_eq!(row.ip_access(), IpAccess::Shared);
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 4096);
    world.check();
    assert_eq!(
        world.delete_cluster(&inst).await.ok(),
        ["Deleting", "NotPresent", "Deleted ClusterInst successfully"]
    );
    assert_eq!(world.cluster(&inst), None);
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 0);
    world.check();
}

#[tokio::test]
async fn progress_of_the_crm_is_shown_and_cleared_when_it_is_done() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Waits(&["for a machine", "for its node\nand more"]));
    assert_eq!(
        world.create_cluster(&cluster("one")).await.ok(),
        ["Creating", "for a machine", "for its node", "Ready", "Created successfully"]
    );
    assert_eq!(world.cluster(&cluster("one")).unwrap().progress, "");
    world.check();
}

#[tokio::test]
async fn nobody_else_says_what_is_waited_for() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::AtOnce);
    let inst = over(&cluster("one"), |inst| inst.progress = "for nothing".into());
    world.create_cluster(&inst).await.ok();
    assert_eq!(world.cluster(&inst).unwrap().progress, "");
}

#[tokio::test]
async fn a_report_before_the_wait_counts() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::AtOnce);
    assert_eq!(world.create_cluster(&cluster("one")).await.ok(), ["Ready", "Created successfully"]);
}

#[tokio::test]
async fn a_failed_creation_tells_the_crm_to_remove_what_there_is() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Fails("crm create ClusterInst failed"));
    let answer = world.create_cluster(&cluster("one")).await.all();
    assert_eq!(
        answer,
        [
            "Creating",
            "CreateError",
            "DELETING ClusterInst due to failures",
            "! Encountered failures: crm create ClusterInst failed",
        ]
    );
    assert_eq!(world.cluster(&cluster("one")), None);
    let taken = world.crm.script.lock().taken.clone();
    assert_eq!(taken, ["Create ClusterInst", "Delete ClusterInst"]);
    assert!(world.crm.script.lock().reality.is_empty());
    world.check();
}

#[tokio::test]
async fn what_cannot_be_undone_is_kept_and_can_be_deleted() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Fails("no image"));
    world.crm.set("Delete", Manner::Fails("locked"));
    let inst = cluster("one");
    assert_eq!(world.create_cluster(&inst).await.refused(), "Encountered failures: no image");
    let row = world.cluster(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::CreateError);
    assert_eq!(
        row.errors,
        [
            "Encountered failures: no image",
            "not removed from the cloudlet: Encountered failures: locked"
        ]
    );
    world.check();
    let again = world.create_cluster(&inst).await.all();
    assert_eq!(
        again,
        [
            format!("Previous create failed, [{} {}]", row.errors[0], row.errors[1]),
            "Use DeleteClusterInst to remove and try again".to_owned(),
            "! Key already exists".to_owned(),
        ]
    );
    world.crm.set("Delete", Manner::Works);
    world.delete_cluster(&inst).await.ok();
    assert_eq!(world.cluster(&inst), None);
    world.check();
}

#[tokio::test]
async fn a_failed_deletion_brings_the_cluster_back() {
    let world = World::with_cloudlet().await;
    let inst = over(&cluster("one"), |inst| inst.set_ip_access(IpAccess::Dedicated));
    world.create_cluster(&inst).await.ok();
    let before = (world.cluster(&inst), world.refs("tmus", "cloud-1"));
    world.crm.set("Delete", Manner::Fails("no way"));
    assert_eq!(
        world.delete_cluster(&inst).await.all(),
        [
            "Deleting",
            "DeleteError",
            "Recreating ClusterInst due to failure",
            "! Encountered failures: no way",
        ]
    );
    assert_eq!((world.cluster(&inst), world.refs("tmus", "cloud-1")), before);
    world.check();
}

#[tokio::test]
async fn time_runs_out() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Silent);
    world.crm.set("Delete", Manner::Silent);
    let inst = cluster("one");
    let answer = world.while_moments_pass(world.create_cluster(&inst)).await;
    let text = "Timed out; expected state Ready but is CreateRequested";
    assert_eq!(
        answer.all(),
        ["DELETING ClusterInst due to failures".to_owned(), format!("! {text}")]
    );
    let row = world.cluster(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::CreateError);
    assert_eq!(
        row.errors[1],
        "not removed from the cloudlet: Timed out; expected state NotPresent but is DeleteRequested"
    );
}

#[tokio::test]
async fn time_runs_out_while_the_crm_is_at_work() {
    let world = World::with_cloudlet().await;
    world.crm.set("Create", Manner::Hangs);
    let inst = cluster("one");
    let answer = world.once(&inst, TrackedState::Creating, world.create_cluster(&inst)).await;
    assert_eq!(
        answer.ok(),
        [
            "Creating",
            "Timed out while work still in progress state Creating. Please use ShowClusterInst to check current status",
        ]
    );
    assert_eq!(world.cluster(&inst).unwrap().state(), TrackedState::Creating);
}

fn resized(name: &str, nodes: u32) -> ClusterInst {
    over(&cluster(name), |inst| {
        inst.fields = vec!["14".into()];
        inst.num_nodes = nodes;
    })
}

#[tokio::test]
async fn updates_are_counted() {
    let world = World::with_cloudlet().await;
    world.create_cluster(&cluster("one")).await.ok();
    assert_eq!(
        world.update_cluster(&resized("one", 4)).await.ok(),
        ["Updating", "Ready", "Updated successfully"]
    );
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 5 * 2048);
    world.update_cluster(&resized("one", 2)).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").used_vcores, 3 * 2);
    world.check();
    world.delete_cluster(&cluster("one")).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 0);
    world.check();
}

#[tokio::test]
async fn a_failed_update_can_be_tried_again_or_deleted() {
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    world.create_cluster(&inst).await.ok();
    world.crm.set("Update", Manner::Fails("no machine"));
    assert_eq!(
        world.update_cluster(&resized("one", 3)).await.all(),
        ["Updating", "UpdateError", "! Encountered failures: no machine"]
    );
    assert_eq!(world.cluster(&inst).unwrap().state(), TrackedState::UpdateError);
    world.check();
    world.crm.set("Update", Manner::Works);
    assert_eq!(
        world.update_cluster(&resized("one", 2)).await.ok(),
        [
            "previous update failed, [no machine], trying again",
            "Updating",
            "Ready",
            "Updated successfully",
        ]
    );
    world.crm.set("Update", Manner::Fails("no machine"));
    world.update_cluster(&resized("one", 3)).await.refused();
    world.delete_cluster(&inst).await.ok();
    assert_eq!(world.cluster(&inst), None);
    world.check();
}

/// Crms of the original report a failed update as a failed deletion.
#[tokio::test]
async fn the_wrong_error_of_an_old_crm_ends_an_update_at_once() {
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    world.create_cluster(&inst).await.ok();
    world.crm.set("Update", Manner::Silent);
    let request = resized("one", 3);
    let calling = world.update_cluster(&request);
    let reporting = async {
        world.until_state(&inst, TrackedState::UpdateRequested).await;
        inst.tell(&world.service, TrackedState::Updating, &[], false).await;
        inst.tell(&world.service, TrackedState::DeleteError, &["x".into()], false).await;
    };
    let (answer, ()) = tokio::join!(calling, reporting);
    assert_eq!(answer.all(), ["Updating", "UpdateError", "! Encountered failures: x"]);
}

#[tokio::test]
async fn a_silent_crm_leaves_no_update_under_way() {
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    world.create_cluster(&inst).await.ok();
    world.crm.set("Update", Manner::Silent);
    let request = resized("one", 3);
    let answer = world.while_moments_pass(world.update_cluster(&request)).await;
    let text = "Timed out; expected state Ready but is UpdateRequested";
    assert_eq!(answer.refused(), text);
    let row = world.cluster(&inst).unwrap();
    assert_eq!((row.state(), row.errors), (TrackedState::UpdateError, vec![text.to_owned()]));
}

#[tokio::test]
async fn a_caller_who_leaves_stops_nothing() {
    use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    drop(world.service.create_cluster_inst(tonic::Request::new(inst.clone())).await.unwrap());
    world.until_state(&inst, TrackedState::Ready).await;
    world.idle().await;
    world.check();
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    let mut request = tonic::Request::new(inst.clone());
    request.metadata_mut().insert("x-selvage-dry-run", "true".parse().unwrap());
    let said = collect(world.service.create_cluster_inst(request).await).await.ok();
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("dry run: would create ClusterInst {"), "{said:?}");
    assert_eq!(world.cluster(&inst), None);
    assert!(world.controller.engine.list().is_empty());
    assert!(world.crm.script.lock().taken.is_empty());
}

#[tokio::test]
async fn addresses_are_never_given_twice_and_come_back() {
    let world = World::new().await;
    world.add_cloudlet("tmus", "cloud-1", 4).await;
    let dedicated =
        |name: &str| over(&cluster(name), |inst| inst.set_ip_access(IpAccess::Dedicated));
    let insts: Vec<_> = (0..8).map(|number| dedicated(&format!("c{number}"))).collect();
    let calls = insts.iter().map(|inst| world.create_cluster(inst));
    let answers = futures::future::join_all(calls).await;
    let refused: Vec<_> = answers.into_iter().filter_map(|answer| answer.error).collect();
    assert_eq!(refused.len(), 5);
    for error in refused {
        assert_eq!(error.message(), "No more dynamic IPs left");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    }
    assert_eq!(world.refs("tmus", "cloud-1").used_dynamic_ips, 3);
    world.check();
    for inst in &insts {
        if world.cluster(inst).is_some() {
            world.delete_cluster(inst).await.ok();
        }
    }
    assert_eq!(world.refs("tmus", "cloud-1").used_dynamic_ips, 0);
}

#[tokio::test]
async fn two_developers_may_have_clusters_of_one_name() {
    let world = World::with_cloudlet().await;
    let of = |developer: &str, access| {
        over(&cluster("same"), |inst| {
            inst.key.as_mut().unwrap().developer = developer.into();
            inst.set_ip_access(access);
        })
    };
    world.create_cluster(&of("Acme", IpAccess::Shared)).await.ok();
    world.create_cluster(&of("Other", IpAccess::Shared)).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").clusters.len(), 2);
    // But no two domain names that are the same.
    world.create_cluster(&of("Third", IpAccess::Dedicated)).await.ok();
    let answer = world.create_cluster(&of("Fourth", IpAccess::Dedicated)).await;
    assert_eq!(answer.error.unwrap().code(), tonic::Code::AlreadyExists);
    world.delete_cluster(&of("Third", IpAccess::Dedicated)).await.ok();
    world.create_cluster(&of("Fourth", IpAccess::Dedicated)).await.ok();
    world.check();
}

#[tokio::test]
async fn clouds_with_an_address_per_service_count_none() {
    let world = World::new().await;
    world.add_cloudlet("gcp", "cloud-10", 1).await;
    let inst = over(&cluster("one"), |inst| {
        inst.key.as_mut().unwrap().cloudlet_key = Some(cloudlet_key("gcp", "cloud-10"));
    });
    world.create_cluster(&inst).await.ok();
    assert_eq!(world.cluster(&inst).unwrap().ip_access(), IpAccess::Dedicated);
    world.delete_cluster(&inst).await.ok();
    assert_eq!(world.refs("gcp", "cloud-10").used_dynamic_ips, 0);
    world.check();
}

#[tokio::test]
async fn resources_are_enforced() {
    let clock = selvage_store::clock::ManualClock::new(1_000_000_000_000);
    let store = memory_store(&clock).await;
    let strict = crate::Settings { enforce_resources: true, ..settings() };
    let world = World::on(store, clock, std::sync::Arc::default(), strict).await;
    for (name, ram, vcpus, disk) in FLAVORS {
        world.put(flavor(name, *ram, *vcpus, *disk)).await;
    }
    world.add_cloudlet("tmus", "cloud-1", 254).await;
    let answer = world.create_cluster(&cluster("one")).await;
    assert_eq!(answer.error.as_ref().unwrap().code(), tonic::Code::ResourceExhausted);
    assert_eq!(answer.refused(), "Not enough RAM available");
    assert_eq!(world.cluster(&cluster("one")), None);
}
