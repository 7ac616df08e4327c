//! One UDP socket for each address of this machine that is offered.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use str0m::net::Transmit;
use tokio::{net::UdpSocket, sync::mpsc, task::JoinSet};

use crate::{Error, Result};

/// Size of the buffer for a packet, larger than any of WebRTC.
const MAX_PACKET: usize = 2048;
/// Packets that wait to be looked at; the kernel keeps more.
const QUEUE: usize = 64;
/// Bytes that the kernel is asked to keep, where it counts twice what is in a
/// packet. More than str0m has under way, which is 128 KiB: its SCTP looks at
/// all of that for every packet, so that more of it makes everything slower.
const RECEIVE_BUFFER: usize = 512 * 1024;

/// A packet, from where and to where.
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Sockets {
    sockets: Vec<(SocketAddr, Arc<UdpSocket>)>,
    packets: mpsc::Receiver<Packet>,
    _readers: JoinSet<()>,
}

impl Sockets {
    /// Opens one at each address where that works.
    pub(crate) async fn open(addresses: &[IpAddr]) -> Result<Self> {
        let (sender, packets) = mpsc::channel(QUEUE);
        let mut sockets = Vec::new();
        let mut readers = JoinSet::new();
        for address in addresses {
            let Ok(socket) = UdpSocket::bind((*address, 0)).await else { continue };
            let Ok(local) = socket.local_addr() else { continue };
            // With less, bursts are lost, and sent again much later.
            let _ = set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
            let socket = Arc::new(socket);
            readers.spawn(read(Arc::clone(&socket), local, sender.clone()));
            sockets.push((local, socket));
        }
        if sockets.is_empty() {
            return Err(Error::NoAddress);
        }
        Ok(Self { sockets, packets, _readers: readers })
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().map(|(address, _)| *address)
    }

    /// Sends a packet; what cannot be sent is lost, as packets are.
    pub(crate) async fn send(&self, packet: &Transmit) {
        let Transmit { source, destination, contents, .. } = packet;
        let socket = self.sockets.iter().find(|(address, _)| address == source);
        if let Some((_, socket)) = socket
            && let Err(error) = socket.send_to(contents, *destination).await
        {
            tracing::trace!(%source, %destination, %error, "packet not sent");
        }
    }

    pub(crate) async fn receive(&mut self) -> Option<Packet> {
        self.packets.recv().await
    }
}

async fn read(socket: Arc<UdpSocket>, destination: SocketAddr, packets: mpsc::Sender<Packet>) {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                if packets.send(Packet { source, destination, bytes }).await.is_err() {
                    return;
                }
            }
            // Somebody refused what was sent before; the socket is well.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}
