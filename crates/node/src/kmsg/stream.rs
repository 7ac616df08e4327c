//! Streams of records. All who follow share one reader of new records; what
//! is in the ring already each reads alone.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use selvage_api::{
    Code,
    common::{Data, Metadata},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{broadcast, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    query::{Query, View},
    record::Record,
    ring::{self, Device, RingStep},
    time::Boot,
};

/// Number of records that a slow follower may lag behind before it is told of a
/// gap.
const MAX_LAG: usize = 4096;

/// Maximum number of messages that wait for a slow client.
const QUEUE_LIMIT: usize = 256;

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("error opening /dev/kmsg reader: {0}")]
pub struct OpenError(io::Error);

impl OpenError {
    pub fn code(&self) -> Code {
        match self.0.kind() {
            io::ErrorKind::PermissionDenied => Code::FailedPrecondition,
            io::ErrorKind::NotFound => Code::Unimplemented,
            _ => Code::Unavailable,
        }
    }
}

/// Message of the shared reader to its followers.
type Live = Arc<Result<Record, String>>;

/// The kernel's log. Clones are the same.
#[derive(Debug, Clone)]
pub struct Kmsg {
    path: Arc<Path>,
    /// Present while somebody follows.
    live: Arc<Mutex<Option<broadcast::Sender<Live>>>>,
    boot: Arc<Mutex<Boot>>,
}

impl Kmsg {
    /// The log behind that path, in all likelihood `/dev/kmsg`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let boot = Arc::new(Mutex::new(Boot::now()));
        Self { path: path.into().into(), live: Arc::default(), boot }
    }

    /// The records that the query asks for. When it returns, a follower
    /// misses nothing any more.
    pub fn stream(&self, query: Query) -> Result<ReceiverStream<Data>, OpenError> {
        // First those to come, then those that are there: what comes in
        // between is seen twice, and told once.
        let live = query.follow.then(|| self.subscribe()).transpose()?;
        let ring = if query.only_new { None } else { Some(self.open()?) };
        let last = query.last;
        let mut view = View::new(query, self.boot.lock().kept(Boot::now()));
        let (sender, receiver) = mpsc::channel(QUEUE_LIMIT);
        tokio::spawn(async move {
            if let Some(ring) = ring {
                let replies = sender.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let done = whole_ring(&ring, &mut view, last, &replies);
                    (view, done)
                });
                let Ok((after, true)) = read.await else { return };
                view = after;
            }
            if let Some(live) = live {
                follow(live, view, sender).await;
            }
        });
        Ok(ReceiverStream::new(receiver))
    }

    fn open(&self) -> Result<Device, OpenError> {
        Device::open(&self.path).map_err(|error| OpenError(error.into()))
    }

    fn subscribe(&self) -> Result<broadcast::Receiver<Live>, OpenError> {
        let mut live = self.live.lock();
        if let Some(sender) = live.as_ref() {
            return Ok(sender.subscribe());
        }
        let device = self.open()?;
        device.to_the_end().map_err(|error| OpenError(error.into()))?;
        // The condition that replaces `unsafe` holds: a `Device` keeps its one
        // descriptor as long as it lives.
        #[allow(deprecated)]
        let device = AsyncFd::with_interest(device, Interest::READABLE).map_err(OpenError)?;
        let (sender, receiver) = broadcast::channel(MAX_LAG);
        *live = Some(sender.clone());
        tokio::spawn(share(device, sender, Arc::clone(&self.live)));
        Ok(receiver)
    }

    #[cfg(test)]
    fn readers(&self) -> usize {
        usize::from(self.live.lock().is_some())
    }
}

/// Reads new records for all followers, until there are none.
async fn share(
    device: AsyncFd<Device>,
    sender: broadcast::Sender<Live>,
    live: Arc<Mutex<Option<broadcast::Sender<Live>>>>,
) {
    loop {
        tokio::select! {
            failed = pass_on(&device, &sender) => {
                // The end of the stream tells followers.
                tracing::warn!(error = %failed, "the kernel's log cannot be read any more");
                *live.lock() = None;
                return;
            }
            () = sender.closed() => {
                let mut live = live.lock();
                // Somebody may have come in the meantime.
                if sender.receiver_count() == 0 {
                    *live = None;
                    return;
                }
            }
        }
    }
}

/// Passes on records until reading fails.
async fn pass_on(device: &AsyncFd<Device>, sender: &broadcast::Sender<Live>) -> io::Error {
    loop {
        let mut ready = match device.readable().await {
            Ok(ready) => ready,
            Err(error) => return error,
        };
        loop {
            let found = match ring::next(device.get_ref()) {
                Ok(RingStep::Record(record)) => Ok(record),
                Ok(RingStep::Malformed(malformed)) => Err(malformed.to_string()),
                Ok(RingStep::Nothing) => break,
                Err(error) => {
                    let _ = sender.send(Arc::new(Err(reading(error))));
                    return error.into();
                }
            };
            // Nobody listens: the other branch of `share` sees to it.
            let _ = sender.send(Arc::new(found));
        }
        ready.clear_ready();
    }
}

fn reading(error: rustix::io::Errno) -> String {
    format!("error reading /dev/kmsg: {}", io::Error::from(error))
}

fn failed(text: String) -> Data {
    let metadata = Metadata { error: text, ..Metadata::default() };
    Data { metadata: Some(metadata), ..Data::default() }
}

fn data(line: Vec<u8>) -> Data {
    Data { bytes: line.into(), ..Data::default() }
}

/// Tells everything that is in the ring. False when nobody listens any more
/// or nothing more can be read.
fn whole_ring(
    ring: &Device,
    view: &mut View,
    last: Option<usize>,
    replies: &mpsc::Sender<Data>,
) -> bool {
    let mut kept = VecDeque::new();
    let mut say = |said: Data| match last {
        None => replies.blocking_send(said).is_ok(),
        Some(most) => {
            if kept.len() == most {
                kept.pop_front();
            }
            kept.push_back(said);
            !replies.is_closed()
        }
    };
    let whole = loop {
        match ring::next(ring) {
            Ok(RingStep::Nothing) => break true,
            Ok(RingStep::Record(record)) => {
                let (gap, line) = view.lines(&record);
                if !gap.into_iter().chain(line).all(|line| say(data(line))) {
                    return false;
                }
            }
            Ok(RingStep::Malformed(malformed)) => {
                if !say(failed(malformed.to_string())) {
                    return false;
                }
            }
            Err(error) => {
                say(failed(reading(error)));
                break false;
            }
        }
    };
    kept.into_iter().all(|said| replies.blocking_send(said).is_ok()) && whole
}

/// Tells new records until the client goes, or reading fails.
async fn follow(mut live: broadcast::Receiver<Live>, mut view: View, replies: mpsc::Sender<Data>) {
    loop {
        let found = tokio::select! {
            () = replies.closed() => return,
            found = live.recv() => found,
        };
        let said = match found.as_deref() {
            Ok(Ok(record)) => {
                let (gap, line) = view.lines(record);
                gap.into_iter().chain(line).map(data).collect()
            }
            Ok(Err(error)) => vec![failed(error.clone())],
            // The sequence number of the next record shows how many were lost.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        for data in said {
            if replies.send(data).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
