//! `csi.v1.Identity`.

use tonic::{Request, Response, Status};

use crate::{
    DRIVER,
    driver::Shared,
    wire::csi::{
        GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
        identity_server::Identity,
        plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion},
    },
};

#[tonic::async_trait]
impl Identity for Shared {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name: DRIVER.to_owned(), vendor_version }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service =
            |kind: service::Type| plugin_capability::Type::Service(Service { r#type: kind.into() });
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            plugin_capability::Type::VolumeExpansion(online),
        ];
        let capabilities = all.map(|one| PluginCapability { r#type: Some(one) }).to_vec();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        // Ready where lvmd is: nothing works without it.
        self.lvmd.free("").await?;
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
