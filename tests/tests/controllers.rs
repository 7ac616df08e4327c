//! Several controllers on one etcd of three members: they answer alike, they
//! know of each other, and while they and the members of etcd are killed
//! nothing that was acknowledged is lost and nothing is given out twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{TryStreamExt, future::join_all};
use selvage_api::{
    distributed_match_engine::{LProto, Loc},
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey, CloudletRefs,
        CloudletState, ClusterInst, ClusterInstKey, ClusterKey, ClusterRefs, Controller,
        CrmOverride, Developer, DeveloperKey, Flavor, FlavorInfo, FlavorKey, ImageType, IpAccess,
        Node, Operator, OperatorKey, TrackedState, app_api_client::AppApiClient,
        app_inst_api_client::AppInstApiClient, cloudlet_api_client::CloudletApiClient,
        cloudlet_info_api_client::CloudletInfoApiClient,
        cloudlet_refs_api_client::CloudletRefsApiClient,
        cluster_inst_api_client::ClusterInstApiClient,
        cluster_refs_api_client::ClusterRefsApiClient, controller_api_client::ControllerApiClient,
        developer_api_client::DeveloperApiClient, flavor_api_client::FlavorApiClient,
        node_api_client::NodeApiClient, operator_api_client::OperatorApiClient,
    },
    selvage::operations::{
        ListOperationsRequest, operation_service_client::OperationServiceClient,
    },
};
use selvage_tests::{Client, Selvage, process::PATIENCE, real::EtcdCluster};
use tokio::{task::JoinHandle, time};
use tonic::{Code, Response, Status, Streaming};

const FLAVOR: &str = "x1.small";
const FLAVOR_RAM: u64 = 2048;
/// For one call of a client.
const DEADLINE: Duration = Duration::from_secs(8);
/// How long a client that was refused lets be.
const PAUSE: Duration = Duration::from_millis(50);

// The fleet.

/// Controllers on one etcd, each with a place of its own and all with the
/// same keys.
struct Fleet {
    // Dropped first: it shows its log, which lies in its place.
    running: Vec<Option<Selvage>>,
    places: Vec<tempfile::TempDir>,
    etcd: EtcdCluster,
    /// Where each listens: one that comes back has the address it had, and
    /// 0 if it has never run.
    ports: Vec<u16>,
    /// One for each controller; to one that is gone if the controller is.
    clients: Arc<Mutex<Vec<Client>>>,
    token: String,
}

impl Fleet {
    /// An etcd and one controller, or a loud word why not.
    async fn start() -> Option<Self> {
        let etcd = EtcdCluster::start()?;
        let place = tempfile::tempdir().unwrap();
        let first = up(place.path(), &etcd, 0);
        let client = Client::admin(&first).await;
        let token = client.token.clone().unwrap();
        let clients = Arc::new(Mutex::new(vec![client]));
        let (ports, running) = (vec![port_of(&first)], vec![Some(first)]);
        Some(Self { etcd, places: vec![place], running, ports, clients, token })
    }

    /// Starts one more.
    async fn join(&mut self) {
        let place = tempfile::tempdir().unwrap();
        let keys = |place: &Path| place.join("data").join("pki");
        copy_private(&keys(self.places[0].path()), &keys(place.path()));
        self.places.push(place);
        self.running.push(None);
        self.ports.push(0);
        self.revive(self.running.len() - 1).await;
    }

    fn kill(&mut self, index: usize) {
        self.running[index].take().unwrap().kill();
    }

    /// Starts one that is not running. What was logged in stays so: tokens
    /// are good at every controller.
    async fn revive(&mut self, index: usize) {
        assert!(self.running[index].is_none(), "controller {index} runs");
        let selvage = up(self.places[index].path(), &self.etcd, self.ports[index]);
        self.ports[index] = port_of(&selvage);
        let mut client = Client::anonymous(&selvage).await;
        client.token = Some(self.token.clone());
        let mut clients = self.clients.lock().unwrap();
        if index == clients.len() {
            clients.push(client);
        } else {
            clients[index] = client;
        }
        self.running[index] = Some(selvage);
    }

    fn client(&self, index: usize) -> Client {
        self.clients.lock().unwrap()[index].clone()
    }

