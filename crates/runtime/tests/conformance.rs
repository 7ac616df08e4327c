//! One suite for all runtimes, and what is special about each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod real;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt;
use real::{IMAGE, PATIENCE, wait_for};
use selvage_api::Code;
use selvage_runtime::{
    ContainerSpec, EventKind, ExecInput, ExecOutput, ExecSpec, Limits, LogOptions, Mount, Restart,
    RestartPolicy, Runtime, Status, TerminalSize, cgroup, containerd, oci,
};

const NAMESPACE: &str = "selvage-test";
const GRACE: Duration = Duration::from_millis(500);

fn spec(id: &str, command: &[&str]) -> ContainerSpec {
    ContainerSpec {
        id: id.into(),
        image: IMAGE.into(),
        command: command.iter().map(ToString::to_string).collect(),
        ..ContainerSpec::default()
    }
}

fn argv(arguments: &[&str]) -> ExecSpec {
    let argv = arguments.iter().map(ToString::to_string).collect();
    ExecSpec { argv, ..ExecSpec::default() }
}

/// Everything that came out, and the exit code.
async fn output(mut exec: selvage_runtime::Exec) -> (String, String, i32) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let reading = async {
        loop {
            match exec.output.recv().await.expect("ended without a word") {
                ExecOutput::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecOutput::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ExecOutput::Exited(code) => return code,
                ExecOutput::Failed(error) => panic!("{error}"),
            }
        }
    };
    let code = tokio::time::timeout(PATIENCE, reading).await.expect("the program hangs");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), code)
}

async fn code_of<T>(answer: impl Future<Output = selvage_runtime::Result<T>>) -> Code {
    match answer.await {
        Ok(_) => panic!("succeeded"),
        Err(error) => error.code(),
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Until it is, it is still the runtime's own, which minds signals.
fn is_itself(pid: u32, program: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == program)
}

/// A first process that does not handle TERM yet would not even see it.
fn handles_term(pid: u32) -> bool {
    const TERM: u64 = 1 << 14;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & TERM != 0)
}

/// What every runtime that can make containers must do.
async fn suite(runtime: Arc<dyn Runtime>, scratch: &Path) {
    images(&*runtime, scratch).await;
    lifecycle(&*runtime).await;
    exec(&*runtime).await;
    logs(&*runtime).await;
    restart(&*runtime).await;
    bad_input(&*runtime).await;
    assert!(runtime.list(NAMESPACE).await.unwrap().is_empty(), "something was left behind");
    runtime.remove_image(NAMESPACE, IMAGE).await.unwrap();
    assert_eq!(code_of(runtime.remove_image(NAMESPACE, IMAGE)).await, Code::NotFound);
    assert!(runtime.images(NAMESPACE).await.unwrap().is_empty());
}

async fn images(runtime: &dyn Runtime, scratch: &Path) {
    let tar = real::image_tar(scratch);
    let imported = runtime.import(NAMESPACE, &tar, None).await.unwrap();
    assert_eq!(imported[0].name, IMAGE);
    assert!(imported[0].size > 100_000);
    runtime.import(NAMESPACE, &tar, None).await.expect("twice is as good as once");
    let listed = runtime.images(NAMESPACE).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].digest, imported[0].digest);
    assert!(runtime.images("other").await.unwrap().is_empty());
    let garbage = scratch.join("garbage");
    fs::write(&garbage, b"no tar").unwrap();
    for path in [garbage.as_path(), Path::new("/nonexistent"), scratch] {
        let code = code_of(runtime.import(NAMESPACE, path, None)).await;
        assert_eq!(code, Code::InvalidArgument, "{}", path.display());
    }
}

