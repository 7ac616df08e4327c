//! Fan-out of changes to peers: decides for every change which peers get it.
//!
//! Locks are taken in the order peers, then one peer's outbox; the directory
//! is never held together with either.

mod directory;
mod peer;
mod resume;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

pub(crate) use self::peer::{Lane, Liveness, Offer, Peer, PeerSetup, Round};
use self::{directory::Directory, resume::Deferred};
use crate::{
    Error, Kind, ObjectKey, Reach, Source,
    exchange::{Exchange, Outgoing},
    kind::cloudlet_text,
};

/// Given to a [`Source`] so that it can tell of changes.
#[derive(Clone)]
pub struct Changes {
    hub: Weak<Hub>,
    index: usize,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Changes {
    /// The object of this key came, changed or went.
    pub fn changed(&self, key: &ObjectKey) {
        if let Some(hub) = self.hub.upgrade() {
            hub.changed(self.index, key);
        }
    }

    /// Nobody listens any more.
    pub fn is_closed(&self) -> bool {
        self.hub.strong_count() == 0
    }
}

type PeerMap = BTreeMap<i64, Arc<Peer>>;

#[derive(Default)]
struct Peers {
    open: PeerMap,
    filtered: PeerMap,
    /// Peers with a filter by the cloudlets they report on.
    by_cloudlet: HashMap<Arc<str>, PeerMap>,
}

pub(crate) struct Hub {
    pub(crate) exchange: Exchange,
    pub(crate) receive_index: HashMap<String, usize>,
    /// Servers only: clients filter nothing.
    index_cloudlets: bool,
    peers: RwLock<Peers>,
    directory: Mutex<Directory>,
    /// Messages that wait for a connection. Clients only.
    parked: Mutex<Vec<VecDeque<Bytes>>>,
}

impl Hub {
    pub(crate) fn new(exchange: Exchange, index_cloudlets: bool) -> Arc<Self> {
        let hub = Arc::new(Self {
            receive_index: exchange.receive_index(),
            parked: Mutex::new(vec![VecDeque::new(); exchange.sends.len()]),
            exchange,
            index_cloudlets,
            peers: RwLock::default(),
            directory: Mutex::default(),
        });
        for (index, source) in hub.sources() {
            source.subscribe(Changes { hub: Arc::downgrade(&hub), index });
            if hub.index_cloudlets && source.kind().reach() == Reach::Cloudlet {
                for key in source.keys() {
                    hub.enter(index, source.as_ref(), &key);
                }
            }
        }
        hub
    }

    pub(crate) fn sources(&self) -> impl DoubleEndedIterator<Item = (usize, &Arc<dyn Source>)> {
        self.exchange.sends.iter().enumerate().filter_map(|(index, outgoing)| match outgoing {
            Outgoing::Objects(source) => Some((index, source)),
            Outgoing::Messages { .. } => None,
        })
    }

    pub(crate) fn kind(&self, index: usize) -> Option<&Arc<Kind>> {
        self.exchange.sends.get(index).map(Outgoing::kind)
    }

    /// Index of apps in the order of sending.
    fn app_index(&self) -> Option<usize> {
        self.apps().map(|(index, _)| index)
    }

    fn apps(&self) -> Option<(usize, &Arc<dyn Source>)> {
        self.sources().find(|(_, source)| source.kind().reach() == Reach::Companion)
    }

    /// Brings the directory up to date; the app concerned when the object is
    /// new there or gone from there. What counts is whether the object is
    /// there now, not what the change was.
    fn enter(&self, index: usize, source: &dyn Source, key: &ObjectKey) -> Option<ObjectKey> {
        let cloudlet = key.cloudlet()?;
        let mut directory = self.directory.lock();
        let present = source.contains(key);
        let app = || source.kind().companion(key);
        directory.apply(index, cloudlet, key, present, app)
    }

    fn changed(&self, index: usize, key: &ObjectKey) {
        let Some(Outgoing::Objects(source)) = self.exchange.sends.get(index) else { return };
        let reach = source.kind().reach();
        let indexed = self.index_cloudlets && reach == Reach::Cloudlet;
        let app = if indexed { self.enter(index, source.as_ref(), key) } else { None };
        let cloudlets = match (reach, self.index_cloudlets) {
            (Reach::Companion, true) => self.directory.lock().cloudlets_of(key),
            _ => Vec::new(),
        };
        let peers = self.peers.read();
        peers.open.values().for_each(|peer| peer.mark(index, key));
        match reach {
            Reach::Everybody => peers.filtered.values().for_each(|peer| peer.mark(index, key)),
            Reach::Cloudlet => {
                let there = key.cloudlet().and_then(|cloudlet| peers.by_cloudlet.get(cloudlet));
                for peer in there.into_iter().flat_map(BTreeMap::values) {
                    if let (Some(app), Some(at)) = (&app, self.app_index()) {
                        peer.mark(at, app);
                    }
                    peer.mark(index, key);
                }
            }
            Reach::Companion => {
                let there = cloudlets.iter().filter_map(|c| peers.by_cloudlet.get(c));
                there.flat_map(BTreeMap::values).for_each(|peer| peer.mark(index, key));
            }
        }
    }

