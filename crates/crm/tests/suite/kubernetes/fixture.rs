//! A real cluster, and cloudlets on it.

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{
        App, AppInst, AppInstInfo, AppInstKey, AppKey, CloudletKey, ClusterInst, ClusterInstKey,
        ClusterKey, DeveloperKey, Flavor, FlavorKey, OperatorKey, TrackedState,
    },
};
use selvage_crm::{Crm, Forwarding, ImageFolders, Platform, Settings, Site};
use selvage_kit::tasks::Tasks;
use selvage_kube::kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use selvage_notify::ClientOptions;
use selvage_runtime::{Exec, ExecOutput, ImageBuilder, containerd};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::support::{ANSWER, TEST_TIMEOUT, TestController, wait_for};

pub(super) const IMAGE: &str = "localhost/hello:1";
const NEEDED: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];

/// One cluster for all tests; it ends with the process, which holds its input.
pub(super) struct Cluster {
    _process: Child,
    _output: BufReader<ChildStdout>,
    pub(super) kubeconfig: PathBuf,
    helm: PathBuf,
    _images: tempfile::TempDir,
}

/// Says loudly that a test did not run.
fn skip<T>(reason: &str) -> Option<T> {
    selvage_testkit::skip("kubernetes", reason);
    None
}

/// Third byte of all addresses of the cluster; another process has another.
fn number() -> u32 {
    std::process::id() % 250 + 1
}

/// The folder of the binaries, which `tests/kubernetes/build` makes, and helm.
fn binaries() -> Option<(PathBuf, PathBuf)> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let cache = cache.join("selvage/tools/kubernetes");
    let mut folders = vec![cache.clone()];
    folders.extend(inside(&cache));
    let charts = inside(&cache.join("helm")).into_iter().chain([cache]);
    let charts = charts.map(|folder| folder.join("helm"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    let whole = |folder: &PathBuf| NEEDED.iter().all(|name| folder.join(name).is_file());
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("helm"));
    let helm = charts.chain(in_path).find(|program| program.is_file())?;
    Some((folders.into_iter().find(whole)?, helm))
}

/// Content of a folder, the latest version first.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort();
    found.reverse();
    found
}

fn image(folder: &Path, name: &str, file: &str, command: &[&str]) -> PathBuf {
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let names = ["sh", "httpd", "sleep", "cat", "echo", "env", "stty", "false", "touch"];
    let builder = ImageBuilder::busybox(&busybox, &names)
        .unwrap()
        .command(command.to_vec())
        .file("www/index.html", 0o644, ANSWER.as_bytes())
        .unwrap();
    let path = folder.join(file);
    builder.write(name, &path).unwrap();
    path
}

/// A copy of a program that every user may run.
fn for_everybody(program: &Path, folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let copy = folder.join(program.file_name().unwrap());
    std::fs::copy(program, &copy).unwrap();
    for path in [folder, &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

impl Cluster {
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("this needs root");
        }
        let Some((binaries, helm)) = binaries() else {
            return skip("there are no binaries: run ./dev kubernetes");
        };
        let images = tempfile::tempdir().unwrap();
        let helm = for_everybody(&helm, images.path());
        let pause =
            image(images.path(), "localhost/pause:1", "pause.tar", &["/bin/sleep", "1000000"]);
        let serve = ["/bin/httpd", "-f", "-p", "8080", "-h", "/www"];
        let hello = image(images.path(), IMAGE, "hello.tar", &serve);
        let mut process =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubernetes/run"))
                .arg(&binaries)
                .arg(number().to_string())
                .args([pause, hello])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let folder = line.trim().strip_prefix("ready ").expect("the cluster starts");
        let kubeconfig = Path::new(folder).join("kubeconfig");
        Some(Self { _process: process, _output: output, kubeconfig, helm, _images: images })
    }

    pub(super) async fn shared() -> Option<&'static Self> {
        static CLUSTER: OnceCell<Option<Cluster>> = OnceCell::const_new();
        let start = || async { tokio::task::spawn_blocking(Self::start).await.unwrap() };
        CLUSTER.get_or_init(start).await.as_ref()
    }

    pub(super) async fn client(&self) -> Client {
        let file = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        Client::try_from(config.unwrap()).unwrap()
    }

    /// Objects of a kind anywhere that are not about to go, as
    /// `namespace/name`.
    pub(super) async fn names(
        &self,
        group: &str,
        version: &str,
        kind: &str,
        selector: &str,
    ) -> Vec<String> {
        let found = self.list(group, version, kind, selector).await.into_iter();
        let found = found.filter(|object| object.metadata.deletion_timestamp.is_none());
        let name = |object: DynamicObject| {
            let metadata = object.metadata;
            format!("{}/{}", metadata.namespace.unwrap_or_default(), metadata.name.unwrap())
        };
        found.map(name).collect()
    }

    pub(super) async fn list(
        &self,
        group: &str,
        version: &str,
        kind: &str,
        selector: &str,
    ) -> Vec<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(self.client().await, &kind);
        api.list(&ListParams::default().labels(selector)).await.unwrap().items
    }

    pub(super) fn helm(&self) -> PathBuf {
        self.helm.clone()
    }
}

