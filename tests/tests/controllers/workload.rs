//! A workload of calls, and the objects that it works on.

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use selvage_api::{
    distributed_match_engine::Loc,
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey, CloudletState,
        ClusterInstKey, ClusterKey, CrmOverride, Developer, DeveloperKey, Flavor, FlavorInfo,
        FlavorKey, ImageType, Operator, OperatorKey, app_api_client::AppApiClient,
        app_inst_api_client::AppInstApiClient, cloudlet_api_client::CloudletApiClient,
        cloudlet_info_api_client::CloudletInfoApiClient, developer_api_client::DeveloperApiClient,
        flavor_api_client::FlavorApiClient, operator_api_client::OperatorApiClient,
    },
};
use selvage_tests::Client;
use tokio::{task::JoinHandle, time};
use tonic::{Code, Status};

use selvage_tests::fleet::{Fleet, PAUSE, all, bounded, until};

pub(crate) const FLAVOR: &str = "x1.small";
pub(crate) const FLAVOR_RAM: u64 = 2048;

pub(crate) fn cloudlet_key() -> CloudletKey {
    CloudletKey {
        operator_key: Some(OperatorKey { name: "tmus".into() }),
        name: "tmus-cloud-1".into(),
    }
}

pub(crate) fn flavor(name: &str) -> Flavor {
    let key = Some(FlavorKey { name: name.into() });
    Flavor { key, ram: FLAVOR_RAM, vcpus: 2, disk: 2, ..Flavor::default() }
}

pub(crate) fn app(name: &str) -> App {
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
pub(crate) fn app_inst(name: &str) -> AppInst {
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
pub(crate) async fn attach(client: &Client) -> Result<(), Status> {
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
pub(crate) async fn set_up(client: &Client) {
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

/// Object that the workload makes and removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    Flavor(String),
    App(String),
    AppInst(String),
}

impl Thing {
    pub(crate) async fn create(&self, client: &Client) -> Result<(), Status> {
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

    pub(crate) async fn delete(&self, client: &Client) -> Result<(), Status> {
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

/// Knowledge of clients of what they did. They do not know what became of a call
/// that was not answered, and never touch its object again.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) present: BTreeSet<Thing>,
    pub(crate) deleted: BTreeSet<Thing>,
    pub(crate) unanswered: usize,
    /// Answers that no fault excuses.
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct Workload {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    workers: Vec<JoinHandle<Known>>,
}

impl Workload {
    pub(crate) fn start(fleet: &Fleet, workers: usize) -> Self {
        let (stop, acknowledged) = (Arc::default(), Arc::default());
        let workers = (0..workers)
            .map(|index| {
                let worker = Worker {
                    index,
                    random: Random(index as u64),
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
    pub(crate) async fn goes_on(&self, while_what: &str, count: usize) {
        let goal = self.acknowledged.load(Ordering::Relaxed) + count;
        until(&format!("acknowledged calls, {while_what}"), async || {
            let now = self.acknowledged.load(Ordering::Relaxed);
            if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
        })
        .await;
    }

    pub(crate) async fn end(self) -> Known {
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

pub(crate) struct Worker {
    index: usize,
    random: Random,
    clients: Arc<Mutex<Vec<Client>>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    known: Known,
}

impl Worker {
    pub(crate) async fn run(mut self) -> Known {
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

    pub(crate) fn new_thing(&mut self, turn: usize) -> Thing {
        let name = format!("w{}n{turn}", self.index);
        match self.random.below(4) {
            0 => Thing::Flavor(name),
            1 => Thing::App(name),
            _ => Thing::AppInst(name),
        }
    }

    pub(crate) async fn learn(&mut self, thing: Thing, create: bool, answer: Result<(), Status>) {
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

/// Returns true if a call may end so while somebody pulls plugs. A status with a
/// source was made up on the client's side, when the connection broke.
pub(crate) fn excused(status: &Status) -> bool {
    status.source().is_some()
        || matches!(status.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded)
}

/// Small, and the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}
