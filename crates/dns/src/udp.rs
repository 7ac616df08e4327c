//! Questions by UDP.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Reply, Responder, Transport},
    limit::{RateLimit, Verdict},
};

/// Largest question that is looked at; larger ones are no good.
const LARGEST: usize = 4096;

/// Rest after an error, as when the network is down.
const REST: Duration = Duration::from_millis(100);

/// The listener.
pub(crate) struct Udp {
    pub(crate) socket: UdpSocket,
    pub(crate) responder: Arc<Responder>,
    pub(crate) limit: RateLimit,
}

impl Udp {
    /// Answers until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut buffer = vec![0; LARGEST];
        while let Some(received) =
            stop.run_until_cancelled(self.socket.recv_from(&mut buffer)).await
        {
            match received {
                Ok((length, peer)) => self.answer(&buffer[..length], peer).await,
                // Of an answer that somebody did not want.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    tracing::warn!(%error, "DNS: a question could not be received");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    async fn answer(&self, packet: &[u8], peer: SocketAddr) {
        // Nobody is there: this would be an answer into the void.
        if peer.port() == 0 {
            return;
        }
        let reply = match self.limit.judge(peer.ip()) {
            Verdict::Answer => self.responder.reply(packet, Transport::Udp, peer.ip()),
            Verdict::ComeByTcp => {
                self.responder.counts.limited();
                self.responder.come_by_tcp(packet)
            }
            Verdict::Ignore => {
                self.responder.counts.limited();
                return;
            }
        };
        if let Reply::Message(bytes) = reply
            && let Err(error) = self.socket.send_to(&bytes, peer).await
        {
            tracing::debug!(%peer, %error, "an answer could not be sent");
        }
    }
}
