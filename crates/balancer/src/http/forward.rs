//! The way of a request: to which service, to which target, and back.

use std::{io, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, request::Parts,
};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;

use super::{
    Caller, HttpPort,
    body::{Answer, Download, InFlight, Upload},
    headers,
    routes::Route,
    tunnel,
};
use crate::{
    frontend::Frontend,
    health,
    target::{Lease, Target},
};

/// Response to a request that is not forwarded or got no answer, and the
/// reason.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    reason: &'static str,
    location: Option<String>,
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { status, reason, location: None }
    }

    fn response(self) -> Response<Answer> {
        let body = Full::new(Bytes::from(format!("{}\n", self.reason)));
        let mut response = Response::new(Either::Left(body));
        *response.status_mut() = self.status;
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        let location = self.location.and_then(|location| HeaderValue::try_from(location).ok());
        if let Some(location) = location {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }
}

pub(super) async fn answer(
    http_port: &HttpPort,
    caller: &Caller,
    request: Request<Incoming>,
) -> Response<Answer> {
    let passed = pass(http_port, caller, request).await;
    passed.unwrap_or_else(Refusal::response)
}

async fn pass(
    http_port: &HttpPort,
    caller: &Caller,
    mut request: Request<Incoming>,
) -> Result<Response<Answer>, Refusal> {
    let busy = caller.activity.begin();
    if request.method() == Method::CONNECT {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this is no forward proxy"));
    }
    let host =
        headers::host(&request).map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    let (frontend, rest) = route(http_port, &request)?;
    let Some(admission) = frontend.admit() else {
        frontend.error();
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time"));
    };
    let upgrade = headers::upgrade(&request).map(|to| (hyper::upgrade::on(&mut request), to));
    let grpc = headers::is_grpc(&request);
    let (mut parts, body) = request.into_parts();
    let sender = headers::Sender {
        address: caller.address,
        encrypted: caller.encrypted,
        host: host.as_ref(),
        prefix: &frontend.prefix,
    };
    headers::towards_target(&mut parts.headers, &sender, grpc);
    if let Some((_, protocol)) = &upgrade {
        headers::set_upgrade(&mut parts.headers, protocol.clone());
    }
    let upload = Upload::new(body, frontend.clone());
    let (mut response, lease) =
        Attempt { frontend: &frontend, parts: &parts, rest: &rest, upload, grpc }.send().await?;
    *response.version_mut() = Version::HTTP_11;
    let in_flight = InFlight { frontend, lease, _admission: admission, _busy: busy };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let agreed = response.headers().get(header::UPGRADE).cloned();
        let (Some((client, _)), Some(agreed)) = (upgrade, agreed) else {
            in_flight.frontend.error();
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, "the target changed the protocol"));
        };
        let target = hyper::upgrade::on(&mut response);
        headers::strip_hop(response.headers_mut());
        headers::set_upgrade(response.headers_mut(), agreed);
        tunnel::start(client, target, in_flight);
        return Ok(response.map(|_| Either::Left(Full::default())));
    }
    headers::strip_hop(response.headers_mut());
    Ok(response.map(|body| Either::Right(Download::new(body, in_flight))))
}

/// The service that a request is for, and what it sees of the path.
fn route(
    http_port: &HttpPort,
    request: &Request<Incoming>,
) -> Result<(Arc<Frontend>, String), Refusal> {
    let routes = http_port.routes.load();
    let path = request.uri().path();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    match routes.find(path) {
        Route::Service { service, rest } => {
            Ok((service.clone(), format!("{}{query}", &path[rest..])))
        }
        Route::Bare => {
            let safe = matches!(*request.method(), Method::GET | Method::HEAD);
            let status =
                if safe { StatusCode::MOVED_PERMANENTLY } else { StatusCode::PERMANENT_REDIRECT };
            let location = Some(format!("{path}/{query}"));
            Err(Refusal { status, reason: "a slash is missing", location })
        }
        Route::Nowhere => Err(Refusal::new(StatusCode::NOT_FOUND, "no service has this path")),
    }
}

/// One request on its way to a target.
struct Attempt<'a> {
    frontend: &'a Frontend,
    parts: &'a Parts,
    rest: &'a str,
    upload: Upload,
    grpc: bool,
}

