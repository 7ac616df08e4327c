//! One suite for all runtimes, and what is special about each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod confined;
mod containerd;
mod damaged;
mod disk;
mod oci;
mod unified;
mod users;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use futures::StreamExt;
use selvage_api::Code;
use selvage_runtime::{
    ContainerSpec, EventKind, ExecInput, ExecOutput, ExecSpec, Limits, LogOptions, Mount, Restart,
    Runtime, Status, TerminalSize,
};
use selvage_testkit::containers::{self as real, IMAGE, TEST_TIMEOUT, wait_for};

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
    let code = tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("the program hangs");
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

/// Tests that every runtime that can make containers must pass.
async fn suite(runtime: Arc<dyn Runtime>, scratch: &Path) {
    images(&*runtime, scratch).await;
    lifecycle(&*runtime).await;
    exec(&*runtime).await;
    confined::suite(&*runtime).await;
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
    let limits = Limits {
        cpu_millis: Some(500),
        memory_bytes: Some(64 << 20),
        pids: Some(50),
        disk_bytes: Some(64 << 20),
    };
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
    let exit = runtime.stop(NAMESPACE, "c1", TEST_TIMEOUT).await.unwrap();
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
        let event = tokio::time::timeout(TEST_TIMEOUT, events.next()).await.unwrap().unwrap();
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

    // A process that is left behind holds the output, and nobody waits for it.
    let left = run(argv(&["/bin/sh", "-c", "sleep 3602 & echo left; exit 6"])).await;
    assert_eq!(left, ("left\n".into(), String::new(), 6));

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
    let before = time_of_files();
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
    let last = lines[3].to_owned();
    assert_eq!(
        read(LogOptions { tail: Some(2), ..LogOptions::default() }).await,
        lines[2..].join("\n") + "\n"
    );
    lines.sort_unstable();
    assert_eq!(lines, ["line 1", "line 2", "line 3", "wrong"]);
    has_times(&read, &last, before).await;
    let options = LogOptions { tail: Some(1), follow: true, ..LogOptions::default() };
    let mut stream = runtime.logs(NAMESPACE, "l1", options).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), format!("{last}\n"));
    let touch = argv(&["/bin/sh", "-c", "echo > /tmp/go"]);
    output(runtime.exec(NAMESPACE, "l1", touch).await.unwrap()).await;
    let next = tokio::time::timeout(TEST_TIMEOUT, stream.next()).await.unwrap();
    assert_eq!(next.unwrap().unwrap(), "later\n");
    runtime.delete(NAMESPACE, "l1", true).await.unwrap();
    assert!(tokio::time::timeout(TEST_TIMEOUT, stream.next()).await.unwrap().is_none());
}

/// Every line that was written has a time, once that is noted.
async fn has_times(read: &impl AsyncFn(LogOptions) -> String, last: &str, before: SystemTime) {
    let options = LogOptions { timestamps: true, ..LogOptions::default() };
    let text = wait_for("times of all lines", async || {
        let text = read(options).await;
        (!text.lines().any(|line| line.starts_with("- "))).then_some(text)
    })
    .await;
    let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!((lines.len(), lines[3].1), (4, last), "{text}");
    for (time, line) in lines {
        let time = SystemTime::from(time.parse::<jiff::Timestamp>().unwrap());
        let range = before - Duration::from_millis(1)..=time_of_files();
        assert!(range.contains(&time), "{line}: {time:?} is not in {range:?}");
    }
}

/// The time as files have it that are written to now.
fn time_of_files() -> SystemTime {
    tempfile::tempfile().unwrap().metadata().unwrap().modified().unwrap()
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
    assert!(began.elapsed() < TEST_TIMEOUT);
}
