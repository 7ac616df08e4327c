//! The kernel's table of connections that it forwards: how many there
//! are, and to forget them. It is asked by netlink, in the few messages that
//! this takes.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
        setsockopt, socket, sockopt,
    },
    time::{TimeVal, TimeValLike},
};

use crate::{Error, Result, error::During, platform::PortForward};

/// Messages: the table of connections is the first subsystem.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// Their flags.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
/// Answers that end a conversation.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Attributes of a connection.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_STATE: u16 = 4;
const STATUS_MASK: u16 = 26;
/// The highest bits of an attribute's kind are not part of it.
const KIND: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
/// The destination is another than the client sees.
const LED_ON: u32 = 1 << 5;
const INTERNET: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// States of a tcp connection in which something may still come: from the
/// answer to its first packet until both sides have said that they are done.
const OPEN: std::ops::RangeInclusive<u8> = 2..=5;
const HEADER: usize = 16;
/// As large as the kernel makes the pieces of a list.
const PIECE: usize = 64 * 1024;
/// The kernel answers at once, or not at all.
const REPLY_TIMEOUT: i64 = 5;

/// A connection that the kernel forwards to another address than the client asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::platform) struct Entry {
    udp: bool,
    /// Address that the client sends to, and the one it gets to.
    public: SocketAddrV4,
    target: SocketAddrV4,
    /// Of tcp.
    state: Option<u8>,
    /// Name that the kernel knows it by.
    name: Vec<u8>,
}

impl Entry {
    /// Returns whether it came by this forward.
    pub(in crate::platform) fn is_of(&self, forward: &PortForward) -> bool {
        let asked = forward.public.ip().is_unspecified() || forward.public.ip() == self.public.ip();
        asked
            && self.udp == forward.udp
            && self.public.port() == forward.public.port()
            && self.target == forward.target
    }

    /// Returns whether it is more than remembered.
    pub(in crate::platform) fn is_open(&self) -> bool {
        self.udp || self.state.is_none_or(|state| OPEN.contains(&state))
    }

    /// Returns whether it comes to an end by itself, if it is left alone.
    pub(in crate::platform) fn wants_time(&self) -> bool {
        !self.udp && self.is_open()
    }
}

/// All connections that are forwarded elsewhere.
pub(in crate::platform) async fn list() -> Result<Vec<Entry>> {
    off_thread(|| {
        let mut body = vec![INTERNET, 0, 0, 0];
        // Kernels that cannot choose give all of them.
        push(&mut body, STATUS, &LED_ON.to_be_bytes());
        push(&mut body, STATUS_MASK, &LED_ON.to_be_bytes());
        let mut found = Vec::new();
        converse(&open()?, GET, REQUEST | DUMP, &body, |message| found.extend(entry(message)))?;
        Ok(found)
    })
    .await
}