    /// Adds a peer and queues what it has to get first. Changes from now on
    /// reach it, so that nothing is lost between.
    pub(crate) fn add(&self, peer: &Arc<Peer>, offer: &Offer) {
        {
            let mut peers = self.peers.write();
            let map = if peer.filtered { &mut peers.filtered } else { &mut peers.open };
            map.insert(peer.stream.id, Arc::clone(peer));
        }
        let mut resumed = Vec::new();
        // From the last type to the first: when an object is queued, what it
        // refers to is queued later and sent earlier.
        for (index, source) in self.sources().rev() {
            if !peer.wants(index) || self.filters(peer, index) {
                continue;
            }
            let changes = offer.revision(index).and_then(|at| source.changes_since(at));
            if changes.is_some() {
                resumed.push(index);
            }
            peer.mark_all(index, changes.unwrap_or_else(|| source.keys()));
        }
        peer.began(resumed, peer.filtered.then(|| Deferred::new(offer)).flatten());
        let mut parked = self.parked.lock();
        for (index, queue) in parked.iter_mut().enumerate() {
            for message in queue.drain(..) {
                peer.post(index, message, usize::MAX);
            }
        }
    }

    /// Returns true if this peer's filter applies to this type.
    fn filters(&self, peer: &Peer, index: usize) -> bool {
        peer.filtered && self.kind(index).is_some_and(|kind| kind.reach() != Reach::Everybody)
    }

    pub(crate) fn remove(&self, peer: &Peer) {
        let mut peers = self.peers.write();
        peers.open.remove(&peer.stream.id);
        peers.filtered.remove(&peer.stream.id);
        for cloudlet in peer.cloudlets().iter() {
            leave(&mut peers, cloudlet, peer.stream.id);
        }
    }

    /// Keeps what messages the peer did not get for the next connection.
    pub(crate) fn park(&self, peer: &Peer) {
        let mut parked = self.parked.lock();
        let unsent = peer.take_messages().into_iter().zip(&self.exchange.sends);
        for (later, (mut queue, outgoing)) in parked.iter_mut().zip(unsent) {
            queue.append(later);
            if let Outgoing::Messages { limit, .. } = outgoing {
                trim(&mut queue, *limit);
            }
            *later = queue;
        }
    }

    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let peers = self.peers.read();
        let all = peers.open.values().chain(peers.filtered.values());
        let mut all: Vec<Arc<Peer>> = all.cloned().collect();
        all.sort_by_key(|peer| peer.stream.id);
        all
    }

    /// Queues a message for every peer that wants it and whom it concerns;
    /// how many those are. While there is no peer a client keeps it.
    pub(crate) fn post(&self, name: &str, payload: &Bytes) -> Result<usize, Error> {
        let found = self.exchange.sends.iter().enumerate().find_map(|(index, out)| match out {
            Outgoing::Messages { kind, limit } if kind.full_name() == name => {
                Some((index, kind, *limit))
            }
            _ => None,
        });
        let Some((index, kind, limit)) = found else {
            let what = format!("{name} is not among the messages that are sent");
            return Err(Error::Refused { what, code: selvage_api::Code::Internal });
        };
        let cloudlet = kind.cloudlet_of(payload)?.map(|key| cloudlet_text(&key)).transpose()?;
        let peers = self.peers.read();
        let filtered = match &cloudlet {
            None => Some(&peers.filtered),
            Some(cloudlet) => peers.by_cloudlet.get(cloudlet.as_str()),
        };
        // A server tells what is about a cloudlet only to those who have it.
        let concerns = |peer: &&Arc<Peer>| match &cloudlet {
            Some(cloudlet) if self.index_cloudlets => peer.speaks_for(cloudlet),
            _ => true,
        };
        let open = peers.open.values().filter(concerns);
        let all = open.chain(filtered.into_iter().flat_map(BTreeMap::values));
        let mut sent = 0;
        for peer in all.filter(|peer| peer.wants(index)) {
            peer.post(index, payload.clone(), limit);
            sent += 1;
        }
        if !self.index_cloudlets
            && peers.open.is_empty()
            && let Some(queue) = self.parked.lock().get_mut(index)
        {
            queue.push_back(payload.clone());
            trim(queue, limit);
        }
        Ok(sent)
    }

    /// Returns true if a peer may know an object of this key.
    pub(crate) fn visible(
        &self,
        peer: &Peer,
        round: &Round,
        index: usize,
        key: &ObjectKey,
    ) -> bool {
        let reach = self.kind(index).map(|kind| kind.reach());
        match reach {
            _ if !peer.filtered => true,
            Some(Reach::Cloudlet) => key.cloudlet().is_some_and(|c| round.cloudlets.contains(c)),
            Some(Reach::Companion) => self.directory.lock().uses(key, &round.cloudlets),
            _ => true,
        }
    }
}

fn leave(peers: &mut Peers, cloudlet: &Arc<str>, id: i64) {
    if let Some(map) = peers.by_cloudlet.get_mut(cloudlet) {
        map.remove(&id);
        if map.is_empty() {
            peers.by_cloudlet.remove(cloudlet);
        }
    }
}

fn trim(queue: &mut VecDeque<Bytes>, limit: usize) {
    let surplus = queue.len().saturating_sub(limit);
    queue.drain(..surplus);
}
