//! The first process of a machine. Runs in a process of its own that has one
//! thread: what it leaves, others may not need.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{FileType, Mode, OFlags},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Pid, WaitOptions, wait},
    system::sethostname,
};

use super::{
    folder::{self, FLEETING, OWN, Written},
    groups,
};
use crate::{Error, Result};

/// Tells the second of us that the first has left everything.
const INSIDE: &str = "SELVAGE_MACHINE_INSIDE";
/// Before an agent that ended is started again.
const AGAIN: Duration = Duration::from_millis(500);
/// The other end of the network has to be there by then; longer than it takes a
/// controller that ended to come back for it.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Settings of the whole host that a kubelet wants to change.
const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Becomes the first process of the machine in this folder. Must be called
/// before any thread is started; returns when the machine ends.
#[allow(clippy::print_stderr)] // There is nobody else to tell yet.
pub fn init(folder: &Path) -> ExitCode {
    let outcome = if std::env::var_os(INSIDE).is_none() { leave(folder) } else { inside(folder) };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("machine {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn system(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::Program { program: "machine", text: format!("{doing}: {error}") }
}

pub(super) fn leave_behind(flags: CloneFlags) -> Result<()> {
    unshare(flags).map_err(|error| Error::file("leaving the host")(error.into()))
}

/// Leaves the host, and lets a child be the first in what is new.
fn leave(folder: &Path) -> Result<u8> {
    rustix::process::setsid().map(drop).or_else(|error| match error {
        // Leads a group already.
        rustix::io::Errno::PERM => Ok(()),
        other => Err(system("a session of its own")(other)),
    })?;
    let flags = CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    leave_behind(flags)?;
    let program = std::env::current_exe().map_err(Error::file("/proc/self/exe"))?;
    let mut child = Command::new(&program)
        .arg(super::INIT)
        .arg(folder)
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .spawn()
        .map_err(Error::file(&program))?;
    folder::remember(folder, i32::try_from(child.id()).unwrap_or_default())?;
    let status = child.wait().map_err(Error::file(&program))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn inside(folder: &Path) -> Result<u8> {
    let written = folder::written(folder)?;
    // Not before: the other one still has to find us among the host's processes.
    leave_behind(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(system("its mounts"))?;
    groups::enter(&folder::cgroup(&written.machine.name))?;
    sethostname(written.machine.name.as_bytes()).map_err(system("its name"))?;
    own_files(folder, &written.machine.visible)?;
    network(&written)?;
    keep_running(&written)
}

/// Mounts of its own. They are shared below, so that what one container mounts
/// another one sees.
fn own_files(folder: &Path, visible: &[PathBuf]) -> Result<()> {
    // Its own processes.
    mount("proc", "/proc", "proc", MountFlags::empty(), None).map_err(system("/proc"))?;
    let settings = folder.join("settings");
    fs::create_dir_all(&settings).map_err(Error::file(&settings))?;
    for name in SETTINGS {
        let path = PathBuf::from("/proc/sys").join(name);
        let Ok(value) = fs::read(&path) else { continue };
        let copy = settings.join(name.replace('/', "-"));
        fs::write(&copy, value).map_err(Error::file(&copy))?;
        mount_bind(&copy, &path).map_err(system("settings"))?;
    }
    // Opened first: the machine's folder may be below one that is hidden next.
    let own = OWN.map(|own| (own, open(&folder::files(folder, own))));
    let visible: Vec<_> = visible.iter().map(|path| (path, open(path))).collect();
    for (own, files) in own {
        if Path::new(own).is_dir() || fs::create_dir_all(own).is_ok() {
            bind(&files?, Path::new(own))?;
        }
    }
    mount("tmpfs", FLEETING, "tmpfs", MountFlags::empty(), None).map_err(system("its files"))?;
    for (path, found) in visible {
        show(path, &found?)?;
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).map_err(system("its mounts"))
}

/// A file or folder by whatever name it has later.
fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| Error::file(path)(error.into()))
}

fn bind(source: &OwnedFd, target: &Path) -> Result<()> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount_bind(source, target).map_err(|error| Error::file(target)(error.into()))
}

/// Shows a file or folder of the host where it is, unless it can be seen there.
fn show(path: &Path, found: &OwnedFd) -> Result<()> {
    let stat = rustix::fs::fstat(found).map_err(|error| Error::file(path)(error.into()))?;
    let same = |seen: fs::Metadata| seen.dev() == stat.st_dev && seen.ino() == stat.st_ino;
    if fs::metadata(path).is_ok_and(same) {
        return Ok(());
    }
    if FileType::from_raw_mode(stat.st_mode).is_dir() {
        fs::create_dir_all(path).map_err(Error::file(path))?;
    } else if !path.exists() {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
        fs::write(path, "").map_err(Error::file(path))?;
    }
    bind(found, path)
}

fn network(written: &Written) -> Result<()> {
    let late = Instant::now() + TIMEOUT;
    while !Path::new("/proc/sys/net/ipv4/conf/eth0").exists() {
        if Instant::now() > late {
            return Err(Error::Program { program: "machine", text: "has no network".into() });
        }
        sleep(Duration::from_millis(10));
    }
    let address = format!("{}/24", written.machine.address);
    let gateway = written.gateway.to_string();
    for arguments in [
        &["link", "set", "lo", "up"][..],
        &["address", "add", &address, "dev", "eth0"],
        &["link", "set", "eth0", "up"],
        &["route", "add", "default", "via", &gateway],
    ] {
        let status = Command::new("ip").args(arguments).stdin(Stdio::null()).status();
        if !status.map_err(Error::file("ip"))?.success() {
            let text = format!("ip {} failed", arguments.join(" "));
            return Err(Error::Program { program: "machine", text });
        }
    }
    Ok(())
}

/// Keeps the agent running, and buries whoever has lost its parent.
fn keep_running(written: &Written) -> Result<u8> {
    loop {
        let agent = start(written)?;
        let number = i32::try_from(agent.id()).unwrap_or_default();
        until_ended(number).map_err(Error::file("wait"))?;
        sleep(AGAIN);
    }
}

fn start(written: &Written) -> Result<Child> {
    let command = &written.machine.command;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Error::Invalid(vec!["command: is empty".into()]));
    };
    Command::new(program)
        .args(arguments)
        .env_remove(INSIDE)
        .env("PATH", folder::PATH)
        .env("HOME", "/root")
        .envs(&written.machine.environment)
        .stdin(Stdio::null())
        .spawn()
        .map_err(Error::file(program))
}

fn until_ended(agent: i32) -> io::Result<()> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if Some(pid) == Pid::from_raw(agent) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
