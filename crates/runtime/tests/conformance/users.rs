//! Containers with users of their own: as whom their programs run outside, and
//! that images, volumes and files of apps are inside as they always were.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use futures::StreamExt;
use selvage_api::Code;
use selvage_runtime::{
    ContainerSpec, Limits, LogOptions, Mount, Network, Restart, Runtime, Users, containerd, oci,
};

use crate::{
    GRACE, NAMESPACE, argv, code_of,
    oci::oci_options,
    output,
    real::{self, wait_for},
    spec,
};

/// Below this are users of systemd, shadow and virtual machines.
const FIRST: u32 = 0x7100_0000;

fn own(id: &str, directory: &Path, network: Network) -> ContainerSpec {
    let mount = |source: &str, target: &str, read_only| Mount {
        source: directory.join(source),
        target: target.into(),
        read_only,
    };
    let mounts = vec![mount("volume", "/data", false), mount("config", "/etc/config", true)];
    // On a disk of its own, too.
    let limits = Limits { disk_bytes: Some(64 << 20), ..Limits::default() };
    ContainerSpec { users: Users::Own, mounts, network, limits, ..spec(id, &[]) }
}

async fn says(runtime: &dyn Runtime, id: &str, line: &str) -> String {
    let ran = runtime.exec(NAMESPACE, id, argv(&["/bin/sh", "-c", line])).await.unwrap();
    let (out, err, code) = output(ran).await;
    assert_eq!(code, 0, "{line}: {out}{err}");
    out.trim().to_owned()
}

/// User of a container's first process, as this machine sees it.
async fn user(runtime: &dyn Runtime, id: &str) -> u32 {
    let pid = runtime.inspect(NAMESPACE, id).await.unwrap().pid.unwrap();
    let ours = fs::read_link("/proc/self/ns/user").unwrap();
    assert_ne!(fs::read_link(format!("/proc/{pid}/ns/user")).unwrap(), ours);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let users: Vec<u32> = users.split_whitespace().map(|user| user.parse().unwrap()).collect();
    assert!(users.iter().all(|user| *user == users[0]), "{users:?}");
    users[0]
}

/// A network namespace that somebody made, as the crm does.
struct MadeNetwork(String);

impl MadeNetwork {
    fn new(name: &str) -> Self {
        let made = Command::new("ip").args(["netns", "add", name]).status().unwrap();
        assert!(made.success());
        Self(name.to_owned())
    }
}

impl Drop for MadeNetwork {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_of_a_container_is_nobody_outside() {
    if !real::can_run(&["crun", "ip", "unshare"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::create_dir(directory.join("volume")).unwrap();
    fs::write(directory.join("config"), "configured").unwrap();
    // As a file of root's that nobody else may read.
    fs::set_permissions(
        directory.join("config"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let runtime = oci::Oci::open(oci_options(directory, "crun")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    let network = MadeNetwork::new("selvage-users");
    let joined = Network::Path(Path::new("/run/netns").join(&network.0));
    for (id, network) in [("u1", joined), ("u2", Network::None)] {
        runtime.create(NAMESPACE, own(id, directory, network)).await.unwrap();
        runtime.start(NAMESPACE, id).await.unwrap();
    }
    let (one, other) = (user(&runtime, "u1").await, user(&runtime, "u2").await);
    assert!(one >= FIRST && other >= FIRST && one != other, "{one} {other}");

    for id in ["u1", "u2"] {
        assert_eq!(says(&runtime, id, "busybox id -u; busybox id -g").await, "0\n0");
        let owner = says(&runtime, id, "busybox stat -c %u:%g / /bin/sh /etc/config").await;
        assert_eq!(owner, "0:0\n0:0\n0:0", "{id}");
        assert_eq!(says(&runtime, id, "cat /etc/config").await, "configured");
        assert_eq!(says(&runtime, id, "busybox ls /sys/class/net").await, "lo");
        let port = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start";
        assert_eq!(says(&runtime, id, port).await, "0");
        says(&runtime, id, "echo kept > /kept; busybox chown 7:7 /kept").await;
        says(&runtime, id, "echo word > /proc/1/fd/1").await;
        let tail = LogOptions { tail: Some(1), ..LogOptions::default() };
        let mut log = runtime.logs(NAMESPACE, id, tail).await.unwrap();
        assert_eq!(log.next().await.unwrap().unwrap(), "word\n");
    }
    // A volume has the users of those who write to it, whoever they are outside.
    says(&runtime, "u1", "echo x > /data/file; busybox chown 7:8 /data/file").await;
    let found = fs::metadata(directory.join("volume/file")).unwrap();
    assert_eq!((found.uid(), found.gid()), (7, 8));
    assert_eq!(says(&runtime, "u2", "busybox stat -c %u:%g /data/file").await, "7:8");

    runtime.restart(NAMESPACE, "u1", Restart::Full { grace: GRACE }).await.unwrap();
    assert_eq!(user(&runtime, "u1").await, one);
    assert_eq!(says(&runtime, "u1", "cat /kept; busybox stat -c %u /kept").await, "kept\n7");
    // Those that are there are not given to a new one by another of us.
    drop(runtime);
    let runtime =
        wait_for("the runtime", async || oci::Oci::open(oci_options(directory, "crun")).await.ok())
            .await;
    runtime.create(NAMESPACE, own("u3", directory, Network::None)).await.unwrap();
    runtime.start(NAMESPACE, "u3").await.unwrap();
    assert!(![one, other].contains(&user(&runtime, "u3").await));
    for id in ["u1", "u2", "u3"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let left = [&directory.display().to_string(), "selvage-stage"];
    assert!(!left.iter().any(|left| mounts.contains(*left)), "a mount was left: {mounts}");
}

/// One that must have users of its own is not made, and one that may has the
/// machine's.
#[tokio::test(flavor = "multi_thread")]
async fn runc_gives_no_users_of_its_own() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let runtime = oci::Oci::open(oci_options(directory, "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    let must = ContainerSpec { users: Users::Own, ..spec("u1", &[]) };
    let refused = runtime.create(NAMESPACE, must).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.to_string().contains("install crun"), "{refused}");
    let may = ContainerSpec { users: Users::OwnIfPossible, ..spec("u2", &[]) };
    runtime.create(NAMESPACE, may).await.unwrap();
    runtime.start(NAMESPACE, "u2").await.unwrap();
    let pid = runtime.inspect(NAMESPACE, "u2").await.unwrap().pid.unwrap();
    let ours = fs::read_link("/proc/self/ns/user").unwrap();
    assert_eq!(fs::read_link(format!("/proc/{pid}/ns/user")).unwrap(), ours);
    runtime.delete(NAMESPACE, "u2", true).await.unwrap();
}

#[tokio::test]
async fn containerd_makes_no_container_that_must_have_users_of_its_own() {
    let Some(containerd) = real::Containerd::start() else { return };
    let runtime = containerd::Containerd::new(containerd::Options::new(containerd.socket()));
    let directory = tempfile::tempdir().unwrap();
    let made = runtime.create(NAMESPACE, own("u1", directory.path(), Network::None));
    assert_eq!(code_of(made).await, Code::InvalidArgument);
}
