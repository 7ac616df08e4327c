//! Commands in instances: a caller is answered at once; input and output then go
//! by a conversation of their own.
//!
//! A command is words, never a line for a shell: what a caller writes reaches
//! the container and nothing else.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::StreamExt;
use selvage_api::edgeproto::{AppInstKey, ExecRequest};
use selvage_notify::{MessageReceiver, ObjectKey};
use selvage_runtime::{Exec, ExecInput, ExecOutput, ExecSpec, LogOptions, TerminalSize};
use selvage_shell::{Conversation, Frame, peer};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{Error, Result, reconcile::AgentContext};

/// Conversations at the same time.
const MOST: usize = 128;
/// Time a caller may take to send the first frame.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a command may go on after its caller hung up.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(3);
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
/// Exit code of a command that cannot be run.
const CANNOT_RUN: i32 = 126;
const SHELL: &str = "/bin/sh";
/// For programs that draw; every terminal of today can do what this one could.
const TERMINAL: (&str, &str) = ("TERM", "xterm");

/// Request for something in a container.
#[derive(Debug)]
enum ShellRequest {
    Command(Vec<String>),
    Log(LogOptions),
}

/// A request that was found in order.
struct Job {
    key: AppInstKey,
    container: String,
    wanted: ShellRequest,
    terminal: bool,
    conversation: Pending,
}

/// A conversation that is about to begin.
enum Pending {
    /// The controller, if it asks for it, says when it must end.
    Direct(Conversation, Option<Meeting>),
    Relayed(Meeting),
}

/// A place at a controller where somebody is met.
struct Meeting {
    channel: tonic::transport::Channel,
    token: String,
}

impl Meeting {
    async fn attend(self) -> selvage_shell::Result<Conversation> {
        selvage_shell::attach(self.channel, self.token, |_| {}).await
    }
}

/// Answers requests until told to stop; then every command is cut off.
pub(crate) async fn answer(
    agent: Arc<AgentContext>,
    tls: Option<Arc<rustls::ClientConfig>>,
    mut execs: MessageReceiver<ExecRequest>,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MOST));
    let mut running = JoinSet::new();
    while let Some(Some((request, _))) = stop.run_until_cancelled(execs.recv()).await {
        while running.try_join_next().is_some() {}
        let permit = Arc::clone(&room).try_acquire_owned().ok();
        running.spawn(serve(Arc::clone(&agent), tls.clone(), request, permit));
    }
}

/// One request, from the question to the end of the command.
async fn serve(
    agent: Arc<AgentContext>,
    tls: Option<Arc<rustls::ClientConfig>>,
    request: ExecRequest,
    permit: Option<OwnedSemaphorePermit>,
) {
    let prepared = match permit {
        Some(_) => prepare(&agent, tls, &request).await,
        None => Err(Error::state("too many commands run on this cloudlet already")),
    };
    let (job, reply) = match prepared {
        Ok((job, answer)) => (Some(job), ExecRequest { answer, ..request }),
        Err(error) => {
            (None, ExecRequest { err: crate::reconcile::with_sources(&error), ..request })
        }
    };
    if let Err(error) = agent.client.post(&reply) {
        tracing::error!(%error, "answer not sent");
        return;
    }
    if let Some(job) = job {
        run(&agent, job).await;
    }
}

async fn prepare(
    agent: &AgentContext,
    tls: Option<Arc<rustls::ClientConfig>>,
    request: &ExecRequest,
) -> Result<(Job, String)> {
    let key = request.app_inst_key.clone().unwrap_or_default();
    let Some(instance) = agent.caches.instances.find(&key) else {
        let name = key.app_key.unwrap_or_default().name;
        return Err(Error::missing(format!("app inst {name}")));
    };
    let facts = agent.installed.instance(ObjectKey::of(instance.as_ref())?.text());
    let container = match request.container_id.as_str() {
        "" => facts
            .and_then(|facts| facts.containers.into_iter().next())
            .ok_or_else(|| Error::state("no containers to run command in"))?,
        given if is_name(given) => given.to_owned(),
        given => {
            let reason = format!("{given:?} is not the name of a container");
            return Err(Error::invalid("container_id", reason));
        }
    };
    let wanted = wanted(request)?;
    let (conversation, answer) = meet(agent, tls, request).await?;
    // The original's client always has a terminal and cannot say so.
    let understood = match &conversation {
        Pending::Direct(conversation, _) => conversation.understood,
        Pending::Relayed(_) => true,
    };
    let terminal = request.terminal || !understood;
    Ok((Job { key, container, wanted, terminal, conversation }, answer))
}

/// Returns whether a text can be what a platform calls a container.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    text.len() <= 512 && text.chars().all(fits) && text.starts_with(|c: char| c.is_alphanumeric())
}

