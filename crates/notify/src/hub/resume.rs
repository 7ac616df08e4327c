//! Peers with a filter: which cloudlets they have, and when everything that
//! concerns those has been queued.
//!
//! Such a peer gets nothing of its cloudlets before it has said which they
//! are. The end of sending everything is held back until then, so that a peer
//! that comes back does not throw its mirror away. One that brings revisions
//! is asked to finish first: only when its cloudlets are those that the
//! revisions were given for can it get less than everything.

use std::{collections::BTreeSet, sync::Arc};

use super::{Hub, Offer, Peer, leave};
use crate::{ObjectKey, Reach};

pub(super) type MarkedKeys = Vec<(usize, ObjectKey)>;

/// Revisions that may serve once the peer's cloudlets are known.
#[derive(Debug)]
pub(super) struct Deferred(Offer);

impl Deferred {
    pub(super) fn new(offer: &Offer) -> Option<Self> {
        (offer.scope != 0).then(|| Self(offer.clone()))
    }
}

/// A fingerprint of a set of cloudlets, the same in every process; never 0.
/// FNV-1a: a peer that forges one cheats only itself.
pub(super) fn scope_of(cloudlets: &BTreeSet<Arc<str>>) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in cloudlets.iter().flat_map(|name| name.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.max(1)
}

impl Hub {
    /// The peer reports on this cloudlet. Returns whether that is news.
    pub(crate) fn announce(&self, peer: &Arc<Peer>, cloudlet: &str) -> bool {
        peer.set_speaks_for(cloudlet, true);
        if !peer.filtered || peer.cloudlets().contains(cloudlet) {
            return false;
        }
        let cloudlet: Arc<str> = cloudlet.into();
        {
            let mut peers = self.peers.write();
            let there = peers.by_cloudlet.entry(Arc::clone(&cloudlet)).or_default();
            there.insert(peer.stream.id, Arc::clone(peer));
        }
        let mut keys = self.on(&cloudlet);
        if let Some(at) = self.app_index() {
            // Apps that have come with another cloudlet need not come again.
            let (known, directory) = (peer.cloudlets(), self.directory.lock());
            keys.retain(|(index, key)| *index != at || !directory.uses(key, &known));
        }
        if peer.take_on(&cloudlet, keys) {
            self.release(peer);
        }
        true
    }

    /// The peer does not report on this cloudlet any more: what it knows of
    /// it is taken back.
    pub(crate) fn renounce(&self, peer: &Arc<Peer>, cloudlet: &str) {
        peer.set_speaks_for(cloudlet, false);
        if !peer.filtered || !peer.cloudlets().contains(cloudlet) {
            return;
        }
        leave(&mut self.peers.write(), &cloudlet.into(), peer.stream.id);
        peer.give_up(cloudlet, self.on(cloudlet));
    }

    /// The peer has sent everything it has.
    pub(crate) fn peer_sent_all(&self, peer: &Arc<Peer>) {
        if peer.filtered && peer.peer_sent_all() {
            self.release(peer);
        }
    }

    /// No more is expected of the peer: queues what was put off and lets
    /// sending everything end.
    pub(crate) fn release(&self, peer: &Arc<Peer>) {
        let Some((Deferred(offer), scope)) = peer.take_deferred() else {
            return peer.released(Vec::new(), Vec::new());
        };
        let changes = (offer.scope == scope).then(|| self.changes(peer, &offer)).flatten();
        match changes {
            Some((keys, resumed)) => peer.released(keys, resumed),
            None => {
                let all = peer.cloudlets();
                peer.released(all.iter().flat_map(|c| self.on(c)).collect(), Vec::new());
            }
        }
    }

    /// Returns the objects on a cloudlet and its apps. An app that does not
    /// exist is not queued, or its absence would be sent; once it is created,
    /// that is a change.
    fn on(&self, cloudlet: &str) -> MarkedKeys {
        let (mut keys, apps) = self.directory.lock().of_cloudlet(cloudlet);
        if let Some((at, source)) = self.apps() {
            keys.extend(apps.into_iter().filter(|app| source.contains(app)).map(|app| (at, app)));
        }
        keys
    }

    /// Returns the changes on the peer's cloudlets since its revisions, and the
    /// types for which they are known; all of them or none.
    fn changes(&self, peer: &Peer, offer: &Offer) -> Option<(MarkedKeys, Vec<usize>)> {
        let cloudlets = peer.cloudlets();
        let (mut keys, mut resumed) = (Vec::new(), Vec::new());
        for (index, source) in self.sources() {
            if !peer.wants(index) || !self.filters(peer, index) {
                continue;
            }
            let changed = source.changes_since(offer.revision(index)?)?;
            resumed.push(index);
            match source.kind().reach() {
                Reach::Companion => {
                    let directory = self.directory.lock();
                    let used = |app: &ObjectKey| directory.uses(app, &cloudlets);
                    keys.extend(changed.into_iter().filter(used).map(|key| (index, key)));
                }
                _ => {
                    let here = |key: &ObjectKey| {
                        key.cloudlet().is_some_and(|cloudlet| cloudlets.contains(cloudlet))
                    };
                    for key in changed.into_iter().filter(here) {
                        // An instance that came brings its app, one that went
                        // may have been the last.
                        let app = source.kind().companion(&key);
                        keys.extend(self.app_index().zip(app));
                        keys.push((index, key));
                    }
                }
            }
        }
        Some((keys, resumed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_tells_sets_apart() {
        let scope = |names: &[&str]| {
            scope_of(&names.iter().map(|name| Arc::from(*name)).collect::<BTreeSet<Arc<str>>>())
        };
        assert_eq!(scope(&["a", "b"]), scope(&["b", "a"]));
        assert_ne!(scope(&["a", "b"]), scope(&["ab"]));
        assert_ne!(scope(&[]), 0);
    }
}
