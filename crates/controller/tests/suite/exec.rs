//! Commands: to the right agent, through the right controller, and back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::selvage::shell::shell_service_client::ShellServiceClient;
use selvage_api::selvage::shell::{Open, Piece, piece};
use selvage_kit::identity::{self, Authenticator, Credentials, Identity, Refused};
use selvage_kit::serve::{Limits, Server, Services, Socket, Trust};
use selvage_kit::telemetry::Metrics;
use selvage_notify::{Kind, MessageSink, Stream};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Request;
use tonic::transport::Channel;
use wire::Liveness::Static;

use super::harness::*;
use super::infos::{Agent, wait_for_state};

/// Takes commands; the test answers them.
struct Commands {
    kind: Arc<Kind>,
    sender: mpsc::UnboundedSender<wire::ExecRequest>,
}

#[async_trait]
impl MessageSink for Commands {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, _: &Stream) -> Result<(), selvage_notify::Error> {
        self.sender.send(wire::ExecRequest::decode(payload).unwrap()).unwrap();
        Ok(())
    }
}

/// An agent that takes commands for a cloudlet of tmus.
async fn agent(house: &House, place: &str) -> (Agent, mpsc::UnboundedReceiver<wire::ExecRequest>) {
    let (sender, commands) = mpsc::unbounded_channel();
    let sink = Commands { kind: Kind::of::<wire::ExecRequest>().unwrap(), sender };
    let agent = Agent::connect_with(house, |exchange| {
        exchange.receive_messages(Arc::new(sink)).send_messages::<wire::ExecRequest>().unwrap()
    });
    agent.infos.put(cloudlet_info("tmus", place)).unwrap();
    wait_for_state(house, place, wire::CloudletState::Ready).await;
    (agent, commands)
}

fn command(place: &str, offer: &str) -> wire::ExecRequest {
    wire::ExecRequest {
        app_inst_key: app_inst("one", place, Static).key,
        command: "ls -l".into(),
        offer: offer.into(),
        ..Default::default()
    }
}

/// With several agents the original asked all of them, and took the first
/// refusal for the answer.
#[tokio::test]
async fn a_command_goes_to_the_agent_of_its_cloudlet_only() {
    let house = house().await;
    let places = ["west", "east", "north", "south", "middle"];
    let mut agents = Vec::new();
    for place in places {
        house.plant(app_inst("one", place, Static)).await;
        agents.push(agent(&house, place).await);
    }
    for (place, (agent, commands)) in places.iter().zip(&mut agents) {
        let (mut client, request) = (house.exec(), command(place, "offer"));
        let call = tokio::spawn(async move { client.run_command(request).await });
        let mut got = commands.recv().await.unwrap();
        assert_ne!(got.id, 0);
        assert_eq!(got, wire::ExecRequest { id: got.id, ..command(place, "offer") });
        got.answer = format!("of {place}");
        agent.client.post(&got).unwrap();
        let reply = call.await.unwrap().unwrap().into_inner();
        assert_eq!((reply.answer, reply.id), (format!("of {place}"), 0));
    }
    for (_, commands) in &mut agents {
        assert!(commands.try_recv().is_err(), "each got its own and no other");
    }
}

#[tokio::test]
async fn what_the_agent_complains_of_comes_back() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let mut client = house.exec();
    let call = tokio::spawn(async move { client.run_command(command("west", "offer")).await });
    let mut got = for_west.recv().await.unwrap();
    got.err = "no containers to run command in".into();
    west.client.post(&got).unwrap();
    assert_eq!(call.await.unwrap().unwrap().into_inner().err, "no containers to run command in");

    let mut client = house.exec();
    let call = tokio::spawn(async move { client.run_command(command("west", "again")).await });
    let got = for_west.recv().await.unwrap();
    west.client.post(&got).unwrap();
    assert_refused(call.await.unwrap(), Code::Unavailable, "no one answered the offer");
}

#[tokio::test]
async fn without_an_agent_or_an_answer_it_fails_in_time() {
    let short = |settings: &mut selvage_controller::Settings| {
        settings.timeouts.exec_container = Duration::from_millis(100);
    };
    let house = house_on(memory().await, short).await;
    let text = format!("app inst {} not found", {
        selvage_controller::keys::KeyText::text(&app_inst("one", "west", Static).key.unwrap())
    });
    let refused = house.exec().run_command(command("west", "o")).await;
    assert_refused(refused, Code::NotFound, &text);
    house.plant(app_inst("one", "west", Static)).await;
    let refused = house.exec().run_command(command("west", "o")).await;
    assert_refused(refused, Code::Unavailable, "no matching CRMs");
    let (_west, _for_west) = agent(&house, "west").await;
    let refused = house.exec().run_command(command("west", "o")).await;
    assert_refused(refused, Code::DeadlineExceeded, "ExecRequest timed out");
}