fn wanted(request: &ExecRequest) -> Result<ShellRequest> {
    if let Some(logs) = &request.logs {
        let tail = u64::try_from(logs.tail).ok().filter(|tail| *tail > 0);
        let (follow, timestamps) = (logs.follow, logs.timestamps);
        return Ok(ShellRequest::Log(LogOptions { follow, tail, timestamps }));
    }
    let words = match request.words.as_slice() {
        [] => shell_words::split(&request.command)
            .map_err(|_| Error::invalid("command", "a quote has no end"))?,
        words => words.to_vec(),
    };
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Error::invalid("command", "a word holds a NUL character"));
    }
    Ok(ShellRequest::Command(if words.is_empty() { vec![SHELL.to_owned()] } else { words }))
}

/// Prepares the place at which caller and command meet, and what to tell the
/// caller.
async fn meet(
    agent: &AgentContext,
    tls: Option<Arc<rustls::ClientConfig>>,
    request: &ExecRequest,
) -> Result<(Pending, String)> {
    let meeting = match request.relay.split_once('/') {
        Some((address, token)) => {
            let connected = agent.client.status().connected_to;
            let address = reachable(address, connected.as_deref());
            let channel = selvage_shell::dial(&address, tls).await?;
            Some(Meeting { channel, token: token.to_owned() })
        }
        None => None,
    };
    if !request.offer.is_empty() {
        let (answer, conversation) = peer::answer(&request.offer, peer::Options::default()).await?;
        return Ok((Pending::Direct(conversation, meeting), answer));
    }
    let Some(meeting) = meeting else {
        return Err(Error::invalid("offer", "is empty, and no relay is named"));
    };
    Ok((Pending::Relayed(meeting), "relay".to_owned()))
}

/// A controller that does not know by which address it is reached is where
/// this crm reaches it.
fn reachable(address: &str, connected: Option<&str>) -> String {
    let host_of = |text: &str| {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        rest.rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned()))
    };
    let Some((host, port)) = host_of(address) else { return address.to_owned() };
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if !ip.is_ok_and(|ip| ip.is_unspecified()) {
        return address.to_owned();
    }
    match connected.and_then(host_of) {
        Some((host, _)) => format!("{host}:{port}"),
        None => address.to_owned(),
    }
}

async fn run(agent: &AgentContext, job: Job) {
    let Job { key, container, wanted, terminal, conversation } = job;
    let (mut conversation, revoked) = match begin(conversation).await {
        Ok(begun) => begun,
        Err(error) => return tracing::info!(%error, "the caller did not come"),
    };
    if !conversation.opened().await {
        return tracing::info!("the caller could not be reached");
    }
    let exit = match wanted {
        ShellRequest::Command(words) => {
            command(agent, &key, &container, words, terminal, &mut conversation, &revoked).await
        }
        ShellRequest::Log(options) => {
            let following = log(agent, &key, &container, options, &mut conversation);
            revoked.token.run_until_cancelled(following).await.unwrap_or(Ok(None))
        }
    };
    let (code, reason) = match exit {
        Ok(Some(code)) => (code, String::new()),
        Ok(None) => return conversation.close().await,
        Err(error) => (CANNOT_RUN, crate::reconcile::with_sources(&error)),
    };
    if !conversation.understood && !reason.is_empty() {
        let line = format!("selvage: {reason}\r\n");
        let _ = conversation.outgoing.send(Frame::Data(line.into())).await;
    }
    let (incoming, outgoing, mut carrier) = conversation.split();
    // Somebody who pages through a log takes it over minutes.
    let delivered = async {
        // Fails where the caller has gone; the command has ended all the same.
        let _ = outgoing.send(Frame::Exit { code, reason }).await;
        drop((incoming, outgoing));
        carrier.delivered().await;
    };
    if revoked.token.run_until_cancelled(delivered).await.is_none() {
        carrier.cut_off();
    }
}

/// Says when a caller has lost the right to a conversation.
struct Revoked {
    token: CancellationToken,
    _watch: Option<AbortOnDropHandle<()>>,
}

/// Begins a conversation. A direct one lasts no longer than the connection to
/// the controller that watches over it.
async fn begin(pending: Pending) -> selvage_shell::Result<(Conversation, Revoked)> {
    let token = CancellationToken::new();
    let (conversation, meeting) = match pending {
        Pending::Relayed(meeting) => (meeting.attend().await?, None),
        Pending::Direct(conversation, meeting) => (conversation, meeting),
    };
    let watch = match meeting {
        Some(meeting) => {
            let (mut controller, token) = (meeting.attend().await?, token.clone());
            Some(AbortOnDropHandle::new(tokio::spawn(async move {
                while controller.incoming.recv().await.is_some() {}
                token.cancel();
            })))
        }
        None => None,
    };
    Ok((conversation, Revoked { token, _watch: watch }))
}

