//! A simulated crm against a controller that does nothing but keep objects
//! and apply what is reported, by the rules of the contract.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    App, AppInst, AppInstInfo, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey,
    ClusterInst, ClusterInstInfo, ClusterInstKey, ClusterKey, ExecRequest, Flavor, FlavorKey, Node,
    OperatorKey, TrackedState,
};
use selvage_notify::{
    Backoff, Cache, ClientOptions, Exchange, Letters, Mailbox, NotifyServer, ObjectKey, OpenGate,
    ServerOptions,
};
use selvage_sim::{
    ClusterUpdate, Fault, FaultRule, Mode, Operation, Resync, SimCrm, SimDme, SimFleet, SimOptions,
    Stage, What,
};
use tokio_util::sync::{CancellationToken, DropGuard};

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct Controller {
    flavors: Arc<Cache<Flavor>>,
    apps: Arc<Cache<App>>,
    clusters: Arc<Cache<ClusterInst>>,
    instances: Arc<Cache<AppInst>>,
    infos: Arc<Cache<CloudletInfo>>,
    instance_infos: Arc<Cache<AppInstInfo>>,
    cluster_infos: Arc<Cache<ClusterInstInfo>>,
    nodes: Arc<Cache<Node>>,
    server: NotifyServer,
    address: String,
    execs: Letters<ExecRequest>,
    /// Every state that was reported, errors included.
    seen: Arc<Mutex<Vec<String>>>,
    _running: DropGuard,
}

fn legal(from: TrackedState, to: TrackedState) -> bool {
    use TrackedState as S;
    match from {
        S::CreateRequested => [S::Creating, S::Ready, S::CreateError].contains(&to),
        S::Creating => [S::Ready, S::CreateError].contains(&to),
        S::UpdateRequested => [S::Updating, S::Ready, S::UpdateError].contains(&to),
        S::Updating => [S::Ready, S::UpdateError].contains(&to),
        S::DeleteRequested => [S::Deleting, S::DeleteError].contains(&to),
        S::Deleting => to == S::DeleteError,
        _ => false,
    }
}

fn deletable(state: TrackedState) -> bool {
    [TrackedState::DeleteRequested, TrackedState::Deleting].contains(&state)
}

/// Applies reports of one type to the objects of another.
macro_rules! apply {
    ($infos:expr, $objects:expr, $seen:expr) => {
        let (objects, seen) = (Arc::clone(&$objects), Arc::clone(&$seen));
        $infos.on_change(move |change| {
            let Some(object) = objects.object(change.key) else { return };
            let mut object = object.as_ref().clone();
            match change.now {
                Some(info) => {
                    let errors = info.errors.join(", ");
                    seen.lock().push(format!("{:?} {errors}", info.state()).trim_end().to_owned());
                    if legal(object.state(), info.state()) {
                        object.state = info.state;
                        object.errors = info.errors.clone();
                        objects.put(object).unwrap();
                    }
                }
                None if deletable(object.state()) => {
                    seen.lock().push("gone".into());
                    objects.remove(&object).unwrap();
                }
                None => {}
            }
        });
    };
}

