//! Programs inside a container of containerd's, over named pipes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use containerd_client::services::v1::{
    CloseIoRequest, DeleteProcessRequest, ExecProcessRequest, GetContainerRequest,
    ResizePtyRequest, StartRequest, WaitRequest, containers_client::ContainersClient,
};
use futures::FutureExt;
use prost_types::Any;
use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    connection::{refused, within},
    control::WORK,
};
use crate::{
    Error, Exec, ExecInput, ExecOutput, ExecSpec, Result, TerminalSize, error::During, spec,
};

const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
const PIECE: usize = 16 << 10;
/// After which nothing more is expected of a program that has ended.
const SILENCE: Duration = Duration::from_millis(250);

struct Running {
    inner: Arc<Inner>,
    namespace: String,
    container: String,
    exec: String,
    pipes: Pipes,
}

pub(super) async fn run(
    inner: Arc<Inner>,
    namespace: &str,
    container: &str,
    exec_spec: ExecSpec,
) -> Result<Exec> {
    let process = inner.process_of(namespace, container).await?;
    let process = spec::exec_process(&process, &exec_spec)?;
    let exec = format!("selvage-{}", crate::unique());
    let pipes = Pipes::new(&exec, &exec_spec)?;
    let stdout = pipes.reader("stdout")?;
    let stderr = if exec_spec.tty.is_none() { Some(pipes.reader("stderr")?) } else { None };
    let request = ExecProcessRequest {
        container_id: container.to_owned(),
        stdin: pipes.name("stdin", exec_spec.stdin),
        stdout: pipes.name("stdout", true),
        stderr: pipes.name("stderr", exec_spec.tty.is_none()),
        terminal: exec_spec.tty.is_some(),
        spec: Some(Any { type_url: PROCESS_TYPE.into(), value: process.to_string().into_bytes() }),
        exec_id: exec.clone(),
    };
    let request = within(namespace, request)?;
    inner.connection.ask(WORK, inner.tasks().exec(request)).await?;
    let running = Running {
        inner,
        namespace: namespace.to_owned(),
        container: container.to_owned(),
        exec,
        pipes,
    };
    if let Err(error) = running.start().await {
        running.forget().await;
        return Err(error);
    }
    if let Some(size) = exec_spec.tty {
        running.resize(size).await?;
    }
    let stdin = if exec_spec.stdin { Some(running.pipes.writer("stdin")?) } else { None };
    let (input, inputs) = mpsc::channel(16);
    let (outputs, output) = mpsc::channel(16);
    tokio::spawn(running.attend(stdin, stdout, stderr, inputs, outputs));
    Ok(Exec { input, output })
}

impl Inner {
    async fn process_of(&self, namespace: &str, id: &str) -> Result<Value> {
        let request = within(namespace, GetContainerRequest { id: id.to_owned() })?;
        let mut client = ContainersClient::new(self.connection.channel());
        let record = self.connection.ask(WORK, client.get(request)).await?.into_inner().container;
        let bytes = record.and_then(|record| record.spec).map(|any| any.value).unwrap_or_default();
        let document: Value = serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
            what: format!("the specification of container {id:?}"),
            reason: error.to_string(),
        })?;
        Ok(document["process"].clone())
    }
}

impl Running {
    async fn start(&self) -> Result<()> {
        let request =
            StartRequest { container_id: self.container.clone(), exec_id: self.exec.clone() };
        let request = within(&self.namespace, request)?;
        self.inner.connection.ask(WORK, self.inner.tasks().start(request)).await?;
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        let request = ResizePtyRequest {
            container_id: self.container.clone(),
            exec_id: self.exec.clone(),
            width: size.width.into(),
            height: size.height.into(),
        };
        let request = within(&self.namespace, request)?;
        self.inner.connection.ask(WORK, self.inner.tasks().resize_pty(request)).await?;
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        let request = CloseIoRequest {
            container_id: self.container.clone(),
            exec_id: self.exec.clone(),
            stdin: true,
        };
        let request = within(&self.namespace, request)?;
        self.inner.connection.ask(WORK, self.inner.tasks().close_io(request)).await?;
        Ok(())
    }

    async fn wait(&self) -> Result<i32> {
        let request =
            WaitRequest { container_id: self.container.clone(), exec_id: self.exec.clone() };
        let request = within(&self.namespace, request)?;
        let answer = self.inner.tasks().wait(request).await.map_err(|status| refused(&status))?;
        Ok(i32::try_from(answer.into_inner().exit_status).unwrap_or(-1))
    }

