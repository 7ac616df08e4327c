//! A cloudlet to test with: a runtime, a controller's end of notify, and an
//! app that answers.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{
        App, AppInst, AppInstInfo, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey,
        ClusterInst, ClusterInstInfo, ClusterInstKey, ClusterKey, DeveloperKey, ExecRequest,
        Flavor, FlavorKey, IpAccess, Node, OperatorKey, TrackedState,
    },
};
use selvage_crm::{
    Crm, Error, Platform, Result, Settings, Site,
    platform::{ClusterFacts, ClusterOrder, InstanceFacts, InstanceOrder, Resources, Usage},
};
use selvage_kit::tasks::Tasks;
use selvage_notify::{
    Cache, ClientOptions, Exchange, Mailbox, NotifyServer, OpenGate, ServerOptions,
};
use selvage_runtime::{Exec, ExecSpec, ImageBuilder, LogOptions, LogStream, Runtime, oci};
use tokio_util::sync::CancellationToken;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const IMAGE: &str = "localhost/hello:1";
/// What the app answers.
pub(crate) const ANSWER: &str = "hello from the edge";

/// Says loudly that a test did not run. On CI a missing part is a failure.
fn skip(part: &str, reason: &str) {
    assert!(std::env::var("CI").is_err(), "{part} is missing on CI: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {part}: {reason}");
}

fn find(program: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    folders.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// Whether containers can be made here; says so loudly when not.
pub(crate) fn can_run() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("containers", "this needs root");
        return false;
    }
    for program in ["runc", "busybox"] {
        if find(program).is_none() {
            skip(program, "it is not installed: run ./dev test");
            return false;
        }
    }
    true
}

/// Waits until the condition gives something.
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The controller's end: what it wants, and what it is told.
pub(crate) struct Upstairs {
    pub(crate) flavors: Arc<Cache<Flavor>>,
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) clusters: Arc<Cache<ClusterInst>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlets: Arc<Cache<Cloudlet>>,
    pub(crate) cloudlet_infos: Arc<Cache<CloudletInfo>>,
    pub(crate) cluster_infos: Arc<Cache<ClusterInstInfo>>,
    pub(crate) instance_infos: Arc<Cache<AppInstInfo>>,
    _server: NotifyServer,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
}

impl Upstairs {
    pub(crate) async fn start() -> Self {
        let (flavors, apps) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (clusters, instances) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (cloudlets, nodes) = (Cache::new().unwrap(), Cache::<Node>::new().unwrap());
        let (cloudlet_infos, cluster_infos) = (Cache::new().unwrap(), Cache::new().unwrap());
        let instance_infos: Arc<Cache<AppInstInfo>> = Cache::new().unwrap();
        let (mailbox, _letters) = Mailbox::<ExecRequest>::new(8).unwrap();
        let exchange = Exchange::new()
            .send(flavors.clone())
            .send(cloudlets.clone())
            .send(clusters.clone())
            .send(apps.clone())
            .send(instances.clone())
            .receive(cloudlet_infos.clone())
            .receive(instance_infos.clone())
            .receive(cluster_infos.clone())
            .receive(nodes)
            .receive_messages(mailbox);
        let options = ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() };
        let server = NotifyServer::new(exchange, options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let service = server.service();
        let until = stop.clone();
        tokio::spawn(async move {
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, until.cancelled_owned())
                .await
        });
        Self {
            flavors,
            apps,
            clusters,
            instances,
            cloudlets,
            cloudlet_infos,
            cluster_infos,
            instance_infos,
            _server: server,
            address,
            stop,
        }
    }

    /// Wants a cluster, and all that an app needs.
    pub(crate) fn furnish(&self, site: &Place) {
        self.flavors
            .put(Flavor {
                key: Some(FlavorKey { name: "small".into() }),
                ram: 64,
                vcpus: 1,
                disk: 1,
                ..Flavor::default()
            })
            .unwrap();
        self.apps.put(site.app()).unwrap();
        self.cloudlets.put(Cloudlet { key: Some(site.cloudlet()), ..Cloudlet::default() }).unwrap();
    }

    pub(crate) async fn cluster_state(&self, key: &ClusterInstKey, state: TrackedState) {
        wait_for(&format!("the cluster in {state:?}"), || async {
            let info = self.cluster_infos.find(key)?;
            assert!(info.errors.is_empty() || is_error(state), "{:?}", info.errors);
            (info.state() == state).then_some(())
        })
        .await;
    }

    pub(crate) async fn instance_state(
        &self,
        key: &AppInstKey,
        state: TrackedState,
    ) -> Arc<AppInstInfo> {
        wait_for(&format!("the instance in {state:?}"), || async {
            let info = self.instance_infos.find(key)?;
            assert!(info.errors.is_empty() || is_error(state), "{:?}", info.errors);
            (info.state() == state).then_some(info)
        })
        .await
    }

    /// Wants an instance and its cluster, and waits until both are there.
    pub(crate) async fn make(&self, site: &Place) {
        self.furnish(site);
        self.clusters.put(site.cluster(TrackedState::CreateRequested)).unwrap();
        self.cluster_state(&site.cluster_key(), TrackedState::Ready).await;
        self.clusters.put(site.cluster(TrackedState::Ready)).unwrap();
        self.instances.put(site.instance(TrackedState::CreateRequested)).unwrap();
        self.instance_state(&site.instance_key(), TrackedState::Ready).await;
        self.instances.put(site.instance(TrackedState::Ready)).unwrap();
    }

    /// Wants both gone, as a controller does, and waits until they are.
    pub(crate) async fn unmake(&self, site: &Place) {
        self.instances.put(site.instance(TrackedState::DeleteRequested)).unwrap();
        wait_for("the instance's end", || async {
            self.instance_infos.find(&site.instance_key()).is_none().then_some(())
        })
        .await;
        self.instances.remove(&site.instance(TrackedState::Ready)).unwrap();
        self.clusters.put(site.cluster(TrackedState::DeleteRequested)).unwrap();
        wait_for("the cluster's end", || async {
            self.cluster_infos.find(&site.cluster_key()).is_none().then_some(())
        })
        .await;
        self.clusters.remove(&site.cluster(TrackedState::Ready)).unwrap();
    }
}

