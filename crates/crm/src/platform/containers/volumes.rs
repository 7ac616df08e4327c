//! Volumes of instances: asked for in the annotations of an app, made by the
//! machine's lvmd, mounted into the containers. They last as long as the
//! instance, over updates and restarts.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use selvage_api::{
    edgeproto::App,
    proto::{
        CreateLvRequest, Empty, GetLvListRequest, LogicalVolume, RemoveLvRequest, ResizeLvRequest,
        lv_service_client::LvServiceClient, vg_service_client::VgServiceClient,
    },
};
use selvage_runtime::{Mount, private_directory};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::{Error, Result, error::During, platform::network::is_mounted};

/// Folder in the data directory that volumes are mounted in.
pub(super) const FOLDER: &str = "volumes";
/// Prefix of our annotations.
const ANNOTATION: &str = "volume.";
/// Names the instance that a volume is of.
const TAG: &str = "selvage.instance";
const NAME_LENGTH: usize = 32;
/// Offset at which an ext4 file system says that it is one.
const MAGIC_AT: u64 = 1024 + 56;
const MAGIC: [u8; 2] = [0x53, 0xef];
/// Not for volumes: the container would not start, or not be one any more.
const RESERVED: [&str; 4] = ["/", "/proc", "/sys", "/dev"];

/// Time for which a volume that is removed may be in use: whatever starts on
/// the machine has a copy of every mount for a moment.
const IN_USE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(100);

/// A volume that an app asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeRequest {
    name: String,
    size_gb: u64,
    target: PathBuf,
    /// Class of devices; empty for the default one.
    class: String,
}

/// Reads `volume.NAME=SIZE:/PATH[:CLASS]` from the comma list of annotations;
/// the size is in GiB.
pub(super) fn wanted(app: &App) -> Result<Vec<VolumeRequest>> {
    let mut all: Vec<VolumeRequest> = Vec::new();
    for annotation in app.annotations.split(',').map(str::trim) {
        let Some(rest) = annotation.strip_prefix(ANNOTATION) else { continue };
        let volume = read(rest)
            .map_err(|reason| Error::invalid("annotations", format!("{annotation:?} {reason}")))?;
        let twice =
            |other: &&VolumeRequest| other.name == volume.name || other.target == volume.target;
        if let Some(other) = all.iter().find(twice) {
            let reason = format!("{annotation:?} is in the way of volume.{}", other.name);
            return Err(Error::invalid("annotations", reason));
        }
        all.push(volume);
    }
    Ok(all)
}

fn read(text: &str) -> std::result::Result<VolumeRequest, &'static str> {
    let shape = "is not like volume.data=2:/var/lib/data";
    let (name, value) = text.split_once('=').ok_or(shape)?;
    let mut parts = value.splitn(3, ':');
    let (size, target) = (parts.next().ok_or(shape)?, parts.next().ok_or(shape)?);
    let size = size.trim_end_matches("Gi").trim_end_matches('G');
    let size_gb: u64 = size.parse().map_err(|_| "has no size in whole GiB")?;
    let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty()
        || name.len() > NAME_LENGTH
        || name.starts_with('-')
        || !name.chars().all(named)
    {
        return Err("has a name with other than small letters, digits and dashes, or a long one");
    }
    if size_gb == 0 {
        return Err("has no size");
    }
    let target = Path::new(target);
    let plain =
        target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let reserved = RESERVED.iter().skip(1).any(|reserved| target.starts_with(reserved));
    if !target.is_absolute() || !plain || reserved || target == Path::new(RESERVED[0]) {
        return Err("has a path that no volume can be at");
    }
    let class = parts.next().unwrap_or_default().to_owned();
    Ok(VolumeRequest { name: name.to_owned(), size_gb, target: target.to_owned(), class })
}

/// The volumes of this machine's instances.
#[derive(Debug, Clone)]
pub(super) struct Volumes {
    /// Socket of lvmd.
    socket: PathBuf,
    /// Folder they are mounted in: one below it for each instance.
    folder: PathBuf,
}

impl Volumes {
    pub(super) fn new(socket: PathBuf, data: &Path) -> Self {
        Self { socket, folder: data.join(FOLDER) }
    }

    async fn channel(&self) -> Result<Channel> {
        let address = format!("unix://{}", self.socket.display());
        let endpoint = Endpoint::from_shared(address).map_err(|error| {
            Error::state(format!("the volume service's socket has no usable name: {error}"))
        })?;
        endpoint.connect().await.map_err(|_| {
            let socket = self.socket.display();
            Error::state(format!("volumes are asked for, and no lvmd answers at {socket}"))
        })
    }

