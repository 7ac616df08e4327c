//! The container runtime interface of a real containerd, with pods in a
//! bridged network. The test is the kubelet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, path::Path, time::Duration};

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use selvage_api::Code;
use selvage_runtime::{
    Container, ExecOutput, ExecSpec, Kind, LogOptions, Restart, Runtime, Status, containerd,
    cri::Cri,
};
use selvage_testkit::containers::{self as real, IMAGE, wait_for};
use tonic::transport::{Channel, Endpoint};

const NAMESPACE: &str = "k8s.io";
const BRIDGE: &str = "selvage-test0";
const POD: &str = "default/pod";
const APP: &str = "default/pod:app";

struct Kubelet {
    client: RuntimeServiceClient<Channel>,
    pod: v1::PodSandboxConfig,
    sandbox: String,
}

impl Kubelet {
    async fn new(socket: &Path, logs: &Path) -> Self {
        let socket = socket.to_owned();
        let channel = Endpoint::from_static("http://cri.invalid").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
            }),
        );
        let labels = [
            ("io.kubernetes.pod.name", "pod"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "uid-1"),
        ];
        let pod = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "pod".into(),
                uid: "uid-1".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: "pod".into(),
            log_directory: logs.display().to_string(),
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            linux: Some(v1::LinuxPodSandboxConfig::default()),
            ..Default::default()
        };
        let mut client = RuntimeServiceClient::new(channel);
        let request = v1::RunPodSandboxRequest { config: Some(pod.clone()), ..Default::default() };
        let sandbox = client.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
        Self { client, pod, sandbox }
    }

    async fn run(&mut self, attempt: u32) -> String {
        let script =
            "echo hello from the pod; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";
        let mut labels = self.pod.labels.clone();
        labels.insert("io.kubernetes.container.name".into(), "app".into());
        let restarts = ("io.kubernetes.container.restartCount".to_owned(), attempt.to_string());
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "app".into(), attempt }),
            image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
            command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            log_path: format!("app/{attempt}.log"),
            labels,
            annotations: [restarts].into(),
            linux: Some(v1::LinuxContainerConfig::default()),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: self.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(self.pod.clone()),
        };
        let id = self.client.create_container(request).await.unwrap().into_inner().container_id;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.client.start_container(request).await.unwrap();
        id
    }

    /// Starts another when the first has ended, as a kubelet does.
    async fn supervise(&mut self, first: &str) {
        loop {
            let request =
                v1::ContainerStatusRequest { container_id: first.to_owned(), verbose: false };
            let status = self.client.container_status(request).await.unwrap().into_inner().status;
            if status.unwrap().state() == v1::ContainerState::ContainerExited {
                self.run(1).await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn network(directory: &Path) {
    let config = serde_json::json!({
        "cniVersion": "0.4.0", "name": "selvage-test",
        "plugins": [
            { "type": "bridge", "bridge": BRIDGE, "isGateway": true, "ipMasq": false,
              "ipam": { "type": "host-local", "subnet": "10.231.7.0/24",
                        "dataDir": directory.join("ipam") } },
            { "type": "loopback" },
        ],
    });
    fs::write(directory.join("cni/10-test.conflist"), config.to_string()).unwrap();
}

/// Removes the bridge, whatever happened.
struct Bridge;

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["link", "del", BRIDGE]).status();
    }
}

async fn text(stream: selvage_runtime::LogStream) -> String {
    let pieces: Vec<_> = stream.collect().await;
    pieces.into_iter().map(|p| String::from_utf8(p.unwrap().to_vec()).unwrap()).collect()
}