    /// Clients of those that run.
    fn alive(&self) -> Vec<Client> {
        let all = 0..self.running.len();
        all.filter(|at| self.running[*at].is_some()).map(|at| self.client(at)).collect()
    }

    /// Addresses of those that run.
    fn addresses(&self) -> BTreeSet<String> {
        self.running.iter().flatten().map(|selvage| selvage.address().to_owned()).collect()
    }
}

fn up(place: &Path, etcd: &EtcdCluster, port: u16) -> Selvage {
    let endpoints = format!("store.endpoints={:?}", etcd.endpoints());
    let port = format!("listen.port={port}");
    Selvage::up_in(place, &["--set", "store.kind=etcd", "--set", &endpoints, "--set", &port])
}

fn port_of(selvage: &Selvage) -> u16 {
    selvage.address().rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Copies a directory so that only the owner can read it.
fn copy_private(from: &Path, to: &Path) {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_private(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

// Calls.

/// A call, but not longer than a client has patience.
async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("the client's patience is at its end"));
    time::timeout(DEADLINE, call).await.unwrap_or_else(late)
}

/// All that a stream brings.
async fn all<T>(
    call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
) -> Result<Vec<T>, Status> {
    bounded(async { call.await?.into_inner().try_collect().await }).await
}

/// Waits until a question has the answer that is wanted.
async fn until<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(why) => assert!(Instant::now() < deadline, "gave up waiting for {what}: {why}"),
        }
        time::sleep(PAUSE).await;
    }
}

macro_rules! show {
    ($client:expr, $api:ident, $method:ident, $what:ident) => {
        all($api::new($client.channel.clone()).$method($client.request($what::default())))
            .await
            .unwrap()
    };
}

/// Encoded answers to every `Show` there is, by its path.
async fn everything(client: &Client) -> BTreeMap<String, Vec<bytes::Bytes>> {
    let mut answers = BTreeMap::new();
    let shows = selvage_api::methods()
        .iter()
        .filter(|method| method.package == "edgeproto" && method.name.starts_with("Show"));
    for method in shows {
        let (messages, code, text) = client.raw(&method.path, &[]).await;
        assert_eq!(code, Code::Ok, "{}: {text}", method.path);
        answers.insert(method.path.clone(), messages);
    }
    answers
}

/// Waits until all controllers give the same answers; gives them.
async fn agreed(fleet: &Fleet) -> BTreeMap<String, Vec<bytes::Bytes>> {
    until("the same answers from all", async || {
        let mut answers = join_all(fleet.alive().iter().map(everything)).await;
        let first = answers.remove(0);
        for other in answers {
            if let Some((path, _)) = first.iter().find(|(path, answer)| other[*path] != **answer) {
                return Err(path.clone());
            }
        }
        Ok(first)
    })
    .await
}

/// Waits until every controller lists exactly those that run.
async fn registered(fleet: &Fleet) {
    let expected = fleet.addresses();
    until("the registry", async || {
        for client in fleet.alive() {
            let rows = show!(client, ControllerApiClient, show_controller, Controller);
            let listed: BTreeSet<_> = rows.into_iter().map(|row| row.key.unwrap().addr).collect();
            if listed != expected {
                return Err(format!("{listed:?} is not {expected:?}"));
            }
        }
        Ok(())
    })
    .await;
}

// Objects.

fn cloudlet_key() -> CloudletKey {
    CloudletKey {
        operator_key: Some(OperatorKey { name: "tmus".into() }),
        name: "tmus-cloud-1".into(),
    }
}

fn flavor(name: &str) -> Flavor {
    let key = Some(FlavorKey { name: name.into() });
    Flavor { key, ram: FLAVOR_RAM, vcpus: 2, disk: 2, ..Flavor::default() }
}

fn app(name: &str) -> App {
    let developer_key = Some(DeveloperKey { name: "AcmeAppCo".into() });
    App {
        key: Some(AppKey { developer_key, name: name.into(), version: "1.0".into() }),
        image_type: ImageType::Docker.into(),
        access_ports: "tcp:80,tcp:8080,udp:80".into(),
        default_flavor: Some(FlavorKey { name: FLAVOR.into() }),
        ..App::default()
    }
}

