//! Commands in pods, and their logs, over the cluster's own API.

use std::{future::Future, pin::pin, time::Duration};

use bytes::Bytes;
use futures::{AsyncReadExt as _, SinkExt, StreamExt};
use nix::sys::signal::Signal;
use selvage_kube::{
    Pods,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Status,
    kube::{
        self,
        api::{AttachParams, AttachedProcess, LogParams},
    },
};
use selvage_runtime::{
    Error as RuntimeError, Exec, ExecInput, ExecOutput, ExecSpec, LogOptions, LogStream,
    TerminalSize,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use crate::Result;

/// Bytes that are under way in each direction.
const BUFFER: usize = 64 << 10;
/// Time the cluster may take to say how a command ended.
const ENDING: Duration = Duration::from_secs(10);
const RUNTIME: &str = "kubernetes";

/// A container of a pod.
pub(super) struct PodContainer<'a> {
    pub(super) pods: Pods,
    pub(super) pod: &'a str,
    pub(super) container: Option<String>,
}

impl PodContainer<'_> {
    pub(super) async fn exec(self, spec: ExecSpec) -> Result<Exec> {
        let argv = words(&spec)?;
        let params = AttachParams {
            container: self.container.clone(),
            stdin: spec.stdin,
            stdout: true,
            stderr: spec.tty.is_none(),
            tty: spec.tty.is_some(),
            max_stdin_buf_size: Some(BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            max_stderr_buf_size: Some(BUFFER),
        };
        let process = self.pods.exec(self.pod, argv, &params).await?;
        let (input, commands) = mpsc::channel(16);
        let (sender, output) = mpsc::channel(16);
        tokio::spawn(converse(process, commands, sender, spec.tty));
        Ok(Exec { input, output })
    }

    pub(super) async fn logs(self, options: LogOptions) -> Result<LogStream> {
        let params = LogParams {
            container: self.container.clone(),
            follow: options.follow,
            timestamps: options.timestamps,
            tail_lines: options.tail.map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
            ..LogParams::default()
        };
        let log = self.pods.log_stream(self.pod, &params).await?;
        let pieces = futures::stream::unfold(Some(Box::pin(log)), |log| async {
            let mut log = log?;
            let mut piece = vec![0; BUFFER / 4];
            match log.read(&mut piece).await {
                Ok(0) => None,
                Ok(length) => {
                    piece.truncate(length);
                    Some((Ok(Bytes::from(piece)), Some(log)))
                }
                Err(error) => Some((Err(RuntimeError::Io { doing: "reading a log", error }), None)),
            }
        });
        Ok(pieces.boxed())
    }
}

/// Words of the command. Variables go by `env`, since the API has no place for
/// them.
fn words(spec: &ExecSpec) -> Result<Vec<String>, RuntimeError> {
    if spec.argv.is_empty() {
        return Err(RuntimeError::Invalid {
            field: "argv".into(),
            reason: "may not be empty".into(),
        });
    }
    if spec.cwd.is_some() {
        return Err(RuntimeError::Unsupported { runtime: RUNTIME, what: "a directory to run in" });
    }
    // A terminal has this one already.
    let given = spec.env.iter().filter(|(name, _)| *name != "TERM" || spec.tty.is_none());
    let variables: Vec<String> = given.map(|(name, value)| format!("{name}={value}")).collect();
    let head = (!variables.is_empty()).then(|| "env".to_owned());
    Ok(head.into_iter().chain(variables).chain(spec.argv.iter().cloned()).collect())
}

/// Carries everything to and fro until the command has ended, or nobody
/// listens any more. Dropping the process ends the connection.
async fn converse(
    mut process: AttachedProcess,
    commands: mpsc::Receiver<ExecInput>,
    output: mpsc::Sender<ExecOutput>,
    size: Option<TerminalSize>,
) {
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let reading = async {
        tokio::join!(
            pump(stdout, &output, ExecOutput::Stdout),
            pump(stderr, &output, ExecOutput::Stderr),
        );
    };
    let (stdin, mut resize) = (process.stdin(), process.terminal_size());
    let status = process.take_status();
    if let (Some(resize), Some(size)) = (resize.as_mut(), size) {
        let _ = resize.send(kubes(size)).await;
    }
    let writing = feed(stdin, resize, commands, size.is_some());
    let last = tokio::select! {
        () = output.closed() => return,
        () = reading => ended(status).await,
        signal = writing => ExecOutput::Exited(128 + signal),
    };
    // Who asked may be gone.
    let _ = output.send(last).await;
}