async fn lifecycle(runtime: &dyn Runtime) {
    let mut events = runtime.events().await.unwrap();
    let labels: BTreeMap<_, _> = [("app".to_owned(), "x".to_owned())].into();
    let limits = Limits { cpu_millis: Some(500), memory_bytes: Some(64 << 20), pids: Some(50) };
    let made = ContainerSpec { labels: labels.clone(), limits, ..spec("c1", &[]) };
    let container = runtime.create(NAMESPACE, made.clone()).await.unwrap();
    assert_eq!(container.status, Status::Created);
    assert_eq!((container.id.as_str(), container.name.as_str()), ("c1", "c1"));
    assert_eq!(container.pod_id, "c1");
    assert_eq!(container.image, IMAGE);
    assert_eq!(container.labels.get("app"), labels.get("app"));
    assert_eq!(code_of(runtime.create(NAMESPACE, made)).await, Code::AlreadyExists);

    let started = runtime.start(NAMESPACE, "c1").await.unwrap();
    let pid = started.pid.unwrap();
    assert_eq!(started.status, Status::Running);
    assert!(is_alive(pid));
    assert_eq!(code_of(runtime.start(NAMESPACE, "c1")).await, Code::FailedPrecondition);
    let mut reader = runtime.metrics(NAMESPACE, "c1").await.unwrap();
    let sample = reader.sample().unwrap();
    assert!(sample.core.cpu_ns > 0);
    assert!(sample.core.working_set_bytes <= sample.core.memory_bytes);
    assert_eq!(sample.core.memory_limit, Some(64 << 20));
    assert_eq!(sample.pids_limit, Some(50));
    assert!(sample.pids >= 1);

    assert_eq!(code_of(runtime.delete(NAMESPACE, "c1", false)).await, Code::FailedPrecondition);
    wait_for("its trap for TERM", async || {
        (is_itself(pid, "sh") && handles_term(pid)).then_some(())
    })
    .await;
    let exit = runtime.stop(NAMESPACE, "c1", PATIENCE).await.unwrap();
    assert_eq!(exit.code, Some(0), "its trap for TERM exits with 0");
    let stopped = runtime.inspect(NAMESPACE, "c1").await.unwrap();
    assert_eq!((stopped.status, stopped.pid), (Status::Stopped, None));
    assert_eq!(stopped.exit.unwrap().code, Some(0));
    assert_eq!(code_of(runtime.signal(NAMESPACE, "c1", 15)).await, Code::NotFound);
    assert_ne!(runtime.start(NAMESPACE, "c1").await.unwrap().pid, Some(pid));
    runtime.delete(NAMESPACE, "c1", true).await.unwrap();
    assert_eq!(code_of(runtime.inspect(NAMESPACE, "c1")).await, Code::NotFound);

    let mut seen = Vec::new();
    while !seen.contains(&EventKind::Deleted) {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        if event.runtime_id == "c1" {
            seen.push(event.kind);
        }
    }
    assert!(seen.contains(&EventKind::Created), "{seen:?}");
    assert!(seen.contains(&EventKind::Started { pid }), "{seen:?}");
    assert!(seen.contains(&EventKind::Exited { code: Some(0) }), "{seen:?}");
}

async fn exec(runtime: &dyn Runtime) {
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("file"), "from the host").unwrap();
    let mount = Mount { source: host.path().into(), target: "/mnt/host".into(), read_only: true };
    let env = [("SECRET".to_owned(), "hush".to_owned())].into();
    let made = ContainerSpec { mounts: vec![mount], env, ..spec("e1", &[]) };
    assert!(!format!("{made:?}").contains("hush"));
    runtime.create(NAMESPACE, made).await.unwrap();
    assert_eq!(code_of(runtime.exec(NAMESPACE, "e1", argv(&["/bin/true"]))).await, Code::NotFound);
    runtime.start(NAMESPACE, "e1").await.unwrap();
    let run =
        async |spec: ExecSpec| output(runtime.exec(NAMESPACE, "e1", spec).await.unwrap()).await;

    let line = "echo out; echo err >&2; exit 7";
    assert_eq!(run(argv(&["/bin/sh", "-c", line])).await, ("out\n".into(), "err\n".into(), 7));
    let line =
        "echo $SECRET $MORE; pwd; cat /mnt/host/file; echo x > /mnt/host/no || echo read-only";
    let more = ExecSpec {
        env: [("MORE".to_owned(), "two words".to_owned())].into(),
        cwd: Some("/tmp".into()),
        ..argv(&["/bin/sh", "-c", line])
    };
    let (out, _, code) = run(more).await;
    assert_eq!(out, "hush two words\n/tmp\nfrom the hostread-only\n");
    assert_eq!(code, 0);
    let (out, _, _) = run(argv(&["/bin/sh", "-c", "test -e /gone || echo removed"])).await;
    assert_eq!(out, "removed\n", "what an upper layer removes is gone");

    let exec = runtime
        .exec(NAMESPACE, "e1", ExecSpec { stdin: true, ..argv(&["/bin/cat"]) })
        .await
        .unwrap();
    exec.input.send(ExecInput::Stdin(Bytes::from_static(b"through and back"))).await.unwrap();
    exec.input.send(ExecInput::CloseStdin).await.unwrap();
    assert_eq!(output(exec).await, ("through and back".into(), String::new(), 0));

    let tty = Some(TerminalSize { width: 93, height: 31 });
    let shell = ExecSpec { tty, stdin: true, ..argv(&["/bin/sh"]) };
    let exec = runtime.exec(NAMESPACE, "e1", shell).await.unwrap();
    exec.input.send(ExecInput::Stdin(Bytes::from_static(b"stty size; exit 5\n"))).await.unwrap();
    let (out, _, code) = output(exec).await;
    assert!(out.contains("31 93"), "{out:?}");
    assert_eq!(code, 5);

    let exec = runtime.exec(NAMESPACE, "e1", argv(&["/bin/sleep", "3600"])).await.unwrap();
    exec.input.send(ExecInput::Signal(9)).await.unwrap();
    assert_eq!(output(exec).await.2, 137);
    drop(runtime.exec(NAMESPACE, "e1", argv(&["/bin/sleep", "3601"])).await.unwrap());
    wait_for("a dropped program to end", async || (!anybody_runs("3601")).then_some(())).await;

    let missing = runtime.exec(NAMESPACE, "e1", argv(&["/no/such/program"])).await;
    assert!(missing.is_err(), "a program that is not there");
    assert_eq!(code_of(runtime.exec(NAMESPACE, "e1", argv(&[]))).await, Code::InvalidArgument);
    runtime.delete(NAMESPACE, "e1", true).await.unwrap();
}

