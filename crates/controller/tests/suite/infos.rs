//! Reports of agents, and what becomes of them when the agents leave.

use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::notify_api_client::NotifyApiClient;
use selvage_api::selvage::metrics::ListSamplesRequest;
use selvage_api::selvage::metrics::metrics_service_client::MetricsServiceClient;
use selvage_notify::{Cache, ClientOptions, Exchange, NotifyClient};
use tokio_util::sync::CancellationToken;
use wire::Liveness::Static;

use super::harness::*;

/// An agent that says what it is told to say.
pub(crate) struct Agent {
    pub(crate) infos: Arc<Cache<wire::CloudletInfo>>,
    pub(crate) nodes: Arc<Cache<wire::Node>>,
    pub(crate) app_inst_infos: Arc<Cache<wire::AppInstInfo>>,
    pub(crate) cluster_inst_infos: Arc<Cache<wire::ClusterInstInfo>>,
    pub(crate) flavors: Arc<Cache<wire::Flavor>>,
    pub(crate) apps: Arc<Cache<wire::App>>,
    pub(crate) app_insts: Arc<Cache<wire::AppInst>>,
    pub(crate) client: NotifyClient,
    stop: CancellationToken,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Agent {
    pub(crate) fn connect(house: &House) -> Self {
        Self::connect_with(house, |exchange| exchange)
    }

    pub(crate) fn connect_with(house: &House, more: impl FnOnce(Exchange) -> Exchange) -> Self {
        Self::connect_to(&house.agents.path().join("agents"), more)
    }

    pub(crate) fn connect_to(socket: &Path, more: impl FnOnce(Exchange) -> Exchange) -> Self {
        let (infos, nodes) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (app_inst_infos, cluster_inst_infos) = (Cache::new().unwrap(), Cache::new().unwrap());
        let (flavors, apps) = (Cache::new().unwrap(), Cache::new().unwrap());
        let app_insts = Cache::new().unwrap();
        let exchange = Exchange::new()
            .send(infos.clone())
            .send(app_inst_infos.clone())
            .send(cluster_inst_infos.clone())
            .send(nodes.clone())
            .receive(flavors.clone())
            .receive(apps.clone())
            .receive(app_insts.clone())
            .send_messages::<wire::Metric>()
            .unwrap();
        let options = ClientOptions {
            addresses: vec![format!("unix:{}", socket.display())],
            filter: true,
            ..ClientOptions::default()
        };
        let client = NotifyClient::new(more(exchange), options).unwrap();
        let stop = CancellationToken::new();
        let (running, token) = (client.clone(), stop.clone());
        tokio::spawn(async move { running.run(token).await });
        Self {
            infos,
            nodes,
            app_inst_infos,
            cluster_inst_infos,
            flavors,
            apps,
            app_insts,
            client,
            stop,
        }
    }
}

fn state_of(house: &House, name: &str) -> Option<wire::CloudletState> {
    house.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", name)).map(|info| info.state())
}

pub(crate) async fn wait_for_state(house: &House, name: &str, state: wire::CloudletState) {
    eventually(&format!("{name} is {state:?}"), || async { state_of(house, name) == Some(state) })
        .await;
}

#[tokio::test]
async fn inject_and_evict() {
    let house = house().await;
    let mut client = house.cloudlet_infos();
    let info = cloudlet_info("tmus", "west");
    client.inject_cloudlet_info(info.clone()).await.unwrap();
    // The controller that was asked owns it, as if an agent were connected to it.
    let info = wire::CloudletInfo { controller: format!("localhost@{}", house.address), ..info };
    let shown = drain(client.show_cloudlet_info(wire::CloudletInfo::default()).await).await;
    assert_eq!(shown.unwrap(), std::slice::from_ref(&info));

    // Onto one that is there only what the mask names.
    let mut change = wire::CloudletInfo { os_max_ram: 7, os_max_vcores: 8, ..info.clone() };
    client.inject_cloudlet_info(change.clone()).await.unwrap();
    let key = cloudlet_key("tmus", "west");
    assert_eq!(house.stored::<wire::CloudletInfo>(&key), Some(info.clone()));
    change.fields = vec!["6".into()];
    client.inject_cloudlet_info(change).await.unwrap();
    let expected = wire::CloudletInfo { os_max_ram: 7, ..info.clone() };
    assert_eq!(house.stored::<wire::CloudletInfo>(&key), Some(expected));

    client.evict_cloudlet_info(info.clone()).await.unwrap();
    assert_eq!(house.stored::<wire::CloudletInfo>(&key), None);
    let again = client.evict_cloudlet_info(info).await;
    assert_refused(again, Code::NotFound, "Key not found");
    let refused = client.inject_cloudlet_info(wire::CloudletInfo::default()).await;
    assert_refused(refused, Code::InvalidArgument, "Invalid operator name");
    let wrong = wire::CloudletInfo { state: 77, ..cloudlet_info("tmus", "x") };
    assert!(client.inject_cloudlet_info(wrong).await.is_err());
}

/// Injected by one, then by another: each restores only what is its own.
#[tokio::test]
async fn the_last_to_inject_owns_it() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    let key = cloudlet_key("tmus", "west");
    here.cloudlet_infos().inject_cloudlet_info(cloudlet_info("tmus", "west")).await.unwrap();
    let mut other = wire::CloudletInfo { os_max_ram: 7, ..cloudlet_info("tmus", "west") };
    other.fields = vec!["6".into()];
    there.cloudlet_infos().inject_cloudlet_info(other).await.unwrap();
    let owned = there.stored::<wire::CloudletInfo>(&key).unwrap();
    assert_eq!(owned.controller, format!("localhost@{}", there.address));
    assert_eq!(owned.os_max_ram, 7);

