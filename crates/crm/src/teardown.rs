//! Removal of everything that a cloudlet has made on this machine, when its crm
//! is gone: `selvage down`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};
use selvage_fetch::Policy;
use selvage_memory::LoopDevice;
use selvage_runtime::{Runtime, Users, containerd, oci, select::EMBEDDED};

use crate::{
    Egress, Forwarding, ImageFolders, Kind, Platform, Registries,
    claim::{Claim, Claims},
    footprint::Footprint,
    part,
    platform::{
        containers::{self, Containers},
        network::{Range, namespaces},
        vm::{self, Machines},
    },
};

/// Time a virtual machine may take to turn itself off.
const POWERDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the cloudlets of this machine whose data is, or was, in a directory.
pub fn find(data: &Path) -> anyhow::Result<Vec<Footprint>> {
    let mut found: Vec<Footprint> = Footprint::read(data)?.into_iter().collect();
    for (holder, _) in Claims::here()?.all()? {
        let known = found.iter().any(|one| one.to_string() == holder.cloudlet.to_string());
        if holder.data == data && !known {
            found.push(holder.cloudlet);
        }
    }
    Ok(found)
}

/// Returns the data directories of cloudlets that have something on this
/// machine.
pub fn directories() -> anyhow::Result<Vec<(Footprint, PathBuf)>> {
    let all = Claims::here()?.all()?;
    Ok(all.into_iter().map(|(holder, _)| (holder.cloudlet, holder.data)).collect())
}

/// Stops the apps of a cloudlet and removes what there is of it outside of its
/// data directory; returns what that was. Fails while its crm runs.
pub async fn remove(cloudlet: &Footprint, data: &Path) -> anyhow::Result<Vec<String>> {
    let claim = match cloudlet.kind {
        Kind::Containers | Kind::Machines => Some(Claims::here()?.take(cloudlet, data)?),
        Kind::Kubernetes => bail!(
            "the apps of cloudlet {cloudlet} run in a cluster of Kubernetes, not on this machine: \
             delete them with `selvage appinst delete`"
        ),
    };
    let there = data.exists();
    let mut removed = stop_all(cloudlet, data).await?;
    removed.extend(remove_traces(data)?);
    if !there {
        // What looking there has made.
        let _ = fs::remove_dir_all(data);
    }
    finish(claim)?;
    Ok(removed)
}

async fn stop_all(cloudlet: &Footprint, data: &Path) -> anyhow::Result<Vec<String>> {
    match cloudlet.kind {
        Kind::Machines => Ok(machines(cloudlet, data)?.stop_all().await?),
        _ => Ok(containers(cloudlet, data).await?.stop_all().await?),
    }
}

/// Ends all containers of a data directory, whoever made them.
pub async fn remove_containers(data: &Path) -> anyhow::Result<Vec<String>> {
    let options = oci::Options::in_data(data);
    if !options.root.exists() {
        return Ok(Vec::new());
    }
    let runtime = oci::Oci::open(oci::Options { supervise: false, ..options }).await?;
    let mut removed = Vec::new();
    for namespace in runtime.namespaces().await? {
        for container in runtime.list(&namespace).await? {
            runtime.delete(&namespace, &container.runtime_id, true).await?;
            removed.push(format!("container {}", container.runtime_id));
        }
    }
    removed.extend(remove_traces(data)?);
    Ok(removed)
}

/// Removes what an earlier crm of this cloudlet left whose data directory is
/// gone. Fails where that is there, and has clusters on this machine.
pub(crate) async fn remove_orphans(
    claim: &Claim,
    data: &Path,
    has_clusters: bool,
) -> anyhow::Result<()> {
    let Some(before) = &claim.before else { return Ok(()) };
    let same = before.data == data;
    if before.data.join(part::FILE).exists() {
        if !same && has_clusters {
            let (cloudlet, there) = (&before.cloudlet, before.data.display());
            bail!(
                "apps of cloudlet {cloudlet} run on this machine, with data in {there}: start \
                 with --data {there}, or stop them: selvage down --data {there}"
            );
        }
        return Ok(());
    }
    let removed = if same {
        // The runtime has ended its containers already; networks are swept.
        remove_lost(data)?
    } else {
        let mut removed = stop_all(&before.cloudlet, &before.data).await?;
        removed.extend(remove_traces(&before.data)?);
        let _ = fs::remove_dir_all(&before.data);
        removed
    };
    for what in removed {
        tracing::info!(what, "removed, as its data directory is gone");
    }
    Ok(())
}

