//! Machines with control groups of both kinds: a tree a controller, and the
//! unified one beside them.
//!
//! `crun` refuses them as soon as the unified tree has a controller, though it
//! would use none of it. It is shown a tree without: a mount that nobody else
//! sees and that is gone with the step.

use std::{fs, io, path::Path};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

/// File that `crun` looks for.
const CONTROLLERS: &str = "/sys/fs/cgroup/unified/cgroup.controllers";

/// Returns whether the program would not work on this machine as it is.
pub(super) fn is_refused_by(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == "crun")
        && fs::read_to_string(CONTROLLERS).is_ok_and(|names| !names.trim().is_empty())
}

/// Starts it with what it is to see.
pub(super) async fn spawn(mut command: Command) -> io::Result<Child> {
    let runtime = Handle::current();
    let (tell, answer) = oneshot::channel();
    // What a thread has changed for itself its children inherit. No other
    // thread may ever see it: this one ends here.
    std::thread::Builder::new().name("crun".into()).spawn(move || {
        let _runtime = runtime.enter();
        let _ = tell.send(hide_controllers().and_then(|()| command.spawn()));
    })?;
    answer.await.map_err(io::Error::other)?
}

fn hide_controllers() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount_bind("/dev/null", CONTROLLERS)?)
}
