//! Programs inside a container. The runtime's program only starts them; we
//! are their reaper and hold their pipes or their terminal ourselves.

use std::{
    fs,
    io::IoSliceMut,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream as BlockingStream},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use rustix::{
    fs::Mode,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
    process::Signal,
    termios::Winsize,
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{UnixListener, unix::pipe},
    process::ChildStderr,
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    driver::{Driver, LONGEST as STARTING, OutputTail, Streams, one_line, read_pid},
    lifecycle::{Inner, blocking},
    process::{exit_code, open_pid},
    record,
};
use crate::{
    Error, Exec, ExecInput, ExecOutput, ExecSpec, Result, TerminalSize, containerd::exec::copy,
    error::During, spec,
};

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

struct Running {
    stdin: Option<Writer>,
    stdout: Reader,
    stderr: Option<Reader>,
    terminal: Option<OwnedFd>,
    /// One to wait with, one to send signals with.
    process: OwnedFd,
    handle: OwnedFd,
}

pub(super) async fn run(
    inner: &Arc<Inner>,
    namespace: &str,
    id: &str,
    exec: ExecSpec,
) -> Result<Exec> {
    let entry = inner.entry(namespace, id)?;
    let document: Value = record::read(&entry.directory.join("config.json"))?;
    let process = spec::exec_process(&document["process"], &exec)?;
    let scratch = Scratch::new()?;
    record::write(&scratch.0.join("process.json"), &process)?;
    let name = entry.runtime_name();
    let driver = entry.driver(&inner.driver);
    let running = match exec.tty {
        Some(size) => with_terminal(&driver, &name, &scratch, size).await?,
        None => with_pipes(&driver, &name, &scratch, exec.stdin).await?,
    };
    let (input, inputs) = mpsc::channel(16);
    let (outputs, output) = mpsc::channel(16);
    tokio::spawn(running.attend(inputs, outputs));
    Ok(Exec { input, output })
}

async fn with_pipes(
    driver: &Driver,
    name: &str,
    scratch: &Scratch,
    stdin: bool,
) -> Result<Running> {
    let streams = Streams {
        stdin: if stdin { Stdio::piped() } else { Stdio::null() },
        stdout: Stdio::piped(),
        stderr: Stdio::piped(),
    };
    let (mut child, pid_file, log) = driver.exec(name, &scratch.0, None, streams).await?;
    let (stdin, stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let status = timeout(STARTING, child.wait())
        .await
        .map_err(|_| Error::Timeout { what: "starting the program", after: STARTING })?
        .during("waiting for the runtime")?;
    if !status.success() {
        return Err(driver.failed(&log, &complaint(&mut stderr).await));
    }
    let pid = read_pid(&pid_file)?;
    let missing = || Error::state("the program has no output");
    Ok(Running {
        stdin: stdin.map(|stdin| Box::new(stdin) as Writer),
        stdout: Box::new(stdout.ok_or_else(missing)?),
        stderr: Some(Box::new(stderr.ok_or_else(missing)?)),
        terminal: None,
        process: open_pid(pid)?,
        handle: open_pid(pid)?,
    })
}

/// Standard error of a step that has ended.
async fn complaint(stderr: &mut Option<ChildStderr>) -> String {
    const STDERR_TIMEOUT: Duration = Duration::from_secs(1);
    let mut piece = [0; 1024];
    let Some(stderr) = stderr else { return String::new() };
    let read = timeout(STDERR_TIMEOUT, stderr.read(&mut piece)).await;
    one_line(&piece[..read.map_or(0, Result::unwrap_or_default)])
}

async fn with_terminal(
    driver: &Driver,
    name: &str,
    scratch: &Scratch,
    size: TerminalSize,
) -> Result<Running> {
    let socket = scratch.0.join("console");
    let listener = UnixListener::bind(&socket).during("waiting for a terminal")?;
    let (words, stderr) = OutputTail::beside(&scratch.0.join("runtime.log"));
    let streams = Streams { stderr, ..Streams::null() };
    let (mut child, pid_file, log) = driver.exec(name, &scratch.0, Some(&socket), streams).await?;
    let accepting = async {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // A fast one may have sent it and be gone.
            Ok(status) = child.wait() => match status.success() {
                true => listener.accept().await,
                false => return Err(driver.failed(&log, &words.read())),
            },
        };
        let (stream, _) = accepted.during("waiting for a terminal")?;
        let stream = stream.into_std().during("waiting for a terminal")?;
        blocking(move || receive(&stream)).await
    };
    let terminal = timeout(STARTING, accepting)
        .await
        .map_err(|_| Error::Timeout { what: "starting the program", after: STARTING })??;
    let status = child.wait().await.during("waiting for the runtime")?;
    if !status.success() {
        return Err(driver.failed(&log, &words.read()));
    }
    resize(&terminal, size)?;
    rustix::io::ioctl_fionbio(&terminal, true).during("preparing a terminal")?;
    let copy =
        || -> Result<fs::File> { Ok(terminal.try_clone().during("preparing a terminal")?.into()) };
    let pid = read_pid(&pid_file)?;
    Ok(Running {
        stdin: Some(Box::new(
            pipe::Sender::from_file_unchecked(copy()?).during("preparing a terminal")?,
        )),
        stdout: Box::new(
            pipe::Receiver::from_file_unchecked(copy()?).during("preparing a terminal")?,
        ),
        stderr: None,
        terminal: Some(terminal),
        process: open_pid(pid)?,
        handle: open_pid(pid)?,
    })
}

