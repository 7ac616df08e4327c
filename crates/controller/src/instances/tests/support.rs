//! A controller on a store in memory, and its crm.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use selvage_api::distributed_match_engine::Loc;
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
use selvage_api::edgeproto::{
    self as wire, App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey,
    CloudletRefs, CloudletState, ClusterInst, ClusterInstKey, ClusterKey, DeveloperKey, Flavor,
    FlavorInfo, FlavorKey, ImageType, IpSupport, OperatorKey, TrackedState,
};
use selvage_store::SharedStore;
use selvage_store::clock::ManualClock;
use selvage_store::embedded;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::controller::{Controller, Dependencies, Foundation, Mode};
use crate::instances::kind::Instance;
use crate::instances::{InstanceService, usage_check};
use crate::row::{Row, StoredObject};
use crate::settings::{Settings, Timeouts};

use super::crm::recover;
pub(super) use super::crm::{Crm, Manner, Reported, Script};

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lines of a streamed call, and its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) said: Vec<String>,
    pub(super) error: Option<Status>,
}

impl Answer {
    pub(super) fn ok(self) -> Vec<String> {
        assert!(self.error.is_none(), "{self:?}");
        self.said
    }

    pub(super) fn refused(self) -> String {
        let Some(error) = self.error else { panic!("{:?} was not refused", self.said) };
        error.message().to_owned()
    }

    /// The lines, and at last the error.
    pub(super) fn all(self) -> Vec<String> {
        let error = self.error.map(|error| format!("! {}", error.message()));
        self.said.into_iter().chain(error).collect()
    }
}

pub(super) async fn collect<S>(reply: Result<Response<S>, Status>) -> Answer
where
    S: futures::Stream<Item = Result<wire::Result, Status>> + Unpin,
{
    let mut stream = match reply {
        Ok(reply) => reply.into_inner(),
        Err(error) => return Answer { said: Vec::new(), error: Some(error) },
    };
    let mut answer = Answer { said: Vec::new(), error: None };
    while let Some(item) = stream.next().await {
        match item {
            Ok(result) => answer.said.push(result.message),
            Err(error) => answer.error = Some(error),
        }
    }
    answer
}

pub(super) async fn memory_store(clock: &ManualClock) -> SharedStore {
    let options =
        embedded::Options { clock: Arc::new(clock.clone()), ..embedded::Options::default() };
    embedded::Embedded::in_memory(options).await.unwrap()
}

/// One process of a controller.
pub(super) struct World {
    pub(super) controller: Arc<Controller>,
    pub(super) service: Arc<InstanceService>,
    pub(super) crm: Crm,
    pub(super) clock: ManualClock,
    running: JoinHandle<crate::Result<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        enforce_resources: false,
        timeouts: Timeouts::short(),
        lease: DAY,
        ..Settings::default()
    }
}

impl World {
    /// A controller on an empty store, with flavors but no cloudlet.
    pub(super) async fn new() -> Self {
        let clock = ManualClock::new(1_000_000_000_000);
        let store = memory_store(&clock).await;
        let world = Self::on(store, clock, Arc::default(), settings()).await;
        for (name, ram, vcpus, disk) in FLAVORS {
            world.put(flavor(name, *ram, *vcpus, *disk)).await;
        }
        world
    }

    /// The same with one cloudlet whose crm is there.
    pub(super) async fn with_cloudlet() -> Self {
        let world = Self::new().await;
        world.add_cloudlet("tmus", "cloud-1", 254).await;
        world
    }

    /// A process on a store, the cloudlets being as they were.
    pub(super) async fn on(
        store: SharedStore,
        clock: ManualClock,
        script: Arc<Mutex<Script>>,
        settings: Settings,
    ) -> Self {
        let mut world = Self::idle_on(store, clock, script, settings).await;
        world.drive();
        world
    }

    pub(super) fn drive(&mut self) {
        let running = Arc::clone(&self.controller).run(CancellationToken::new());
        self.running = tokio::spawn(running);
    }

