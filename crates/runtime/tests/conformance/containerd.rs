//! containerd, in the versions that are there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use selvage_api::Code;
use selvage_runtime::{EventKind, GRACE, Restart, Runtime, Status, containerd};

use crate::{
    NAMESPACE,
    real::{self, TEST_TIMEOUT, wait_for},
    spec, suite,
};

/// Whatever their own folders, all of them let runc keep its state in one
/// place, where the suite's names can be taken once.
static SUITE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn containerd_conforms() {
    let _alone = SUITE.lock().await;
    let Some(daemon) = real::Containerd::start() else { return };
    let runtime = containerd_at(&daemon).await;
    suite(runtime, daemon.directory.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_2_conforms() {
    let _alone = SUITE.lock().await;
    let Some(daemon) = real::Containerd::start_2() else { return };
    let runtime = containerd_at(&daemon).await;
    let version = runtime.version().await.unwrap();
    assert!(version.trim_start_matches('v').starts_with("2."), "{version}");
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
    tokio::time::timeout(TEST_TIMEOUT, lost).await.unwrap();
    daemon.spawn();
    let found = wait_for("containerd to be found again", async || {
        runtime.inspect(NAMESPACE, "k1").await.ok()
    })
    .await;
    assert_eq!((found.pid, found.status), (pid, Status::Running));
    let again = async { while events.next().await.unwrap().kind != EventKind::Resync {} };
    tokio::time::timeout(TEST_TIMEOUT, again).await.unwrap();
    load.abort();
    runtime.delete(NAMESPACE, "k1", true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containerd_that_hangs_does_not_end_a_container_later() {
    let Some(daemon) = real::Containerd::start() else { return };
    let runtime = containerd_at(&daemon).await;
    runtime.import(NAMESPACE, &real::image_tar(daemon.directory.path()), None).await.unwrap();
    runtime.create(NAMESPACE, spec("h1", &[])).await.unwrap();
    let pid = runtime.start(NAMESPACE, "h1").await.unwrap().pid;
    assert_eq!(runtime.inspect(NAMESPACE, "h1").await.unwrap().pid, pid);
    daemon.hang(true);
    let error = runtime.restart(NAMESPACE, "h1", Restart::Full { grace: GRACE }).await.unwrap_err();
    assert_eq!(error.to_string(), "containerd does not answer: no answer within 2 s");
    daemon.hang(false);
    wait_for("containerd to go on", async || runtime.version().await.ok()).await;
    let restarted = runtime.restart(NAMESPACE, "h1", Restart::Full { grace: GRACE }).await.unwrap();
    assert_eq!(restarted.old_pid, pid);
    runtime.delete(NAMESPACE, "h1", true).await.unwrap();
}

/// Defects 17 and 18 of the original: a connection for every call, and six
/// calls for every container.
/// The last answers of a containerd that hangs are not passed off as current.
#[tokio::test(flavor = "multi_thread")]
async fn containerd_that_hangs_is_told_of() {
    let Some(daemon) = real::Containerd::start() else { return };
    let runtime = containerd_at(&daemon).await;
    let mut events = runtime.events().await.unwrap();
    let image = real::image_tar(daemon.directory.path());
    // From the first event on it is believed without being asked.
    loop {
        runtime.import(NAMESPACE, &image, None).await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(1), events.next()).await;
        if event.is_ok_and(|event| event.unwrap().kind != EventKind::Lost) {
            break;
        }
    }
    runtime.list(NAMESPACE).await.unwrap();
    daemon.hang(true);
    let told = async { while events.next().await.unwrap().kind != EventKind::Lost {} };
    tokio::time::timeout(TEST_TIMEOUT, told).await.unwrap();
    let error = runtime.list(NAMESPACE).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    daemon.hang(false);
    wait_for("containerd again", async || runtime.list(NAMESPACE).await.ok()).await;
}

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
        assert!(began.elapsed() < TEST_TIMEOUT);
        assert_eq!(runtime.is_installed(), socket.exists(), "who was never there is not missed");
        let cri = selvage_runtime::cri::Cri::new(&socket);
        let error = cri.list("k8s.io").await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().starts_with("error connecting to CRI: "), "{error}");
        let error = cri.list("system").await.unwrap_err();
        assert_eq!(error.to_string(), "CRI inspector is supported only for K8s namespace");
    }
}
