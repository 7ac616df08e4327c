//! Shells of people and crms who lose the right to them, on a real process: both
//! ways to a shell, every way to lose the right.

use std::time::Duration;

use futures::future::join_all;
use reqwest::{StatusCode, Upgraded};
use selvage_api::{
    edgeproto::{ExecRequest, exec_api_client::ExecApiClient},
    selvage::{
        identity::{BlockMachineRequest, UnblockMachineRequest, UpdateUserRequest},
        shell::{Open, Piece, piece::Kind, shell_service_client::ShellServiceClient},
    },
    services::auth::{LogoutRequest, auth_service_client::AuthServiceClient},
};
use selvage_tests::process::{Cli, TIMEOUT};
use tokio::{io::AsyncReadExt, sync::mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::{
    credentials::{PASSWORD, add, api, grants},
    notices::{Peer, info, instance, set_up, start, wait_until_ready},
    *,
};

const WEST: &str = "cloudlet/tmus/west";

/// Time in which a right has ended everywhere. Generous: the machine may be busy.
const ENDED: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
enum Loss {
    LoggedOut,
    RoleTaken,
    Disabled,
}

#[derive(Debug, Clone, Copy)]
enum Transport {
    Attach,
    WebSocket,
}

/// One side of a shell, attached by gRPC.
struct Attached {
    pieces: Streaming<Piece>,
    say: mpsc::UnboundedSender<Piece>,
}

impl Attached {
    async fn open(client: &Client, relay: &str) -> Self {
        let token = relay.rsplit_once('/').unwrap().1.to_owned();
        let (say, said) = mpsc::unbounded_channel();
        say.send(Piece { kind: Some(Kind::Open(Open { token })) }).unwrap();
        let request = client.request(UnboundedReceiverStream::new(said));
        let mut shell = ShellServiceClient::new(client.channel.clone());
        let pieces = shell.attach(request).await.unwrap().into_inner();
        Self { pieces, say }
    }

    fn say(&self, word: &str) {
        let _ = self.say.send(Piece { kind: Some(Kind::Data(word.as_bytes().to_vec())) });
    }

    async fn hears(&mut self) -> Result<Option<Piece>, Status> {
        tokio::time::timeout(ENDED, self.pieces.message()).await.unwrap()
    }

    /// Status with which it ends; OK if the other side has gone.
    async fn ends(mut self) -> Code {
        loop {
            match self.hears().await {
                Ok(Some(_)) => {}
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    }
}

/// The side of a caller.
enum Caller {
    Attach(Box<Attached>),
    WebSocket(Box<Upgraded>),
}

impl Caller {
    async fn open(
        selvage: &Selvage,
        way: Transport,
        client: &Client,
        answer: &ExecRequest,
    ) -> Self {
        match way {
            Transport::Attach => {
                Self::Attach(Box::new(Attached::open(client, &answer.relay).await))
            }
            Transport::WebSocket => {
                Self::WebSocket(Box::new(socket(selvage, client, answer).await))
            }
        }
    }

    /// Waits for something that the crm says.
    async fn hears(&mut self) {
        match self {
            Self::Attach(attached) => assert!(attached.hears().await.unwrap().is_some()),
            Self::WebSocket(socket) => {
                tokio::time::timeout(ENDED, socket.read_u8()).await.unwrap().unwrap();
            }
        }
    }

    /// Waits for the end, which must be that of the right.
    async fn ends(self, what: &str) {
        match self {
            Self::Attach(attached) => {
                assert_eq!(attached.ends().await, Code::Unauthenticated, "{what}");
            }
            // However it is hung up.
            Self::WebSocket(mut socket) => {
                let mut rest = Vec::new();
                let _ = tokio::time::timeout(ENDED, socket.read_to_end(&mut rest)).await.unwrap();
            }
        }
    }
}

async fn socket(selvage: &Selvage, client: &Client, answer: &ExecRequest) -> Upgraded {
    let root = reqwest::Certificate::from_pem(selvage.ca().unwrap().as_bytes()).unwrap();
    let http = reqwest::Client::builder().no_proxy().http1_only().tls_certs_only([root]);
    let url = answer.answer.replacen("wss://", "https://", 1);
    let asked = http.build().unwrap().get(url).bearer_auth(client.token.as_ref().unwrap());
    let asked = asked
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answered = tokio::time::timeout(TIMEOUT, asked.send()).await.unwrap().unwrap();
    assert_eq!(answered.status(), StatusCode::SWITCHING_PROTOCOLS);
    answered.upgrade().await.unwrap()
}

/// A region with an instance in a cloudlet whose crm is played by hand.
struct Region {
    selvage: Selvage,
    admin: Client,
    west: Client,
    crm: Peer,
}

/// A shell, with both who talk in it.
struct Shell {
    user: String,
    client: Client,
    caller: Caller,
    crm: Attached,
}

impl Region {
    async fn up() -> Self {
        let selvage = Selvage::up(&[]);
        let admin = Client::admin(&selvage).await;
        let cli = Cli::admin_of(&selvage);
        tokio::task::block_in_place(|| set_up(&cli));
        let west = admin.stolen(&selvage, WEST).await;
        let crm = Peer::connect(&west, &["ExecRequest"]).await;
        crm.say(&info("west"));
        wait_until_ready(&cli).await;
        tokio::task::block_in_place(|| start(&cli));
        Self { selvage, admin, west, crm }
    }

    /// A shell of a new developer, in which something was said.
    async fn shell(&mut self, user: String, way: Transport) -> Shell {
        add(&self.admin, &user, grants("developer", "acme")).await;
        let client = Client::login(&self.selvage, &user, PASSWORD).await.unwrap();
        let mut exec = ExecApiClient::new(client.channel.clone());
        let (app_inst_key, command) = (Some(instance("west")), "sh".to_owned());
        let request = client.request(ExecRequest { app_inst_key, command, ..Default::default() });
        let call = tokio::spawn(async move { exec.run_command(request).await });
        let asked: ExecRequest = self.crm.next_of().await;
        let (relay, west) = (asked.relay.clone(), self.west.clone());
        self.crm.say(&ExecRequest { answer: "coming".into(), ..asked });
        let answer = call.await.unwrap().unwrap().into_inner();
        // Each waits for the other.
        let crm = tokio::spawn(async move { Attached::open(&west, &relay).await });
        let mut caller = Caller::open(&self.selvage, way, &client, &answer).await;
        let crm = crm.await.unwrap();
        crm.say("hello");
        caller.hears().await;
        Shell { user, client, caller, crm }
    }

    async fn lose(&self, shell: &Shell, loss: Loss) {
        let update = |role: &str, disabled| {
            let organisation = if role == "viewer" { "" } else { "acme" };
            let (username, grants) = (shell.user.clone(), grants(role, organisation));
            self.admin.request(UpdateUserRequest { username, grants, disabled })
        };
        match loss {
            Loss::LoggedOut => {
                let mut auth = AuthServiceClient::new(shell.client.channel.clone());
                auth.logout(shell.client.request(LogoutRequest::default())).await.unwrap();
            }
            Loss::RoleTaken => {
                api(&self.admin).update_user(update("viewer", false)).await.unwrap();
            }
            Loss::Disabled => {
                api(&self.admin).update_user(update("developer", true)).await.unwrap();
            }
        }
    }
}

/// Both sides of a shell end with its caller's right, and nobody else's does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_ends_with_its_callers_right() {
    let mut region = Region::up().await;
    let mut bystander = region.shell("bystander".into(), Transport::Attach).await;
    let mut shells = Vec::new();
    for (at, loss) in [Loss::LoggedOut, Loss::RoleTaken, Loss::Disabled].into_iter().enumerate() {
        for way in [Transport::Attach, Transport::WebSocket] {
            let shell = region.shell(format!("user{at}{way:?}").to_lowercase(), way).await;
            shells.push((shell, format!("{loss:?} by {way:?}"), loss));
        }
    }
    for (shell, _, loss) in &shells {
        region.lose(shell, *loss).await;
    }
    let ended = shells.into_iter().map(async |(shell, what, _)| {
        shell.caller.ends(&what).await;
        assert_eq!(shell.crm.ends().await, Code::Ok, "{what}: the crm is told");
    });
    join_all(ended).await;
    bystander.crm.say("still here");
    bystander.caller.hears().await;
}

/// A shell into a cloudlet ends when its crm is blocked, whoever is at the other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_ends_when_its_crm_is_blocked() {
    let mut region = Region::up().await;
    let shell = region.shell("ann".into(), Transport::Attach).await;
    let socket = region.shell("bob".into(), Transport::WebSocket).await;
    let block = BlockMachineRequest { machine: WEST.into() };
    api(&region.admin).block_machine(region.admin.request(block)).await.unwrap();
    for crm in [shell.crm, socket.crm] {
        assert_eq!(crm.ends().await, Code::PermissionDenied);
    }
    let Caller::Attach(caller) = shell.caller else { unreachable!() };
    assert_eq!(caller.ends().await, Code::Ok, "the other side has gone");
    socket.caller.ends("blocked").await;
    assert_eq!(region.crm.ends().await, Code::PermissionDenied, "nor is it told of anything");
    // Only as long as it is blocked.
    let unblock = UnblockMachineRequest { machine: WEST.into() };
    api(&region.admin).unblock_machine(region.admin.request(unblock)).await.unwrap();
    Peer::connect(&region.west, &["ExecRequest"]).await;
}
