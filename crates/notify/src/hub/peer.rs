//! One peer's outbox: what it has not been told yet.

use std::{
    collections::{BTreeSet, VecDeque, btree_set},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::resume::{Deferred, scope_of};
use crate::{
    ObjectKey, Stream,
    exchange::{Exchange, Outgoing},
    frame::Frame,
    stats::{Stats, count},
};

/// Far more types than there are.
const MAX_WANTS: usize = 1000;

/// Revisions up to which a peer says its mirror is complete. Empty for the
/// original's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer {
    /// Revisions by the index of the type in our order of sending, 0 for none.
    pub(crate) revisions: Vec<i64>,
    pub(crate) scope: u64,
}

impl Offer {
    pub(crate) fn revision(&self, index: usize) -> Option<i64> {
        self.revisions.get(index).copied().filter(|revision| *revision > 0)
    }

    /// Reads the usable part of a peer's VERSION: nothing if it counts revisions
    /// of another history, and only those below `end`, where that history and
    /// ours part.
    pub(crate) fn of(version: &Frame, exchange: &Exchange, end: Option<i64>) -> Self {
        let Some(end) = end else { return Self::default() };
        let revision = |outgoing: &Outgoing| {
            let name = outgoing.kind().full_name();
            let at = version.want_objs.iter().position(|want| want == name)?;
            version.last_revision.get(at).copied().filter(|revision| *revision < end)
        };
        let revisions = exchange.sends.iter().map(|out| revision(out).unwrap_or(0)).collect();
        Self { revisions, scope: version.scope }
    }
}

pub(crate) struct PeerSetup {
    pub(crate) stream: Stream,
    pub(crate) version: u32,
    pub(crate) want_objs: Vec<String>,
    pub(crate) filtered: bool,
    /// The peer gets no secrets.
    pub(crate) concealed: bool,
    /// The peer knows our revisions.
    pub(crate) revisions: bool,
    pub(crate) liveness: Liveness,
}

/// Signs of life on a stream, where its two ends agreed on them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Liveness {
    /// Longest time that we may send nothing.
    pub(crate) heartbeat: Option<Duration>,
    /// Silence after which the peer is taken for gone.
    pub(crate) silence: Option<Duration>,
}

pub(crate) struct Peer {
    pub(crate) stream: Stream,
    pub(crate) version: u32,
    pub(crate) filtered: bool,
    pub(crate) concealed: bool,
    pub(crate) revisions: bool,
    pub(crate) liveness: Liveness,
    /// Types that the peer wants, in its own order, as indices of ours; those
    /// that we do not send are `None`.
    wants: Box<[Option<usize>]>,
    outbox: Mutex<Outbox>,
    /// Canonical texts of the keys of the cloudlets it reports on.
    announced: Mutex<BTreeSet<Box<str>>>,
    pub(crate) wake: Notify,
    /// Notified when the whole queue has been handed to the connection.
    drained: Notify,
    /// The peer has said that it has sent everything.
    pub(crate) received_all: AtomicBool,
    pub(crate) stats: Arc<Stats>,
}

struct Outbox {
    dirty: Vec<BTreeSet<ObjectKey>>,
    messages: Vec<VecDeque<Bytes>>,
    cloudlets: Arc<BTreeSet<Arc<str>>>,
    scope: u64,
    /// Sending everything may end with what is queued now.
    may_end: bool,
    peer_sent_all: bool,
    deferred: Option<Deferred>,
    resumed: Vec<usize>,
    /// True while the last round has not all been sent.
    sending: bool,
}

/// Objects and messages that are sent in one go, in the order of the types.
pub(crate) struct Round {
    pub(crate) lanes: VecDeque<Lane>,
    pub(crate) cloudlets: Arc<BTreeSet<Arc<str>>>,
    pub(crate) scope: u64,
    /// The revision of each source before the round was gathered.
    pub(crate) revisions: Vec<i64>,
    pub(crate) may_end: bool,
    pub(crate) resumed: Vec<usize>,
}