    let lost = here.controller.lease();
    here.controller.store.lease_revoke(lost).await.unwrap();
    eventually("the lease is replaced", || async { here.controller.lease() != lost }).await;
    let own = wire::ControllerKey { addr: here.address.to_string() };
    eventually("and all is restored", || async {
        there.stored::<wire::Controller>(&own).is_some()
    })
    .await;
    assert_eq!(there.stored::<wire::CloudletInfo>(&key), Some(owned));
}

/// An agent that loses its stream and opens another at once keeps the new one,
/// and its cloudlet is offline as soon as the last of them is gone.
#[tokio::test]
async fn quick_reconnects_keep_the_new_stream() {
    let house = house().await;
    let mut agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;
    for round in 0..80 {
        let next = Agent::connect(&house);
        next.infos.put(cloudlet_info("tmus", "west")).unwrap();
        drop(std::mem::replace(&mut agent, next));
        eventually("in sync", || async { agent.client.status().in_sync }).await;
        wait_for_state(&house, "west", wire::CloudletState::Ready).await;
        let status = agent.client.status();
        assert_eq!((status.stats.connects, status.last_error), (1, None), "round {round}");
    }
    // The leavers are cleaned up beside the calls above.
    eventually("one is left", || async { house.controller.notify().peers().len() == 1 }).await;
    assert_eq!(agent.client.status().stats.connects, 1);
    drop(agent);
    wait_for_state(&house, "west", wire::CloudletState::Offline).await;
}

#[tokio::test]
async fn a_cloudlet_is_offline_when_its_agent_leaves() {
    let house = house().await;
    let agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;
    let info = house.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west")).unwrap();
    assert_eq!(info.controller, format!("localhost@{}", house.address));
    assert_ne!(info.notify_id, 0);
    drop(agent);
    wait_for_state(&house, "west", wire::CloudletState::Offline).await;
    let offline = house.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west")).unwrap();
    assert_eq!(offline.os_max_ram, 500, "the rest stays as it was");
}