#[tokio::test]
async fn a_command_finds_its_agent_through_another_controller() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    here.plant(app_inst("one", "west", Static)).await;
    let (west, for_west) = agent(&there, "west").await;
    wait_for_state(&here, "west", wire::CloudletState::Ready).await;
    let for_west = Arc::new(Mutex::new(Some(for_west)));
    let mut commands = for_west.lock().take().unwrap();
    let mut client = here.exec();
    let call = tokio::spawn(async move { client.run_command(command("west", "offer")).await });
    let mut got = commands.recv().await.unwrap();
    got.answer = "from afar".into();
    west.client.post(&got).unwrap();
    assert_eq!(call.await.unwrap().unwrap().into_inner().answer, "from afar");

    // Its controller dies without a word.
    drop(west);
    let owner = there.controller.settings.external_address.clone();
    drop(there);
    let gone = wire::ControllerKey { addr: owner };
    eventually("it is not registered any more", || async {
        here.stored::<wire::Controller>(&gone).is_none()
    })
    .await;
    let refused = here.exec().run_command(command("west", "o")).await;
    assert_refused(refused, Code::Unavailable, "no matching CRMs");
}

/// Calls that are the same in all that the original has: an agent that sends
/// the number back may answer in any order, one that does not in theirs.
#[tokio::test]
async fn equal_calls_get_the_answers_that_are_meant_for_them() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    for numbered in [true, false] {
        let mut calls = Vec::new();
        let mut got = Vec::new();
        for _ in 0..3 {
            let mut client = house.exec();
            let call = async move { client.run_command(command("west", "offer")).await };
            calls.push(tokio::spawn(call));
            got.push(for_west.recv().await.unwrap());
        }
        let mut answers: Vec<usize> = vec![0, 1, 2];
        if numbered {
            answers.reverse();
        }
        for at in answers {
            let id = if numbered { got[at].id } else { 0 };
            let answer = format!("answer {at}");
            west.client.post(&wire::ExecRequest { id, answer, ..got[at].clone() }).unwrap();
        }
        for (at, call) in calls.into_iter().enumerate() {
            let reply = call.await.unwrap().unwrap().into_inner();
            assert_eq!(reply.answer, format!("answer {at}"), "numbered: {numbered}");
        }
    }
}

/// The recorded location of an agent may be out of date, and of those who could
/// know some may be dead.
#[tokio::test]
async fn a_command_finds_an_agent_that_is_not_where_it_is_said_to_be() {
    let store = memory().await;
    let (here, there) = (house_on(store.clone(), |_| {}).await, house_on(store, |_| {}).await);
    here.plant(app_inst("one", "west", Static)).await;
    let (west, mut commands) = agent(&there, "west").await;
    let dead = wire::ControllerKey { addr: "127.0.0.1:1".into() };
    here.plant(wire::Controller { key: Some(dead), ..Default::default() }).await;
    let info = there.stored::<wire::CloudletInfo>(&cloudlet_key("tmus", "west")).unwrap();
    let own = format!("localhost@{}", here.address);
    for said in [own.as_str(), "localhost@127.0.0.1:1", "localhost@127.0.0.1:2", ""] {
        here.plant(wire::CloudletInfo { controller: said.into(), ..info.clone() }).await;
        let mut client = here.exec();
        let call = tokio::spawn(async move { client.run_command(command("west", "offer")).await });
        let mut got = commands.recv().await.unwrap();
        got.answer = "found".into();
        west.client.post(&got).unwrap();
        assert_eq!(call.await.unwrap().unwrap().into_inner().answer, "found", "{said:?}");
    }
}

/// A command without an offer: what the agent and the caller are told.
async fn relayed(
    house: &House,
    agent: &Agent,
    commands: &mut mpsc::UnboundedReceiver<wire::ExecRequest>,
) -> (String, wire::ExecRequest) {
    let mut client = house.exec();
    let call = tokio::spawn(async move { client.run_command(command("west", "")).await });
    let mut got = commands.recv().await.unwrap();
    let relay = got.relay.clone();
    got.answer = "relay".into();
    agent.client.post(&got).unwrap();
    (relay, call.await.unwrap().unwrap().into_inner())
}

