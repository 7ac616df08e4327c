//! Conformance of platforms, whatever they are made of: one suite, and a small
//! fixture for each.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::edgeproto::{App, AppInstKey, CloudletKey, ClusterInstKey, Flavor, TrackedState};
use selvage_crm::{
    FetchPolicy, ImageFolders, Platform, Registries,
    platform::{
        ClusterFacts, ClusterOrder, InstanceFacts, InstanceOrder, Progress,
        containers::{self, Containers},
        network,
    },
};
use selvage_runtime::{ExecInput, ExecOutput, ExecSpec, LogOptions, Runtime, Users, containerd};

use crate::{
    real,
    support::{ANSWER, TEST_TIMEOUT, TestCloudlet, can_run, fetch, wait_for},
};

/// Line that an app writes to its log when it starts.
pub(crate) const STARTED: &str = "started";

/// Platform under the suite.
#[async_trait]
pub(crate) trait Fixture: Sync {
    /// The cloudlet, with an app that answers with [`ANSWER`] at port 8080,
    /// says [`STARTED`] in its log, and has a shell.
    fn place(&self) -> &TestCloudlet;

    /// The platform as a crm has it that just started; of this cloudlet, or of
    /// another one on the same machine.
    async fn open(&self, cloudlet: &CloudletKey) -> Arc<dyn Platform>;

    fn flavor(&self) -> Flavor;

    /// Returns whether instances are in clusters.
    fn has_clusters(&self) -> bool {
        true
    }

    fn app(&self) -> App {
        self.place().app()
    }

    /// An app as it has to be with this name and this image.
    fn fitted(&self, app: App) -> App {
        app
    }

    /// A path where no image is, and words of the reason why.
    fn bad_image(&self) -> (String, &'static str);

    /// Ends an instance as an accident would.
    async fn kill(&self, facts: &InstanceFacts);

    /// Returns what is there of the cloudlet.
    async fn left(&self) -> Vec<String>;
}

/// A platform under test, with its cluster.
struct Bench<'a> {
    fixture: &'a dyn Fixture,
    platform: Arc<dyn Platform>,
    cluster: Option<ClusterFacts>,
}

impl Bench<'_> {
    fn cluster_key(&self) -> ClusterInstKey {
        self.fixture.place().cluster_key()
    }

    fn clusters(&self) -> Vec<ClusterInstKey> {
        self.cluster.iter().map(|_| self.cluster_key()).collect()
    }

    fn cluster_order(&self) -> ClusterOrder {
        let place = self.fixture.place();
        ClusterOrder {
            cluster: place.cluster(TrackedState::CreateRequested),
            flavor: self.fixture.flavor(),
            progress: Progress::default(),
        }
    }

    /// Makes the cluster, twice.
    async fn furnish(&mut self) {
        if !self.fixture.has_clusters() {
            let refused = self.platform.plan_cluster(&self.cluster_order(), &[]).unwrap_err();
            assert!(refused.to_string().contains("has no clusters"), "{refused}");
            return;
        }
        let order = self.cluster_order();
        let facts = self.platform.plan_cluster(&order, &[]).unwrap();
        for _ in 0..2 {
            self.platform.create_cluster(&order, &facts).await.unwrap();
        }
        self.platform.keep_cluster(&self.cluster_key(), &facts).await.unwrap();
        self.cluster = Some(facts);
    }

    fn order(&self, app: App) -> InstanceOrder {
        let place = self.fixture.place();
        let app = self.fixture.fitted(app);
        let mut instance = place.instance(TrackedState::CreateRequested);
        let key = AppInstKey { app_key: app.key.clone(), ..place.instance_key() };
        instance.key = Some(key.clone());
        InstanceOrder {
            key,
            app,
            instance,
            flavor: self.fixture.flavor(),
            cluster: self.cluster_key(),
            cluster_facts: self.cluster.clone(),
            progress: Progress::default(),
        }
    }

    /// An instance of the same app under another name.
    fn other(&self, name: &str) -> InstanceOrder {
        let mut app = self.fixture.app();
        app.key.as_mut().unwrap().name = name.into();
        self.order(app)
    }

    async fn look_at(&self, order: &InstanceOrder, facts: &InstanceFacts) -> InstanceFacts {
        self.platform.look_at_instance(order, facts).await.unwrap()
    }

    async fn answers(&self, facts: &InstanceFacts) {
        let place = facts.place(8080, false);
        let answer = wait_for("an answer", || fetch(place)).await;
        assert!(answer.contains(ANSWER), "{answer}");
    }
}