    /// A process that drives no operations.
    pub(super) async fn idle_on(
        store: SharedStore,
        clock: ManualClock,
        script: Arc<Mutex<Script>>,
        settings: Settings,
    ) -> Self {
        let engine = selvage_work::Options {
            clock: Arc::new(clock.clone()),
            lease: DAY,
            ..selvage_work::Options::default()
        };
        let dependencies = Dependencies { engine, ..Dependencies::default() };
        let foundation = Foundation::open(store, settings, dependencies).await.unwrap();
        let service = InstanceService::open(&foundation).await.unwrap();
        let opened = Controller::open(foundation, Arc::clone(&service) as _).await;
        let controller = opened.unwrap();
        let crm = Crm::start(&controller, &service, script);
        let running = tokio::spawn(async { Ok(()) });
        Self { controller, service, crm, clock, running }
    }

    /// The process dies.
    pub(super) fn stop(&mut self) {
        self.running.abort();
        self.crm.cut();
    }

    /// The process dies and another takes its place.
    pub(super) async fn crash(self) -> Self {
        self.running.abort();
        let store = Arc::clone(&self.controller.store);
        let (clock, script) = (self.clock.clone(), Arc::clone(&self.crm.script));
        let settings = self.controller.settings.clone();
        drop(self);
        Self::on(store, clock, script, settings).await
    }

    pub(super) async fn put<M: crate::tables::HasTable>(&self, object: M) {
        self.controller.tables.of::<M>().put(Row(object)).await.unwrap();
    }

    pub(super) async fn add_cloudlet(&self, operator: &str, name: &str, ips: i32) {
        let key = cloudlet_key(operator, name);
        self.put(Cloudlet {
            key: Some(key.clone()),
            location: Some(Loc { latitude: 31.0, longitude: -91.0, ..Default::default() }),
            ip_support: IpSupport::Dynamic.into(),
            num_dynamic_ips: ips,
            ..Default::default()
        })
        .await;
        self.put(CloudletInfo {
            key: Some(key),
            state: CloudletState::Ready.into(),
            os_max_ram: 500,
            os_max_vcores: 50,
            os_max_vol_gb: 5000,
            flavors: vec![FlavorInfo {
                name: "flavor1".into(),
                vcpus: 10,
                ram: 101_024,
                disk: 500,
            }],
            ..Default::default()
        })
        .await;
    }

    pub(super) async fn add_app(&self, app: App) {
        self.controller.create_app(app, Mode::Real).await.unwrap();
    }

    pub(super) async fn create_cluster(&self, inst: &ClusterInst) -> Answer {
        collect(self.service.create_cluster_inst(Request::new(inst.clone())).await).await
    }

    pub(super) async fn update_cluster(&self, inst: &ClusterInst) -> Answer {
        collect(self.service.update_cluster_inst(Request::new(inst.clone())).await).await
    }

    pub(super) async fn delete_cluster(&self, inst: &ClusterInst) -> Answer {
        let request = Request::new(inst.clone());
        collect(ClusterInstApi::delete_cluster_inst(&*self.service, request).await).await
    }

    pub(super) async fn create_app(&self, inst: &AppInst) -> Answer {
        collect(self.service.create_app_inst(Request::new(inst.clone())).await).await
    }

    pub(super) async fn update_app(&self, inst: &AppInst) -> Answer {
        collect(self.service.update_app_inst(Request::new(inst.clone())).await).await
    }

    pub(super) async fn delete_app(&self, inst: &AppInst) -> Answer {
        let request = Request::new(inst.clone());
        collect(AppInstApi::delete_app_inst(&*self.service, request).await).await
    }

    pub(super) fn cluster(&self, inst: &ClusterInst) -> Option<ClusterInst> {
        let held = self.controller.tables.cluster_insts.get(&inst.key_text());
        held.map(|held| held.value.0.clone())
    }

    pub(super) fn app(&self, inst: &AppInst) -> Option<AppInst> {
        let held = self.controller.tables.app_insts.get(&inst.key_text());
        held.map(|held| held.value.0.clone())
    }

