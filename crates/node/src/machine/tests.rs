#![allow(clippy::unwrap_used, clippy::panic)]

use parking_lot::Mutex;
use selvage_api::machine::ServiceInfo;
use tonic::Code;

use super::*;

/// Notes what it is told.
#[derive(Default)]
struct Recorder {
    done: Mutex<Vec<String>>,
    obstacle: Option<String>,
    called: tokio::sync::Notify,
}

impl Recorder {
    fn note(&self, what: impl Into<String>) -> io::Result<()> {
        self.done.lock().push(what.into());
        self.called.notify_one();
        Ok(())
    }
}

impl Power for Recorder {
    fn reboot(&self) -> io::Result<()> {
        self.note("reboot")
    }
    fn shutdown(&self) -> io::Result<()> {
        self.note("shutdown")
    }
    fn reset_obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
    fn reset(&self) -> io::Result<()> {
        self.note("reset")
    }
    fn upgrade_obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
    fn upgrade(&self, image: &str) -> io::Result<()> {
        self.note(format!("upgrade {image}"))
    }
}

/// One service that can be steered, one that cannot.
#[derive(Default)]
struct Two(Mutex<Vec<&'static str>>);

#[async_trait]
impl Supervisor for Two {
    fn services(&self) -> Vec<ServiceInfo> {
        let info = |id: &str| ServiceInfo { id: id.into(), ..Default::default() };
        vec![info("ntpd"), info("apid")]
    }

    async fn operate(&self, id: &str, operation: Operation) -> Result<(), Error> {
        match id {
            "ntpd" => self.0.lock().push(operation.name()),
            "apid" => {
                return Err(Error::NotSteered { id: id.into(), operation: operation.name() });
            }
            _ => return Err(Error::NoService { id: id.into() }),
        }
        Ok(())
    }
}

struct Torn;

#[async_trait]
impl LogSource for Torn {
    async fn open(&self, request: &LogsRequest) -> Result<LogPieces, Status> {
        if request.id != "torn" {
            return Err(Error::NoLog.into());
        }
        let pieces = ["one\ntw", "o\n"].map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
        Ok(futures::stream::iter(pieces).boxed())
    }
}

fn machine(power: Option<Arc<dyn Power>>, roots: Vec<PathBuf>) -> MachineApi {
    guarded(power, roots, Vec::new())
}

fn guarded(
    power: Option<Arc<dyn Power>>,
    roots: Vec<PathBuf>,
    protected: Vec<PathBuf>,
) -> MachineApi {
    let settings = Settings {
        roots,
        protected,
        kubeconfig: "/no/such/kubeconfig".into(),
        services: Arc::new(Two::default()),
        logs: Arc::new(Torn),
        power,
    };
    MachineApi::with_delay(settings, Duration::ZERO)
}

fn none(_: ()) -> Request<()> {
    Request::new(())
}

#[tokio::test]
async fn power_is_refused_unless_it_was_given() {
    let machine = machine(None, Vec::new());
    let upgrade = Request::new(UpgradeRequest { image: "x".into() });
    for (what, status) in [
        ("reboot", machine.reboot(none(())).await.unwrap_err()),
        ("shutdown", machine.shutdown(none(())).await.unwrap_err()),
        ("reset", machine.reset(none(())).await.unwrap_err()),
        ("upgrade", machine.upgrade(upgrade).await.unwrap_err()),
    ] {
        assert_eq!(status.code(), Code::FailedPrecondition, "{what}");
        assert!(status.message().contains("--allow-power"), "{status}");
        assert!(status.message().starts_with(what), "{status}");
    }
}

#[tokio::test]
async fn power_that_was_given_is_used_after_one_message() {
    let recorder = Arc::new(Recorder::default());
    let machine = machine(Some(recorder.clone()), Vec::new());
    assert_eq!(machine.reboot(none(())).await.unwrap().into_inner().messages.len(), 1);
    recorder.called.notified().await;
    assert_eq!(machine.shutdown(none(())).await.unwrap().into_inner().messages.len(), 1);
    recorder.called.notified().await;
    assert_eq!(machine.reset(none(())).await.unwrap().into_inner().messages.len(), 1);
    recorder.called.notified().await;
    let upgrade = UpgradeRequest { image: "registry/installer:2".into() };
    let answer = machine.upgrade(Request::new(upgrade)).await.unwrap().into_inner();
    assert_eq!(answer.messages[0].ack, "Upgrade request received");
    recorder.called.notified().await;
    let done = recorder.done.lock().clone();
    assert_eq!(done, ["reboot", "shutdown", "reset", "upgrade registry/installer:2"]);
    for image in ["", "--help"] {
        let wrong = Request::new(UpgradeRequest { image: image.into() });
        assert_eq!(machine.upgrade(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn what_stands_in_the_way_is_said_before_anything_happens() {
    let recorder =
        Arc::new(Recorder { obstacle: Some("no installer".into()), ..Default::default() });
    let machine = machine(Some(recorder.clone()), Vec::new());
    let refused = machine.reset(none(())).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::FailedPrecondition, "reset is refused: no installer")
    );
    assert!(recorder.done.lock().is_empty());
    let system = SystemPower::default();
    assert!(system.reset_obstacle().is_some() && system.upgrade_obstacle().is_some());
}

#[tokio::test]
async fn services_are_sorted_and_steered_with_the_known_texts() {
    let machine = machine(None, Vec::new());
    let list = machine.service_list(none(())).await.unwrap().into_inner();
    let ids: Vec<_> = list.messages[0].services.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, ["apid", "ntpd"]);
    let id = "ntpd".to_owned();
    let started = machine.service_start(Request::new(ServiceStartRequest { id: id.clone() })).await;
    assert_eq!(started.unwrap().into_inner().messages[0].resp, "Service \"ntpd\" started");
    let stopped = machine.service_stop(Request::new(ServiceStopRequest { id: id.clone() })).await;
    assert_eq!(stopped.unwrap().into_inner().messages[0].resp, "Service \"ntpd\" stopped");
    let request = Request::new(ServiceRestartRequest { id: id.clone() });
    let restarted = machine.service_restart(request).await.unwrap().into_inner();
    assert_eq!(restarted.messages[0].resp, "Service \"ntpd\" restarted");
    let old = machine.start(Request::new(StartRequest { id: id.clone() })).await.unwrap();
    assert_eq!(old.into_inner().resp, "Service \"ntpd\" started");
    let old = machine.stop(Request::new(StopRequest { id })).await.unwrap();
    assert_eq!(old.into_inner().resp, "Service \"ntpd\" stopped");

    let stop = |id: &str| machine.service_stop(Request::new(ServiceStopRequest { id: id.into() }));
    let refused = stop("apid").await.unwrap_err();
    assert_eq!(refused.message(), "service \"apid\" doesn't support stop operation via API");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    // The original hangs at the second question for a service it has not.
    for _ in 0..2 {
        assert_eq!(stop("none").await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(stop("").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn logs_come_in_whole_lines() {
    let machine = machine(None, Vec::new());
    let logs =
        |id: &str| machine.logs(Request::new(LogsRequest { id: id.into(), ..Default::default() }));
    let pieces = logs("torn").await.unwrap().into_inner().map(|piece| piece.unwrap().bytes);
    let pieces: Vec<_> = pieces.collect().await;
    assert_eq!(pieces, ["one\n", "two\n"]);
    let missing = logs("none").await.err().unwrap();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "no log available"));
    assert_eq!(logs("").await.err().unwrap().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn files_are_read_whole_and_only_files() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    std::fs::write(folder.path().join("file"), &contents).unwrap();
    let machine = machine(None, vec![folder.path().to_owned()]);
    let read = |path: PathBuf| {
        let path = path.to_str().unwrap().to_owned();
        machine.read(Request::new(ReadRequest { path }))
    };
    let pieces = read(folder.path().join("file")).await.unwrap().into_inner();
    let read_back: Vec<u8> = pieces.map(|piece| piece.unwrap().bytes.to_vec()).concat().await;
    assert!(read_back == contents);
    let folder = read(folder.path().to_owned()).await.err().unwrap();
    assert_eq!(folder.message(), "path must be a regular file");
    assert_eq!(read("/etc/passwd".into()).await.err().unwrap().code(), Code::PermissionDenied);
    assert_eq!(read("file".into()).await.err().unwrap().message(), "path is not absolute file");
    assert_eq!(machine.kubeconfig(none(())).await.err().unwrap().code(), Code::NotFound);
}

#[tokio::test]
async fn a_caller_who_leaves_gives_his_place_back() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), vec![0; 4 << 20]).unwrap();
    let machine = machine(None, vec![folder.path().to_owned()]);
    let path = folder.path().join("file").to_str().unwrap().to_owned();
    let mut open = Vec::new();
    for _ in 0..transfers::MAX_PER_CALLER {
        let request = Request::new(ReadRequest { path: path.clone() });
        open.push(machine.read(request).await.unwrap());
    }
    let request = || Request::new(ReadRequest { path: path.clone() });
    assert_eq!(machine.read(request()).await.err().unwrap().code(), Code::ResourceExhausted);
    drop(open);
    while machine.read(request()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_version_is_returned() {
    let machine = machine(None, Vec::new());
    let called = machine.version(none(())).await.unwrap().into_inner();
    assert_eq!(called.messages.len(), 1);
    assert_eq!(called.messages[0].version.as_ref().unwrap().os, "linux");
}
