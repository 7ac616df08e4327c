//! Calls over one connection, with the deadline and the credentials of this
//! command on each.

use std::{
    error::Error as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use selvage_api::Code;
use selvage_kit::identity::Secret;
use tonic::{
    Request, Response, Status,
    metadata::MetadataValue,
    transport::{Channel, Endpoint as Destination},
};

use crate::{Error, connect, endpoint::Endpoint, target::Target};

/// Text of a server about a method of a part that it does not run. What is
/// not implemented for another reason says that by itself.
const NOT_HERE: &str = "is not running here";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a server.
pub(crate) struct Client {
    channel: Channel,
    endpoint: String,
    token: Option<Secret>,
    shows_certificate: bool,
    timeout: Option<Duration>,
}

impl Client {
    /// Connects; `timeout` is what the person asked for, if anything.
    pub(crate) async fn connect(target: &Target, timeout: Option<Duration>) -> Result<Self, Error> {
        let (endpoint, stream) = match timeout {
            Some(limit) => tokio::time::timeout(limit, connect::open_first(target))
                .await
                .map_err(|_| Error::Deadline(limit))??,
            None => connect::open_first(target).await?,
        };
        // The connection is there already, its other end made sure of: the
        // channel takes it as it is and has no second one to try.
        let stream = Mutex::new(Some(TokioIo::new(stream)));
        let connector = tower::service_fn(move |_: http::Uri| {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::future::ready(
                stream.ok_or(std::io::ErrorKind::ConnectionAborted).map_err(std::io::Error::from),
            )
        });
        let channel = destination(&endpoint)?
            .connect_with_connector(connector)
            .await
            .map_err(|_| connect::Error::NotHttp2(endpoint.to_string()))?;
        Ok(Self {
            channel,
            endpoint: endpoint.to_string(),
            token: target.token.clone(),
            shows_certificate: target.identity.is_some(),
            timeout,
        })
    }

    /// The channel, for calls by descriptor.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the timeout of a call; nothing for streams nobody put a limit on.
    pub(crate) fn limit(&self, streams: bool) -> Option<Duration> {
        match (self.timeout, streams) {
            (Some(limit), _) => Some(limit),
            (None, true) => None,
            (None, false) => Some(DEFAULT_TIMEOUT),
        }
    }

    /// The message with credentials and deadline.
    pub(crate) fn request<T>(
        &self,
        message: T,
        limit: Option<Duration>,
    ) -> Result<Request<T>, Error> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let mut value = MetadataValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|_| Error::invalid("the token holds characters no token has"))?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        Ok(request)
    }

    /// One question, one answer, by a generated client.
    pub(crate) async fn call<Q, R, F>(
        &self,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<R, Error>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let limit = self.limit(false).unwrap_or(DEFAULT_TIMEOUT);
        let request = self.request(message, Some(limit))?;
        match tokio::time::timeout(limit, send(self.channel(), request)).await {
            Err(_) => Err(Error::Deadline(limit)),
            Ok(Err(status)) => Err(self.refused(&status)),
            Ok(Ok(response)) => Ok(response.into_inner()),
        }
    }

    /// The status as an error with advice.
    pub(crate) fn refused(&self, status: &Status) -> Error {
        // A status with a cause was made on this side: time ran out, or the
        // connection broke.
        if causes(status).any(|cause| cause.is::<tonic::TimeoutExpired>()) {
            return Error::Deadline(self.timeout.unwrap_or(DEFAULT_TIMEOUT));
        }
        if status.source().is_some() {
            return Error::Status {
                code: Code::Unavailable,
                message: format!("the connection to {} broke", self.endpoint),
                hints: vec![
                    "check the server's log, then try again; look first whether the call was done"
                        .into(),
                ],
            };
        }
        let code = Code::from_grpc(status.code()).unwrap_or(Code::Internal);
        let message = match status.message() {
            "" => format!("the server answers {code} without a word"),
            text => text.to_owned(),
        };
        let hints = self.advice(code, &message);
        Error::Status { code, message, hints }
    }

    fn advice(&self, code: Code, message: &str) -> Vec<String> {
        let hint = match code {
            Code::Unauthenticated if self.token.is_some() => {
                "your session has ended or is not known there: run `selvage login`"
            }
            Code::Unauthenticated if self.shows_certificate => {
                "the server does not know the certificate: check --cert and --key"
            }
            Code::Unauthenticated => "you are not logged in: run `selvage login`",
            Code::PermissionDenied => "`selvage whoami` shows what you may do",
            Code::Unavailable => "try again in a moment",
            Code::Aborted => "somebody else changed the same thing: look, then try again",
            Code::DeadlineExceeded => "allow more time with --timeout, such as --timeout 2m",
            Code::Unimplemented if message.ends_with(NOT_HERE) => {
                "`selvage status` shows which parts this server runs"
            }
            _ => return Vec::new(),
        };
        vec![hint.into()]
    }
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

fn destination(endpoint: &Endpoint) -> Result<Destination, Error> {
    let unusable = || Error::invalid(format!("endpoint {endpoint} cannot be used"));
    let origin = endpoint.origin().parse().map_err(|_| unusable())?;
    // TLS is done below the channel, which must not try it a second time and
    // goes by the scheme; the origin keeps the true one for the server.
    Destination::from_static("http://selvage")
        .origin(origin)
        .user_agent(concat!("selvage/", env!("CARGO_PKG_VERSION")))
        .map_err(|_| unusable())
}
