//! One connection and two versions of one interface.

use std::{
    error::Error as _,
    path::PathBuf,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use http::uri::PathAndQuery;
use selvage_api::Code;
use tonic::{Request, Status, Streaming, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    Error, Result,
    containerd::connection::{lazy_channel, reason},
};

const VERSIONS: [&str; 2] = ["runtime.v1", "runtime.v1alpha2"];
const LARGEST_ANSWER: usize = 16 << 20;

/// Methods of the other service.
const IMAGES: [&str; 3] = ["ListImages", "PullImage", "RemoveImage"];

pub(super) struct Connection {
    channel: Channel,
    /// The version that was understood last.
    version: AtomicU8,
}

impl Connection {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { channel: lazy_channel(socket), version: AtomicU8::new(0) }
    }

    /// One call; where the newer version is unknown, by the older.
    pub(super) async fn call<Q, A>(&self, method: &str, request: Q, timeout: Duration) -> Result<A>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let known = usize::from(self.version.load(Ordering::Relaxed));
        let mut answer = self.ask(known, method, request.clone(), timeout).await;
        if matches!(&answer, Err(status) if status.code() == tonic::Code::Unimplemented) {
            let other = 1 - known;
            answer = self.ask(other, method, request, timeout).await;
            if answer.is_ok() {
                self.version.store(u8::from(other == 1), Ordering::Relaxed);
            }
        }
        answer.map_err(|status| refused(&status))
    }

    async fn ask<Q, A>(
        &self,
        version: usize,
        method: &str,
        request: Q,
        timeout: Duration,
    ) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = path(version, method)?;
        let asking = async {
            let mut grpc =
                Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
            grpc.ready().await.map_err(|error| {
                let mut status = Status::unavailable(error.to_string());
                status.set_source(std::sync::Arc::new(error));
                status
            })?;
            grpc.unary(Request::new(request), path, ProstCodec::default()).await
        };
        match tokio::time::timeout(timeout, asking).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::unavailable(format!("no answer within {} s", timeout.as_secs()))),
        }
    }

    /// A call that answers with a stream, by the version understood last.
    pub(super) fn stream<Q, A>(
        &self,
        method: &'static str,
        request: Q,
    ) -> impl Future<Output = Result<Streaming<A>>> + Send + use<Q, A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let version = usize::from(self.version.load(Ordering::Relaxed));
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        async move {
            let path = path(version, method).map_err(|status| refused(&status))?;
            grpc.ready()
                .await
                .map_err(|error| Error::CriUnreachable { reason: error.to_string() })?;
            let answer =
                grpc.server_streaming(Request::new(request), path, ProstCodec::default()).await;
            answer.map(tonic::Response::into_inner).map_err(|status| refused(&status))
        }
    }
}

fn path(version: usize, method: &str) -> Result<PathAndQuery, Status> {
    let service = if IMAGES.contains(&method) { "ImageService" } else { "RuntimeService" };
    format!("/{}.{service}/{method}", VERSIONS[version])
        .parse()
        .map_err(|_| Status::internal("a method that is none"))
}

fn refused(status: &Status) -> Error {
    match Code::from_grpc(status.code()) {
        Some(Code::Unavailable) | None => Error::CriUnreachable { reason: reason(status) },
        Some(Code::Internal | Code::Cancelled) if status.source().is_some() => {
            Error::CriUnreachable { reason: reason(status) }
        }
        Some(Code::Unimplemented) => Error::Unsupported { runtime: "cri", what: "this call" },
        Some(code) => Error::Refused { code, text: status.message().to_owned() },
    }
}
