//! Relay between a caller and a crm who cannot, or need not, reach each other.
//!
//! A meeting belongs to one command. Each side has a token of its own, good
//! once and for a minute, and must be who was meant by it. What one says the
//! other hears, a few pieces at a time; when one goes the other is told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::selvage::shell::Piece;
use selvage_kit::identity::{Identity, Kind, Machine};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// Lifetime of a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// Pieces on their way to one side.
const UNDER_WAY: usize = 16;
/// Meetings for which somebody is waited for.
const MOST: usize = 4096;
const TOKEN_BYTES: usize = 32;

/// Channels of one side of a meeting.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) outgoing: mpsc::Sender<Piece>,
    pub(crate) incoming: mpsc::Receiver<Piece>,
    present: watch::Sender<usize>,
    until: Instant,
}

impl Seat {
    /// Waits until the other side is there.
    pub(crate) async fn taken(&self) -> Result<()> {
        self.present.send_modify(|present| *present += 1);
        let mut present = self.present.subscribe();
        let both = present.wait_for(|present| *present == 2);
        match tokio::time::timeout_at(self.until, both).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::refused(Code::DeadlineExceeded, "the other side did not come")),
        }
    }
}

/// Party that a token is for.
#[derive(Debug, Clone)]
enum Guest {
    Caller(Identity),
    Agent(wire::CloudletKey),
}

/// Returns true if somebody is the agent of a cloudlet, by certificate. Sockets
/// of this machine and laboratories may do everything and have no name of their
/// own.
pub(crate) fn is_agent_of(identity: &Identity, cloudlet: &wire::CloudletKey) -> bool {
    match &identity.kind {
        Kind::Local | Kind::Insecure => true,
        Kind::Machine(Machine::Cloudlet { operator, name }) => {
            let runs = cloudlet.operator_key.as_ref().map_or("", |key| key.name.as_str());
            cloudlet.name == *name && runs == operator
        }
        _ => false,
    }
}

impl Guest {
    /// Returns whether somebody is the one who is meant, with all that the
    /// command was allowed by.
    fn is(&self, identity: &Identity) -> bool {
        match (self, &identity.kind) {
            (Self::Agent(key), _) => is_agent_of(identity, key),
            (_, Kind::Local | Kind::Insecure) => true,
            (_, Kind::Anonymous) => false,
            (Self::Caller(caller), Kind::User { .. }) => {
                matches!(caller.kind, Kind::User { .. })
                    && caller.name == identity.name
                    && identity.holds_all(&caller.grants)
            }
            // Two tokens of one person are two callers.
            (Self::Caller(caller), Kind::Delegate(_)) => {
                matches!(caller.kind, Kind::Delegate(_))
                    && caller.name == identity.name
                    && identity.holds_all(&caller.grants)
            }
            (Self::Caller(caller), Kind::Machine(_)) => caller.kind == identity.kind,
        }
    }
}

/// The tokens of a meeting.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) caller: String,
    pub(crate) agent: String,
}

/// Seats that nobody has taken yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relays(Arc<Mutex<HashMap<String, (Guest, Seat)>>>);

impl Relays {
    /// Prepares a meeting of a caller and the agent of a cloudlet.
    pub(crate) fn prepare(&self, caller: Identity, agent: wire::CloudletKey) -> Result<Tokens> {
        let tokens = Tokens { caller: token(), agent: token() };
        let (to_agent, from_caller) = mpsc::channel(UNDER_WAY);
        let (to_caller, from_agent) = mpsc::channel(UNDER_WAY);
        let (present, _) = watch::channel(0);
        let until = Instant::now() + TOKEN_LIFETIME;
        let seat =
            |outgoing, incoming| Seat { outgoing, incoming, present: present.clone(), until };
        let mut seats = self.0.lock();
        if seats.len() >= MOST {
            return Err(Error::refused(
                Code::ResourceExhausted,
                "too many shells are being opened",
            ));
        }
        let here = seat(to_agent, from_agent);
        seats.insert(tokens.caller.clone(), (Guest::Caller(caller), here));
        let there = seat(to_caller, from_caller);
        seats.insert(tokens.agent.clone(), (Guest::Agent(agent), there));
        drop(seats);
        let (relays, forgotten) = (self.clone(), tokens.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            relays.cancel(&forgotten);
        });
        Ok(tokens)
    }

    /// Gives a seat to whom it is for, once.
    pub(crate) fn take(&self, token: &str, identity: &Identity) -> Result<Seat> {
        let mut seats = self.0.lock();
        // One who has the token and is not meant spoils nothing.
        if !seats.get(token).is_some_and(|(guest, _)| guest.is(identity)) {
            return Err(Error::refused(
                Code::PermissionDenied,
                "the token is not good: it was used, is older than a minute, or is another's",
            ));
        }
        seats.remove(token).map(|(_, seat)| seat).ok_or(Error::KeyNotFound)
    }

    /// Forgets a meeting that will not take place.
    pub(crate) fn cancel(&self, tokens: &Tokens) {
        let mut seats = self.0.lock();
        seats.remove(&tokens.caller);
        seats.remove(&tokens.agent);
    }
}

fn token() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; TOKEN_BYTES]>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::selvage::shell::piece;

    use super::*;

    fn user(name: &str) -> Identity {
        let kind = Kind::User { session: "s".into(), expires: 0 };
        Identity { name: name.into(), kind, grants: Vec::new() }
    }

    fn cloudlet(name: &str) -> wire::CloudletKey {
        let operator_key = Some(wire::OperatorKey { name: "tmus".into() });
        wire::CloudletKey { operator_key, name: name.into() }
    }

    fn agent(name: &str) -> Identity {
        Identity::machine(Machine::parse(&format!("cloudlet/tmus/{name}")).unwrap())
    }

    #[tokio::test]
    async fn only_those_who_are_meant_meet_and_only_once() {
        let relays = Relays::default();
        let tokens = relays.prepare(user("ann"), cloudlet("west")).unwrap();
        for (token, wrong) in [
            (&tokens.caller, user("bob")),
            (&tokens.caller, agent("west")),
            (&tokens.caller, Identity::anonymous()),
            (&tokens.agent, agent("east")),
            (&tokens.agent, user("ann")),
            (&"guess".to_owned(), user("ann")),
        ] {
            assert_eq!(relays.take(token, &wrong).unwrap_err().code(), Code::PermissionDenied);
        }
        let mut ann = relays.take(&tokens.caller, &user("ann")).unwrap();
        assert!(relays.take(&tokens.caller, &user("ann")).is_err(), "used");
        let west = relays.take(&tokens.agent, &agent("west")).unwrap();
        let (first, second) = tokio::join!(ann.taken(), west.taken());
        first.unwrap();
        second.unwrap();
        let piece = Piece { kind: Some(piece::Kind::Data(b"hi".to_vec())) };
        west.outgoing.send(piece.clone()).await.unwrap();
        drop(west);
        assert_eq!(ann.incoming.recv().await, Some(piece));
        assert_eq!(ann.incoming.recv().await, None);
        assert!(ann.outgoing.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_good_for_a_minute() {
        let relays = Relays::default();
        let tokens = relays.prepare(user("ann"), cloudlet("west")).unwrap();
        let ann = relays.take(&tokens.caller, &user("ann")).unwrap();
        assert_eq!(ann.taken().await.unwrap_err().code(), Code::DeadlineExceeded);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(relays.take(&tokens.agent, &agent("west")).is_err());
        assert!(relays.0.lock().is_empty());
    }
}