    async fn forget(&self) {
        let request = DeleteProcessRequest {
            container_id: self.container.clone(),
            exec_id: self.exec.clone(),
        };
        if let Ok(request) = within(&self.namespace, request) {
            let _ =
                self.inner.connection.ask(WORK, self.inner.tasks().delete_process(request)).await;
        }
    }

    /// Carries bytes both ways until the program ends or nobody listens.
    async fn attend(
        self,
        stdin: Option<pipe::Sender>,
        stdout: pipe::Receiver,
        stderr: Option<pipe::Receiver>,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) {
        let over = CancellationToken::new();
        let copying = async {
            tokio::join!(
                copy(stdout, outputs.clone(), ExecOutput::Stdout, &over),
                async {
                    if let Some(stderr) = stderr {
                        copy(stderr, outputs.clone(), ExecOutput::Stderr, &over).await;
                    }
                },
                self.wait().inspect(|_| over.cancel()),
            )
        };
        let ended = tokio::select! {
            ((), (), ended) = copying => Some(ended),
            () = self.feed(stdin, inputs) => None,
            () = outputs.closed() => None,
        };
        let last = match ended {
            Some(Ok(code)) => ExecOutput::Exited(code),
            Some(Err(error)) => ExecOutput::Failed(error),
            None => {
                let _ =
                    self.inner.kill_process(&self.namespace, &self.container, &self.exec, 9).await;
                let _ = self.wait().await;
                self.forget().await;
                return;
            }
        };
        self.forget().await;
        let _ = outputs.send(last).await;
    }

    /// Never returns: when there is no more input the program goes on.
    async fn feed(&self, mut stdin: Option<pipe::Sender>, mut inputs: mpsc::Receiver<ExecInput>) {
        loop {
            let input = inputs.recv().await;
            let ended = input.is_none();
            match input {
                Some(ExecInput::Stdin(bytes)) => {
                    if let Some(pipe) = &mut stdin
                        && pipe.write_all(&bytes).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Some(ExecInput::CloseStdin) | None => {
                    if stdin.take().is_some() {
                        let _ = self.close_stdin().await;
                    }
                }
                Some(ExecInput::Resize(size)) => {
                    let _ = self.resize(size).await;
                }
                Some(ExecInput::Signal(signal)) => {
                    let inner = &self.inner;
                    let _ = inner
                        .kill_process(&self.namespace, &self.container, &self.exec, signal)
                        .await;
                }
            }
            if ended {
                return std::future::pending().await;
            }
        }
    }
}

/// Copies until the other side closes. Programs that were left behind may hold
/// it for ever: once ours has ended, only until nothing comes for a moment.
pub(crate) async fn copy(
    mut from: impl AsyncRead + Unpin,
    to: mpsc::Sender<ExecOutput>,
    wrap: fn(Bytes) -> ExecOutput,
    ended: &CancellationToken,
) {
    let mut piece = vec![0; PIECE];
    loop {
        let silence = async {
            ended.cancelled().await;
            tokio::time::sleep(SILENCE).await;
        };
        let read = tokio::select! {
            biased;
            read = from.read(&mut piece) => read,
            () = silence => return,
        };
        match read {
            // A terminal whose other side closed gives an error, not an end.
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if to.send(wrap(Bytes::copy_from_slice(&piece[..length]))).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Named pipes in a directory of their own, removed with it.
struct Pipes {
    directory: PathBuf,
}

impl Pipes {
    fn new(exec: &str, spec: &ExecSpec) -> Result<Self> {
        let directory = std::env::temp_dir().join(exec);
        rustix::fs::mkdir(&directory, Mode::from_raw_mode(0o700)).during("making pipes")?;
        let pipes = Self { directory };
        for (name, wanted) in
            [("stdin", spec.stdin), ("stdout", true), ("stderr", spec.tty.is_none())]
        {
            if wanted {
                let path = pipes.directory.join(name);
                let mode = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).during("making a pipe")?;
            }
        }
        Ok(pipes)
    }

    fn name(&self, name: &str, wanted: bool) -> String {
        if wanted { self.directory.join(name).display().to_string() } else { String::new() }
    }

    fn reader(&self, name: &str) -> Result<pipe::Receiver> {
        pipe::OpenOptions::new().open_receiver(self.directory.join(name)).during("opening a pipe")
    }

    fn writer(&self, name: &str) -> Result<pipe::Sender> {
        // The shim has the other end open by now; with both ends ours it does
        // not matter if it is late.
        pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(self.directory.join(name))
            .during("opening a pipe")
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
