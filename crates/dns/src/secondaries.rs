//! Tells secondaries that a zone has changed: RFC 1996.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::RecordType,
};
use tokio::{net::UdpSocket, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{directory::Directory, zone::Zone};

/// Time for an answer; longer after each try.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: u32 = 5;

/// Tells one secondary of every new version until told to stop. One that does
/// not answer finds out by itself, when its time to look has come.
pub(crate) async fn keep_informed(
    secondary: SocketAddr,
    directory: Arc<Directory>,
    stop: CancellationToken,
) {
    let mut versions = directory.versions();
    let informing = async {
        while versions.changed().await.is_ok() {
            versions.mark_unchanged();
            let Some(zones) = directory.zones() else { continue };
            for zone in zones.iter() {
                match inform(secondary, zone).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::warn!(%secondary, zone = %zone.origin, "the name server does not answer");
                    }
                    Err(error) => {
                        tracing::warn!(%secondary, zone = %zone.origin, %error, "the name server could not be told of a change");
                    }
                }
            }
        }
    };
    let _ = stop.run_until_cancelled(informing).await;
}

/// Tells of one zone; whether that was heard.
async fn inform(secondary: SocketAddr, zone: &Zone) -> io::Result<bool> {
    let any = match secondary.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(secondary).await?;
    let notice = notice(zone);
    let bytes = notice.to_vec().map_err(io::Error::other)?;
    for tried in 1..=TRIES {
        socket.send(&bytes).await?;
        let answered = timeout(ANSWER_TIMEOUT * tried, answer(&socket, notice.metadata.id)).await;
        if let Ok(Ok(())) = answered {
            return Ok(true);
        }
    }
    Ok(false)
}

fn notice(zone: &Zone) -> Message {
    let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Notify);
    message.metadata.authoritative = true;
    message.add_query(Query::query(zone.origin.clone(), RecordType::SOA));
    message.add_answer(zone.soa());
    message
}

/// Waits for the answer with this number.
async fn answer(socket: &UdpSocket, id: u16) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = Message::from_vec(&buffer[..length]);
        let is_it = |message: &Message| {
            message.metadata.id == id && message.metadata.message_type == MessageType::Response
        };
        if answer.is_ok_and(|message| is_it(&message)) {
            return Ok(());
        }
    }
}
