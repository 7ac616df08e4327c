//! Questions by TCP, each with its length in front.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use hickory_proto::op::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    answer::{Reply, Responder, Transport},
    limit::ConnectionLimit,
    transfer,
};

/// Rest after a connection that could not be taken, as when there are no more
/// files to be opened.
const REST: Duration = Duration::from_millis(100);

/// The listener.
pub(crate) struct Tcp {
    pub(crate) listener: TcpListener,
    pub(crate) responder: Arc<Responder>,
    pub(crate) limit: Arc<ConnectionLimit>,
    pub(crate) idle_timeout: Duration,
}

impl Tcp {
    /// Takes connections until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "DNS: a connection could not be taken");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            };
            // One too many is closed at once: who is real comes again.
            let Some(place) = self.limit.enter(peer.ip()) else {
                self.responder.counts.limited();
                continue;
            };
            let connection = Connection {
                stream,
                peer: peer.ip(),
                responder: Arc::clone(&self.responder),
                idle_timeout: self.idle_timeout,
            };
            let stop = stop.clone();
            connections.spawn(async move {
                let _place = place;
                // Nobody is interested in how it ended.
                let _ = stop.run_until_cancelled(connection.serve()).await;
            });
        }
        connections.close();
        connections.wait().await;
    }
}

struct Connection {
    stream: TcpStream,
    peer: IpAddr,
    responder: Arc<Responder>,
    idle_timeout: Duration,
}

impl Connection {
    /// Answers one question after the other.
    async fn serve(mut self) -> io::Result<()> {
        loop {
            let packet = timeout(self.idle_timeout, read(&mut self.stream)).await??;
            match self.responder.reply(&packet, Transport::Tcp, self.peer) {
                Reply::Silence => return Ok(()),
                Reply::Message(bytes) => self.write(&bytes).await?,
                Reply::Transfer { zone, metadata, query } => {
                    for message in transfer::messages(&zone, &metadata, &query) {
                        self.write(&encoded(&message)?).await?;
                    }
                }
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(self.idle_timeout, write(&mut self.stream, bytes)).await?
    }
}

fn encoded(message: &Message) -> io::Result<Vec<u8>> {
    message.to_vec().map_err(io::Error::other)
}

async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], bytes].concat();
    stream.write_all(&framed).await
}
