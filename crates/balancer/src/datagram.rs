//! The public end of datagrams. A socket that has every address of the machine
//! is told with each datagram which of them was asked, and answers from that
//! one: a client that hears from another takes it for a stranger.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
};

use nix::{
    libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg,
        setsockopt, sockopt,
    },
};
use tokio::{io::Interest, net::UdpSocket};

/// Local address that a datagram was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LocalAddress {
    /// The only one that the socket has.
    Only,
    V4(Ipv4Addr),
    /// IPv6 address, with the interface if it is link-local.
    V6(Ipv6Addr, u32),
}

pub(crate) struct Public {
    socket: UdpSocket,
    every: bool,
}

impl Public {
    /// Takes over a socket that is bound to this address.
    pub(crate) fn new(socket: UdpSocket, address: IpAddr) -> io::Result<Self> {
        let every = address.is_unspecified();
        if every && address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else if every {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        Ok(Self { socket, every })
    }

    /// Receives a datagram; returns its sender and the address it was sent to.
    pub(crate) async fn receive(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<(usize, SocketAddr, LocalAddress)> {
        if !self.every {
            let (count, client) = self.socket.recv_from(buffer).await?;
            return Ok((count, client, LocalAddress::Only));
        }
        self.socket.async_io(Interest::READABLE, || receive(&self.socket, buffer)).await
    }

    /// Answers from the address that was asked.
    pub(crate) async fn send(
        &self,
        datagram: &[u8],
        client: SocketAddr,
        asked: LocalAddress,
    ) -> io::Result<()> {
        if asked == LocalAddress::Only {
            return self.socket.send_to(datagram, client).await.map(drop);
        }
        self.socket
            .async_io(Interest::WRITABLE, || send(&self.socket, datagram, client, asked))
            .await
    }
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, LocalAddress)> {
    let mut slices = [IoSliceMut::new(buffer)];
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let mut asked = LocalAddress::Only;
    for note in message.cmsgs()? {
        match note {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                asked = LocalAddress::V4(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()));
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                let near = address.is_unicast_link_local();
                asked = LocalAddress::V6(address, if near { info.ipi6_ifindex } else { 0 });
            }
            _ => {}
        }
    }
    let sender = message.address.as_ref();
    let four = sender.and_then(|sender| sender.as_sockaddr_in()).map(|it| SocketAddrV4::from(*it));
    let six = sender.and_then(|sender| sender.as_sockaddr_in6()).map(|it| SocketAddrV6::from(*it));
    let client = four.map(SocketAddr::from).or(six.map(SocketAddr::from));
    let client = client.ok_or_else(|| io::Error::other("a datagram from nobody"))?;
    Ok((message.bytes, client, asked))
}

fn send(
    socket: &UdpSocket,
    datagram: &[u8],
    client: SocketAddr,
    asked: LocalAddress,
) -> io::Result<()> {
    let (four, six);
    let note = match asked {
        LocalAddress::Only => None,
        LocalAddress::V4(address) => {
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
            let nothing = libc::in_addr { s_addr: 0 };
            four = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: nothing };
            Some(ControlMessage::Ipv4PacketInfo(&four))
        }
        LocalAddress::V6(address, interface) => {
            let source = libc::in6_addr { s6_addr: address.octets() };
            six = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: interface };
            Some(ControlMessage::Ipv6PacketInfo(&six))
        }
    };
    let (slices, client) = ([IoSlice::new(datagram)], SockaddrStorage::from(client));
    let flags = MsgFlags::MSG_DONTWAIT;
    sendmsg(socket.as_raw_fd(), &slices, note.as_slice(), flags, Some(&client))?;
    Ok(())
}
