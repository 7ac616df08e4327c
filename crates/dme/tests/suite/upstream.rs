//! An engine at the lower end of notify.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use selvage_api::edgeproto::{
    App, AppInst, AppInstRuntime, CloudletInfo, CloudletState, Metric, Node, NodeType, TrackedState,
};
use selvage_dme::{Dme, Mirror, Settings, Upstream, keys::KeySource};
use selvage_kit::{clock::SystemClock, tasks::Tasks};
use selvage_notify::{
    Backoff, Cache, ClientOptions, Exchange, Mailbox, MessageReceiver, NotifyServer, OpenGate,
    ServerOptions,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::lab::{Keys, app, info, instance, listed, name, until};

/// A controller made of caches.
pub(crate) struct Controller {
    pub(crate) apps: Arc<Cache<App>>,
    pub(crate) instances: Arc<Cache<AppInst>>,
    infos: Arc<Cache<CloudletInfo>>,
    nodes: Arc<Cache<Node>>,
    metrics: Arc<Mailbox<Metric>>,
    letters: MessageReceiver<Metric>,
}

pub(crate) struct Serving {
    server: NotifyServer,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Controller {
    pub(crate) fn new() -> Self {
        let (metrics, letters) = Mailbox::new(1000).unwrap();
        Self {
            apps: Cache::new().unwrap(),
            instances: Cache::new().unwrap(),
            infos: Cache::new().unwrap(),
            nodes: Cache::new().unwrap(),
            metrics,
            letters,
        }
    }

    pub(crate) async fn serve(&self, tells_of_cloudlets: bool, at: Option<SocketAddr>) -> Serving {
        let mut exchange = Exchange::new();
        if tells_of_cloudlets {
            exchange = exchange.send(self.infos.clone());
        }
        let exchange = exchange
            .send(self.apps.clone())
            .send(self.instances.clone())
            .receive(self.nodes.clone())
            .receive_messages(self.metrics.clone());
        let options = ServerOptions { gate: Arc::new(OpenGate), ..ServerOptions::default() };
        let server = NotifyServer::new(exchange, options);
        let at = at.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tonic::transport::Server::builder()
            .add_service(server.service())
            .serve_with_incoming_shutdown(incoming, stopped);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Serving { server, address, stop, task }
    }
}

impl Serving {
    pub(crate) async fn stop(self) -> SocketAddr {
        self.server.close().await;
        self.stop.cancel();
        self.task.await.unwrap();
        self.address
    }
}

pub(crate) struct Running {
    pub(crate) dme: Dme,
    tasks: Tasks,
}

impl Running {
    pub(crate) fn start(address: SocketAddr, settings: Settings) -> Self {
        Self::start_with(address, settings, Arc::new(Keys::with(1)), None)
    }

    pub(crate) fn start_with(
        address: SocketAddr,
        settings: Settings,
        keys: Arc<dyn KeySource>,
        mirror: Option<Mirror>,
    ) -> Self {
        let controllers = ClientOptions {
            addresses: vec![address.to_string()],
            backoff: Backoff {
                first: Duration::from_millis(1),
                longest: Duration::from_millis(10),
                ..Backoff::default()
            },
            ..ClientOptions::default()
        };
        let upstream = Upstream { controllers, keys, mirror };
        let dme = Dme::open(settings, upstream, Arc::new(SystemClock)).unwrap();
        let tasks = Tasks::new(CancellationToken::new());
        let clock = Arc::new(selvage_store::clock::SystemClock::new());
        dme.spawn(&selvage_work::Reconcilers::new(tasks.clone(), clock));
        Self { dme, tasks }
    }

    pub(crate) fn names(&self, app_name: &str) -> Vec<String> {
        let all = listed(self.dme.engine(), &name(app_name), "", (1.0, 1.0));
        all.into_iter().map(|(cloudlet, ..)| cloudlet).collect()
    }

    pub(crate) async fn offers(&self, app_name: &str, expected: &[&str]) {
        until(&format!("{app_name} on {expected:?}"), || self.names(app_name) == expected).await;
    }

    pub(crate) async fn ready(&self) {
        let mut ready = self.dme.ready();
        ready.wait_for(Result::is_ok).await.unwrap();
    }

    pub(crate) async fn end(self) {
        self.tasks.token().cancel();
        self.tasks.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

pub(crate) fn quick() -> Settings {
    Settings { stats_interval: Duration::from_millis(10), ..Settings::default() }
}

pub(crate) const PLACES: [(&str, &str); 3] = [("TDG", "a"), ("TDG", "b"), ("TMUS", "c")];

pub(crate) fn put_all(controller: &Controller, app_name: &str) {
    for (index, place) in (1_u8..).zip(PLACES) {
        let at = (f64::from(index), 1.0);
        let ready = instance(&name(app_name), place, at, place.1);
        controller.instances.put(ready).unwrap();
    }
}

pub(crate) fn all_up(controller: &Controller) {
    for (operator, cloudlet) in PLACES {
        controller.infos.put(info(operator, cloudlet, CloudletState::Ready)).unwrap();
    }
}

/// As the original's: what is deleted while the engine is away is gone when it
/// is back, and what was there is there.
#[tokio::test]
async fn what_went_while_it_was_away_is_pruned() {
    let controller = Controller::new();
    all_up(&controller);
    put_all(&controller, "some");
    controller.apps.put(app(&name("some"))).unwrap();
    controller.apps.put(app(&name("gone"))).unwrap();
    let serving = controller.serve(true, None).await;
    let engine = Running::start(serving.address, quick());
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    engine.ready().await;

    let address = serving.stop().await;
    until("away", || !engine.dme.status().in_sync).await;
    assert_eq!(engine.names("some").len(), 3, "it goes on with what it knows");
    assert!(engine.dme.ready().borrow().is_ok());
    until("stale", || engine.dme.staleness() > Duration::ZERO).await;
    controller.instances.remove(&instance(&name("some"), PLACES[1], (0.0, 0.0), "")).unwrap();
    controller.apps.remove(&app(&name("gone"))).unwrap();
    let serving = controller.serve(true, Some(address)).await;
    engine.offers("some", &["TDG/a", "TMUS/c"]).await;
    until("app gone", || engine.dme.engine().feed().table().app_count() == 1).await;
    until("in step", || engine.dme.staleness() == Duration::ZERO).await;
    engine.end().await;

    let fresh = Running::start(serving.address, quick());
    fresh.offers("some", &["TDG/a", "TMUS/c"]).await;
    fresh.end().await;
    serving.stop().await;
}

#[tokio::test]
async fn only_what_is_ready_on_a_cloudlet_that_is_up_is_offered() {
    let controller = Controller::new();
    all_up(&controller);
    controller.apps.put(app(&name("some"))).unwrap();
    put_all(&controller, "some");
    let serving = controller.serve(true, None).await;
    let engine = Running::start(serving.address, quick());
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;

    let others = (0..20).filter_map(|number| TrackedState::try_from(number).ok());
    for state in others.filter(|state| *state != TrackedState::Ready) {
        let mut changed = instance(&name("some"), PLACES[0], (1.0, 1.0), "a");
        changed.state = state.into();
        controller.instances.put(changed.clone()).unwrap();
        engine.offers("some", &["TDG/b", "TMUS/c"]).await;
        changed.state = TrackedState::Ready.into();
        controller.instances.put(changed).unwrap();
        engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    }
    let mut sick = instance(&name("some"), PLACES[0], (1.0, 1.0), "a");
    let unhealthy = "connection refused".into();
    sick.runtime_info = Some(AppInstRuntime { unhealthy, ..AppInstRuntime::default() });
    controller.instances.put(sick.clone()).unwrap();
    engine.offers("some", &["TDG/b", "TMUS/c"]).await;
    sick.runtime_info = Some(AppInstRuntime::default());
    controller.instances.put(sick).unwrap();
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    for state in [CloudletState::Offline, CloudletState::Errors, CloudletState::NotPresent] {
        controller.infos.put(info("TMUS", "c", state)).unwrap();
        engine.offers("some", &["TDG/a", "TDG/b"]).await;
        controller.infos.put(info("TMUS", "c", CloudletState::Ready)).unwrap();
        engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    }
    controller.infos.remove(&info("TDG", "b", CloudletState::Ready)).unwrap();
    engine.offers("some", &["TDG/a", "TMUS/c"]).await;
    engine.end().await;
    serving.stop().await;
}

/// While an instance is updated, and when that has failed, the version of before
/// serves where its crm says so.
#[tokio::test]
async fn an_update_that_runs_or_failed_leaves_the_old_version_found() {
    let controller = Controller::new();
    all_up(&controller);
    controller.apps.put(app(&name("some"))).unwrap();
    put_all(&controller, "some");
    let serving = controller.serve(true, None).await;
    let engine = Running::start(serving.address, quick());
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;

    let runtime = |addresses: &[&str], unhealthy: &str| AppInstRuntime {
        addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
        unhealthy: unhealthy.into(),
        ..AppInstRuntime::default()
    };
    for state in [TrackedState::UpdateRequested, TrackedState::Updating, TrackedState::UpdateError]
    {
        let mut changed = instance(&name("some"), PLACES[0], (1.0, 1.0), "a");
        changed.state = state.into();
        changed.runtime_info = Some(runtime(&["10.1.1.1:80"], "connection refused"));
        controller.instances.put(changed.clone()).unwrap();
        engine.offers("some", &["TDG/b", "TMUS/c"]).await;
        changed.runtime_info = Some(runtime(&["10.1.1.1:80"], ""));
        controller.instances.put(changed).unwrap();
        engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    }
    engine.end().await;
    serving.stop().await;
}

/// The original's controllers do not say which cloudlets are up.
#[tokio::test]
async fn a_controller_that_says_nothing_of_cloudlets_is_believed() {
    let controller = Controller::new();
    controller.apps.put(app(&name("some"))).unwrap();
    put_all(&controller, "some");
    let serving = controller.serve(false, None).await;
    let engine = Running::start(serving.address, quick());
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    engine.end().await;
    serving.stop().await;
}

/// One that says nothing of any, since none is up, is believed too.
#[tokio::test]
async fn without_a_cloudlet_that_is_up_nothing_is_offered() {
    let controller = Controller::new();
    controller.apps.put(app(&name("some"))).unwrap();
    put_all(&controller, "some");
    let default = instance(&name("some"), ("developer", "default"), (0.0, 0.0), "default");
    controller.instances.put(default).unwrap();
    let serving = controller.serve(true, None).await;
    let engine = Running::start(serving.address, quick());
    engine.ready().await;
    assert_eq!(engine.names("some"), [""; 0]);
    let found = || crate::lab::find(engine.dme.engine(), &name("some"), "TDG", (1.0, 1.0));
    assert_eq!(found(), "default", "this one has no agent");
    engine.end().await;
    serving.stop().await;
}

#[tokio::test]
async fn an_instance_waits_for_its_app() {
    let controller = Controller::new();
    all_up(&controller);
    put_all(&controller, "some");
    let serving = controller.serve(true, None).await;
    let engine = Running::start(serving.address, quick());
    engine.ready().await;
    assert_eq!(engine.dme.engine().feed().instances.len(), 3);
    assert_eq!(engine.dme.engine().feed().table().app_count(), 0);
    controller.apps.put(app(&name("some"))).unwrap();
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    engine.end().await;
    serving.stop().await;
}

#[tokio::test]
async fn it_says_who_it_is_and_what_it_counted_and_nothing_else() {
    let mut controller = Controller::new();
    controller.apps.put(app(&name("some"))).unwrap();
    let serving = controller.serve(true, None).await;
    let settings = Settings {
        name: "engine-1".into(),
        operator: "TDG".into(),
        cloudlet: "a".into(),
        ..quick()
    };
    let engine = Running::start(serving.address, settings);
    engine.ready().await;
    until("node", || controller.nodes.len() == 1).await;
    let key = controller.nodes.list()[0].key.clone().unwrap();
    assert_eq!((key.name.as_str(), key.node_type()), ("engine-1", NodeType::NodeDme));

    let mut services = selvage_kit::serve::Services::default();
    engine.dme.add_to(&mut services);
    let mut client = crate::wire::Server::of(services).await.client().await;
    until("keys", || engine.dme.engine().cookies().newest().is_some()).await;
    for _ in 0..3 {
        client.register_client(crate::lab::register(&name("some"))).await.unwrap();
    }
    // Apps that do not exist, and those of others, are not found.
    client.register_client(crate::lab::register(&name("none"))).await.unwrap_err();
    client.find_cloudlet(crate::lab::asked("TDG", 1.0, 1.0)).await.unwrap_err();
    let mut last = controller.letters.recv().await.unwrap().0;
    let calls = |sample: &Metric| format!("{:?}", sample.vals[0]);
    while !calls(&last).contains("Ival(3)") {
        last = controller.letters.recv().await.unwrap().0;
    }
    let tag = |name: &str| last.tags.iter().find(|tag| tag.name == name).unwrap().val.clone();
    assert_eq!(
        ["app", "oper", "cloudlet", "id", "method"].map(tag),
        ["some", "TDG", "a", "engine-1", "RegisterClient"]
    );
    let sent = || engine.dme.status().stats.obj_send["Metric"];
    let before = sent();
    client.register_client(crate::lab::register(&name("some"))).await.unwrap();
    controller.letters.recv().await.unwrap();
    assert_eq!(sent(), before + 1, "idle for a while, it sent nothing");
    engine.end().await;
    serving.stop().await;
}
