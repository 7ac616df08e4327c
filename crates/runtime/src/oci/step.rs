//! Mounts that a step of the runtime's program sees, and nobody else: they are
//! gone with it.
//!
//! * A container with users of its own gets its root and its mounts from
//!   [`STAGE`]: its root may not walk through folders of ours. Volumes are there
//!   with the container's users.
//! * `crun` refuses machines with control groups of both kinds (a tree a
//!   controller, and the unified one beside them) as soon as the unified tree
//!   has a controller, though it would use none of it. It is shown a tree
//!   without.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

use super::users::Mapping;
use crate::{
    ContainerSpec, Mount, Network,
    spec::{STAGE, settings, staged_mount, staged_root, staged_sys},
};

/// The unified tree, and the file in it that `crun` looks for.
const UNIFIED: &str = "/sys/fs/cgroup/unified";
const CONTROLLERS: &str = "/sys/fs/cgroup/unified/cgroup.controllers";

/// Mounts of a container with users of its own.
pub(super) struct Stage {
    /// First of its users.
    pub(super) first: u32,
    pub(super) rootfs: PathBuf,
    pub(super) mounts: Vec<Mount>,
    /// Network namespace that it joins.
    pub(super) network: Option<PathBuf>,
}

impl Stage {
    pub(super) fn of(spec: &ContainerSpec, first: u32, directory: &Path) -> Self {
        let network = match &spec.network {
            Network::Path(path) => Some(path.clone()),
            Network::None | Network::Host => None,
        };
        Self { first, rootfs: directory.join("rootfs"), mounts: spec.mounts.clone(), network }
    }

    fn set(&self) -> io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", STAGE, "tmpfs", flags, c"mode=711,size=1m")?;
        let root = staged_root();
        fs::create_dir(&root)?;
        mount_bind(&self.rootfs, &root)?;
        let mapping = Mapping::new(self.first)?;
        for (number, mount) in self.mounts.iter().enumerate() {
            let target = staged_mount(number);
            match fs::metadata(&mount.source)?.is_dir() {
                true => fs::create_dir(&target)?,
                false => File::create(&target).map(drop)?,
            }
            match mapping.show(&mount.source, &target) {
                // A file system that cannot do so: what others may read, a
                // container may, too.
                Err(_) if mount.read_only => mount_bind(&mount.source, &target)?,
                shown => shown?,
            }
        }
        self.network.as_deref().map_or(Ok(()), set_network)
    }
}

/// Does in a network what its container may not: that has not made it.
fn set_network(path: &Path) -> io::Result<()> {
    let own = File::open("/proc/thread-self/ns/net")?;
    setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
    for (name, value) in settings(&Network::Path(path.to_owned())) {
        fs::write(Path::new("/proc/sys").join(name.replace('.', "/")), value)?;
    }
    let target = staged_sys();
    fs::create_dir(&target)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("sysfs", &target, "sysfs", flags, None)?;
    Ok(setns(own, CloneFlags::CLONE_NEWNET)?)
}

/// Starts a step of the program with what it is to see.
pub(super) async fn spawn(mut command: Command, stage: Option<Stage>) -> io::Result<Child> {
    let refuses = is_refused_by(Path::new(command.as_std().get_program()));
    if stage.is_none() && !refuses {
        return command.spawn();
    }
    if stage.is_some() {
        fs::create_dir_all(STAGE)?;
    }
    let runtime = Handle::current();
    let (tell, answer) = oneshot::channel();
    let work = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        if let Some(stage) = stage {
            mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            stage.set()?;
        }
        if refuses {
            hide_controllers()?;
        }
        command.spawn()
    };
    // What a thread has changed for itself its children inherit. No other
    // thread may ever see it: this one ends here.
    std::thread::Builder::new().name("step".into()).spawn(move || {
        let _runtime = runtime.enter();
        let _ = tell.send(work());
    })?;
    answer.await.map_err(io::Error::other)?
}

/// Hides the file from this thread. Only the mount that it is in leaves those that it is
/// shared with: what containers of the machine mount later has to be seen by all others.
fn hide_controllers() -> io::Result<()> {
    mount_change(UNIFIED, MountPropagationFlags::PRIVATE)?;
    Ok(mount_bind("/dev/null", CONTROLLERS)?)
}

/// Returns whether the program would not work on this machine as it is.
fn is_refused_by(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == "crun")
        && fs::read_to_string(CONTROLLERS).is_ok_and(|names| !names.trim().is_empty())
}