impl Drop for Upstairs {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn is_error(state: TrackedState) -> bool {
    use TrackedState::{CreateError, DeleteError, UpdateError};
    matches!(state, CreateError | UpdateError | DeleteError)
}

/// A cloudlet, by its name, with a cluster and an app on it. Tests that run at
/// the same time have different ones.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    /// The second byte of its networks.
    pub(crate) range: u8,
    pub(crate) directory: tempfile::TempDir,
    image: PathBuf,
    pub(crate) command: String,
}

impl Place {
    pub(crate) fn new(name: &'static str, range: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("hello.tar");
        let busybox = std::fs::read(find("busybox").unwrap()).unwrap();
        let mut builder = ImageBuilder::new().variable("PATH", "/bin").command([
            "/bin/httpd",
            "-f",
            "-p",
            "8080",
            "-h",
            "/www",
        ]);
        for folder in ["bin", "etc", "tmp", "www", "proc", "sys", "dev"] {
            builder = builder.directory(folder, 0o755).unwrap();
        }
        builder = builder.file("bin/busybox", 0o755, &busybox).unwrap();
        for link in ["sh", "httpd", "sleep", "cat", "touch", "wget", "ls", "false", "echo"] {
            builder = builder.link(&format!("bin/{link}"), "busybox").unwrap();
        }
        builder = builder.file("www/index.html", 0o644, ANSWER.as_bytes()).unwrap();
        builder.write(IMAGE, &image).unwrap();
        Self { name, range, directory, image, command: String::new() }
    }

    pub(crate) fn cloudlet(&self) -> CloudletKey {
        CloudletKey {
            operator_key: Some(OperatorKey { name: "test".into() }),
            name: self.name.into(),
        }
    }

