//! Faults around a cloudlet, one at a time: afterwards all is
//! as it should be, and nothing is left over.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use selvage_api::edgeproto::{AppInstInfo, TrackedState};
use selvage_runtime::{Runtime, containerd};

use crate::real;
use crate::support::{ANSWER, Running, TestCloudlet, TestController, can_run, fetch, wait_for};

/// Wants an instance that cannot be made, and what is said about it.
async fn refusal(controller: &TestController, place: &TestCloudlet) -> String {
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    let text = AppInstInfo::clone(&info).errors.remove(0);
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the report's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    controller.instances.remove(&place.instance(TrackedState::Ready)).unwrap();
    text
}

async fn with_a_cluster(place: &TestCloudlet) -> (TestController, Running) {
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(place);
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    (controller, running)
}

async fn answers(place: &TestCloudlet) {
    let answer = wait_for("an answer", || fetch(place.public())).await;
    assert!(answer.contains(ANSWER), "{answer}");
}

async fn goes(place: &TestCloudlet, controller: &TestController, running: Running) {
    controller.unmake(place).await;
    assert!(running.runtime.list("selvage").await.unwrap().is_empty());
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

async fn pid(running: &Running) -> Option<u32> {
    running.runtime.list("selvage").await.unwrap().first()?.pid
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_somebody_else_has_is_named_and_may_be_had_later() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("port", 184);
    let (controller, running) = with_a_cluster(&place).await;
    let taken = std::net::TcpListener::bind(place.public()).unwrap();
    let text = refusal(&controller, &place).await;
    assert!(text.starts_with("Create App Inst failed: "), "{text}");
    assert!(text.contains("tcp port 80 is taken"), "{text}");
    assert!(running.runtime.list("selvage").await.unwrap().is_empty());
    drop(taken);
    controller.make(&place).await;
    answers(&place).await;
    goes(&place, &controller, running).await;
}

/// A file system of a few megabytes.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let options = std::ffi::CString::new("size=8m,mode=700").unwrap();
        mount("small", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Self(at.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_to_be_full_and_nothing_half_made_stays() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("full", 232);
    let folder = place.directory.path().join("containers");
    let small = Small::mount(&folder);
    let (controller, running) = with_a_cluster(&place).await;
    let ballast = folder.join("ballast");
    // Until nothing more goes in.
    let error = std::fs::write(&ballast, vec![1; 16 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let text = refusal(&controller, &place).await;
    assert!(text.contains("No space left on device"), "{text}");
    assert!(running.runtime.list("selvage").await.unwrap().is_empty());
    std::fs::remove_file(&ballast).unwrap();
    controller.make(&place).await;
    answers(&place).await;
    controller.unmake(&place).await;
    running.stop().await;
    drop(small);
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_controller_everything_runs_on_and_comes_back() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("alone", 233);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let address = controller.address;
    drop(controller);

    let before = pid(&running).await.unwrap();
    kill(before);
    let after =
        wait_for("another process", || async { pid(&running).await.filter(|pid| *pid != before) })
            .await;
    answers(&place).await;
    running.stop().await;

    // Nobody is there at this address any more.
    let running = place.start(address).await;
    answers(&place).await;
    assert_eq!(pid(&running).await, Some(after), "the container was left alone");
    running.stop().await;

    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(&place);
    controller.clusters.put(place.cluster(TrackedState::Ready)).unwrap();
    controller.instances.put(place.instance(TrackedState::Ready)).unwrap();
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    assert_eq!(pid(&running).await, Some(after), "and is still the same");
    goes(&place, &controller, running).await;
}

/// A container that ends by itself and is started again is told, with why; when
/// it does so again and again it is not healthy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_are_reported_and_a_crash_loop_is_unhealthy() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("loop", 181);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let answered = || controller.instance_infos.find(&place.instance_key())?.runtime_info.clone();
    assert_eq!(
        answered().map(|answered| (answered.restarts, answered.last_reason)),
        Some((0, String::new()))
    );
    let mut before = pid(&running).await.unwrap();
    for round in 1..=3 {
        kill(before);
        before = wait_for("another process", || async {
            pid(&running).await.filter(|pid| *pid != before)
        })
        .await;
        let answered = wait_for("its restart", || async {
            answered()
                .filter(|answered| answered.restarts == round && !answered.last_reason.is_empty())
        })
        .await;
        assert!(answered.last_reason.starts_with("ended with code 137 (killed)"), "{answered:?}");
        assert!(
            answered.last_reason.ends_with(": started"),
            "the last line of its log: {answered:?}"
        );
    }
    let answered = wait_for("that it is not healthy", || async {
        answered().filter(|answered| answered.unhealthy.contains("started again 3 times"))
    })
    .await;
    assert!(answered.unhealthy.ends_with("it ended with code 137 (killed)"), "{answered:?}");
    goes(&place, &controller, running).await;
}

/// An end for want of memory is told as such, which the exit code alone does not tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_over_its_limit_is_said_to_be_out_of_memory() {
    if !can_run() {
        return;
    }
    let mut place = TestCloudlet::new("memory", 185);
    place.command =
        "/bin/sh -c 'echo growing; x=0123456789abcdef; while :; do x=$x$x; done'".into();
    let (controller, running) = with_a_cluster(&place).await;
    let text = refusal(&controller, &place).await;
    assert!(text.contains("ended with code 137 (out of memory): growing"), "{text}");
    goes(&place, &controller, running).await;
}

/// Whoever waits for an instance is told that it runs and does not listen yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_does_not_listen_yet_is_told_of() {
    if !can_run() {
        return;
    }
    let mut place = TestCloudlet::new("late", 187);
    place.command = "/bin/sh -c 'sleep 4; exec httpd -f -p 8080 -h /www'".into();
    let (controller, running) = with_a_cluster(&place).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let key = place.instance_key();
    let told = wait_for("what is waited for", || async {
        controller.instance_infos.find(&key).filter(|info| !info.progress.is_empty())
    })
    .await;
    assert_eq!(told.state(), TrackedState::Creating);
    assert!(told.progress.contains("take connections on port 8080"), "{}", told.progress);
    let ready = controller.instance_state(&key, TrackedState::Ready).await;
    assert_eq!(ready.progress, "");
    goes(&place, &controller, running).await;
}

fn ip(arguments: &[&str]) -> String {
    output(std::process::Command::new("ip").args(arguments))
}

/// Runs `ip` in the namespace of an instance, which that program has no name for.
fn ip_inside(namespace: &str, arguments: &[&str]) -> String {
    let folder = selvage_crm::platform::network::namespaces::FOLDER;
    let mut command = std::process::Command::new("nsenter");
    output(command.arg(format!("--net={folder}/{namespace}")).arg("ip").args(arguments))
}

fn output(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The bridge of a cloudlet with one cluster, and the cable of its one instance.
fn bridge_and_cable(place: &TestCloudlet) -> (String, String) {
    let bridges = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    let cables = bridges.replacen("slv", "slw", 1);
    let links = ip(&["-o", "link"]);
    let names = links.lines().filter_map(|line| line.split([':', '@', ' ']).nth(2));
    let named = |with: &str| names.clone().find(|name| name.starts_with(with)).unwrap().to_owned();
    (named(&bridges), named(&cables))
}

/// The namespace of a cloudlet's one instance.
fn namespace(place: &TestCloudlet) -> String {
    let site = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    let begins = site.replacen("slv", "slv-", 1) + "-";
    let all =
        std::fs::read_dir(selvage_crm::platform::network::namespaces::FOLDER).unwrap().flatten();
    let mut names = all.map(|entry| entry.file_name().into_string().unwrap());
    names.find(|name| name.starts_with(&begins)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_loses_parts_is_repaired_while_apps_run() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("bridge", 239);
    let (controller, running) = with_a_cluster(&place).await;
    controller.make(&place).await;
    let before = pid(&running).await;
    let (bridge, cable) = bridge_and_cable(&place);
    ip(&["link", "del", &bridge]);
    answers(&place).await;
    assert_eq!(pid(&running).await, before, "the container was left alone");
    running.stop().await;

    // As one leaves it that dies between making and connecting it.
    ip(&["link", "set", &cable, "nomaster", "down"]);
    let inside = namespace(&place);
    ip_inside(&inside, &["addr", "flush", "dev", "eth0"]);
    ip_inside(&inside, &["link", "set", "eth0", "down"]);
    wait_for("the end of what was reported", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    let running = place.start(controller.address).await;
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    answers(&place).await;
    assert!(ip_inside(&inside, &["route"]).contains("default via"), "there is a way out");
    assert_eq!(pid(&running).await, before, "the container was left alone");
    goes(&place, &controller, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_stays_while_the_controller_has_not_heard_of_it() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("slow", 198);
    let (controller, running) = with_a_cluster(&place).await;
    controller.clusters.put(place.cluster(TrackedState::Ready)).unwrap();
    // It stays requested: the controller is slow to take in that it is ready.
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    let before = pid(&running).await;
    let (bridge, _) = bridge_and_cable(&place);
    for _ in 0..5 {
        ip(&["link", "del", &bridge]);
        wait_for("the bridge", || async {
            ip(&["-o", "link"]).contains(&format!(" {bridge}: ")).then_some(())
        })
        .await;
        answers(&place).await;
        assert_eq!(pid(&running).await, before, "the container was left alone");
    }
    controller.instances.put(place.instance(TrackedState::Ready)).unwrap();
    goes(&place, &controller, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_vanishes_stops_new_instances_and_no_old_one() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("vanish", 234);
    let (controller, running) = with_a_cluster(&place).await;
    controller.make(&place).await;
    let image = place.app().image_path;
    let image = image.strip_prefix("file://").unwrap();
    let kept = format!("{image}.kept");
    std::fs::rename(image, &kept).unwrap();

    let before = pid(&running).await.unwrap();
    kill(before);
    wait_for("another process", || async { pid(&running).await.filter(|pid| *pid != before) })
        .await;
    answers(&place).await;

    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    let text = refusal(&controller, &place).await;
    assert!(text.contains("hello.tar"), "{text}");
    std::fs::rename(&kept, image).unwrap();
    controller.make(&place).await;
    answers(&place).await;
    goes(&place, &controller, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_containerd_that_is_killed_takes_no_instance_with_it() {
    const NAMESPACE: &str = "selvage-crm-faults";
    if !can_run() {
        return;
    }
    let Some(mut daemon) = real::Containerd::start() else { return };
    let options = containerd::Options {
        logs: daemon.directory.path().join("logs"),
        ..containerd::Options::new(daemon.socket())
    };
    let runtime: Arc<dyn Runtime> = Arc::new(containerd::Containerd::new(options));
    wait_for("containerd", || async { runtime.version().await.ok() }).await;
    let place = TestCloudlet::new("containerd", 235);
    let controller = TestController::start().await;
    let running = place.start_on(controller.address, &runtime, NAMESPACE).await;
    controller.make(&place).await;
    let before = runtime.list(NAMESPACE).await.unwrap()[0].pid;

    daemon.kill();
    answers(&place).await;
    // Whatever is asked of it meanwhile is done when it is back.
    controller.instances.put(place.instance(TrackedState::UpdateRequested)).unwrap();
    controller.instance_state(&place.instance_key(), TrackedState::UpdateError).await;
    answers(&place).await;
    daemon.spawn();
    wait_for("containerd again", || async { runtime.version().await.ok() }).await;
    controller.instances.put(place.instance(TrackedState::Ready)).unwrap();
    answers(&place).await;
    assert_eq!(runtime.list(NAMESPACE).await.unwrap()[0].pid, before, "it was left alone");

    controller.unmake(&place).await;
    assert!(runtime.list(NAMESPACE).await.unwrap().is_empty());
    drop(runtime);
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
