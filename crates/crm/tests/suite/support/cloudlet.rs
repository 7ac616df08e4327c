//! A cloudlet to test with: a runtime, and an app that answers.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, CloudletKey, ClusterInst, ClusterInstKey, ClusterKey,
        DeveloperKey, FlavorKey, IpAccess, OperatorKey, TrackedState,
    },
};
use selvage_crm::{Crm, Egress, Error, Forwarding, ImageFolders, Settings, Site};
use selvage_kit::tasks::Tasks;
use selvage_notify::ClientOptions;
use selvage_runtime::{ImageBuilder, Runtime, Users, oci};
use selvage_work::Reconcilers;
use tokio_util::sync::CancellationToken;

use super::{
    ANSWER, TEST_TIMEOUT, find, loop_devices,
    stuck::{Stops, Stuck},
    wait_for,
};

const IMAGE: &str = "localhost/hello:1";

/// A cloudlet, by its name, with a cluster and an app on it. Tests that run at
/// the same time have different ones.
pub(crate) struct TestCloudlet {
    pub(crate) name: &'static str,
    /// The second byte of its networks.
    pub(crate) range: u8,
    pub(crate) directory: tempfile::TempDir,
    image: PathBuf,
    /// Image path of the app; the file at first.
    pub(crate) image_path: String,
    pub(crate) command: String,
    /// A registry and its user, with a password.
    pub(crate) registry: Option<(String, String)>,
    pub(crate) private_hosts: Vec<String>,
    pub(crate) developer: &'static str,
    /// Kind of the cloudlet, and the app's deployment.
    pub(crate) kind: &'static str,
    pub(crate) deployment: &'static str,
    pub(crate) public_port: u16,
    /// Its ports beside the first: kind, number inside and number outside.
    pub(crate) more_ports: Vec<(LProto, u16, u16)>,
    /// Addresses of the public ports of shared clusters.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ip_access: IpAccess,
    pub(crate) forwarding: Forwarding,
    pub(crate) egress: Egress,
    /// Time for which something may be unknown, or undone, before it is
    /// believed.
    pub(crate) grace: Duration,
}

impl TestCloudlet {
    pub(crate) fn new(name: &'static str, range: u8) -> Self {
        Self::on(&std::env::temp_dir(), name, range)
    }

    /// The same, with its data in a folder of this one.
    pub(crate) fn on(folder: &Path, name: &'static str, range: u8) -> Self {
        let directory = tempfile::tempdir_in(folder).unwrap();
        let image = directory.path().join("hello.tar");
        let busybox = std::fs::read(find("busybox").unwrap()).unwrap();
        let start = "#!/bin/sh\necho started\nexec /bin/httpd -f -p 8080 -h /www\n";
        let names = ["sh", "httpd", "sleep", "cat", "touch", "wget", "ls", "false", "echo"];
        let builder = ImageBuilder::busybox(&busybox, &names)
            .unwrap()
            .command(["/bin/start"])
            .file("bin/start", 0o755, start.as_bytes())
            .unwrap()
            .file("www/index.html", 0o644, ANSWER.as_bytes())
            .unwrap();
        builder.write(IMAGE, &image).unwrap();
        let image_path = format!("file://{}", image.display());
        Self {
            name,
            range,
            directory,
            image,
            image_path,
            command: String::new(),
            registry: None,
            private_hosts: Vec::new(),
            developer: "dev",
            kind: "containers",
            deployment: "docker",
            public_port: 80,
            more_ports: Vec::new(),
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            ip_access: IpAccess::Dedicated,
            forwarding: Forwarding::default(),
            egress: Egress::default(),
            grace: Duration::from_millis(300),
        }
    }

