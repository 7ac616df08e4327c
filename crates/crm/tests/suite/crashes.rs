//! A crm that ends and comes again finds what it made.

use std::sync::Arc;

use selvage_api::edgeproto::TrackedState;

use crate::support::{ANSWER, Life, Stuck, TestCloudlet, TestController, can_run, fetch, wait_for};

/// Calls to the platform of creating a cluster and an instance, and of
/// deleting both.
const CALLS: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_step_of_a_create_is_made_up_for() {
    if !can_run() {
        return;
    }
    for (number, range) in (0..2 * CALLS).zip(210..) {
        let place = Arc::new(TestCloudlet::new("create", range));
        let controller = TestController::start().await;
        let stuck = Stuck::new(number / 2, number % 2 == 1);
        let life = Life::start(&place, controller.address, &stuck).await;
        let making = controller.make(&place);
        tokio::select! {
            () = making => panic!("it did not stop at {stuck:?}"),
            () = stuck.reached() => {}
        }
        life.cut().await;
        let running = place.start(controller.address).await;
        controller.make(&place).await;
        let answer = fetch(place.public()).await.expect("an answer");
        assert!(answer.contains(ANSWER), "{stuck:?}: {answer}");
        assert_eq!(running.runtime.list("selvage").await.unwrap().len(), 1, "{stuck:?}");
        controller.unmake(&place).await;
        running.stop().await;
        assert_eq!(place.left_behind(), Vec::<String>::new(), "{stuck:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_step_of_a_delete_is_made_up_for() {
    if !can_run() {
        return;
    }
    for (number, range) in (0..2 * CALLS).zip(220..) {
        let place = Arc::new(TestCloudlet::new("delete", range));
        let controller = TestController::start().await;
        let stuck = Stuck::new(CALLS + number / 2, number % 2 == 1);
        let life = Life::start(&place, controller.address, &stuck).await;
        controller.make(&place).await;
        let unmaking = controller.unmake(&place);
        tokio::select! {
            () = unmaking => panic!("it did not stop at {stuck:?}"),
            () = stuck.reached() => {}
        }
        life.cut().await;
        let running = place.start(controller.address).await;
        controller.unmake(&place).await;
        wait_for("the end of both", || async {
            let status = running.crm.status();
            (status.clusters == 0 && status.instances == 0).then_some(())
        })
        .await;
        running.stop().await;
        assert_eq!(place.left_behind(), Vec::<String>::new(), "{stuck:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_crm_finds_what_runs_without_a_controller() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("again", 173);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let before = running.runtime.list("selvage").await.unwrap();
    running.stop().await;
    assert_eq!(fetch(place.public()).await, None, "nobody leads there");

    // Nobody listens at that address.
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let running = place.start(nowhere).await;
    let answer = fetch(place.public()).await.expect("an answer, while the controller is away");
    assert!(answer.contains(ANSWER), "{answer}");
    let after = running.runtime.list("selvage").await.unwrap();
    assert_eq!(before[0].pid, after[0].pid, "it was never stopped");
    running.stop().await;

    let running = place.start(controller.address).await;
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_controller_no_longer_knows_goes() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("unknown", 174);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    running.stop().await;
    controller.instances.remove(&place.instance(TrackedState::Ready)).unwrap();
    controller.clusters.remove(&place.cluster(TrackedState::Ready)).unwrap();

    let running = place.start(controller.address).await;
    wait_for("the end of both", || async {
        let status = running.crm.status();
        (status.clusters == 0 && status.instances == 0).then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_taken_away_comes_back() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("back", 175);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let id = running.runtime.list("selvage").await.unwrap()[0].runtime_id.clone();
    running.runtime.delete("selvage", &id, true).await.unwrap();
    wait_for("an answer again", || fetch(place.public())).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