/// Tries all that a crm may ask of a platform.
pub(crate) async fn conforms(fixture: &dyn Fixture) {
    let platform = fixture.open(&fixture.place().cloudlet()).await;
    let mut bench = Bench { fixture, platform, cluster: None };
    let resources = bench.platform.resources().await.unwrap();
    assert!(resources.ram > 0 && resources.vcores > 0 && resources.disk > 0, "{resources:?}");
    bench.furnish().await;
    let order = bench.order(fixture.app());
    let facts = bench.platform.plan_instance(&order, &[]).unwrap();
    bench.platform.create_instance(&order, &facts).await.unwrap();
    let facts = bench.look_at(&order, &facts).await;
    bench.answers(&facts).await;

    // The next process finds it as it is.
    bench.platform = fixture.open(&fixture.place().cloudlet()).await;
    assert!(!bench.platform.keep_instance(&order, &facts).await.unwrap());
    usage_grows(&bench, &order, &facts).await;
    log_and_shell(&bench, &order, &facts).await;

    fixture.kill(&facts).await;
    wait_for("an answer again", || async {
        bench.platform.keep_instance(&order, &facts).await.unwrap();
        fetch(bench.look_at(&order, &facts).await.place(8080, false)).await
    })
    .await;
    bench.platform.create_instance(&order, &facts).await.unwrap();
    let facts = bench.look_at(&order, &facts).await;
    bench.answers(&facts).await;

    bad_image(&bench, &facts).await;
    only_ours_are_swept(&bench, &order, &facts).await;
    for _ in 0..2 {
        bench.platform.delete_instance(&order.key).await.unwrap();
    }
    assert_eq!(fetch(facts.place(8080, false)).await, None);
    for _ in 0..2 {
        bench.platform.delete_cluster(&bench.cluster_key()).await.unwrap();
    }
    assert_eq!(bench.platform.sweep(&[], &[]).await.unwrap(), Vec::<String>::new());
    assert_eq!(fixture.left().await, Vec::<String>::new());
}

async fn usage_grows(bench: &Bench<'_>, order: &InstanceOrder, facts: &InstanceFacts) {
    let first = wait_for("memory in use", || async {
        let usage = bench.platform.usage(&order.key).await.unwrap();
        (usage.memory_bytes > 0).then_some(usage)
    })
    .await;
    let place = facts.place(8080, false);
    wait_for("more use of the processor", || async {
        let _ = fetch(place).await;
        let now = bench.platform.usage(&order.key).await.unwrap();
        (now.cpu_ns > first.cpu_ns).then_some(())
    })
    .await;
    let nobody = bench.other("Nobody").key;
    bench.platform.usage(&nobody).await.unwrap_err();
}

async fn log_and_shell(bench: &Bench<'_>, order: &InstanceOrder, facts: &InstanceFacts) {
    let name = &facts.containers[0];
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let mut log = bench.platform.logs(&order.key, name, options).await.unwrap();
    let mut said = String::new();
    let read = async {
        while !said.contains(STARTED) {
            let piece = log.next().await.expect("more of the log").unwrap();
            said += &String::from_utf8_lossy(&piece);
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, read).await.expect("its first words");
    assert!(bench.platform.logs(&order.key, "another", LogOptions::default()).await.is_err());

    let spec = ExecSpec { argv: vec!["sh".into()], stdin: true, ..ExecSpec::default() };
    let mut shell = bench.platform.exec(&order.key, name, spec.clone()).await.unwrap();
    // What is typed may be echoed; only what comes of it has this text.
    let typed = "echo he''re\n";
    shell.input.send(ExecInput::Stdin(typed.into())).await.unwrap();
    let mut said = String::new();
    let heard = async {
        while !said.contains("here") {
            match shell.output.recv().await.expect("an answer") {
                ExecOutput::Stdout(piece) | ExecOutput::Stderr(piece) => {
                    said += &String::from_utf8_lossy(&piece);
                }
                other => panic!("{other:?} after {said:?}"),
            }
        }
        shell.input.send(ExecInput::CloseStdin).await.unwrap();
        loop {
            match shell.output.recv().await.expect("an end") {
                ExecOutput::Exited(code) => break code,
                ExecOutput::Failed(error) => panic!("{error}"),
                ExecOutput::Stdout(_) | ExecOutput::Stderr(_) => {}
            }
        }
    };
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, heard).await.expect("a shell that answers"), 0);
    assert!(bench.platform.exec(&order.key, "another", spec).await.is_err());
}

