//! Input of strangers for the fuzzer. Not for anything else.

use std::{net::Ipv4Addr, sync::Arc, sync::LazyLock};

use hickory_proto::{op::Message, rr::Name};
use selvage_kit::clock::SystemClock;

use crate::{
    answer::{Reply, Responder, Transport},
    directory::{Directory, Settings},
};

/// Nobody whom the zones are for.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Largest answer by UDP.
const LIMIT: usize = 1232;

static RESPONDER: LazyLock<Option<Responder>> = LazyLock::new(|| {
    let settings = Settings {
        origins: vec![Name::from_ascii("edge.example.").ok()?],
        ttl: 10,
        nameservers: Vec::new(),
        addresses: vec![Ipv4Addr::new(192, 0, 2, 53).into()],
    };
    let directory = Directory::new(settings, Arc::new(SystemClock)).ok()?;
    directory.publish();
    Some(Responder::new(directory, &[]))
});

/// Answers a packet: with a message that others can read and that is no longer
/// than it may be, or not at all.
#[allow(clippy::panic, reason = "what the fuzzer looks for")]
pub fn packet(bytes: &[u8]) {
    let Some(responder) = &*RESPONDER else { panic!("no responder") };
    for transport in [Transport::Udp, Transport::Tcp] {
        match responder.reply(bytes, transport, STRANGER.into()) {
            Reply::Silence => {}
            Reply::Message(reply) => {
                assert!(transport == Transport::Tcp || reply.len() <= LIMIT);
                let read = Message::from_vec(&reply);
                assert!(read.is_ok_and(|read| read.metadata.id.to_be_bytes() == bytes[..2]));
            }
            Reply::Transfer { .. } => panic!("a stranger got a zone"),
        }
    }
    let advice = responder.come_by_tcp(bytes);
    assert!(!matches!(advice, Reply::Message(reply) if reply.len() > 512));
}