    pub(crate) fn cluster_key(&self) -> ClusterInstKey {
        ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "cluster".into() }),
            cloudlet_key: Some(self.cloudlet()),
            developer: "dev".into(),
        }
    }

    pub(crate) fn instance_key(&self) -> AppInstKey {
        AppInstKey { app_key: self.app().key, cluster_inst_key: Some(self.cluster_key()) }
    }

    pub(crate) fn app(&self) -> App {
        App {
            key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: "dev".into() }),
                name: "Hello".into(),
                version: "1.0".into(),
            }),
            image_path: format!("file://{}", self.image.display()),
            deployment: "docker".into(),
            access_ports: "tcp:8080".into(),
            command: self.command.clone(),
            ..App::default()
        }
    }

    pub(crate) fn cluster(&self, state: TrackedState) -> ClusterInst {
        ClusterInst {
            key: Some(self.cluster_key()),
            flavor: Some(FlavorKey { name: "small".into() }),
            state: state.into(),
            ip_access: IpAccess::Dedicated.into(),
            deployment: "docker".into(),
            ..ClusterInst::default()
        }
    }

    pub(crate) fn instance(&self, state: TrackedState) -> AppInst {
        AppInst {
            key: Some(self.instance_key()),
            flavor: Some(FlavorKey { name: "small".into() }),
            state: state.into(),
            mapped_ports: vec![AppPort {
                proto: LProto::Tcp.into(),
                internal_port: 8080,
                public_port: 80,
                ..AppPort::default()
            }],
            ..AppInst::default()
        }
    }

    /// Where the first cluster's public ports are.
    pub(crate) fn public(&self) -> SocketAddr {
        SocketAddr::from(([10, self.range, 1, 1], 80))
    }

    pub(crate) async fn runtime(&self) -> Arc<dyn Runtime> {
        let mut options = oci::Options::new(self.directory.path().join("containers"));
        options.state = self.directory.path().join("run");
        options.cgroup = format!("/selvage-crm-{}", self.name);
        options.program = find("runc");
        // One that was there before may need a moment to let go.
        wait_for("the runtime", || async {
            let opened = oci::Oci::open(options.clone()).await;
            opened.ok().map(|runtime| Arc::new(runtime) as Arc<dyn Runtime>)
        })
        .await
    }

    async fn settings(&self, controller: SocketAddr) -> Settings {
        let site = format!("common: {{network_scheme: 10.{}.0.0/16}}", self.range);
        Settings {
            cloudlet: self.cloudlet(),
            node: "test".into(),
            site: Site::parse(&site).unwrap(),
            data: self.directory.path().to_owned(),
            notify: ClientOptions {
                addresses: vec![controller.to_string()],
                ..ClientOptions::default()
            },
            runtime: self.runtime().await,
            namespace: "selvage".into(),
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            tls: None,
            patience: Duration::from_secs(30),
            grace: Duration::from_millis(300),
            look: Duration::from_millis(200),
            samples: Duration::from_millis(200),
        }
    }

    /// Starts its crm.
    pub(crate) async fn start(&self, controller: SocketAddr) -> Running {
        let settings = self.settings(controller).await;
        // One that was cut off in this process may need a moment to let go.
        let crm = wait_for("the crm's file", || async {
            match Crm::open(settings.clone()).await {
                Err(Error::Store(selvage_store::Error::Locked { .. })) => None,
                opened => Some(opened.unwrap()),
            }
        })
        .await;
        Running::of(crm, settings.runtime)
    }

    /// Starts its crm on a platform that stops at some call.
    pub(crate) async fn start_stuck(&self, controller: SocketAddr, stuck: &Arc<Stuck>) -> Running {
        let settings = self.settings(controller).await;
        let runtime = Arc::clone(&settings.runtime);
        let platform = Crm::platform_of(&settings).unwrap();
        let platform = Arc::new(Stops { platform, stuck: Arc::clone(stuck) });
        Running::of(Crm::with_platform(settings, platform).await.unwrap(), runtime)
    }

    /// What of ours is on the machine: bridges, cables, namespaces, mounts.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        let links = std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap();
        let mine = format!("10.{}.", self.range);
        let links = String::from_utf8_lossy(&links.stdout).into_owned();
        left.extend(links.lines().filter(|line| line.contains(&mine)).map(str::to_owned));
        let rules = std::process::Command::new("ip").args(["rule"]).output().unwrap();
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        left.extend(rules.lines().filter(|line| line.contains(&mine)).map(str::to_owned));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let home = self.directory.path().display().to_string();
        left.extend(mounts.lines().filter(|line| line.contains(&home)).map(str::to_owned));
        left
    }
}

/// A crm that runs.
pub(crate) struct Running {
    pub(crate) crm: Arc<Crm>,
    tasks: Tasks,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Running {
    fn of(crm: Crm, runtime: Arc<dyn Runtime>) -> Self {
        let crm = Arc::new(crm);
        let tasks = Tasks::new(CancellationToken::new());
        crm.spawn(&tasks);
        Self { crm, tasks, runtime }
    }

    /// Ends it, in good order; containers run on.
    pub(crate) async fn stop(self) {
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(PATIENCE).await;
        drop(self.crm);
        assert_eq!(Arc::strong_count(&self.runtime), 1, "somebody still holds the runtime");
    }
}

/// What is answered at a public port; none when nobody does.
pub(crate) async fn fetch(place: SocketAddr) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(place).await.ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        text.contains(" 200 OK").then_some(text)
    };
    tokio::time::timeout(Duration::from_secs(5), asked).await.ok().flatten()
}

