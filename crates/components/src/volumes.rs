//! Volumes of pods: what a driver needs to know, and what is left of them.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::{DirEntryExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use selvage_api::{
    proto::{RemoveLvRequest, lv_service_client::LvServiceClient},
    selvage::{
        kubernetes::{MemberSpec, Profile},
        volumes::{ListVolumesRequest, Volume, volumes_service_client::VolumesServiceClient},
    },
};

use crate::{
    Error, Result,
    agent::Inner,
    member::{API_PORT, KUBELET_ROOT},
};

/// Folder of a driver's own files, below those of components.
const DRIVER: &str = "csi";
/// An lvmd that does not answer by then is away.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Tag of the volumes of a member at lvmd, which others may share.
fn tag(spec: &MemberSpec) -> String {
    format!("selvage.io/csi={}/{}", spec.cluster, spec.node)
}

/// A member whose pods can have volumes. Holds a key, so it is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PodVolumes {
    /// Name of the node.
    pub node: String,
    /// Root of the kubelet.
    pub kubelet: PathBuf,
    /// Socket of lvmd.
    pub lvmd: PathBuf,
    /// Tag of this member's volumes at lvmd.
    pub tag: String,
    /// Folder for files of the driver, which goes with the membership.
    pub data: PathBuf,
    /// Address of the API.
    pub server: String,
    /// Authority of the API, PEM.
    pub ca: String,
    /// Certificate of the driver, PEM.
    pub certificate: String,
    /// Its key, PEM. Secret.
    pub key: String,
}

impl Inner {
    /// Tells drivers what they need.
    pub(crate) fn offer_volumes(&self, spec: &MemberSpec) {
        let offered = self.volumes_of(spec).unwrap_or_else(|error| {
            tracing::warn!(%error, "volumes of pods");
            None
        });
        self.pod_volumes.send_if_modified(|known| {
            let changed = known.as_deref() != offered.as_ref();
            if changed {
                *known = offered.map(Arc::new);
            }
            changed
        });
    }

    fn volumes_of(&self, spec: &MemberSpec) -> Result<Option<PodVolumes>> {
        let (Some(lvmd), true) = (self.paths.lvmd_socket(), spec.worker.is_some()) else {
            return Ok(None);
        };
        let Some(pair) = self.keys.pair(Profile::Volumes)?.filter(|_| !spec.hibernated) else {
            return Ok(None);
        };
        Ok(Some(PodVolumes {
            node: spec.node.clone(),
            kubelet: KUBELET_ROOT.into(),
            lvmd,
            tag: tag(spec),
            data: self.paths.data(DRIVER),
            server: format!("https://127.0.0.1:{API_PORT}"),
            ca: self.member(spec).authorities().kubernetes,
            certificate: pair.certificate,
            key: pair.key,
        }))
    }
}

/// Removes the volumes of a member from an lvmd that stays.
pub(crate) async fn remove_from(socket: &Path, spec: &MemberSpec) -> Result<()> {
    let failed = |text: String| Error::Program { program: "lvmd", text };
    let channel = selvage_kit::dial::unix(socket);
    let tag = tag(spec);
    let work = async {
        let request = ListVolumesRequest::default();
        let listed = VolumesServiceClient::new(channel.clone()).list_volumes(request).await?;
        let all = listed.into_inner().volumes.into_iter();
        for volume in all.filter(|volume| volume.tags.contains(&tag)) {
            let Volume { name, device_class, .. } = volume;
            let request = RemoveLvRequest { name, device_class };
            LvServiceClient::new(channel.clone()).remove_lv(request).await?;
        }
        Ok::<_, tonic::Status>(())
    };
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(done) => done.map_err(|status| failed(status.message().to_owned())),
        Err(_) => Err(failed("does not answer".into())),
    }
}

/// Takes the images in a folder from their loop devices, whatever name they have
/// there: a machine that ended leaves them.
pub(crate) fn release_images(folder: &Path) -> Result<()> {
    let Ok(about) = fs::metadata(folder) else { return Ok(()) };
    let here = |inode: (u64, u64)| (inode.0 == about.dev()).then_some(inode.1);
    let devices = selvage_memory::loop_devices();
    let devices: Vec<_> =
        devices.filter_map(|device| Some((device.inode.and_then(here)?, device))).collect();
    if devices.is_empty() {
        return Ok(());
    }
    let mut inodes = HashSet::new();
    files(folder, &mut inodes).map_err(Error::file(folder))?;
    for (_, device) in devices.iter().filter(|(inode, _)| inodes.contains(inode)) {
        device.release().map_err(Error::file(&device.path))?;
    }
    Ok(())
}

/// Collects the inodes of all files below a folder.
fn files(folder: &Path, inodes: &mut HashSet<u64>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files(&entry.path(), inodes)?;
        } else if kind.is_file() {
            inodes.insert(entry.ino());
        }
    }
    Ok(())
}