fn token(relay: &str) -> String {
    relay.rsplit_once('/').unwrap().1.to_owned()
}

#[tokio::test]
async fn without_an_offer_the_two_meet_at_the_controller() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let (relay, reply) = relayed(&house, &west, &mut for_west).await;
    let (own, host) = (token(&reply.relay), house.address);
    assert_eq!(relay, format!("{host}/{}", token(&relay)));
    assert_eq!(reply.relay, format!("{host}/{own}"));
    assert_eq!(reply.answer, format!("ws://{host}/selvage/v1/shell?token={own}"));
    assert_ne!(own, token(&relay), "each has its own token");

    let attach = |token: String| selvage_shell::attach(house.channel(), token, |_| {});
    let (caller, crm) = tokio::join!(attach(own.clone()), attach(token(&relay)));
    let (mut caller, mut crm) = (caller.unwrap(), crm.unwrap());
    let used = attach(own).await.unwrap_err();
    assert_eq!(used.code(), Code::PermissionDenied, "{used}");
    let (question, exit) = (
        selvage_shell::Frame::Data(Bytes::from_static(b"who?")),
        selvage_shell::Frame::Exit { code: 3, reason: String::new() },
    );
    caller.outgoing.send(question.clone()).await.unwrap();
    assert_eq!(crm.incoming.recv().await, Some(question));
    crm.outgoing.send(exit.clone()).await.unwrap();
    assert_eq!(caller.incoming.recv().await, Some(exit));
    crm.close().await;
    assert_eq!(caller.incoming.recv().await, None, "the end of one is the end of the other");

    // The other way round: the caller goes.
    let (relay, reply) = relayed(&house, &west, &mut for_west).await;
    let (caller, crm) = tokio::join!(attach(token(&reply.relay)), attach(token(&relay)));
    let mut crm = crm.unwrap();
    drop(caller.unwrap());
    assert_eq!(crm.incoming.recv().await, None);
}

