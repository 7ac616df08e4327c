//! The service of operations.

use std::result::Result;

use futures::StreamExt;
use selvage_api::selvage::operations::{operation_service_server::OperationService, *};
use tonic::{Request, Response, Status};

use super::{Answers, Fake, Reply};

#[tonic::async_trait]
impl OperationService for Fake {
    type FollowOperationStream = Answers<OperationEvent>;

    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Reply<ListOperationsResponse> {
        let ListOperationsRequest { active, kind, .. } = request.into_inner();
        let mut operations = self.0.operations.lock().unwrap().clone();
        operations.retain(|it| kind.is_empty() || it.kind == kind);
        operations.retain(|it| !active || it.state == i32::from(State::Running));
        Ok(Response::new(ListOperationsResponse { operations }))
    }

    /// Three lines; then, if it failed, its error.
    async fn follow_operation(
        &self,
        request: Request<FollowOperationRequest>,
    ) -> Reply<Self::FollowOperationStream> {
        let operations = self.0.operations.lock().unwrap();
        let found = operations.iter().find(|it| it.id == request.get_ref().id);
        let work = found.ok_or_else(|| Status::not_found("there is no such operation"))?.clone();
        let mut events: Vec<Result<OperationEvent, Status>> =
            ["Creating", "Ready", "Created successfully"]
                .iter()
                .map(|&message| {
                    let operation = Some(work.clone());
                    Ok(OperationEvent { message: message.into(), operation })
                })
                .collect();
        if work.error_code != 0 {
            events.truncate(1);
            events.push(Err(Status::new(work.error_code.into(), work.error)));
        }
        Ok(Response::new(futures::stream::iter(events).boxed()))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Reply<CancelOperationResponse> {
        let mut operations = self.0.operations.lock().unwrap();
        let found = operations.iter_mut().find(|it| it.id == request.get_ref().id);
        let found = found.ok_or_else(|| Status::not_found("there is no such operation"))?;
        found.cancelling = true;
        Ok(Response::new(CancelOperationResponse { operation: Some(found.clone()) }))
    }
}
