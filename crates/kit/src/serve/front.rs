//! The door: tells gRPC, gRPC-Web, Connect, REST and plain pages apart, on
//! one port, and hands each to what answers it.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body as PageBody;
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
    uri::PathAndQuery,
};
use hyper::body::Incoming;
use selvage_transcode::{CONTENT_TYPE_HEADER, Claim, Limits, PROTOCOL_HEADER, Transcoder};
use tonic::{Status, body::Body};
use tonic_web::GrpcWebLayer;
use tower::{Layer, Service, ServiceExt};

use super::{
    census::{Activity, InFlight},
    frame::{MAX_MESSAGE, MAX_UNKNOWN, limit_of},
    guard::{Guarded, Timely},
    intake::Intake,
    internal_error,
    rpc::Rpc,
    web_text::Decoded,
};
use crate::identity::Connection;

/// Header that carries the host the client asked for, whatever the version of
/// HTTP.
pub const AUTHORITY: &str = "x-selvage-authority";
const AUTHORITY_NAME: HeaderName = HeaderName::from_static(AUTHORITY);

#[derive(Clone)]
pub(super) struct Front {
    rpc: Rpc,
    pages: axum::Router,
    origins: Arc<[String]>,
    body_timeout: std::time::Duration,
    intake: Intake,
}

impl Front {
    pub(super) fn new(
        rpc: Rpc,
        pages: axum::Router,
        origins: Arc<[String]>,
        body_timeout: std::time::Duration,
        intake: Intake,
    ) -> Self {
        Self { rpc, pages, origins, body_timeout, intake }
    }

    /// The door as one connection uses it.
    pub(super) fn for_connection(
        &self,
        connection: Connection,
        activity: Activity,
    ) -> ConnectionService {
        ConnectionService { front: self.clone(), connection, activity }
    }

    async fn answer(self, web: bool, request: Request<PageBody>) -> Response<PageBody> {
        let origin = self.foreign_origin(request.headers());
        let encrypted = request.extensions().get::<Connection>().is_some_and(|c| c.encrypted);
        if let (Some(origin), true) = (&origin, is_preflight(&request)) {
            return preflight(origin);
        }
        let response =
            if web { self.grpc_web(request).await } else { self.transcoded_or_page(request).await };
        finish(response, origin.as_ref(), encrypted)
    }

    async fn grpc_web(self, mut request: Request<PageBody>) -> Response<PageBody> {
        let text = request.headers().get(header::CONTENT_TYPE).is_some_and(is_web_text);
        let headers = request.headers_mut();
        headers.insert(PROTOCOL_HEADER, HeaderValue::from_static("grpc-web"));
        if let Some(sent) = headers.insert(header::CONTENT_TYPE, GRPC_WEB) {
            headers.insert(CONTENT_TYPE_HEADER, sent);
        }
        // A client that sends text wants text, unless it asks for the other.
        let asked = headers.get(header::ACCEPT);
        if text && asked.is_none_or(|asked| asked.as_bytes().starts_with(b"*/*")) {
            headers.insert(header::ACCEPT, GRPC_WEB_TEXT);
        }
        let rpc = self.rpc;
        let inner = tower::service_fn(move |request: Request<Body>| {
            let request =
                if text { request.map(|body| Body::new(Decoded::new(body))) } else { request };
            rpc.clone().oneshot(request)
        });
        let Ok(response) = GrpcWebLayer::new().layer(inner).oneshot(request.map(Body::new)).await;
        response.map(PageBody::new)
    }

    async fn transcoded_or_page(self, request: Request<PageBody>) -> Response<PageBody> {
        let timeout = self.body_timeout;
        let (head, body) = request.into_parts();
        let connection: Option<&Connection> = head.extensions.get();
        let limits = self.limits_for(&head.headers, connection).await;
        let ticket = match connection {
            Some(connection) if limits.max_request == MAX_UNKNOWN => {
                match self.intake.admit(&connection.peer) {
                    Ok(ticket) => Some(ticket),
                    Err(status) => return refuse(&status),
                }
            }
            _ => None,
        };
        let body = Guarded::new(Timely::new(body, timeout), ticket);
        let request = Request::from_parts(head, PageBody::new(body));
        let transcoder = Transcoder::new(self.rpc, limits);
        if matches!(transcoder.claims(&request), Claim::None) {
            let Ok(response) = self.pages.oneshot(request).await;
            return response;
        }
        let Ok(response) = transcoder.oneshot(request).await;
        response
    }

    /// A body becomes a message before the call is judged, so strangers may
    /// send only little here too.
    async fn limits_for(&self, headers: &HeaderMap, connection: Option<&Connection>) -> Limits {
        let caller = match connection {
            Some(connection) => self.rpc.identify(headers, connection).await.ok(),
            None => None,
        };
        let max_request = caller.as_ref().map_or(MAX_UNKNOWN, limit_of);
        Limits { max_request, max_response_unary: 16 * MAX_MESSAGE }
    }

    /// The foreign origin that this request comes from, if we let it in.
    fn foreign_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.origins.iter().any(|known| known == text).then(|| origin.clone())
    }
}

