//! The part as a process runs it: every service is there, and agents are who
//! their certificates say they are.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
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
    let ours = |name: &&str| {
        name.starts_with("edgeproto.")
            || name.starts_with("selvage.metrics.")
            || name.starts_with("selvage.operations.")
    };
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