    pub(super) fn refs(&self, operator: &str, name: &str) -> CloudletRefs {
        let held = self.controller.tables.get::<CloudletRefs>(&cloudlet_key(operator, name));
        held.map(|held| held.value.0.clone()).unwrap_or_default()
    }

    /// Returns once a table shows what `test` looks for.
    pub(super) async fn until<I: Instance>(&self, inst: &I, test: impl Fn(Option<&I>) -> bool) {
        let table = self.controller.tables.of::<I>();
        let mut changes = table.subscribe();
        let waiting = async {
            loop {
                let held = table.get(&inst.key_text());
                if test(held.as_ref().map(|held| &held.value.0)) {
                    return;
                }
                changes.next().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it never came");
    }

    pub(super) async fn until_state<I: Instance>(&self, inst: &I, state: TrackedState) {
        self.until::<I>(inst, |row| row.is_some_and(|row| row.state() == state)).await;
    }

    /// Returns once no operation runs that this process knows of.
    pub(super) async fn idle(&self) {
        let active = |operation: &selvage_api::selvage::operations::Operation| {
            matches!(operation.state, 1 | 2)
        };
        for operation in self.controller.engine.list().into_iter().filter(active) {
            let handle = self.controller.engine.attach(&operation.id).unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(20), handle.ended()).await;
            let _ = ended.unwrap_or_else(|_| panic!("{operation:?} does not end"));
        }
    }

    /// Nothing is counted that is not there, nothing is there uncounted, and
    /// nothing is on a cloudlet that the controller has forgotten.
    pub(super) fn check(&self) {
        assert_eq!(usage_check::differences(&self.controller.tables), Vec::<String>::new());
        let tables = &self.controller.tables;
        for key in &self.crm.script.lock().reality {
            let known =
                tables.app_insts.get(key).is_some() || tables.cluster_insts.get(key).is_some();
            assert!(known, "{key} is an orphan");
        }
    }
}

pub(super) const FLAVORS: &[(&str, u64, u64, u64)] = &[
    ("x1.tiny", 1024, 1, 1),
    ("x1.small", 2048, 2, 2),
    ("x1.medium", 4096, 4, 4),
    ("x1.large", 8192, 10, 40),
];

pub(super) fn flavor(name: &str, ram: u64, vcpus: u64, disk: u64) -> Flavor {
    Flavor { key: Some(flavor_key(name)), ram, vcpus, disk, ..Default::default() }
}

pub(super) fn flavor_key(name: &str) -> FlavorKey {
    FlavorKey { name: name.into() }
}

pub(super) fn cloudlet_key(operator: &str, name: &str) -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: operator.into() }), name: name.into() }
}

pub(super) fn cluster_key(name: &str, cloudlet: CloudletKey, developer: &str) -> ClusterInstKey {
    ClusterInstKey {
        cluster_key: Some(ClusterKey { name: name.into() }),
        cloudlet_key: Some(cloudlet),
        developer: developer.into(),
    }
}

/// A cluster of one master and one node on the usual cloudlet.
pub(super) fn cluster(name: &str) -> ClusterInst {
    ClusterInst {
        key: Some(cluster_key(name, cloudlet_key("tmus", "cloud-1"), "Acme")),
        flavor: Some(flavor_key("x1.small")),
        num_masters: 1,
        num_nodes: 1,
        ..Default::default()
    }
}

pub(super) fn app_key(developer: &str, name: &str) -> AppKey {
    AppKey {
        developer_key: Some(DeveloperKey { name: developer.into() }),
        name: name.into(),
        version: "1.0".into(),
    }
}

pub(super) fn app(name: &str, ports: &str) -> App {
    App {
        key: Some(app_key("Acme", name)),
        image_type: ImageType::Docker.into(),
        image_path: "registry.example/app:1.0".into(),
        access_ports: ports.into(),
        default_flavor: Some(flavor_key("x1.small")),
        ..Default::default()
    }
}

