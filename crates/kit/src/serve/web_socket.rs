//! Web sockets: who asks for one is identified like everybody else, and then
//! the connection is the caller's and the page's.

use std::sync::Arc;

use axum::{body::Body, extract::Request};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};
use tonic::Status;

use super::{
    front::refuse,
    rpc::{Attention, Rpc},
};
use crate::identity::{Connection, Identity};

/// Longest message of a client.
const MAX_MESSAGE: usize = 256 * 1024;

/// A connection that speaks in messages.
pub type WebSocket = WebSocketStream<TokioIo<Upgraded>>;

/// Handler of a connection once it is there. It notes what the caller says,
/// which the caller's program does not by itself.
pub type SocketHandler = Box<dyn FnOnce(WebSocket, Attention) -> BoxFuture<'static, ()> + Send>;

/// Says what to talk about with a caller who asks with this query, or why
/// not to.
pub type WebSocketPage =
    Arc<dyn Fn(&Identity, &str) -> Result<SocketHandler, Status> + Send + Sync>;

/// Answers one who asks for a web socket.
pub(super) async fn answer(
    rpc: &Rpc,
    page: &WebSocketPage,
    mut request: Request<Body>,
) -> Response<Body> {
    let accept = match accept_key(request.headers()) {
        Ok(accept) => accept,
        Err(status) => return refuse(&status),
    };
    let Some(connection) = request.extensions().get::<Connection>().cloned() else {
        return refuse(&super::internal_error());
    };
    let caller = match rpc.identify_to_change(request.headers(), &connection).await {
        Ok(caller) => caller,
        Err(status) => return refuse(&status),
    };
    let talk = match page(&caller, request.uri().query().unwrap_or_default()) {
        Ok(talk) => talk,
        Err(status) => return refuse(&status),
    };
    let standing = rpc.standing(request.headers(), &connection, &caller);
    let attention = standing.attention();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(MAX_MESSAGE);
        config.max_frame_size = Some(MAX_MESSAGE);
        let io = TokioIo::new(upgraded);
        let socket = WebSocket::from_raw_socket(io, Role::Server, Some(config)).await;
        // Whoever lost the right to talk is hung up on.
        tokio::select! {
            () = talk(socket, attention) => {}
            status = standing.lost() => {
                tracing::info!(target: "audit", why = status.message(), "web socket ended");
            }
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, Status> {
    let has = |name: header::HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|it| it.trim().eq_ignore_ascii_case(word))
    };
    let asked = has(header::UPGRADE, "websocket") && has(header::CONNECTION, "upgrade");
    let known = has(header::SEC_WEBSOCKET_VERSION, "13");
    match headers.get(header::SEC_WEBSOCKET_KEY) {
        Some(key) if asked && known => HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
            .map_err(|_| super::internal_error()),
        _ => Err(Status::invalid_argument(
            "a web socket (version 13, over HTTP/1.1) must be asked for here",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_who_asks_for_a_web_socket_gets_one() {
        let mut headers = HeaderMap::new();
        assert!(accept_key(&headers).is_err());
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        // The example of RFC 6455.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        headers.insert(header::SEC_WEBSOCKET_KEY, key);
        assert_eq!(accept_key(&headers).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("8"));
        assert!(accept_key(&headers).is_err());
    }
}