/// Removes mounts of volumes, and loop devices whose image is gone.
fn remove_lost(data: &Path) -> anyhow::Result<Vec<String>> {
    let mut removed = unmount_below(&data.join(containers::VOLUMES))?;
    removed.extend(release_devices(data, |device| !device.image.exists()));
    Ok(removed)
}

async fn containers(cloudlet: &Footprint, data: &Path) -> anyhow::Result<Containers> {
    let runtime: Arc<dyn Runtime> = match &cloudlet.containerd {
        Some(socket) => Arc::new(containerd::Containerd::new(containerd::Options::new(socket))),
        None => {
            let options = oci::Options { supervise: false, ..oci::Options::in_data(data) };
            Arc::new(oci::Oci::open(options).await.context("containers")?)
        }
    };
    let options = containers::Options {
        runtime,
        namespace: EMBEDDED.into(),
        range: Range::parse(&cloudlet.network_scheme)?,
        registries: Registries::new(None, None),
        policy: Policy::default(),
        images: ImageFolders::new([]),
        data: data.to_owned(),
        lvmd: PathBuf::new(),
        start_timeout: Duration::ZERO,
        forwarding: Forwarding::Proxy,
        users: Users::default(),
        egress: Egress::default(),
    };
    Ok(Containers::open(&cloudlet.cloudlet(), options)?)
}

fn machines(cloudlet: &Footprint, data: &Path) -> anyhow::Result<Machines> {
    let options = vm::Options {
        data: data.to_owned(),
        images: ImageFolders::new([]),
        policy: Policy::default(),
        start_timeout: Duration::ZERO,
        powerdown: POWERDOWN_TIMEOUT,
        range: Range::parse(&cloudlet.network_scheme)?,
        forwarding: Forwarding::Proxy,
        egress: Egress::default(),
    };
    Ok(Machines::open(&cloudlet.cloudlet(), options)?)
}

/// Removes mounts and loop devices of a data directory, and what the runtime
/// keeps of it in `/run`.
fn remove_traces(data: &Path) -> anyhow::Result<Vec<String>> {
    let mut removed = unmount_below(data)?;
    removed.extend(release_devices(data, |_| true));
    let state = oci::Options::in_data(data).state;
    if let Some(folder) = state.parent().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        removed.push(format!("folder {}", folder.display()));
    }
    Ok(removed)
}

fn unmount_below(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut removed = Vec::new();
    for target in mounts_below(folder)? {
        // What is in use goes when nobody uses it any more.
        match unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => removed.push(format!("mount {}", target.display())),
            Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(io::Error::from(error)).context(target.display().to_string()),
        }
    }
    Ok(removed)
}

fn release_devices(data: &Path, is_lost: impl Fn(&LoopDevice) -> bool) -> Vec<String> {
    let ours = selvage_memory::loop_devices().filter(|device| device.image.starts_with(data));
    ours.filter(|device| is_lost(device) && device.release().is_ok())
        .map(|device| format!("loop device {}", device.path.display()))
        .collect()
}

/// Mount points below a directory, the innermost first.
fn mounts_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4).map(unescaped))
        .filter(|target| target.starts_with(folder) && target != folder)
        .collect();
    found.reverse();
    Ok(found)
}

/// Path as the table of mounts has it, with spaces and the like as numbers.
fn unescaped(text: &str) -> PathBuf {
    let mut rest = text;
    let mut path = String::new();
    while let Some((before, after)) = rest.split_once('\\') {
        path += before;
        let number = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match number {
            Some(number) => {
                path.push(char::from(number));
                rest = &after[3..];
            }
            None => {
                path.push('\\');
                rest = after;
            }
        }
    }
    path += rest;
    path.into()
}

fn finish(claim: Option<Claim>) -> anyhow::Result<()> {
    if let Some(claim) = claim {
        claim.give_up().context("claim of the cloudlet")?;
        namespaces::remove_folder();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read_as_they_are() {
        assert_eq!(unescaped(r"/a\040b/c"), Path::new("/a b/c"));
        assert_eq!(unescaped(r"/a\b"), Path::new(r"/a\b"));
        assert_eq!(unescaped("/plain"), Path::new("/plain"));
    }
}
