//! The contract, served.

use std::{net::IpAddr, sync::Arc, time::Instant};

use selvage_api::distributed_match_engine::{
    AppInstListReply, AppInstListRequest, DlgMessage, DlgReply, DynamicLocGroupReply,
    DynamicLocGroupRequest, FindCloudletReply, FindCloudletRequest, FqdnListReply, FqdnListRequest,
    GetLocationReply, GetLocationRequest, RegisterClientReply, RegisterClientRequest,
    VerifyLocationReply, VerifyLocationRequest,
    dynamic_loc_group_api_server::{DynamicLocGroupApi, DynamicLocGroupApiServer},
    match_engine_api_server::{MatchEngineApi, MatchEngineApiServer},
};
use selvage_kit::identity::{Connection, Peer};
use tonic::{Request, Response, Status};

use crate::{cookie::Session, engine::Engine, error::Result, stats::Method, table::AppName};

type Answer<T> = std::result::Result<Response<T>, Status>;

/// Serves an engine.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<Engine>);

impl Service {
    pub(crate) fn matching(engine: &Arc<Engine>) -> MatchEngineApiServer<Self> {
        MatchEngineApiServer::new(Self(Arc::clone(engine)))
    }

    pub(crate) fn groups(engine: &Arc<Engine>) -> DynamicLocGroupApiServer<Self> {
        DynamicLocGroupApiServer::new(Self(Arc::clone(engine)))
    }

    /// Counts how a call ended, for apps that are known.
    fn counted<T>(
        &self,
        app: &AppName,
        method: Method,
        begun: Instant,
        outcome: Result<T>,
    ) -> Answer<T> {
        let table = self.0.feed.table();
        match table.app(app) {
            Some(entry) => entry.stats.count(method, begun.elapsed(), outcome.is_err()),
            None => {
                if let Some(stats) = self.0.stats.find(app) {
                    stats.count(method, begun.elapsed(), outcome.is_err());
                }
            }
        }
        Ok(Response::new(outcome?))
    }

    async fn session(&self, cookie: &str) -> Result<Arc<Session>> {
        self.0.cookies.verify(cookie).await
    }
}

/// The device's address, of whatever kind; empty when there is none.
fn address<T>(request: &Request<T>) -> String {
    let connection = request.extensions().get::<Connection>();
    let of_listener = connection.and_then(|connection| match connection.peer {
        Peer::Ip(ip) => Some(ip),
        Peer::Unix(_) => None,
    });
    let of_socket = || request.remote_addr().map(|address| address.ip());
    of_listener
        .or_else(of_socket)
        .map(|ip: IpAddr| ip.to_canonical().to_string())
        .unwrap_or_default()
}

#[tonic::async_trait]
impl MatchEngineApi for Service {
    async fn register_client(
        &self,
        request: Request<RegisterClientRequest>,
    ) -> Answer<RegisterClientReply> {
        let begun = Instant::now();
        let peer = address(&request);
        let asked = request.into_inner();
        let outcome = self.0.register(&asked, &peer);
        let app = AppName::new(asked.dev_name, asked.app_name, asked.app_vers);
        self.counted(&app, Method::RegisterClient, begun, outcome)
    }

    async fn find_cloudlet(
        &self,
        request: Request<FindCloudletRequest>,
    ) -> Answer<FindCloudletReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = self.0.find(&session, &asked);
        self.counted(&session.app, Method::FindCloudlet, begun, outcome)
    }

    async fn verify_location(
        &self,
        request: Request<VerifyLocationRequest>,
    ) -> Answer<VerifyLocationReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = self.0.verify_location(&session, &asked).await;
        self.counted(&session.app, Method::VerifyLocation, begun, outcome)
    }

    async fn get_location(&self, request: Request<GetLocationRequest>) -> Answer<GetLocationReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = Ok(self.0.location(&asked));
        self.counted(&session.app, Method::GetLocation, begun, outcome)
    }

    async fn add_user_to_group(
        &self,
        request: Request<DynamicLocGroupRequest>,
    ) -> Answer<DynamicLocGroupReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = self.0.join_group(&session, &asked);
        self.counted(&session.app, Method::AddUserToGroup, begun, outcome)
    }

    async fn get_app_inst_list(
        &self,
        request: Request<AppInstListRequest>,
    ) -> Answer<AppInstListReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = self.0.list(&session, &asked);
        self.counted(&session.app, Method::GetAppInstList, begun, outcome)
    }

    async fn get_fqdn_list(&self, request: Request<FqdnListRequest>) -> Answer<FqdnListReply> {
        let begun = Instant::now();
        let asked = request.into_inner();
        let session = self.session(&asked.session_cookie).await?;
        let outcome = self.0.fqdns(&session);
        self.counted(&session.app, Method::GetFqdnList, begun, outcome)
    }
}

#[tonic::async_trait]
impl DynamicLocGroupApi for Service {
    async fn send_to_group(&self, request: Request<DlgMessage>) -> Answer<DlgReply> {
        Ok(Response::new(self.0.send_to_group(request.get_ref()).await?))
    }
}
