//! The contract through a real listener.

use std::{net::SocketAddr, sync::Arc};

use selvage_api::distributed_match_engine::{
    FindCloudletRequest, FqdnListRequest, GetLocationRequest,
    match_engine_api_client::MatchEngineApiClient,
};
use selvage_dme::{Dme, Settings, Upstream};
use selvage_kit::{
    clock::SystemClock,
    serve::{self, Limits, Services, Socket, Trust},
    telemetry::Metrics,
};
use selvage_notify::ClientOptions;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, transport::Channel};

use crate::lab::{Keys, app, asked, fill, instance, name, register};

/// A listener of some services.
pub(crate) struct Server {
    address: SocketAddr,
    _running: DropGuard,
}

impl Server {
    pub(crate) async fn of(services: Services) -> Self {
        Self::at(services, "127.0.0.1:0").await
    }

    async fn at(services: Services, address: &str) -> Self {
        let server = serve::Server::new(services, Metrics::new("test"), Limits::default());
        let server = server.await.unwrap();
        let socket = Socket::tcp(address.parse().unwrap(), None).unwrap();
        let address = socket.address().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.run(socket, Trust::Everybody, stop.clone()));
        Self { address, _running: stop.drop_guard() }
    }

    pub(crate) async fn client(self) -> Client {
        let endpoint = format!("http://{}", self.address);
        let client = MatchEngineApiClient::connect(endpoint).await.unwrap();
        Client { client, _server: self }
    }
}

/// A client, and what it talks to.
pub(crate) struct Client {
    client: MatchEngineApiClient<Channel>,
    _server: Server,
}

impl std::ops::Deref for Client {
    type Target = MatchEngineApiClient<Channel>;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

impl std::ops::DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.client
    }
}

async fn dme() -> (Dme, Services) {
    let nowhere = ClientOptions { addresses: vec!["127.0.0.1:1".into()], ..Default::default() };
    let upstream = Upstream { controllers: nowhere, keys: Arc::new(Keys::with(1)), mirror: None };
    let dme = Dme::open(Settings::default(), upstream, Arc::new(SystemClock)).unwrap();
    dme.engine().cookies().load().await.unwrap();
    let some = name("some");
    fill(
        dme.engine(),
        &[app(&some)],
        &[instance(&some, ("developer", "default"), (0.0, 0.0), "x")],
    );
    let mut services = Services::default();
    dme.add_to(&mut services);
    (dme, services)
}

#[tokio::test]
async fn a_device_with_an_address_of_the_new_kind_registers() {
    let (dme, services) = dme().await;
    let mut client = Server::at(services, "[::1]:0").await.client().await;
    let reply = client.register_client(register(&name("some"))).await.unwrap().into_inner();
    let session = dme.engine().cookies().verify(&reply.session_cookie).await.unwrap();
    assert_eq!(session.peer, "::1");
    let request =
        FindCloudletRequest { session_cookie: reply.session_cookie, ..asked("TDG", 1.0, 1.0) };
    let found = client.find_cloudlet(request).await.unwrap().into_inner();
    assert_eq!(found.fqdn, "x");
}

#[tokio::test]
async fn without_a_cookie_nothing_is_answered() {
    let (_dme, services) = dme().await;
    let mut client = Server::of(services).await.client().await;
    let refused = |status: tonic::Status| {
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(status.message(), "VerifyCookie failed: missing cookie");
    };
    refused(client.find_cloudlet(asked("TDG", 1.0, 1.0)).await.unwrap_err());
    refused(client.find_cloudlet(FindCloudletRequest::default()).await.unwrap_err());
    refused(client.verify_location(empty()).await.unwrap_err());
    refused(client.get_location(GetLocationRequest::default()).await.unwrap_err());
    refused(client.add_user_to_group(empty()).await.unwrap_err());
    refused(client.get_app_inst_list(empty()).await.unwrap_err());
    refused(client.get_fqdn_list(FqdnListRequest::default()).await.unwrap_err());
}

fn empty<T: Default>() -> tonic::Request<T> {
    tonic::Request::new(T::default())
}

#[tokio::test]
async fn where_the_carrier_sees_a_device_nobody_tells_us() {
    let (_dme, services) = dme().await;
    let mut client = Server::of(services).await.client().await;
    let cookie = client.register_client(register(&name("some"))).await.unwrap().into_inner();
    let request = GetLocationRequest {
        session_cookie: cookie.session_cookie,
        carrier_name: "TDG".into(),
        ..GetLocationRequest::default()
    };
    let reply = client.get_location(request).await.unwrap().into_inner();
    assert_eq!((reply.status, reply.carrier_name.as_str(), reply.tower), (1, "TDG", 0));
    assert_eq!(reply.network_location, Some(Default::default()));
}
