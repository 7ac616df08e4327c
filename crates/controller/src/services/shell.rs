//! Both sides of a relayed command: calls that last as long as it does, and
//! web sockets for browsers.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use selvage_api::selvage::shell::shell_service_server::ShellService;
use selvage_api::selvage::shell::{Piece, piece::Kind};
use selvage_kit::identity::Identity;
use selvage_kit::serve::{Attention, SocketHandler, WebSocket, WebSocketPage};
use selvage_shell::Frame;
use tokio_stream::wrappers::ReceiverStream;
use tokio_tungstenite::tungstenite::Message;
use tonic::{Request, Response, Status, Streaming};

use super::{Api, Reply, Streamed};
use crate::controller::Controller;
use crate::relay::Seat;

/// Path at which browsers open their web sockets.
pub const WEB_SOCKET: &str = "/selvage/v1/shell";
/// Timeout of the first piece.
const FIRST: Duration = Duration::from_secs(10);
/// Interval at which a browser is asked for a sign of life.
const PING: Duration = Duration::from_secs(30);

#[tonic::async_trait]
impl ShellService for Api {
    type AttachStream = Streamed<Piece>;

    async fn attach(&self, request: Request<Streaming<Piece>>) -> Reply<Self::AttachStream> {
        let identity = request.extensions().get::<Identity>().cloned();
        let identity = identity.unwrap_or_else(Identity::anonymous);
        let mut pieces = request.into_inner();
        let first = tokio::time::timeout(FIRST, pieces.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no first piece came"))??;
        let Some(Kind::Open(open)) = first.and_then(|piece| piece.kind) else {
            return Err(Status::invalid_argument("open: the first piece must be this"));
        };
        let seat = self.controller.memory.relays.take(&open.token, &identity)?;
        seat.taken().await?;
        let Seat { outgoing, incoming, .. } = seat;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    piece = pieces.next() => {
                        let Some(Ok(piece)) = piece else { return };
                        if outgoing.send(piece).await.is_err() {
                            return;
                        }
                    }
                    () = outgoing.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(incoming).map(Ok).boxed()))
    }
}

impl Controller {
    /// Gives browsers what others get by [`ShellService`].
    pub fn shell_page(self: &Arc<Self>) -> WebSocketPage {
        let controller = Arc::clone(self);
        Arc::new(move |caller: &Identity, query: &str| {
            let mut pairs = url::form_urlencoded::parse(query.as_bytes());
            let token = pairs.find(|(name, _)| name == "token").map(|(_, token)| token);
            let token = token.ok_or_else(|| Status::invalid_argument("token: there is none"))?;
            let seat = controller.memory.relays.take(&token, caller)?;
            let handler: SocketHandler =
                Box::new(move |socket, attention| Box::pin(converse(seat, socket, attention)));
            Ok(handler)
        })
    }
}

/// Carries a browser's side of a conversation.
async fn converse(seat: Seat, mut socket: WebSocket, attention: Attention) {
    if let Err(error) = seat.taken().await {
        let exit = Frame::Exit { code: 1, reason: error.to_string() };
        let _ = socket.send(message(exit)).await;
        let _ = socket.close(None).await;
        return;
    }
    let Seat { outgoing, mut incoming, .. } = seat;
    let (mut sink, mut stream) = socket.split();
    let reading = async {
        while let Some(Ok(said)) = stream.next().await {
            let word = match said {
                Message::Binary(bytes) => Frame::Data(bytes),
                Message::Text(text) => match Frame::from_json(&text) {
                    Ok(word) => word,
                    Err(_) => return,
                },
                Message::Close(_) => return,
                _ => continue,
            };
            attention.note();
            if outgoing.send(word.into_piece()).await.is_err() {
                return;
            }
        }
    };
    let writing = async {
        let mut ping = tokio::time::interval(PING);
        loop {
            let message = tokio::select! {
                piece = incoming.recv() => match piece.map(Frame::from_piece) {
                    Some(Ok(word)) => message(word),
                    _ => return,
                },
                _ = ping.tick() => Message::Ping(Default::default()),
            };
            if sink.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    let _ = sink.close().await;
}

fn message(word: Frame) -> Message {
    match word.to_json() {
        Some(text) => Message::text(text),
        None => match word {
            Frame::Data(bytes) | Frame::Errors(bytes) => Message::Binary(bytes),
            _ => Message::Ping(Default::default()),
        },
    }
}