pub(crate) enum Lane {
    Objects(usize, btree_set::IntoIter<ObjectKey>),
    /// Type, and the number of messages at the head of its queue, which stay
    /// there until they are sent.
    Messages(usize, usize),
}

impl Peer {
    pub(crate) fn new(setup: PeerSetup, exchange: &Exchange, stats: Arc<Stats>) -> Arc<Self> {
        let sent = |name: &String| {
            exchange.sends.iter().position(|outgoing| outgoing.kind().full_name() == name)
        };
        let types = exchange.sends.len();
        Arc::new(Self {
            wants: setup.want_objs.iter().take(MAX_WANTS).map(sent).collect(),
            stream: setup.stream,
            version: setup.version,
            filtered: setup.filtered,
            concealed: setup.concealed,
            revisions: setup.revisions,
            liveness: setup.liveness,
            outbox: Mutex::new(Outbox {
                dirty: vec![BTreeSet::new(); types],
                messages: vec![VecDeque::new(); types],
                cloudlets: Arc::default(),
                scope: 0,
                may_end: false,
                peer_sent_all: false,
                deferred: None,
                resumed: Vec::new(),
                sending: false,
            }),
            announced: Mutex::default(),
            wake: Notify::new(),
            drained: Notify::new(),
            received_all: AtomicBool::new(false),
            stats,
        })
    }

    /// Returns true if the peer has said that it has this cloudlet.
    pub(super) fn speaks_for(&self, cloudlet: &str) -> bool {
        self.announced.lock().contains(cloudlet)
    }

    pub(super) fn set_speaks_for(&self, cloudlet: &str, speaks: bool) {
        let mut announced = self.announced.lock();
        if speaks {
            announced.insert(cloudlet.into());
        } else {
            announced.remove(cloudlet);
        }
    }

    pub(crate) fn wants(&self, index: usize) -> bool {
        self.wants.contains(&Some(index))
    }

    /// Returns a value for each type that the peer wants, in the peer's order.
    pub(crate) fn by_want<T: Default>(&self, of: impl Fn(usize) -> T) -> Vec<T> {
        self.wants.iter().map(|index| index.map(&of).unwrap_or_default()).collect()
    }

    pub(super) fn mark(&self, index: usize, key: &ObjectKey) {
        if self.wants(index) {
            if let Some(set) = self.outbox.lock().dirty.get_mut(index) {
                set.insert(key.clone());
            }
            self.wake.notify_one();
        }
    }

    pub(super) fn mark_all(&self, index: usize, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(set) = self.outbox.lock().dirty.get_mut(index) {
            set.extend(keys);
        }
        self.wake.notify_one();
    }

    /// Marks the initial objects as queued, except those that wait until the
    /// peer has said which cloudlets it has.
    pub(super) fn began(&self, resumed: Vec<usize>, deferred: Option<Deferred>) {
        let mut outbox = self.outbox.lock();
        outbox.resumed.extend(resumed);
        outbox.deferred = deferred;
        outbox.may_end = !self.filtered;
        self.wake.notify_one();
    }

    pub(super) fn post(&self, index: usize, message: Bytes, limit: usize) {
        if !self.wants(index) {
            return;
        }
        if let Some(queue) = self.outbox.lock().messages.get_mut(index) {
            queue.push_back(message);
            while queue.len() > limit {
                queue.pop_front();
                count(&self.stats.messages_dropped);
            }
        }
        self.wake.notify_one();
    }

    pub(super) fn take_messages(&self) -> Vec<VecDeque<Bytes>> {
        let mut outbox = self.outbox.lock();
        let empty = vec![VecDeque::new(); outbox.messages.len()];
        std::mem::replace(&mut outbox.messages, empty)
    }

    pub(crate) fn next_message(&self, index: usize, left: &mut usize) -> Option<Bytes> {
        *left = left.checked_sub(1)?;
        self.outbox.lock().messages.get_mut(index)?.pop_front()
    }

    pub(crate) fn cloudlets(&self) -> Arc<BTreeSet<Arc<str>>> {
        Arc::clone(&self.outbox.lock().cloudlets)
    }

