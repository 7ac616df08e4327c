//! Addresses of guests: a server of DHCP in the network namespace of each
//! machine, which has one address to give, for good. A guest that has it needs
//! the server no more, so it goes on while the crm is away.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use dhcproto::{
    Decodable, Encodable,
    v4::{DhcpOption, Flags, HType, Message, MessageType, Opcode, OptionCode},
};
use parking_lot::Mutex;
use tokio::{net::UdpSocket, task::JoinHandle};

use crate::{Result, error::During, platform::network};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// Longest datagram: no client sends more.
const DATAGRAM: usize = 1500;
/// Time for which an address is given: for ever.
const LEASE: u32 = u32::MAX;

/// Address that a guest is given, with what it needs beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    /// Address of the guest's network card.
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
    pub(super) mask: Ipv4Addr,
    pub(super) gateway: Ipv4Addr,
    /// Address of the server itself.
    pub(super) server: Ipv4Addr,
    pub(super) name_servers: Vec<Ipv4Addr>,
}

/// The servers of all machines, by the names of those.
#[derive(Default)]
pub(super) struct Servers(Mutex<HashMap<String, Server>>);

struct Server {
    namespace: PathBuf,
    lease: Lease,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Servers {
    /// Sees that a machine's server runs. One in a namespace that was made anew
    /// has to be ended before.
    pub(super) async fn provide(
        &self,
        machine: &str,
        namespace: &Path,
        lease: Lease,
    ) -> Result<()> {
        let same = |server: &Server| {
            server.namespace == namespace && server.lease == lease && !server.task.is_finished()
        };
        if self.0.lock().get(machine).is_some_and(same) {
            return Ok(());
        }
        self.end(machine).await;
        let path = namespace.to_owned();
        let socket = network::blocking(move || network::guest_socket(&path, SERVER_PORT)).await?;
        let socket = UdpSocket::from_std(socket).during("listening to a machine")?;
        let task = tokio::spawn(serve(socket, lease.clone()));
        let server = Server { namespace: namespace.to_owned(), lease, task };
        self.0.lock().insert(machine.to_owned(), server);
        Ok(())
    }

    /// Ends a machine's server; its port is free afterwards.
    pub(super) async fn end(&self, machine: &str) {
        let ended = self.0.lock().remove(machine);
        if let Some(mut server) = ended {
            server.task.abort();
            let _ = (&mut server.task).await;
        }
    }
}

async fn serve(socket: UdpSocket, lease: Lease) {
    let mut datagram = [0; DATAGRAM];
    loop {
        let Ok((length, _)) = socket.recv_from(&mut datagram).await else { return };
        let Some((answer, to)) = lease.answer(&datagram[..length]) else { continue };
        if let Err(error) = socket.send_to(&answer, to).await {
            tracing::debug!(%error, "a guest was not told its address");
        }
    }
}

impl Lease {
    /// Returns what a client is answered, and where it is.
    fn answer(&self, datagram: &[u8]) -> Option<(Vec<u8>, SocketAddrV4)> {
        let asked = Message::from_bytes(datagram).ok()?;
        if asked.opcode() != Opcode::BootRequest
            || asked.htype() != HType::Eth
            || asked.hlen() != 6
            || asked.chaddr() != self.mac
        {
            return None;
        }
        let kind = self.reaction(&asked)?;
        let informed = asked.opts().msg_type() == Some(MessageType::Inform);
        let mut answer = Message::default();
        answer
            .set_opcode(Opcode::BootReply)
            .set_htype(HType::Eth)
            .set_xid(asked.xid())
            .set_flags(Flags::default().set_broadcast())
            .set_chaddr(&self.mac);
        let options = answer.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ServerIdentifier(self.server));
        if kind != MessageType::Nak {
            options.insert(DhcpOption::SubnetMask(self.mask));
            options.insert(DhcpOption::Router(vec![self.gateway]));
            if !self.name_servers.is_empty() {
                options.insert(DhcpOption::DomainNameServer(self.name_servers.clone()));
            }
            if !informed {
                options.insert(DhcpOption::AddressLeaseTime(LEASE));
                answer.set_yiaddr(self.address);
            }
        }
        let knows_itself = asked.ciaddr() == self.address && kind == MessageType::Ack;
        let to = if knows_itself { self.address } else { Ipv4Addr::BROADCAST };
        Some((answer.to_vec().ok()?, SocketAddrV4::new(to, CLIENT_PORT)))
    }

