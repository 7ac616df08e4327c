//! Leaves nothing of a cluster on a machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};
use selvage_api::selvage::kubernetes::MemberSpec;
use selvage_runtime::{
    Runtime,
    cgroup::Mounts,
    select::{KUBERNETES, SYSTEM},
};

use crate::{
    Error, Result,
    component::KINDS,
    member::{KUBELET_ROOT, Lvmd, Paths},
    network::{self, note},
};

/// Timeout of an orderly stop.
const GRACE: Duration = Duration::from_secs(10);
/// Folders of a node that everybody expects there.
const FOLDERS: [&str; 3] = [KUBELET_ROOT, "/var/log/pods", "/var/log/containers"];
/// Control group of pods whose kubelet names none.
const PODS: &str = "/k8s.io";

/// Removes everything; tells what, and what it could not.
pub(crate) async fn everything(
    paths: &Paths,
    runtime: &dyn Runtime,
    pods: &dyn Runtime,
    spec: Option<&MemberSpec>,
) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    // containerd last: it is who ends pods.
    let order = KINDS.iter().map(|kind| kind.name).filter(|name| *name != "containerd");
    for name in order.rev() {
        container(runtime, name, &mut removed, &mut left).await;
    }
    let namespaces = end_pods(pods, &mut removed).await;
    container(runtime, "containerd", &mut removed, &mut left).await;
    end_group(&format!("{}/shims", paths.cgroup)).await;
    for path in namespaces {
        let gone = detach(&path).and_then(|()| remove_file(&path));
        note(format!("network namespace {}", path.display()), gone, &mut removed, &mut left);
    }
    let (rules, rules_left) = network::remove(spec).await;
    removed.extend(rules);
    left.extend(rules_left);
    remove_images(runtime).await;
    remove_groups(&paths.cgroup);
    remove_groups(PODS);
    let volumes = paths.data("lvmd");
    note("loop devices of volumes".into(), release(&volumes), &mut Vec::new(), &mut left);
    if let (Some(Lvmd::Given(socket)), Some(spec)) = (&paths.lvmd, spec) {
        let gone = crate::volumes::remove_from(socket, spec).await;
        note("volumes of pods".into(), gone, &mut removed, &mut left);
    }
    let folders = FOLDERS.iter().map(PathBuf::from).chain([paths.run.clone()]);
    for folder in folders.filter(|folder| folder.exists()) {
        let gone = remove_folder(&folder);
        note(folder.display().to_string(), gone, &mut removed, &mut left);
    }
    // The mark that a reset is under way goes last, with what it is in.
    if left.is_empty() {
        let gone = remove_folder(&paths.root);
        note(paths.root.display().to_string(), gone, &mut removed, &mut left);
    }
    (removed, left)
}

/// Unmounts volumes of pods, then takes them from their devices.
fn release(volumes: &Path) -> Result<()> {
    for path in mounted_below(Path::new(KUBELET_ROOT)).into_iter().rev() {
        detach(&path)?;
    }
    crate::volumes::release_images(volumes)
}

async fn container(
    runtime: &dyn Runtime,
    name: &str,
    removed: &mut Vec<String>,
    left: &mut Vec<String>,
) {
    let there = runtime.list(SYSTEM).await.unwrap_or_default();
    if !there.iter().any(|one| one.runtime_id == name) {
        return;
    }
    let _ = runtime.stop(SYSTEM, name, GRACE).await;
    let gone = runtime.delete(SYSTEM, name, true).await.map_err(Error::from);
    note(format!("container {name}"), gone, removed, left);
}

/// Ends all pods, as far as their containerd still answers; the rest goes with
/// its shims. Tells their network namespaces.
async fn end_pods(pods: &dyn Runtime, removed: &mut Vec<String>) -> Vec<PathBuf> {
    let mut namespaces = Vec::new();
    for one in pods.list(KUBERNETES).await.unwrap_or_default() {
        let _ = pods.stop(KUBERNETES, &one.runtime_id, Duration::ZERO).await;
        if pods.delete(KUBERNETES, &one.runtime_id, true).await.is_ok() {
            removed.push(format!("container {}", one.id));
        }
        namespaces.extend(one.network_namespace);
    }
    namespaces.retain(|path| path.exists());
    namespaces.sort();
    namespaces.dedup();
    namespaces
}

