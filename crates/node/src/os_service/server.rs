//! The generated server, with one method of it answered in bytes that are
//! there already: what is told of processes is kept as it goes over the wire.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes};
use futures::future::BoxFuture;
use prost::encoding::{self, WireType};
use selvage_api::os::os_service_server::OsServiceServer;
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, EncodeBuf, Encoder},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::{ProstCodec, ProstDecoder};
use tower::Service;

use super::{Os, may_see_secrets};

const PROCESSES: &str = "/os.OSService/Processes";

/// Number of `messages` in `os.ProcessesResponse`.
const MESSAGES: u32 = 1;

#[derive(Clone)]
pub(crate) struct OsServer {
    os: Os,
    generated: OsServiceServer<Os>,
}

impl OsServer {
    pub(super) fn new(os: Os) -> Self {
        Self { generated: OsServiceServer::new(os.clone()), os }
    }
}

impl NamedService for OsServer {
    const NAME: &'static str = <OsServiceServer<Os> as NamedService>::NAME;
}

impl Service<http::Request<Body>> for OsServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PROCESSES {
            return self.generated.call(request);
        }
        let processes = Processes(self.os.clone());
        Box::pin(async move { Ok(Grpc::new(MessageCodec).unary(processes, request).await) })
    }
}

struct Processes(Os);

impl UnaryService<()> for Processes {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let os = self.0.clone();
        Box::pin(async move {
            let secrets = may_see_secrets(&request);
            let message = os.scanned(move |scanner| scanner.message(secrets)).await?;
            Ok(Response::new(message))
        })
    }
}

/// Answers are the bytes of a message `os.Process`.
#[derive(Clone, Copy)]
struct MessageCodec;

impl Codec for MessageCodec {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = Self;
    type Decoder = ProstDecoder<()>;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> ProstDecoder<()> {
        ProstCodec::<(), ()>::default().decoder()
    }
}

impl Encoder for MessageCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let length = message.len() as u64;
        to.reserve(message.len() + 1 + encoding::encoded_len_varint(length));
        encoding::encode_key(MESSAGES, WireType::LengthDelimited, to);
        encoding::encode_varint(length, to);
        to.put_slice(&message);
        Ok(())
    }
}
