//! `csi.v1.Node`: mounts of volumes. Every call may be repeated, and taken up
//! where an earlier one was killed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tonic::{Request, Response, Status};

use crate::{
    Error, Result,
    driver::Shared,
    filesystem::{self, Kind},
    lvmd::VolumeInfo,
    mounts,
    volume::{self, Use, VolumeId},
    wire::csi::{
        NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
        NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
        NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
        NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
        NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
        node_server::Node,
        node_service_capability::{self, Rpc, rpc},
        volume_usage::Unit,
    },
};

type Answer<T> = std::result::Result<Response<T>, Status>;

/// Runs calls that may wait for a disk beside the others.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::Precondition("the call was broken off".into())))
}

impl Shared {
    fn path(&self, text: &str, field: &'static str) -> Result<PathBuf> {
        mounts::check_path(text, field, &self.kubelet)
    }

    async fn stage(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let id: VolumeId = request.volume_id.parse()?;
        let path = self.path(&request.staging_target_path, "staging_target_path")?;
        let usage = volume::usage(request.volume_capability.as_ref())?;
        let _turn = self.turn(&id)?;
        let found = self.lvmd.device(&id).await?;
        let Use::Mount { kind, mut flags } = usage else { return Ok(()) };
        if let Some(mounted) = mounts::at(&path)? {
            check_mounted(&mounted, &found)?;
            return fill_device(kind, &found, &path).await;
        }
        filesystem::provide(&found.device, kind).await?;
        filesystem::grow_unmounted(&found.device, kind, found.size).await?;
        flags.extend(kind.option().map(str::to_owned));
        let (device, place) = (found.device.clone(), path.clone());
        blocking(move || {
            fs::create_dir_all(&place).map_err(Error::file(&place))?;
            mounts::mount_device(&device, &place, kind.name(), &flags)
        })
        .await?;
        fill_device(kind, &found, &path).await
    }

    async fn publish(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let id: VolumeId = request.volume_id.parse()?;
        let target = self.path(&request.target_path, "target_path")?;
        let usage = volume::usage(request.volume_capability.as_ref())?;
        let staging = self.path(&request.staging_target_path, "staging_target_path")?;
        let _turn = self.turn(&id)?;
        let found = self.lvmd.device(&id).await?;
        let read_only = request.readonly;
        blocking(move || match usage {
            Use::Block => publish_block(&found, &target, read_only),
            Use::Mount { .. } => publish_mount(&found, &staging, &target, read_only),
        })
        .await
    }

    /// Takes away what stage or publish has put there.
    async fn take_away(&self, id: &str, path: PathBuf) -> Result<()> {
        // A handle that is none of ours was never put anywhere.
        let id: VolumeId = match id.parse() {
            Err(Error::NoVolume(_)) => return Ok(()),
            other => other?,
        };
        let _turn = self.turn(&id)?;
        blocking(move || {
            mounts::unmount_all(&path)?;
            mounts::remove_mount_point(&path)
        })
        .await
    }

    async fn stats(&self, request: NodeGetVolumeStatsRequest) -> Result<Vec<VolumeUsage>> {
        let id: VolumeId = request.volume_id.parse()?;
        let path = self.path(&request.volume_path, "volume_path")?;
        let found = self.lvmd.device(&id).await?;
        blocking(move || usage_of(&found, &path)).await
    }

    async fn grow_filesystem(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let id: VolumeId = request.volume_id.parse()?;
        let path = self.path(&request.volume_path, "volume_path")?;
        let _turn = self.turn(&id)?;
        let found = self.lvmd.device(&id).await?;
        let range = request.capacity_range.unwrap_or_default();
        if found.size < range.required_bytes.max(0).cast_unsigned() {
            let text = format!("volume {id} has {} bytes: it has not grown yet", found.size);
            return Err(Error::Precondition(text));
        }
        if !path.exists() {
            return Err(Error::NoPath(path));
        }
        if mounts::is_device(&path, &found) {
            return Ok(found.size);
        }
        let mounted = mounts::at(&path)?.ok_or_else(|| not_mounted(&path))?;
        check_mounted(&mounted, &found)?;
        filesystem::grow(&mounted.kind, &found.device, &path).await?;
        Ok(found.size)
    }
}

