#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use selvage_api::os::os_service_client::OsServiceClient;
use selvage_kit::identity::{Grant, Kind};
use selvage_runtime::{
    Container, ContainerSpec, Error, Event, Exec, ExecSpec, Exit, Image, Kind as ContainerKind,
    LogOptions, LogStream, Pull, Restarted, Result, Runtime, identity,
};
use tonic::Code;

use super::*;
use crate::{host::Filesystems, node_service::Node, proc::Limits, sampler::tests::ourselves};

/// A runtime with what a test puts in.
#[derive(Default)]
struct Fake {
    containers: Vec<Container>,
    restarts: Mutex<Vec<selvage_runtime::Restart>>,
    lists: AtomicUsize,
    unreachable: bool,
    /// Never was there.
    absent: bool,
    /// The one that has containers, `system` if none is given.
    namespace: Option<String>,
    /// Signal that a restart waits for.
    held: Option<Arc<tokio::sync::Notify>>,
}

const NO: Error = Error::Unsupported { runtime: "fake", what: "this" };

#[async_trait]
impl Runtime for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    async fn version(&self) -> Result<String> {
        Ok("1".into())
    }
    fn is_installed(&self) -> bool {
        !self.absent
    }
    async fn namespaces(&self) -> Result<Vec<String>> {
        if self.unreachable {
            return Err(Error::Unreachable { runtime: "fake", reason: "no socket".into() });
        }
        Ok(vec![self.namespace.clone().unwrap_or_else(|| "system".into())])
    }
    async fn list(&self, _: &str) -> Result<Vec<Container>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        if self.unreachable {
            return Err(Error::Unreachable { runtime: "fake", reason: "no socket".into() });
        }
        Ok(self.containers.clone())
    }
    async fn signal(&self, _: &str, _: &str, _: i32) -> Result<()> {
        Err(NO)
    }
    async fn restart(&self, _: &str, id: &str, how: selvage_runtime::Restart) -> Result<Restarted> {
        let container = identity::find(self.containers.clone(), id)?;
        if let Some(held) = &self.held {
            held.notified().await;
        }
        self.restarts.lock().push(how);
        Ok(Restarted { old_pid: container.pid, new_pid: Some(4321) })
    }
    async fn logs(&self, _: &str, _: &str, _: LogOptions) -> Result<LogStream> {
        Err(NO)
    }
    async fn exec(&self, _: &str, _: &str, _: ExecSpec) -> Result<Exec> {
        Err(NO)
    }
    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        Ok(futures::stream::pending().boxed())
    }
    async fn images(&self, _: &str) -> Result<Vec<Image>> {
        Err(NO)
    }
    async fn pull(&self, _: &str, _: Pull) -> Result<Image> {
        Err(NO)
    }
    async fn import(&self, _: &str, _: &Path, _: Option<&str>) -> Result<Vec<Image>> {
        Err(NO)
    }
    async fn remove_image(&self, _: &str, _: &str) -> Result<()> {
        Err(NO)
    }
    async fn create(&self, _: &str, _: ContainerSpec) -> Result<Container> {
        Err(NO)
    }
    async fn start(&self, _: &str, _: &str) -> Result<Container> {
        Err(NO)
    }
    async fn stop(&self, _: &str, _: &str, _: Duration) -> Result<Exit> {
        Err(NO)
    }
    async fn delete(&self, _: &str, _: &str, _: bool) -> Result<()> {
        Err(NO)
    }
}

fn os(fake: Fake) -> (Os, Arc<Fake>) {
    let fake = Arc::new(fake);
    let one: Arc<dyn Runtime> = fake.clone();
    let os = Os {
        runtimes: Runtimes::of(one.clone(), one.clone(), one, None),
        sampler: Sampler::open(Path::new("/proc")).unwrap(),
        scanner: Arc::new(Mutex::new(
            Scanner::open(Path::new("/proc"), Limits::default()).unwrap(),
        )),
        kmsg: Kmsg::new("/dev/kmsg"),
    };
    (os, fake)
}