/// An instance in a cluster of its own, of the one app that all share.
fn app_inst(name: &str) -> AppInst {
    let cluster_inst_key = Some(ClusterInstKey {
        cluster_key: Some(ClusterKey { name: format!("autocluster{name}") }),
        cloudlet_key: Some(cloudlet_key()),
        developer: "AcmeAppCo".into(),
    });
    AppInst {
        key: Some(AppInstKey { app_key: app("shared").key, cluster_inst_key }),
        crm_override: CrmOverride::IgnoreCrm.into(),
        ..AppInst::default()
    }
}

/// Speaks for the cloudlet's agent, as if it were connected there.
async fn attach(client: &Client) -> Result<(), Status> {
    let big = 1 << 40;
    let infra = FlavorInfo { name: "flavor1".into(), vcpus: 10, ram: 101_024, disk: 500 };
    let info = CloudletInfo {
        key: Some(cloudlet_key()),
        state: CloudletState::Ready.into(),
        os_max_ram: big,
        os_max_vcores: big,
        os_max_vol_gb: big,
        flavors: vec![infra],
        ..CloudletInfo::default()
    };
    let mut api = CloudletInfoApiClient::new(client.channel.clone());
    bounded(api.inject_cloudlet_info(client.request(info))).await.map(drop)
}

/// Everything up to an app that can be instantiated.
async fn set_up(client: &Client) {
    let channel = || client.channel.clone();
    FlavorApiClient::new(channel()).create_flavor(client.request(flavor(FLAVOR))).await.unwrap();
    let operator = Operator { key: cloudlet_key().operator_key, ..Operator::default() };
    OperatorApiClient::new(channel()).create_operator(client.request(operator)).await.unwrap();
    let key = app("shared").key.unwrap().developer_key;
    let developer = Developer { key, ..Developer::default() };
    DeveloperApiClient::new(channel()).create_developer(client.request(developer)).await.unwrap();
    let cloudlet = Cloudlet {
        key: Some(cloudlet_key()),
        location: Some(Loc { latitude: 31.0, longitude: -91.0, ..Loc::default() }),
        num_dynamic_ips: 254,
        ..Cloudlet::default()
    };
    let mut cloudlets = CloudletApiClient::new(channel());
    all(cloudlets.create_cloudlet(client.request(cloudlet))).await.unwrap();
    attach(client).await.unwrap();
    AppApiClient::new(channel()).create_app(client.request(app("shared"))).await.unwrap();
}

/// What the workload makes and removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Flavor(String),
    App(String),
    AppInst(String),
}

impl Thing {
    async fn create(&self, client: &Client) -> Result<(), Status> {
        let channel = client.channel.clone();
        match self {
            Self::Flavor(name) => {
                let request = client.request(flavor(name));
                bounded(FlavorApiClient::new(channel).create_flavor(request)).await.map(drop)
            }
            Self::App(name) => {
                let request = client.request(app(name));
                bounded(AppApiClient::new(channel).create_app(request)).await.map(drop)
            }
            Self::AppInst(name) => {
                let request = client.request(app_inst(name));
                all(AppInstApiClient::new(channel).create_app_inst(request)).await.map(drop)
            }
        }
    }

    async fn delete(&self, client: &Client) -> Result<(), Status> {
        let channel = client.channel.clone();
        match self {
            Self::Flavor(name) => {
                let request = client.request(flavor(name));
                bounded(FlavorApiClient::new(channel).delete_flavor(request)).await.map(drop)
            }
            Self::App(name) => {
                let request = client.request(app(name));
                bounded(AppApiClient::new(channel).delete_app(request)).await.map(drop)
            }
            Self::AppInst(name) => {
                let request = client.request(app_inst(name));
                all(AppInstApiClient::new(channel).delete_app_inst(request)).await.map(drop)
            }
        }
    }
}

// The workload.

/// What clients know of what they did. What became of a call that was not
/// answered they do not know, and they never touch its object again.
#[derive(Debug, Default)]
struct Known {
    present: BTreeSet<Thing>,
    deleted: BTreeSet<Thing>,
    unanswered: usize,
    /// Answers that no fault excuses.
    wrong: Vec<String>,
}

