//! The gRPC face of revisions.

use selvage_api::edgeproto::AppInst;
use selvage_api::selvage::revisions::revision_service_server::RevisionService;
use selvage_api::selvage::revisions::{
    ListRevisionsRequest, ListRevisionsResponse, RollBackRequest,
};
use tonic::{Request, Response, Status};

use super::InstanceService;
use super::plan::app::meant_key;
use super::rpc::{Messages, status, unpack_request};

#[tonic::async_trait]
impl RevisionService for InstanceService {
    type RollBackStream = Messages;

    async fn list_revisions(
        &self,
        request: Request<ListRevisionsRequest>,
    ) -> Result<Response<ListRevisionsResponse>, Status> {
        let named = request.map(|asked| AppInst { key: asked.key, ..Default::default() });
        let (_, _, inst) = unpack_request(named)?;
        let revisions = self.core.revisions(&meant_key(&inst)).await.map_err(status)?;
        Ok(Response::new(ListRevisionsResponse { revisions }))
    }

    async fn roll_back(
        &self,
        request: Request<RollBackRequest>,
    ) -> Result<Response<Messages>, Status> {
        let revision = request.get_ref().revision;
        let named = request.map(|asked| AppInst { key: asked.key, ..Default::default() });
        let (who, mode, inst) = unpack_request(named)?;
        let begun = self.core.begin_roll_back(self.by(&who, mode), &inst, revision).await;
        self.reply("roll back", &inst, begun, mode)
    }
}
