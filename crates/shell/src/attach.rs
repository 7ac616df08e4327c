//! The way through a controller.

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
    Conversation, Error, Result, Word,
    conversation::{Carrier, UNDER_WAY},
};

/// How long a controller may take to be connected to.
const CONNECT: Duration = Duration::from_secs(3);

/// A connection to a controller at `host:port`.
pub async fn dial(address: &str, tls: Option<Arc<ClientConfig>>) -> Result<Channel> {
    let unreachable = |source| Error::Dial { address: address.to_owned(), source };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(unreachable)?;
    let endpoint = endpoint.connect_timeout(CONNECT);
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
/// `dress` adds what the call needs besides, such as credentials.
pub async fn attach(
    channel: Channel,
    token: String,
    dress: impl FnOnce(&mut Request<ReceiverStream<Piece>>),
) -> Result<Conversation> {
    let (pieces, stream) = mpsc::channel(UNDER_WAY);
    let open = Piece { kind: Some(Kind::Open(Open { token })) };
    // There is room: nothing has been sent yet.
    let _ = pieces.try_send(open);
    let mut request = Request::new(ReceiverStream::new(stream));
    dress(&mut request);
    let attached = ShellServiceClient::new(channel).attach(request).await;
    let replies = attached.map_err(|status| Error::Relay(Box::new(status)))?.into_inner();
    let (heard, incoming) = mpsc::channel(UNDER_WAY);
    let (outgoing, said) = mpsc::channel(UNDER_WAY);
    let (_, open) = watch::channel(true);
    let carrier = Carrier(tokio::spawn(carry(replies, heard, said, pieces)));
    Ok(Conversation { incoming, outgoing, understood: true, open, carrier })
}

async fn carry(
    mut replies: Streaming<Piece>,
    heard: mpsc::Sender<Word>,
    mut said: mpsc::Receiver<Word>,
    pieces: mpsc::Sender<Piece>,
) {
    let sending = async move {
        while let Some(word) = said.recv().await {
            if pieces.send(word.into_piece()).await.is_err() {
                break;
            }
        }
    };
    let receiving = async {
        while let Some(Ok(piece)) = replies.next().await {
            let Ok(word) = Word::from_piece(piece) else { break };
            // Who does not listen any more may still have something to say.
            let _ = heard.send(word).await;
        }
        drop(heard);
    };
    // The relay ends when it has passed everything on.
    tokio::pin!(sending);
    tokio::select! {
        () = receiving => {}
        () = async { (&mut sending).await; std::future::pending().await } => {}
    }
}
