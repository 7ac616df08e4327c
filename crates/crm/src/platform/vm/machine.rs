//! One machine: its directory, and the process that runs it.
//!
//! The directory is ours and its user may enter it: names in it are not the
//! process's to change. What the process writes to is there before it, and
//! belongs to its user; only the folder of its sockets is its own.

use std::{
    net::Ipv4Addr,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    accelerator::Accelerator,
    image::Image,
    names::Names,
    process::{self, Process},
    qmp::Control,
    tools::Tools,
    user::User,
};
use crate::{Error, Result, error::During};

/// Longest path of a socket, with the zero at its end.
const SOCKET: usize = 108;
/// Time a machine's process may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Of the words with which a process ended.
const LOG_TAIL_BYTES: usize = 2000;
/// Memory in MB of a machine whose flavor does not say.
const MEMORY: u64 = 512;
const GIB: u64 = 1 << 30;
/// Calls that the process may never make, whatever a guest makes of it.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
/// Names in its directory, by which its process knows them too.
const DISK: &str = "disk.qcow2";
const IMAGE: &str = "base.qcow2";
const SEED: &str = "seed.img";
const LOG: &str = "console.log";
const SOCKETS: &str = "run";
const CONSOLE: &str = "run/console";
const CONTROL: &str = "run/control";
/// Descriptor by which its process gets its network card.
const CARD: u32 = 0;

/// Plan of a machine.
pub(super) struct Plan<'a> {
    pub(super) names: &'a Names,
    pub(super) memory_mb: u64,
    pub(super) cores: u64,
    pub(super) disk_gb: u64,
    pub(super) address: Ipv4Addr,
}

impl Plan<'_> {
    fn user(&self) -> User {
        User::of(self.address)
    }
}

/// Network of a machine that starts.
pub(super) struct Network {
    /// Its namespace.
    pub(super) namespace: PathBuf,
    /// Its card.
    pub(super) card: OwnedFd,
}

/// The files of a machine.
pub(super) struct Machine {
    directory: PathBuf,
}

impl Machine {
    pub(super) fn at(directory: PathBuf) -> Result<Self> {
        let machine = Self { directory };
        if machine.console().as_os_str().as_bytes().len() >= SOCKET {
            let reason = format!("the path of {} is too long", machine.console().display());
            return Err(Error::state(reason));
        }
        Ok(machine)
    }

