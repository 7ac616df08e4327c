//! Containers with a disk of a size, without a daemon.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use rustix::mount::UnmountFlags;
use selvage_api::Code;
use selvage_runtime::{ContainerSpec, Limits, Restart, Runtime, oci};

use crate::{
    GRACE, NAMESPACE, TEST_TIMEOUT, argv, code_of,
    oci::oci_options,
    output,
    real::{self, wait_for},
    spec,
};

const LIMIT: u64 = 64 << 20;
/// Bytes by which file systems may differ in what they have to themselves.
const NEARLY: u64 = LIMIT / 50;

fn limited(id: &str) -> ContainerSpec {
    let limits = Limits { disk_bytes: Some(LIMIT), ..Limits::default() };
    ContainerSpec { limits, ..spec(id, &["/bin/sleep", "3600"]) }
}

async fn run(runtime: &dyn Runtime, id: &str, script: &str) -> (String, String, i32) {
    let ran = runtime.exec(NAMESPACE, id, argv(&["/bin/sh", "-c", script])).await;
    output(ran.unwrap()).await
}

fn home(directory: &Path) -> PathBuf {
    directory.join("root/containers").join(NAMESPACE)
}

fn mounts(directory: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let directory = directory.display().to_string();
    mounts.lines().filter(|line| line.contains(&directory)).map(str::to_owned).collect()
}

