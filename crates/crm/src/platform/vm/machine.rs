//! One machine: its directory, and the process that runs it.

use std::{
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::Instant};

use super::{
    accelerator::Accelerator, image::Image, names::Names, process, qmp::Control, tools::Tools,
};
use crate::{Error, Result, error::During, platform::PortEndpoint};

/// Longest path of a socket, with the zero at its end.
const SOCKET: usize = 108;
/// Time a machine's process may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Of the words with which a process ended.
const LAST_WORDS: usize = 2000;
/// Memory in MB of a machine whose flavor does not say.
const MEMORY: u64 = 512;
const GIB: u64 = 1 << 30;
/// Calls that the process may never make, whatever a guest makes of it.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Plan of a machine.
pub(super) struct Plan<'a> {
    pub(super) names: &'a Names,
    pub(super) memory_mb: u64,
    pub(super) cores: u64,
    pub(super) disk_gb: u64,
    pub(super) places: &'a [PortEndpoint],
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
        self.directory.join("console")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    fn control(&self) -> PathBuf {
        self.directory.join("control")
    }

    fn disk(&self) -> PathBuf {
        self.directory.join("disk.qcow2")
    }

    fn seed(&self) -> PathBuf {
        self.directory.join("seed.img")
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
        std::fs::write(self.base_note(), image.path.as_os_str().as_bytes())
            .during("making a machine")?;
        let size = wanted.max(image.size).to_string();
        // Under another name first: a disk that is there is whole.
        let part = self.directory.join("disk.part");
        let head = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"].map(Path::new);
        let tail = [image.path.as_path(), part.as_path(), Path::new(&size)];
        tools.image(head.into_iter().chain(tail)).await?;
        std::fs::rename(&part, self.disk()).during("making a machine")
    }

    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).during("removing a machine")
            }
            _ => Ok(()),
        }
    }

    /// Starts its process and returns when that runs.
    pub(super) async fn start(
        &self,
        tools: &Tools,
        accelerator: Accelerator,
        plan: &Plan<'_>,
        seed: &[u8],
    ) -> Result<()> {
        private(&self.seed())
            .and_then(|mut file| std::io::Write::write_all(&mut file, seed))
            .during("writing the machine's first instructions")?;
        for socket in [self.console(), self.control()] {
            let _ = std::fs::remove_file(socket);
        }
        let words = private(&self.words()).during("starting a machine")?;
        let mut child = Command::new(&tools.session)
            .arg(&tools.qemu)
            .args(accelerator.arguments())
            .args(self.arguments(plan))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words)
            .spawn()
            .during("starting a machine")?;
        let until = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().during("starting a machine")? {
                return Err(self.failed(&status.to_string()));
            }
            if Control::open(&self.control()).await.is_ok() {
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
        let words = String::from_utf8_lossy(&words[words.len().saturating_sub(LAST_WORDS)..]);
        let words = words.trim();
        let text = if words.is_empty() { otherwise } else { words };
        let text = text.to_owned();
        Error::Runtime(selvage_runtime::Error::Program { program: "qemu".into(), text })
    }

    fn arguments(&self, plan: &Plan<'_>) -> Vec<String> {
        let names = plan.names;
        let memory = if plan.memory_mb == 0 { MEMORY } else { plan.memory_mb };
        let mut network = "user,id=net".to_owned();
        for place in plan.places {
            let protocol = if place.udp { "udp" } else { "tcp" };
            network += &format!(",hostfwd={protocol}:{}-:{}", place.at, place.internal);
        }
        let socket = |id: &str, path: &Path| {
            format!("socket,id={id},path={},server=on,wait=off", escaped(path))
        };
        let console = format!(
            "{},logfile={},logappend=on",
            socket("console", &self.console()),
            escaped(&self.log())
        );
        [
            ["-name", &names.process],
            ["-uuid", &names.uuid],
            ["-display", "none"],
            ["-sandbox", SANDBOX],
            ["-m", &format!("{memory}M")],
            ["-smp", &plan.cores.max(1).to_string()],
            ["-blockdev", &block("disk", "qcow2", &self.disk(), false)],
            ["-device", "virtio-blk-pci,drive=disk,bootindex=1"],
            ["-blockdev", &block("seed", "raw", &self.seed(), true)],
            ["-device", "virtio-blk-pci,drive=seed"],
            ["-netdev", &network],
            ["-device", &format!("virtio-net-pci,netdev=net,mac={}", names.mac)],
            ["-device", "virtio-rng-pci"],
            ["-chardev", &console],
            ["-serial", "chardev:console"],
            ["-chardev", &socket("control", &self.control())],
            ["-mon", "chardev=control,mode=control"],
        ]
        .into_iter()
        .flatten()
        .chain(["-nodefaults", "-no-user-config"])
        .map(str::to_owned)
        .collect()
    }

    /// Ends its process: as with its power button, or, when that does not
    /// help in time, as by a power cut.
    pub(super) async fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        let name = name.to_owned();
        for process in process::find(move |found| found == name).await? {
            let pressed =
                async { Control::open(&self.control()).await?.press_power_button().await };
            if !grace.is_zero() && pressed.await.is_ok() && process.ended(grace).await? {
                continue;
            }
            process.kill().await?;
        }
        Ok(())
    }

    /// Returns whether the guest has set up its network.
    pub(super) async fn has_network(&self) -> bool {
        match Control::open(&self.control()).await {
            Ok(mut control) => control.has_network().await.unwrap_or_default(),
            Err(_) => false,
        }
    }
}

fn private(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Commas end a value unless there are two.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn block(name: &str, driver: &str, path: &Path, read_only: bool) -> String {
    serde_json::json!({
        "driver": driver,
        "node-name": name,
        "read-only": read_only,
        "file": {"driver": "file", "filename": path, "read-only": read_only},
    })
    .to_string()
}
