//! `selvage.operations.OperationService` on the engines of a process.
//!
//! Access: whoever started an operation may see it, members of the organisation
//! that owns its object, admins and viewers. The same without the viewers may
//! cancel it. To everybody else it does not exist.

use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use selvage_api::selvage::operations::{
    CancelOperationRequest, CancelOperationResponse, FollowOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, OperationEvent, State,
    operation_service_server::{OperationService, OperationServiceServer},
};
use selvage_kit::identity::{Identity, Role};
use tonic::{Request, Response, Status};

use crate::{Engine, Error, Event, Handle};

/// Serves the contract.
#[derive(Debug, Clone)]
pub struct OperationsApi(Vec<Engine>);

impl OperationsApi {
    /// Serves the operations of these engines. A part with a store of its own
    /// has its own engine.
    pub fn new(engines: impl IntoIterator<Item = Engine>) -> Self {
        Self(engines.into_iter().collect())
    }

    /// Returns the service to mount.
    pub fn service(self) -> OperationServiceServer<Self> {
        OperationServiceServer::new(self)
    }

    /// Returns a handle on an operation that the caller may see.
    async fn visible(&self, caller: &Identity, id: &str) -> Result<Handle, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("id: must not be empty"));
        }
        let handle = self.find(id).await?;
        if may_see(caller, &handle.operation()) {
            Ok(handle)
        } else {
            Err(Error::NotFound { id: id.to_owned() }.into())
        }
    }

    /// Returns a handle on an operation of any of the engines.
    async fn find(&self, id: &str) -> Result<Handle, Error> {
        for engine in &self.0 {
            match engine.attach_stored(id).await {
                Err(Error::NotFound { .. }) => {}
                found => return found,
            }
        }
        Err(Error::NotFound { id: id.to_owned() })
    }

    /// Returns the operations of all engines, the newest first.
    fn list(&self) -> Vec<Operation> {
        let mut all: Vec<Operation> = self.0.iter().flat_map(Engine::list).collect();
        // Ids begin with the time of the start.
        all.sort_by(|a, b| b.id.cmp(&a.id));
        all
    }
}

/// Returns the caller that the listener authenticated, or nobody.
fn caller<T>(request: &Request<T>) -> Identity {
    request.extensions().get().cloned().unwrap_or_else(Identity::anonymous)
}

fn may_cancel(caller: &Identity, operation: &Operation) -> bool {
    let started_it = !caller.name.is_empty() && caller.name == operation.started_by;
    let owns = |role| {
        !operation.organisation.is_empty()
            && caller.organisations(role).any(|mine| mine == operation.organisation)
    };
    caller.has_role(Role::Admin) || started_it || owns(Role::Operator) || owns(Role::Developer)
}

fn may_see(caller: &Identity, operation: &Operation) -> bool {
    caller.has_role(Role::Viewer) || may_cancel(caller, operation)
}

fn fits(request: &ListOperationsRequest, operation: &Operation) -> bool {
    let active = matches!(operation.state(), State::Running | State::Undoing);
    (active || !request.active)
        && (request.kind.is_empty() || request.kind == operation.kind)
        && (request.key.is_empty() || request.key == operation.key)
}

#[tonic::async_trait]
impl OperationService for OperationsApi {
    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        let caller = caller(&request);
        let request = request.into_inner();
        let mut operations = self.list();
        operations.retain(|operation| fits(&request, operation) && may_see(&caller, operation));
        Ok(Response::new(ListOperationsResponse { operations }))
    }

    type FollowOperationStream = BoxStream<'static, Result<OperationEvent, Status>>;

    async fn follow_operation(
        &self,
        request: Request<FollowOperationRequest>,
    ) -> Result<Response<Self::FollowOperationStream>, Status> {
        let handle = self.visible(&caller(&request), &request.get_ref().id).await?;
        let to_wire = |event: Event| OperationEvent {
            message: event.message,
            operation: Some(event.operation),
        };
        Ok(Response::new(handle.follow().map_ok(to_wire).map_err(Status::from).boxed()))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<CancelOperationResponse>, Status> {
        let caller = caller(&request);
        let handle = self.visible(&caller, &request.get_ref().id).await?;
        if !may_cancel(&caller, &handle.operation()) {
            let text = format!("not authorized: {} may look at this operation only", caller.name);
            return Err(Status::permission_denied(text));
        }
        let operation = handle.cancel(&caller.name).await?;
        Ok(Response::new(CancelOperationResponse { operation: Some(operation) }))
    }
}
