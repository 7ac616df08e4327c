//! One call to many nodes: those that answer, and those that do not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "assertions end by the time of the machine")]

mod behalf;
mod lab;

use std::{collections::BTreeMap, net::TcpListener, sync::Arc};

use futures::TryStreamExt;
use lab::{Agent, Lab, Manner, channel, request, tls};
use selvage_api::{
    common::{Data, Metadata},
    machine::{
        ListRequest, LogsRequest, ReadRequest, StartRequest,
        machine_service_client::MachineServiceClient,
    },
    time::{Time, time_service_client::TimeServiceClient},
};
use selvage_node::fanout::{Fanout, Settings, StaticDirectory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status, transport::Channel};

/// A name of the entry's own that nobody could connect to.
const OWN: &str = "entry.invalid:9";

fn fanout(lab: &Lab, machine: &str, nodes: &[(&str, &Agent)]) -> Fanout {
    let known: BTreeMap<String, String> =
        nodes.iter().map(|(name, agent)| ((*name).to_owned(), agent.name())).collect();
    // Only here: whoever may call could find out what answers where.
    let settings = Settings { own: vec![OWN.into()], by_address: true, ..Settings::default() };
    let directory = Arc::new(StaticDirectory::new(&known, 1).unwrap());
    let tls = Some(lab.shown_by(machine));
    match machine {
        "controller" => Fanout::of_controller(settings, directory, tls),
        node => Fanout::of_node(settings, directory, tls, lab.vouches(node)),
    }
}

struct Entry {
    agent: Agent,
    channel: Channel,
}

async fn entry(lab: &Lab, machine: &str, nodes: &[(&str, &Agent)]) -> Entry {
    let agent = lab.entry(fanout(lab, machine, nodes)).await;
    let channel = channel(lab.shown_by_nobody(), &agent).await;
    Entry { agent, channel }
}

impl Entry {
    async fn time(&self, headers: &[(&'static str, &str)]) -> Result<Vec<Time>, Status> {
        let mut client = TimeServiceClient::new(self.channel.clone());
        Ok(client.time(request((), "viewer", headers)).await?.into_inner().messages)
    }

    fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel.clone())
    }
}

fn hosts(messages: &[Time]) -> Vec<&str> {
    messages.iter().map(|time| time.metadata.as_ref().unwrap().hostname.as_str()).collect()
}

fn error(time: &Time) -> &str {
    &time.metadata.as_ref().unwrap().error
}