/// Stops the containers of all pods, all at the same time, and leaves them to be
/// found by the next kubelet.
pub(crate) async fn stop_pods(pods: &dyn Runtime) {
    let there = pods.list(KUBERNETES).await.unwrap_or_default();
    let stop = |id: String| async move { pods.stop(KUBERNETES, &id, GRACE).await };
    let stopped = there.into_iter().map(|one| stop(one.runtime_id));
    futures::future::join_all(stopped).await;
}

/// Ends all processes of a control group.
pub(crate) async fn end_group(group: &str) {
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        let processes = processes(group);
        if processes.is_empty() {
            return;
        }
        for pid in processes {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn processes(group: &str) -> Vec<i32> {
    let Ok(mounts) = Mounts::read() else { return Vec::new() };
    let mut found: Vec<i32> = mounts
        .groups(group)
        .iter()
        .filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Makes a control group in all hierarchies.
pub(crate) fn make_groups(group: &str) -> Result<()> {
    let mounts = Mounts::read().map_err(Error::file("/proc/self/mountinfo"))?;
    for folder in mounts.groups(group) {
        match fs::create_dir_all(&folder) {
            Ok(()) => inherit(&folder).map_err(Error::file(&folder))?,
            // A hierarchy that nobody uses may be one that nobody can.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
            Err(error) => return Err(Error::file(folder)(error)),
        }
    }
    Ok(())
}

/// In the old hierarchy of processors a new group has none, and takes nobody in.
fn inherit(folder: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let path = folder.join(name);
        let is_empty = fs::read_to_string(&path).is_ok_and(|text| text.trim().is_empty());
        if let (true, Some(above)) = (is_empty, folder.parent()) {
            inherit(above)?;
            // The new hierarchy takes what is above where it has nothing.
            let given = fs::read_to_string(above.join(name)).unwrap_or_default();
            if !given.trim().is_empty() {
                fs::write(&path, given)?;
            }
        }
    }
    Ok(())
}

/// Removes a control group with those below it, from the bottom up.
pub(crate) fn remove_groups(group: &str) {
    fn below(folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path());
            }
        }
        let _ = fs::remove_dir(folder);
    }
    let Ok(mounts) = Mounts::read() else { return };
    for folder in mounts.groups(group) {
        below(&folder);
    }
}

/// Removes a control group that has none below it.
pub(crate) fn remove_empty_group(group: &str) {
    let Ok(mounts) = Mounts::read() else { return };
    for folder in mounts.groups(group) {
        let _ = fs::remove_dir(folder);
    }
}

async fn remove_images(runtime: &dyn Runtime) {
    for image in runtime.images(SYSTEM).await.unwrap_or_default() {
        if image.name.starts_with("selvage.local/") {
            let _ = runtime.remove_image(SYSTEM, &image.name).await;
        }
    }
}

/// Removes a folder with all that is mounted below it.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    let mut below = mounted_below(folder);
    // Those that were mounted last stand last.
    below.reverse();
    for path in below {
        detach(&path)?;
    }
    fs::remove_dir_all(folder).map_err(Error::file(folder))
}

/// Paths below a folder where something is mounted.
fn mounted_below(folder: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = |line: &str| Some(PathBuf::from(unescaped(line.split(' ').nth(4)?)));
    let paths = text.lines().filter_map(place);
    paths.filter(|path| path.starts_with(folder) && path != folder).collect()
}

/// The kernel writes blanks and the like as octal numbers.
fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

fn detach(path: &Path) -> Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // Nothing is mounted there.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::file(path)(error.into())),
    }
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
        _ => Ok(()),
    }
}
