//! `selvage.volumes`.

use selvage_api::selvage::volumes::{
    CreateCloneRequest, CreateSnapshotRequest, DeviceClass, ListDeviceClassesRequest,
    ListDeviceClassesResponse, ListVolumesRequest, ListVolumesResponse, RevertVolumeRequest,
    Volume as Described,
    volumes_service_server::{VolumesService, VolumesServiceServer},
};
use tonic::{Request, Response, Status};

use crate::{Error, NewSnapshot, Volume, Volumes, backup, config};

pub(crate) struct VolumesApi {
    volumes: Volumes,
}

impl VolumesApi {
    pub(crate) fn service(volumes: Volumes) -> VolumesServiceServer<Self> {
        VolumesServiceServer::new(Self { volumes })
    }

    fn describe(&self, class: &str, volume: Volume) -> Result<Described, Error> {
        let classes = self.volumes.classes();
        let class = classes.find(class)?;
        Ok(describe(class, volume))
    }
}

#[tonic::async_trait]
impl VolumesService for VolumesApi {
    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let wanted = request.into_inner().device_class;
        let classes = self.volumes.classes();
        let mut volumes = Vec::new();
        if wanted.is_empty() {
            for class in classes.all() {
                // A class without its group has no volumes.
                let listed = self.volumes.list(&class.name).unwrap_or_default();
                volumes.extend(listed.into_iter().map(|volume| describe(class, volume)));
            }
        } else {
            let class = classes.find(&wanted)?;
            let listed = self.volumes.list(&wanted)?;
            volumes.extend(listed.into_iter().map(|volume| describe(class, volume)));
        }
        Ok(Response::new(ListVolumesResponse { volumes }))
    }

    async fn list_device_classes(
        &self,
        _: Request<ListDeviceClassesRequest>,
    ) -> Result<Response<ListDeviceClassesResponse>, Status> {
        let classes = self.volumes.classes();
        let groups = self.volumes.groups();
        let describe = |class: &config::DeviceClass| {
            let pool = class.pool().map(|pool| pool.name.clone());
            let group = groups.get(&class.volume_group);
            let held = group.and_then(|group| class.holding(group));
            DeviceClass {
                name: class.name.clone(),
                group: class.volume_group.clone(),
                pool: pool.unwrap_or_default(),
                default: class.default,
                size_bytes: held.map(|held| held.size).unwrap_or_default(),
                promised_bytes: held.map(|held| held.promised).unwrap_or_default(),
                used_bytes: held.and_then(|held| held.used).unwrap_or_default(),
                free_bytes: self.volumes.free(&class.name).unwrap_or_default(),
                spare_bytes: class.spare(),
                missing: held.is_none() || group.is_some_and(|group| group.missing > 0),
            }
        };
        let device_classes = classes.all().iter().map(describe).collect();
        Ok(Response::new(ListDeviceClassesResponse { device_classes }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<Described>, Status> {
        let request = request.into_inner();
        let room = request.change_room_bytes;
        let new = NewSnapshot {
            source: request.source,
            name: request.name,
            tags: request.tags,
            read_only: !request.writable,
            change_room: (room > 0).then_some(room),
            ..NewSnapshot::default()
        };
        let made = self.volumes.snapshot(&request.device_class, new).await?;
        Ok(Response::new(self.describe(&request.device_class, made)?))
    }

    async fn create_clone(
        &self,
        request: Request<CreateCloneRequest>,
    ) -> Result<Response<Described>, Status> {
        let CreateCloneRequest { source, name, device_class, tags } = request.into_inner();
        let new = NewSnapshot { source, name, tags, ..NewSnapshot::default() };
        let made = self.volumes.clone_volume(&device_class, new).await?;
        Ok(Response::new(self.describe(&device_class, made)?))
    }

    async fn revert_volume(
        &self,
        request: Request<RevertVolumeRequest>,
    ) -> Result<Response<Described>, Status> {
        let RevertVolumeRequest { volume, snapshot, device_class } = request.into_inner();
        for (field, value) in [("volume", &volume), ("snapshot", &snapshot)] {
            if value.is_empty() {
                return Err(Error::Invalid(format!("{field} is required")).into());
            }
        }
        let reverted = self.volumes.revert(&device_class, &volume, &snapshot).await?;
        Ok(Response::new(self.describe(&device_class, reverted)?))
    }
}

/// Returns the purpose of a volume that is not for clients.
fn purpose(volume: &Volume) -> &'static str {
    let marked = |mark: &str| volume.tags.iter().any(|tag| tag.starts_with(mark));
    match () {
        () if marked(backup::BACKUP_TAG) => "backup",
        () if marked(backup::RESTORE_TAG) || marked(backup::REPLACE_TAG) => "restore",
        () => "",
    }
}

fn describe(class: &config::DeviceClass, volume: Volume) -> Described {
    let pending = volume.is_pending();
    Described {
        purpose: purpose(&volume).to_owned(),
        name: volume.name,
        device_class: class.name.clone(),
        group: class.volume_group.clone(),
        size_bytes: volume.size,
        tags: volume.tags,
        dev_major: volume.major,
        dev_minor: volume.minor,
        path: volume.path.display().to_string(),
        pool: volume.pool.unwrap_or_default(),
        origin: volume.origin.unwrap_or_default(),
        change_room_bytes: volume.change_room.unwrap_or_default(),
        read_only: volume.read_only,
        pending,
    }
}
