//! Instances come up, answer at their public ports, and go without a trace.

use std::time::Duration;

use selvage_api::edgeproto::{AppInstInfo, CloudletState, Metric, TrackedState, metric_val};
use selvage_runtime::{ExecOutput, ExecSpec, Runtime};

use crate::support::{
    ANSWER, TestCloudlet, TestController, can_run, fetch, has_program, loop_devices, wait_for,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_runs_answers_and_goes_without_a_trace() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("trace", 171);
    let controller = TestController::start().await;
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
    let mut place = TestCloudlet::new("why", 172);
    place.command = "/bin/sh -c false".into();
    let controller = TestController::start().await;
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

/// Runs busybox in a container: what it complains of, and its code.
async fn busybox(runtime: &dyn Runtime, id: &str, words: &[&str]) -> (String, i32) {
    let argv = ["/bin/busybox"].iter().chain(words).map(ToString::to_string).collect();
    let spec = ExecSpec { argv, ..ExecSpec::default() };
    let mut ran = runtime.exec("selvage", id, spec).await.unwrap();
    let mut printed = Vec::new();
    loop {
        match ran.output.recv().await.expect("a code") {
            ExecOutput::Stderr(bytes) => printed.extend_from_slice(&bytes),
            ExecOutput::Stdout(_) => {}
            ExecOutput::Exited(code) => return (String::from_utf8(printed).unwrap(), code),
            ExecOutput::Failed(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_a_cluster_find_themselves_and_each_other_by_name() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("names", 183);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let runtime = running.runtime.as_ref();
    let id = runtime.list("selvage").await.unwrap()[0].runtime_id.clone();
    // A program that is linked statically cannot look names up by itself.
    let found = async |id: &str, host: &str| {
        let script = format!(
            "while read address names; do case \" $names \" in *\" {host} \"*) \
             echo $address >&2; exit;; esac; done </etc/hosts; exit 1"
        );
        let (address, code) = busybox(runtime, id, &["sh", "-c", &script]).await;
        (code == 0).then(|| address.trim().to_owned())
    };
    let answers = |address: Option<String>| {
        let address: std::net::IpAddr = address.expect("an address").parse().unwrap();
        std::net::TcpStream::connect((address, 8080)).is_ok()
    };
    assert!(answers(found(&id, &id).await), "its own name");
    assert_eq!(found(&id, "neighbour").await, None, "nobody is there yet");

    let (app, neighbour) = place.neighbour();
    controller.apps.put(app).unwrap();
    controller.instances.put(neighbour.clone()).unwrap();
    let key = neighbour.key.as_ref().unwrap();
    let info = controller.instance_state(key, TrackedState::Ready).await;
    let other = info.runtime_info.clone().unwrap().container_ids[0].clone();
    for (from, to) in [(&id, "neighbour"), (&id, other.as_str()), (&other, "hello")] {
        assert!(answers(found(from, to).await), "{from} asks {to}");
    }

    controller.instances.remove(&neighbour).unwrap();
    wait_for("the name to go", || async {
        let hosts = place.directory.path().join("hosts.d");
        let files = std::fs::read_dir(hosts).unwrap().flatten();
        let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
        texts.collect::<String>().matches("neighbour").next().is_none().then_some(())
    })
    .await;
    assert_eq!(found(&id, "neighbour").await, None, "it is gone");
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

fn disk(sample: &Metric) -> Option<u64> {
    let value = sample.vals.iter().find(|value| value.name == "disk")?;
    match value.value.as_ref()? {
        metric_val::Value::Ival(bytes) => Some(*bytes),
        metric_val::Value::Dval(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_holds_what_its_flavors_disk_holds() {
    if !can_run() || !has_program("mkfs.ext4") {
        return;
    }
    let place = TestCloudlet::new("disk", 179);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let runtime = running.runtime.as_ref();
    let id = runtime.list("selvage").await.unwrap()[0].runtime_id.clone();
    assert_eq!(loop_devices(place.directory.path()).len(), 1);
    // Room that is taken without a byte written: the flavor has 1 GiB.
    let (printed, code) = busybox(runtime, &id, &["fallocate", "-l", "1045M", "/more"]).await;
    assert_ne!(code, 0, "it takes more than the flavor has");
    assert!(printed.contains("No space left on device"), "{printed}");
    busybox(runtime, &id, &["rm", "-f", "/more"]).await;
    assert_eq!(busybox(runtime, &id, &["fallocate", "-l", "1000M", "/much"]).await.1, 0);
    let mut sample = None;
    while sample.as_ref().and_then(disk).is_none_or(|held| held < 1000 << 20) {
        sample = Some(controller.sample("crm-appinst", &sample).await);
    }
    assert!(sample.as_ref().and_then(disk) < Some(1030 << 20), "{sample:?}");

    let found = runtime.inspect("selvage", &id).await.unwrap();
    runtime.signal("selvage", &id, 9).await.unwrap();
    wait_for("another process", || async {
        runtime.inspect("selvage", &id).await.ok()?.pid.filter(|pid| Some(*pid) != found.pid)
    })
    .await;
    assert_eq!(busybox(runtime, &id, &["test", "-s", "/much"]).await.1, 0, "a restart keeps it");
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_container_does_not_run_is_not_healthy() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("down", 246);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let runtime = running.runtime.as_ref();
    let id = runtime.list("selvage").await.unwrap()[0].runtime_id.clone();
    let unhealthy_reason = || {
        let info = controller.instance_infos.find(&place.instance_key()).unwrap();
        info.runtime_info.clone().unwrap_or_default().unhealthy
    };
    runtime.stop("selvage", &id, Duration::from_secs(1)).await.unwrap();
    wait_for("what is wrong", || async {
        unhealthy_reason().starts_with("the container ended").then_some(())
    })
    .await;
    assert_eq!(running.crm.status().unhealthy, 1);
    runtime.start("selvage", &id).await.unwrap();
    wait_for("its health", || async { unhealthy_reason().is_empty().then_some(()) }).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_go_when_nothing_has_used_them_for_long() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("unused", 247);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let notes = place.directory.path().join("images.json");
    let long_ago = || {
        let text = std::fs::read(&notes).unwrap();
        let mut noted: std::collections::BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&text).unwrap();
        assert_eq!(noted.len(), 1, "{noted:?}");
        for note in noted.values_mut() {
            let used = note["used"].as_u64().unwrap();
            note["used"] = (used - 8 * 24 * 3600).into();
        }
        std::fs::write(&notes, serde_json::to_vec(&noted).unwrap()).unwrap();
    };
    running.stop().await;
    long_ago();
    let running = place.start(controller.address).await;
    assert_eq!(running.runtime.images("selvage").await.unwrap().len(), 1, "one that is used");
    // What it has not reported yet would count as gone already.
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    controller.unmake(&place).await;
    wait_for("the container's end", || async {
        running.runtime.list("selvage").await.unwrap().is_empty().then_some(())
    })
    .await;
    running.stop().await;
    let running = place.start(controller.address).await;
    assert_eq!(running.runtime.images("selvage").await.unwrap().len(), 1, "used a moment ago");
    running.stop().await;
    long_ago();
    let running = place.start(controller.address).await;
    wait_for("the image's end", || async {
        running.runtime.images("selvage").await.unwrap().is_empty().then_some(())
    })
    .await;
    let left = std::fs::read_dir(place.directory.path().join("containers/layers")).unwrap();
    assert_eq!(left.count(), 0, "and what it was made of");
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