impl Controller {
    async fn start() -> Self {
        let (flavors, apps) = (Cache::<Flavor>::new().unwrap(), Cache::<App>::new().unwrap());
        let clusters = Cache::<ClusterInst>::new().unwrap();
        let instances = Cache::<AppInst>::new().unwrap();
        let (infos, nodes) = (Cache::<CloudletInfo>::new().unwrap(), Cache::<Node>::new().unwrap());
        let cluster_infos: Arc<Cache<ClusterInstInfo>> = Cache::new().unwrap();
        let instance_infos: Arc<Cache<AppInstInfo>> = Cache::new().unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        apply!(cluster_infos, clusters, seen);
        apply!(instance_infos, instances, seen);
        let (mailbox, execs) = Mailbox::new(10).unwrap();
        let exchange = Exchange::new()
            .send(flavors.clone())
            .send(Cache::<Cloudlet>::new().unwrap())
            .send(clusters.clone())
            .send(apps.clone())
            .send(instances.clone())
            .send_messages::<ExecRequest>()
            .unwrap()
            .receive(infos.clone())
            .receive(instance_infos.clone())
            .receive(cluster_infos.clone())
            .receive(nodes.clone())
            .receive_messages(mailbox);
        let options = ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() };
        let server = NotifyServer::new(exchange, options);
        let (address, running) = serve(&server).await;
        Self {
            flavors,
            apps,
            clusters,
            instances,
            infos,
            instance_infos,
            cluster_infos,
            nodes,
            server,
            address,
            execs,
            seen,
            _running: running,
        }
    }

    fn options(&self) -> SimOptions {
        let mut options = SimOptions::new(vec![self.address.clone()], place());
        options.client = self.client();
        options
    }

    fn client(&self) -> ClientOptions {
        ClientOptions {
            addresses: vec![self.address.clone()],
            backoff: Backoff {
                first: Duration::from_millis(1),
                longest: Duration::from_millis(10),
                ..Backoff::default()
            },
            ..ClientOptions::default()
        }
    }

    fn ask_cluster(&self, name: &str, state: TrackedState) {
        self.clusters.put(cluster(name, state)).unwrap();
    }

    fn ask_instance(&self, name: &str, state: TrackedState) {
        self.instances.put(instance(name, state)).unwrap();
    }

    fn cluster_state(&self, name: &str) -> Option<TrackedState> {
        let key = cluster(name, TrackedState::Ready).key.unwrap();
        self.clusters.find(&key).map(|object| object.state())
    }

    fn instance_state(&self, name: &str) -> Option<TrackedState> {
        let key = instance(name, TrackedState::Ready).key.unwrap();
        self.instances.find(&key).map(|object| object.state())
    }

    async fn cluster_is(&self, name: &str, state: Option<TrackedState>) {
        until(&format!("{name} {state:?}"), || self.cluster_state(name) == state).await;
    }

    async fn instance_is(&self, name: &str, state: Option<TrackedState>) {
        until(&format!("{name} {state:?}"), || self.instance_state(name) == state).await;
    }

    fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }

    fn prepare(&self) {
        let flavor = Flavor { key: Some(FlavorKey { name: "small".into() }), ..Flavor::default() };
        self.flavors.put(flavor).unwrap();
        self.apps.put(App { key: Some(app_key()), ..App::default() }).unwrap();
    }
}

async fn serve(server: &NotifyServer) -> (String, DropGuard) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let token = CancellationToken::new();
    let stopped = token.clone().cancelled_owned();
    let serving = tonic::transport::Server::builder()
        .add_service(server.service())
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::TcpListenerStream::new(listener),
            stopped,
        );
    tokio::spawn(serving);
    (address, token.drop_guard())
}

fn place() -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: "tmus".into() }), name: "west".into() }
}

fn app_key() -> AppKey {
    AppKey { name: "go".into(), version: "1".into(), ..AppKey::default() }
}

fn cluster(name: &str, state: TrackedState) -> ClusterInst {
    ClusterInst {
        key: Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: name.into() }),
            cloudlet_key: Some(place()),
            developer: "Acme".into(),
        }),
        state: state.into(),
        num_nodes: 2,
        ..ClusterInst::default()
    }
}

fn instance(name: &str, state: TrackedState) -> AppInst {
    AppInst {
        key: Some(AppInstKey {
            app_key: Some(app_key()),
            cluster_inst_key: cluster(name, state).key,
        }),
        flavor: Some(FlavorKey { name: "small".into() }),
        state: state.into(),
        ..AppInst::default()
    }
}

fn failing(errors: &str, residue: bool) -> Fault {
    Fault::Fail { errors: vec![errors.into()], residue }
}

use TrackedState as S;

#[tokio::test]
async fn a_cloudlet_like_the_originals_fake_one() {
    let controller = Controller::start().await;
    let _crm = SimCrm::start(controller.options()).unwrap();
    until("a node", || controller.nodes.len() == 1).await;
    let info = controller.infos.find(&place()).unwrap();
    assert_eq!((info.os_max_ram, info.os_max_vcores, info.os_max_vol_gb), (500, 50, 5000));
    let flavor = &info.flavors[0];
    assert_eq!((flavor.name.as_str(), info.flavors.len()), ("flavor1", 1));
    assert_eq!((flavor.vcpus, flavor.ram, flavor.disk), (10, 101_024, 500));
    assert_eq!(controller.nodes.list()[0].key.as_ref().unwrap().name, "sim-west");
}

