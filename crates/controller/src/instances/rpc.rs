//! The gRPC face of the instances: a request starts an operation or is
//! refused; then the stream follows the operation, which goes on without it.

use std::sync::Arc;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
use selvage_api::edgeproto::{self as wire, TrackedState};
use selvage_kit::identity::Identity;
use tonic::{Request, Response, Status};

use super::InstanceService;
use super::core::Begun;
use super::error::{Error, Refusal};
use super::kind::Instance;
use super::plan::Origin;
use crate::controller::Mode;
use crate::services::{confirmed, mode_of};
use crate::tables::Tables;

pub(super) type Messages = BoxStream<'static, Result<wire::Result, Status>>;
type Reply<T> = Result<Response<T>, Status>;

fn message(text: String) -> wire::Result {
    wire::Result { message: text, code: 0 }
}

/// Returns the caller, the mode and the object of a request. A key that names
/// nothing is refused before anything else is said about it.
pub(super) fn unpack_request<I: Instance>(
    request: Request<I>,
) -> Result<(String, Mode, I), Status> {
    let mode = mode_of(request.metadata())?;
    let caller = request.extensions().get::<Identity>();
    let who = caller.map(|identity| identity.name.clone()).unwrap_or_default();
    let inst = request.into_inner();
    if let Some((_, text)) = inst.names().into_iter().find(|(name, _)| name.is_empty()) {
        return Err(status(Error::Invalid(text)));
    }
    Ok((who, mode, inst))
}

pub(super) fn status(error: Error) -> Status {
    crate::Error::from(error).into()
}

impl InstanceService {
    /// The stream of an operation, or of what is told before a refusal.
    pub(super) fn reply<I: Instance>(
        &self,
        what: &str,
        object: &I,
        begun: Result<Begun, Refusal>,
        mode: Mode,
    ) -> Reply<Messages> {
        let (notes, rest): (_, Messages) = match begun {
            Ok(Begun { notes, handle: Some(handle) }) => {
                let lines = match object.over().ignores_errors() {
                    // An agent that is not there is one of the errors.
                    true => handle.lines(),
                    false => self.core.lines(&handle, object.cloudlet_key().clone()),
                };
                let lines = lines.map(|line| match line {
                    Ok(line) => Ok(message(line)),
                    Err(failure) => Err(failure.into()),
                });
                (notes, lines.boxed())
            }
            Ok(Begun { mut notes, handle: None }) => {
                notes.push(format!("dry run: would {what} {} {}", I::TITLE, object.key_text()));
                (notes, stream::empty().boxed())
            }
            Err(refusal) if refusal.notes.is_empty() => return Err(status(refusal.error)),
            Err(refusal) => {
                let end = stream::iter([Err(status(refusal.error))]);
                (refusal.notes, end.boxed())
            }
        };
        let notes = stream::iter(notes.into_iter().map(|note| Ok(message(note))));
        Ok(confirmed(Response::new(notes.chain(rest).boxed()), mode))
    }
}

#[tonic::async_trait]
impl ClusterInstApi for InstanceService {
    type CreateClusterInstStream = Messages;
    type UpdateClusterInstStream = Messages;
    type DeleteClusterInstStream = Messages;
    type ShowClusterInstStream = BoxStream<'static, Result<wire::ClusterInst, Status>>;

    async fn create_cluster_inst(&self, request: Request<wire::ClusterInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let by = self.by(&who, mode);
        let begun = self.core.begin_create_cluster(by, &inst, Origin::Api).await;
        self.reply("create", &inst, begun, mode)
    }

    async fn update_cluster_inst(&self, request: Request<wire::ClusterInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let begun = self.core.begin_update_cluster(self.by(&who, mode), &inst).await;
        self.reply("update", &inst, begun, mode)
    }

    async fn delete_cluster_inst(&self, request: Request<wire::ClusterInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let begun = self.core.begin_delete_cluster(self.by(&who, mode), &inst).await;
        self.reply("delete", &inst, begun, mode)
    }

    async fn show_cluster_inst(
        &self,
        request: Request<wire::ClusterInst>,
    ) -> Reply<Self::ShowClusterInstStream> {
        Ok(Response::new(self.core.state.show(request.get_ref())?.boxed()))
    }
}

#[tonic::async_trait]
impl AppInstApi for InstanceService {
    type CreateAppInstStream = Messages;
    type UpdateAppInstStream = Messages;
    type DeleteAppInstStream = Messages;
    type ShowAppInstStream = BoxStream<'static, Result<wire::AppInst, Status>>;

    async fn create_app_inst(&self, request: Request<wire::AppInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let begun = self.core.begin_create_app(self.by(&who, mode), &inst).await;
        self.reply("create", &inst, begun, mode)
    }

    async fn update_app_inst(&self, request: Request<wire::AppInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let begun = self.core.begin_update_app(self.by(&who, mode), &inst).await;
        self.reply("update", &inst, begun, mode)
    }

    async fn delete_app_inst(&self, request: Request<wire::AppInst>) -> Reply<Messages> {
        let (who, mode, inst) = unpack_request(request)?;
        let begun = self.core.begin_delete_app(self.by(&who, mode), &inst).await;
        self.reply("delete", &inst, begun, mode)
    }

    async fn show_app_inst(
        &self,
        request: Request<wire::AppInst>,
    ) -> Reply<Self::ShowAppInstStream> {
        let state = Arc::clone(&self.core.state);
        // The App that an instance was pinned to may hold secrets.
        let filter = unpinned(request.into_inner());
        let shown = state.show(&filter)?;
        let seen = move |inst| with_cloudlet_state(unpinned(inst), &state.tables);
        Ok(Response::new(shown.map_ok(seen).boxed()))
    }
}

/// An instance as it is known from here: of a cloudlet that is away nobody can
/// tell that it answers.
fn with_cloudlet_state(mut inst: wire::AppInst, tables: &Tables) -> wire::AppInst {
    let info = tables.get::<wire::CloudletInfo>(inst.cloudlet_key());
    let away = info.is_some_and(|info| info.value.0.state() == wire::CloudletState::Offline);
    if away && matches!(inst.state(), TrackedState::Ready | TrackedState::UpdateError) {
        inst.runtime_info.get_or_insert_default().unhealthy = "its cloudlet is offline".into();
    }
    inst
}

fn unpinned(inst: wire::AppInst) -> wire::AppInst {
    wire::AppInst { pinned_app: None, ..inst }
}