fn kubes(size: TerminalSize) -> kube::api::TerminalSize {
    kube::api::TerminalSize { width: size.width, height: size.height }
}

async fn pump(
    from: Option<impl AsyncRead + Unpin>,
    output: &mpsc::Sender<ExecOutput>,
    wrap: fn(Bytes) -> ExecOutput,
) {
    let Some(mut from) = from else { return };
    let mut piece = vec![0; BUFFER / 4];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if output.send(wrap(Bytes::copy_from_slice(&piece[..length]))).await.is_err() {
            return;
        }
    }
}

/// Takes what goes in, for ever; returns only with a signal that cannot be
/// given in another way than by letting go.
async fn feed(
    stdin: Option<impl tokio::io::AsyncWrite + Unpin>,
    mut resize: Option<futures::channel::mpsc::Sender<kube::api::TerminalSize>>,
    mut commands: mpsc::Receiver<ExecInput>,
    terminal: bool,
) -> i32 {
    let mut stdin = stdin;
    while let Some(command) = commands.recv().await {
        match command {
            ExecInput::Stdin(bytes) => {
                if let Some(open) = stdin.as_mut()
                    && open.write_all(&bytes).await.is_err()
                {
                    stdin = None;
                }
            }
            ExecInput::CloseStdin => close(&mut stdin).await,
            ExecInput::Resize(size) => {
                if let Some(resize) = resize.as_mut() {
                    let _ = resize.send(kubes(size)).await;
                }
            }
            ExecInput::Signal(signal) => match (key_of(signal), stdin.as_mut()) {
                (Some(key), Some(open)) if terminal => {
                    let _ = open.write_all(&[key]).await;
                }
                _ => return signal,
            },
        }
    }
    close(&mut stdin).await;
    std::future::pending().await
}

async fn close(stdin: &mut Option<impl tokio::io::AsyncWrite + Unpin>) {
    if let Some(mut open) = stdin.take() {
        let _ = open.shutdown().await;
    }
}

/// Key that one presses at a terminal to send a signal.
fn key_of(signal: i32) -> Option<u8> {
    match Signal::try_from(signal) {
        Ok(Signal::SIGINT) => Some(0x03),
        Ok(Signal::SIGQUIT) => Some(0x1c),
        Ok(Signal::SIGTSTP) => Some(0x1a),
        _ => None,
    }
}

async fn ended(status: Option<impl Future<Output = Option<Status>>>) -> ExecOutput {
    let failed =
        |reason: &str| ExecOutput::Failed(RuntimeError::State { reason: reason.to_owned() });
    let Some(status) = status else { return failed("the cluster does not say how it ended") };
    let status = tokio::time::timeout(ENDING, pin!(status)).await.ok().flatten();
    let Some(status) = status else { return failed("the connection was cut") };
    exit_of(&status).map_or_else(|reason| failed(&reason), ExecOutput::Exited)
}

/// The code that a command ended with; the reason where it has none.
fn exit_of(status: &Status) -> Result<i32, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let code =
        causes.into_iter().flatten().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_ref()?.parse().ok());
    code.ok_or_else(|| status.message.clone().unwrap_or_else(|| "it failed".to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn how_a_command_ended_is_read() {
        let of = |value: Value| exit_of(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({ "status": "Success" })), Ok(0));
        let causes = json!([{ "reason": "ExitCode", "message": "7" }]);
        let failure = json!({ "status": "Failure", "reason": "NonZeroExitCode", "details": { "causes": causes } });
        assert_eq!(of(failure), Ok(7));
        let gone = json!({ "status": "Failure", "message": "container not found" });
        assert_eq!(of(gone), Err("container not found".into()));
    }

    #[test]
    fn words_stay_words() {
        let mut spec = ExecSpec {
            argv: vec!["echo".into(), "$(id); 'x".into()],
            env: BTreeMap::from([("TERM".into(), "xterm".into())]),
            tty: Some(TerminalSize::default()),
            ..ExecSpec::default()
        };
        assert_eq!(words(&spec).unwrap(), spec.argv);
        spec.env.insert("A".into(), "b c".into());
        assert_eq!(words(&spec).unwrap(), ["env", "A=b c", "echo", "$(id); 'x"]);
        assert!(words(&ExecSpec::default()).is_err());
        let elsewhere =
            ExecSpec { cwd: Some("/".into()), argv: vec!["ls".into()], ..ExecSpec::default() };
        let error = words(&elsewhere).unwrap_err().to_string();
        assert_eq!(error, "kubernetes does not support a directory to run in");
    }
}
