//! `csi.v1.Controller`: volumes of this machine. What serves claims uses the
//! same functions.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use crate::{
    Error, Result, TOPOLOGY,
    driver::Shared,
    volume::{self, VolumeId},
    wire::csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
        ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse,
        DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
        Topology, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
        controller_server::Controller,
        controller_service_capability::{self, Rpc, rpc},
        validate_volume_capabilities_response::Confirmed,
        volume_capability::AccessType,
    },
};

type Answer<T> = std::result::Result<Response<T>, Status>;

impl Shared {
    pub(crate) fn topology(&self) -> Topology {
        Topology { segments: BTreeMap::from([(TOPOLOGY.to_owned(), self.node.clone())]) }
    }

    /// Makes a volume, unless it is there; returns its size.
    pub(crate) async fn make(&self, id: &VolumeId, range: Option<&CapacityRange>) -> Result<u64> {
        let size = volume::size_gb(range)?;
        let _turn = self.turn(id)?;
        if let Some(found) = self.lvmd.find(id).await? {
            return match volume::fits(found.size, range) {
                true => Ok(found.size),
                false => {
                    Err(Error::Exists(format!("volume {id} is there with {} bytes", found.size)))
                }
            };
        }
        self.lvmd.create(id, size).await?;
        let found = self.lvmd.find(id).await?;
        Ok(found.ok_or_else(|| Error::NoVolume(id.to_string()))?.size)
    }

    /// Grows a volume, unless it is large enough; returns its size.
    pub(crate) async fn expand(&self, id: &VolumeId, range: Option<&CapacityRange>) -> Result<u64> {
        let size = volume::size_gb(range)?;
        let _turn = self.turn(id)?;
        self.lvmd.grow(id, size).await
    }

    /// Removes a volume; one that is not there is no error.
    pub(crate) async fn remove(&self, id: &VolumeId) -> Result<()> {
        let _turn = self.turn(id)?;
        self.lvmd.remove(id).await
    }

    fn check_topology(&self, request: &CreateVolumeRequest) -> Result<()> {
        let Some(wanted) = &request.accessibility_requirements else { return Ok(()) };
        match wanted.requisite.is_empty() || wanted.requisite.contains(&self.topology()) {
            true => Ok(()),
            false => Err(Error::NoRoom("the volume has to be on another machine".into())),
        }
    }
}

#[tonic::async_trait]
impl Controller for Shared {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Error::invalid("name", "is needed").into());
        }
        volume::usages(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(Error::invalid("volume_content_source", "is not supported").into());
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Error::invalid("mutable_parameters", "are not supported").into());
        }
        let class = volume::device_class(&request.parameters)?;
        self.check_topology(&request)?;
        let id = VolumeId::for_name(&request.name, &class);
        let size = self.make(&id, request.capacity_range.as_ref()).await?;
        let volume = Volume {
            capacity_bytes: size.cast_signed(),
            volume_id: id.to_string(),
            volume_context: BTreeMap::new(),
            accessible_topology: vec![self.topology()],
        };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Answer<DeleteVolumeResponse> {
        match request.into_inner().volume_id.parse() {
            Ok(id) => self.remove(&id).await?,
            // No volume of ours has such a handle, so there is nothing to remove.
            Err(Error::NoVolume(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id: VolumeId = request.volume_id.parse()?;
        if request.volume_capabilities.is_empty() {
            volume::usages(&[])?;
        }
        self.lvmd.find(&id).await?.ok_or_else(|| Error::NoVolume(id.to_string()))?;
        if let Err(error) = volume::usages(&request.volume_capabilities) {
            let message = error.to_string();
            let answer = ValidateVolumeCapabilitiesResponse { confirmed: None, message };
            return Ok(Response::new(answer));
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(Response::new(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Answer<GetCapacityResponse> {
        let request = request.into_inner();
        let elsewhere = request.accessible_topology.is_some_and(|asked| asked != self.topology());
        if elsewhere
            || request.volume_capabilities.iter().any(|one| volume::usage(Some(one)).is_err())
        {
            return Ok(Response::new(GetCapacityResponse { available_capacity: 0 }));
        }
        let class = volume::device_class(&request.parameters)?;
        let free = self.lvmd.free(&class).await?;
        let available_capacity = i64::try_from(free).unwrap_or(i64::MAX);
        Ok(Response::new(GetCapacityResponse { available_capacity }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let all = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::GetCapacity,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = all.map(capability).to_vec();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let id: VolumeId = request.volume_id.parse()?;
        let range = request.capacity_range;
        if range.is_none() {
            return Err(Error::invalid("capacity_range", "is needed").into());
        }
        let size = self.expand(&id, range.as_ref()).await?;
        let access = request.volume_capability.and_then(|capability| capability.access_type);
        Ok(Response::new(ControllerExpandVolumeResponse {
            capacity_bytes: size.cast_signed(),
            node_expansion_required: !matches!(access, Some(AccessType::Block(_))),
        }))
    }
}
