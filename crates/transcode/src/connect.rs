//! The Connect protocol: unary calls and server streams, JSON and protobuf.

use axum::body::Body;
use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use bytes::Bytes;
use futures::stream;
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode, header, request::Parts,
};
use prost_reflect::DynamicMessage;
use selvage_api::Method;
use serde_json::{Value as Json, json};
use tonic::Code;
use tower::{BoxError, Service};

use crate::{
    Error, Limits,
    failure::Failure,
    grpc::{self, Event, Frames, Reply},
    headers, media,
    request::{self, CONNECT_VERBS, Codec},
    rest,
    route::Rpc,
    service::read_body,
    write::{self, ShownAny, Style, Styled},
};

const STYLE: Style = Style { original_names: false, zeros: false, indent: false };
const END_STREAM: u8 = 0x02;
const ENVELOPE_HEAD: usize = 5;

/// Form of the whole exchange, by the content type of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exchange {
    codec: Codec,
    stream: bool,
}

impl Exchange {
    fn of(media: &str) -> Option<Self> {
        let (codec, stream) = match media {
            "application/json" => (Codec::Json, false),
            "application/proto" => (Codec::Proto, false),
            "application/connect+json" => (Codec::Json, true),
            "application/connect+proto" => (Codec::Proto, true),
            _ => return None,
        };
        Some(Self { codec, stream })
    }

    fn media(self) -> &'static str {
        match (self.codec, self.stream) {
            (Codec::Json, false) => "application/json",
            (Codec::Proto, false) => "application/proto",
            (Codec::Json, true) => "application/connect+json",
            (Codec::Proto, true) => "application/connect+proto",
        }
    }

    fn encode(self, method: Option<&Method>, message: Bytes) -> Result<Bytes, Failure> {
        let Some(method) = method.filter(|_| self.codec == Codec::Json) else {
            return Ok(message);
        };
        let failed = |error: String| {
            tracing::error!(method = method.path, error, "inner reply has no JSON form");
            Failure::new(Code::Internal, format!("the service's reply has no JSON form: {error}"))
        };
        let decoded = DynamicMessage::decode(method.output.clone(), message)
            .map_err(|error| failed(error.to_string()))?;
        write::to_vec(&Styled::new(&decoded, STYLE), false)
            .map(Bytes::from)
            .map_err(|error| failed(error.to_string()))
    }
}

pub(crate) async fn serve<S, B>(
    inner: S,
    limits: Limits,
    rpc: Rpc,
    parts: Parts,
    body: B,
) -> Response<Body>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    if parts.method == Verb::OPTIONS {
        return rest::options(CONNECT_VERBS);
    }
    let declared = media::essence(&parts.headers);
    let exchange = declared.as_ref().ok().and_then(Option::as_deref).and_then(Exchange::of);
    let (method, exchange) = match agree(rpc, &parts.method, declared, exchange) {
        Ok(agreed) => agreed,
        Err(error) => {
            let streams = exchange.filter(|e| e.stream && error.own_status().is_none());
            return refuse(&error.into(), streams);
        }
    };
    match call(inner, limits, method, exchange, parts, body).await {
        Ok(reply) if exchange.stream => stream_response(Some(method), exchange, reply),
        Ok(reply) => match unary_response(method, exchange, reply).await {
            Ok(response) => response,
            Err(failure) => refuse(&failure, None),
        },
        Err(failure) => refuse(&failure, Some(exchange).filter(|e| e.stream)),
    }
}

/// The method and the manner of the call, if they fit each other.
fn agree(
    rpc: Rpc,
    verb: &Verb,
    declared: Result<Option<String>, String>,
    exchange: Option<Exchange>,
) -> Result<(&'static Method, Exchange), Error> {
    let method = request::connect_method(rpc, verb)?;
    match exchange {
        Some(exchange) if exchange.stream == method.server_streaming => Ok((method, exchange)),
        _ => Err(Error::ContentType {
            found: match declared {
                Ok(Some(media)) => format!("{media:?}"),
                Ok(None) => "(none)".to_owned(),
                Err(found) => found,
            },
            expected: if method.server_streaming {
                "application/connect+json or application/connect+proto"
            } else {
                "application/json or application/proto"
            },
        }),
    }
}

