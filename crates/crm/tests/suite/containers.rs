//! Instances come up, answer at their public ports, and go without a trace.

use selvage_api::edgeproto::{AppInstInfo, CloudletState, TrackedState};

use crate::support::{ANSWER, Place, Upstairs, can_run, fetch, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_runs_answers_and_goes_without_a_trace() {
    if !can_run() {
        return;
    }
    let place = Place::new("trace", 201);
    let controller = Upstairs::start().await;
    let running = place.start(controller.address).await;
    let info = wait_for("the cloudlet's report", || async {
        controller.cloudlet_infos.find(&place.cloudlet())
    })
    .await;
    assert_eq!(info.state(), CloudletState::Ready);
    assert!(info.os_max_ram > 0 && info.os_max_vcores > 0 && !info.flavors.is_empty(), "{info:?}");

    controller.make(&place).await;
    let answer = fetch(place.public()).await.expect("an answer at the public port");
    assert!(answer.contains(ANSWER), "{answer}");
    let info = controller.instance_infos.find(&place.instance_key()).unwrap();
    let runtime: &AppInstInfo = info.as_ref();
    let ids = runtime.runtime_info.clone().unwrap().container_ids;
    assert!(ids[0].starts_with("hello-1-0-"), "{ids:?}");
    assert_eq!(running.crm.status().instances, 1);

    controller.unmake(&place).await;
    assert_eq!(fetch(place.public()).await, None);
    assert!(running.runtime.list("selvage").await.unwrap().is_empty());
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_run_says_why_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let mut place = Place::new("why", 202);
    place.command = "/bin/sh -c false".into();
    let controller = Upstairs::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(&place);
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    let text = "Create App Inst failed: the container ended";
    assert!(info.errors[0].starts_with(text), "{:?}", info.errors);
    assert!(running.runtime.list("selvage").await.unwrap().is_empty());

    let mut app = place.app();
    app.image_path = "127.0.0.1:1/nowhere/nothing:1".into();
    controller.apps.put(app).unwrap();
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the report's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    assert!(info.errors[0].contains("registry"), "{:?}", info.errors);
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
