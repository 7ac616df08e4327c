//! Logins that were begun and not finished. Kept in memory: who is caught
//! by a restart begins again.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::program::Program;
use crate::{clock, limits::Network};

/// Time that a user has to log in at the provider.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
const MAX: usize = 10_000;
/// Maximum of one network, so that it cannot push the others out.
const MAX_PER_NETWORK: usize = 500;

pub(crate) struct PendingLogin {
    pub(crate) provider: String,
    pub(crate) nonce: Zeroizing<String>,
    pub(crate) verifier: Zeroizing<String>,
    /// SHA-256 of the cookie that the browser was given.
    pub(crate) binding_digest: String,
    pub(crate) redirect_uri: String,
    /// The program that began it, if it was not a page.
    pub(crate) program: Option<Program>,
    pub(crate) network: Option<Network>,
    pub(crate) started: Timestamp,
}

/// The logins by their state.
#[derive(Default)]
pub(crate) struct PendingLogins(Mutex<HashMap<String, PendingLogin>>);

impl PendingLogins {
    pub(crate) fn insert(&self, state: &str, login: PendingLogin) {
        let mut pending = self.0.lock();
        let own = pending.values().filter(|other| other.network == login.network).count();
        let oldest_of = |pending: &HashMap<String, PendingLogin>, only: Option<Option<Network>>| {
            pending
                .iter()
                .filter(|(_, other)| only.is_none_or(|network| other.network == network))
                .min_by_key(|(_, other)| other.started)
                .map(|(state, _)| state.clone())
        };
        let surplus = if own >= MAX_PER_NETWORK {
            oldest_of(&pending, Some(login.network))
        } else if pending.len() >= MAX {
            oldest_of(&pending, None)
        } else {
            None
        };
        if let Some(surplus) = surplus {
            pending.remove(&surplus);
        }
        pending.insert(state.to_owned(), login);
    }

    /// Takes a login out: a state is good for one callback.
    pub(crate) fn take(&self, state: &str, now: Timestamp) -> Option<PendingLogin> {
        let login = self.0.lock().remove(state)?;
        (clock::since(now, login.started) < LIFETIME).then_some(login)
    }

    pub(crate) fn tidy(&self, now: Timestamp) {
        self.0.lock().retain(|_, login| clock::since(now, login.started) < LIFETIME);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn login(network: Network, started: Timestamp) -> PendingLogin {
        PendingLogin {
            provider: "p".into(),
            nonce: Zeroizing::default(),
            verifier: Zeroizing::default(),
            binding_digest: String::new(),
            redirect_uri: String::new(),
            program: None,
            network: Some(network),
            started,
        }
    }

    #[test]
    fn a_state_is_good_once_and_not_for_long() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let pending = PendingLogins::default();
        pending.insert("a", login(Network::Unknown, now));
        pending.insert("b", login(Network::Unknown, now));
        assert!(pending.take("a", now).is_some());
        assert!(pending.take("a", now).is_none());
        assert!(pending.take("b", clock::after(now, LIFETIME)).is_none());
    }

    #[test]
    fn a_network_that_floods_pushes_out_only_itself() {
        let start = Timestamp::from_second(1_000_000).unwrap();
        let pending = PendingLogins::default();
        pending.insert("victim", login(Network::V4([10, 0, 0]), start));
        for n in 0..2 * MAX_PER_NETWORK as u64 {
            let at = clock::after(start, Duration::from_millis(n));
            pending.insert(&format!("flood-{n}"), login(Network::V4([192, 0, 2]), at));
        }
        assert_eq!(pending.0.lock().len(), MAX_PER_NETWORK + 1);
        assert!(pending.take("victim", start).is_some());
        assert!(pending.take("flood-0", start).is_none());
        pending.tidy(clock::after(start, 2 * LIFETIME));
        assert!(pending.0.lock().is_empty());
    }
}
