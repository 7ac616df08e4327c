//! A machine's serial console: a log that does not grow for ever, and a seat
//! for one.

use std::{
    collections::HashSet, fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use selvage_runtime::{Exec, ExecInput, ExecOutput, ExecSpec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

use super::{qmp::connect, user::User};
use crate::{Error, Result, error::During};

/// Bytes of a log that are kept.
const KEPT: u64 = 8 << 20;
const BLOCK: u64 = 4096;
/// Messages between the two ends.
const WAITING: usize = 16;
const PIECE: usize = 16 << 10;
/// When no more is typed, what the machine still says is waited for so long.
const QUIET: Duration = Duration::from_secs(1);

/// Punches out the beginning of a log that holds too much; who writes it and
/// who reads it go on.
pub(super) fn bound(log: &Path) -> std::io::Result<()> {
    let Ok(metadata) = fs::metadata(log) else { return Ok(()) };
    if metadata.blocks() * 512 <= KEPT {
        return Ok(());
    }
    let file = fs::OpenOptions::new().write(true).open(log)?;
    let first = metadata.len().saturating_sub(KEPT / 2) / BLOCK * BLOCK;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(&file, flags, 0, first).is_ok() {
        return Ok(());
    }
    file.set_len(0)
}

/// Consoles that somebody sits at.
#[derive(Clone, Default)]
pub(super) struct Seats(Arc<Mutex<HashSet<String>>>);

struct Seat {
    seats: Seats,
    machine: String,
}

impl Seats {
    fn take(&self, machine: &str) -> Result<Seat> {
        if !self.0.lock().insert(machine.to_owned()) {
            return Err(Error::state("somebody else is at the machine's console"));
        }
        Ok(Seat { seats: self.clone(), machine: machine.to_owned() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.0.lock().remove(&self.machine);
    }
}

/// A machine has no commands that could be run from outside, only whatever
/// its console offers.
fn check(spec: &ExecSpec) -> Result<()> {
    let program = spec.argv.first().map(|word| word.rsplit('/').next().unwrap_or_default());
    let shell = matches!(program, None | Some("" | "sh" | "bash" | "ash" | "dash" | "login"));
    if shell && spec.argv.len() <= 1 {
        return Ok(());
    }
    let reason = "a virtual machine has a console and runs no commands from outside: ask for sh \
                  to sit at its console";
    Err(Error::invalid("command", reason))
}

/// Sits down at a console.
pub(super) async fn open(
    seats: &Seats,
    machine: &str,
    socket: &Path,
    user: User,
    spec: &ExecSpec,
) -> Result<Exec> {
    check(spec)?;
    let seat = seats.take(machine)?;
    let stream = connect(socket, user).await.during("opening the machine's console")?;
    let (input, typed) = mpsc::channel(WAITING);
    let (shown, output) = mpsc::channel(WAITING);
    tokio::spawn(converse(stream, typed, shown, seat));
    Ok(Exec { input, output })
}

async fn converse(
    stream: UnixStream,
    mut typed: mpsc::Receiver<ExecInput>,
    shown: mpsc::Sender<ExecOutput>,
    _seat: Seat,
) {
    let (mut from, mut to) = stream.into_split();
    let typing = type_in(&mut typed, &mut to);
    let ended = tokio::select! {
        () = shown.closed() => return,
        ended = show(&mut from, &shown, None) => ended,
        ended = typing => match ended {
            Ok(()) => show(&mut from, &shown, Some(QUIET)).await,
            failed => failed,
        },
    };
    let last = match ended {
        Ok(()) => ExecOutput::Exited(0),
        Err(error) => ExecOutput::Failed(selvage_runtime::Error::Io {
            doing: "talking to the machine's console",
            error,
        }),
    };
    // Nobody may be left to hear it.
    let _ = shown.send(last).await;
}

/// Returns when no more is typed. A serial line knows no sizes and no signals.
async fn type_in(
    typed: &mut mpsc::Receiver<ExecInput>,
    to: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    while let Some(input) = typed.recv().await {
        match input {
            ExecInput::Stdin(bytes) => to.write_all(&bytes).await?,
            ExecInput::CloseStdin => return Ok(()),
            ExecInput::Resize(_) | ExecInput::Signal(_) => {}
        }
    }
    Ok(())
}

/// Returns when the machine ends, or is silent for so long.
async fn show(
    from: &mut OwnedReadHalf,
    shown: &mpsc::Sender<ExecOutput>,
    silence: Option<Duration>,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece);
        let length = match silence {
            None => read.await?,
            Some(silence) => match tokio::time::timeout(silence, read).await {
                Ok(length) => length?,
                Err(_) => return Ok(()),
            },
        };
        let bytes = Bytes::copy_from_slice(&piece[..length]);
        if length == 0 || shown.send(ExecOutput::Stdout(bytes)).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::Write as _;

    use tokio::net::UnixListener;

    use super::*;

    fn asked(argv: &[&str]) -> ExecSpec {
        ExecSpec { argv: argv.iter().map(ToString::to_string).collect(), ..ExecSpec::default() }
    }

    #[test]
    fn only_a_console_is_given() {
        for good in [&[][..], &["sh"], &["/bin/bash"]] {
            check(&asked(good)).unwrap();
        }
        for bad in [&["sh", "-c", "id"][..], &["id"], &["/bin/rm", "-r"]] {
            let error = check(&asked(bad)).unwrap_err().to_string();
            assert!(error.starts_with("command: a virtual machine has a console"), "{error}");
        }
    }

    #[tokio::test]
    async fn there_is_one_seat_and_it_is_free_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console");
        let listener = UnixListener::bind(&path).unwrap();
        let seats = Seats::default();
        let mut exec =
            open(&seats, "m", &path, User::of_this_process(), &asked(&["sh"])).await.unwrap();
        let error = open(&seats, "m", &path, User::of_this_process(), &asked(&["sh"]))
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "somebody else is at the machine's console");
        let (mut machine, _) = listener.accept().await.unwrap();
        exec.input.send(ExecInput::Stdin("ls\n".into())).await.unwrap();
        let mut heard = [0; 3];
        machine.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ls\n");
        machine.write_all(b"bin").await.unwrap();
        exec.input.send(ExecInput::CloseStdin).await.unwrap();
        let Some(ExecOutput::Stdout(said)) = exec.output.recv().await else { panic!("nothing") };
        assert_eq!(said, "bin");
        drop(machine);
        assert!(matches!(exec.output.recv().await, Some(ExecOutput::Exited(0))));
        assert!(exec.output.recv().await.is_none());
        assert!(seats.0.lock().is_empty());
    }

    #[test]
    fn a_log_that_grows_loses_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.log");
        let mut log = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            log.write_all(&line).unwrap();
        }
        bound(&path).unwrap();
        log.write_all(b"the end").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.blocks() * 512 <= KEPT, "{}", metadata.blocks());
        assert!(fs::read(&path).unwrap().ends_with(b"the end"));
    }
}