fn anybody_runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    })
}

async fn logs(runtime: &dyn Runtime) {
    let script = "for i in 1 2 3; do echo line $i; done; echo wrong >&2; \
                  while ! test -e /tmp/go; do sleep 0.05; done; echo later; sleep 3600";
    runtime.create(NAMESPACE, spec("l1", &["/bin/sh", "-c", script])).await.unwrap();
    runtime.start(NAMESPACE, "l1").await.unwrap();
    let read = async |options: LogOptions| {
        let pieces: Vec<_> = runtime.logs(NAMESPACE, "l1", options).await.unwrap().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap()).collect();
        String::from_utf8(bytes).unwrap()
    };
    let all = wait_for("the log", async || {
        let text = read(LogOptions::default()).await;
        (text.lines().count() == 4 && text.ends_with('\n')).then_some(text)
    })
    .await;
    // Which of two streams comes first is not promised.
    let mut lines: Vec<&str> = all.lines().collect();
    let last = lines[3];
    assert_eq!(
        read(LogOptions { tail: Some(2), follow: false }).await,
        lines[2..].join("\n") + "\n"
    );
    lines.sort_unstable();
    assert_eq!(lines, ["line 1", "line 2", "line 3", "wrong"]);
    let options = LogOptions { tail: Some(1), follow: true };
    let mut stream = runtime.logs(NAMESPACE, "l1", options).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), format!("{last}\n"));
    let touch = argv(&["/bin/sh", "-c", "echo > /tmp/go"]);
    output(runtime.exec(NAMESPACE, "l1", touch).await.unwrap()).await;
    let next = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
    assert_eq!(next.unwrap().unwrap(), "later\n");
    runtime.delete(NAMESPACE, "l1", true).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().is_none());
}