struct Workload {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    workers: Vec<JoinHandle<Known>>,
}

impl Workload {
    fn start(fleet: &Fleet, workers: usize) -> Self {
        let (stop, acknowledged) = (Arc::default(), Arc::default());
        let workers = (0..workers)
            .map(|index| {
                let worker = Worker {
                    index,
                    random: Random(index as u64 + seed()),
                    clients: Arc::clone(&fleet.clients),
                    stop: Arc::clone(&stop),
                    acknowledged: Arc::clone(&acknowledged),
                    known: Known::default(),
                };
                tokio::spawn(worker.run())
            })
            .collect();
        Self { stop, acknowledged, workers }
    }

    /// Waits for so many more acknowledged calls: work goes on whatever is
    /// broken.
    async fn goes_on(&self, while_what: &str, count: usize) {
        let goal = self.acknowledged.load(Ordering::Relaxed) + count;
        until(&format!("acknowledged calls, {while_what}"), async || {
            let now = self.acknowledged.load(Ordering::Relaxed);
            if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
        })
        .await;
    }

    async fn end(self) -> Known {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Known::default();
        for known in join_all(self.workers).await.into_iter().map(Result::unwrap) {
            sum.present.extend(known.present);
            sum.deleted.extend(known.deleted);
            sum.unanswered += known.unanswered;
            sum.wrong.extend(known.wrong);
        }
        sum
    }
}

struct Worker {
    index: usize,
    random: Random,
    clients: Arc<Mutex<Vec<Client>>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    known: Known,
}

impl Worker {
    async fn run(mut self) -> Known {
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let old = self.known.present.iter().nth(self.random.below(12)).cloned();
            let create = old.is_none();
            let thing = old.unwrap_or_else(|| self.new_thing(turn));
            let client = {
                let clients = self.clients.lock().unwrap();
                clients[self.random.below(clients.len())].clone()
            };
            let answer =
                if create { thing.create(&client).await } else { thing.delete(&client).await };
            self.learn(thing, create, answer).await;
        }
        self.known
    }

    fn new_thing(&mut self, turn: usize) -> Thing {
        let name = format!("w{}n{turn}", self.index);
        match self.random.below(4) {
            0 => Thing::Flavor(name),
            1 => Thing::App(name),
            _ => Thing::AppInst(name),
        }
    }

    async fn learn(&mut self, thing: Thing, create: bool, answer: Result<(), Status>) {
        let known = &mut self.known;
        known.present.remove(&thing);
        let Err(status) = answer else {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            if create {
                known.present.insert(thing)
            } else {
                known.deleted.insert(thing)
            };
            return;
        };
        known.unanswered += 1;
        if !excused(&status) {
            let verb = if create { "create" } else { "delete" };
            known.wrong.push(format!(
                "{verb} {thing:?}: {:?}: {}",
                status.code(),
                status.message()
            ));
        }
        time::sleep(PAUSE).await;
    }
}

/// Whether a call may end so while somebody pulls plugs. What has a source was
/// made up on the client's side, when the connection broke.
fn excused(status: &Status) -> bool {
    status.source().is_some()
        || matches!(status.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded)
}

/// Small, and the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}

// What has to be true in the end.