    /// The file of its image.
    pub(crate) fn image(&self) -> &Path {
        &self.image
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
            developer: self.developer.into(),
        }
    }

    pub(crate) fn instance_key(&self) -> AppInstKey {
        AppInstKey { app_key: self.app().key, cluster_inst_key: Some(self.cluster_key()) }
    }

    pub(crate) fn app(&self) -> App {
        App {
            key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: self.developer.into() }),
                name: "Hello".into(),
                version: "1.0".into(),
            }),
            image_path: self.image_path.clone(),
            deployment: self.deployment.into(),
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
            ip_access: self.ip_access.into(),
            deployment: "docker".into(),
            ..ClusterInst::default()
        }
    }

    pub(crate) fn instance(&self, state: TrackedState) -> AppInst {
        AppInst {
            key: Some(self.instance_key()),
            flavor: Some(FlavorKey { name: "small".into() }),
            state: state.into(),
            mapped_ports: [(LProto::Tcp, 8080, self.public_port)]
                .iter()
                .chain(&self.more_ports)
                .map(|(proto, internal, public)| AppPort {
                    proto: (*proto).into(),
                    internal_port: (*internal).into(),
                    public_port: (*public).into(),
                    ..AppPort::default()
                })
                .collect(),
            ..AppInst::default()
        }
    }

    /// Another app, and an instance of it that is wanted in the same cluster.
    pub(crate) fn neighbour(&self) -> (App, AppInst) {
        let mut app = self.app();
        let mut instance = self.instance(TrackedState::CreateRequested);
        app.key.as_mut().unwrap().name = "Neighbour".into();
        instance.key.as_mut().unwrap().app_key = app.key.clone();
        instance.mapped_ports.truncate(1);
        instance.mapped_ports[0].public_port += 2;
        (app, instance)
    }

    /// Address of the first cluster's public ports.
    pub(crate) fn public(&self) -> SocketAddr {
        SocketAddr::from(([10, self.range, 1, 1], self.public_port))
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
        let (kind, range) = (self.kind, self.range);
        let mut site =
            format!("cloudlet_kind: {kind}\ncommon:\n  network_scheme: 10.{range}.0.0/16\n");
        if let Some((host, user)) = &self.registry {
            site += &format!("  docker_registry: {host}\n  docker_reg_pass: {user}\n");
        }
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
            images: ImageFolders::new([self.directory.path().to_owned()]),
            pull_secrets: Some(self.directory.path().join("pull-secrets")),
            private_hosts: self.private_hosts.clone(),
            lvmd: self.directory.path().join("lvmd.sock"),
            addresses: self.addresses.clone(),
            forwarding: self.forwarding,
            users: Users::OwnIfPossible,
            egress: self.egress.clone(),
            tls: None,
            start_timeout: Duration::from_secs(30),
            grace: self.grace,
            resync_interval: Duration::from_millis(200),
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

    /// Starts its crm on another runtime.
    pub(crate) async fn start_on(
        &self,
        controller: SocketAddr,
        runtime: &Arc<dyn Runtime>,
        namespace: &str,
    ) -> Running {
        let runtime = Arc::clone(runtime);
        let namespace = namespace.to_owned();
        let settings = Settings { runtime, namespace, ..self.settings(controller).await };
        Running::of(Crm::open(settings.clone()).await.unwrap(), settings.runtime)
    }

    /// Starts its crm on a platform that stops at some call.
    pub(crate) async fn start_stuck(&self, controller: SocketAddr, stuck: &Arc<Stuck>) -> Running {
        let settings = self.settings(controller).await;
        let runtime = Arc::clone(&settings.runtime);
        let platform = Crm::platform_of(&settings).unwrap();
        let platform = Arc::new(Stops::new(platform, stuck));
        Running::of(Crm::with_platform(settings, platform).await.unwrap(), runtime)
    }

    /// Its tables of the packet filter.
    pub(crate) fn tables(&self) -> Vec<String> {
        let site = selvage_crm::platform::network::prefix(&self.cloudlet()).unwrap();
        let tables = std::process::Command::new("nft").args(["list", "tables"]).output();
        let tables = tables.map(|printed| printed.stdout).unwrap_or_default();
        let tables = String::from_utf8_lossy(&tables).into_owned();
        tables.lines().filter(|line| line.contains(&site)).map(str::to_owned).collect()
    }

    /// Traces of ours on the machine: bridges, cables, rules, control groups,
    /// mounts, loop devices.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        let links = std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap();
        let mine = format!("10.{}.", self.range);
        let links = String::from_utf8_lossy(&links.stdout).into_owned();
        let site = selvage_crm::platform::network::prefix(&self.cloudlet()).unwrap();
        // Machines of clusters that other tests make may have networks of the same range.
        let own = |line: &&str| line.contains(&mine) && line.contains(&site);
        left.extend(links.lines().filter(own).map(str::to_owned));
        let rules = std::process::Command::new("ip").args(["rule"]).output().unwrap();
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        left.extend(rules.lines().filter(|line| line.contains(&mine)).map(str::to_owned));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let home = self.directory.path().display().to_string();
        let groups = selvage_runtime::cgroup::group::inside("/selvage-clusters").unwrap();
        left.extend(groups.into_iter().filter(|group| group.starts_with(&site)));
        left.extend(self.tables());
        let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains(&home)).collect();
        let disks = self.loop_devices(!mounts.is_empty());
        left.extend(mounts.into_iter().map(str::to_owned));
        left.extend(disks.iter().map(|file| file.display().to_string()));
        left
    }

    /// Disks that have a loop device. What is unmounted has one for as long as
    /// something that starts just then has not let go of it.
    fn loop_devices(&self, mounted: bool) -> Vec<PathBuf> {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            let left = loop_devices(self.directory.path());
            if mounted || left.is_empty() || Instant::now() > until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A crm that runs.
pub(crate) struct Running {
    pub(crate) crm: Arc<Crm>,
    pub(crate) reconcilers: Reconcilers,
    tasks: Tasks,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Running {
    fn of(crm: Crm, runtime: Arc<dyn Runtime>) -> Self {
        let crm = Arc::new(crm);
        let tasks = Tasks::new(CancellationToken::new());
        let reconcilers = crm.spawn(&tasks);
        Self { crm, reconcilers, tasks, runtime }
    }

    /// Ends it, in good order; containers run on.
    pub(crate) async fn stop(self) {
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(TEST_TIMEOUT).await;
        drop(self.crm);
        assert_eq!(Arc::strong_count(&self.runtime), 1, "somebody still holds the runtime");
    }
}

/// A crm with threads of its own, so that it can be ended as by a power cut.
pub(crate) struct Life {
    threads: Option<tokio::runtime::Runtime>,
}

impl Life {
    pub(crate) async fn start(
        place: &Arc<TestCloudlet>,
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
        tokio::task::spawn_blocking(move || threads.shutdown_timeout(TEST_TIMEOUT)).await.unwrap();
    }
}