/// Reason why a target did not answer.
enum Failure {
    Client(legacy::Error),
    TooLate,
    Withdrawn,
    Unsendable,
}

impl Attempt<'_> {
    /// Sends the request to the best target, and to the next if that one does
    /// not even take a connection.
    async fn send(&self) -> Result<(Response<Incoming>, Lease), Refusal> {
        let mut tried = Vec::new();
        let mut refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no target is healthy");
        if !self.frontend.has_targets() {
            refusal.reason = "the service has no targets";
        }
        while let Some(lease) = self.frontend.pick(&tried) {
            match self.one(&lease.0).await {
                Ok(response) => {
                    self.frontend.served(&lease.0);
                    return Ok((response, lease));
                }
                Err(Failure::Client(error)) if error.is_connect() && !self.upload.touched() => {
                    let (kind, reason) = cause(&error);
                    self.frontend.failed(&lease.0, &reason);
                    tried.push(lease.0.address);
                    refusal = match kind {
                        io::ErrorKind::TimedOut => Refusal::new(
                            StatusCode::GATEWAY_TIMEOUT,
                            "no target took the connection in time",
                        ),
                        _ => Refusal::new(StatusCode::BAD_GATEWAY, "no target took the connection"),
                    };
                }
                Err(failure) => {
                    refusal = self.give_up(&lease.0, failure);
                    break;
                }
            }
        }
        self.frontend.error();
        Err(refusal)
    }

    fn give_up(&self, target: &Target, failure: Failure) -> Refusal {
        match failure {
            Failure::Client(error) => {
                tracing::debug!(target = %target.address, %error, "request failed");
                Refusal::new(StatusCode::BAD_GATEWAY, "the target broke off")
            }
            Failure::TooLate if self.upload.is_end_stream() => {
                Refusal::new(StatusCode::GATEWAY_TIMEOUT, "the target does not answer in time")
            }
            Failure::TooLate => {
                Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request does not come in time")
            }
            Failure::Unsendable => {
                Refusal::new(StatusCode::BAD_REQUEST, "this cannot be passed on")
            }
            Failure::Withdrawn => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the service was withdrawn")
            }
        }
    }

    async fn one(&self, target: &Target) -> Result<Response<Incoming>, Failure> {
        let Some(clients) = &target.clients else { return Err(Failure::Withdrawn) };
        let client = if self.grpc { &clients.two } else { &clients.one };
        let request = self.request(target).ok_or(Failure::Unsendable)?;
        let mut answer = std::pin::pin!(client.request(request));
        let mut frames = self.upload.frames();
        loop {
            tokio::select! {
                answer = answer.as_mut() => return answer.map_err(Failure::Client),
                () = target.cut.cancelled() => return Err(Failure::Withdrawn),
                // Data of a long upload keeps the target from timing out.
                () = tokio::time::sleep(self.frontend.context.limits.response) => {
                    let now = self.upload.frames();
                    if now == frames {
                        return Err(Failure::TooLate);
                    }
                    frames = now;
                }
            }
        }
    }

    fn request(&self, target: &Target) -> Option<Request<Upload>> {
        let uri = Uri::builder().scheme("http").authority(target.address.to_string());
        let uri = uri.path_and_query(self.rest).build().ok()?;
        let mut request = Request::new(self.upload.clone());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = if self.grpc { Version::HTTP_2 } else { Version::HTTP_11 };
        *request.headers_mut() = self.parts.headers.clone();
        if self.grpc {
            // The address is all that HTTP/2 knows of a host, and both differ.
            request.headers_mut().remove(header::HOST);
        } else if !self.parts.headers.contains_key(header::HOST) {
            let host = HeaderValue::try_from(target.address.to_string()).ok()?;
            request.headers_mut().insert(header::HOST, host);
        }
        Some(request)
    }
}

/// Returns the kind and text of the error of the system that caused an error.
fn cause(error: &legacy::Error) -> (io::ErrorKind, String) {
    match selvage_api::causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()) {
        Some(io) => (io.kind(), health::plain(io::Error::new(io.kind(), io.to_string()))),
        None => (io::ErrorKind::Other, error.to_string()),
    }
}