#[tokio::test]
async fn what_will_not_be_leaves_no_token() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let mut client = house.exec();
    let call = tokio::spawn(async move { client.run_command(command("west", "")).await });
    let mut got = for_west.recv().await.unwrap();
    let relay = got.relay.clone();
    got.err = "no containers to run command in".into();
    west.client.post(&got).unwrap();
    let reply = call.await.unwrap().unwrap().into_inner();
    assert_eq!((reply.err.as_str(), reply.relay.as_str()), (got.err.as_str(), ""));
    let refused = selvage_shell::attach(house.channel(), token(&relay), |_| {}).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_browser_talks_by_a_web_socket() {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::{Error, Message};

    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let (relay, reply) = relayed(&house, &west, &mut for_west).await;
    let dial = async || tokio::net::TcpStream::connect(house.address).await.unwrap();
    let forged = reply.answer.replace("token=", "token=x");
    let refused = tokio_tungstenite::client_async(&forged, dial().await).await.unwrap_err();
    assert!(matches!(refused, Error::Http(response) if response.status() == 403));

    let browser = tokio_tungstenite::client_async(&reply.answer, dial().await);
    let crm = selvage_shell::attach(house.channel(), token(&relay), |_| {});
    let (browser, crm) = tokio::join!(browser, crm);
    let ((mut browser, _), mut crm) = (browser.unwrap(), crm.unwrap());
    browser.send(Message::text(r#"{"resize":[132,50]}"#)).await.unwrap();
    browser.send(Message::binary("ls\n")).await.unwrap();
    let size = selvage_shell::Frame::Size { columns: 132, rows: 50 };
    assert_eq!(crm.incoming.recv().await, Some(size));
    let typed = selvage_shell::Frame::Data(Bytes::from_static(b"ls\n"));
    assert_eq!(crm.incoming.recv().await, Some(typed));
    let output = Bytes::from_static(b"a b c");
    crm.outgoing.send(selvage_shell::Frame::Data(output.clone())).await.unwrap();
    let exit = selvage_shell::Frame::Exit { code: 7, reason: String::new() };
    crm.outgoing.send(exit).await.unwrap();
    crm.close().await;
    let mut heard = Vec::new();
    while let Some(Ok(message)) = browser.next().await {
        if !message.is_ping() {
            heard.push(message);
        }
    }
    assert_eq!(heard[..2], [Message::Binary(output), Message::text(r#"{"exit":7}"#)]);
    assert!(heard[2..].iter().all(Message::is_close), "{heard:?}");
}

/// Takes everybody for one administrator, until told otherwise.
struct UntilRevoked(watch::Receiver<bool>);

#[async_trait]
impl Authenticator for UntilRevoked {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        if *self.0.borrow() {
            let message = "the session has ended".into();
            return Err(Refused { code: Code::Unauthenticated, message });
        }
        let kind = identity::Kind::User { session: "s".into(), expires: i64::MAX };
        Ok(Identity::all_powerful("ann", kind))
    }
}

/// A listener of the same controller on which people log in.
async fn for_people(house: &House, lost: watch::Receiver<bool>) -> Channel {
    let mut services = Services::default();
    house.controller.add_to(&mut services);
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let server = Server::new(services, Metrics::new("test"), limits).await.unwrap();
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = socket.address().unwrap();
    let trust = Trust::Credentials(Arc::new(UntilRevoked(lost)));
    tokio::spawn(server.run(socket, trust, house.stop.clone()));
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn signed<M>(message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
    request
}

/// The end of a session ends what its owner hears of a shell, and what the
/// shell hears of its owner.
#[tokio::test]
async fn whoever_lost_the_right_to_a_shell_types_nothing_any_more() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let (lose, lost) = watch::channel(false);
    let channel = for_people(&house, lost).await;
    let mut api = wire::exec_api_client::ExecApiClient::new(channel.clone());
    let call = tokio::spawn(async move { api.run_command(signed(command("west", ""))).await });
    let mut got = for_west.recv().await.unwrap();
    let relay = got.relay.clone();
    got.answer = "relay".into();
    west.client.post(&got).unwrap();
    let reply = call.await.unwrap().unwrap().into_inner();

    let (typing, typed) = mpsc::unbounded_channel();
    let open = Open { token: token(&reply.relay) };
    typing.send(Piece { kind: Some(piece::Kind::Open(open)) }).unwrap();
    let mut shell = ShellServiceClient::new(channel);
    let (screen, crm) = tokio::join!(
        shell.attach(signed(UnboundedReceiverStream::new(typed))),
        selvage_shell::attach(house.channel(), token(&relay), |_| {}),
    );
    let (mut screen, mut crm) = (screen.unwrap().into_inner(), crm.unwrap());
    let keys = |text: &[u8]| Piece { kind: Some(piece::Kind::Data(text.to_vec())) };
    typing.send(keys(b"ls")).unwrap();
    let heard = selvage_shell::Frame::Data(Bytes::from_static(b"ls"));
    assert_eq!(crm.incoming.recv().await, Some(heard));
    lose.send_replace(true);
    let ended = screen.message().await.unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unauthenticated, "{ended}");
    let _ = typing.send(keys(b"rm -r /"));
    assert_eq!(crm.incoming.recv().await, None, "the shell hears no more");
}

/// Whoever talks to the crm past the controller is cut off there: the crm hears
/// of it, and the caller gets no hand on the crm's own connection.
#[tokio::test]
async fn a_direct_shell_ends_with_the_right_to_it() {
    let house = house().await;
    house.plant(app_inst("one", "west", Static)).await;
    let (west, mut for_west) = agent(&house, "west").await;
    let (lose, lost) = watch::channel(false);
    let mut api = wire::exec_api_client::ExecApiClient::new(for_people(&house, lost).await);
    let call = tokio::spawn(async move { api.run_command(signed(command("west", "v=0"))).await });
    let mut got = for_west.recv().await.unwrap();
    let relay = got.relay.clone();
    got.answer = "v=1".into();
    west.client.post(&got).unwrap();
    let reply = call.await.unwrap().unwrap().into_inner();
    assert_eq!((reply.answer.as_str(), reply.relay.as_str()), ("v=1", ""));
    let crm = selvage_shell::attach(house.channel(), token(&relay), |_| {}).await;
    let mut crm = crm.unwrap();
    assert!(crm.incoming.try_recv().is_err());
    lose.send_replace(true);
    let heard = tokio::time::timeout(Duration::from_secs(60), crm.incoming.recv()).await;
    assert_eq!(heard.unwrap(), None, "it is over");
}
