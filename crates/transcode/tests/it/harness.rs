//! An inner service that answers as told and remembers what it was asked.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::Message;
use selvage_transcode::{Limits, Transcoder};
use tower::{Service, ServiceExt};

pub(crate) const LIMITS: Limits = Limits { max_request: 4096, max_response_unary: 4096 };

/// Stands for what the listener knows about the peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Peer(pub(crate) &'static str);

#[derive(Clone)]
pub(crate) enum Item {
    Data(Bytes),
    Trailers(HeaderMap),
    Broken(tonic::Status),
    /// Never comes.
    Wait,
}

#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) items: Vec<Item>,
}

pub(crate) fn header_map(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap())
        })
        .collect()
}

pub(crate) fn framed(message: &impl Message) -> Bytes {
    raw_frame(0, &message.encode_to_vec())
}

pub(crate) fn raw_frame(flags: u8, payload: &[u8]) -> Bytes {
    let mut frame = vec![flags];
    frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend(payload);
    frame.into()
}

impl Script {
    pub(crate) fn new(items: Vec<Item>) -> Self {
        let headers = header_map(&[("content-type", "application/grpc")]);
        Self { status: StatusCode::OK, headers, items }
    }

    pub(crate) fn ok<M: Message>(messages: &[M]) -> Self {
        let mut items: Vec<Item> = messages.iter().map(|m| Item::Data(framed(m))).collect();
        items.push(Item::Trailers(header_map(&[("grpc-status", "0")])));
        Self::new(items)
    }

    /// An error without any message: status in the head, no body.
    pub(crate) fn error(code: i32, message: &str) -> Self {
        let code = code.to_string();
        let head = [
            ("content-type", "application/grpc"),
            ("grpc-status", code.as_str()),
            ("grpc-message", message),
        ];
        Self { status: StatusCode::OK, headers: header_map(&head), items: Vec::new() }
    }

    pub(crate) fn error_after<M: Message>(messages: &[M], code: i32, message: &str) -> Self {
        let mut script = Self::ok(messages);
        script.items.pop();
        let code = code.to_string();
        script.items.push(Item::Trailers(header_map(&[
            ("grpc-status", code.as_str()),
            ("grpc-message", message),
        ])));
        script
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(name, HeaderValue::from_str(value).unwrap());
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) verb: http::Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) peer: Option<Peer>,
    /// The only message, without its frame.
    pub(crate) message: Bytes,
}

#[derive(Clone)]
pub(crate) struct Inner {
    script: Script,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    /// Reply bodies that were dropped.
    pub(crate) dropped: Arc<AtomicUsize>,
}

struct CountsDrop(Arc<AtomicUsize>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service<Request<tonic::body::Body>> for Inner {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let inner = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            assert_eq!(body[0], 0, "uncompressed");
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            assert_eq!(length, body.len() - 5, "exactly one frame");
            inner.seen.lock().unwrap().push(Seen {
                verb: parts.method,
                path: parts.uri.path().to_owned(),
                headers: parts.headers,
                peer: parts.extensions.get::<Peer>().cloned(),
                message: body.slice(5..),
            });
            Ok(inner.reply())
        })
    }
}

impl Inner {
    fn reply(&self) -> Response<tonic::body::Body> {
        let guard = CountsDrop(self.dropped.clone());
        let items = stream::iter(self.script.items.clone()).then(move |item| {
            let _ = &guard;
            async move {
                match item {
                    Item::Data(data) => Ok(Frame::data(data)),
                    Item::Trailers(trailers) => Ok(Frame::trailers(trailers)),
                    Item::Broken(status) => Err(status),
                    Item::Wait => std::future::pending().await,
                }
            }
        });
        let mut response = Response::new(tonic::body::Body::new(StreamBody::new(Box::pin(items))));
        *response.status_mut() = self.script.status;
        *response.headers_mut() = self.script.headers.clone();
        response
    }
}

pub(crate) struct Fixture {
    pub(crate) inner: Inner,
    pub(crate) transcoder: Transcoder<Inner>,
}

pub(crate) fn fixture(script: Script) -> Fixture {
    let inner = Inner { script, seen: Arc::default(), dropped: Arc::default() };
    Fixture { transcoder: Transcoder::new(inner.clone(), LIMITS), inner }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }
}

impl Fixture {
    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.transcoder.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.send(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.answer(post(path, "application/json", body)).await
    }

    pub(crate) fn last(&self) -> Seen {
        self.inner.seen.lock().unwrap().last().expect("inner service was called").clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.inner.seen.lock().unwrap().len()
    }
}

pub(crate) fn post(path: &str, content_type: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", content_type).body(body.into()).unwrap()
}

pub(crate) fn verb(verb: &str, path: &str) -> Request<Body> {
    Request::builder().method(verb).uri(path).body(Body::empty()).unwrap()
}

/// The enveloped messages of a Connect stream: flags and payload.
pub(crate) fn envelopes(mut body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while !body.is_empty() {
        let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
        found.push((body[0], body[5..5 + length].to_vec()));
        body = &body[5 + length..];
    }
    found
}
