//! An agent at one of several controllers: it is found from all of them, and
//! goes to another one when its own dies.

use std::sync::Arc;

use selvage_api::edgeproto::{
    AppInst, CloudletInfo, CloudletState, CrmOverride, ExecRequest, Node, TrackedState,
    app_inst_api_client::AppInstApiClient, cloudlet_info_api_client::CloudletInfoApiClient,
    exec_api_client::ExecApiClient, node_api_client::NodeApiClient,
};
use selvage_sim::{Limits, ObjectKind, SimCrm, SimOptions, Verb};
use selvage_tests::{
    Client,
    fleet::{Fleet, all, bounded, everything, show, until},
    process::TIMEOUT,
};

use crate::workload::{app_inst, cloudlet_key, set_up};

/// TLS configuration of the cloudlet.
async fn identity(fleet: &Fleet) -> Arc<rustls::ClientConfig> {
    let ca = fleet.running[0].as_ref().unwrap().ca().unwrap();
    let machine = format!("cloudlet/tmus/{}", cloudlet_key().name);
    fleet.client(0).join(&ca, &machine).await
}

/// An agent of the cloudlet that knows all controllers.
async fn agent(fleet: &Fleet, numbers: bool) -> SimCrm {
    let mut options = SimOptions::new(fleet.addresses().into_iter().collect(), cloudlet_key());
    options.client.tls = Some(identity(fleet).await);
    options.limits = Limits { ram: 1 << 40, vcores: 1 << 40, volume: 1 << 40 };
    options.numbers = numbers;
    SimCrm::start(options).unwrap()
}

/// Which controller has the agent, as this client sees it.
async fn owner(fleet: &Fleet, client: &Client) -> Result<usize, String> {
    let mut infos = CloudletInfoApiClient::new(client.channel.clone());
    let shown = infos.show_cloudlet_info(client.request(CloudletInfo::default()));
    let infos = all(shown).await.map_err(|status| status.to_string())?;
    let [info] = infos.as_slice() else { return Err(format!("{infos:?}")) };
    if info.state() != CloudletState::Ready || info.notify_id == 0 {
        return Err(format!("{info:?}"));
    }
    let address = info.controller.rsplit_once('@').unwrap().1;
    let runs = |at: &usize| {
        fleet.running[*at].as_ref().is_some_and(|selvage| selvage.address() == address)
    };
    (0..fleet.running.len()).find(runs).ok_or_else(|| format!("{info:?}"))
}

/// Waits until all controllers agree on who has the agent.
async fn owned(fleet: &Fleet) -> usize {
    until("the agent to be somewhere", async || {
        let mut owners = Vec::new();
        for client in fleet.alive() {
            owners.push(owner(fleet, &client).await?);
        }
        owners.dedup();
        if owners.len() == 1 { Ok(owners[0]) } else { Err(format!("{owners:?}")) }
    })
    .await
}

/// A command reaches the agent from everywhere.
async fn commands_arrive(fleet: &Fleet, crm: &SimCrm) {
    let before = crm.counters().execs;
    let clients = fleet.alive();
    for client in &clients {
        let request = ExecRequest {
            app_inst_key: app_inst("one").key,
            command: "ls".into(),
            offer: "offer".into(),
            ..ExecRequest::default()
        };
        let mut api = ExecApiClient::new(client.channel.clone());
        let reply = bounded(api.run_command(client.request(request))).await.unwrap().into_inner();
        assert_eq!((reply.answer.as_str(), reply.err.as_str()), ("sim-answer: ls", ""));

        // Without an offer the two meet at the controller that was asked.
        let request = ExecRequest {
            app_inst_key: app_inst("one").key,
            command: "echo hi".into(),
            ..ExecRequest::default()
        };
        let reply = bounded(api.run_command(client.request(request))).await.unwrap().into_inner();
        let token = reply.relay.rsplit_once('/').unwrap().1.to_owned();
        let (credentials, ..) = client.request(()).into_parts();
        let attaching = selvage_shell::attach(client.channel.clone(), token, |request| {
            *request.metadata_mut() = credentials;
        });
        let mut talk = tokio::time::timeout(TIMEOUT, attaching).await.unwrap().unwrap();
        let word = tokio::time::timeout(TIMEOUT, talk.incoming.recv()).await.unwrap();
        assert_eq!(word, Some(selvage_shell::Frame::Data("hi\r\n".into())));
    }
    assert_eq!(crm.counters().execs, before + 2 * clients.len() as u64, "each once");
}