async fn bad_image(bench: &Bench<'_>, facts: &InstanceFacts) {
    let before = bench.fixture.left().await;
    let mut order = bench.other("Bad");
    let (path, words) = bench.fixture.bad_image();
    order.app.image_path = path;
    order.app = bench.fixture.fitted(order.app);
    let planned = bench.platform.plan_instance(&order, std::slice::from_ref(facts)).unwrap();
    let error = bench.platform.create_instance(&order, &planned).await.unwrap_err();
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text += &format!(": {source}");
    }
    assert!(text.contains(words), "{text}");
    bench.platform.delete_instance(&order.key).await.unwrap();
    assert_eq!(bench.fixture.left().await, before);
}

async fn only_ours_are_swept(bench: &Bench<'_>, order: &InstanceOrder, facts: &InstanceFacts) {
    let stray = bench.other("Stray");
    let planned = bench.platform.plan_instance(&stray, std::slice::from_ref(facts)).unwrap();
    bench.platform.create_instance(&stray, &planned).await.unwrap();
    let planned = bench.look_at(&stray, &planned).await;
    assert_ne!(planned.place(8080, false), facts.place(8080, false));
    bench.answers(&planned).await;

    let elsewhere = CloudletKey { name: "elsewhere".into(), ..bench.fixture.place().cloudlet() };
    let elsewhere = bench.fixture.open(&elsewhere).await;
    assert_eq!(elsewhere.sweep(&[], &[]).await.unwrap(), Vec::<String>::new());
    drop(elsewhere);
    bench.answers(&planned).await;

    let known = [order.key.clone()];
    let swept = bench.platform.sweep(&bench.clusters(), &known).await.unwrap();
    assert!(swept.iter().any(|what| what.contains(&planned.containers[0])), "{swept:?}");
    assert_eq!(fetch(planned.place(8080, false)).await, None);
    bench.answers(facts).await;
    let swept = bench.platform.sweep(&bench.clusters(), &known).await.unwrap();
    assert_eq!(swept, Vec::<String>::new());
}

/// Containers, with whatever runs them.
struct InContainers {
    place: TestCloudlet,
    runtime: Arc<dyn Runtime>,
    namespace: &'static str,
}

#[async_trait]
impl Fixture for InContainers {
    fn place(&self) -> &TestCloudlet {
        &self.place
    }

    async fn open(&self, cloudlet: &CloudletKey) -> Arc<dyn Platform> {
        let range = format!("10.{}.0.0/16", self.place.range);
        let options = containers::Options {
            runtime: Arc::clone(&self.runtime),
            namespace: self.namespace.into(),
            range: network::Range::parse(&range).unwrap(),
            registries: Registries::default(),
            policy: FetchPolicy::default(),
            images: ImageFolders::new([self.place.directory.path().to_owned()]),
            data: self.place.directory.path().to_owned(),
            lvmd: self.place.directory.path().join("lvmd.sock"),
            start_timeout: TEST_TIMEOUT,
            forwarding: network::Forwarding::default(),
            users: Users::OwnIfPossible,
            egress: network::Egress::default(),
        };
        Arc::new(Containers::open(cloudlet, options).unwrap())
    }

    fn flavor(&self) -> Flavor {
        Flavor { ram: 64, vcpus: 1, disk: 1, ..Flavor::default() }
    }

    fn bad_image(&self) -> (String, &'static str) {
        ("127.0.0.1:1/nowhere/nothing:1".into(), "registry: ")
    }

    async fn kill(&self, facts: &InstanceFacts) {
        let found = self.runtime.inspect(self.namespace, &facts.containers[0]).await.unwrap();
        let pid = i32::try_from(found.pid.unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    async fn left(&self) -> Vec<String> {
        let mut left = self.place.left_behind();
        let all = self.runtime.list(self.namespace).await.unwrap();
        left.extend(all.into_iter().map(|container| container.runtime_id));
        // What the runtime has mounted for containers is not the platform's.
        left.retain(|what| !what.contains("overlay"));
        left
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_with_runc_conform() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("conform-oci", 176);
    let runtime = place.runtime().await;
    conforms(&InContainers { place, runtime, namespace: "selvage" }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_with_containerd_conform() {
    if !can_run() {
        return;
    }
    let Some(daemon) = real::Containerd::start() else { return };
    let options = containerd::Options {
        logs: daemon.directory.path().join("logs"),
        ..containerd::Options::new(daemon.socket())
    };
    let runtime: Arc<dyn Runtime> = Arc::new(containerd::Containerd::new(options));
    wait_for("containerd", || async { runtime.version().await.ok() }).await;
    let place = TestCloudlet::new("conform-containerd", 177);
    conforms(&InContainers { place, runtime, namespace: "selvage-crm-conforms" }).await;
}
