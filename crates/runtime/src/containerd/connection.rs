//! The one connection, and what its failures mean.

use std::{
    error::Error as _,
    future::Future,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use selvage_api::Code;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use crate::{Error, REPLY_TIMEOUT, Result};

const NAMESPACE: &str = "containerd-namespace";

/// A channel that connects when it is first used, and again after it broke.
pub(crate) fn lazy_channel(socket: PathBuf) -> Channel {
    // The address is not used: the connector knows where to go.
    Endpoint::from_static("http://runtime.invalid")
        .connect_timeout(REPLY_TIMEOUT)
        .connect_with_connector_lazy(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
}

/// The reason that lies deepest: the outer ones say "transport error".
pub(crate) fn reason(status: &Status) -> String {
    let mut deepest = None;
    let mut source = status.source();
    while let Some(error) = source {
        deepest = Some(error.to_string());
        source = error.source();
    }
    deepest.unwrap_or_else(|| status.message().to_owned())
}

pub(super) struct Connection {
    channel: Channel,
    socket: PathBuf,
    answered: AtomicBool,
}

impl Connection {
    pub(super) fn new(socket: PathBuf) -> Self {
        let channel = lazy_channel(socket.clone());
        Self { channel, socket, answered: AtomicBool::new(false) }
    }

    /// Returns whether somebody listens there, did, or left a socket behind.
    pub(super) fn is_known(&self) -> bool {
        self.answered.load(Ordering::Relaxed) || self.socket.exists()
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Awaits an answer for so long, and says what its absence means.
    pub(super) async fn ask<T>(
        &self,
        timeout: Duration,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T> {
        match tokio::time::timeout(timeout, answer).await {
            Ok(answer) => {
                let answer = answer.map_err(|status| refused(&status));
                if !matches!(answer, Err(Error::Unreachable { .. })) {
                    self.answered.store(true, Ordering::Relaxed);
                }
                answer
            }
            Err(_) => Err(Error::Unreachable {
                runtime: "containerd",
                reason: format!("no answer within {} s", timeout.as_secs()),
            }),
        }
    }
}

/// A request in a namespace that was checked.
pub(super) fn within<T>(namespace: &str, message: T) -> Result<Request<T>> {
    let mut request = Request::new(message);
    let value = MetadataValue::try_from(namespace)
        .map_err(|_| Error::invalid("namespace", format!("{namespace:?} cannot be sent")))?;
    request.metadata_mut().insert(NAMESPACE, value);
    Ok(request)
}

pub(super) fn refused(status: &Status) -> Error {
    match Code::from_grpc(status.code()) {
        Some(Code::Unavailable) | None => {
            Error::Unreachable { runtime: "containerd", reason: reason(status) }
        }
        // A connection that breaks amid a call shows as one of these, with
        // what broke it as the source.
        Some(Code::Internal | Code::Cancelled) if status.source().is_some() => {
            Error::Unreachable { runtime: "containerd", reason: reason(status) }
        }
        Some(code) => Error::Refused { code, text: status.message().to_owned() },
    }
}

/// Returns whether it failed because somebody makes the same thing at this
/// moment.
pub(super) fn is_collision(error: &Error) -> bool {
    match error {
        Error::Refused { code: Code::AlreadyExists, .. } => true,
        Error::Refused { text, .. } => text.ends_with("file exists"),
        _ => false,
    }
}

/// Returns whether it failed because what it names is not there.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Refused { code: Code::NotFound, .. })
}
