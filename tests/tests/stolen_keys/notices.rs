//! Notify by kind of peer: each says and hears its own, and nothing of another.

use std::time::Duration;

use prost::{Message, Name};
use prost_types::Any;
use selvage_api::{
    edgeproto::{
        AppInstInfo, AppInstKey, AppKey, CloudletInfo, CloudletKey, CloudletState, ClusterInstInfo,
        ClusterInstKey, ClusterKey, DeveloperKey, ExecRequest, FlavorInfo, Node, NodeKey, NodeType,
        Notice, OperatorKey, exec_api_client::ExecApiClient, notify_api_client::NotifyApiClient,
    },
    selvage::shell::{Open, Piece, piece, shell_service_client::ShellServiceClient},
};
use selvage_tests::process::{Cli, TIMEOUT};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::*;

const UPDATE: i32 = 1;
const VERSION: i32 = 3;

/// One stream of notify, spoken by hand.
pub(super) struct Peer {
    send: mpsc::UnboundedSender<Notice>,
    notices: Streaming<Notice>,
}

impl Peer {
    pub(super) async fn connect(client: &Client, wants: &[&str]) -> Self {
        let (send, receive) = mpsc::unbounded_channel();
        let want_objs = wants.iter().map(|name| format!("edgeproto.{name}")).collect();
        let version = Notice { action: VERSION, version: 1, want_objs, ..Notice::default() };
        send.send(version).unwrap();
        let request = client.request(UnboundedReceiverStream::new(receive));
        let mut api = NotifyApiClient::new(client.channel.clone());
        let mut notices = api.stream_notice(request).await.unwrap().into_inner();
        assert_eq!(notices.message().await.unwrap().unwrap().action, VERSION);
        Self { send, notices }
    }

    pub(super) fn say<M: Message + Name>(&self, object: &M) {
        let type_url = format!("type.googleapis.com/{}", M::full_name());
        let any = Some(Any { type_url, value: object.encode_to_vec() });
        self.send.send(Notice { action: UPDATE, any, ..Notice::default() }).unwrap();
    }

    /// The next object, or how the stream ended.
    async fn next(&mut self) -> Result<Any, Status> {
        loop {
            let notice = tokio::time::timeout(TIMEOUT, self.notices.message()).await.unwrap()?;
            let notice = notice.ok_or_else(|| Status::cancelled("ended"))?;
            if let Some(any) = notice.any.filter(|_| notice.action == UPDATE) {
                return Ok(any);
            }
        }
    }

    pub(super) async fn next_of<M: Message + Name + Default>(&mut self) -> M {
        loop {
            let any = self.next().await.unwrap();
            if any.type_url.ends_with(&M::full_name()) {
                return M::decode(any.value.as_slice()).unwrap();
            }
        }
    }

    /// Code with which a stream ends that says what it may not.
    pub(super) async fn ends(mut self) -> Code {
        loop {
            if let Err(status) = self.next().await {
                return status.code();
            }
        }
    }
}

fn cloudlet(name: &str) -> CloudletKey {
    CloudletKey { operator_key: Some(OperatorKey { name: "tmus".into() }), name: name.into() }
}

fn cluster_inst(place: &str) -> ClusterInstKey {
    ClusterInstKey {
        cluster_key: Some(ClusterKey { name: "autoclusterweb".into() }),
        cloudlet_key: Some(cloudlet(place)),
        developer: "acme".into(),
    }
}

pub(super) fn instance(place: &str) -> AppInstKey {
    let developer_key = Some(DeveloperKey { name: "acme".into() });
    AppInstKey {
        app_key: Some(AppKey { developer_key, name: "web".into(), version: "1".into() }),
        cluster_inst_key: Some(cluster_inst(place)),
    }
}

pub(super) fn info(place: &str) -> CloudletInfo {
    let flavor = FlavorInfo { name: "f".into(), vcpus: 10, ram: 101_024, disk: 500 };
    CloudletInfo {
        key: Some(cloudlet(place)),
        state: CloudletState::Ready.into(),
        os_max_ram: 65_536,
        os_max_vcores: 64,
        os_max_vol_gb: 5_000,
        flavors: vec![flavor],
        ..CloudletInfo::default()
    }
}

fn node(place: &str, node_type: NodeType) -> Node {
    let (name, node_type) = ("n".into(), node_type.into());
    let key = NodeKey { name, node_type, cloudlet_key: Some(cloudlet(place)) };
    Node { key: Some(key), ..Node::default() }
}

/// A controller with an instance in `west` that nobody runs.
pub(super) fn set_up(cli: &Cli) {
    let made = |line: &str| drop(cli.ok(&line.split(' ').collect::<Vec<_>>()));
    made("flavor create --name s --ram 64 --vcpus 1 --disk 1");
    made("operator create --name tmus");
    made("developer create --name acme");
    for name in ["west", "east"] {
        made(&format!(
            "cloudlet create --operator tmus --name {name} --latitude 1 --longitude 1 \
             --numdynamicips 9"
        ));
    }
    app(cli, "web");
}

fn app(cli: &Cli, name: &str) {
    let line = format!(
        "app create --developer acme --appname {name} --appvers 1 --imagetype docker \
         --deployment docker --accessports tcp:80 --defaultflavor s"
    );
    cli.ok(&line.split_whitespace().collect::<Vec<_>>());
}

