//! REST replies: one JSON body, or a stream of them.

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{Method as Verb, Request, Response, StatusCode, header, request::Parts};
use prost_reflect::DynamicMessage;
use tonic::Code;
use tower::{BoxError, Service};

use crate::{
    Dialect, Limits,
    failure::Failure,
    grpc::{self, Event, Frames, Reply},
    headers, media, request,
    route::{Matched, Route},
    service::read_body,
};

pub(crate) async fn serve<S, B>(
    inner: S,
    limits: Limits,
    matched: Matched,
    parts: Parts,
    body: B,
) -> Response<Body>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let route = matched.route;
    let without_body = parts.method == Verb::HEAD;
    let response = match call(inner, limits, &matched, parts, body).await {
        Ok(reply) if route.method.server_streaming => stream_response(route, reply).await,
        Ok(reply) => match unary_response(route, reply).await {
            Ok(response) => response,
            Err(failure) => route.dialect.error_response(&failure),
        },
        Err(Refused::Request(failure)) => route.dialect.error_response(&failure),
        Err(Refused::Call(failure)) if route.method.server_streaming => {
            failed_stream(route.dialect, &failure)
        }
        Err(Refused::Call(failure)) => route.dialect.error_response(&failure),
    };
    if without_body { response.map(|_| Body::empty()) } else { response }
}

/// Source of a refusal: we, before the call, or the inner service.
enum Refused {
    Request(Failure),
    Call(Failure),
}

impl From<crate::Error> for Refused {
    fn from(error: crate::Error) -> Self {
        Self::Request(error.into())
    }
}

async fn call<S, B>(
    inner: S,
    limits: Limits,
    matched: &Matched,
    parts: Parts,
    body: B,
) -> Result<Reply, Refused>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let body = if matched.route.binding.body.is_empty() {
        Bytes::new()
    } else {
        media::require_json(&parts.headers)?;
        media::require_identity(&parts.headers, "content-encoding")?;
        read_body(&parts.headers, body, limits.max_request).await?
    };
    let message = request::rest_message(matched, parts.uri.query(), &body)?;
    drop(body);
    let timeout = headers::rest_timeout(&parts.headers)?;
    let inner_headers = headers::for_inner(&parts, "rest", timeout);
    let (path, message) = (&matched.route.method.path, grpc::single(&message));
    grpc::call(inner, path, inner_headers, parts.extensions, message, limits.max_response_unary)
        .await
        .map_err(Refused::Call)
}

async fn unary_response(route: &Route, reply: Reply) -> Result<Response<Body>, Failure> {
    let unary = reply.unary().await?;
    let message = decode(route, &unary.message)?;
    let body = route.dialect.reply(&message, &route.binding.response_body).map_err(unwritable)?;
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers::pass_on(&unary.headers, headers, "");
    headers::pass_on(&unary.trailers, headers, "grpc-trailer-");
    headers.insert(header::CONTENT_TYPE, media::JSON);
    Ok(response)
}

fn decode(route: &Route, message: &Bytes) -> Result<DynamicMessage, Failure> {
    DynamicMessage::decode(route.method.output.clone(), message.clone()).map_err(|error| {
        tracing::error!(method = route.method.path, %error, "inner reply does not decode");
        Failure::new(Code::Internal, "the service's reply could not be decoded")
    })
}

fn unwritable(error: serde_json::Error) -> Failure {
    tracing::error!(%error, "inner reply has no JSON form");
    Failure::new(Code::Internal, format!("the service's reply has no JSON form: {error}"))
}

/// Waits for the first event, which decides the HTTP status, then streams.
async fn stream_response(route: &'static Route, mut reply: Reply) -> Response<Body> {
    let first = match reply.frames.next().await {
        Event::Failed(failure) => {
            return failed_stream(route.dialect, &grpc::with_headers(failure, &reply.headers));
        }
        event => event,
    };
    let state = Streaming { route, frames: reply.frames, next: Some(first) };
    let chunks = stream::unfold(Some(state), |state| async {
        let mut state = state?;
        let (chunk, last) = state.chunk().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), (!last).then_some(state)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    headers::pass_on(&reply.headers, response.headers_mut(), "");
    response.headers_mut().insert(header::CONTENT_TYPE, media::JSON);
    response
}

struct Streaming {
    route: &'static Route,
    frames: Frames,
    /// The event that decided the status, not yet written.
    next: Option<Event>,
}

impl Streaming {
    /// The next chunk and whether it is the last one; `None` at a good end.
    async fn chunk(&mut self) -> Option<(Bytes, bool)> {
        let event = match self.next.take() {
            Some(event) => event,
            None => self.frames.next().await,
        };
        let written = match event {
            Event::Done(_) => return None,
            Event::Failed(failure) => Err(failure),
            Event::Message(message) => decode(self.route, &message)
                .and_then(|m| self.route.dialect.result_chunk(&m).map_err(unwritable)),
        };
        Some(match written {
            Ok(chunk) => (chunk, false),
            Err(failure) => (self.route.dialect.error_chunk(&failure), true),
        })
    }
}

/// A stream that failed before its first message.
fn failed_stream(dialect: Dialect, failure: &Failure) -> Response<Body> {
    let mut response = Response::new(Body::from(dialect.error_chunk(failure)));
    *response.status_mut() = failure.rest_status();
    headers::pass_on(&failure.metadata, response.headers_mut(), "");
    response.headers_mut().insert(header::CONTENT_TYPE, media::JSON);
    response
}

/// The answer to OPTIONS; CORS is the listener's to add.
pub(crate) fn options(allow: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    if let Ok(value) = allow.parse() {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}