/// A mount that is gone may be kept for a moment by what starts just then.
async fn nothing_is_left(directory: &Path) {
    assert_eq!(mounts(directory), Vec::<String>::new());
    wait_for("loop devices to go", async || real::loop_devices(directory).is_empty().then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_writes_ends_with_its_disk() {
    if !real::can_run(&["runc", "crun", "mkfs.ext4"]) {
        return;
    }
    for program in ["runc", "crun"] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let runtime = oci::Oci::open(oci_options(directory, program)).await.unwrap();
        runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
        runtime.create(NAMESPACE, limited("d1")).await.unwrap();
        runtime.start(NAMESPACE, "d1").await.unwrap();
        assert_eq!(real::loop_devices(directory).len(), 1);
        let empty = runtime.disk(NAMESPACE, "d1").await.unwrap().unwrap();
        assert!(empty < NEARLY, "{empty} bytes of nothing");

        let keep = "busybox mkdir -p /var && echo kept > /var/file";
        assert_eq!(run(&runtime, "d1", keep).await.2, 0);
        let fill = "dd if=/dev/zero of=/fill bs=65536";
        let (_, printed, code) = run(&runtime, "d1", fill).await;
        assert_ne!(code, 0, "{program}: all went in");
        assert!(printed.contains("No space left on device"), "{printed}");
        let (size, _, _) = run(&runtime, "d1", "busybox stat -c %s /fill").await;
        let size: u64 = size.trim().parse().unwrap();
        assert!(size.abs_diff(LIMIT) < NEARLY, "{program}: {size} bytes went in");
        let held = runtime.disk(NAMESPACE, "d1").await.unwrap().unwrap();
        assert!(held.abs_diff(LIMIT) < NEARLY, "{program}: {held} bytes are said to be in");

        runtime.restart(NAMESPACE, "d1", Restart::Full { grace: GRACE }).await.unwrap();
        let read = run(&runtime, "d1", "cat /var/file; busybox rm /fill; echo more > /more").await;
        assert_eq!(read, ("kept\n".into(), String::new(), 0), "{program}: after a restart");
        let image = home(directory).join("d1/disk.img");
        wait_for("the machine to have its room back", async || {
            let taken = fs::metadata(&image).unwrap().blocks() * 512;
            (taken < LIMIT / 8).then_some(())
        })
        .await;
        runtime.delete(NAMESPACE, "d1", true).await.unwrap();
        nothing_is_left(directory).await;
        assert!(!image.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_disk_is_no_other_containers() {
    if !real::can_run(&["runc", "mkfs.ext4"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = oci::Oci::open(oci_options(directory.path(), "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    let mut free = limited("free");
    free.limits.disk_bytes = None;
    for made in [limited("full"), limited("other"), free] {
        let id = made.id.clone();
        runtime.create(NAMESPACE, made).await.unwrap();
        runtime.start(NAMESPACE, &id).await.unwrap();
    }
    assert_ne!(run(&runtime, "full", "dd if=/dev/zero of=/fill bs=65536").await.2, 0);
    let more = format!("dd if=/dev/zero of=/fill bs=1048576 count={}", (LIMIT >> 20) + 8);
    assert_eq!(run(&runtime, "free", &more).await.2, 0, "it has no limit");
    assert_eq!(runtime.disk(NAMESPACE, "free").await.unwrap(), None);
    assert_eq!(run(&runtime, "other", "echo x > /x && cat /x").await.0, "x\n");
    assert_eq!(run(&runtime, "full", "cat /etc/passwd").await.2, 0, "it can be read");
    let more = "dd if=/dev/zero of=/more bs=1048576 count=1";
    assert_eq!(run(&runtime, "full", more).await.2, 1, "and not written");
    let mut small = limited("small");
    small.limits.disk_bytes = Some(1);
    assert_eq!(code_of(runtime.create(NAMESPACE, small)).await, Code::InvalidArgument);
    for id in ["full", "other", "free"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
    nothing_is_left(directory.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_there_again_when_the_machine_was_started_anew() {
    if !real::can_run(&["runc", "mkfs.ext4"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let runtime = oci::Oci::open(oci_options(directory, "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    runtime.create(NAMESPACE, limited("b1")).await.unwrap();
    runtime.start(NAMESPACE, "b1").await.unwrap();
    assert_eq!(run(&runtime, "b1", "echo kept > /file").await.2, 0);
    runtime.stop(NAMESPACE, "b1", GRACE).await.unwrap();
    drop(runtime);
    let container = home(directory).join("b1");
    for place in ["rootfs", "disk"] {
        rustix::mount::unmount(container.join(place), UnmountFlags::empty()).unwrap();
    }
    nothing_is_left(directory).await;
    fs::write(container.join("disk.boot"), "another").unwrap();

    let open = async || oci::Oci::open(oci_options(directory, "runc")).await.ok();
    let runtime = wait_for("the directory", open).await;
    assert_eq!(runtime.disk(NAMESPACE, "b1").await.unwrap(), None, "it is not mounted");
    runtime.start(NAMESPACE, "b1").await.unwrap();
    assert_eq!(run(&runtime, "b1", "cat /file").await.0, "kept\n");
    assert_ne!(run(&runtime, "b1", "dd if=/dev/zero of=/fill bs=65536").await.2, 0, "no limit");
    runtime.delete(NAMESPACE, "b1", true).await.unwrap();
    nothing_is_left(directory).await;
}

const DIRECTORY: &str = "SELVAGE_TEST_DISK_DIRECTORY";

/// This program, with one of its tests that is none, in that directory.
fn agent(of: &mut Command, name: &str, directory: &Path) -> Child {
    let words = [name, "--exact", "--nocapture"];
    of.args(words).env(DIRECTORY, directory).stdout(Stdio::null()).stderr(Stdio::null());
    of.spawn().unwrap()
}

/// Not a test of its own: the agent that the next one kills.
#[tokio::test(flavor = "multi_thread")]
async fn agent_that_makes_and_removes() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = oci::Oci::open(oci_options(Path::new(&directory), "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(Path::new(&directory)), None).await.unwrap();
    loop {
        runtime.create(NAMESPACE, limited("k1")).await.unwrap();
        runtime.delete(NAMESPACE, "k1", true).await.unwrap();
    }
}

fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    device(path).is_some_and(|here| path.parent().and_then(device) != Some(here))
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_we_are_killed_nothing_stays_of_a_disk() {
    if !real::can_run(&["runc", "mkfs.ext4"]) {
        return;
    }
    type Step = (&'static str, fn(&Path) -> bool);
    const STEPS: [Step; 6] = [
        ("its directory", |at| at.exists()),
        ("its disk's file", |at| at.join("disk.img").exists()),
        ("its disk's place", |at| at.join("disk").exists()),
        ("its disk", |at| is_mount_point(&at.join("disk"))),
        ("its root", |at| is_mount_point(&at.join("rootfs"))),
        ("its record", |at| at.join("record.json").exists()),
    ];
    for (what, reached) in STEPS {
        let directory = tempfile::tempdir().unwrap();
        let (directory, at) = (directory.path(), home(directory.path()).join("k1"));
        let mut program = Command::new(std::env::current_exe().unwrap());
        let mut agent = agent(&mut program, "disk::agent_that_makes_and_removes", directory);
        let until = Instant::now() + TEST_TIMEOUT;
        while !reached(&at) {
            assert!(Instant::now() < until, "it never got to {what}");
        }
        agent.kill().unwrap();
        agent.wait().unwrap();

        let runtime = oci::Oci::open(oci_options(directory, "runc")).await.unwrap();
        let known = runtime.list(NAMESPACE).await.unwrap().len();
        assert_eq!(at.exists(), known == 1, "{what}");
        wait_for("as many devices as disks", async || {
            (real::loop_devices(directory).len() == known).then_some(())
        })
        .await;
        if known == 1 {
            runtime.delete(NAMESPACE, "k1", true).await.unwrap();
        }
        runtime.create(NAMESPACE, limited("k1")).await.unwrap();
        runtime.delete(NAMESPACE, "k1", true).await.unwrap();
        nothing_is_left(directory).await;
    }
}

/// Not a test of its own: runs where no file system can be made.
#[tokio::test(flavor = "multi_thread")]
async fn agent_without_disks() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let runtime = oci::Oci::open(oci_options(directory, "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    for id in ["w1", "w2"] {
        runtime.create(NAMESPACE, limited(id)).await.unwrap();
        runtime.start(NAMESPACE, id).await.unwrap();
        assert_eq!(runtime.disk(NAMESPACE, id).await.unwrap(), None);
        let more = format!("dd if=/dev/zero of=/fill bs=1048576 count={}", (LIMIT >> 20) + 8);
        assert_eq!(run(&runtime, id, &more).await.2, 0, "it has no limit");
        assert!(!home(directory).join(id).join("disk.img").exists());
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
    fs::write(directory.join("done"), "").unwrap();
}

#[test]
fn a_machine_that_has_no_disks_runs_containers_without_a_limit() {
    if !real::can_run(&["runc", "mkfs.ext4"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Nobody else sees what is done there.
    let script = "mount --bind /dev/null \"$0\" && exec \"$@\"";
    let mut program = Command::new("unshare");
    program.args(["--mount", "sh", "-c", script]);
    program.arg(real::find("mkfs.ext4").unwrap()).arg(std::env::current_exe().unwrap());
    let ended = agent(&mut program, "disk::agent_without_disks", directory.path()).wait().unwrap();
    assert!(ended.success() && directory.path().join("done").exists());
}