    pub(super) fn console(&self) -> PathBuf {
        self.directory.join(CONSOLE)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    fn control(&self) -> PathBuf {
        self.directory.join(CONTROL)
    }

    fn disk(&self) -> PathBuf {
        self.directory.join(DISK)
    }

    fn base_note(&self) -> PathBuf {
        self.directory.join("base")
    }

    fn words(&self) -> PathBuf {
        self.directory.join("qemu.log")
    }

    /// Returns whether it has a disk to start from.
    pub(super) fn is_made(&self) -> bool {
        self.disk().is_file()
    }

    /// The image that its disk builds on.
    pub(super) fn base(&self) -> Option<PathBuf> {
        std::fs::read_to_string(self.base_note()).ok().map(PathBuf::from)
    }

    /// User of its process; none before its first start.
    pub(super) fn user(&self) -> Option<User> {
        let sockets = std::fs::symlink_metadata(self.directory.join(SOCKETS)).ok()?;
        User::from_number(sockets.uid())
    }

    /// Process that runs it.
    pub(super) async fn process(&self, names: &Names) -> Result<Option<Process>> {
        Ok(process::of(self.user(), &names.process).await?.into_iter().next())
    }

    /// Makes its directory and its disk, anew.
    pub(super) async fn make(&self, tools: &Tools, image: &Image, plan: &Plan<'_>) -> Result<()> {
        let wanted = plan.disk_gb.saturating_mul(GIB);
        if wanted > 0 && image.size > wanted {
            let (needs, has) = (image.size.div_ceil(GIB), plan.disk_gb);
            let reason = format!("the image needs a disk of {needs} GB and the flavor has {has}");
            return Err(Error::invalid("flavor", reason));
        }
        self.remove()?;
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.directory).during("making a machine")?;
        // Before the disk is there: an image in use is never taken away.
        selvage_files::replace(&self.base_note(), image.path.as_os_str().as_bytes(), 0o600)
            .during("making a machine")?;
        let size = wanted.max(image.size).to_string();
        // Under another name first: a disk that is there is whole. The image is
        // a stranger's and is not looked into.
        let part = "disk.part";
        let head = ["create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", IMAGE];
        tools.image(&self.directory, head.into_iter().chain([part, &size])).await?;
        let part = self.directory.join(part);
        std::fs::File::open(&part)
            .and_then(|file| file.sync_all())
            .and_then(|()| selvage_files::rename(&part, &self.disk()))
            .during("making a machine")
    }

    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).during("removing a machine")
            }
            _ => Ok(()),
        }
    }

    /// Gives its user what that needs of its files, and nothing else.
    fn hand_over(&self, user: User) -> std::io::Result<()> {
        let image = self.directory.join(IMAGE);
        if !image.exists() {
            let base = self.base().ok_or(std::io::ErrorKind::NotFound)?;
            std::fs::hard_link(base, image)?;
        }
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(self.log())?;
        for file in [DISK, LOG] {
            user.own(&self.directory.join(file))?;
        }
        std::fs::set_permissions(self.disk(), private_mode())?;
        let sockets = self.directory.join(SOCKETS);
        match std::fs::remove_dir_all(&sockets) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::DirBuilder::new().mode(0o700).create(&sockets)?,
        }
        user.own(&sockets)?;
        user.admit(&self.directory)
    }

    /// Starts its process and returns when that runs.
    pub(super) async fn start(
        &self,
        tools: &Tools,
        accelerator: Accelerator,
        plan: &Plan<'_>,
        seed: &[u8],
        network: Network,
    ) -> Result<()> {
        let user = plan.user();
        self.hand_over(user).during("giving a machine its files")?;
        let path = self.directory.join(SEED);
        private(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, seed))
            .and_then(|()| user.own(&path))
            .during("writing the machine's first instructions")?;
        let words = private(&self.words()).during("starting a machine")?;
        let mut child = tools
            .machine(user, &self.directory, Some(&network.namespace))
            .args(accelerator.arguments())
            .args(arguments(plan))
            .stdin(network.card)
            .stdout(Stdio::null())
            .stderr(words)
            .spawn()
            .during("starting a machine")?;
        let until = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().during("starting a machine")? {
                return Err(self.failed(&status.to_string()));
            }
            if Control::open(&self.control(), user).await.is_ok() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(self.failed("it does not answer"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn failed(&self, otherwise: &str) -> Error {
        let words = std::fs::read(self.words()).unwrap_or_default();
        let words = String::from_utf8_lossy(&words[words.len().saturating_sub(LOG_TAIL_BYTES)..]);
        let words = words.trim();
        let text = if words.is_empty() { otherwise } else { words };
        let text = text.to_owned();
        Error::Runtime(selvage_runtime::Error::Program { program: "qemu".into(), text })
    }

    /// Ends its process: as with its power button, or, when that does not
    /// help in time, as by a power cut.
    pub(super) async fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        let user = self.user();
        let (socket, speaker) = match user {
            Some(user) => (self.control(), user),
            // One that an earlier release started.
            None => (self.directory.join("control"), User::of_this_process()),
        };
        for process in process::of(user, name).await? {
            let pressed =
                async { Control::open(&socket, speaker).await?.press_power_button().await };
            if !grace.is_zero() && pressed.await.is_ok() && process.ended(grace).await? {
                continue;
            }
            process.kill().await?;
        }
        Ok(())
    }
}

fn arguments(plan: &Plan<'_>) -> Vec<String> {
    let names = plan.names;
    let memory = if plan.memory_mb == 0 { MEMORY } else { plan.memory_mb };
    let socket = |id: &str, path: &str| format!("socket,id={id},path={path},server=on,wait=off");
    let console = format!("{},logfile={LOG},logappend=on", socket("console", CONSOLE));
    let mac = names.mac.map(|byte| format!("{byte:02x}")).join(":");
    [
        ["-name", &names.process],
        ["-uuid", &names.uuid],
        ["-display", "none"],
        ["-sandbox", SANDBOX],
        ["-m", &format!("{memory}M")],
        ["-smp", &plan.cores.max(1).to_string()],
        ["-blockdev", &disk()],
        ["-device", "virtio-blk-pci,drive=disk,bootindex=1"],
        ["-blockdev", &seed()],
        ["-device", "virtio-blk-pci,drive=seed"],
        ["-netdev", &format!("tap,id=net,fd={CARD}")],
        ["-device", &format!("virtio-net-pci,netdev=net,mac={mac}")],
        ["-device", "virtio-rng-pci"],
        ["-chardev", &console],
        ["-serial", "chardev:console"],
        ["-chardev", &socket("control", CONTROL)],
        ["-mon", "chardev=control,mode=control"],
    ]
    .into_iter()
    .flatten()
    .chain(["-nodefaults", "-no-user-config"])
    .map(str::to_owned)
    .collect()
}

fn private_mode() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o600)
}

fn private(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The disk on its image, whatever file its header names.
fn disk() -> String {
    serde_json::json!({
        "driver": "qcow2",
        "node-name": "disk",
        "file": {"driver": "file", "filename": DISK},
        "backing": {
            "driver": "qcow2",
            "node-name": "image",
            "read-only": true,
            "file": {"driver": "file", "filename": IMAGE, "read-only": true},
            "backing": null,
        },
    })
    .to_string()
}

fn seed() -> String {
    serde_json::json!({
        "driver": "raw",
        "node-name": "seed",
        "read-only": true,
        "file": {"driver": "file", "filename": SEED, "read-only": true},
    })
    .to_string()
}