/// A port that nobody listens on.
fn dead() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_in_the_order_of_the_request() {
    let lab = Lab::new();
    let entry = entry(&lab, "controller", &[]).await;
    for count in [1, 3, 100] {
        let mut agents = lab.agents(count).await;
        agents.reverse();
        let names: Vec<String> = agents.iter().map(Agent::name).collect();
        let list = names.join(",");
        let headers = [("nodes", list.as_str()), ("node-timeout", "60S")];
        let answers = entry.time(&headers).await.unwrap();
        assert_eq!(hosts(&answers), names);
        for (place, answer) in answers.iter().enumerate() {
            let expected = format!("n{} to some viewer viewer", (count - 1 - place) % 10);
            assert_eq!((answer.server.as_str(), error(answer)), (expected.as_str(), ""));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_answers_for_itself_alone() {
    let lab = Lab::new();
    let (good, slow) =
        (lab.agent(Manner::Answers("good".into())).await, lab.agent(Manner::Hangs).await);
    let (failing, empty) = (lab.agent(Manner::Fails).await, lab.agent(Manner::Empty).await);
    let entry = entry(&lab, "controller", &[("by-name", &good), ("idle one", &empty)]).await;
    let dead = dead();
    let headers = [
        ("nodes", dead.as_str()),
        ("nodes", &slow.name()),
        ("nodes", &failing.name()),
        ("nodes", "by-name"),
        ("nodes", &good.name()),
        ("nodes", OWN),
        ("nodes", "by-name"),
        ("nodes", "idle one"),
        ("nodes", "no-such-host.invalid"),
        ("node-timeout", "5S"),
    ];
    let answers = entry.time(&headers).await.unwrap();
    let (slow, failing) = (slow.name(), failing.name());
    let expected = [&dead, &slow, &failing, "by-name", OWN, "idle one", "no-such-host.invalid"]
        .map(str::to_owned);
    assert_eq!(hosts(&answers), expected, "in order, and nobody twice");
    assert!(error(&answers[0]).starts_with("rpc error: code = Unavailable desc = "));
    let late = error(&answers[1]);
    assert!(late.starts_with("rpc error: code = DeadlineExceeded desc = "), "{late}");
    assert_eq!(error(&answers[2]), "rpc error: code = Unavailable desc = x");
    assert_eq!(
        (answers[3].server.as_str(), error(&answers[3])),
        ("good to some viewer viewer", "")
    );
    assert_eq!(answers[4].server, "entry to some viewer viewer", "without the network");
    assert_eq!((answers[5].server.as_str(), error(&answers[5])), ("", ""), "empty, but answered");
    assert!(!error(&answers[6]).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_may_carry_the_port_that_the_machine_answers_on() {
    let lab = Lab::new();
    let good = lab.agent(Manner::Answers("good".into())).await;
    let entry = entry(&lab, "controller", &[("by-name", &good)]).await;
    let named = format!("by-name:{}", good.address.port());
    let answers = entry.time(&[("nodes", named.as_str())]).await.unwrap();
    assert_eq!((hosts(&answers), error(&answers[0])), (vec![named.as_str()], ""));
    assert!(answers[0].server.starts_with("good"), "{answers:?}");
    let answers = entry.time(&[("nodes", "by-name:1")]).await.unwrap();
    assert!(error(&answers[0]).contains("leave the port out"), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_own_deadline_leaves_the_answers_of_others() {
    let lab = Lab::new();
    let mut agents = lab.agents(99).await;
    agents.insert(50, lab.agent(Manner::Hangs).await);
    let entry = entry(&lab, "controller", &[]).await;
    let names: Vec<String> = agents.iter().map(Agent::name).collect();
    let list = names.join(",");
    // Once connected, all but one answer long before the caller gives up.
    let patient = [("nodes", list.as_str()), ("node-timeout", "20S")];
    assert_eq!(entry.time(&patient).await.unwrap().len(), 100);
    let mut call = request((), "viewer", &[("nodes", list.as_str())]);
    call.set_timeout(std::time::Duration::from_secs(15));
    let mut client = TimeServiceClient::new(entry.channel.clone());
    // The usual patience with a node is longer than what the caller leaves.
    let answers = client.time(call).await.unwrap().into_inner().messages;
    assert_eq!(hosts(&answers), names);
    for (place, answer) in answers.iter().enumerate() {
        let late = error(answer).starts_with("rpc error: code = DeadlineExceeded");
        assert_eq!(late, place == 50, "{place}: {}", error(answer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_and_wrong_names() {
    let lab = Lab::new();
    let six = lab.serve(Manner::Answers("six".into()), "[::1]:0", None, Vec::new()).await;
    let entry = entry(&lab, "controller", &[]).await;
    let answers = entry.time(&[("nodes", &six.name())]).await.unwrap();
    assert_eq!(answers[0].server, "six to some viewer viewer");
    for wrong in ["", "a,,b", "a b", "host:port", "user@host"] {
        let refused = entry.time(&[("nodes", wrong)]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}");
        assert!(refused.message().starts_with("invalid target \""), "{refused}");
    }
    let refused = entry.time(&[("nodes", "a"), ("node-timeout", "soon")]).await.unwrap_err();
    assert!(refused.message().starts_with("node-timeout"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_answers_as_if_it_was_called_directly() {
    let lab = Lab::new();
    let good = lab.named("good", Manner::Answers("good".into())).await;
    let failing = lab.named("failing", Manner::Fails).await;
    let entry = entry(&lab, "node/entry", &[("good", &good), ("failing", &failing)]).await;
    let answers = entry.time(&[("node", "good")]).await.unwrap();
    assert_eq!(answers[0].metadata, None);
    assert_eq!(answers[0].server, "good to some viewer viewer");
    let refused = entry.time(&[("node", &failing.name())]).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "x"));
    let refused = entry.time(&[("node", "good"), ("node", "bad")]).await.unwrap_err();
    assert_eq!(refused.message(), "node metadata must be single-valued");
    // A call that was relayed once goes no further.
    let here = entry.time(&[("nodes", "good"), ("proxyfrom", "x")]).await.unwrap();
    assert_eq!(
        (here[0].server.as_str(), &here[0].metadata),
        ("entry to some viewer viewer", &None)
    );
    let refused = entry
        .machine()
        .start(request(StartRequest { id: "a".into() }, "admin", &[("nodes", "good")]))
        .await
        .unwrap_err();
    assert_eq!(
        refused.message(),
        "one-2-many proxying is not supported for method /machine.MachineService/Start"
    );
}

fn of_host<'a>(pieces: &'a [Data], host: &str) -> Vec<&'a Data> {
    let named = |data: &&Data| data.metadata.as_ref().is_some_and(|m| m.hostname == host);
    pieces.iter().filter(named).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_come_mixed_in_whole_lines() {
    let lab = Lab::new();
    let agents = [lab.agent(Manner::Fails).await, lab.agent(Manner::Hangs).await];
    let entry = entry(&lab, "controller", &[("a", &agents[0]), ("b", &agents[1])]).await;
    let dead = dead();
    let nodes = format!("a,b,{dead},{OWN}");
    let call = request(
        LogsRequest { id: "any".into(), ..Default::default() },
        "operator",
        &[("nodes", nodes.as_str())],
    );
    let pieces: Vec<Data> =
        entry.machine().logs(call).await.unwrap().into_inner().try_collect().await.unwrap();
    let expected: String = (0..10).map(|n| format!("line {n}\n")).collect();
    for host in ["a", "b", OWN] {
        let own = of_host(&pieces, host);
        assert!(own.iter().all(|data| data.bytes.ends_with(b"\n")), "{own:?}");
        let text: Vec<u8> = own.iter().flat_map(|data| data.bytes.clone()).collect();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
    let [failed] = of_host(&pieces, &dead)[..] else { panic!("{pieces:?}") };
    let Metadata { error, .. } = failed.metadata.as_ref().unwrap();
    assert!(error.starts_with("rpc error: code = Unavailable desc = "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_many_nodes_keep_their_bytes() {
    let lab = Lab::new();
    let place = tempfile::tempdir().unwrap();
    let contents: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    std::fs::write(place.path().join("file"), &contents).unwrap();
    let roots = || vec![place.path().to_owned()];
    let good = Manner::Answers("x".into());
    let one = lab.serve(good.clone(), "127.0.0.1:0", None, roots()).await;
    let two = lab.serve(good, "127.0.0.1:0", None, roots()).await;
    let entry = entry(&lab, "controller", &[("one", &one), ("two", &two)]).await;
    let path = place.path().join("file").to_str().unwrap().to_owned();
    let call = request(ReadRequest { path }, "admin", &[("nodes", "one,two")]);
    let pieces: Vec<Data> =
        entry.machine().read(call).await.unwrap().into_inner().try_collect().await.unwrap();
    for host in ["one", "two"] {
        let bytes: Vec<u8> = of_host(&pieces, host).iter().flat_map(|d| d.bytes.clone()).collect();
        assert!(bytes == contents, "{host}");
    }
    // An error of a stream is a message of that node, the others go on.
    let root = place.path().to_str().unwrap().to_owned();
    let call = request(
        ListRequest { root, ..Default::default() },
        "viewer",
        &[("nodes", "one"), ("nodes", OWN)],
    );
    let files: Vec<_> =
        entry.machine().list(call).await.unwrap().into_inner().try_collect().await.unwrap();
    assert_eq!(files.iter().filter(|f| f.metadata.as_ref().unwrap().hostname == "one").count(), 2);
    let call = request(
        ListRequest { root: "/etc".into(), ..Default::default() },
        "viewer",
        &[("nodes", "one,two")],
    );
    let refused: Vec<_> =
        entry.machine().list(call).await.unwrap().into_inner().try_collect().await.unwrap();
    assert_eq!(refused.len(), 2);
    for file in refused {
        let text = file.metadata.unwrap().error;
        assert!(text.starts_with("rpc error: code = PermissionDenied desc = path "), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_reaches_many_nodes_too() {
    let lab = Lab::new();
    let good = lab.agent(Manner::Answers("good".into())).await;
    let entry = entry(&lab, "controller", &[("good", &good)]).await;
    let mut config = (*lab.shown_by_nobody()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut stream = tls(Arc::new(config), entry.agent.address).await;
    let call = "POST /time.TimeService/Time HTTP/1.1\r\nHost: localhost\r\n\
                Authorization: Bearer viewer\r\nContent-Type: application/json\r\n\
                Nodes: good, entry.invalid:9\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut reply = String::new();
    // The end of the connection need not be a clean one.
    let _ = stream.read_to_string(&mut reply).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    for part in
        ["good to some viewer viewer", "\"hostname\":\"good\"", "\"hostname\":\"entry.invalid:9\""]
    {
        assert!(reply.replace(": ", ":").contains(part), "{part} in {reply}");
    }
}
