//! Fetching files: the archive as it comes, or taken apart into a folder.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use prost::bytes::{Buf, Bytes};
use selvage_api::{Code, common::Data, machine::CopyRequest};
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::Streaming;

use super::{
    args::{Cp, Nodes},
    fleet::{Failures, Fleet, fault, machine_client, warn},
    unpack::{self, Unpacked},
};
use crate::{Error, session::Session};

/// Pieces that may wait for the disk.
const WAITING: usize = 64;

pub(crate) async fn run(nodes: Nodes, args: &Cp, session: &mut Session<'_>) -> Result<(), Error> {
    let to_stdout = args.target == Path::new("-");
    if to_stdout && session.io.out_is_terminal {
        return Err(Error::invalid("an archive is nothing for a terminal: send it to a file"));
    }
    let fleet = Fleet::connect(nodes, session).await?;
    if to_stdout && fleet.is_many() {
        return Err(Error::invalid("archives of several machines cannot be one: name a folder"));
    }
    let request = CopyRequest { root_path: args.source.clone() };
    let stream = fleet
        .stream(
            request,
            |channel, request| async move { machine_client(channel).copy(request).await },
        )
        .await?;
    if to_stdout {
        archive(&fleet, stream, session).await
    } else {
        folder(&fleet, stream, &args.target, session).await
    }
}

async fn archive(
    fleet: &Fleet,
    mut stream: Streaming<Data>,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    loop {
        let next = fleet.next(&mut stream).await;
        let next = next.map_err(|error| broke_off(&fleet.names(), error))?;
        let Some(Data { metadata, bytes }) = next else { break };
        match fault(metadata.as_ref()) {
            Some(text) => failures.push(fleet.name(metadata.as_ref()), text),
            None => session.io.out.write_all(&bytes).map_err(Error::Output)?,
        }
    }
    session.io.out.flush().map_err(Error::Output)?;
    failures.acted(0, session.io)
}

/// Each machine's archive is taken apart by a thread of its own.
async fn folder(
    fleet: &Fleet,
    mut stream: Streaming<Data>,
    target: &Path,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    let mut workers: BTreeMap<String, Worker> = BTreeMap::new();
    let mut broken = None;
    loop {
        let Data { metadata, bytes } = match fleet.next(&mut stream).await {
            Ok(Some(data)) => data,
            Ok(None) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        let node = fleet.name(metadata.as_ref());
        if let Some(text) = fault(metadata.as_ref()) {
            failures.push(node, text);
            continue;
        }
        if !workers.contains_key(node) {
            let worker = Worker::start(place(target, node, fleet.is_many())?);
            workers.insert(node.to_owned(), worker);
        }
        if let Some(worker) = workers.get(node) {
            // One that has given up says why at the end.
            let _ = worker.pieces.send(bytes).await;
        }
    }
    let mut refused = 0;
    let mut cut: Vec<String> = fleet.names();
    cut.retain(|node| !workers.contains_key(node) && !failures.has(node));
    for (node, worker) in workers {
        drop(worker.pieces);
        let done = worker.task.await.map_err(|error| Error::Unexpected(error.to_string()))?;
        let Unpacked { refused: entries } = match done {
            Ok(done) => done,
            // What it sent ends where it went away; that is told below.
            Err(_) if failures.has(&node) => continue,
            Err(_) if broken.is_some() => {
                cut.push(node);
                continue;
            }
            Err(error) => return Err(error),
        };
        for (path, reason) in &entries {
            warn(session.io, &node, &format!("{path} is left out: {reason}"))?;
        }
        refused += entries.len();
    }
    if let Some(error) = broken {
        let cut = if cut.is_empty() { fleet.names() } else { cut };
        return Err(broke_off(&cut, error));
    }
    let answered = fleet.names().len().saturating_sub(failures.machines());
    failures.acted(answered, session.io)?;
    match refused {
        0 => Ok(()),
        count => Err(Error::Status {
            code: Code::FailedPrecondition,
            message: format!("{count} entries of the archive were left out"),
            hints: vec!["`selvage node cp SRC - > FILE` fetches the archive as it is".into()],
        }),
    }
}

/// The error with the machines whose archives are not whole.
fn broke_off(nodes: &[String], error: Error) -> Error {
    match error {
        Error::Status { code, message, hints } => {
            let message = format!("the copy from {} broke off: {message}", nodes.join(", "));
            Error::Status { code, message, hints }
        }
        other => other,
    }
}

/// Folder of a machine's files: several get one each.
fn place(target: &Path, node: &str, many: bool) -> Result<PathBuf, Error> {
    if !many {
        return Ok(target.to_owned());
    }
    if node.contains('/') || node.starts_with('.') {
        return Err(Error::invalid(format!("{node:?} cannot be the name of a folder")));
    }
    Ok(target.join(node))
}

struct Worker {
    pieces: mpsc::Sender<Bytes>,
    task: JoinHandle<Result<Unpacked, Error>>,
}

impl Worker {
    fn start(into: PathBuf) -> Self {
        let (pieces, receiver) = mpsc::channel(WAITING);
        let pipe = Pipe { receiver, piece: Bytes::new() };
        Self { pieces, task: tokio::task::spawn_blocking(move || unpack::unpack(pipe, &into)) }
    }
}

/// Reads what is sent.
struct Pipe {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.piece.has_remaining() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let count = self.piece.remaining().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
