//! Limits on what strangers may have at once: request bodies that are on their
//! way, streams of health and reflection.
//!
//! A body is kept until it is whole, and only then is the call judged. Without
//! a bound, strangers could fill our memory with bodies that never end; with
//! one bound for all, a single stranger could keep everybody else out. So
//! there are two: one for all, and a smaller one for each address, of IPv6 for
//! each network of 64 bits, which is what one customer has.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tonic::Status;

use crate::identity::Peer;

/// Bodies of strangers in all, of at most [`super::frame::MAX_UNKNOWN`] each.
const IN_ALL: usize = 4096;
/// Bodies from one address.
const FROM_ONE: usize = 512;

/// Streams of strangers in all.
const STREAMS: usize = 256;
/// Streams from one address.
const STREAMS_FROM_ONE: usize = 32;

#[derive(Clone)]
pub(super) struct Intake(Arc<Inner>);

struct Inner {
    what: &'static str,
    in_all: usize,
    from_one: usize,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_peer: HashMap<Peer, usize>,
}

/// The address, or of IPv6 its network.
fn network(peer: &Peer) -> Peer {
    match peer {
        Peer::Ip(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_none() => {
            let prefix = ip.to_bits() & !u128::from(u64::MAX);
            Peer::Ip(Ipv6Addr::from_bits(prefix).into())
        }
        other => other.clone(),
    }
}

/// One of them.
pub(super) struct Ticket {
    intake: Intake,
    peer: Peer,
}

impl Intake {
    /// For bodies of requests.
    pub(super) fn bodies() -> Self {
        Self::new("requests are on their way", IN_ALL, FROM_ONE)
    }

    /// For streams that anybody may open.
    pub(super) fn streams() -> Self {
        Self::new("streams of this kind in flight", STREAMS, STREAMS_FROM_ONE)
    }

    fn new(what: &'static str, in_all: usize, from_one: usize) -> Self {
        Self(Arc::new(Inner { what, in_all, from_one, counts: Mutex::default() }))
    }

    pub(super) fn admit(&self, peer: &Peer) -> Result<Ticket, Status> {
        let (peer, mut counts) = (network(peer), self.0.counts.lock());
        let of_peer = counts.by_peer.get(&peer).copied().unwrap_or(0);
        if counts.all >= self.0.in_all || of_peer >= self.0.from_one {
            let text = format!("too many {}: try again in a moment", self.0.what);
            return Err(Status::resource_exhausted(text));
        }
        counts.all += 1;
        counts.by_peer.insert(peer.clone(), of_peer + 1);
        drop(counts);
        Ok(Ticket { intake: self.clone(), peer })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.intake.0.counts.lock();
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
        let intake = Intake::bodies();
        let loud = Peer::Ip([10, 0, 0, 1].into());
        let other = Peer::Ip([10, 0, 0, 2].into());
        let tickets: Vec<_> = (0..FROM_ONE).map(|_| intake.admit(&loud).unwrap()).collect();
        assert!(intake.admit(&loud).is_err());
        assert!(intake.admit(&other).is_ok());
        drop(tickets);
        assert!(intake.admit(&loud).is_ok());
        assert!(intake.0.counts.lock().by_peer.is_empty(), "nothing is kept of those who left");
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let intake = Intake::streams();
        let of = |network: u16, host: u16| {
            Peer::Ip(IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]))
        };
        let tickets: Vec<_> = (0..32).map(|host| intake.admit(&of(1, host)).unwrap()).collect();
        assert!(intake.admit(&of(1, 99)).is_err());
        assert!(intake.admit(&of(2, 1)).is_ok());
        drop(tickets);
    }

    #[test]
    fn all_together_have_a_bound() {
        let intake = Intake::bodies();
        let peers: Vec<_> = (0..=255).map(|last| Peer::Ip([10, 0, 0, last].into())).collect();
        let tickets: Vec<_> =
            (0..IN_ALL).map(|n| intake.admit(&peers[n % peers.len()]).unwrap()).collect();
        assert!(intake.admit(&Peer::Ip([10, 0, 1, 1].into())).is_err());
        drop(tickets);
    }
}
