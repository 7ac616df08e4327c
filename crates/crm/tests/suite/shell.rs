//! Commands in a real container, asked for as a controller asks.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use selvage_api::{
    edgeproto::ExecRequest,
    selvage::shell::{
        Logs, Piece,
        shell_service_server::{ShellService, ShellServiceServer},
    },
};
use selvage_shell::{
    Conversation, Frame,
    peer::{Offer, Options},
};

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::support::{TEST_TIMEOUT, TestCloudlet, TestController, can_run};

/// Everything that means something to some shell.
const CHARACTERS: &[&str] = &[
    "; touch /tmp/selvage-was-here",
    "| touch /tmp/selvage-was-here",
    "& touch /tmp/selvage-was-here",
    "$(touch /tmp/selvage-was-here)",
    "`touch /tmp/selvage-was-here`",
    "> /tmp/selvage-was-here",
    "< /etc/passwd",
    "'",
    "\"",
    "\\",
    "*",
    "?",
    "a\nb",
    "$HOME",
    "~",
    "{a,b}",
    "!",
    "#x",
    "--",
    "-v",
    "%s",
    " ",
    "",
];

fn on_this_machine() -> Options {
    Options { addresses: vec![[127, 0, 0, 1].into()], ..Options::default() }
}

struct Caller<'a> {
    controller: &'a TestController,
    place: &'a TestCloudlet,
}

impl Caller<'_> {
    fn request(&self) -> ExecRequest {
        let app_inst_key = Some(self.place.instance_key());
        ExecRequest { app_inst_key, ..ExecRequest::default() }
    }

    /// Answer of the crm.
    async fn ask(&self, request: ExecRequest) -> ExecRequest {
        tokio::time::timeout(TEST_TIMEOUT, self.controller.ask(request)).await.unwrap()
    }

    /// Begins a conversation, as one of ours or as the original's client.
    async fn call(&self, request: ExecRequest, ours: bool) -> Conversation {
        let offer = Offer::make(on_this_machine()).await.unwrap();
        let mut text = offer.text().to_owned();
        if !ours {
            text = text.replace("s=selvage", "s=-");
        }
        let reply = self.ask(ExecRequest { offer: text, ..request }).await;
        assert_eq!(reply.err, "");
        let mut answer = reply.answer;
        if !ours {
            answer = answer.replace("s=selvage", "s=-");
        }
        let mut conversation = offer.accept(&answer).unwrap();
        assert!(tokio::time::timeout(TEST_TIMEOUT, conversation.opened()).await.unwrap());
        conversation
    }

    /// Output of a command of these words, and how it ended.
    async fn run(&self, words: &[&str], terminal: bool) -> (String, String, i32) {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest { words, terminal, ..self.request() };
        let mut conversation = self.call(request, true).await;
        let size = Frame::Size { columns: 132, rows: 50 };
        conversation.outgoing.send(size).await.unwrap();
        conversation.outgoing.send(Frame::End).await.unwrap();
        let heard = hear(&mut conversation).await;
        conversation.close().await;
        heard
    }
}

