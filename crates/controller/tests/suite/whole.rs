//! The part as a process runs it: every service is there, and agents are who
//! their certificates say they are.

use std::sync::Arc;

use async_trait::async_trait;
use futures::channel::mpsc;
use prost::{Message, Name};
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::app_inst_api_client::AppInstApiClient;
use selvage_api::edgeproto::notify_api_client::NotifyApiClient;
use selvage_controller::row::Row;
use selvage_controller::{Dependencies, EdgeController, Settings};
use selvage_kit::identity::{Authenticator, Credentials, Identity, Machine, Refused};
use selvage_kit::pki::{
    Ca, KeyRequest, RotatingIdentity, ServerIdentity, client_config, server_config,
};
use selvage_kit::serve::{Limits, Server, Services, Socket, Trust};
use selvage_kit::tasks::Tasks;
use selvage_kit::telemetry::Metrics;
use selvage_notify::{Cache, ClientOptions, Exchange, NotifyClient};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::harness::*;
use super::infos::Agent;

async fn part() -> EdgeController {
    let settings = Settings::default();
    EdgeController::open(memory().await, settings, Dependencies::default()).await.unwrap()
}

#[tokio::test]
async fn every_service_of_the_contract_is_served() {
    let mut services = Services::default();
    part().await.add_to(&mut services);
    let wanted = selvage_api::methods().iter().map(|method| method.path.split('/').nth(1).unwrap());
    // Operations are served once for all parts of a process, by the daemon.
    let ours = |name: &&str| name.starts_with("edgeproto.") || name.starts_with("selvage.metrics.");
    let missing: Vec<_> =
        wanted.filter(ours).filter(|name| !services.names().contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Nobody has a session here.
struct Nobody;

#[async_trait]
impl Authenticator for Nobody {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        Ok(Identity::anonymous())
    }
}

#[tokio::test]
async fn an_agent_speaks_for_its_own_cloudlet_only() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Arc::new(Ca::open_or_create(&folder.path().join("ca")).unwrap());
    let names = vec!["127.0.0.1".to_owned()];
    let server_identity = ServerIdentity::issued(Arc::clone(&ca), names).unwrap();
    let tls = server_config(&server_identity, &ca).unwrap();
    let part = part().await;
    let stop = CancellationToken::new();
    let tasks = Tasks::new(stop.clone());
    let _reconcilers = part.spawn(&tasks);
    let mut services = Services::default();
    part.add_to(&mut services);
    let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), Some(tls)).unwrap();
    let address = socket.address().unwrap();
    tokio::spawn(server.run(socket, Trust::Credentials(Arc::new(Nobody)), stop.clone()));

    let request = KeyRequest::new().unwrap();
    let machine = Machine::Cloudlet { operator: "tmus".into(), name: "west".into() };
    let signed = ca.sign_machine(request.csr_pem(), &machine).unwrap();
    let path = folder.path().join("agent.pem");
    let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem).unwrap();
    let infos = Cache::<wire::CloudletInfo>::new().unwrap();
    let options = ClientOptions {
        addresses: vec![format!("https://{address}")],
        tls: Some(Arc::new(client_config(ca.pem(), Some(&identity)).unwrap())),
        filter: true,
        ..ClientOptions::default()
    };
    let client = NotifyClient::new(Exchange::new().send(infos.clone()), options).unwrap();
    let running = client.clone();
    let token = stop.clone();
    tokio::spawn(async move { running.run(token).await });

    let tables = &part.controller().tables;
    infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("its own cloudlet is known", || async { tables.cloudlet_infos.len() == 1 }).await;
    infos.put(cloudlet_info("tmus", "east")).unwrap();
    eventually("the lie costs it its connection", || async {
        client.status().last_error.is_some_and(|error| error.contains("may not send CloudletInfo"))
    })
    .await;
    assert!(tables.get::<wire::CloudletInfo>(&cloudlet_key("tmus", "east")).is_none());
    stop.cancel();
    tasks.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
}

/// An agent that was started anew does not know what it was deleting, and those
/// of old begin a deletion by a request only.
#[tokio::test]
async fn a_restarted_agent_is_asked_for_its_deletions_again() {
    let part = part().await;
    let controller = part.controller();
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    // Without the reconcilers, which would find out later by themselves.
    tokio::spawn(Arc::clone(controller).run(stop.clone()));
    let mut services = Services::default();
    part.add_to(&mut services);
    let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents");
    let socket = Socket::unix(&path).await.unwrap();
    tokio::spawn(server.run(socket, Trust::Socket, stop));

    let mut inst = app_inst("app", "west", wire::Liveness::Static);
    inst.set_state(wire::TrackedState::Deleting);
    let key = inst.key.clone().unwrap();
    controller.tables.app_insts.put(Row(inst.clone())).await.unwrap();
    let state = || controller.tables.get::<wire::AppInst>(&key).map(|row| row.value.0.state());
    let connect = || Agent::connect_to(&path, |exchange| exchange);

    let agent = connect();
    let deleting = wire::TrackedState::Deleting.into();
    let info = wire::AppInstInfo { key: inst.key, state: deleting, ..Default::default() };
    agent.app_inst_infos.put(info).unwrap();
    let reported = || controller.notify().totals().obj_recv.get("AppInstInfo").copied();
    eventually("reported", || async { reported() == Some(1) }).await;
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    eventually("in sync", || async { agent.client.status().in_sync }).await;
    assert_eq!(state(), Some(wire::TrackedState::Deleting), "the agent is at work on it");
    drop(agent);
    eventually("it has left", || async { controller.notify().peers().is_empty() }).await;

    let agent = connect();
    agent.infos.put(cloudlet_info("tmus", "west")).unwrap();
    let requested = Some(wire::TrackedState::DeleteRequested);
    eventually("requested again", || async { state() == requested }).await;
    drop(agent);
}