/// Not only when the time for calls in flight is over.
#[tokio::test]
async fn agents_learn_at_once_that_a_controller_stops() {
    let house = house().await;
    let action = wire::NoticeAction::Version.into();
    let hello = wire::Notice { action, version: 1, ..Default::default() };
    let said = futures::stream::iter([hello]).chain(futures::stream::pending());
    let mut client = NotifyApiClient::new(house.channel());
    let mut notices = client.stream_notice(said).await.unwrap().into_inner();
    assert!(notices.message().await.unwrap().is_some(), "its own version");
    house.stop.cancel();
    let ended = loop {
        match notices.message().await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert_eq!(ended.unwrap_err().message(), "the server is shutting down");
}

/// Two processes with one identity: when one ends, the other still speaks.
#[tokio::test]
async fn a_cloudlet_has_whoever_is_left_of_two_agents() {
    let house = house().await;
    let reported = || {
        let info = house.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west"))?;
        Some((info.os_max_ram, info.state()))
    };
    let ready = wire::CloudletState::Ready;
    let first = Agent::connect(&house);
    first.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("the first one's words", || async { reported() == Some((500, ready)) }).await;
    let second = Agent::connect(&house);
    let other = wire::CloudletInfo { os_max_ram: 7, ..cloudlet_info("tmus", "west") };
    second.infos.put(other).unwrap();
    eventually("the second one's words", || async { reported() == Some((7, ready)) }).await;
    drop(second);
    eventually("the first one's again", || async { reported() == Some((500, ready)) }).await;
    drop(first);
    wait_for_state(&house, "west", wire::CloudletState::Offline).await;
}

#[tokio::test]
async fn an_evicted_info_is_not_brought_back_by_the_end_of_its_agent() {
    let house = house().await;
    let agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    agent.infos.put(cloudlet_info("tmus", "east")).unwrap();
    wait_for_state(&house, "west", wire::CloudletState::Ready).await;
    wait_for_state(&house, "east", wire::CloudletState::Ready).await;
    house.cloudlet_infos().evict_cloudlet_info(cloudlet_info("tmus", "west")).await.unwrap();
    drop(agent);
    wait_for_state(&house, "east", wire::CloudletState::Offline).await;
    assert_eq!(state_of(&house, "west"), None);
}

/// The old connection ends after the agent has come back by a new one.
#[tokio::test]
async fn a_cloudlet_that_moved_on_is_left_alone() {
    let store = memory().await;
    let (first, second) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    let old = Agent::connect(&first);
    old.infos.put(cloudlet_info("tmus", "west")).unwrap();
    old.infos.put(cloudlet_info("tmus", "marker")).unwrap();
    wait_for_state(&second, "west", wire::CloudletState::Ready).await;
    wait_for_state(&second, "marker", wire::CloudletState::Ready).await;
    let new = Agent::connect(&second);
    new.infos.put(cloudlet_info("tmus", "west")).unwrap();
    let here = format!("localhost@{}", second.address);
    eventually("the second controller has it", || async {
        let info = first.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west"));
        info.is_some_and(|info| info.controller == here)
    })
    .await;
    drop(old);
    wait_for_state(&first, "marker", wire::CloudletState::Offline).await;
    assert_eq!(state_of(&first, "west"), Some(wire::CloudletState::Ready));
}

#[tokio::test]
async fn agents_get_what_concerns_their_cloudlet() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.apps().create_app(app("Acme", "two")).await.unwrap();
    house.plant(app_inst("one", "west", Static)).await;
    house.plant(app_inst("two", "east", Static)).await;
    let agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("the instance arrives", || async { agent.app_insts.len() == 1 }).await;
    eventually("its app arrives", || async { agent.apps.len() == 1 }).await;
    assert_eq!(agent.flavors.len(), 1);

    house.plant(app_inst("two", "west", Static)).await;
    eventually("a new instance arrives", || async { agent.app_insts.len() == 2 }).await;
    assert_eq!(agent.apps.len(), 2, "its app came before");
    house.flavors().create_flavor(flavor("new")).await.unwrap();
    eventually("a new flavor arrives", || async { agent.flavors.len() == 2 }).await;
    house.uproot(&app_inst("one", "west", Static)).await;
    eventually("a deleted instance goes", || async { agent.app_insts.len() == 1 }).await;
}

#[tokio::test]
async fn infos_of_instances_are_shown_while_their_agent_is_there() {
    let house = house().await;
    let agent = Agent::connect(&house);
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    let key = app_inst("one", "west", Static).key;
    let info = wire::AppInstInfo {
        key: key.clone(),
        state: wire::TrackedState::Creating.into(),
        ..Default::default()
    };
    agent.app_inst_infos.put(info.clone()).unwrap();
    let shown = || async {
        let filter = wire::AppInstInfo { key: key.clone(), ..Default::default() };
        drain(house.app_inst_infos().show_app_inst_info(filter).await).await.unwrap()
    };
    eventually("the info is shown", || async { shown().await.len() == 1 }).await;
    let mut newer = info.clone();
    newer.set_state(wire::TrackedState::Ready);
    agent.app_inst_infos.put(newer).unwrap();
    eventually("the last one is shown", || async {
        shown().await.first().is_some_and(|info| info.state() == wire::TrackedState::Ready)
    })
    .await;
    drop(agent);
    eventually("it is gone", || async { shown().await.is_empty() }).await;
}

pub(crate) fn sample(name: &str, tag: &str, value: &str) -> wire::Metric {
    let tag = wire::MetricTag { name: tag.into(), val: value.into() };
    wire::Metric { name: name.into(), tags: vec![tag], ..Default::default() }
}

/// Waits until a controller has its agent.
pub(crate) async fn connected(house: &House) {
    eventually("the agent is connected", || async { house.controller.notify().peers().len() == 1 })
        .await;
}

#[tokio::test]
async fn samples_are_kept_and_counted() {
    let house = house().await;
    let agent = Agent::connect(&house);
    connected(&house).await;
    agent.client.post(&sample("appinst-cpu", "app", "one")).unwrap();
    agent.client.post(&sample("appinst-cpu", "app", "two")).unwrap();
    agent.client.post(&sample("cloudlet-cpu", "cloudlet", "west")).unwrap();
    let cloudlets = || async {
        let all = wire::CloudletMetrics::default();
        drain(house.cloudlet_metrics().show_cloudlet_metrics(all).await).await.unwrap()
    };
    eventually("samples arrive", || async {
        cloudlets().await == [wire::CloudletMetrics { foo: 1 }]
    })
    .await;
    let all = wire::AppInstMetrics::default();
    let insts = drain(house.app_inst_metrics().show_app_inst_metrics(all).await).await.unwrap();
    assert_eq!(insts, [wire::AppInstMetrics { something: 2 }]);
    let mut client = MetricsServiceClient::new(house.channel());
    let request = ListSamplesRequest { name: "appinst-cpu".into(), ..Default::default() };
    let listed = drain(client.list_samples(request).await).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|sample| sample.timestamp.is_some()));
}