/// Makes the kernel forget connections: what still comes of them is looked at
/// as if it were new.
pub(in crate::platform) async fn forget(entries: Vec<Entry>) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    off_thread(move || {
        let socket = open()?;
        for entry in entries {
            let mut body = vec![INTERNET, 0, 0, 0];
            push(&mut body, ORIGINAL | NESTED, &entry.name);
            match converse(&socket, DELETE, REQUEST | ACKNOWLEDGE, &body, |_| {}) {
                // It ended by itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    })
    .await
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    let ended = ended.map_err(|_| Error::state("asking the kernel was cut off"))?;
    ended.during("asking the kernel for its connections")
}

fn open() -> io::Result<OwnedFd> {
    let protocol = SockProtocol::NetlinkNetFilter;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(REPLY_TIMEOUT))?;
    Ok(socket)
}

/// Sends a message and reads what is answered until that ends.
fn converse(
    socket: &OwnedFd,
    what: u16,
    flags: u16,
    body: &[u8],
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(what.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let fd = socket.as_raw_fd();
    sendto(fd, &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut buffer = vec![0; PIECE];
    loop {
        let count = recv(fd, &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..count).unwrap_or_default();
        while let Some((kind, message, after)) = take(rest) {
            match kind {
                DONE => return Ok(()),
                ERROR => return outcome(message),
                _ => each(message),
            }
            rest = after;
        }
    }
}

/// The first message of several: its kind, what is in it, and the others.
fn take(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message = bytes.get(HEADER..length)?;
    Some((kind, message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// An error with the number 0 is none.
fn outcome(message: &[u8]) -> io::Result<()> {
    let number = message.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match number {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(-number)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn push(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values are a few bytes; none is ever too long.
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The value of an attribute.
fn find(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & KIND;
        let value = bytes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// Reads a connection; nothing if it is of another kind than ours.
fn entry(message: &[u8]) -> Option<Entry> {
    let attributes = message.get(4..)?;
    let status = find(attributes, STATUS)?.try_into().ok().map(u32::from_be_bytes)?;
    let name = find(attributes, ORIGINAL)?;
    let protocol = *find(find(name, 2)?, 1)?.first()?;
    if status & LED_ON == 0 || !matches!(protocol, TCP | UDP) {
        return None;
    }
    let state = find(attributes, PROTOCOL_STATE).and_then(|inner| find(find(inner, 1)?, 1));
    Some(Entry {
        udp: protocol == UDP,
        public: end(name, 2)?,
        target: end(find(attributes, REPLY)?, 1)?,
        state: state.and_then(|state| state.first().copied()),
        name: name.to_vec(),
    })
}

/// One end of a direction: 1 for where it comes from, 2 for where it goes.
fn end(direction: &[u8], which: u16) -> Option<SocketAddrV4> {
    let address: [u8; 4] = find(find(direction, 1)?, which)?.try_into().ok()?;
    let port: [u8; 2] = find(find(direction, 2)?, which + 1)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn nest(parts: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, value) in parts {
            push(&mut bytes, *kind, value);
        }
        bytes
    }

    fn direction(from: [u8; 4], to: [u8; 4], protocol: u8, ports: [u16; 2]) -> Vec<u8> {
        let addresses = nest(&[(1, from.to_vec()), (2, to.to_vec())]);
        let ports = ports.map(|port| port.to_be_bytes().to_vec());
        let [source, destination] = ports;
        let numbers = nest(&[(1, vec![protocol]), (2, source), (3, destination)]);
        nest(&[(1 | NESTED, addresses), (2 | NESTED, numbers)])
    }

    fn message(protocol: u8, state: u8) -> Vec<u8> {
        let (client, public, target) = ([203, 0, 113, 2], [203, 0, 113, 1], [10, 101, 1, 2]);
        let mut bytes = vec![INTERNET, 0, 0, 0];
        bytes.extend(nest(&[
            (ORIGINAL | NESTED, direction(client, public, protocol, [4000, 80])),
            (REPLY | NESTED, direction(target, client, protocol, [8080, 4000])),
            (STATUS, (LED_ON | 0xe).to_be_bytes().to_vec()),
            (PROTOCOL_STATE | NESTED, nest(&[(1 | NESTED, nest(&[(1, vec![state])]))])),
        ]));
        bytes
    }

    #[test]
    fn a_connection_is_known_by_its_way_and_open_until_both_are_done() {
        let found = entry(&message(TCP, 3)).unwrap();
        let forward = PortForward {
            udp: false,
            public: "0.0.0.0:80".parse().unwrap(),
            target: "10.101.1.2:8080".parse().unwrap(),
        };
        let own = PortForward { public: "203.0.113.1:80".parse().unwrap(), ..forward };
        assert!(found.is_of(&forward) && found.is_of(&own) && found.is_open(), "{found:?}");
        let others = [
            PortForward { udp: true, ..forward },
            PortForward { public: "0.0.0.0:81".parse().unwrap(), ..forward },
            PortForward { public: "203.0.113.9:80".parse().unwrap(), ..forward },
            PortForward { target: "10.101.1.3:8080".parse().unwrap(), ..forward },
        ];
        assert!(others.iter().all(|other| !found.is_of(other)));
        for state in [1, 6, 7, 8] {
            assert!(!entry(&message(TCP, state)).unwrap().is_open(), "{state}");
        }
        assert!(entry(&message(UDP, 0)).unwrap().is_open());
        assert_eq!(entry(&message(1, 0)), None, "neither tcp nor udp");
    }

    #[test]
    fn broken_messages_are_read_as_nothing() {
        let whole = message(TCP, 3);
        for end in 0..whole.len() {
            let _ = entry(&whole[..end]);
        }
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] = 0xff;
            let _ = entry(&bent);
        }
        assert_eq!(take(&[3, 0, 0, 0, 1, 0]), None);
        assert!(outcome(&[]).is_err() && outcome(&0_i32.to_ne_bytes()).is_ok());
    }
}
