//! Clusters: a size, a way out, an address, volumes; and a
//! command that is words and nothing else.

use std::net::{IpAddr, Ipv4Addr};

use selvage_api::edgeproto::{FlavorKey, TrackedState};
use selvage_runtime::cgroup::Mounts;

use crate::support::{
    ANSWER, OtherMachine, TestCloudlet, TestController, can_run, fetch, wait_for,
};

/// Limits of memory, as the kernel has them, of the groups that a process is
/// in, its own first.
fn memory_limits(pid: u32) -> Vec<u64> {
    let mounts = Mounts::read().unwrap();
    let unified = mounts.is_unified();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let wanted = if unified { "" } else { "memory" };
        controllers.split(',').any(|name| name == wanted).then(|| path.to_owned())
    });
    let own = std::path::PathBuf::from(own.unwrap());
    let read = |path: &std::path::Path| {
        let path = path.to_str()?;
        let (group, file) = if unified {
            (mounts.groups(path).first()?.clone(), "memory.max")
        } else {
            (mounts.group_of("memory", path)?, "memory.limit_in_bytes")
        };
        std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    };
    own.ancestors().filter_map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_bounds_its_instances_together_and_grows_with_its_nodes() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("size", 241);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let pid = running.runtime.list("selvage").await.unwrap()[0].pid.unwrap();
    // An instance of the flavor in a cluster of one node of it.
    assert_eq!(memory_limits(pid)[..2], [64 << 20, 64 << 20]);

    let mut cluster = place.cluster(TrackedState::UpdateRequested);
    cluster.num_nodes = 3;
    controller.clusters.put(cluster).unwrap();
    wait_for("the larger cluster", || async {
        (memory_limits(pid)[..2] == [64 << 20, 192 << 20]).then_some(())
    })
    .await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_reach_other_machines_and_the_rules_go_with_the_last_cluster() {
    if !can_run() {
        return;
    }
    let outside = OtherMachine::new(242);
    let mut place = TestCloudlet::new("outside", 242);
    std::fs::write(place.directory.path().join("word"), "from outside").unwrap();
    let mut server = outside.serve(place.directory.path());
    // It asks until somebody answers, and then shows what it was told.
    place.command = format!(
        "/bin/sh -c 'until wget -q -O /www/index.html http://{}:8099/word; do sleep 0.1; done; \
         exec httpd -f -p 8080 -h /www'",
        outside.beyond()
    );
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let answer = wait_for("what it was told", || async {
        fetch(place.public()).await.filter(|answer| !answer.contains(ANSWER))
    })
    .await;
    assert!(answer.contains("from outside"), "{answer}");
    assert_eq!(place.tables().len(), 2, "one of IPv4 and one of IPv6");
    server.kill().unwrap();
    server.wait().unwrap();
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_its_own_is_put_on_the_machine_and_taken_away() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("address", 243);
    let own = Ipv4Addr::new(198, 51, 100, 43);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(&place);
    let mut cluster = place.cluster(TrackedState::CreateRequested);
    cluster.allocated_ip = own.to_string();
    controller.clusters.put(cluster.clone()).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    assert_eq!(info.runtime_info.clone().unwrap().addresses, [own.to_string()]);
    let answer = fetch((IpAddr::V4(own), 80).into()).await.unwrap();
    assert!(answer.contains(ANSWER), "{answer}");
    controller.unmake(&place).await;
    assert!(std::net::UdpSocket::bind((own, 0)).is_err(), "the address is still there");
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_full_of_metacharacters_reaches_only_the_container() {
    if !can_run() {
        return;
    }
    let mut place = TestCloudlet::new("words", 244);
    let canary = place.directory.path().join("canary");
    let nasty = format!(
        "; touch {0} | touch {0} & $(touch {0}) `touch {0}` > {0} < /etc/passwd * ? ~ $HOME \\\\n #",
        canary.display()
    );
    // One word to echo, however many a shell would see; then the server.
    place.command = format!(
        "/bin/sh -c 'echo \"$1\" > /www/index.html; exec httpd -f -p 8080 -h /www' sh '{nasty}'"
    );
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let answer = fetch(place.public()).await.unwrap();
    assert!(answer.contains("; touch ") && answer.contains("$HOME"), "{answer}");
    assert!(!canary.exists());
    controller.unmake(&place).await;

    place.command = "/bin/echo 'never closed".into();
    controller.furnish(&place);
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    assert!(info.errors[0].contains("command: has a quote that is not closed"), "{info:?}");
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_without_a_volume_service_are_refused_with_a_sentence() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("novolume", 245);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(&place);
    let mut app = place.app();
    app.annotations = "volume.data=1:/data".into();
    controller.apps.put(app).unwrap();
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    let mut instance = place.instance(TrackedState::CreateRequested);
    instance.flavor = Some(FlavorKey { name: "small".into() });
    controller.instances.put(instance).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    assert!(info.errors[0].contains("no lvmd answers at "), "{info:?}");
    assert!(!place.directory.path().join("volumes").exists());
    let failed = wait_for("its reconciler to show the failure", || async {
        running.reconcilers.list().into_iter().find(|one| one.failures > 0)
    })
    .await;
    assert_eq!(failed.name, "crm: instances");
    assert!(failed.last_error.unwrap().contains("no lvmd answers at "));
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
