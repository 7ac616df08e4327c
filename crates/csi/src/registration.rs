//! `pluginregistration.Registration`: how a kubelet learns of the driver.

use std::path::PathBuf;

use tonic::{Request, Response, Status};

use crate::{
    DRIVER,
    wire::registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
};

/// Registers the driver that answers on a socket.
pub(crate) struct Registrar {
    pub(crate) endpoint: PathBuf,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        match status.plugin_registered {
            true => tracing::info!("the kubelet knows the driver of volumes"),
            false => {
                tracing::warn!(error = status.error, "the kubelet refuses the driver of volumes")
            }
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