pub(super) fn start(cli: &Cli) {
    let line = "appinst create --developer acme --appname web --appvers 1 --operator tmus \
                --cloudlet west --cluster autoclusterweb --crmoverride IgnoreCrm";
    cli.ok(&line.split_whitespace().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_says_nothing_of_what_is_anothers() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let cli = Cli::admin_of(&selvage);
    tokio::task::block_in_place(|| set_up(&cli));
    let east = admin.stolen(&selvage, "cloudlet/tmus/east").await;
    let engine = admin.stolen(&selvage, "dme/west").await;
    for thief in [&east, &engine] {
        let claims: [&dyn Fn(&Peer); 5] = [
            &|peer| peer.say(&info("west")),
            &|peer| {
                peer.say(&AppInstInfo { key: Some(instance("west")), ..Default::default() });
            },
            &|peer| {
                let key = Some(cluster_inst("west"));
                peer.say(&ClusterInstInfo { key, ..Default::default() });
            },
            &|peer| peer.say(&node("west", NodeType::NodeCrm)),
            &|peer| {
                let app_inst_key = Some(instance("west"));
                peer.say(&ExecRequest { app_inst_key, ..Default::default() });
            },
        ];
        for (at, claim) in claims.iter().enumerate() {
            let peer = Peer::connect(thief, &[]).await;
            claim(&peer);
            assert_eq!(peer.ends().await, Code::PermissionDenied, "claim {at}");
        }
    }
    // A crm is no match engine, even of its own cloudlet, and an engine no other one.
    for thief in [&east, &engine] {
        let peer = Peer::connect(thief, &[]).await;
        peer.say(&node("east", NodeType::NodeDme));
        assert_eq!(peer.ends().await, Code::PermissionDenied);
    }
    let node = admin.stolen(&selvage, "node/rack3-7").await;
    let path = "/edgeproto.NotifyApi/StreamNotice";
    assert_eq!(node.begins(path, &[]).await, Code::PermissionDenied);
}

pub(super) async fn wait_until_ready(cli: &Cli) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    let ready = || {
        let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
        shown.lines().any(|line| line.contains("west") && line.contains("STATE_READY"))
    };
    while !tokio::task::block_in_place(ready) {
        assert!(std::time::Instant::now() < deadline, "the cloudlet never came");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A command, its answer and its relay are for the crm that was asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_between_its_caller_and_its_crm() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let cli = Cli::admin_of(&selvage);
    tokio::task::block_in_place(|| set_up(&cli));
    let west = admin.stolen(&selvage, "cloudlet/tmus/west").await;
    let east = admin.stolen(&selvage, "cloudlet/tmus/east").await;
    let engine = admin.stolen(&selvage, "dme/west").await;
    let all = ["App", "AppInst", "ExecRequest", "Flavor", "Cloudlet", "ClusterInst"];
    let mut crm = Peer::connect(&west, &["ExecRequest"]).await;
    crm.say(&info("west"));
    let mut listener = Peer::connect(&engine, &all).await;
    let mut neighbour = Peer::connect(&east, &all).await;
    neighbour.say(&info("east"));
    wait_until_ready(&cli).await;
    tokio::task::block_in_place(|| start(&cli));

    let mut api = ExecApiClient::new(admin.channel.clone());
    let (app_inst_key, command) = (Some(instance("west")), "cat secrets".to_owned());
    let request = admin.request(ExecRequest { app_inst_key, command, ..Default::default() });
    let call = tokio::spawn(async move { api.run_command(request).await });
    let asked: ExecRequest = crm.next_of().await;
    // All that the crm knows, in the hands of another.
    let forged = ExecRequest { answer: "forged".into(), ..asked.clone() };
    for thief in [&east, &engine] {
        let peer = Peer::connect(thief, &[]).await;
        peer.say(&forged);
        assert_eq!(peer.ends().await, Code::PermissionDenied);
    }
    neighbour.say(&ExecRequest { app_inst_key: Some(instance("east")), ..forged });
    let token = asked.relay.rsplit_once('/').unwrap().1.to_owned();
    for thief in [&east, &engine, &admin] {
        let kind = Some(piece::Kind::Open(Open { token: token.clone() }));
        let pieces = tokio_stream::iter([Piece { kind }]);
        let mut shell = ShellServiceClient::new(thief.channel.clone());
        let refused = shell.attach(thief.request(pieces)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    crm.say(&ExecRequest { err: "meant".into(), ..asked });
    assert_eq!(call.await.unwrap().unwrap().into_inner().err, "meant");

    // Whatever was sent to others has come before these.
    for name in ["one", "two"] {
        tokio::task::block_in_place(|| app(&cli, name));
        loop {
            let any = listener.next().await.unwrap();
            let seen = any.type_url.rsplit('.').next().unwrap();
            assert!(["App", "AppInst"].contains(&seen), "an engine is sent {seen}");
            if seen == "App" && String::from_utf8_lossy(&any.value).contains(name) {
                break;
            }
        }
    }
    tokio::task::block_in_place(|| {
        cli.ok(&["flavor", "create", "--name", "t", "--ram", "64", "--vcpus", "1", "--disk", "1"])
    });
    loop {
        let any = neighbour.next().await.unwrap();
        let text = String::from_utf8_lossy(&any.value).into_owned();
        assert!(!text.contains("west"), "{}: {text}", any.type_url);
        if any.type_url.ends_with("Flavor") && text.contains('t') && !text.contains('s') {
            break;
        }
    }
}