async fn call<S, B>(
    inner: S,
    limits: Limits,
    method: &'static Method,
    exchange: Exchange,
    parts: Parts,
    body: B,
) -> Result<Reply, Failure>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    check_version(&parts.headers)?;
    let timeout = headers::connect_timeout(&parts.headers)?;
    let encoding = if exchange.stream { "connect-content-encoding" } else { "content-encoding" };
    media::require_identity(&parts.headers, encoding)?;
    let head = if exchange.stream { ENVELOPE_HEAD } else { 0 };
    let mut body = read_body(&parts.headers, body, limits.max_request.saturating_add(head)).await?;
    if exchange.stream {
        body = only_envelope(body)?;
    }
    let message = request::connect_message(method, exchange.codec, &body)?;
    drop(body);
    let inner_headers = headers::for_inner(&parts, "connect", timeout);
    let message = grpc::single(&message);
    let limit = limits.max_response_unary;
    grpc::call(inner, &method.path, inner_headers, parts.extensions, message, limit).await
}

/// Reflection, which streams both ways. Clients that bring no contract, such as
/// `buf curl`, ask for it by the protocol of their call. Messages of both
/// protocols stand in the same frame, so what comes is passed on as it comes.
pub(crate) async fn reflect<S, B>(
    inner: S,
    limits: Limits,
    path: &'static str,
    parts: Parts,
    body: B,
) -> Response<Body>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if parts.method == Verb::OPTIONS {
        return rest::options(CONNECT_VERBS);
    }
    let exchange = match reflection_exchange(&parts) {
        Ok(exchange) => exchange,
        Err(error) => return refuse(&error.into(), None),
    };
    let called = async {
        check_version(&parts.headers)?;
        let timeout = headers::connect_timeout(&parts.headers)?;
        media::require_identity(&parts.headers, "connect-content-encoding")?;
        let inner_headers = headers::for_inner(&parts, "connect", timeout);
        let body = tonic::body::Body::new(body);
        let limit = limits.max_response_unary;
        grpc::call(inner, path, inner_headers, parts.extensions, body, limit).await
    };
    match called.await {
        Ok(reply) => stream_response(None, exchange, reply),
        Err(failure) => refuse(&failure, Some(exchange)),
    }
}

fn reflection_exchange(parts: &Parts) -> Result<Exchange, Error> {
    if parts.method != Verb::POST {
        let allow = CONNECT_VERBS.to_owned();
        return Err(Error::Verb { verb: parts.method.to_string(), allow });
    }
    let wanted = Exchange { codec: Codec::Proto, stream: true };
    let found = match media::essence(&parts.headers) {
        Ok(Some(media)) if Exchange::of(&media) == Some(wanted) => return Ok(wanted),
        Ok(Some(media)) => format!("{media:?}"),
        Ok(None) => "(none)".to_owned(),
        Err(found) => found,
    };
    Err(Error::ContentType { found, expected: wanted.media() })
}

fn check_version(headers: &HeaderMap) -> Result<(), Error> {
    match headers.get("connect-protocol-version") {
        Some(version) if version != "1" => {
            Err(Error::Header { name: "Connect-Protocol-Version", reason: "expected 1".to_owned() })
        }
        _ => Ok(()),
    }
}

/// The message of a request that streams only downwards: exactly one.
fn only_envelope(body: Bytes) -> Result<Bytes, Error> {
    let wrong = |reason: &str| Err(Error::Envelope { reason: reason.to_owned() });
    let Some((head, rest)) = body.split_at_checked(ENVELOPE_HEAD) else {
        return wrong("expected one enveloped message");
    };
    if head[0] & 0x01 != 0 {
        return wrong("the message is compressed, which was not announced");
    }
    if head[0] != 0 {
        return wrong("the envelope has unknown flags");
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    match rest.len().cmp(&length) {
        std::cmp::Ordering::Less => wrong("the message is shorter than its envelope says"),
        std::cmp::Ordering::Greater => wrong("more than one message was sent"),
        std::cmp::Ordering::Equal => Ok(body.slice(ENVELOPE_HEAD..)),
    }
}

async fn unary_response(
    method: &Method,
    exchange: Exchange,
    reply: Reply,
) -> Result<Response<Body>, Failure> {
    let unary = reply.unary().await?;
    let body = exchange.encode(Some(method), unary.message)?;
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers::pass_on(&unary.headers, headers, "");
    headers::pass_on(&unary.trailers, headers, "trailer-");
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(exchange.media()));
    Ok(response)
}