async fn hear(conversation: &mut Conversation) -> (String, String, i32) {
    let (mut data, mut errors) = (Vec::new(), Vec::new());
    let code = loop {
        let word = tokio::time::timeout(TEST_TIMEOUT, conversation.incoming.recv()).await.unwrap();
        match word {
            Some(Frame::Data(bytes)) => data.extend_from_slice(&bytes),
            Some(Frame::Errors(bytes)) => errors.extend_from_slice(&bytes),
            Some(Frame::Exit { code, reason }) => {
                errors.extend_from_slice(reason.as_bytes());
                break code;
            }
            Some(word) => panic!("{word:?}"),
            None => break -1,
        }
    };
    (String::from_utf8(data).unwrap(), String::from_utf8(errors).unwrap(), code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_the_container_word_for_word_and_nothing_else() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("shell", 119);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let caller = Caller { controller: &controller, place: &place };

    let script = "echo out; echo err >&2; exit 7";
    let heard = caller.run(&["sh", "-c", script], false).await;
    assert_eq!(heard, ("out\n".into(), "err\n".into(), 7));
    let (size, _, code) = caller.run(&["busybox", "stty", "size"], true).await;
    assert_eq!((size.as_str(), code), ("50 132\r\n", 0));

    // Each word is one argument, whatever it holds; as `command` likewise.
    let all = [&["busybox", "printf", "[%s]"], CHARACTERS].concat();
    let expected: String = CHARACTERS.iter().map(|word| format!("[{word}]")).collect();
    let (printed, _, code) = caller.run(&all, false).await;
    assert_eq!((printed, code), (expected, 0));
    let command = "busybox echo hi; touch /tmp/selvage-was-here $(id) `id` > /tmp/x | cat";
    let mut old =
        caller.call(ExecRequest { command: command.into(), ..caller.request() }, false).await;
    let (printed, _, _) = hear(&mut old).await;
    let words = "hi; touch /tmp/selvage-was-here $(id) `id` > /tmp/x | cat\r\n";
    assert_eq!(printed, words);
    assert!(!std::path::Path::new("/tmp/selvage-was-here").exists());

    for container_id in CHARACTERS.iter().filter(|word| !word.is_empty()) {
        let container_id = (*container_id).to_owned();
        let offer = Offer::make(on_this_machine()).await.unwrap().text().to_owned();
        let mut strange = ExecRequest { container_id, offer, ..caller.request() };
        strange.words = vec!["true".into()];
        let reply = caller.ask(strange).await;
        assert!(reply.answer.is_empty() && reply.err.starts_with("container_id: "), "{reply:?}");
    }
    let other = ExecRequest { container_id: "other".into(), ..caller.request() };
    let mut other = caller.call(ExecRequest { words: vec!["true".into()], ..other }, true).await;
    other.outgoing.send(Frame::End).await.unwrap();
    let (_, reason, code) = hear(&mut other).await;
    assert_eq!((reason.as_str(), code), ("container \"other\" of the instance not found", 126));
    // What cannot be run says why, at both kinds of caller.
    let (_, reason, code) = caller.run(&["/no/such/program"], false).await;
    assert!(code != 0 && !reason.is_empty(), "{code} {reason}");
    let wrong = ExecRequest { command: "echo 'open".into(), offer: "x".into(), ..caller.request() };
    assert_eq!(caller.ask(wrong).await.err, "command: a quote has no end");
    let wrong = ExecRequest { offer: "x".into(), ..caller.request() };
    assert!(caller.ask(wrong).await.err.starts_with("offer: "));
    assert_eq!(caller.ask(caller.request()).await.err, "offer: is empty, and no relay is named");
    let mut gone = caller.request();
    gone.app_inst_key.as_mut().unwrap().app_key.as_mut().unwrap().name = "Other".into();
    assert_eq!(caller.ask(gone).await.err, "app inst Other not found");

    controller.unmake(&place).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_keys_bursts_and_callers_who_go() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("shell-two", 120);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let caller = Caller { controller: &controller, place: &place };

    // The original's client types before the shell is up.
    let mut old = caller.call(caller.request(), false).await;
    let typed = Bytes::from_static(b"echo $((40+2)); exit\n");
    old.outgoing.send(Frame::Data(typed)).await.unwrap();
    let (printed, _, _) = hear(&mut old).await;
    assert!(printed.contains("42\r\n"), "{printed:?}");

    let burst = "busybox dd if=/dev/zero bs=65536 count=4 2>/dev/null | busybox tr '\\0' x";
    let (printed, _, code) = caller.run(&["sh", "-c", burst], false).await;
    assert_eq!((printed.len(), code), (4 * 65536, 0));

    // A command ends with its caller.
    let waiting =
        "trap 'touch /tmp/hung-up; exit' HUP; touch /tmp/waiting; while :; do sleep 1; done";
    let words = ["sh", "-c", waiting].map(str::to_owned).to_vec();
    let talk = caller.call(ExecRequest { words, ..caller.request() }, true).await;
    talk.outgoing.send(Frame::Size { columns: 0, rows: 0 }).await.unwrap();
    let there = async |file: &str| caller.run(&["ls", file], false).await.2 == 0;
    let seen = async |file: &str| {
        let looking = async {
            while !there(file).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, looking).await.unwrap_or_else(|_| panic!("no {file}"));
    };
    seen("/tmp/waiting").await;
    talk.close().await;
    seen("/tmp/hung-up").await;

    // The log, and its end when nobody reads on.
    let (_, _, code) = caller.run(&["sh", "-c", "echo a line > /proc/1/fd/2"], false).await;
    assert_eq!(code, 0);
    let logs = Some(Logs { tail: 1, ..Logs::default() });
    let mut log = caller.call(ExecRequest { logs, ..caller.request() }, true).await;
    assert_eq!(hear(&mut log).await, ("a line\n".into(), String::new(), 0));

    controller.unmake(&place).await;
    running.stop().await;
}

/// A controller at which a crm stays attached until the caller's right ends.
struct Watching(CancellationToken);

#[tonic::async_trait]
impl ShellService for Watching {
    type AttachStream = BoxStream<'static, Result<Piece, Status>>;

    async fn attach(
        &self,
        _: Request<Streaming<Piece>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let ended = self.0.clone().cancelled_owned();
        Ok(Response::new(futures::stream::pending().take_until(ended).boxed()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_shell_ends_when_the_controller_says_so() {
    if !can_run() {
        return;
    }
    let place = TestCloudlet::new("shell-three", 121);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let caller = Caller { controller: &controller, place: &place };
    let revoked = CancellationToken::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ShellServiceServer::new(Watching(revoked.clone()));
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));

    let relay = format!("{address}/token");
    let words = vec!["cat".into()];
    let request = ExecRequest { words, relay, ..caller.request() };
    let mut talk = caller.call(request.clone(), true).await;
    talk.outgoing.send(Frame::Size { columns: 0, rows: 0 }).await.unwrap();
    talk.outgoing.send(Frame::Data(Bytes::from_static(b"hi"))).await.unwrap();
    let heard = tokio::time::timeout(TEST_TIMEOUT, talk.incoming.recv()).await.unwrap();
    assert_eq!(heard, Some(Frame::Data(Bytes::from_static(b"hi"))));
    revoked.cancel();
    let heard = tokio::time::timeout(TEST_TIMEOUT, talk.incoming.recv()).await.unwrap();
    assert_eq!(heard, None, "the command ended with it");

    // Where the controller cannot be reached, no command begins.
    let nowhere = ExecRequest { relay: "127.0.0.1:1/token".into(), ..request };
    let offer = Offer::make(on_this_machine()).await.unwrap().text().to_owned();
    let reply = caller.ask(ExecRequest { offer, ..nowhere }).await;
    assert!(reply.answer.is_empty() && !reply.err.is_empty(), "{reply:?}");

    controller.unmake(&place).await;
    running.stop().await;
}
