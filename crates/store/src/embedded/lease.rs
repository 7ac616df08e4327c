//! Leases, and the time at which the next one ends.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::clock::{Millis, to_millis};
use crate::{Error, Lease, LeaseId, Result};

/// Longest lease: what etcd allows.
const MAX_TTL: Duration = Duration::from_secs(9_000_000_000);

#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) ttl: Millis,
    pub(super) ends: Millis,
}

impl Term {
    pub(super) fn lease(self, id: LeaseId, now: Millis) -> Lease {
        Lease {
            id,
            ttl: Duration::from_millis(self.ttl),
            remaining: Duration::from_millis(self.ends.saturating_sub(now)),
        }
    }
}

/// The writer's picture of all leases.
#[derive(Debug, Default)]
pub(super) struct LeaseBook {
    terms: HashMap<LeaseId, Term>,
    by_end: BTreeSet<(Millis, LeaseId)>,
}

impl LeaseBook {
    pub(super) fn set(&mut self, id: LeaseId, term: Term) {
        self.remove(id);
        self.terms.insert(id, term);
        self.by_end.insert((term.ends, id));
    }

    pub(super) fn remove(&mut self, id: LeaseId) {
        if let Some(term) = self.terms.remove(&id) {
            self.by_end.remove(&(term.ends, id));
        }
    }

    /// The lease, if there is one that has not ended.
    pub(super) fn alive(&self, id: LeaseId, now: Millis) -> Result<Term> {
        match self.terms.get(&id) {
            Some(term) if term.ends > now => Ok(*term),
            _ => Err(Error::LeaseNotFound { id }),
        }
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.terms.contains_key(&id)
    }

    pub(super) fn next_end(&self) -> Option<Millis> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// A lease that has ended by now.
    pub(super) fn ended(&self, now: Millis) -> Option<LeaseId> {
        self.by_end.first().filter(|(ends, _)| *ends <= now).map(|(_, id)| *id)
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<Millis> {
    if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
        return Err(Error::invalid("ttl", format!("must lie between 1 ms and {MAX_TTL:?}")));
    }
    Ok(to_millis(ttl))
}
