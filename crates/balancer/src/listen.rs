//! Sockets that clients reach.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt},
};

use crate::{Error, Protocol, datagram::Public, error::Result};

/// Connections that the kernel holds for us until we take them.
const BACKLOG: i32 = 4096;

/// Bytes of datagrams that the kernel holds for us.
const DATAGRAMS: usize = 4 * 1024 * 1024;

/// The sockets of one port, one for each address. Bound and not yet served:
/// dropping them undoes it.
pub(crate) enum Bound {
    Streams(Vec<tokio::net::TcpListener>),
    Datagrams(Vec<Public>),
}

impl Bound {
    pub(crate) fn new(addresses: &[IpAddr], port: u16, protocol: Protocol) -> Result<Self> {
        Ok(match protocol {
            Protocol::Tcp | Protocol::Http => {
                Self::Streams(each(addresses, port, protocol, stream)?)
            }
            Protocol::Udp => Self::Datagrams(each(addresses, port, protocol, datagrams)?),
        })
    }
}

fn each<T>(
    addresses: &[IpAddr],
    port: u16,
    protocol: Protocol,
    make: fn(SocketAddr) -> io::Result<T>,
) -> Result<Vec<T>> {
    let mut sockets = Vec::with_capacity(addresses.len());
    let mut missing = None;
    for address in addresses {
        match make(SocketAddr::new(*address, port)) {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(Error::Taken { port, protocol });
            }
            Err(error) => {
                let absent = Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT);
                let error = Error::Listen { port, protocol, address: *address, error };
                if !(absent && address.is_unspecified()) {
                    return Err(error);
                }
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if sockets.is_empty() => Err(error),
        _ => Ok(sockets),
    }
}

fn stream(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let socket = open(address, SocketType::STREAM)?;
    // Connections of the one before us may linger; the port is not in use.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    tokio::net::TcpListener::from_std(TcpListener::from(socket))
}

fn datagrams(address: SocketAddr) -> io::Result<Public> {
    let socket = open(address, SocketType::DGRAM)?;
    // A large buffer, so that no datagram is lost under load; without
    // privileges, up to the limit of the machine.
    if sockopt::set_socket_recv_buffer_size_force(&socket, DATAGRAMS).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(&socket, DATAGRAMS);
    }
    bind(&socket, &address)?;
    Public::new(tokio::net::UdpSocket::from_std(UdpSocket::from(socket))?, address.ip())
}

fn open(address: SocketAddr, kind: SocketType) -> io::Result<rustix::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}