#[tokio::test]
async fn a_whole_life_leaves_nothing() {
    let controller = Controller::start().await;
    controller.prepare();
    let crm = SimCrm::start(controller.options()).unwrap();
    controller.ask_cluster("c", S::CreateRequested);
    controller.cluster_is("c", Some(S::Ready)).await;
    assert_eq!(controller.take_seen(), ["Creating", "Ready"]);
    controller.ask_instance("c", S::CreateRequested);
    controller.instance_is("c", Some(S::Ready)).await;
    let there = crm.infrastructure();
    assert_eq!(there.clusters.values().collect::<Vec<_>>(), [&2]);
    assert_eq!(there.instances.values().next().unwrap(), &["sim-go"]);
    let info = &controller.instance_infos.list()[0];
    assert_eq!(info.runtime_info.as_ref().unwrap().container_ids, ["sim-go"]);

    let mut larger = cluster("c", S::UpdateRequested);
    larger.num_nodes = 5;
    controller.clusters.put(larger).unwrap();
    controller.cluster_is("c", Some(S::Ready)).await;
    assert_eq!(crm.infrastructure().clusters.values().collect::<Vec<_>>(), [&5]);
    controller.ask_instance("c", S::UpdateRequested);
    controller.instance_is("c", Some(S::Ready)).await;
    controller.take_seen();

    controller.ask_instance("c", S::DeleteRequested);
    controller.instance_is("c", None).await;
    controller.ask_cluster("c", S::DeleteRequested);
    controller.cluster_is("c", None).await;
    assert_eq!(controller.take_seen(), ["Deleting", "gone", "Deleting", "gone"]);
    assert!(crm.infrastructure().is_empty());
    assert_eq!(crm.counters().done.values().sum::<u64>(), 6);
}

#[tokio::test]
async fn failures_say_what_the_original_says() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    controller.ask_cluster("c", S::CreateRequested);
    controller.cluster_is("c", Some(S::Ready)).await;
    controller.take_seen();
    // Neither its app nor its flavor is there, and the other's cluster is not.
    controller.ask_instance("c", S::CreateRequested);
    controller.apps.put(App { key: Some(app_key()), ..App::default() }).unwrap();
    controller.instance_is("c", Some(S::CreateError)).await;
    assert_eq!(controller.take_seen(), ["CreateError Flavor small not found"]);
    controller.prepare();
    controller.ask_instance("other", S::CreateRequested);
    controller.instance_is("other", Some(S::CreateError)).await;
    assert_eq!(controller.take_seen(), ["CreateError Cluster instance other not found"]);

    crm.script(FaultRule::once(What::Instance, Operation::Create, failing("no room", false)));
    controller.ask_instance("c", S::CreateRequested);
    controller.instance_is("c", Some(S::CreateError)).await;
    let seen = controller.take_seen();
    assert_eq!(seen, ["Creating", "CreateError Create App Inst failed: no room"]);
    assert!(crm.infrastructure().instances.is_empty());

    let rule = FaultRule::always(What::Cluster, Operation::Create, failing("disk", true)).of("bad");
    crm.script(rule);
    controller.ask_cluster("bad", S::CreateRequested);
    controller.ask_cluster("good", S::CreateRequested);
    controller.cluster_is("bad", Some(S::CreateError)).await;
    controller.cluster_is("good", Some(S::Ready)).await;
    assert_eq!(crm.infrastructure().clusters.len(), 3, "with what the failure left");
    controller.take_seen();

    crm.script(FaultRule::once(What::Cluster, Operation::Delete, failing("locked", false)));
    controller.ask_cluster("good", S::DeleteRequested);
    controller.cluster_is("good", Some(S::DeleteError)).await;
    assert_eq!(controller.take_seen(), ["Deleting", "DeleteError Delete failed: locked"]);
    crm.forgive();
    controller.ask_cluster("bad", S::DeleteRequested);
    controller.cluster_is("bad", None).await;
    assert_eq!(crm.infrastructure().clusters.len(), 2);
    assert_eq!(crm.counters().failed.values().sum::<u64>(), 5);
}

