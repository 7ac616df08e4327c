//! Apps, instances, and an engine to put them into.

use std::sync::Arc;

use jiff::Timestamp;
use selvage_api::{
    distributed_match_engine::{
        AppInstListRequest, AppPort, FindCloudletReply, FindCloudletRequest, Loc,
        RegisterClientRequest, find_cloudlet_reply::FindStatus,
    },
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, CloudletInfo, CloudletKey, CloudletState, ClusterInstKey,
        ClusterKey, DeveloperKey, OperatorKey, TrackedState,
    },
    selvage::matching::CookieKey,
};
use selvage_dme::{AppName, Engine, Error, Session, Settings, keys::KeySource};
use selvage_kit::clock::ManualClock;
pub(crate) use selvage_testkit::wait_until as until;

/// Keys that a test hands out.
#[derive(Clone, Default)]
pub(crate) struct Keys(pub(crate) Arc<std::sync::Mutex<Vec<CookieKey>>>);

impl Keys {
    pub(crate) fn with(count: u32) -> Self {
        let keys = Self::default();
        for _ in 0..count {
            keys.rotate();
        }
        keys
    }

    pub(crate) fn rotate(&self) {
        let mut keys = self.0.lock().unwrap();
        let version = u32::try_from(keys.len()).unwrap() + 1;
        let cookie_secret = format!("secret number {version}").into_bytes();
        keys.push(CookieKey { version, cookie_secret, created: None });
    }
}

#[async_trait::async_trait]
impl KeySource for Keys {
    async fn keys(&self) -> Result<Vec<CookieKey>, Error> {
        Ok(self.0.lock().unwrap().clone())
    }
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_second(1_800_000_000).unwrap())
}

pub(crate) async fn engine() -> Engine {
    engine_with(Settings::default(), Keys::with(1), clock()).await
}

pub(crate) async fn engine_with(settings: Settings, keys: Keys, clock: ManualClock) -> Engine {
    let engine = Engine::new(settings, Arc::new(keys), Arc::new(clock)).unwrap();
    engine.cookies().load().await.unwrap();
    engine
}

pub(crate) fn name(app: &str) -> AppName {
    AppName::new(format!("{app} Inc"), app, "1.0")
}

pub(crate) fn app_key(name: &AppName) -> AppKey {
    AppKey {
        developer_key: Some(DeveloperKey { name: name.developer.clone() }),
        name: name.name.clone(),
        version: name.version.clone(),
    }
}

pub(crate) fn app(name: &AppName) -> App {
    App { key: Some(app_key(name)), ..App::default() }
}

pub(crate) fn cloudlet(operator: &str, name: &str) -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: operator.into() }), name: name.into() }
}

pub(crate) fn info(operator: &str, name: &str, state: CloudletState) -> CloudletInfo {
    CloudletInfo {
        key: Some(cloudlet(operator, name)),
        state: state.into(),
        ..CloudletInfo::default()
    }
}

pub(crate) fn loc(latitude: f64, longitude: f64) -> Loc {
    Loc { latitude, longitude, ..Loc::default() }
}

/// An instance that is ready.
pub(crate) fn instance(
    app: &AppName,
    (operator, cloudlet_name): (&str, &str),
    (latitude, longitude): (f64, f64),
    uri: &str,
) -> AppInst {
    in_cluster(app, (operator, cloudlet_name), (latitude, longitude), uri, "cluster")
}

pub(crate) fn in_cluster(
    app: &AppName,
    (operator, cloudlet_name): (&str, &str),
    (latitude, longitude): (f64, f64),
    uri: &str,
    cluster: &str,
) -> AppInst {
    let cluster_inst_key = ClusterInstKey {
        cluster_key: Some(ClusterKey { name: cluster.into() }),
        cloudlet_key: Some(cloudlet(operator, cloudlet_name)),
        developer: app.developer.clone(),
    };
    let key = AppInstKey { app_key: Some(app_key(app)), cluster_inst_key: Some(cluster_inst_key) };
    AppInst {
        key: Some(key),
        cloudlet_loc: Some(loc(latitude, longitude)),
        uri: uri.into(),
        mapped_ports: vec![AppPort {
            proto: 1,
            internal_port: 80,
            public_port: 80,
            ..AppPort::default()
        }],
        state: TrackedState::Ready.into(),
        ..AppInst::default()
    }
}

/// Puts everything in; all cloudlets count as up.
pub(crate) fn fill(engine: &Engine, apps: &[App], instances: &[AppInst]) {
    let feed = engine.feed();
    for app in apps {
        feed.apps.put(app.clone()).unwrap();
    }
    for instance in instances {
        feed.instances.put(instance.clone()).unwrap();
    }
    feed.in_sync();
    feed.publish();
}

pub(crate) fn session(app: &AppName) -> Session {
    Session { app: app.clone(), peer: String::new() }
}

pub(crate) fn asked(carrier: &str, latitude: f64, longitude: f64) -> FindCloudletRequest {
    FindCloudletRequest {
        carrier_name: carrier.into(),
        gps_location: Some(loc(latitude, longitude)),
        ..FindCloudletRequest::default()
    }
}

pub(crate) fn register(app: &AppName) -> RegisterClientRequest {
    RegisterClientRequest {
        dev_name: app.developer.clone(),
        app_name: app.name.clone(),
        app_vers: app.version.clone(),
        ..RegisterClientRequest::default()
    }
}

pub(crate) fn find(engine: &Engine, app: &AppName, carrier: &str, at: (f64, f64)) -> String {
    fqdn(engine.find(&session(app), &asked(carrier, at.0, at.1)).unwrap())
}

/// Host that was found; empty if nothing was.
pub(crate) fn fqdn(reply: FindCloudletReply) -> String {
    assert_eq!(reply.status == i32::from(FindStatus::FindFound), !reply.fqdn.is_empty());
    assert!(reply.cloudlet_location.is_some());
    reply.fqdn
}

pub(crate) fn listed(
    engine: &Engine,
    app: &AppName,
    carrier: &str,
    at: (f64, f64),
) -> Vec<(String, f64, Vec<String>)> {
    let request = AppInstListRequest {
        carrier_name: carrier.into(),
        gps_location: Some(loc(at.0, at.1)),
        ..AppInstListRequest::default()
    };
    let reply = engine.list(&session(app), &request).unwrap();
    let cloudlets = reply.cloudlets.into_iter().map(|cloudlet| {
        let fqdns = cloudlet.appinstances.into_iter().map(|instance| instance.fqdn).collect();
        let name = format!("{}/{}", cloudlet.carrier_name, cloudlet.cloudlet_name);
        (name, cloudlet.distance, fqdns)
    });
    cloudlets.collect()
}
