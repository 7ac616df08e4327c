//! How many request bodies of unknown callers may be on their way at once.
//!
//! A body is kept until it is whole, and only then is the call judged. Without
//! a bound, strangers could fill our memory with bodies that never end; with
//! one bound for all, a single stranger could keep everybody else out. So
//! there are two: one for all, and a smaller one for each address.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tonic::Status;

use crate::identity::Peer;

/// Bodies of strangers in all, of at most [`super::frame::MAX_UNKNOWN`] each.
const IN_ALL: usize = 4096;
/// Bodies from one address.
const FROM_ONE: usize = 512;

#[derive(Clone, Default)]
pub(super) struct Intake(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: usize,
    by_peer: HashMap<Peer, usize>,
}

/// A body on its way.
pub(super) struct Ticket {
    intake: Intake,
    peer: Peer,
}

impl Intake {
    pub(super) fn admit(&self, peer: &Peer) -> Result<Ticket, Status> {
        let mut counts = self.0.lock();
        let of_peer = counts.by_peer.get(peer).copied().unwrap_or(0);
        if counts.all >= IN_ALL || of_peer >= FROM_ONE {
            return Err(Status::resource_exhausted(
                "too many requests are on their way: try again in a moment",
            ));
        }
        counts.all += 1;
        counts.by_peer.insert(peer.clone(), of_peer + 1);
        drop(counts);
        Ok(Ticket { intake: self.clone(), peer: peer.clone() })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.intake.0.lock();
        counts.all -= 1;
        if let Some(of_peer) = counts.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                counts.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_address_cannot_take_the_place_of_others() {
        let intake = Intake::default();
        let loud = Peer::Ip([10, 0, 0, 1].into());
        let other = Peer::Ip([10, 0, 0, 2].into());
        let tickets: Vec<_> = (0..FROM_ONE).map(|_| intake.admit(&loud).unwrap()).collect();
        assert!(intake.admit(&loud).is_err());
        assert!(intake.admit(&other).is_ok());
        drop(tickets);
        assert!(intake.admit(&loud).is_ok());
        assert!(intake.0.lock().by_peer.is_empty(), "nothing is kept of those who left");
    }

    #[test]
    fn all_together_have_a_bound() {
        let intake = Intake::default();
        let peers: Vec<_> = (0..=255).map(|last| Peer::Ip([10, 0, 0, last].into())).collect();
        let tickets: Vec<_> =
            (0..IN_ALL).map(|n| intake.admit(&peers[n % peers.len()]).unwrap()).collect();
        assert!(intake.admit(&Peer::Ip([10, 0, 1, 1].into())).is_err());
        drop(tickets);
    }
}