    /// Takes a cloudlet on with what is there. Whether nothing more is waited
    /// for.
    pub(super) fn take_on(&self, cloudlet: &Arc<str>, keys: Vec<(usize, ObjectKey)>) -> bool {
        let mut outbox = self.outbox.lock();
        let news = Arc::make_mut(&mut outbox.cloudlets).insert(Arc::clone(cloudlet));
        outbox.scope = scope_of(&outbox.cloudlets);
        if news && outbox.deferred.is_none() {
            self.queue(&mut outbox, keys);
        }
        outbox.peer_sent_all && !outbox.may_end
    }

    pub(super) fn give_up(&self, cloudlet: &str, keys: Vec<(usize, ObjectKey)>) {
        let mut outbox = self.outbox.lock();
        Arc::make_mut(&mut outbox.cloudlets).remove(cloudlet);
        outbox.scope = scope_of(&outbox.cloudlets);
        self.queue(&mut outbox, keys);
    }

    fn queue(&self, outbox: &mut Outbox, keys: Vec<(usize, ObjectKey)>) {
        for (index, key) in keys {
            if self.wants(index)
                && let Some(set) = outbox.dirty.get_mut(index)
            {
                set.insert(key);
            }
        }
        self.wake.notify_one();
    }

    /// The peer has sent all it has; whether sending everything may end now.
    pub(super) fn peer_sent_all(&self) -> bool {
        let mut outbox = self.outbox.lock();
        outbox.peer_sent_all = true;
        !outbox.may_end && !outbox.cloudlets.is_empty()
    }

    pub(super) fn take_deferred(&self) -> Option<(Deferred, u64)> {
        let mut outbox = self.outbox.lock();
        let scope = outbox.scope;
        outbox.deferred.take().map(|deferred| (deferred, scope))
    }

    pub(super) fn released(&self, keys: Vec<(usize, ObjectKey)>, resumed: Vec<usize>) {
        let mut outbox = self.outbox.lock();
        self.queue(&mut outbox, keys);
        outbox.resumed.extend(resumed);
        outbox.may_end = true;
    }

    /// Takes all that is queued. The revisions must have been read before.
    pub(crate) fn gather(&self, revisions: Vec<i64>) -> Round {
        let mut outbox = self.outbox.lock();
        let mut lanes = VecDeque::new();
        for index in 0..outbox.dirty.len() {
            let keys = std::mem::take(&mut outbox.dirty[index]);
            if !keys.is_empty() {
                lanes.push_back(Lane::Objects(index, keys.into_iter()));
            }
            let messages = outbox.messages[index].len();
            if messages > 0 {
                lanes.push_back(Lane::Messages(index, messages));
            }
        }
        outbox.sending = !lanes.is_empty();
        if !outbox.sending {
            self.drained.notify_waiters();
        }
        Round {
            lanes,
            cloudlets: Arc::clone(&outbox.cloudlets),
            scope: outbox.scope,
            revisions,
            may_end: outbox.may_end,
            resumed: if outbox.may_end { std::mem::take(&mut outbox.resumed) } else { Vec::new() },
        }
    }

    /// Returns when everything queued so far is on its way, or the stream has
    /// ended.
    pub(crate) async fn flushed(&self) {
        loop {
            let drained = self.drained.notified();
            if !self.outbox.lock().sending && !self.has_unsent() {
                return;
            }
            tokio::select! {
                () = drained => {}
                () = self.ended().cancelled() => return,
            }
        }
    }

    /// Cancelled when the stream is ended by this side.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.stream.end.ended
    }

    /// Ends the stream; `status` is what the peer is told.
    pub(crate) fn end(&self, status: Option<Status>) {
        self.stream.end.end(status);
    }

    pub(crate) fn end_status(&self) -> Option<Status> {
        self.stream.end.take_status()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        let outbox = self.outbox.lock();
        outbox.dirty.iter().any(|set| !set.is_empty())
            || outbox.messages.iter().any(|queue| !queue.is_empty())
    }
}