/// Every controller shows the one agent there is.
async fn nodes_are_merged(fleet: &Fleet) {
    for client in fleet.alive() {
        let nodes = show!(client, NodeApiClient, show_node, Node);
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        assert!(nodes[0].key.as_ref().unwrap().name.starts_with("sim-"));
    }
}

/// Waits until all controllers answer alike, apart from what is of one of
/// them by its name, and show what the agent said of its one instance.
async fn answers_are_alike(fleet: &Fleet) {
    let expected = [
        "/edgeproto.AppInstInfoApi/ShowAppInstInfo",
        "/edgeproto.ClusterInstInfoApi/ShowClusterInstInfo",
        "/edgeproto.NodeApi/ShowNode",
    ];
    until("the same answers from all", async || {
        let mut answers = Vec::new();
        for client in fleet.alive() {
            let mut answer = everything(&client).await;
            answer.remove("/edgeproto.NodeApi/ShowNodeLocal").unwrap();
            if let Some(path) = expected.iter().find(|path| answer[**path].len() != 1) {
                return Err(format!("{path}: {:?}", answer[*path]));
            }
            answers.push(answer);
        }
        let differs = |path: &&String| answers.iter().any(|a| a[*path] != answers[0][*path]);
        answers[0].keys().find(differs).map_or(Ok(()), |path| Err(path.clone()))
    })
    .await;
}

async fn instance(client: &Client) -> AppInst {
    let mut found = show!(client, AppInstApiClient, show_app_inst, AppInst);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

async fn an_agent_moves(numbers: bool) {
    let Some(mut fleet) = Fleet::start().await else { return };
    set_up(&fleet.client(0)).await;
    fleet.join().await;
    fleet.join().await;
    let crm = agent(&fleet, numbers).await;
    let first = owned(&fleet).await;

    // Asked of one that does not have the agent.
    let other = fleet.client((first + 1) % 3);
    let wanted = AppInst { crm_override: CrmOverride::NoOverride.into(), ..app_inst("one") };
    let mut api = AppInstApiClient::new(other.channel.clone());
    all(api.create_app_inst(other.request(wanted))).await.unwrap();
    assert!(!crm.infrastructure().is_empty());
    commands_arrive(&fleet, &crm).await;
    nodes_are_merged(&fleet).await;
    answers_are_alike(&fleet).await;

    // Its controller dies; for a while it is registered all the same.
    let dead = fleet.running[first].as_ref().unwrap().address().to_owned();
    fleet.kill(first);
    let second = owned(&fleet).await;
    assert_ne!(first, second);
    let registered = fleet.alive().len();
    assert_eq!(registered, 2, "{dead} is gone");
    commands_arrive(&fleet, &crm).await;
    nodes_are_merged(&fleet).await;
    for client in fleet.alive() {
        assert_eq!(instance(&client).await.state(), TrackedState::Ready);
    }
    answers_are_alike(&fleet).await;
    let begun = crm.counters().begun;
    assert_eq!(begun[&(ObjectKind::Instance, Verb::Create)], 1, "nothing was made again");
    assert_eq!(crm.client().stats.resumed, 1, "only what changed was sent");

    // And it works there.
    let client = fleet.client(second);
    let mut api = AppInstApiClient::new(client.channel.clone());
    let unwanted = AppInst { crm_override: CrmOverride::NoOverride.into(), ..app_inst("one") };
    all(api.delete_app_inst(client.request(unwanted))).await.unwrap();
    assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());
    crm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_found_from_everywhere_and_moves_when_its_controller_dies() {
    Box::pin(an_agent_moves(true)).await;
}

/// One that does not send the numbers of commands back.
#[tokio::test(flavor = "multi_thread")]
async fn so_does_an_agent_of_the_original() {
    Box::pin(an_agent_moves(false)).await;
}
