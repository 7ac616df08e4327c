//! The service that takes HTTP requests apart by protocol.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method as Verb, Request, Response, header, uri::PathAndQuery};
use http_body_util::BodyExt;
use tower::{BoxError, Service, ServiceExt};

use crate::{
    Dialect, Error, Route, SlowBody, connect,
    failure::Failure,
    headers, rest,
    route::{self, Lookup, Rpc},
};

/// Limits of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body.
    pub max_request: usize,
    /// Bytes of one reply message, the only one of a unary call or any of a
    /// stream.
    pub max_response_unary: usize,
}

/// Kind of a request.
#[derive(Debug)]
pub enum Claim {
    /// gRPC or gRPC-Web, which the transcoder passes on as it is.
    Grpc,
    /// A Connect call, or one that could only be meant as such.
    Connect,
    /// A REST route; its verb may still be one that is not offered.
    Rest(&'static Route),
    /// None of these: pages, metrics, or nothing at all.
    None,
}

/// Turns REST and Connect calls into calls of an inner gRPC service.
#[derive(Debug, Clone)]
pub struct Transcoder<S> {
    inner: S,
    limits: Limits,
}

impl<S> Transcoder<S> {
    pub fn new(inner: S, limits: Limits) -> Self {
        Self { inner, limits }
    }

    /// Says what a request is, by its head alone.
    pub fn claims<B>(&self, request: &Request<B>) -> Claim {
        let path = request.uri().path();
        if is_grpc(request.headers()) {
            return Claim::Grpc;
        }
        if route::rpc(path).is_some() || route::reflection(path).is_some() {
            return Claim::Connect;
        }
        match route::lookup(request.method(), path) {
            Ok(Lookup::Found(matched)) => Claim::Rest(matched.route),
            Ok(Lookup::OtherVerbs(route, _)) => Claim::Rest(route),
            Ok(Lookup::Nowhere) | Err(_) => Claim::None,
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

impl<S, B> Service<Request<B>> for Transcoder<S>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>
        + Clone
        + Send
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Each call waits for the inner service by itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, limits) = (self.inner.clone(), self.limits);
        Box::pin(async move { Ok(answer(inner, limits, request).await) })
    }
}

async fn answer<S, B>(inner: S, limits: Limits, request: Request<B>) -> Response<Body>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if is_grpc(request.headers()) {
        return Box::pin(pass_through(inner, request)).await;
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if let Some(rpc) = route::rpc(path) {
        return Box::pin(connect::serve(inner, limits, rpc, parts, body)).await;
    }
    if let Some(path) = route::reflection(path) {
        return Box::pin(connect::reflect(inner, limits, path, parts, body)).await;
    }
    let (dialect, error) = match route::lookup(&parts.method, path) {
        Ok(Lookup::Found(matched)) => {
            return Box::pin(rest::serve(inner, limits, matched, parts, body)).await;
        }
        Ok(Lookup::OtherVerbs(_, allow)) if parts.method == Verb::OPTIONS => {
            return rest::options(&allow);
        }
        Ok(Lookup::OtherVerbs(route, allow)) => {
            (route.dialect, Error::Verb { verb: parts.method.to_string(), allow })
        }
        Ok(Lookup::Nowhere) => {
            (Dialect::of_unknown_path(path), Error::NotFound { path: path.to_owned() })
        }
        Err(error) => (Dialect::of_unknown_path(path), error),
    };
    let response = dialect.error_response(&Failure::from(error));
    if parts.method == Verb::HEAD { response.map(|_| Body::empty()) } else { response }
}

/// gRPC as it came, also from clients that keep the original's `/api`.
async fn pass_through<S, B>(inner: S, request: Request<B>) -> Response<Body>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut request = request.map(tonic::body::Body::new);
    headers::strip_internal(request.headers_mut());
    if let Some(Rpc::Known(method)) = route::rpc(request.uri().path())
        && request.uri().path() != method.path
    {
        let mut uri = request.uri().clone().into_parts();
        uri.path_and_query = Some(PathAndQuery::from_static(&method.path));
        if let Ok(uri) = http::Uri::from_parts(uri) {
            *request.uri_mut() = uri;
        }
    }
    match inner.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => tonic::Status::from_error(error.into()).into_http(),
    }
}

/// A request body of at most `limit` bytes.
pub(crate) async fn read_body<B>(headers: &HeaderMap, body: B, limit: usize) -> Result<Bytes, Error>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Error::TooLarge { limit });
    }
    let mut body = std::pin::pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(error.into().as_ref()))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            return Err(Error::TooLarge { limit });
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// Returns the error for a body that was cut off. The cause may be wrapped by
/// the layers that passed the body on.
fn broken(error: &(dyn std::error::Error + 'static)) -> Error {
    match selvage_api::causes(error).find_map(|cause| cause.downcast_ref::<SlowBody>()) {
        Some(slow) => Error::SlowBody(*slow),
        None => Error::BrokenBody,
    }
}