/// Runs a command for a caller. None: the caller went away.
async fn command(
    agent: &AgentContext,
    key: &AppInstKey,
    container: &str,
    argv: Vec<String>,
    terminal: bool,
    conversation: &mut Conversation,
    revoked: &Revoked,
) -> Result<Option<i32>> {
    let (mut early, mut size) = (None, TerminalSize::default());
    if conversation.understood {
        // The caller may have tried two ways at once: the word says that it is this one.
        let first = tokio::time::timeout(FIRST_FRAME_TIMEOUT, conversation.incoming.recv()).await;
        match first.ok().flatten() {
            Some(Frame::Size { columns, rows }) if columns > 0 && rows > 0 => {
                size = TerminalSize { width: columns, height: rows };
            }
            Some(word) => early = Some(word),
            None => return Ok(None),
        }
    }
    let (name, value) = TERMINAL;
    let spec = ExecSpec {
        argv,
        env: terminal.then(|| (name.to_owned(), value.to_owned())).into_iter().collect(),
        tty: terminal.then_some(size),
        stdin: true,
        ..ExecSpec::default()
    };
    let Exec { input, output } = agent.platform.exec(key, container, spec).await?;
    let outward = write(output, &conversation.outgoing);
    tokio::pin!(outward);
    tokio::select! {
        exit = &mut outward => return exit,
        () = read(early, &mut conversation.incoming, &input) => {}
        () = revoked.token.cancelled() => {}
    }
    // The caller hung up, or has to: so does the terminal.
    for signal in [SIGHUP, SIGKILL] {
        let _ = input.try_send(ExecInput::Signal(signal));
        if tokio::time::timeout(HANG_UP_TIMEOUT, &mut outward).await.is_ok() {
            break;
        }
    }
    Ok(None)
}

/// Passes what the caller says to the command, until there is no caller.
async fn read(
    mut early: Option<Frame>,
    incoming: &mut mpsc::Receiver<Frame>,
    input: &mpsc::Sender<ExecInput>,
) {
    loop {
        let word = match early.take() {
            Some(word) => Some(word),
            None => incoming.recv().await,
        };
        let Some(word) = word else { return };
        let said = match word {
            Frame::Data(bytes) => ExecInput::Stdin(bytes),
            Frame::End => ExecInput::CloseStdin,
            Frame::Size { columns, rows } if columns > 0 && rows > 0 => {
                ExecInput::Resize(TerminalSize { width: columns, height: rows })
            }
            Frame::Size { .. } | Frame::Errors(_) | Frame::Exit { .. } => continue,
        };
        // A command that reads no more may still write.
        let _ = input.send(said).await;
    }
}

/// Passes what the command writes to the caller; returns how it ended.
async fn write(
    mut output: mpsc::Receiver<ExecOutput>,
    outgoing: &mpsc::Sender<Frame>,
) -> Result<Option<i32>> {
    loop {
        let word = match output.recv().await {
            Some(ExecOutput::Stdout(bytes)) => Frame::Data(bytes),
            Some(ExecOutput::Stderr(bytes)) => Frame::Errors(bytes),
            Some(ExecOutput::Exited(code)) => return Ok(Some(code)),
            Some(ExecOutput::Failed(error)) => return Err(error.into()),
            None => return Err(Error::state("the command was lost sight of")),
        };
        // Where nobody listens the command runs on until it is told.
        let _ = outgoing.send(word).await;
    }
}

/// Sends a log for as long as somebody reads it.
async fn log(
    agent: &AgentContext,
    key: &AppInstKey,
    container: &str,
    options: LogOptions,
    conversation: &mut Conversation,
) -> Result<Option<i32>> {
    let mut pieces = agent.platform.logs(key, container, options).await?;
    loop {
        tokio::select! {
            piece = pieces.next() => match piece {
                None => return Ok(Some(0)),
                Some(piece) => {
                    if conversation.outgoing.send(Frame::Data(piece?)).await.is_err() {
                        return Ok(None);
                    }
                }
            },
            word = conversation.incoming.recv() => if word.is_none() {
                return Ok(None);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn words(command: &str) -> Vec<String> {
        let request = ExecRequest { command: command.into(), ..ExecRequest::default() };
        match wanted(&request).unwrap() {
            ShellRequest::Command(words) => words,
            ShellRequest::Log(_) => panic!("a log"),
        }
    }

    #[test]
    fn a_command_is_words_and_quotes_hold_them_together() {
        assert_eq!(words(""), ["/bin/sh"]);
        assert_eq!(words("ls -l '/a b'"), ["ls", "-l", "/a b"]);
        assert_eq!(words("x; touch /tmp/p"), ["x;", "touch", "/tmp/p"]);
        assert_eq!(words(r#"a "$(id)" `id` > /b | c & * ? \; < d"#).len(), 13);
        let request = ExecRequest { command: "echo 'open".into(), ..ExecRequest::default() };
        assert!(wanted(&request).unwrap_err().to_string().starts_with("command: "));
        let given = ExecRequest {
            command: "not this".into(),
            words: vec!["printf".into(), "a b;c".into()],
            ..ExecRequest::default()
        };
        assert!(
            matches!(wanted(&given).unwrap(), ShellRequest::Command(words) if words[1] == "a b;c")
        );
    }

    #[test]
    fn a_controller_without_an_address_is_where_we_reach_it() {
        assert_eq!(reachable("ctrl:8443", Some("https://other:1")), "ctrl:8443");
        assert_eq!(reachable("0.0.0.0:8443", Some("https://ctrl:50001")), "ctrl:8443");
        assert_eq!(reachable("[::]:8443", Some("[::1]:50001")), "[::1]:8443");
        assert_eq!(reachable("0.0.0.0:8443", None), "0.0.0.0:8443");
    }
}