#[tokio::test]
async fn updates_that_fail_and_those_that_fail_as_the_original() {
    for (mode, end, reported) in [
        (ClusterUpdate::Fails, S::UpdateError, "UpdateError"),
        (ClusterUpdate::FailsAsTheOriginal, S::Updating, "DeleteError"),
    ] {
        let controller = Controller::start().await;
        let options = SimOptions { cluster_update: mode, ..controller.options() };
        let _crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.cluster_is("c", Some(S::Ready)).await;
        controller.take_seen();
        controller.ask_cluster("c", S::UpdateRequested);
        until("reported", || controller.seen.lock().len() == 2).await;
        let text = format!("{reported} update failed: sim does not update clusters");
        assert_eq!(controller.take_seen(), ["Updating".to_owned(), text]);
        controller.cluster_is("c", Some(end)).await;
    }
}

#[tokio::test]
async fn a_test_lets_every_report_go() {
    let controller = Controller::start().await;
    let options = SimOptions { mode: Mode::Explicit, ..controller.options() };
    let crm = SimCrm::start(options).unwrap();
    controller.ask_cluster("a", S::CreateRequested);
    controller.ask_cluster("b", S::CreateRequested);
    until("both wait", || crm.pending().len() == 2).await;
    assert!(controller.take_seen().is_empty());
    let step = crm.step_where(|step| step.key.contains("\"b\"")).await;
    assert_eq!(
        (step.what, step.operation, step.stage),
        (What::Cluster, Operation::Create, Stage::Begin)
    );
    controller.cluster_is("b", Some(S::Creating)).await;
    let step = crm.step_where(|step| step.stage == Stage::End).await;
    assert!(step.key.contains("\"b\""));
    controller.cluster_is("b", Some(S::Ready)).await;
    assert_eq!(controller.cluster_state("a"), Some(S::CreateRequested));
    assert!(crm.release(crm.pending()[0].id));
    controller.cluster_is("a", Some(S::Creating)).await;
    assert!(crm.step().await.key.contains("\"a\""));
    controller.cluster_is("a", Some(S::Ready)).await;
}

#[tokio::test]
async fn crms_that_never_or_late_or_half_answer() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    let create = |fault| FaultRule::once(What::Cluster, Operation::Create, fault);
    crm.script(create(Fault::Silent).of("silent"));
    crm.script(create(Fault::Stall).of("stalls"));
    crm.script(create(Fault::Late(Duration::from_millis(5))).of("late"));
    crm.script(create(Fault::Disconnect).of("cut"));
    for name in ["silent", "stalls", "late", "cut"] {
        controller.ask_cluster(name, S::CreateRequested);
    }
    controller.cluster_is("late", Some(S::Ready)).await;
    controller.cluster_is("cut", Some(S::Ready)).await;
    controller.cluster_is("stalls", Some(S::Creating)).await;
    assert_eq!(controller.cluster_state("silent"), Some(S::CreateRequested));
    assert_eq!(crm.status().client.stats.connects, 2);
    assert_eq!(crm.infrastructure().clusters.len(), 2);

    // While it is cut off its work goes on.
    crm.go_offline().await;
    until("gone", || controller.server.peers().is_empty()).await;
    controller.ask_cluster("later", S::CreateRequested);
    crm.go_online();
    controller.cluster_is("later", Some(S::Ready)).await;

    // Whatever one likes can be said of an object.
    let key = ObjectKey::of(&cluster("silent", S::Ready)).unwrap();
    crm.report(What::Cluster, &key, S::CreateError, vec!["made up".into()]);
    controller.cluster_is("silent", Some(S::CreateError)).await;
}

#[tokio::test]
async fn a_crm_that_dies_forgets_remembers_or_does_it_again() {
    let inconsistent = "CreateError inconsistent Controller vs CRM state".to_owned();
    for (resync, end, infrastructure) in
        [(Resync::Original, S::CreateError, 1), (Resync::Redo, S::Ready, 2)]
    {
        let controller = Controller::start().await;
        controller.prepare();
        let options = SimOptions { resync, ..controller.options() };
        let crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.cluster_is("c", Some(S::Ready)).await;
        let fault = Fault::Crash { remember: true };
        crm.script(FaultRule::once(What::Cluster, Operation::Create, fault));
        controller.take_seen();
        controller.ask_cluster("crash", S::CreateRequested);
        controller.cluster_is("crash", Some(end)).await;
        assert_eq!(crm.counters().restarts, 1);
        assert_eq!(controller.seen.lock().contains(&inconsistent), resync == Resync::Original);
        assert_eq!(crm.infrastructure().clusters.len(), infrastructure);
        assert_eq!(controller.cluster_state("c"), Some(S::Ready));

        // One that forgets does not know what it made, and removes it all the
        // same when asked to.
        crm.restart(false).await;
        // This controller takes the end of a stream for a report.
        until("flushed", || controller.cluster_infos.is_empty()).await;
        controller.ask_cluster("c", S::DeleteRequested);
        controller.cluster_is("c", None).await;
        assert_eq!(crm.infrastructure().clusters.len(), infrastructure - 1);
        crm.destroy_infrastructure();
        assert!(crm.infrastructure().is_empty());
    }
}

