//! The gRPC face of the controller. Nothing is decided here: a request is
//! taken apart, handed on, and its outcome put into a reply.

mod exec;
mod infos;
mod plain;
mod shell;
mod streams;

use std::sync::Arc;

use futures::stream::BoxStream;
use selvage_api::edgeproto as wire;
use selvage_api::selvage::metrics::metrics_service_server::MetricsServiceServer;
use selvage_api::selvage::shell::shell_service_server::ShellServiceServer;
use selvage_kit::identity::Identity;
use selvage_kit::serve::Services;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use crate::controller::{Controller, Mode};
use crate::error::{Error, Result};

pub use shell::WEB_SOCKET;

/// Metadata that asks for a dry run.
pub const DRY_RUN: &str = "x-selvage-dry-run";

type Reply<T> = std::result::Result<Response<T>, Status>;
type Streamed<M> = BoxStream<'static, std::result::Result<M, Status>>;

/// All services of the plain objects.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    controller: Arc<Controller>,
}

/// Mode of a call, from its metadata.
pub fn mode_of(metadata: &MetadataMap) -> Result<Mode> {
    Ok(if flag(metadata, DRY_RUN)? { Mode::DryRun } else { Mode::Real })
}

fn flag(metadata: &MetadataMap, name: &str) -> Result<bool> {
    match metadata.get(name).map(|value| value.as_bytes()) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(Error::invalid(format!("{name} must be true or false"))),
    }
}

/// Identity of the caller.
fn caller<M>(request: &Request<M>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_else(Identity::anonymous)
}

/// A request's mode and message.
fn unpack_request<M>(request: Request<M>) -> Result<(M, Mode)> {
    let mode = mode_of(request.metadata())?;
    Ok((request.into_inner(), mode))
}

fn done(summary: String, mode: Mode) -> Response<wire::Result> {
    confirmed(Response::new(wire::Result { message: summary, code: 0 }), mode)
}

/// Tells a caller who wanted a dry run that it was one: a server that does not
/// know of dry runs would have done it.
pub(crate) fn confirmed<T>(mut response: Response<T>, mode: Mode) -> Response<T> {
    if mode == Mode::DryRun {
        response.metadata_mut().insert(DRY_RUN, MetadataValue::from_static("true"));
    }
    response
}

impl Controller {
    /// Mounts every service of the controller but that of operations, which is
    /// the process's.
    pub fn add_to(self: &Arc<Self>, services: &mut Services) {
        let api = Api { controller: Arc::clone(self) };
        macro_rules! add {
            ($($module:ident::$server:ident,)+) => {
                $(services.add(wire::$module::$server::new(api.clone()));)+
            };
        }
        add! {
            developer_api_server::DeveloperApiServer,
            operator_api_server::OperatorApiServer,
            flavor_api_server::FlavorApiServer,
            cluster_api_server::ClusterApiServer,
            cloudlet_api_server::CloudletApiServer,
            cloudlet_info_api_server::CloudletInfoApiServer,
            app_api_server::AppApiServer,
            app_inst_info_api_server::AppInstInfoApiServer,
            cluster_inst_info_api_server::ClusterInstInfoApiServer,
            app_inst_metrics_api_server::AppInstMetricsApiServer,
            cloudlet_metrics_api_server::CloudletMetricsApiServer,
            cloudlet_refs_api_server::CloudletRefsApiServer,
            cluster_refs_api_server::ClusterRefsApiServer,
            controller_api_server::ControllerApiServer,
            node_api_server::NodeApiServer,
            exec_api_server::ExecApiServer,
        }
        services.add(MetricsServiceServer::new(api.clone()));
        services.add(ShellServiceServer::new(api));
        services.add(self.notify().service());
    }
}