pub(super) fn vm_app(name: &str, ports: &str) -> App {
    App {
        image_type: ImageType::Qcow.into(),
        image_path: "https://images.example/vm.qcow2#md5:d41d8cd98f00b204e9800998ecf8427e".into(),
        ..app(name, ports)
    }
}

/// An instance of an App of the usual developer in one of their clusters.
pub(super) fn app_inst(app: &str, cluster: &str) -> AppInst {
    AppInst {
        key: Some(AppInstKey {
            app_key: Some(app_key("Acme", app)),
            cluster_inst_key: Some(cluster_key(cluster, cloudlet_key("tmus", "cloud-1"), "Acme")),
        }),
        ..Default::default()
    }
}

pub(super) fn over<M: Clone>(object: &M, set: impl FnOnce(&mut M)) -> M {
    let mut object = object.clone();
    set(&mut object);
    object
}

impl World {
    /// Does something while the clock goes on, until it is done.
    pub(super) async fn while_time_passes<T>(&self, doing: impl Future<Output = T>) -> T {
        self.ticking(Duration::from_millis(500), doing).await
    }

    /// The same, so slowly that nothing runs out of time that is not stuck.
    pub(super) async fn while_moments_pass<T>(&self, doing: impl Future<Output = T>) -> T {
        self.ticking(Duration::from_millis(10), doing).await
    }

    async fn ticking<T>(&self, step: Duration, doing: impl Future<Output = T>) -> T {
        let ticking = async {
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.clock.advance(step);
            }
        };
        tokio::select! {
            done = doing => done,
            () = ticking => unreachable!("it goes on for ever"),
        }
    }

    /// Does something; once an instance is in a state the clock goes on.
    pub(super) async fn once<I: Instance, T>(
        &self,
        inst: &I,
        state: TrackedState,
        doing: impl Future<Output = T>,
    ) -> T {
        let waiting = async {
            self.until_state(inst, state).await;
            self.while_time_passes(std::future::pending::<()>()).await;
        };
        tokio::select! {
            done = doing => done,
            () = waiting => unreachable!("it goes on for ever"),
        }
    }

    /// The crm is started anew: what it was at has failed, what it was asked
    /// to delete is deleted.
    pub(super) async fn restart_crm(&self) {
        self.crm.script.lock().manners.clear();
        for held in self.controller.tables.cluster_insts.list() {
            recover(&held.value.0, &self.crm.script).await;
        }
        for held in self.controller.tables.app_insts.list() {
            recover(&held.value.0, &self.crm.script).await;
        }
    }

    /// Operations that have not come to their end, for people.
    pub(super) fn under_way(&self) -> Vec<String> {
        let all = self.controller.engine.list();
        let active = all.iter().filter(|operation| matches!(operation.state, 1 | 2));
        let tables = &self.controller.tables;
        let clusters = tables.cluster_insts.list();
        let apps = tables.app_insts.list();
        let states = clusters.iter().map(|held| (held.key.clone(), held.value.0.state()));
        let states = states.chain(apps.iter().map(|held| (held.key.clone(), held.value.0.state())));
        active.map(|it| format!("{it:?}\n")).chain(states.map(|it| format!("{it:?}\n"))).collect()
    }

    /// Fails, saying what is under way, when something takes for ever.
    pub(super) async fn soon<T>(&self, doing: impl Future<Output = T>) -> T {
        match tokio::time::timeout(Duration::from_secs(20), doing).await {
            Ok(done) => done,
            Err(_) => panic!("it hangs: {}", self.under_way().concat()),
        }
    }

    /// Returns once an operation works on an instance.
    pub(super) async fn until_driven<I: Instance>(&self, inst: &I) {
        while self.controller.engine.running_on(&inst.key_text()).is_none() {
            tokio::task::yield_now().await;
        }
    }

    /// One run of the caretaker, and what it set going.
    pub(super) async fn service_caretaker(&self) -> u64 {
        use selvage_work::Reconcile;
        let summary = self.service.caretaker().run().await.unwrap();
        self.idle().await;
        summary.changes
    }
}