#[tokio::test]
async fn commands_are_answered() {
    // With the number of the request, and without, as the original does.
    for numbers in [true, false] {
        let mut controller = Controller::start().await;
        controller.prepare();
        let options = SimOptions { numbers, ..controller.options() };
        let crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.ask_instance("c", S::CreateRequested);
        controller.instance_is("c", Some(S::Ready)).await;
        let request = |name: &str, id: u64| ExecRequest {
            app_inst_key: instance(name, S::Ready).key,
            command: "echo hi".into(),
            offer: "o".into(),
            id,
            ..ExecRequest::default()
        };
        let sent_back = |id: u64| if numbers { id } else { 0 };
        assert_eq!(controller.server.post(&request("c", 7)).unwrap(), 1);
        let (answer, _) = controller.execs.recv().await.unwrap();
        let answered = ExecRequest {
            id: sent_back(7),
            answer: "sim-answer: echo hi".into(),
            ..request("c", 7)
        };
        assert_eq!(answer, answered);
        controller.server.post(&request("nowhere", 8)).unwrap();
        let (refused, _) = controller.execs.recv().await.unwrap();
        assert_eq!((refused.err.as_str(), refused.id), ("app inst go not found", sent_back(8)));
        assert_eq!(crm.counters().execs, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_and_an_engine() {
    let controller = Controller::start().await;
    controller.prepare();
    let engine = SimDme::start(controller.client(), "engine", place()).unwrap();
    let fleet = SimFleet::start(30, &controller.options()).unwrap();
    until("in sync", || fleet.in_sync() == 30 && controller.infos.len() == 30).await;
    for number in 0..30 {
        let mut one = cluster("c", S::CreateRequested);
        one.key.as_mut().unwrap().cloudlet_key = Some(SimFleet::cloudlet(number));
        controller.clusters.put(one.clone()).unwrap();
        let mut other = instance("c", S::CreateRequested);
        other.key.as_mut().unwrap().cluster_inst_key = one.key;
        controller.instances.put(other).unwrap();
    }
    until("all ready", || {
        controller.instances.list().iter().all(|object| object.state() == S::Ready)
    })
    .await;
    let there = fleet.infrastructure();
    assert_eq!((there.clusters.len(), there.instances.len()), (30, 30));
    until("engine", || engine.instances.list().iter().all(|i| i.state() == S::Ready)).await;
    assert_eq!((engine.instances.len(), engine.apps.len()), (30, 1));
    assert!(fleet.crms().iter().all(|crm| crm.instances().len() == 1 && crm.clusters().len() == 1));
    assert!(
        controller.nodes.list().iter().all(|n| n.key.as_ref().unwrap().name.starts_with("sim-"))
    );

    until("told so", || {
        let ready = |crm: &SimCrm| {
            crm.instances().list().iter().all(|i| i.state() == S::Ready)
                && crm.clusters().list().iter().all(|c| c.state() == S::Ready)
        };
        fleet.crms().iter().all(ready)
    })
    .await;
    let before = fleet.received();
    fleet.break_connections();
    let again = |crm: &SimCrm| {
        let status = crm.status().client;
        status.in_sync && status.stats.connects == 2
    };
    until("back", || fleet.crms().iter().all(again)).await;
    assert_eq!(fleet.received(), before, "nothing changed, nothing was sent");
}

#[tokio::test]
async fn a_crm_that_is_dropped_is_gone() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    until("there", || controller.infos.len() == 1).await;
    let fault = Fault::Crash { remember: true };
    crm.script(FaultRule::once(What::Cluster, Operation::Create, fault));
    drop(crm);
    until("gone", || controller.infos.is_empty() && controller.server.peers().is_empty()).await;
}
