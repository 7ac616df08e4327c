//! Conversation through a controller.

use std::{io, sync::Arc, time::Duration};

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use selvage_api::selvage::shell::{
    Open, Piece, piece::Kind, shell_service_client::ShellServiceClient,
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    Conversation, Error, Frame, Result,
    conversation::{CHANNEL_CAPACITY, Carrier},
};

/// Timeout of connecting to a controller.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to a controller at `host:port`.
pub async fn dial(address: &str, tls: Option<Arc<ClientConfig>>) -> Result<Channel> {
    let unreachable = |source| Error::Dial { address: address.to_owned(), source };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(unreachable)?;
    let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
    let connected = match tls {
        None => endpoint.connect().await,
        Some(tls) => {
            let (connector, address) = (TlsConnector::from(tls), address.to_owned());
            let connector = tower::service_fn(move |_: http::Uri| {
                let (connector, address) = (connector.clone(), address.clone());
                async move { encrypted(&connector, &address).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    connected.map_err(unreachable)
}

async fn encrypted(
    connector: &TlsConnector,
    address: &str,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    connector.connect(name, stream).await
}

/// Meets the other end at a controller: returns when it is there too.
/// `prepare` adds what the call needs besides, such as credentials.
pub async fn attach(
    channel: Channel,
    token: String,
    prepare: impl FnOnce(&mut Request<ReceiverStream<Piece>>),
) -> Result<Conversation> {
    let (pieces, stream) = mpsc::channel(CHANNEL_CAPACITY);
    let open = Piece { kind: Some(Kind::Open(Open { token })) };
    // There is room: nothing has been sent yet.
    let _ = pieces.try_send(open);
    let mut request = Request::new(ReceiverStream::new(stream));
    prepare(&mut request);
    let attached = ShellServiceClient::new(channel).attach(request).await;
    let replies = attached.map_err(|status| Error::Relay(Box::new(status)))?.into_inner();
    let (received, incoming) = mpsc::channel(CHANNEL_CAPACITY);
    let (outgoing, outbound) = mpsc::channel(CHANNEL_CAPACITY);
    let (_, open) = watch::channel(true);
    let carrier = Carrier(tokio::spawn(carry(replies, received, outbound, pieces)));
    Ok(Conversation { incoming, outgoing, understood: true, open, carrier })
}

async fn carry(
    mut replies: Streaming<Piece>,
    received: mpsc::Sender<Frame>,
    mut outbound: mpsc::Receiver<Frame>,
    pieces: mpsc::Sender<Piece>,
) {
    let sending = async move {
        while let Some(frame) = outbound.recv().await {
            if pieces.send(frame.into_piece()).await.is_err() {
                break;
            }
        }
    };
    let receiving = async {
        while let Some(Ok(piece)) = replies.next().await {
            let Ok(frame) = Frame::from_piece(piece) else { break };
            // A peer that no longer receives may still send.
            let _ = received.send(frame).await;
        }
        drop(received);
    };
    // The relay ends when it has passed everything on.
    tokio::pin!(sending);
    tokio::select! {
        () = receiving => {}
        () = async { (&mut sending).await; std::future::pending().await } => {}
    }
}