/// Defect 9 of the original: its restart does nothing when TERM is ignored,
/// and a first process ignores what it has no handler for.
async fn restart(runtime: &dyn Runtime) {
    runtime.create(NAMESPACE, spec("r1", &["/bin/sleep", "3600"])).await.unwrap();
    let old = runtime.start(NAMESPACE, "r1").await.unwrap().pid.unwrap();
    wait_for("it to be itself", async || is_itself(old, "sleep").then_some(())).await;
    let signalled = runtime.restart(NAMESPACE, "r1", Restart::SignalOnly(15)).await.unwrap();
    assert_eq!((signalled.old_pid, signalled.new_pid), (Some(old), None));
    assert!(is_alive(old), "TERM was ignored");
    let restarted = runtime.restart(NAMESPACE, "r1", Restart::Full { grace: GRACE }).await.unwrap();
    let new = restarted.new_pid.unwrap();
    assert_eq!(restarted.old_pid, Some(old));
    assert_ne!(new, old);
    assert!(!is_alive(old));
    assert!(is_alive(new));
    let container = runtime.inspect(NAMESPACE, "r1").await.unwrap();
    assert_eq!((container.status, container.pid), (Status::Running, Some(new)));
    wait_for("it to be itself", async || is_itself(new, "sleep").then_some(())).await;
    assert_eq!(runtime.stop(NAMESPACE, "r1", GRACE).await.unwrap().code, Some(137));
    let again = runtime.restart(NAMESPACE, "r1", Restart::Full { grace: GRACE }).await.unwrap();
    assert_eq!(again.old_pid, None, "one that has ended is started");
    assert!(is_alive(again.new_pid.unwrap()));
    runtime.delete(NAMESPACE, "r1", true).await.unwrap();
}

async fn bad_input(runtime: &dyn Runtime) {
    let began = Instant::now();
    for id in ["", "a/b", "a/b:c", "a:b", "x\ny", "../../etc", "nonexistent", "a\0b"] {
        let error = runtime.inspect(NAMESPACE, id).await.unwrap_err();
        assert_eq!(error.to_string(), format!("container {id:?} not found"));
        let full = Restart::Full { grace: GRACE };
        assert_eq!(code_of(runtime.restart(NAMESPACE, id, full)).await, Code::NotFound);
        assert_eq!(code_of(runtime.delete(NAMESPACE, id, true)).await, Code::NotFound);
        assert_eq!(
            code_of(runtime.logs(NAMESPACE, id, LogOptions::default())).await,
            Code::NotFound
        );
        if id != "nonexistent" {
            let made = runtime.create(NAMESPACE, spec(id, &[]));
            assert_eq!(code_of(made).await, Code::InvalidArgument, "{id:?}");
        }
    }
    let empty = runtime.list("").await.unwrap_err();
    assert_eq!(
        (empty.to_string().as_str(), empty.code()),
        ("namespace can't be empty", Code::InvalidArgument)
    );
    for namespace in ["a/b", "a\nb", "..", "a:b"] {
        assert_eq!(code_of(runtime.list(namespace)).await, Code::InvalidArgument, "{namespace:?}");
    }
    assert!(runtime.list("nobody-knows").await.unwrap().is_empty());
    let unknown = ContainerSpec { image: "no/such:1".into(), ..spec("b1", &[]) };
    assert_eq!(code_of(runtime.create(NAMESPACE, unknown)).await, Code::NotFound);
    assert!(began.elapsed() < PATIENCE);
}

/// One of its own for every test.
fn cgroup_of(directory: &Path) -> String {
    format!("/selvage-test{}", directory.file_name().unwrap().display())
}

