//! Commands in instances.

use selvage_api::edgeproto as wire;
use tonic::{Request, Response};

use super::{Api, Reply};

#[tonic::async_trait]
impl wire::exec_api_server::ExecApi for Api {
    async fn run_command(&self, request: Request<wire::ExecRequest>) -> Reply<wire::ExecRequest> {
        let reply = self.controller.run_command(request.into_inner()).await?;
        Ok(Response::new(reply))
    }

    async fn send_local_request(
        &self,
        request: Request<wire::ExecRequest>,
    ) -> Reply<wire::ExecRequest> {
        let reply = self.controller.run_command_here(request.into_inner()).await?;
        Ok(Response::new(reply))
    }
}