    /// Sees that the volumes of an instance are there and mounted; how the
    /// container gets them.
    pub(super) async fn provide(
        &self,
        instance: &str,
        wanted: &[VolumeRequest],
    ) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        if wanted.is_empty() {
            return Ok(mounts);
        }
        let channel = self.channel().await?;
        for volume in wanted {
            let at = self.folder.join(instance).join(&volume.name);
            private_directory(&self.folder).during("making the place of volumes")?;
            fs::create_dir_all(&at).during("making the place of a volume")?;
            let found = self.make(&channel, instance, volume).await?;
            let device = device_of(&found)?;
            let grown = found.size_gb < volume.size_gb;
            if grown {
                self.grow(&channel, &found.name, volume).await?;
            }
            self.mount(&device, &at).await?;
            if grown {
                run("resize2fs", &[&device]).await?;
            }
            mounts.push(Mount { source: at, target: volume.target.clone(), read_only: false });
        }
        Ok(mounts)
    }

    /// Returns whether nothing is to be done about the volumes of an instance.
    pub(super) fn are_mounted(&self, instance: &str, wanted: &[VolumeRequest]) -> bool {
        let folder = self.folder.join(instance);
        wanted.iter().all(|volume| is_mounted(&folder.join(&volume.name)))
    }

    async fn make(
        &self,
        channel: &Channel,
        instance: &str,
        volume: &VolumeRequest,
    ) -> Result<LogicalVolume> {
        let name = format!("{instance}-{}", volume.name);
        if let Some(found) =
            list(channel, &volume.class).await?.into_iter().find(|v| v.name == name)
        {
            return Ok(found);
        }
        let request = CreateLvRequest {
            name: name.clone(),
            size_gb: volume.size_gb,
            tags: vec![format!("{TAG}={instance}")],
            device_class: volume.class.clone(),
            data_source: None,
        };
        LvServiceClient::new(channel.clone())
            .create_lv(request)
            .await
            .map_err(|status| refused(&volume.name, &status))?;
        let found = list(channel, &volume.class).await?.into_iter().find(|v| v.name == name);
        found.ok_or_else(|| Error::missing(format!("volume {name}")))
    }

    async fn grow(&self, channel: &Channel, name: &str, volume: &VolumeRequest) -> Result<()> {
        let request = ResizeLvRequest {
            name: name.to_owned(),
            size_gb: volume.size_gb,
            device_class: volume.class.clone(),
        };
        let grown = LvServiceClient::new(channel.clone()).resize_lv(request).await;
        grown.map(drop).map_err(|status| refused(&volume.name, &status))
    }

    /// Mounts a volume, with a new file system if it has not had one yet.
    async fn mount(&self, device: &Path, at: &Path) -> Result<()> {
        if is_mounted(at) {
            return Ok(());
        }
        // Says that the file system was finished, so that one that a crash cut
        // off is made again and one that has data never is.
        let made = at.with_extension("made");
        if !has_file_system(device)? || !made.exists() {
            if made.exists() {
                let device = device.display();
                return Err(Error::state(format!("the volume {device} lost its file system")));
            }
            if has_file_system(device)? && mount(device, at).is_ok() {
                return File::create(&made).map(drop).during("noting a volume");
            }
            run("mkfs.ext4", &[Path::new("-q"), Path::new("-F"), device]).await?;
            File::create(&made).and_then(|file| file.sync_all()).during("noting a volume")?;
        }
        mount(device, at)
    }

    /// Removes the volumes of an instance, with all that is in them.
    pub(super) async fn remove(&self, instance: &str) -> Result<()> {
        let folder = self.folder.join(instance);
        if !folder.exists() {
            return Ok(());
        }
        let busy = |error: &Error| match error {
            Error::Io { source, .. } => source.kind() == io::ErrorKind::ResourceBusy,
            _ => false,
        };
        patiently(|| std::future::ready(self.unmount(&folder)), busy).await?;
        let channel = self.channel().await?;
        let tag = format!("{TAG}={instance}");
        for class in classes(&channel).await? {
            for volume in list(&channel, &class).await? {
                if volume.tags.contains(&tag) {
                    remove_volume(&channel, &volume.name, &class).await?;
                }
            }
        }
        fs::remove_dir_all(&folder).during("removing the place of volumes")?;
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    fn unmount(&self, folder: &Path) -> Result<()> {
        use rustix::mount::{UnmountFlags, unmount};
        for entry in fs::read_dir(folder).during("looking for volumes")?.flatten() {
            while is_mounted(&entry.path()) {
                unmount(entry.path(), UnmountFlags::empty())
                    .map_err(io::Error::from)
                    .during("unmounting a volume")?;
            }
        }
        Ok(())
    }
}

