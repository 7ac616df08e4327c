//! `csi.v1.Controller`: volumes of this machine and their snapshots. What serves
//! claims uses the same functions.

use std::collections::BTreeMap;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use crate::{
    Error, Result, TOPOLOGY,
    driver::Shared,
    snapshot::{self, Origin},
    volume::{self, VolumeId},
    wire::csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
        ControllerServiceCapability, CreateSnapshotRequest, CreateSnapshotResponse,
        CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
        DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
        ListSnapshotsRequest, ListSnapshotsResponse, Snapshot, Topology,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
        VolumeContentSource,
        controller_server::Controller,
        controller_service_capability::{self, Rpc, rpc},
        list_snapshots_response::Entry,
        validate_volume_capabilities_response::Confirmed,
        volume_capability::AccessType,
        volume_content_source::{SnapshotSource, Type as Source, VolumeSource},
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
            let is_volume = snapshot::Snapshot::of(&found).is_none();
            return match is_volume && volume::fits(found.size, range) {
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
        match self.find_snapshot(id).await? {
            None => self.lvmd.remove(id).await,
            // There is no volume of that name.
            Some(_) => Ok(()),
        }
    }

    fn check_topology(&self, request: &CreateVolumeRequest) -> Result<()> {
        let Some(wanted) = &request.accessibility_requirements else { return Ok(()) };
        match wanted.requisite.is_empty() || wanted.requisite.contains(&self.topology()) {
            true => Ok(()),
            false => Err(Error::NoRoom("the volume has to be on another machine".into())),
        }
    }
}

/// Reads what a volume is to begin with.
fn origin(source: &VolumeContentSource) -> Result<Origin> {
    match &source.r#type {
        Some(Source::Snapshot(SnapshotSource { snapshot_id })) => match snapshot_id.parse() {
            Ok(id) => Ok(Origin::Snapshot(id)),
            Err(_) => Err(Error::NoSnapshot(snapshot_id.clone())),
        },
        Some(Source::Volume(VolumeSource { volume_id })) => Ok(Origin::Volume(volume_id.parse()?)),
        None => Err(Error::invalid("volume_content_source", "snapshot or volume is needed")),
    }
}

fn described(snapshot: &snapshot::Snapshot) -> Snapshot {
    Snapshot {
        size_bytes: snapshot.size.cast_signed(),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(Timestamp { seconds: snapshot.taken.as_second(), nanos: 0 }),
        ready_to_use: true,
    }
}

/// Returns so many of a sorted list, from the token on, which is the last one that
/// the caller knows.
fn page(listed: Vec<Snapshot>, most: usize, token: &str) -> Result<ListSnapshotsResponse> {
    if !token.is_empty() && token.parse::<VolumeId>().is_err() {
        return Err(Error::Token(token.to_owned()));
    }
    let mut rest = listed.into_iter().filter(|one| one.snapshot_id.as_str() > token);
    let most = if most == 0 { usize::MAX } else { most };
    let entries: Vec<Snapshot> = rest.by_ref().take(most).collect();
    let last = entries.last().map(|one| one.snapshot_id.clone());
    let next_token = rest.next().and(last).unwrap_or_default();
    let entries = entries.into_iter().map(|one| Entry { snapshot: Some(one) }).collect();
    Ok(ListSnapshotsResponse { entries, next_token })
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
        if !request.mutable_parameters.is_empty() {
            return Err(Error::invalid("mutable_parameters", "are not supported").into());
        }
        let class = volume::device_class(&request.parameters)?;
        self.check_topology(&request)?;
        let id = VolumeId::for_name(&request.name, &class);
        let range = request.capacity_range.as_ref();
        let size = match &request.volume_content_source {
            None => self.make(&id, range).await?,
            Some(source) => {
                let origin = origin(source)?;
                volume::same_class(&id, origin.id())?;
                self.make_from(&id, &origin, range).await?
            }
        };
        let volume = Volume {
            capacity_bytes: size.cast_signed(),
            volume_id: id.to_string(),
            volume_context: BTreeMap::new(),
            content_source: request.volume_content_source,
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
        self.lvmd.volume(&id).await?;
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

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Error::invalid("name", "is needed").into());
        }
        if request.source_volume_id.is_empty() {
            return Err(Error::invalid("source_volume_id", "is needed").into());
        }
        volume::snapshot_parameters(&request.parameters)?;
        let source: VolumeId = request.source_volume_id.parse()?;
        let taken = self.snapshot(&source, &request.name).await?;
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(described(&taken)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        if id.is_empty() {
            return Err(Error::invalid("snapshot_id", "is needed").into());
        }
        match id.parse() {
            Ok(id) => self.remove_snapshot(&id).await?,
            // No snapshot of ours has such a handle, so there is nothing to remove.
            Err(Error::NoVolume(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Answer<ListSnapshotsResponse> {
        let request = request.into_inner();
        let most = usize::try_from(request.max_entries)
            .map_err(|_| Error::invalid("max_entries", "is negative"))?;
        let mut listed: Vec<Snapshot> =
            self.lvmd.snapshots().await?.iter().map(described).collect();
        let wanted = |asked: &str, is: &str| asked.is_empty() || asked == is;
        listed.retain(|one| {
            wanted(&request.snapshot_id, &one.snapshot_id)
                && wanted(&request.source_volume_id, &one.source_volume_id)
        });
        listed.sort_by(|one, other| one.snapshot_id.cmp(&other.snapshot_id));
        Ok(Response::new(page(listed, most, &request.starting_token)?))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let all = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::GetCapacity,
            rpc::Type::CreateDeleteSnapshot,
            rpc::Type::ListSnapshots,
            rpc::Type::CloneVolume,
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