fn oci_options(directory: &Path, program: &str) -> oci::Options {
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
    if !cgroup::Mounts::read().unwrap().is_unified() {
        // It is not missing: it refuses machines like this one.
        let _ = writeln!(std::io::stderr(), "SKIPPED: crun: the control groups here are mixed");
        return;
    }
    oci_suite("crun").await;
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
        .args(["--exact", "agent_to_be_killed"])
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
    let last = LogOptions { tail: Some(1), follow: true };
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

#[tokio::test(flavor = "multi_thread")]
async fn containerd_conforms() {
    let Some(daemon) = real::Containerd::start() else { return };
    let runtime = containerd_at(&daemon).await;
    suite(runtime, daemon.directory.path()).await;
}

async fn containerd_at(daemon: &real::Containerd) -> Arc<dyn Runtime> {
    let options = containerd::Options {
        logs: daemon.directory.path().join("logs"),
        ..containerd::Options::new(daemon.socket())
    };
    let runtime = Arc::new(containerd::Containerd::new(options));
    wait_for("containerd", async || runtime.version().await.ok()).await;
    runtime
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_killed_under_load_is_said_and_found_again() {
    let Some(mut daemon) = real::Containerd::start() else { return };
    let runtime = containerd_at(&daemon).await;
    runtime.import(NAMESPACE, &real::image_tar(daemon.directory.path()), None).await.unwrap();
    runtime.create(NAMESPACE, spec("k1", &[])).await.unwrap();
    let pid = runtime.start(NAMESPACE, "k1").await.unwrap().pid;
    let mut events = runtime.events().await.unwrap();
    let asking = runtime.clone();
    let load = tokio::spawn(async move {
        loop {
            let _ = asking.list(NAMESPACE).await;
            tokio::task::yield_now().await;
        }
    });
    daemon.kill();
    wait_for("the loss to be told", async || {
        runtime.list(NAMESPACE).await.err().filter(|error| error.code() == Code::Unavailable)
    })
    .await;
    let lost = async { while events.next().await.unwrap().kind != EventKind::Lost {} };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    daemon.spawn();
    let found = wait_for("containerd to be found again", async || {
        runtime.inspect(NAMESPACE, "k1").await.ok()
    })
    .await;
    assert_eq!((found.pid, found.status), (pid, Status::Running));
    let again = async { while events.next().await.unwrap().kind != EventKind::Resync {} };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
    load.abort();
    runtime.delete(NAMESPACE, "k1", true).await.unwrap();
}

/// Defects 17 and 18 of the original: a connection for every call, and six
/// calls for every container.
#[tokio::test(flavor = "multi_thread")]
async fn containerd_is_connected_to_once_and_not_asked_what_is_known() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let Some(daemon) = real::Containerd::start() else { return };
    let direct = containerd_at(&daemon).await;
    direct.import(NAMESPACE, &real::image_tar(daemon.directory.path()), None).await.unwrap();
    for id in ["n1", "n2", "n3"] {
        direct.create(NAMESPACE, spec(id, &[])).await.unwrap();
    }
    let (connections, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let between = daemon.directory.path().join("between");
    let listener = tokio::net::UnixListener::bind(&between).unwrap();
    let (target, counts) = (daemon.socket(), (connections.clone(), sent.clone()));
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            counts.0.fetch_add(1, SeqCst);
            let server = tokio::net::UnixStream::connect(&target).await.unwrap();
            let sent = counts.1.clone();
            tokio::spawn(pass(client, server, sent));
        }
    });
    let runtime = containerd::Containerd::new(containerd::Options::new(&between));
    wait_for("the events", async || {
        runtime.list(NAMESPACE).await.unwrap();
        let before = sent.load(SeqCst);
        for _ in 0..20 {
            assert_eq!(runtime.list(NAMESPACE).await.unwrap().len(), 3);
            runtime.inspect(NAMESPACE, "n2").await.unwrap();
        }
        (sent.load(SeqCst) == before).then_some(())
    })
    .await;
    direct.start(NAMESPACE, "n2").await.unwrap();
    wait_for("a change to be seen", async || {
        runtime.inspect(NAMESPACE, "n2").await.unwrap().status.is_running().then_some(())
    })
    .await;
    assert_eq!(connections.load(SeqCst), 1);
    for id in ["n1", "n2", "n3"] {
        direct.delete(NAMESPACE, id, true).await.unwrap();
    }
}

async fn pass(
    client: tokio::net::UnixStream,
    server: tokio::net::UnixStream,
    sent: Arc<std::sync::atomic::AtomicUsize>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut piece = [0; 8192];
        while let Ok(length @ 1..) = from_client.read(&mut piece).await {
            sent.fetch_add(length, std::sync::atomic::Ordering::SeqCst);
            to_server.write_all(&piece[..length]).await.unwrap();
        }
    };
    let down = tokio::io::copy(&mut from_server, &mut to_client);
    let _ = tokio::join!(up, down);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_are_missing_or_mute_are_unavailable_soon() {
    let directory = tempfile::tempdir().unwrap();
    let mute = directory.path().join("mute");
    let _listener = std::os::unix::net::UnixListener::bind(&mute).unwrap();
    for socket in [directory.path().join("missing"), mute] {
        let runtime = containerd::Containerd::new(containerd::Options::new(&socket));
        let began = Instant::now();
        let error = runtime.list(NAMESPACE).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.to_string().starts_with("containerd does not answer: "), "{error}");
        assert!(began.elapsed() < PATIENCE);
        let cri = selvage_runtime::cri::Cri::new(&socket);
        let error = cri.list("k8s.io").await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().starts_with("error connecting to CRI: "), "{error}");
        let error = cri.list("system").await.unwrap_err();
        assert_eq!(error.to_string(), "CRI inspector is supported only for K8s namespace");
    }
}