/// One runtime for the machine's own services, and another for the rest.
fn two(system: Fake, other: Fake) -> Os {
    let (system, other): (Arc<dyn Runtime>, Arc<dyn Runtime>) = (Arc::new(system), Arc::new(other));
    let (mut os, _) = with(Vec::new());
    os.runtimes = Runtimes::of(system, other.clone(), other, None);
    os
}

fn with(containers: Vec<Container>) -> (Os, Arc<Fake>) {
    os(Fake { containers, ..Fake::default() })
}

fn stats(namespace: &str, driver: i32) -> Request<StatsRequest> {
    Request::new(StatsRequest { namespace: namespace.into(), driver })
}

#[tokio::test]
async fn drivers_and_namespaces_are_distinguished_as_in_the_contract() {
    let (os, _) = with(Vec::new());
    for (namespace, driver, text) in [
        ("", 0, "namespace can't be empty"),
        ("system", 1, "CRI inspector is supported only for K8s namespace"),
        ("system", 7, "unsupported driver \"7\""),
    ] {
        let request = ContainersRequest { namespace: namespace.into(), driver };
        let refused = os.containers(Request::new(request)).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
        let refused = os.stats(stats(namespace, driver)).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
        let request = RestartRequest { namespace: namespace.into(), driver, ..Default::default() };
        let refused = os.restart(Request::new(request)).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
    }
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_unavailable() {
    let (os, _) = os(Fake { unreachable: true, ..Fake::default() });
    let refused = os.stats(stats("system", 0)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "fake does not answer: no socket")
    );
}

