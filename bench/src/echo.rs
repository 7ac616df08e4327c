//! A server that answers at once and does nothing: what gRPC itself costs.

use std::net::SocketAddr;

use anyhow::Result;
use futures::stream;
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::flavor_api_server::{FlavorApi, FlavorApiServer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

type Reply<T> = std::result::Result<Response<T>, Status>;

struct Plain;

#[tonic::async_trait]
impl FlavorApi for Plain {
    type ShowFlavorStream = stream::Empty<std::result::Result<wire::Flavor, Status>>;

    async fn create_flavor(&self, _: Request<wire::Flavor>) -> Reply<wire::Result> {
        Ok(Response::new(wire::Result::default()))
    }

    async fn delete_flavor(&self, _: Request<wire::Flavor>) -> Reply<wire::Result> {
        Ok(Response::new(wire::Result::default()))
    }

    async fn update_flavor(&self, _: Request<wire::Flavor>) -> Reply<wire::Result> {
        Ok(Response::new(wire::Result::default()))
    }

    async fn show_flavor(&self, _: Request<wire::Flavor>) -> Reply<Self::ShowFlavorStream> {
        Ok(Response::new(stream::empty()))
    }
}

/// The server, on loopback.
pub struct Echo {
    pub address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<std::result::Result<(), tonic::transport::Error>>,
}

impl Echo {
    pub fn open() -> Result<Self> {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = incoming.local_addr()?;
        let stop = CancellationToken::new();
        let ended = stop.clone().cancelled_owned();
        let serving = Server::builder()
            .add_service(FlavorApiServer::new(Plain))
            .serve_with_incoming_shutdown(incoming.with_nodelay(Some(true)), ended);
        Ok(Self { address, stop, serving: tokio::spawn(serving) })
    }

    pub async fn close(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.serving.await??)
    }
}