    /// Returns the kind of answer to a question; none where none is due.
    fn reaction(&self, asked: &Message) -> Option<MessageType> {
        match asked.opts().msg_type()? {
            MessageType::Discover => Some(MessageType::Offer),
            MessageType::Inform => Some(MessageType::Ack),
            MessageType::Request => {
                let server = match asked.opts().get(OptionCode::ServerIdentifier) {
                    Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
                    _ => None,
                };
                if server.is_some_and(|server| server != self.server) {
                    return None;
                }
                let wanted = match asked.opts().get(OptionCode::RequestedIpAddress) {
                    Some(DhcpOption::RequestedIpAddress(wanted)) => *wanted,
                    _ => asked.ciaddr(),
                };
                Some(if wanted == self.address { MessageType::Ack } else { MessageType::Nak })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 101, 1, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 101, 1, 254);

    fn lease() -> Lease {
        Lease {
            mac: MAC,
            address: ADDRESS,
            mask: Ipv4Addr::new(255, 255, 255, 0),
            gateway: Ipv4Addr::new(10, 101, 1, 1),
            server: SERVER,
            name_servers: vec![Ipv4Addr::new(9, 9, 9, 9)],
        }
    }

    fn asked(kind: MessageType, options: &[DhcpOption]) -> Message {
        let mut message = Message::default();
        message.set_xid(7).set_chaddr(&MAC);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        message
    }

    fn answer(message: &Message) -> Option<(Message, Ipv4Addr)> {
        let (answer, to) = lease().answer(&message.to_vec().unwrap())?;
        assert_eq!(to.port(), CLIENT_PORT);
        Some((Message::from_bytes(&answer).unwrap(), *to.ip()))
    }

    #[test]
    fn a_guest_gets_its_address_and_no_other() {
        let (offer, to) = answer(&asked(MessageType::Discover, &[])).unwrap();
        assert_eq!((offer.yiaddr(), offer.xid(), to), (ADDRESS, 7, Ipv4Addr::BROADCAST));
        assert_eq!(offer.opts().msg_type(), Some(MessageType::Offer));
        let wants = |address| {
            let options =
                [DhcpOption::RequestedIpAddress(address), DhcpOption::ServerIdentifier(SERVER)];
            answer(&asked(MessageType::Request, &options)).unwrap().0
        };
        let given = wants(ADDRESS);
        assert_eq!((given.yiaddr(), given.opts().msg_type()), (ADDRESS, Some(MessageType::Ack)));
        let router = given.opts().get(OptionCode::Router);
        assert_eq!(router, Some(&DhcpOption::Router(vec![Ipv4Addr::new(10, 101, 1, 1)])));
        let refused = wants(Ipv4Addr::new(10, 101, 2, 2));
        assert_eq!(refused.opts().msg_type(), Some(MessageType::Nak));
        assert!(refused.yiaddr().is_unspecified());
        let mut renewal = asked(MessageType::Request, &[]);
        renewal.set_ciaddr(ADDRESS);
        assert_eq!(answer(&renewal).unwrap().1, ADDRESS, "it is told where it is");
    }

    #[test]
    fn unknown_guests_and_malformed_requests_are_not_answered() {
        let mut stranger = asked(MessageType::Discover, &[]);
        stranger.set_chaddr(&[2; 6]);
        assert!(answer(&stranger).is_none());
        let other = [DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 101, 1, 9))];
        assert!(answer(&asked(MessageType::Request, &other)).is_none());
        assert!(answer(&asked(MessageType::Release, &[])).is_none());
        assert!(answer(&asked(MessageType::Offer, &[])).is_none());
        let whole = asked(MessageType::Discover, &[]).to_vec().unwrap();
        for length in 0..whole.len() {
            let _ = lease().answer(&whole[..length]);
        }
        assert!(lease().answer(&[0xff; 600]).is_none());
    }
}