/// A cloudlet on the cluster, with a cluster and an app.
pub(super) struct Edge {
    pub(super) name: &'static str,
    pub(super) developer: String,
    pub(super) kubeconfig: PathBuf,
    pub(super) directory: tempfile::TempDir,
    pub(super) public: u16,
    pub(super) start_timeout: Duration,
}

impl Edge {
    pub(super) fn new(cluster: &Cluster, name: &'static str, public: u16) -> Self {
        Self {
            name,
            developer: "Acme".into(),
            kubeconfig: cluster.kubeconfig.clone(),
            directory: tempfile::tempdir().unwrap(),
            public,
            start_timeout: Duration::from_secs(20),
        }
    }

    pub(super) fn cloudlet(&self) -> CloudletKey {
        let operator_key = Some(OperatorKey { name: "test".into() });
        CloudletKey { operator_key, name: self.name.into() }
    }

    pub(super) fn cluster_key(&self) -> ClusterInstKey {
        ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "edge".into() }),
            cloudlet_key: Some(self.cloudlet()),
            developer: self.developer.clone(),
        }
    }

    pub(super) fn key(&self) -> AppInstKey {
        AppInstKey { app_key: self.app("").key, cluster_inst_key: Some(self.cluster_key()) }
    }

    pub(super) fn app(&self, manifest: &str) -> App {
        App {
            key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: self.developer.clone() }),
                name: "Hello".into(),
                version: "1.0".into(),
            }),
            deployment: "kubernetes".into(),
            deployment_manifest: manifest.into(),
            access_ports: "tcp:8080".into(),
            ..App::default()
        }
    }

    pub(super) fn flavor(&self) -> Flavor {
        let key = Some(FlavorKey { name: "small".into() });
        Flavor { key, ram: 256, vcpus: 1, disk: 1, ..Flavor::default() }
    }

    pub(super) fn cluster(&self, state: TrackedState, nodes: u32) -> ClusterInst {
        ClusterInst {
            key: Some(self.cluster_key()),
            flavor: self.flavor().key,
            state: state.into(),
            num_nodes: nodes,
            ..ClusterInst::default()
        }
    }

    pub(super) fn instance(&self, state: TrackedState) -> AppInst {
        AppInst {
            key: Some(self.key()),
            flavor: self.flavor().key,
            state: state.into(),
            mapped_ports: vec![AppPort {
                proto: LProto::Tcp.into(),
                internal_port: 8080,
                public_port: i32::from(self.public),
                ..AppPort::default()
            }],
            ..AppInst::default()
        }
    }

    pub(super) fn at(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.public))
    }

    pub(super) fn settings(&self, controller: SocketAddr) -> Settings {
        let text = "cloudlet_kind: kubernetes\ncommon:\n  docker_registry: reg.example\n  \
                    docker_reg_pass: joe:geheim\n";
        let mut site = Site::parse(text).unwrap();
        site.kubeconfig = Some(self.kubeconfig.clone());
        let nowhere = containerd::Options::new(self.directory.path().join("nowhere"));
        Settings {
            cloudlet: self.cloudlet(),
            node: "test".into(),
            site,
            data: self.directory.path().to_owned(),
            notify: ClientOptions {
                addresses: vec![controller.to_string()],
                ..ClientOptions::default()
            },
            runtime: Arc::new(containerd::Containerd::new(nowhere)),
            namespace: "selvage".into(),
            images: ImageFolders::default(),
            pull_secrets: Some(self.directory.path().join("pull-secrets")),
            private_hosts: Vec::new(),
            lvmd: self.directory.path().join("lvmd.sock"),
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            forwarding: Forwarding::default(),
            users: selvage_runtime::Users::default(),
            egress: selvage_crm::Egress::default(),
            tls: None,
            start_timeout: self.start_timeout,
            grace: Duration::from_secs(2),
            resync_interval: Duration::from_millis(500),
            samples: Duration::from_secs(3600),
        }
    }

    pub(super) async fn start(&self, controller: &TestController) -> Running {
        let settings = self.settings(controller.address);
        let platform = Crm::platform_of(&settings).unwrap();
        let crm = wait_for("the crm's file", || async {
            match Crm::open(settings.clone()).await {
                Err(selvage_crm::Error::Store(selvage_store::Error::Locked { .. })) => None,
                opened => Some(Arc::new(opened.unwrap())),
            }
        })
        .await;
        let tasks = Tasks::new(CancellationToken::new());
        crm.spawn(&tasks);
        Running { tasks, platform }
    }

    /// Wants a cluster, and waits for it.
    pub(super) async fn make_cluster(&self, controller: &TestController) {
        controller.flavors.put(self.flavor()).unwrap();
        controller.clusters.put(self.cluster(TrackedState::CreateRequested, 2)).unwrap();
        controller.cluster_state(&self.cluster_key(), TrackedState::Ready).await;
        controller.clusters.put(self.cluster(TrackedState::Ready, 2)).unwrap();
    }

    /// Wants an instance of this app, and waits for the state.
    pub(super) async fn make(
        &self,
        controller: &TestController,
        app: App,
        state: TrackedState,
    ) -> Arc<AppInstInfo> {
        controller.apps.put(app).unwrap();
        controller.instances.put(self.instance(TrackedState::CreateRequested)).unwrap();
        let info = controller.instance_state(&self.key(), state).await;
        if state == TrackedState::Ready {
            controller.instances.put(self.instance(TrackedState::Ready)).unwrap();
        }
        info
    }

    /// Wants an instance of this app, and waits until it says why it cannot be.
    pub(super) async fn fail(&self, controller: &TestController, app: App, says: &str) {
        controller.apps.put(app).unwrap();
        controller.instances.put(self.instance(TrackedState::CreateRequested)).unwrap();
        let errors = wait_for(&format!("{says:?}"), || async {
            let info = controller.instance_infos.find(&self.key())?;
            assert_ne!(info.state(), TrackedState::Ready, "{says}");
            (info.state() == TrackedState::CreateError).then(|| info.errors.clone())
        })
        .await;
        assert!(errors[0].starts_with("Create App Inst failed: "), "{errors:?}");
        assert!(errors[0].contains(says), "{says}: {errors:?}");
    }

    pub(super) async fn unmake(&self, controller: &TestController) {
        controller.instances.put(self.instance(TrackedState::DeleteRequested)).unwrap();
        wait_for("the instance's end", || async {
            controller.instance_infos.find(&self.key()).is_none().then_some(())
        })
        .await;
        controller.instances.remove(&self.instance(TrackedState::Ready)).unwrap();
    }

    pub(super) async fn unmake_cluster(&self, controller: &TestController) {
        controller.clusters.put(self.cluster(TrackedState::DeleteRequested, 2)).unwrap();
        wait_for("the cluster's end", || async {
            controller.cluster_infos.find(&self.cluster_key()).is_none().then_some(())
        })
        .await;
        controller.clusters.remove(&self.cluster(TrackedState::Ready, 2)).unwrap();
    }

    /// Namespaces of this cloudlet.
    pub(super) async fn namespaces(&self, cluster: &Cluster) -> Vec<DynamicObject> {
        cluster.namespaces_of(self.name).await
    }
}

