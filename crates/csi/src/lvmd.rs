//! lvmd by its contract, on its socket.

use std::path::{Path, PathBuf};

use selvage_api::{
    proto::{
        CreateLvRequest, GetFreeBytesRequest, GetLvListRequest, LogicalVolume, RemoveLvRequest,
        ResizeLvRequest, lv_service_client::LvServiceClient, vg_service_client::VgServiceClient,
    },
    selvage::volumes::{
        CreateCloneRequest, ListVolumesRequest, volumes_service_client::VolumesServiceClient,
    },
};
use tonic::transport::Channel;

use crate::{
    Error, Result,
    snapshot::Snapshot,
    volume::{GIB, VolumeId},
};

/// A volume with its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeInfo {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) device: PathBuf,
    pub(crate) numbers: (u32, u32),
    pub(crate) tags: Vec<String>,
}

impl VolumeInfo {
    /// Returns what follows the beginning of a tag.
    pub(crate) fn tag(&self, beginning: &str) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(beginning))
    }
}

/// Client of lvmd. Clones are the same.
#[derive(Clone)]
pub(crate) struct Lvmd {
    channel: Channel,
    /// Tag of the volumes that are made.
    tag: String,
}

impl Lvmd {
    pub(crate) fn new(socket: &Path, tag: String) -> Self {
        Self { channel: selvage_kit::dial::unix(socket), tag }
    }

    fn volumes(&self) -> LvServiceClient<Channel> {
        LvServiceClient::new(self.channel.clone())
    }

    fn groups(&self) -> VgServiceClient<Channel> {
        VgServiceClient::new(self.channel.clone())
    }

    fn copies(&self) -> VolumesServiceClient<Channel> {
        VolumesServiceClient::new(self.channel.clone())
    }

    /// Returns a volume or snapshot; none when it is not there.
    pub(crate) async fn find(&self, id: &VolumeId) -> Result<Option<VolumeInfo>> {
        let request = GetLvListRequest { device_class: id.class.clone() };
        let listed = match self.groups().get_lv_list(request).await {
            Ok(listed) => listed.into_inner().volumes,
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
            Err(status) => return Err(status.into()),
        };
        Ok(listed.into_iter().find(|volume| volume.name == id.name).map(found))
    }

    /// Returns a volume that has to be there, and is no snapshot.
    pub(crate) async fn volume(&self, id: &VolumeId) -> Result<VolumeInfo> {
        let found = self.find(id).await?.filter(|found| Snapshot::of(found).is_none());
        found.ok_or_else(|| Error::NoVolume(id.to_string()))
    }

    /// Returns a volume that has to be there, with a device.
    pub(crate) async fn device(&self, id: &VolumeId) -> Result<VolumeInfo> {
        let found = self.volume(id).await?;
        if found.numbers == (0, 0) {
            return Err(Error::Precondition(format!("volume {id} has no block device")));
        }
        Ok(found)
    }

    pub(crate) async fn create(&self, id: &VolumeId, size_gb: u64) -> Result<()> {
        let request = CreateLvRequest {
            name: id.name.clone(),
            size_gb,
            tags: vec![self.tag.clone()],
            device_class: id.class.clone(),
            data_source: None,
        };
        self.volumes().create_lv(request).await?;
        Ok(())
    }

    /// Grows a volume; one that is large enough stays as it is.
    pub(crate) async fn grow(&self, id: &VolumeId, size_gb: u64) -> Result<u64> {
        let found = self.volume(id).await?;
        let size = size_gb.saturating_mul(GIB);
        if found.size >= size {
            return Ok(found.size);
        }
        let (name, device_class) = (id.name.clone(), id.class.clone());
        self.volumes().resize_lv(ResizeLvRequest { name, size_gb, device_class }).await?;
        Ok(size)
    }

    /// Removes a volume; one that is not there is no error.
    pub(crate) async fn remove(&self, id: &VolumeId) -> Result<()> {
        let (name, device_class) = (id.name.clone(), id.class.clone());
        match self.volumes().remove_lv(RemoveLvRequest { name, device_class }).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(status.into()),
        }
    }

    /// Copies a volume or snapshot as it is at this moment.
    pub(crate) async fn copy(
        &self,
        source: &VolumeId,
        to: &VolumeId,
        mut tags: Vec<String>,
    ) -> Result<()> {
        tags.push(self.tag.clone());
        let request = CreateCloneRequest {
            source: source.name.clone(),
            name: to.name.clone(),
            device_class: source.class.clone(),
            tags,
        };
        match self.copies().create_clone(request).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                Err(Error::Precondition("the lvmd of this machine makes no snapshots".into()))
            }
            // It is not shown before it is whole: an earlier call goes on with it.
            Err(status) if status.code() == tonic::Code::AlreadyExists => {
                Err(Error::Busy(to.to_string()))
            }
            Err(status) => Err(status.into()),
        }
    }

    /// Lists all snapshots of this machine's volumes.
    pub(crate) async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let listed = self.copies().list_volumes(ListVolumesRequest::default()).await;
        let listed = match listed {
            Ok(listed) => listed.into_inner().volumes,
            Err(status) if status.code() == tonic::Code::Unimplemented => return Ok(Vec::new()),
            Err(status) => return Err(status.into()),
        };
        let ours = listed.into_iter().filter(|one| !one.pending && one.tags.contains(&self.tag));
        let read = ours.map(|volume| VolumeInfo {
            name: volume.name,
            size: volume.size_bytes,
            device: volume.path.into(),
            numbers: (volume.dev_major, volume.dev_minor),
            tags: volume.tags,
        });
        Ok(read.filter_map(|volume| Snapshot::of(&volume)).collect())
    }

    pub(crate) async fn free(&self, class: &str) -> Result<u64> {
        let request = GetFreeBytesRequest { device_class: class.to_owned() };
        Ok(self.groups().get_free_bytes(request).await?.into_inner().free_bytes)
    }
}

fn found(volume: LogicalVolume) -> VolumeInfo {
    let numbers = (volume.dev_major, volume.dev_minor);
    // Earlier versions of lvmd do not tell the path.
    let device = match volume.path.as_str() {
        "" => PathBuf::from(format!("/dev/block/{}:{}", numbers.0, numbers.1)),
        path => PathBuf::from(path),
    };
    let size = match u64::try_from(volume.size_bytes) {
        Ok(bytes) if bytes > 0 => bytes,
        _ => volume.size_gb.saturating_mul(GIB),
    };
    VolumeInfo { name: volume.name, size, device, numbers, tags: volume.tags }
}