/// Waits until no operation is under way.
async fn settled(fleet: &Fleet) {
    until("operations to end", async || {
        for client in fleet.alive() {
            let mut api = OperationServiceClient::new(client.channel.clone());
            let active = ListOperationsRequest { active: true, ..ListOperationsRequest::default() };
            let reply = bounded(api.list_operations(client.request(active))).await;
            let operations = reply.map_err(|status| status.to_string())?.into_inner().operations;
            if !operations.is_empty() {
                return Err(format!("{operations:#?}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Every acknowledged create is there and every acknowledged delete is not.
async fn check_acknowledged(client: &Client, known: &Known) {
    let mut there = BTreeSet::new();
    let flavors = show!(client, FlavorApiClient, show_flavor, Flavor);
    there.extend(flavors.into_iter().map(|flavor| Thing::Flavor(flavor.key.unwrap().name)));
    let apps = show!(client, AppApiClient, show_app, App);
    there.extend(apps.into_iter().map(|app| Thing::App(app.key.unwrap().name)));
    let insts = show!(client, AppInstApiClient, show_app_inst, AppInst);
    there.extend(
        insts.iter().map(|inst| {
            Thing::AppInst(cluster_of(inst).trim_start_matches("autocluster").to_owned())
        }),
    );
    let lost: Vec<_> = known.present.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let back: Vec<_> = known.deleted.intersection(&there).collect();
    assert!(back.is_empty(), "deleted and back: {back:?}");
}

fn cluster_of(inst: &AppInst) -> &str {
    let key = inst.key.as_ref().unwrap().cluster_inst_key.as_ref().unwrap();
    &key.cluster_key.as_ref().unwrap().name
}

/// Refs equal the sum of instances, nothing is given out twice, nothing is
/// half done or without its cluster.
async fn check_books(client: &Client) {
    let insts = show!(client, AppInstApiClient, show_app_inst, AppInst);
    let clusters = show!(client, ClusterInstApiClient, show_cluster_inst, ClusterInst);
    let refs = show!(client, CloudletRefsApiClient, show_cloudlet_refs, CloudletRefs).remove(0);

    let mut ports = BTreeMap::new();
    for inst in &insts {
        assert_eq!(inst.state(), TrackedState::Ready, "{inst:?}");
        assert_eq!(inst.mapped_ports.len(), 3, "{inst:?}");
        for port in &inst.mapped_ports {
            let bit = if port.proto() == LProto::Udp { 2 } else { 1 };
            let taken = ports.entry(port.public_port).or_insert(0);
            assert_eq!(*taken & bit, 0, "given twice: {port:?} of {inst:?}");
            *taken |= bit;
        }
    }
    assert_eq!(refs.root_lb_ports, ports);

    let name = |key: &ClusterInstKey| key.cluster_key.clone().unwrap().name;
    let mut used = 0;
    for cluster in &clusters {
        assert_eq!(cluster.state(), TrackedState::Ready, "{cluster:?}");
        assert_eq!(cluster.ip_access(), IpAccess::Shared, "{cluster:?}");
        used += FLAVOR_RAM * u64::from(cluster.num_masters + cluster.num_nodes);
    }
    assert_eq!(refs.used_ram, used);
    let made: BTreeSet<_> = clusters.iter().map(|inst| name(inst.key.as_ref().unwrap())).collect();
    let booked: Vec<_> = refs.clusters.iter().map(|cluster| cluster.name.clone()).collect();
    assert_eq!(booked.len(), made.len(), "{booked:?}");
    assert_eq!(booked.into_iter().collect::<BTreeSet<_>>(), made);

    let inhabited: BTreeSet<_> = insts.iter().map(|inst| cluster_of(inst).to_owned()).collect();
    assert_eq!(made, inhabited, "an auto-cluster is there as long as its instance");
    let refs = show!(client, ClusterRefsApiClient, show_cluster_refs, ClusterRefs);
    let peopled = refs.iter().filter(|refs| !refs.apps.is_empty());
    let peopled: BTreeSet<_> = peopled.map(|refs| name(refs.key.as_ref().unwrap())).collect();
    assert_eq!(peopled, inhabited);
}

// The tests.

#[tokio::test(flavor = "multi_thread")]
async fn all_controllers_answer_alike_and_survive_one_of_them() {
    let Some(mut fleet) = Fleet::start().await else { return };
    set_up(&fleet.client(0)).await;
    fleet.join().await;
    Thing::AppInst("one".into()).create(&fleet.client(1)).await.unwrap();
    fleet.join().await;
    Thing::AppInst("two".into()).create(&fleet.client(2)).await.unwrap();
    registered(&fleet).await;
    let before = agreed(&fleet).await;
    assert_eq!(before["/edgeproto.AppInstApi/ShowAppInst"].len(), 2);
    assert_eq!(before["/edgeproto.CloudletInfoApi/ShowCloudletInfo"].len(), 1);
    check_books(&fleet.client(0)).await;

    let dead = fleet.running[1].as_ref().unwrap().address().to_owned();
    fleet.kill(1);
    for client in fleet.alive() {
        let trailers = bounded(async {
            let mut api = NodeApiClient::new(client.channel.clone());
            let mut nodes = api.show_node(client.request(Node::default())).await?.into_inner();
            assert_eq!(nodes.message().await?, None, "no agent is connected");
            nodes.trailers().await
        });
        let trailers = trailers.await.unwrap().unwrap();
        assert_eq!(trailers.get("x-selvage-unreachable").unwrap().to_str().unwrap(), dead);
    }
    // What one made another removes, with the first one gone.
    Thing::AppInst("one".into()).delete(&fleet.client(2)).await.unwrap();
    registered(&fleet).await;

    fleet.revive(1).await;
    registered(&fleet).await;
    let after = agreed(&fleet).await;
    assert_eq!(after["/edgeproto.AppInstApi/ShowAppInst"].len(), 1);
    check_books(&fleet.client(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_while_plugs_are_pulled() {
    let Some(mut fleet) = Fleet::start().await else { return };
    set_up(&fleet.client(0)).await;
    fleet.join().await;
    let workload = Workload::start(&fleet, 8);
    workload.goes_on("nothing is broken", 30).await;

    fleet.kill(1);
    workload.goes_on("a controller is gone", 30).await;
    fleet.revive(1).await;
    let leader = fleet.etcd.leader();
    fleet.etcd.kill(leader);
    workload.goes_on("etcd lost its leader", 30).await;
    fleet.etcd.restart(leader);
    fleet.join().await;
    fleet.etcd.wait_until_it_follows(leader);
    workload.goes_on("there are three", 30).await;

    lose_the_majority(&mut fleet, &workload).await;
    let mut random = Random(3 + seed());
    for _ in 0..4 {
        pull_two_plugs(&mut fleet, &workload, &mut random).await;
    }

    let known = workload.end().await;
    eprintln!(
        "STATS present {} deleted {} unanswered {}",
        known.present.len(),
        known.deleted.len(),
        known.unanswered
    );
    assert!(known.wrong.is_empty(), "{:#?}", known.wrong);
    assert!(known.unanswered > 0, "no fault was felt");
    for done in [&known.present, &known.deleted] {
        assert!(done.iter().any(|thing| matches!(thing, Thing::AppInst(_))), "{done:?}");
    }
    settled(&fleet).await;
    agreed(&fleet).await;
    for client in fleet.alive() {
        check_acknowledged(&client, &known).await;
        check_books(&client).await;
    }
    registered(&fleet).await;
}

/// Two of three members of etcd gone: nothing can be acknowledged. One back,
/// and everything can.
async fn lose_the_majority(fleet: &mut Fleet, workload: &Workload) {
    let gone = [fleet.etcd.follower(), fleet.etcd.leader()];
    gone.iter().for_each(|member| fleet.etcd.kill(*member));
    let unheard = Thing::Flavor("unheard".into()).create(&fleet.client(0)).await;
    let status = unheard.expect_err("acknowledged by a minority");
    assert!(excused(&status), "{status:?}");
    fleet.etcd.restart(gone[1]);
    workload.goes_on("two members of etcd are left", 30).await;
    fleet.etcd.restart(gone[0]);
    fleet.etcd.wait_until_it_follows(gone[0]);
}

/// Kills a controller and a member of etcd at the same time, and brings both
/// back. The cloudlet's agent goes to a controller that is left.
async fn pull_two_plugs(fleet: &mut Fleet, workload: &Workload, random: &mut Random) {
    let (controller, member) = (random.below(3), random.below(3));
    fleet.kill(controller);
    fleet.etcd.kill(member);
    let other = fleet.client((controller + 1) % 3);
    until("the agent to be connected elsewhere", async || {
        attach(&other).await.map_err(|status| status.to_string())
    })
    .await;
    let what = format!("controller {controller} and member {member} of etcd are gone");
    workload.goes_on(&what, 30).await;
    fleet.revive(controller).await;
    fleet.etcd.restart(member);
    fleet.etcd.wait_until_it_follows(member);
}

fn seed() -> u64 {
    std::env::var("TMPSEED").ok().map_or(0, |s| s.parse().unwrap())
}