/// The terminal that the runtime sends over its socket.
fn receive(stream: &BlockingStream) -> Result<OwnedFd> {
    stream.set_nonblocking(false).during("receiving a terminal")?;
    stream.set_read_timeout(Some(STARTING)).during("receiving a terminal")?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0u8; 4096];
    let mut parts = [IoSliceMut::new(&mut name)];
    rustix::net::recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .during("receiving a terminal")?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.ok_or_else(|| Error::state("the runtime sent no terminal"))
}

fn resize(terminal: &OwnedFd, size: TerminalSize) -> Result<()> {
    let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size).during("resizing a terminal")
}

impl Running {
    async fn attend(self, inputs: mpsc::Receiver<ExecInput>, outputs: mpsc::Sender<ExecOutput>) {
        let Self { stdin, stdout, stderr, terminal, process, handle } = self;
        let over = CancellationToken::new();
        let copying = async {
            let errors = async {
                if let Some(stderr) = stderr {
                    copy(stderr, outputs.clone(), ExecOutput::Stderr, &over).await;
                }
            };
            let output = copy(stdout, outputs.clone(), ExecOutput::Stdout, &over);
            let exit = exit_code(process).inspect(|_| over.cancel());
            tokio::join!(output, errors, exit).2
        };
        let ended = tokio::select! {
            code = copying => Some(code),
            () = feed(stdin, inputs, terminal, &handle) => None,
            () = outputs.closed() => None,
        };
        if let Some(code) = ended {
            let last = match code {
                Some(code) => ExecOutput::Exited(code),
                None => ExecOutput::Failed(Error::state("how the program ended is unknown")),
            };
            let _ = outputs.send(last).await;
        } else {
            let _ = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
            // Its end is taken note of, or it would stay a zombie.
            drop(outputs);
            exit_code(handle).await;
        }
    }
}

/// Never returns: when there is no more input the program goes on.
async fn feed(
    mut stdin: Option<Writer>,
    mut inputs: mpsc::Receiver<ExecInput>,
    terminal: Option<OwnedFd>,
    process: &OwnedFd,
) {
    const END_OF_INPUT: &[u8] = &[4];
    while let Some(input) = inputs.recv().await {
        match input {
            ExecInput::Stdin(bytes) => {
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(&bytes).await.is_err()
                {
                    stdin = None;
                }
            }
            ExecInput::CloseStdin => {
                // A terminal is not closed, it is told.
                if let (Some(pipe), Some(_)) = (&mut stdin, &terminal) {
                    let _ = pipe.write_all(END_OF_INPUT).await;
                }
                stdin = None;
            }
            ExecInput::Resize(size) => {
                if let Some(terminal) = &terminal {
                    let _ = resize(terminal, size);
                }
            }
            ExecInput::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = rustix::process::pidfd_send_signal(process, signal);
                }
            }
        }
    }
    drop(stdin);
    std::future::pending().await
}

/// A directory for the files of one start, for our eyes only.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("selvage-exec-{}", crate::unique()));
        rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700)).during("making a directory")?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
