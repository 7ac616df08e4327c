//! The two sides of data: what we send, and what we receive.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use selvage_kit::identity::Identity;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{Changes, Error, Kind, ObjectKey};

/// A type of object that we send.
#[async_trait::async_trait]
pub trait Source: Send + Sync + 'static {
    /// Returns the type.
    fn kind(&self) -> &Arc<Kind>;

    /// The keys of all objects there are.
    fn keys(&self) -> Vec<ObjectKey>;

    /// The newest state of an object, encoded; `None` when it is gone.
    /// Encode once per change: the bytes are shared by all peers.
    fn get(&self, key: &ObjectKey) -> Option<Bytes>;

    /// The same without the secrets in it, for peers that need none.
    fn get_public(&self, key: &ObjectKey) -> Option<Bytes> {
        self.get(key)
    }

    /// Returns true if the object exists.
    fn contains(&self, key: &ObjectKey) -> bool {
        self.get(key).is_some()
    }

    /// Calls [`Changes::changed`] from now on for every key whose object was
    /// created, changed or removed, after [`Source::get`] shows it. For types
    /// that refer to each other the calls keep the order of the changes.
    fn subscribe(&self, changes: Changes);

    /// A revision such that everything up to it has been told to all
    /// subscribers. One that lags is safe and costs sending a change again
    /// to a peer that resumes. 0 when revisions are not kept: then nothing is
    /// resumed.
    fn revision(&self) -> i64 {
        0
    }

    /// The keys of all objects that came, changed or went after a revision;
    /// `None` when that is not known any more. See [`crate::History`].
    fn changes_since(&self, revision: i64) -> Option<Vec<ObjectKey>> {
        let _ = revision;
        None
    }

    /// A peer is about to ask for what changed after a revision: time to
    /// remember what can be looked up. A peer waits, so it must not take long.
    async fn recall(&self, revision: i64) {
        let _ = revision;
    }
}

/// Histories that the revisions of sources belong to, if those outlive the
/// process and the server.
pub trait Lineage: Send + Sync + 'static {
    /// Names the history that revisions count from now on; 0 for none.
    fn epoch(&self) -> u64;

    /// End of an epoch in the history we have: its revisions are all less than
    /// this. `None` for an epoch that we know nothing of.
    fn end(&self, epoch: u64) -> Option<i64>;
}

/// Role of this end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// We are the client; the peer is above us and the only one there.
    Upstream,
    /// We are the server; the peer is one of many below us.
    Downstream,
}

/// Peer at the other end.
pub struct PeerInfo {
    /// Its address, for people.
    pub address: String,
    /// Identity, as the listener found out. On the client nobody.
    pub identity: Identity,
}

impl fmt::Debug for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.identity.name)
    }
}

/// The stream that brought an object.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Names the stream, across restarts too: `notify_id` of what came by it.
    pub id: i64,
    /// Role of this end.
    pub role: Role,
    /// The other end.
    pub peer: Arc<PeerInfo>,
    pub(crate) end: Arc<StreamEnd>,
}

impl Stream {
    /// Ends the stream. The peer may connect again.
    pub fn disconnect(&self) {
        self.end.end(Some(Status::unavailable("disconnected by the server")));
    }
}

/// The end of a stream by this side.
#[derive(Debug, Default)]
pub(crate) struct StreamEnd {
    pub(crate) ended: CancellationToken,
    /// Status that the peer is sent.
    status: Mutex<Option<Status>>,
}

impl StreamEnd {
    /// Ends the stream; `status` is what the peer is told.
    pub(crate) fn end(&self, status: Option<Status>) {
        if let Some(status) = status {
            self.status.lock().get_or_insert(status);
        }
        self.ended.cancel();
    }

    pub(crate) fn take_status(&self) -> Option<Status> {
        self.status.lock().take()
    }
}

/// An object, or only its key, as it came.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Its key.
    pub key: ObjectKey,
    /// The object, encoded. Of a deleted one only the key means anything.
    /// From below, with `notify_id` set where the type has it.
    pub payload: Bytes,
}

/// Revision up to which a mirror is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// History that the revision is of.
    pub epoch: u64,
    /// Revision up to which the mirror is complete.
    pub revision: i64,
    /// Fingerprint of the cloudlets it holds for, 0 for all.
    pub scope: u64,
}

/// A type of object that we receive. Calls for one stream come one after the
/// other; a slow one holds up its own stream only.
#[async_trait::async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Returns the type.
    fn kind(&self) -> &Arc<Kind>;

    /// The object is now as given.
    async fn update(&self, object: Incoming, stream: &Stream) -> Result<(), Error>;

    /// The object is gone.
    async fn delete(&self, object: Incoming, stream: &Stream) -> Result<(), Error>;

    /// Removes the objects that a stream from above has not sent, now that it
    /// has sent everything.
    async fn prune(&self, stream: &Stream) -> Result<(), Error>;

    /// Removes the owner of the objects of a stream from below, which has
    /// ended.
    async fn flush(&self, stream: &Stream) -> Result<(), Error>;

    /// Notes that a peer below has reported everything it has by this stream.
    async fn reported_all(&self, _: &Stream) -> Result<(), Error> {
        Ok(())
    }

    /// Revision up to which the mirror is complete, if it records that. It must
    /// be forgotten when the mirror is changed or lost otherwise.
    fn checkpoint(&self) -> Option<Checkpoint> {
        None
    }

    /// Keeps, or forgets, how far the mirror is complete.
    fn set_checkpoint(&self, checkpoint: Option<Checkpoint>) {
        let _ = checkpoint;
    }
}

/// A type of message that we receive.
#[async_trait::async_trait]
pub trait MessageSink: Send + Sync + 'static {
    /// Returns the type.
    fn kind(&self) -> &Arc<Kind>;

    /// A message came.
    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), Error>;
}