const GRPC_WEB: HeaderValue = HeaderValue::from_static("application/grpc-web+proto");
const GRPC_WEB_TEXT: HeaderValue = HeaderValue::from_static("application/grpc-web-text+proto");

fn is_web_text(content_type: &HeaderValue) -> bool {
    let begin = b"application/grpc-web-text";
    let sent = content_type.as_bytes().get(..begin.len());
    sent.is_some_and(|sent| sent.eq_ignore_ascii_case(begin))
}

enum Kind {
    Grpc,
    GrpcWeb,
    Other,
}

fn kind<B>(request: &Request<B>) -> Kind {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is = |names: &[&str]| names.iter().any(|name| essence.eq_ignore_ascii_case(name));
    if request.method() != Method::POST {
        Kind::Other
    } else if is(&["application/grpc", "application/grpc+proto"]) {
        Kind::Grpc
    } else if is(&[
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpc-web-text+proto",
    ]) {
        Kind::GrpcWeb
    } else {
        Kind::Other
    }
}

fn is_preflight(request: &Request<PageBody>) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Lets the pages of a configured origin call us. Without cookies: they bring
/// a token.
fn preflight(origin: &HeaderValue) -> Response<PageBody> {
    let mut response = Response::new(PageBody::empty());
    allow_origin(response.headers_mut(), origin);
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET,HEAD,POST,PUT,DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "Content-Type,Accept,Authorization,X-Grpc-Web,X-User-Agent,Grpc-Timeout,\
             Connect-Protocol-Version,Connect-Timeout-Ms",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn allow_origin(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("Grpc-Status,Grpc-Message,Grpc-Status-Details-Bin"),
    );
}

/// Security headers of every reply to browsers.
const SECURITY: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

fn finish(
    mut response: Response<PageBody>,
    origin: Option<&HeaderValue>,
    encrypted: bool,
) -> Response<PageBody> {
    let headers = response.headers_mut();
    for (name, value) in SECURITY {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if encrypted {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, year);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(origin) = origin {
        allow_origin(headers, origin);
    }
    response
}

/// The door of one connection.
#[derive(Clone)]
pub(super) struct ConnectionService {
    front: Front,
    connection: Connection,
    activity: Activity,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<PageBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<PageBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let in_flight = self.activity.begin();
        prepare(&mut request, self.connection.clone());
        // Most calls by far are gRPC: they do not pay for what the others need.
        let web = match kind(&request) {
            Kind::Grpc => {
                let rpc = self.front.rpc.clone();
                return Box::pin(async move {
                    let call = rpc.handle(request.map(Body::new));
                    match AssertUnwindSafe(call).catch_unwind().await {
                        Ok(response) => Ok(kept(response, in_flight)),
                        Err(_) => Ok(kept(broken(), in_flight)),
                    }
                });
            }
            Kind::GrpcWeb => true,
            Kind::Other => false,
        };
        let front = self.front.clone();
        Box::pin(async move {
            let answer = front.answer(web, request.map(PageBody::new));
            let answered = AssertUnwindSafe(answer).catch_unwind().await;
            Ok(kept(answered.unwrap_or_else(|_| broken()), in_flight))
        })
    }
}

/// A response that is under way until its body is done with.
fn kept<B>(response: Response<B>, in_flight: InFlight) -> Response<PageBody>
where
    B: http_body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + Unpin + 'static,
{
    response.map(|body| PageBody::new(Guarded::new(body, in_flight)))
}

fn prepare<B>(request: &mut Request<B>, connection: Connection) {
    without_api_prefix(request.uri_mut());
    // With these the front speaks to the inner stack; clients have no say.
    selvage_transcode::strip_internal(request.headers_mut());
    request.headers_mut().remove(AUTHORITY_NAME);
    let host = request.headers().get(header::HOST).cloned();
    let authority = request
        .uri()
        .authority()
        .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(authority) = authority.or(host) {
        request.headers_mut().insert(AUTHORITY_NAME, authority);
    }
    request.extensions_mut().insert(connection);
}

/// The original dashboard has its methods under `/api`; so have we, too.
fn without_api_prefix(uri: &mut Uri) {
    let Some(path) = uri.path_and_query().map(PathAndQuery::as_str) else { return };
    let Some(inner) = path.strip_prefix("/api").and_then(|inner| inner.parse().ok()) else {
        return;
    };
    let mut parts = uri.clone().into_parts();
    let inner: PathAndQuery = inner;
    if selvage_api::method(inner.path()).is_some() {
        parts.path_and_query = Some(inner);
        if let Ok(shorter) = Uri::from_parts(parts) {
            *uri = shorter;
        }
    }
}

fn broken() -> Response<PageBody> {
    let status = internal_error();
    let mut response = Response::new(PageBody::from(status.message().to_owned()));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    finish(response, None, false)
}

/// A plain page's answer to a caller it does not serve.
pub(super) fn refuse(status: &Status) -> Response<PageBody> {
    let code = selvage_api::code::http_status(status.code());
    let mut response = Response::new(PageBody::from(format!("{}\n", status.message())));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
    response
}