#[tokio::test]
async fn a_dead_runtime_is_reported_next_to_the_answer_of_the_other() {
    let apps = || Fake {
        containers: vec![ourselves("a")],
        namespace: Some("apps".into()),
        ..Fake::default()
    };
    let dead = || Fake { unreachable: true, ..Fake::default() };
    let every = || Request::new(ContainersRequest { namespace: "*".into(), driver: 0 });
    let why = "rpc error: code = Unavailable desc = fake does not answer: no socket";

    let os = two(dead(), apps());
    let reply = os.containers(every()).await.unwrap().into_inner();
    let [answered, failed] = reply.messages.as_slice() else { panic!("{reply:?}") };
    assert_eq!((answered.metadata.is_none(), answered.containers.len()), (true, 1));
    assert_eq!(failed.metadata.as_ref().unwrap().error, why);
    assert!(failed.containers.is_empty());
    let reply = os.stats(stats("*", 0)).await.unwrap().into_inner();
    let [answered, failed] = reply.messages.as_slice() else { panic!("{reply:?}") };
    assert_eq!((answered.metadata.is_none(), answered.stats.len()), (true, 1));
    assert_eq!(failed.metadata.as_ref().unwrap().error, why);

    // A runtime that was never installed is not reported as missing.
    let os = two(Fake { absent: true, ..dead() }, apps());
    let reply = os.containers(every()).await.unwrap().into_inner();
    assert_eq!(reply.messages.len(), 1, "{reply:?}");
    // And where nobody answers, nothing was told.
    for absent in [false, true] {
        let os = two(Fake { absent, ..dead() }, Fake { absent, ..dead() });
        let refused = os.containers(every()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn containers_come_as_one_message_with_what_is_missing_said() {
    let gone =
        Container { problem: Some("image is gone".into()), image: String::new(), ..ourselves("b") };
    let (os, fake) = with(vec![ourselves("a"), gone]);
    let request = ContainersRequest { namespace: "system".into(), driver: 0 };
    let reply = os.containers(Request::new(request)).await.unwrap().into_inner();
    let [message] = reply.messages.as_slice() else { panic!("{reply:?}") };
    assert!(message.metadata.is_none());
    let ids: Vec<_> = message.containers.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(message.containers[0].status, "RUNNING");
    assert_eq!(message.containers[1].problem, "image is gone");
    assert_eq!(fake.lists.load(Ordering::Relaxed), 1, "one question, however many containers");
}

#[tokio::test]
async fn stats_are_those_of_containers_that_run() {
    let stopped =
        Container { pid: None, status: selvage_runtime::Status::Stopped, ..ourselves("s") };
    let (os, _) = with(vec![ourselves("a"), stopped]);
    let reply = os.stats(stats("system", 0)).await.unwrap().into_inner();
    let rows = &reply.messages[0].stats;
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(rows[0].cpu_usage > 0 && rows[0].memory_usage <= rows[0].memory_total);
}

#[tokio::test]
async fn by_cri_a_sandbox_has_a_row_of_zeros() {
    let sandbox = Container {
        kind: ContainerKind::Sandbox,
        status: selvage_runtime::Status::SandboxReady,
        ..ourselves("default/pod")
    };
    let (os, _) = with(vec![sandbox]);
    let reply = os.stats(stats("k8s.io", 1)).await.unwrap().into_inner();
    let rows = &reply.messages[0].stats;
    assert_eq!((rows[0].cpu_usage, rows[0].memory_usage), (0, 0));
}

#[tokio::test]
async fn a_restart_tells_both_pids_and_a_signal_can_be_all() {
    let (os, fake) = with(vec![ourselves("a")]);
    let request = |id: &str| RestartRequest {
        namespace: "system".into(),
        id: id.into(),
        ..Default::default()
    };
    let reply = os.restart(Request::new(request("a"))).await.unwrap().into_inner();
    let [message] = reply.messages.as_slice() else { panic!("{reply:?}") };
    assert_eq!((message.old_pid, message.new_pid), (std::process::id(), 4321));
    let mut old_client = Request::new(request("a"));
    old_client.metadata_mut().insert(SIGNAL_ONLY, "true".parse().unwrap());
    os.restart(old_client).await.unwrap();
    use selvage_runtime::Restart::{Full, SignalOnly};
    assert_eq!(*fake.restarts.lock(), [Full { grace: GRACE }, SignalOnly(TERMINATE)]);
    let unknown = os.restart(Request::new(request("nobody"))).await.unwrap_err();
    assert_eq!(
        (unknown.code(), unknown.message()),
        (Code::NotFound, "container \"nobody\" not found")
    );
    let patient = RestartRequest { grace_seconds: 4000, ..request("a") };
    let refused = os.restart(Request::new(patient)).await.unwrap_err();
    assert!(refused.message().starts_with("grace_seconds: "), "{refused}");
}

#[tokio::test]
async fn a_restart_goes_on_when_its_caller_is_gone() {
    let held = Arc::new(tokio::sync::Notify::new());
    let containers = vec![ourselves("a")];
    let (os, fake) = os(Fake { containers, held: Some(held.clone()), ..Fake::default() });
    let request =
        RestartRequest { namespace: "system".into(), id: "a".into(), ..Default::default() };
    let mut asking = os.restart(Request::new(request));
    assert!(futures::poll!(&mut asking).is_pending());
    drop(asking);
    held.notify_one();
    let done = async {
        while fake.restarts.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("nobody restarts it");
}

/// Bytes on the wire decode as the contract's own types.
#[tokio::test]
async fn processes_are_served_as_they_were_kept() {
    let (os, _) = with(Vec::new());
    let mut client = OsServiceClient::new(os.service());
    let child = secretive_child();
    // Twice: the second answer is made of the first.
    for _ in 0..2 {
        let reply = client.processes(()).await.unwrap().into_inner();
        let [message] = reply.messages.as_slice() else { panic!("{}", reply.messages.len()) };
        assert!(message.metadata.is_none());
        let same = |process: &&ProcessInfo| process.pid.unsigned_abs() == child.0.id();
        let answered = message.processes.iter().find(same).unwrap();
        assert_eq!(answered.ppid.unsigned_abs(), std::process::id());
    }
    let reply = client.memory(()).await.unwrap().into_inner();
    assert_eq!(reply.messages.len(), 1, "other methods are there as well");
}

/// A child that is ended when the test ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn secretive_child() -> Guard {
    let child = Command::new("sh")
        .args(["-c", "read line", "x", "--token=hunter2"])
        .stdin(Stdio::piped())
        .spawn();
    Guard(child.unwrap())
}

async fn arguments_as(caller: Option<Identity>, os: &Os, pid: u32) -> String {
    let mut request = Request::new(());
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    let reply = os.processes(request).await.unwrap().into_inner();
    let [message] = reply.messages.as_slice() else { panic!("{} messages", reply.messages.len()) };
    let found = message.processes.iter().find(|process| process.pid.unsigned_abs() == pid);
    found.map(|process| process.args.clone()).unwrap_or_default()
}

#[tokio::test]
async fn only_admins_see_secrets_of_processes() {
    let (os, _) = with(Vec::new());
    let child = secretive_child();
    let pid = child.0.id();
    let admin = Identity::all_powerful("root", Kind::Local);
    // The child runs our own program until it is the shell.
    while !arguments_as(Some(admin.clone()), &os, pid).await.ends_with("--token=hunter2") {
        tokio::task::yield_now().await;
    }
    let user = Kind::User { session: "s".into(), expires: i64::MAX };
    let viewer = Identity {
        name: "viewer".into(),
        kind: user,
        grants: vec![Grant { role: Role::Viewer, organisation: String::new() }],
    };
    for caller in [Some(viewer), Some(Identity::anonymous()), None] {
        let answered = arguments_as(caller, &os, pid).await;
        assert!(answered.ends_with("--token=***"), "{answered}");
    }
}

#[tokio::test]
async fn memory_is_one_message_in_kilobytes() {
    let (os, _) = with(Vec::new());
    let reply = os.memory(Request::new(())).await.unwrap().into_inner();
    let [message] = reply.messages.as_slice() else { panic!("{reply:?}") };
    let total = message.meminfo.as_ref().unwrap().memtotal;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    assert!(text.lines().next().unwrap().contains(&format!(" {total} kB")), "{total}");
}

#[tokio::test]
async fn a_stream_of_stats_begins_with_all_and_goes_on_with_changes() {
    use selvage_api::selvage::node::{
        GetHistoryRequest, WatchStatsRequest, node_service_server::NodeService,
    };
    let mut os = two(
        Fake { unreachable: true, ..Fake::default() },
        Fake { containers: vec![ourselves("a")], namespace: Some("x".into()), ..Fake::default() },
    );
    let filesystems = || Filesystems::new("/proc/self/mounts");
    let request = WatchStatsRequest { namespace: "*".into(), ..Default::default() };
    let node = Node { os: os.clone(), filesystems: filesystems() };
    let mut stream = node.watch_stats(Request::new(request)).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.metadata, first.changed.len()), (None, 1));
    let failed = stream.next().await.unwrap().unwrap();
    assert!(failed.metadata.unwrap().error.ends_with("fake does not answer: no socket"));
    (os, _) = with(vec![ourselves("a")]);
    let sampler = os.sampler.clone();
    let node = Node { os, filesystems: filesystems() };
    let wrong = WatchStatsRequest { driver: 9, namespace: "system".into(), period: None };
    let refused = node.watch_stats(Request::new(wrong)).await.err().unwrap();
    assert_eq!(refused.message(), "unsupported driver \"9\"");
    sampler.look();
    let request = WatchStatsRequest { namespace: "system".into(), ..Default::default() };
    let mut stream = node.watch_stats(Request::new(request)).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.changed.len(), first.gone.len()), (1, 0));
    let history = GetHistoryRequest::default();
    let reply = node.get_history(Request::new(history)).await.unwrap().into_inner();
    let series = &reply.messages[0];
    assert_eq!((series.times.len(), series.cpu.len()), (1, 1));
    let unknown =
        GetHistoryRequest { namespace: "system".into(), id: "x".into(), ..Default::default() };
    let refused = node.get_history(Request::new(unknown)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}