fn stream_response(
    method: Option<&'static Method>,
    exchange: Exchange,
    reply: Reply,
) -> Response<Body> {
    let state = (exchange, method, reply.frames);
    let envelopes = stream::unfold(Some(state), |state| async {
        let (exchange, method, mut frames) = state?;
        let (envelope, last) = next_envelope(exchange, method, &mut frames).await;
        let state = (!last).then_some((exchange, method, frames));
        Some((Ok::<_, std::convert::Infallible>(envelope), state))
    });
    let mut response = stream_head(exchange, Body::from_stream(envelopes));
    headers::pass_on(&reply.headers, response.headers_mut(), "");
    response
}

fn stream_head(exchange: Exchange, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let media = HeaderValue::from_static(exchange.media());
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

async fn next_envelope(
    exchange: Exchange,
    method: Option<&Method>,
    frames: &mut Frames,
) -> (Bytes, bool) {
    let failure = match frames.next().await {
        Event::Message(message) => match exchange.encode(method, message) {
            Ok(message) => return (grpc::frame(0, &message), false),
            Err(failure) => failure,
        },
        Event::Done(trailers) => return (end_stream(None, &trailers), true),
        Event::Failed(failure) => failure,
    };
    (end_stream(Some(&failure), &failure.metadata), true)
}

fn end_stream(failure: Option<&Failure>, trailers: &HeaderMap) -> Bytes {
    let mut end = json!({});
    if let Some(failure) = failure {
        end["error"] = error_json(failure);
    }
    let mut metadata = serde_json::Map::new();
    for (name, value) in headers::metadata(trailers) {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if let Some(list) =
            metadata.entry(name.as_str()).or_insert_with(|| json!([])).as_array_mut()
        {
            list.push(Json::String(text));
        }
    }
    if !metadata.is_empty() {
        end["metadata"] = Json::Object(metadata);
    }
    grpc::frame(END_STREAM, end.to_string().as_bytes())
}

/// A failed call: a JSON body, or for streams the end of one.
fn refuse(failure: &Failure, stream: Option<Exchange>) -> Response<Body> {
    if let Some(exchange) = stream {
        return stream_head(exchange, Body::from(end_stream(Some(failure), &failure.metadata)));
    }
    let mut response = Response::new(Body::from(error_json(failure).to_string()));
    *response.status_mut() = failure.own_status.unwrap_or_else(|| http_status(failure.code));
    let status = response.status();
    let headers = response.headers_mut();
    headers::pass_on(&failure.metadata, headers, "");
    headers.insert(header::CONTENT_TYPE, media::JSON);
    if let Some(allow) = failure.allow.as_deref().and_then(|a| HeaderValue::from_str(a).ok()) {
        headers.insert(header::ALLOW, allow);
    }
    if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let accepted = "application/json, application/proto, application/connect+json, application/connect+proto";
        headers.insert("accept-post", HeaderValue::from_static(accepted));
    }
    response
}

fn error_json(failure: &Failure) -> Json {
    let mut error = json!({"code": code_name(failure.code), "message": failure.message});
    if !failure.details.is_empty() {
        error["details"] = failure.details.iter().map(detail_json).collect();
    }
    error
}

fn detail_json(any: &prost_types::Any) -> Json {
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    let mut detail = json!({"type": name, "value": BASE64_STANDARD_NO_PAD.encode(&any.value)});
    if let (Some(_), Ok(debug)) = (
        selvage_api::pool().get_message_by_name(name),
        serde_json::to_value(ShownAny { any, style: STYLE }),
    ) {
        detail["debug"] = debug;
    }
    detail
}

fn code_name(code: Code) -> &'static str {
    match code {
        // A failure with code OK is a contradiction of the inner service.
        Code::Ok | Code::Unknown => "unknown",
        Code::Cancelled => "canceled",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

/// Connect's own map, which differs from the gateways'.
fn http_status(code: Code) -> StatusCode {
    let status = match code {
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => 500,
    };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