/// A crm of the original: it ends what it has to say before it says which cloudlet it
/// is of, and reports nothing of itself.
struct OriginalCrm {
    say: mpsc::UnboundedSender<wire::Notice>,
    hear: tonic::Streaming<wire::Notice>,
}

impl OriginalCrm {
    async fn connect(channel: &Channel) -> Self {
        let (say, said) = mpsc::unbounded();
        let notice = |action: wire::NoticeAction| wire::Notice {
            action: action.into(),
            ..wire::Notice::default()
        };
        let hello = wire::Notice {
            version: 1,
            want_objs: vec!["edgeproto.AppInst".into()],
            filter_cloudlet_key: true,
            ..notice(wire::NoticeAction::Version)
        };
        say.unbounded_send(hello).unwrap();
        say.unbounded_send(notice(wire::NoticeAction::SendallEnd)).unwrap();
        let mut client = NotifyApiClient::new(channel.clone());
        let hear = client.stream_notice(said).await.unwrap().into_inner();
        let crm = Self { say, hear };
        crm.say(wire::NoticeAction::Update, &cloudlet_info("tmus", "west"));
        crm
    }

    fn say<M: Message + Name>(&self, action: wire::NoticeAction, object: &M) {
        let type_url = format!("type.googleapis.com/{}", M::full_name());
        let any = Some(prost_types::Any { type_url, value: object.encode_to_vec() });
        let notice = wire::Notice { action: action.into(), any, ..wire::Notice::default() };
        self.say.unbounded_send(notice).unwrap();
    }

    /// Waits for an instance to be in this state, as the controller wants it.
    async fn wanted(&mut self, state: wire::TrackedState) {
        loop {
            let notice = self.hear.message().await.unwrap().unwrap();
            let Some(any) = notice.any.filter(|any| any.type_url.ends_with("AppInst")) else {
                continue;
            };
            if wire::AppInst::decode(any.value.as_slice()).unwrap().state() == state {
                return;
            }
        }
    }
}

/// It was deleting an instance when it ended, and the next one knows nothing of that.
#[tokio::test]
async fn an_original_crm_that_forgot_a_deletion_is_asked_again_when_it_announces_its_cloudlet() {
    let part = part().await;
    let controller = part.controller();
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    // Without the reconcilers, which would find out later by themselves.
    tokio::spawn(Arc::clone(controller).run(stop.clone()));
    let mut services = Services::default();
    part.add_to(&mut services);
    let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = socket.address().unwrap();
    tokio::spawn(server.run(socket, Trust::Everybody, stop));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();

    let tables = &controller.tables;
    tables.cloudlets.put(Row(cloudlet("tmus", "west"))).await.unwrap();
    tables.apps.put(Row(app("Acme", "app"))).await.unwrap();
    let cluster = cluster_inst("west", "small", wire::Liveness::Static);
    tables.cluster_insts.put(Row(cluster)).await.unwrap();
    let inst = app_inst("app", "west", wire::Liveness::Static);
    tables.app_insts.put(Row(inst.clone())).await.unwrap();
    let info = |state: wire::TrackedState| wire::AppInstInfo {
        key: inst.key.clone(),
        state: state.into(),
        ..wire::AppInstInfo::default()
    };

    let mut crm = OriginalCrm::connect(&channel).await;
    crm.wanted(wire::TrackedState::Ready).await;
    let mut api = AppInstApiClient::new(channel.clone());
    let request = wire::AppInst { key: inst.key.clone(), ..wire::AppInst::default() };
    let call = tokio::spawn(async move { messages(api.delete_app_inst(request).await).await });
    crm.wanted(wire::TrackedState::DeleteRequested).await;
    crm.say(wire::NoticeAction::Update, &info(wire::TrackedState::Deleting));
    crm.wanted(wire::TrackedState::Deleting).await;
    drop(crm);

    let mut crm = OriginalCrm::connect(&channel).await;
    crm.wanted(wire::TrackedState::DeleteRequested).await;
    crm.say(wire::NoticeAction::Delete, &info(wire::TrackedState::NotPresent));
    let said = call.await.unwrap().unwrap();
    assert_eq!(said.last().map(String::as_str), Some("Deleted AppInst successfully"), "{said:?}");
    assert!(tables.app_insts.is_empty());
}
