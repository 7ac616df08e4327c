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
    credentials::{PASSWORD, add, api, grants, key_pair, token},
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
    /// Of the organisation that the instance is of; one of another is left.
    OneRoleOfTwo,
    Disabled,
}

/// Proof that a developer shows.
#[derive(Debug, Clone, Copy)]
enum Proof {
    Session,
    Token,
    Certificate,
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
        developer: &Developer,
        answer: &ExecRequest,
    ) -> Self {
        match way {
            Transport::Attach => {
                Self::Attach(Box::new(Attached::open(&developer.client, &answer.relay).await))
            }
            Transport::WebSocket => {
                Self::WebSocket(Box::new(socket(selvage, developer, answer).await))
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
    async fn ends(self, what: &str, code: Code) {
        match self {
            Self::Attach(attached) => assert_eq!(attached.ends().await, code, "{what}"),
            // However it is hung up.
            Self::WebSocket(mut socket) => {
                let mut rest = Vec::new();
                let _ = tokio::time::timeout(ENDED, socket.read_to_end(&mut rest)).await.unwrap();
            }
        }
    }
}

async fn socket(selvage: &Selvage, developer: &Developer, answer: &ExecRequest) -> Upgraded {
    let root = reqwest::Certificate::from_pem(selvage.ca().unwrap().as_bytes()).unwrap();
    let mut http = reqwest::Client::builder().no_proxy().http1_only().tls_certs_only([root]);
    if let Some(pem) = &developer.certificate_and_key {
        http = http.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap());
    }
    let url = answer.answer.replacen("wss://", "https://", 1);
    let mut asked = http.build().unwrap().get(url);
    if let Some(token) = &developer.client.token {
        asked = asked.bearer_auth(token);
    }
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

/// Somebody who may open shells, and the program that does it.
struct Developer {
    user: String,
    client: Client,
    /// PEM, if that is what is shown.
    certificate_and_key: Option<String>,
}

/// A shell, with both who talk in it.
struct Shell {
    developer: Developer,
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

    /// A new developer of two organisations, with all of it in one proof.
    async fn developer(&self, user: String, proof: Proof) -> Developer {
        let both = || ["acme", "bmce"].map(|of| grants("developer", of)).concat();
        add(&self.admin, &user, both()).await;
        let owner = Client::login(&self.selvage, &user, PASSWORD).await.unwrap();
        let (client, certificate_and_key) = match proof {
            Proof::Session => (owner, None),
            Proof::Token => (token(&self.selvage, &owner, both(), &[]).await.0, None),
            Proof::Certificate => {
                let (certificate, key, _) = key_pair(&owner, both()).await;
                let client = Client::machine(&self.selvage, &certificate, &key).await;
                (client, Some(format!("{key}\n{certificate}")))
            }
        };
        Developer { user, client, certificate_and_key }
    }

    /// A shell of a new developer, in which something was said.
    async fn shell(&mut self, user: String, proof: Proof, way: Transport) -> Shell {
        let developer = self.developer(user, proof).await;
        let client = &developer.client;
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
        let mut caller = Caller::open(&self.selvage, way, &developer, &answer).await;
        let crm = crm.await.unwrap();
        crm.say("hello");
        caller.hears().await;
        Shell { developer, caller, crm }
    }

    async fn lose(&self, developer: &Developer, loss: Loss) {
        let (grants, disabled) = match loss {
            Loss::LoggedOut => {
                let client = &developer.client;
                let mut auth = AuthServiceClient::new(client.channel.clone());
                auth.logout(client.request(LogoutRequest::default())).await.unwrap();
                return;
            }
            Loss::RoleTaken => (grants("viewer", ""), false),
            Loss::OneRoleOfTwo => (grants("developer", "bmce"), false),
            Loss::Disabled => (grants("developer", "acme"), true),
        };
        let update = UpdateUserRequest { username: developer.user.clone(), grants, disabled };
        api(&self.admin).update_user(self.admin.request(update)).await.unwrap();
    }
}

/// Every way to lose the right that there is with a proof, and how a call says so.
fn losses() -> impl Iterator<Item = (Proof, Loss, Code)> {
    let all = [Loss::RoleTaken, Loss::OneRoleOfTwo, Loss::Disabled];
    let proofs = [Proof::Session, Proof::Token, Proof::Certificate].into_iter();
    let changed = proofs.flat_map(move |proof| {
        all.map(|loss| match (proof, loss) {
            // A session ends with any change; the others are good for what is left.
            (Proof::Token | Proof::Certificate, Loss::OneRoleOfTwo) => {
                (proof, loss, Code::PermissionDenied)
            }
            _ => (proof, loss, Code::Unauthenticated),
        })
    });
    changed.chain([(Proof::Session, Loss::LoggedOut, Code::Unauthenticated)])
}

/// Both sides of a shell end with its caller's right, and nobody else's does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_ends_with_its_callers_right() {
    let mut region = Region::up().await;
    let mut bystander = region.shell("bystander".into(), Proof::Token, Transport::Attach).await;
    let mut shells = Vec::new();
    for (at, (proof, loss, code)) in losses().enumerate() {
        for way in [Transport::Attach, Transport::WebSocket] {
            let user = format!("user{at}{way:?}").to_lowercase();
            let shell = region.shell(user, proof, way).await;
            shells.push((shell, format!("{loss:?} with {proof:?} by {way:?}"), loss, code));
        }
    }
    for (shell, _, loss, _) in &shells {
        region.lose(&shell.developer, *loss).await;
    }
    let ended = shells.into_iter().map(async |(shell, what, _, code)| {
        shell.caller.ends(&what, code).await;
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
    let shell = region.shell("ann".into(), Proof::Session, Transport::Attach).await;
    let socket = region.shell("bob".into(), Proof::Session, Transport::WebSocket).await;
    let block = BlockMachineRequest { machine: WEST.into() };
    api(&region.admin).block_machine(region.admin.request(block)).await.unwrap();
    for crm in [shell.crm, socket.crm] {
        assert_eq!(crm.ends().await, Code::PermissionDenied);
    }
    let Caller::Attach(caller) = shell.caller else { unreachable!() };
    assert_eq!(caller.ends().await, Code::Ok, "the other side has gone");
    socket.caller.ends("blocked", Code::Ok).await;
    assert_eq!(region.crm.ends().await, Code::PermissionDenied, "nor is it told of anything");
    // Only as long as it is blocked.
    let unblock = UnblockMachineRequest { machine: WEST.into() };
    api(&region.admin).unblock_machine(region.admin.request(unblock)).await.unwrap();
    Peer::connect(&region.west, &["ExecRequest"]).await;
}
