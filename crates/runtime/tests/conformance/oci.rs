//! The runtime without a daemon.

use std::{fs, path::Path, sync::Arc};

use futures::StreamExt;
use selvage_api::Code;
use selvage_runtime::{
    ContainerSpec, LogOptions, Restart, RestartPolicy, Runtime, Status, cgroup, oci,
};

use crate::{
    GRACE, NAMESPACE, argv, is_alive, output,
    real::{self, wait_for},
    spec, suite,
};

/// One of its own for every test.
fn cgroup_of(directory: &Path) -> String {
    format!("/selvage-test{}", directory.file_name().unwrap().display())
}

pub(crate) fn oci_options(directory: &Path, program: &str) -> oci::Options {
    oci::Options {
        state: directory.join("state"),
        program: real::find(program),
        cgroup: cgroup_of(directory),
        ..oci::Options::new(directory.join("root"))
    }
}

async fn oci_suite(program: &str) {
    if !real::can_run(&[program]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = oci::Oci::open(oci_options(directory.path(), program)).await.unwrap();
    assert!(runtime.version().await.unwrap().contains(program));
    let second = oci::Oci::open(oci_options(directory.path(), program)).await;
    assert_eq!(second.err().unwrap().code(), Code::FailedPrecondition, "two on one directory");
    suite(Arc::new(runtime), directory.path()).await;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&directory.path().display().to_string()), "a mount was left");
    for group in cgroup::Mounts::read().unwrap().groups(&cgroup_of(directory.path())) {
        assert!(!group.exists(), "{} was left", group.display());
    }
    assert_eq!(fs::read_dir(directory.path().join("root/layers")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(directory.path().join("root/blobs/sha256")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn oci_by_runc() {
    oci_suite("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oci_by_crun() {
    oci_suite("crun").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oci_by_youki() {
    if real::find("youki").is_none() {
        // No distribution has it, and it takes minutes to build.
        return selvage_testkit::say_skipped("youki", "it is not installed");
    }
    oci_suite("youki").await;
}

/// `crun` would compile the filter of calls for every container.
#[tokio::test(flavor = "multi_thread")]
async fn oci_filter_is_compiled_once_by_crun() {
    if !real::can_run(&["crun"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = oci_options(directory.path(), "crun");
    let runtime = oci::Oci::open(options.clone()).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    let mut filters = Vec::new();
    for id in ["s1", "s2"] {
        runtime.create(NAMESPACE, spec(id, &["/bin/sleep", "3600"])).await.unwrap();
        let pid = runtime.start(NAMESPACE, id).await.unwrap().pid.unwrap();
        wait_for("it to be itself", async || crate::is_itself(pid, "sleep").then_some(())).await;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
        let kept = options.state.join(format!("{NAMESPACE}+{id}/seccomp.bpf"));
        filters.push(fs::read(kept).unwrap());
        let document = options.root.join(format!("containers/{NAMESPACE}/{id}/config.json"));
        let given = fs::read_to_string(document).unwrap().contains("run.oci.seccomp_bpf_data");
        assert_eq!(given, id == "s2", "{id}");
    }
    assert_eq!(filters[0], filters[1]);
    for id in ["s1", "s2"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
}

/// Roots, logs and variables of containers are for root's eyes only, also in a
/// directory that somebody made otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn oci_keeps_others_of_the_machine_out() {
    use std::os::unix::fs::PermissionsExt;
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = oci_options(directory.path(), "runc");
    for place in [&options.root, &options.state] {
        fs::create_dir(place).unwrap();
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let _runtime = oci::Oci::open(options.clone()).await.unwrap();
    for place in [&options.root, &options.state] {
        let mode = fs::metadata(place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", place.display());
    }
}

/// Whoever may name an image must not read the machine's files by that.
#[tokio::test(flavor = "multi_thread")]
async fn oci_says_nothing_of_what_is_in_a_file_that_is_no_image() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = oci::Oci::open(oci_options(directory.path(), "runc")).await.unwrap();
    let (file, pipe) = (directory.path().join("file"), directory.path().join("pipe"));
    fs::write(&file, "root:geheim:20000:0:99999:7:::\n".repeat(40)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    for path in [file, pipe, "/dev/zero".into()] {
        let error = runtime.import(NAMESPACE, &path, None).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.to_string().starts_with("path: is n"), "{error}");
        assert!(!error.to_string().contains("geheim"), "{error}");
    }
}

/// A program that is killed amid a step leaves a container that can be
/// started, and none that runs is harmed.
#[tokio::test(flavor = "multi_thread")]
async fn oci_program_killed_amid_a_step_harms_nothing() {
    use std::os::unix::fs::PermissionsExt;
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, fatal) = (directory.path().join("program"), directory.path().join("fatal"));
    let (runc, when) = (real::find("runc").unwrap(), fatal.display());
    let script = format!(
        "#!/bin/sh\nif [ -e {when} ]; then {} \"$@\" & sleep 0.01; kill -9 $$; fi\nexec {} \"$@\"\n",
        runc.display(),
        runc.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let options = oci::Options { program: Some(program), ..oci_options(directory.path(), "runc") };
    let runtime = oci::Oci::open(options).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    for id in ["h1", "h2"] {
        runtime.create(NAMESPACE, spec(id, &["/bin/sleep", "3600"])).await.unwrap();
    }
    let safe = runtime.start(NAMESPACE, "h1").await.unwrap().pid.unwrap();
    fs::write(&fatal, "").unwrap();
    runtime.start(NAMESPACE, "h2").await.expect_err("the program was killed");
    assert_eq!(runtime.inspect(NAMESPACE, "h2").await.unwrap().status, Status::Created);
    assert!(is_alive(safe));
    fs::remove_file(&fatal).unwrap();
    // What the killed one left behind goes on for a moment, and then is in
    // the way of nobody.
    let started = wait_for("a start", async || runtime.start(NAMESPACE, "h2").await.ok()).await;
    assert_eq!(started.status, Status::Running);
    assert!(is_alive(started.pid.unwrap()));
    assert_eq!(runtime.inspect(NAMESPACE, "h1").await.unwrap().pid, Some(safe));
    for id in ["h1", "h2"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
}

/// One that ran stays wanted when it cannot be started again, whatever its
/// policy; it runs as soon as it can, also with the next of us.
#[tokio::test(flavor = "multi_thread")]
async fn oci_restart_that_fails_is_reported_and_tried_again() {
    use std::os::unix::fs::PermissionsExt;
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, broken) = (directory.path().join("program"), directory.path().join("broken"));
    let script = format!(
        "#!/bin/sh\nif [ -e {} ]; then case \"$*\" in *' run '*) echo boom >&2; exit 1;; esac; fi\n\
         exec {} \"$@\"\n",
        broken.display(),
        real::find("runc").unwrap().display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let options = oci::Options { program: Some(program), ..oci_options(directory.path(), "runc") };
    let runtime = oci::Oci::open(options.clone()).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    let policies = [
        ("r1", RestartPolicy::Always),
        ("r2", RestartPolicy::OnFailure { most: Some(1) }),
        ("r3", RestartPolicy::Never),
    ];
    for (id, restart) in policies {
        let spec = ContainerSpec { restart, ..spec(id, &["/bin/sleep", "3600"]) };
        runtime.create(NAMESPACE, spec).await.unwrap();
        runtime.start(NAMESPACE, id).await.unwrap();
    }
    fs::write(&broken, "").unwrap();
    for (id, _) in policies {
        let how = Restart::Full { grace: GRACE };
        let error = runtime.restart(NAMESPACE, id, how).await.unwrap_err().to_string();
        assert!(error.ends_with("failed: boom"), "{error}");
        let found = runtime.inspect(NAMESPACE, id).await.unwrap();
        assert_eq!(found.status, Status::Stopped);
        assert!(found.problem.unwrap().ends_with("failed: boom"));
    }
    drop(runtime);
    let runtime =
        wait_for("the directory", async || oci::Oci::open(options.clone()).await.ok()).await;
    fs::remove_file(&broken).unwrap();
    for (id, _) in policies {
        let again = wait_for("another start", async || {
            let found = runtime.inspect(NAMESPACE, id).await.unwrap();
            found.status.is_running().then_some(found)
        })
        .await;
        assert_eq!(again.problem, None);
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
}

/// A log holds about what it may, however fast it is written.
#[tokio::test(flavor = "multi_thread")]
async fn oci_log_does_not_fill_the_disk() {
    use std::os::unix::fs::MetadataExt;
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = oci::Options { log_limit: 1 << 20, ..oci_options(directory.path(), "runc") };
    let runtime = oci::Oci::open(options).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    let zeros = ["/bin/dd", "if=/dev/zero", "bs=64k", "count=16384"];
    runtime.create(NAMESPACE, spec("z1", &zeros)).await.unwrap();
    runtime.start(NAMESPACE, "z1").await.unwrap();
    wait_for("a gigabyte", async || {
        runtime.inspect(NAMESPACE, "z1").await.unwrap().exit.map(|_| ())
    })
    .await;
    let log = directory.path().join("root/containers").join(NAMESPACE).join("z1/log");
    wait_for("a short log", async || {
        let held = fs::metadata(&log).unwrap().blocks() * 512;
        (held <= 1 << 20).then_some(())
    })
    .await;
    assert!(fs::metadata(&log).unwrap().len() >= 1 << 30);
    runtime.delete(NAMESPACE, "z1", true).await.unwrap();
}

/// A container that one program started, the next of us can end, whatever it
/// prefers.
#[tokio::test(flavor = "multi_thread")]
async fn oci_containers_of_another_program_are_ended_by_it() {
    if !real::can_run(&["runc", "crun"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let before = oci::Oci::open(oci_options(directory.path(), "runc")).await.unwrap();
    before.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    before.create(NAMESPACE, spec("o1", &["/bin/sleep", "3600"])).await.unwrap();
    let pid = before.start(NAMESPACE, "o1").await.unwrap().pid;
    drop(before);
    let after = wait_for("the directory", async || {
        oci::Oci::open(oci_options(directory.path(), "crun")).await.ok()
    })
    .await;
    assert_eq!(after.inspect(NAMESPACE, "o1").await.unwrap().pid, pid);
    let ran = after.exec(NAMESPACE, "o1", argv(&["/bin/echo", "hello"])).await.unwrap();
    assert_eq!(output(ran).await, ("hello\n".into(), String::new(), 0));
    after.stop(NAMESPACE, "o1", GRACE).await.unwrap();
    assert_eq!(fs::read_dir(directory.path().join("state")).unwrap().count(), 0);
    assert_ne!(after.start(NAMESPACE, "o1").await.unwrap().pid, pid);
    after.delete(NAMESPACE, "o1", true).await.unwrap();
    assert_eq!(fs::read_dir(directory.path().join("state")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn oci_restarts_by_policy_and_keeps_no_helper() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = oci::Oci::open(oci_options(directory.path(), "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory.path()), None).await.unwrap();
    let always =
        ContainerSpec { restart: RestartPolicy::Always, ..spec("p1", &["/bin/sleep", "3600"]) };
    runtime.create(NAMESPACE, always).await.unwrap();
    let first = runtime.start(NAMESPACE, "p1").await.unwrap().pid.unwrap();
    let stat = fs::read_to_string(format!("/proc/{first}/stat")).unwrap();
    let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(parent, std::process::id().to_string(), "nothing stands between us and it");
    runtime.signal(NAMESPACE, "p1", 9).await.unwrap();
    let again = wait_for("a restart by policy", async || {
        let found = runtime.inspect(NAMESPACE, "p1").await.unwrap();
        found.pid.filter(|pid| *pid != first).map(|_| found)
    })
    .await;
    assert_eq!(again.restarts, 1);
    assert!(again.supervised);
    runtime.stop(NAMESPACE, "p1", GRACE).await.unwrap();
    let most = RestartPolicy::OnFailure { most: Some(2) };
    let failing = ContainerSpec { restart: most, ..spec("p2", &["/bin/sh", "-c", "exit 3"]) };
    runtime.create(NAMESPACE, failing).await.unwrap();
    runtime.start(NAMESPACE, "p2").await.unwrap();
    wait_for("the last restart", async || {
        let found = runtime.inspect(NAMESPACE, "p2").await.unwrap();
        (found.restarts == 2 && found.exit.is_some_and(|exit| exit.code == Some(3))).then_some(())
    })
    .await;
    assert_eq!(runtime.inspect(NAMESPACE, "p1").await.unwrap().status, Status::Stopped);
    for id in ["p1", "p2"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
}

const AGENT_DIRECTORY: &str = "SELVAGE_TEST_AGENT_DIRECTORY";

/// Not a test of its own: the agent that the next one kills.
#[tokio::test(flavor = "multi_thread")]
async fn agent_to_be_killed() {
    let Some(directory) = std::env::var_os(AGENT_DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let runtime = oci::Oci::open(oci_options(directory, "runc")).await.unwrap();
    runtime.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    let script = "i=0; while :; do i=$((i+1)); echo beat $i; sleep 0.05; done";
    let beating =
        ContainerSpec { restart: RestartPolicy::Always, ..spec("k1", &["/bin/sh", "-c", script]) };
    runtime.create(NAMESPACE, beating).await.unwrap();
    let pid = runtime.start(NAMESPACE, "k1").await.unwrap().pid.unwrap();
    fs::write(directory.join("pid.new"), pid.to_string()).unwrap();
    fs::rename(directory.join("pid.new"), directory.join("pid")).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oci_containers_outlive_the_agent_and_are_found_again() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "oci::agent_to_be_killed"])
        .env(AGENT_DIRECTORY, directory.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid: u32 = wait_for("the agent", async || {
        fs::read_to_string(directory.path().join("pid")).ok()?.parse().ok()
    })
    .await;
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(is_alive(pid), "it went with the agent");

    let runtime = oci::Oci::open(oci_options(directory.path(), "runc")).await.unwrap();
    let found = runtime.inspect(NAMESPACE, "k1").await.unwrap();
    assert_eq!((found.status, found.pid), (Status::Running, Some(pid)));
    let last = LogOptions { tail: Some(1), follow: true, ..LogOptions::default() };
    let mut log = runtime.logs(NAMESPACE, "k1", last).await.unwrap();
    for _ in 0..3 {
        log.next().await.unwrap().unwrap();
    }
    let (out, _, _) =
        output(runtime.exec(NAMESPACE, "k1", argv(&["/bin/echo", "here"])).await.unwrap()).await;
    assert_eq!(out, "here\n");
    runtime.signal(NAMESPACE, "k1", 9).await.unwrap();
    wait_for("the policy to act again", async || {
        runtime.inspect(NAMESPACE, "k1").await.unwrap().pid.filter(|new| *new != pid)
    })
    .await;
    runtime.delete(NAMESPACE, "k1", true).await.unwrap();
}