/// Grows a file system whose kind grows while it is mounted, if it is short.
async fn fill_device(kind: Kind, found: &VolumeInfo, path: &Path) -> Result<()> {
    let read_only = mounts::at(path)?.is_some_and(|mounted| mounted.read_only);
    match kind == Kind::Xfs && !read_only && filesystem::is_short(&found.device, kind, found.size)?
    {
        true => filesystem::grow(kind.name(), &found.device, path).await,
        false => Ok(()),
    }
}

fn not_mounted(path: &Path) -> Error {
    Error::Precondition(format!("{}: no volume is mounted there", path.display()))
}

/// Refuses a place where something else is mounted.
fn check_mounted(mounted: &mounts::Mounted, volume: &VolumeInfo) -> Result<()> {
    match mounted.numbers == volume.numbers {
        true => Ok(()),
        false => Err(Error::Precondition(format!(
            "{}: something else is mounted there",
            mounted.path.display()
        ))),
    }
}

fn publish_mount(found: &VolumeInfo, staging: &Path, target: &Path, read_only: bool) -> Result<()> {
    let staged = mounts::at(staging)?.ok_or_else(|| not_mounted(staging))?;
    check_mounted(&staged, found)?;
    match mounts::at(target)? {
        Some(mounted) => check_mounted(&mounted, found)?,
        None => {
            fs::create_dir_all(target).map_err(Error::file(target))?;
            mounts::bind(staging, target)?;
        }
    }
    // Looked at again: a call that was killed may have left it half done.
    restrict(target, read_only)
}

fn publish_block(found: &VolumeInfo, target: &Path, read_only: bool) -> Result<()> {
    if mounts::at(target)?.is_none() {
        let folder = target.parent().unwrap_or(target);
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
        fs::File::create(target).map_err(Error::file(target))?;
        mounts::bind(&found.device, target)?;
    }
    if !mounts::is_device(target, found) {
        let text = format!("{}: something else is mounted there", target.display());
        return Err(Error::Precondition(text));
    }
    restrict(target, read_only)
}

fn restrict(target: &Path, read_only: bool) -> Result<()> {
    let is_so = mounts::at(target)?.is_some_and(|mounted| mounted.read_only);
    if read_only && !is_so { mounts::make_read_only(target) } else { Ok(()) }
}

fn usage_of(found: &VolumeInfo, path: &Path) -> Result<Vec<VolumeUsage>> {
    if !path.exists() {
        return Err(Error::NoPath(path.to_owned()));
    }
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if mounts::is_device(path, found) {
        let total = number(found.size);
        return Ok(vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() }]);
    }
    if mounts::at(path)?.is_none_or(|mounted| mounted.numbers != found.numbers) {
        return Err(Error::NoVolume(path.display().to_string()));
    }
    let stats = rustix::fs::statvfs(path).map_err(|error| Error::file(path)(error.into()))?;
    let usage = |available: u64, total: u64, free: u64, unit: Unit| VolumeUsage {
        available: number(available),
        total: number(total),
        used: number(total.saturating_sub(free)),
        unit: unit.into(),
    };
    let block = stats.f_frsize;
    Ok(vec![
        usage(stats.f_bavail * block, stats.f_blocks * block, stats.f_bfree * block, Unit::Bytes),
        usage(stats.f_favail, stats.f_files, stats.f_ffree, Unit::Inodes),
    ])
}

#[tonic::async_trait]
impl Node for Shared {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        self.stage(request.into_inner()).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let path = self.path(&request.staging_target_path, "staging_target_path")?;
        self.take_away(&request.volume_id, path).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        self.publish(request.into_inner()).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let path = self.path(&request.target_path, "target_path")?;
        self.take_away(&request.volume_id, path).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let usage = self.stats(request.into_inner()).await?;
        Ok(Response::new(NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let size = self.grow_filesystem(request.into_inner()).await?;
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: size.cast_signed() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let all = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = all.map(capability).to_vec();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.topology()),
        }))
    }
}