async fn remove_volume(channel: &Channel, name: &str, class: &str) -> Result<()> {
    let attempt = || {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: class.to_owned() };
        let mut client = LvServiceClient::new(channel.clone());
        async move { client.remove_lv(request).await }
    };
    let in_use = |status: &tonic::Status| status.code() == tonic::Code::FailedPrecondition;
    let removed = patiently(attempt, in_use).await;
    removed.map(drop).map_err(|status| refused(name, &status))
}

/// Tries again for a while what is refused because something is in use.
async fn patiently<T, E, F: Future<Output = Result<T, E>>>(
    mut attempt: impl FnMut() -> F,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let until = Instant::now() + IN_USE;
    loop {
        match attempt().await {
            Err(error) if in_use(&error) && Instant::now() < until => {
                tokio::time::sleep(AGAIN).await;
            }
            outcome => return outcome,
        }
    }
}

fn refused(volume: &str, status: &tonic::Status) -> Error {
    Error::state(format!("volume {volume}: {}", status.message()))
}

async fn list(channel: &Channel, class: &str) -> Result<Vec<LogicalVolume>> {
    let request = GetLvListRequest { device_class: class.to_owned() };
    let listed = VgServiceClient::new(channel.clone()).get_lv_list(request).await;
    listed.map(|reply| reply.into_inner().volumes).map_err(|status| refused("list", &status))
}

async fn classes(channel: &Channel) -> Result<Vec<String>> {
    let watched = VgServiceClient::new(channel.clone()).watch(Empty {}).await;
    let first = match watched {
        Ok(reply) => reply.into_inner().message().await,
        Err(status) => Err(status),
    };
    let first = first.map_err(|status| refused("classes", &status))?.unwrap_or_default();
    Ok(first.items.into_iter().map(|item| item.device_class).collect())
}

/// The device of a volume, as the kernel names it.
fn device_of(volume: &LogicalVolume) -> Result<PathBuf> {
    let name = &volume.name;
    let (major, minor) = (volume.dev_major, volume.dev_minor);
    if (major, minor) == (0, 0) {
        return Err(Error::state(format!("volume {name} is no block device on this machine")));
    }
    let facts = format!("/sys/dev/block/{major}:{minor}/uevent");
    let facts = fs::read_to_string(facts).during("looking for the device of a volume")?;
    let device = facts.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let device = device.ok_or_else(|| Error::missing(format!("device of volume {name}")))?;
    Ok(Path::new("/dev").join(device))
}

fn has_file_system(device: &Path) -> Result<bool> {
    let mut magic = [0; 2];
    let file = File::open(device).during("opening a volume")?;
    file.read_exact_at(&mut magic, MAGIC_AT).during("reading a volume")?;
    Ok(magic == MAGIC)
}

fn mount(device: &Path, at: &Path) -> Result<()> {
    use rustix::mount::{MountFlags, mount};
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount(device, at, "ext4", flags, None).map_err(io::Error::from).during("mounting a volume")
}

async fn run(program: &'static str, arguments: &[&Path]) -> Result<()> {
    let output = tokio::process::Command::new(program).args(arguments).output().await;
    let output = output.map_err(|source| {
        Error::state(format!("{program} cannot be run (package e2fsprogs): {source}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::state(format!("{program} failed: {}", words.trim())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn app(annotations: &str) -> App {
        App { annotations: annotations.into(), ..App::default() }
    }

    #[test]
    fn volumes_are_read_from_annotations() {
        let read =
            wanted(&app("x=1, volume.data=2Gi:/var/lib/data,volume.fast=1:/f:nvme")).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].name.as_str(), read[0].size_gb), ("data", 2));
        assert_eq!((read[1].target.as_path(), read[1].class.as_str()), (Path::new("/f"), "nvme"));
        assert!(wanted(&app("")).unwrap().is_empty());
    }

    #[test]
    fn bad_annotations_are_named() {
        for (text, says) in [
            ("volume.data", "is not like"),
            ("volume.data=2", "is not like"),
            ("volume.data=x:/d", "no size in whole GiB"),
            ("volume.data=0:/d", "has no size"),
            ("volume.Da/ta=1:/d", "has a name"),
            ("volume.=1:/d", "has a name"),
            ("volume.data=1:d", "has a path"),
            ("volume.data=1:/", "has a path"),
            ("volume.data=1:/a/../etc", "has a path"),
            ("volume.data=1:/proc/x", "has a path"),
            ("volume.a=1:/d,volume.b=1:/d", "in the way of volume.a"),
            ("volume.a=1:/d,volume.a=1:/e", "in the way of volume.a"),
        ] {
            let error = wanted(&app(text)).unwrap_err().to_string();
            assert!(error.starts_with("annotations: ") && error.contains(says), "{text}: {error}");
        }
    }
}

#[cfg(test)]
mod with_a_service;
