//! Peers as the original is, habits included, scripted notice by notice.

use std::{net::SocketAddr, time::Duration};

use bytes::{Buf, BufMut};
use prost::{Message, Name};
use prost_types::Any;
use selvage_api::edgeproto::{
    App, AppInst, ClusterInst, Flavor, Node, Notice,
    notify_api_client::NotifyApiClient,
    notify_api_server::{NotifyApi, NotifyApiServer},
};
use selvage_notify::{NotifyServer, ServerOptions};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{
    Request, Response, Status, Streaming,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

use crate::support::*;

const UPDATE: i32 = 1;
const DELETE: i32 = 2;
const VERSION: i32 = 3;
const SENDALL_END: i32 = 4;

pub(crate) fn notice<M: Message + Name>(action: i32, object: &M) -> Notice {
    let type_url = format!("type.googleapis.com/{}", M::full_name());
    Notice { action, any: Some(Any { type_url, value: object.encode_to_vec() }), ..bare(action) }
}

pub(crate) fn bare(action: i32) -> Notice {
    Notice { action, any: Some(Any::default()), ..Notice::default() }
}

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A client of the original.
pub(crate) struct Original {
    pub(crate) send: mpsc::UnboundedSender<Notice>,
    pub(crate) notices: Streaming<Notice>,
}

impl Original {
    pub(crate) async fn open(address: SocketAddr, version: Notice) -> Result<Self, Status> {
        Self::open_on(channel(address).await, version).await
    }

    pub(crate) async fn open_on(channel: Channel, version: Notice) -> Result<Self, Status> {
        let mut client = NotifyApiClient::new(channel);
        let (send, receive) = mpsc::unbounded_channel();
        send.send(version).unwrap();
        let stream = UnboundedReceiverStream::new(receive);
        let notices = client.stream_notice(stream).await?.into_inner();
        Ok(Self { send, notices })
    }

    pub(crate) async fn connect(address: SocketAddr, want: &[&str]) -> Self {
        Self::connect_on(channel(address).await, want).await
    }

    pub(crate) async fn connect_on(channel: Channel, want: &[&str]) -> Self {
        let want_objs = want.iter().map(ToString::to_string).collect();
        let version = Notice { version: 1, want_objs, ..bare(VERSION) };
        Self::open_on(channel, version).await.unwrap()
    }

    pub(crate) async fn next(&mut self) -> Notice {
        let next = tokio::time::timeout(Duration::from_secs(120), self.notices.message());
        next.await.expect("a notice in time").unwrap().expect("a notice")
    }

    pub(crate) async fn opening(&mut self) -> Notice {
        let version = self.next().await;
        assert_eq!(version.action, VERSION);
        let end = self.next().await;
        assert_eq!(end, bare(SENDALL_END));
        version
    }

    pub(crate) async fn object<M: Message + Name + Default>(&mut self) -> M {
        let any = self.next().await.any.unwrap();
        assert_eq!(any.type_url, format!("type.googleapis.com/{}", M::full_name()));
        M::decode(any.value.as_slice()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_client_gets_clean_notices_and_none_of_ours() {
    let controller = Controller::new();
    controller.apps.put(app("app0")).unwrap();
    controller.instances.put(app_inst("app0", "c1", "cloud0")).unwrap();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let want = ["edgeproto.AppInst", "edgeproto.App", "edgeproto.Unheard"];
    let mut peer = Original::connect(running.address, &want).await;
    let version = peer.next().await;
    let wants = ["CloudletInfo", "AppInstInfo", "ClusterInstInfo", "Metric", "Node", "ExecRequest"];
    let expected = Notice {
        version: 1,
        want_objs: wants.iter().map(|name| format!("edgeproto.{name}")).collect(),
        ..bare(VERSION)
    };
    assert_eq!(version, expected, "no field of ours towards the original");
    assert_eq!(peer.next().await, notice(UPDATE, &app("app0")), "apps before their instances");
    assert_eq!(peer.next().await, notice(UPDATE, &app_inst("app0", "c1", "cloud0")));
    assert_eq!(peer.next().await, bare(SENDALL_END));

    controller.instances.remove(&app_inst("app0", "c1", "cloud0")).unwrap();
    let key = app_inst("app0", "c1", "cloud0").key;
    let only_key = AppInst { key, ..AppInst::default() };
    assert_eq!(peer.next().await, notice(DELETE, &only_key), "a key and nothing else");
    assert_eq!(server.post(&exec("cloud0", "x")).unwrap(), 0, "it does not want those");
    running.stop(&server).await;
}

/// As behind a proxy: both have the same address. The original let the second
/// one take the place of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_one_connection_both_get_changes() {
    let controller = Controller::new();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let shared = channel(running.address).await;
    let want = ["edgeproto.App"];
    let mut peers = Vec::new();
    for _ in 0..2 {
        let mut peer = Original::connect_on(shared.clone(), &want).await;
        peer.opening().await;
        peers.push(peer);
    }
    let known = server.peers();
    assert_eq!(known.len(), 2);
    assert_ne!(known[0].id, known[1].id);
    controller.apps.put(app("one")).unwrap();
    for peer in &mut peers {
        assert_eq!(peer.object::<App>().await, app("one"));
    }
    // The other peer stays when one disconnects.
    drop(peers.pop());
    until("one is left", || server.peers().len() == 1).await;
    controller.apps.put(app("two")).unwrap();
    assert_eq!(peers[0].object::<App>().await, app("two"));
    running.stop(&server).await;
}

/// An original crm leaves `action` of messages as it was and what it sends
/// for deletes has fields of other objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_crm_with_all_its_habits() {
    let mut controller = Controller::new();
    controller.fill();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let want = ["Flavor", "App", "AppInst", "Cloudlet", "ClusterInst", "ExecRequest"];
    let version = Notice {
        version: 1,
        want_objs: want.iter().map(|name| format!("edgeproto.{name}")).collect(),
        filter_cloudlet_key: true,
        any: None,
        ..bare(VERSION)
    };
    let mut peer = Original::open(running.address, version).await.unwrap();
    assert_eq!(peer.next().await.action, VERSION);
    for _ in 0..3 {
        peer.object::<Flavor>().await;
    }
    // A message with the action of the opening, then one during its send-all
    // that looks like the end of it.
    peer.send.send(notice(VERSION, &exec("cloud0", "one"))).unwrap();
    peer.send.send(notice(SENDALL_END, &exec("cloud0", "two"))).unwrap();
    let mut info = notice(UPDATE, &cloudlet_info("cloud0"));
    info.any.as_mut().unwrap().type_url = "some.where/else/edgeproto.CloudletInfo".into();
    peer.send.send(info).unwrap();
    peer.send.send(Notice { any: None, ..bare(SENDALL_END) }).unwrap();
    for command in ["one", "two"] {
        assert_eq!(controller.execs_out.recv().await.unwrap().0.command, command);
    }
    // The end waits for what concerns its cloudlet, in the order of types.
    assert_eq!(peer.next().await, notice(UPDATE, &cloudlet("cloud0")));
    peer.object::<ClusterInst>().await;
    peer.object::<ClusterInst>().await;
    assert_eq!(peer.object::<App>().await, app("app0"));
    peer.object::<AppInst>().await;
    peer.object::<AppInst>().await;
    assert_eq!(peer.next().await, bare(SENDALL_END));

    peer.send.send(notice(SENDALL_END, &exec("cloud0", "three"))).unwrap();
    peer.send.send(notice(DELETE, &exec("cloud0", "four"))).unwrap();
    for command in ["three", "four"] {
        assert_eq!(controller.execs_out.recv().await.unwrap().0.command, command);
    }
    peer.send.send(notice(UPDATE, &node("crm", "cloud0"))).unwrap();
    until("a node", || controller.nodes.len() == 1).await;
    let stale = Node { notify_id: 99, fields: vec!["2".into()], ..node("crm", "cloud0") };
    peer.send.send(notice(DELETE, &stale)).unwrap();
    until("no node", || controller.nodes.is_empty()).await;
    let stats = server.peers()[0].stats.clone();
    assert_eq!((stats.recv_errors, stats.unmarshal_errors, stats.recv), (0, 0, 7));

    assert_eq!(server.post(&exec("cloud0", "down")).unwrap(), 1);
    assert_eq!(peer.next().await, notice(UPDATE, &exec("cloud0", "down")), "with an action");
    running.stop(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions() {
    let controller = Controller::new();
    let options = ServerOptions { negotiation: Duration::from_millis(50), ..lab() };
    let server = controller.server(options);
    let running = serve(&server, None).await;
    let version = |version| Notice { version, ..bare(VERSION) };
    let mut newer = Original::open(running.address, version(5)).await.unwrap();
    assert_eq!(newer.next().await.version, 1, "the lower one");
    let refused = |first| async {
        let status = Original::open(running.address, first).await.err().expect("refused");
        (status.code(), status.message().to_owned())
    };
    assert_eq!(refused(version(0)).await.0, tonic::Code::FailedPrecondition);
    let (code, text) = refused(notice(UPDATE, &app("a"))).await;
    assert_eq!(code, tonic::Code::InvalidArgument);
    assert_eq!(text, "Notify server expected action version");

    let mut client = NotifyApiClient::new(channel(running.address).await);
    let status = client.stream_notice(tokio_stream::pending()).await.expect_err("refused");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    assert_eq!(server.totals().negotiate_errors, 3);
    running.stop(&server).await;
}

/// A cable that is cut closes nothing: who promised heartbeats and sends none is
/// gone, and what it reported with it. Whoever promised none stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_falls_silent_is_gone() {
    let controller = Controller::new();
    let timeout = Duration::from_millis(200);
    let server = controller.server(ServerOptions { peer_timeout: timeout, ..lab() });
    let running = serve(&server, None).await;
    let wants_nothing = Notice { version: 1, ..bare(VERSION) };
    let mut original = Original::open(running.address, wants_nothing.clone()).await.unwrap();
    assert_eq!(original.opening().await.heartbeat_ms, 0);
    original.send.send(notice(UPDATE, &cloudlet_info("cloud0"))).unwrap();
    until("the original's", || controller.cloudlet_infos.len() == 1).await;

    let opening = Notice { heartbeats: true, ..wants_nothing };
    let mut cut = Original::open(running.address, opening).await.unwrap();
    assert_eq!(cut.opening().await.heartbeat_ms, 90);
    cut.send.send(notice(UPDATE, &cloudlet_info("cloud1"))).unwrap();
    until("its report", || server.totals().obj_recv["CloudletInfo"] == 2).await;
    let ended = cut.notices.message().await.expect_err("ended");
    assert_eq!(ended.message(), "no heartbeat came in time");
    until("one is gone", || controller.cloudlet_infos.len() == 1).await;
    assert_eq!(controller.cloudlet_infos.list()[0].key, cloudlet_info("cloud0").key);
    assert_eq!(server.peers().len(), 1, "the original's is still there");
    running.stop(&server).await;
}

/// A client of ours that has nothing to say says so often enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_sends_heartbeats() {
    let controller = Controller::new();
    let timeout = Duration::from_secs(4);
    let server = controller.server(ServerOptions { peer_timeout: timeout, ..lab() });
    let running = serve(&server, None).await;
    let mut crm = crm(client_options(&[running.address], false));
    crm.link.start();
    crm.link.in_sync().await;
    let heard = |server: &NotifyServer| server.peers()[0].stats.recv_bytes;
    let before = heard(&server);
    // Each is the two bytes of a notice that says nothing; by the third one the
    // time is over.
    until("three of them", || heard(&server) >= before + 6).await;
    let status = crm.link.client.status();
    assert_eq!((status.stats.connects, status.last_error), (1, None));
    assert_eq!(server.peers()[0].stats.recv_errors, 0);
    crm.link.stop().await;
    running.stop(&server).await;
}

/// A server of the original: answers with the higher version and then plays
/// a script to whoever connects.
pub(crate) struct Script {
    version: u32,
    /// Not the original's: as one of ours would.
    pub(crate) epoch: u64,
    pub(crate) notices: Vec<Notice>,
}

impl Script {
    pub(crate) fn new(version: u32) -> Self {
        Self { version, epoch: 0, notices: Vec::new() }
    }

    pub(crate) fn update<M: Message + Name>(&mut self, object: &M) {
        self.notices.push(notice(UPDATE, object));
    }

    pub(crate) async fn serve(self) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = TcpListenerStream::new(listener);
        let serving = tonic::transport::Server::builder()
            .add_service(NotifyApiServer::new(self))
            .serve_with_incoming(incoming);
        (address, tokio::spawn(async move { serving.await.unwrap() }))
    }
}

#[tonic::async_trait]
impl NotifyApi for Script {
    type StreamNoticeStream = UnboundedReceiverStream<Result<Notice, Status>>;

    async fn stream_notice(
        &self,
        request: Request<Streaming<Notice>>,
    ) -> Result<Response<Self::StreamNoticeStream>, Status> {
        let (send, receive) = mpsc::unbounded_channel();
        let mut notices = request.into_inner();
        let opening = notices.message().await?.expect("an opening");
        let want_objs = vec!["edgeproto.Node".to_owned(), "edgeproto.Metric".to_owned()];
        let version = self.version.max(opening.version);
        let reply = Notice { version, want_objs, epoch: self.epoch, ..bare(VERSION) };
        send.send(Ok(reply)).unwrap();
        for notice in &self.notices {
            send.send(Ok(notice.clone())).unwrap();
        }
        // Stays open for as long as the client does.
        tokio::spawn(async move {
            while let Ok(Some(_)) = notices.message().await {}
            drop(send);
        });
        Ok(Response::new(UnboundedReceiverStream::new(receive)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_server_with_all_its_habits() {
    let mut script = Script::new(2);
    script.update(&app("app0"));
    // A message that the client never asked for, before the end and after.
    script.notices.push(notice(UPDATE, &exec("cloud0", "x")));
    script.update(&app_inst("app0", "c1", "cloud0"));
    script.update(&app_inst("app0", "c2", "cloud0"));
    script.notices.push(bare(SENDALL_END));
    script.notices.push(notice(SENDALL_END, &exec("cloud0", "y")));
    let stale = AppInst { uri: "of another".into(), ..app_inst("app0", "c2", "cloud0") };
    script.notices.push(notice(DELETE, &stale));
    script.update(&app("app1"));
    let (address, serving) = script.serve().await;

    let mut dme = dme(client_options(&[address], false));
    dme.apps.put(app("not there any more")).unwrap();
    dme.link.start();
    until("all of the script", || dme.apps.len() == 2 && dme.instances.len() == 1).await;
    let status = dme.link.client.status();
    assert!(status.in_sync);
    assert_eq!((status.stats.recv, status.stats.unknown_types), (5, 2));
    assert_eq!((status.stats.recv_errors, status.stats.unmarshal_errors), (0, 0));
    assert!(dme.apps.find(&app_key("not there any more")).is_none(), "pruned");
    dme.link.stop().await;
    serving.abort();
}

/// Bytes in, bytes out.
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_on_the_wire() {
    let controller = Controller::new();
    controller.flavors.put(flavor("s")).unwrap();
    let server = controller.server(lab());
    let running = serve(&server, None).await;
    let endpoint = tonic::transport::Endpoint::new(format!("http://{}", running.address)).unwrap();
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let (send, receive) = mpsc::unbounded_channel();
    let mut opening = b"\x08\x03\x10\x01\x1a\x00\x22\x10edgeproto.Flavor".to_vec();
    send.send(std::mem::take(&mut opening)).unwrap();
    let path = http::uri::PathAndQuery::from_static("/edgeproto.NotifyApi/StreamNotice");
    let request = Request::new(UnboundedReceiverStream::new(receive));
    let response = grpc.streaming(request, path, RawCodec).await.unwrap();
    let mut notices: Streaming<Vec<u8>> = response.into_inner();

    let mut expected = b"\x08\x03\x10\x01\x1a\x00".to_vec();
    let wants = ["CloudletInfo", "AppInstInfo", "ClusterInstInfo", "Metric", "Node", "ExecRequest"];
    for name in wants.map(|name| format!("edgeproto.{name}")) {
        expected.extend([0x22, u8::try_from(name.len()).unwrap()]);
        expected.extend(name.bytes());
    }
    assert_eq!(notices.message().await.unwrap().unwrap(), expected);
    let update = b"\x08\x01\x1a\x2f\x0a\x24type.googleapis.com/edgeproto.Flavor\
                   \x12\x07\x12\x03\x0a\x01s\x18\x01";
    assert_eq!(notices.message().await.unwrap().unwrap(), update);
    assert_eq!(notices.message().await.unwrap().unwrap(), b"\x08\x04\x1a\x00");
    controller.flavors.clear();
    let delete = b"\x08\x02\x1a\x2d\x0a\x24type.googleapis.com/edgeproto.Flavor\
                   \x12\x05\x12\x03\x0a\x01s";
    assert_eq!(notices.message().await.unwrap().unwrap(), delete);

    // A delete, and an end, as the original writes them.
    let info = b"\x08\x01\x1a\x37\x0a\x22type.googleapis.com/edgeproto.Node\
                 \x12\x11\x12\x0f\x0a\x01n\x10\x02\x1a\x08\x0a\x03\x0a\x01o\x12\x01c";
    send.send(info.to_vec()).unwrap();
    send.send(b"\x08\x04\x1a\x00".to_vec()).unwrap();
    until("a node", || controller.nodes.len() == 1).await;
    until("the end", || server.peers()[0].stats.recv_all == 1).await;
    let key = controller.nodes.list()[0].key.clone().unwrap();
    assert_eq!((key.name.as_str(), key.node_type), ("n", 2));
    assert_eq!(key.cloudlet_key.unwrap().operator_key.unwrap().name, "o");
    running.stop(&server).await;
}