impl Cluster {
    /// Namespaces of a cloudlet.
    pub(super) async fn namespaces_of(&self, cloudlet: &str) -> Vec<DynamicObject> {
        let all = self.list("", "v1", "Namespace", "selvage.site").await;
        let mine = format!("\"{cloudlet}\"");
        let of = |namespace: &DynamicObject| {
            let notes = namespace.metadata.annotations.clone().unwrap_or_default();
            notes.get("selvage.cluster").is_some_and(|text| text.contains(&mine))
        };
        all.into_iter().filter(of).collect()
    }
}

pub(super) struct Running {
    pub(super) tasks: Tasks,
    pub(super) platform: Arc<dyn Platform>,
}

impl Running {
    pub(super) async fn stop(self) {
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(TEST_TIMEOUT).await;
    }
}

/// As the controller's generator writes it, but for the image, which is on the
/// node already.
pub(super) fn manifest(image: &str, command: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Service
metadata:
  name: hello-tcp
  labels:
    run: hello
spec:
  type: LoadBalancer
  ports:
  - name: tcp8080
    protocol: TCP
    port: 8080
    targetPort: 8080
  selector:
    run: hello
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: hello-deployment
spec:
  replicas: 1
  selector:
    matchLabels:
      run: hello
  template:
    metadata:
      labels:
        run: hello
    spec:
      terminationGracePeriodSeconds: 1
      imagePullSecrets:
      - name: mexgitlabsecret
      containers:
      - name: hello
        image: {image}
        imagePullPolicy: IfNotPresent
        ports:
        - containerPort: 8080
          protocol: TCP
{command}"
    )
}

pub(super) fn command(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("        - {word:?}\n")).collect();
    format!("        command:\n{}", words.concat())
}

pub(super) async fn collect(exec: &mut Exec) -> (String, i32) {
    let mut text = Vec::new();
    loop {
        let next = tokio::time::timeout(TEST_TIMEOUT, exec.output.recv()).await.expect("an end");
        match next.expect("how it ended") {
            ExecOutput::Stdout(bytes) | ExecOutput::Stderr(bytes) => text.extend_from_slice(&bytes),
            ExecOutput::Exited(code) => return (String::from_utf8(text).unwrap(), code),
            ExecOutput::Failed(error) => panic!("{error}"),
        }
    }
}