/// There is one bridge for all.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn has_network() -> bool {
    let there = Path::new("/usr/lib/cni/bridge").exists();
    if !there {
        real::skip("CNI plugins", "they are not installed: run ./dev test");
    }
    there
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_by_cri_and_by_containerd() {
    if !has_network() {
        return;
    }
    let Some(daemon) = real::Containerd::start() else { return };
    Box::pin(pods(&daemon)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_containerd_2() {
    if !has_network() {
        return;
    }
    let Some(daemon) = real::Containerd::start_2() else { return };
    Box::pin(pods(&daemon)).await;
}

async fn pods(daemon: &real::Containerd) {
    let _alone = ALONE.lock().await;
    let directory = daemon.directory.path();
    network(directory);
    let by_containerd = containerd::Containerd::new(containerd::Options::new(daemon.socket()));
    wait_for("containerd", async || by_containerd.version().await.ok()).await;
    by_containerd.import(NAMESPACE, &real::image_tar(directory), None).await.unwrap();
    let cri = Cri::new(daemon.socket());
    wait_for("the image", async || {
        cri.images(NAMESPACE).await.ok()?.iter().any(|image| image.name == IMAGE).then_some(())
    })
    .await;
    let _bridge = Bridge;
    let mut kubelet = Kubelet::new(&daemon.socket(), &directory.join("pods")).await;
    let first = kubelet.run(0).await;

    let listed = cri.list(NAMESPACE).await.unwrap();
    let rows: Vec<_> = listed.iter().map(|c| (c.id.as_str(), c.kind, c.status)).collect();
    let expected =
        [(POD, Kind::Sandbox, Status::SandboxReady), (APP, Kind::App, Status::ContainerRunning)];
    assert_eq!(rows, expected);
    let (pod, app) = (&listed[0], &listed[1]);
    assert_eq!((pod.name.as_str(), pod.pod_id.as_str()), (POD, POD));
    assert_eq!((app.name.as_str(), app.pod_id.as_str(), app.uid.as_str()), ("app", POD, "uid-1"));
    assert_eq!(app.image, IMAGE);
    let pid = app.pid.unwrap();
    let version = by_containerd.version().await.unwrap();
    if version.trim_start_matches('v').starts_with("1.") {
        by_the_older_version(daemon, &listed).await;
    }

    let same = by_containerd.list(NAMESPACE).await.unwrap();
    let rows: Vec<_> = same.iter().map(|c| (c.id.as_str(), c.status.as_str(), c.pid)).collect();
    assert_eq!(rows, [(POD, "RUNNING", pod.pid), (APP, "RUNNING", Some(pid))]);
    assert_eq!(same[0].name, pod.runtime_id);
    assert!(same[1].supervised);
    assert_eq!(same[1].image, IMAGE);
    let network = same[0].network_namespace.as_ref().unwrap();
    assert!(network.starts_with("/var/run/netns"), "{}", network.display());
    assert!(cri.metrics(NAMESPACE, APP).await.unwrap().core().unwrap().cpu_ns > 0);

    for runtime in [&cri as &dyn Runtime, &by_containerd] {
        let log = wait_for("the log", async || {
            let log = runtime.logs(NAMESPACE, APP, LogOptions::default()).await.ok()?;
            Some(text(log).await).filter(|text| text.ends_with('\n'))
        })
        .await;
        assert!(log.ends_with(" stdout F hello from the pod\n"), "{log}");
        assert_eq!(
            runtime.logs(NAMESPACE, POD, LogOptions::default()).await.err().unwrap().to_string(),
            "no log available"
        );
        let spec = ExecSpec {
            argv: ["/bin/sh", "-c", "echo in; exit 3"].map(str::to_owned).into(),
            ..Default::default()
        };
        let mut exec = runtime.exec(NAMESPACE, APP, spec).await.unwrap();
        let (mut out, mut code) = (Vec::new(), None);
        while let Some(output) = exec.output.recv().await {
            match output {
                ExecOutput::Stdout(bytes) => out.extend_from_slice(&bytes),
                ExecOutput::Exited(exit) => code = Some(exit),
                _ => {}
            }
        }
        assert_eq!((out.as_slice(), code), (&b"in\n"[..], Some(3)));
    }
    for id in ["default/other", "default/pod:other", "pod", "a\nb"] {
        assert_eq!(cri.inspect(NAMESPACE, id).await.unwrap_err().code(), Code::NotFound);
    }

    let full = Restart::Full { grace: Duration::from_secs(10) };
    let (restarted, ()) =
        tokio::join!(cri.restart(NAMESPACE, APP, full), kubelet.supervise(&first));
    let restarted = restarted.unwrap();
    assert_eq!(restarted.old_pid, Some(pid));
    assert_ne!(restarted.new_pid.unwrap(), pid);
    for runtime in [&cri as &dyn Runtime, &by_containerd] {
        let second = runtime.inspect(NAMESPACE, APP).await.unwrap();
        assert_eq!((second.pid, second.restarts), (restarted.new_pid, 1), "{}", runtime.name());
        // Both containers wrote the same; each into its own file.
        let file = directory.join("pods/app/1.log");
        let written = wait_for("the second log", async || {
            fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let log = runtime.logs(NAMESPACE, APP, LogOptions::default()).await.unwrap();
        assert_eq!(text(log).await, written, "{}", runtime.name());
    }
    let ended = cri.inspect(NAMESPACE, &format!("{APP}:{}", &first[..12])).await.unwrap();
    assert_eq!((ended.status, ended.pid), (Status::ContainerExited, None));

    let stopped = cri.restart(NAMESPACE, APP, Restart::SignalOnly(15)).await.unwrap();
    assert_eq!(stopped.new_pid, None);
    cri.delete(NAMESPACE, POD, true).await.unwrap();
    assert!(cri.list(NAMESPACE).await.unwrap().is_empty());
    wait_for("containerd to see it", async || {
        by_containerd.list(NAMESPACE).await.unwrap().is_empty().then_some(())
    })
    .await;
}

/// Asks a containerd that knows both versions by the older alone.
async fn by_the_older_version(daemon: &real::Containerd, expected: &[Container]) {
    let between = daemon.directory.path().join("older");
    let (listening, behind) = (between.clone(), daemon.socket());
    let serving = tokio::spawn(async move { older_only(&listening, &behind).await });
    let cri = Cri::new(&between);
    wait_for("the older version", async || cri.version().await.ok()).await;
    assert_eq!(cri.list(NAMESPACE).await.unwrap(), expected);
    assert_eq!(cri.inspect(NAMESPACE, APP).await.unwrap().pid, expected[1].pid);
    serving.abort();
}

/// Stands before a server and knows the older version alone.
async fn older_only(socket: &Path, behind: &Path) {
    use http_body_util::{BodyExt, Either, Empty};
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let server = tokio::net::UnixStream::connect(behind).await.unwrap();
        let executor = hyper_util::rt::TokioExecutor::new();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(executor.clone(), TokioIo::new(server))
                .await
                .unwrap();
        tokio::spawn(connection);
        let answer = move |request: http::Request<hyper::body::Incoming>| {
            let mut sender = sender.clone();
            async move {
                if request.uri().path().starts_with("/runtime.v1.") {
                    let refused = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", "12");
                    return refused.body(Either::Left(Empty::<bytes::Bytes>::new()));
                }
                let answer = sender.send_request(request).await.unwrap();
                Ok(answer.map(|body| Either::Right(body.map_err(|error| panic!("{error}")))))
            }
        };
        let service = hyper::service::service_fn(answer);
        let connection = hyper::server::conn::http2::Builder::new(executor)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}