/// Where a platform stops for ever: the how manieth call, before or after it.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) at: usize,
    pub(crate) after: bool,
    calls: AtomicUsize,
    stopped: tokio::sync::Notify,
}

impl Stuck {
    pub(crate) fn new(at: usize, after: bool) -> Arc<Self> {
        Arc::new(Self {
            at,
            after,
            calls: AtomicUsize::new(0),
            stopped: tokio::sync::Notify::new(),
        })
    }

    /// Returns when it has stopped.
    pub(crate) async fn reached(&self) {
        self.stopped.notified().await;
    }

    async fn pass<T>(&self, call: impl Future<Output = T>) -> T {
        let here = self.calls.fetch_add(1, Ordering::SeqCst) == self.at;
        if here && !self.after {
            self.stop().await;
        }
        let outcome = call.await;
        if here && self.after {
            self.stop().await;
        }
        outcome
    }

    async fn stop(&self) {
        self.stopped.notify_one();
        std::future::pending().await
    }
}

/// A platform that stops at some call that changes something.
struct Stops {
    platform: Arc<dyn Platform>,
    stuck: Arc<Stuck>,
}

#[async_trait::async_trait]
impl Platform for Stops {
    fn kind(&self) -> &'static str {
        self.platform.kind()
    }

    async fn resources(&self) -> Result<Resources> {
        self.platform.resources().await
    }

    fn plan_cluster(&self, order: &ClusterOrder, others: &[ClusterFacts]) -> Result<ClusterFacts> {
        self.platform.plan_cluster(order, others)
    }

    async fn create_cluster(&self, order: &ClusterOrder, facts: &ClusterFacts) -> Result<()> {
        self.stuck.pass(self.platform.create_cluster(order, facts)).await
    }

    async fn update_cluster(
        &self,
        order: &ClusterOrder,
        facts: &ClusterFacts,
    ) -> Result<ClusterFacts> {
        self.stuck.pass(self.platform.update_cluster(order, facts)).await
    }

    async fn keep_cluster(&self, key: &ClusterInstKey, facts: &ClusterFacts) -> Result<()> {
        self.platform.keep_cluster(key, facts).await
    }

    async fn delete_cluster(&self, key: &ClusterInstKey) -> Result<()> {
        self.stuck.pass(self.platform.delete_cluster(key)).await
    }

    fn plan_instance(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        self.platform.plan_instance(order, others)
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.stuck.pass(self.platform.create_instance(order, facts)).await
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        self.platform.keep_instance(order, facts).await
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        self.stuck.pass(self.platform.delete_instance(key)).await
    }

    async fn sweep(
        &self,
        clusters: &[ClusterInstKey],
        instances: &[AppInstKey],
    ) -> Result<Vec<String>> {
        self.platform.sweep(clusters, instances).await
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        self.platform.usage(key).await
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        self.platform.exec(key, container, spec).await
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        self.platform.logs(key, container, options).await
    }
}

/// A crm with threads of its own, so that it can be ended as by a power cut.
pub(crate) struct Life {
    threads: Option<tokio::runtime::Runtime>,
}

impl Life {
    pub(crate) async fn start(
        place: &Arc<Place>,
        controller: SocketAddr,
        stuck: &Arc<Stuck>,
    ) -> Self {
        let (place, stuck) = (Arc::clone(place), Arc::clone(stuck));
        let started = tokio::task::spawn_blocking(move || {
            let threads = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let running = threads.block_on(place.start_stuck(controller, &stuck));
            // It lives as long as the threads do.
            threads.spawn(async move {
                let _running = running;
                std::future::pending::<()>().await
            });
            threads
        });
        Self { threads: Some(started.await.unwrap()) }
    }

    /// Cuts the power.
    pub(crate) async fn cut(mut self) {
        let threads = self.threads.take().unwrap();
        tokio::task::spawn_blocking(move || threads.shutdown_timeout(PATIENCE)).await.unwrap();
    }
}
