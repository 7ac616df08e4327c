//! Machines on this host: each has a network, mounts, processes and a name of
//! its own, and an agent in it.
//!
//! A machine outlives whoever started it: its first process keeps the agent
//! running, and what is known of the machine stands in its folder. It is stopped
//! by ending the first process; the kernel ends and unmounts the rest.

mod folder;
mod groups;
mod init;
mod network;

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::sleep};

use crate::{Error, Result};

pub use init::init;

/// Argument by which a program becomes the first process of a machine; the
/// machine's folder comes next.
pub const INIT: &str = "machine-init";

/// Interval at which a machine is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// No machine takes longer to start or to end, on a host with too much to do either.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A machine to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// A DNS label; host name of the machine too.
    pub name: String,
    /// Address in the network of machines.
    pub address: Ipv4Addr,
    /// The agent: a program and its arguments.
    pub command: Vec<String>,
    /// Variables of the agent.
    pub environment: BTreeMap<String, String>,
    /// Files and folders of the host that the machine sees where they are, also
    /// below folders that it has for itself.
    #[serde(default)]
    pub visible: Vec<PathBuf>,
}

/// Network of the machines of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Folder with one folder a machine.
    pub root: PathBuf,
    /// Program that handles [`INIT`].
    pub program: PathBuf,
    /// Name of the bridge that machines are on, at most 15 characters.
    pub bridge: String,
    /// Address of the bridge; machines are in the same /24.
    pub gateway: Ipv4Addr,
}

/// Starts, finds and stops machines.
#[derive(Debug, Clone)]
pub struct Launcher {
    settings: Settings,
}

impl Launcher {
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.settings.root.join(name)
    }

    /// Starts a machine; one that runs and has a network is left as it is.
    pub async fn start(&self, machine: &Machine) -> Result<()> {
        if !crate::spec::is_label(&machine.name) || machine.name.len() > 40 {
            return Err(Error::Invalid(vec![
                "name: must be a DNS label of at most 40 characters".into(),
            ]));
        }
        let folder = self.folder(&machine.name);
        if let Some(process) = folder::process(&folder) {
            // Whoever started it may have ended before it had a network.
            return network::complete(&self.settings.bridge, &machine.name, process).await;
        }
        folder::make(&folder, machine, self.settings.gateway)?;
        network::bridge(&self.settings.bridge, self.settings.gateway).await?;
        let log = fs::File::create(self.log(&machine.name)).map_err(Error::file(&folder))?;
        let errors = log.try_clone().map_err(Error::file(&folder))?;
        // In a session of its own, and nobody waits for it.
        let mut child = Command::new(&self.settings.program)
            .arg(INIT)
            .arg(&folder)
            .env_clear()
            .env("PATH", folder::PATH)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(Error::file(&self.settings.program))?;
        let started = self.plug_in(machine, &mut child).await;
        tokio::spawn(async move { child.wait().await });
        started
    }

    /// Gives a machine its end of the network when it is there to take it.
    async fn plug_in(&self, machine: &Machine, child: &mut tokio::process::Child) -> Result<()> {
        let folder = self.folder(&machine.name);
        let waited = tokio::time::timeout(TIMEOUT, async {
            loop {
                if let Some(process) = folder::process(&folder) {
                    return Ok(process);
                }
                if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                    let text = fs::read_to_string(self.log(&machine.name)).unwrap_or_default();
                    return Err(Error::Program { program: "machine", text: last_log_lines(&text) });
                }
                sleep(POLL_INTERVAL).await;
            }
        });
        let pid = waited.await.map_err(|_| late("did not start"))??;
        network::plug_in(&self.settings.bridge, &machine.name, pid).await
    }

    /// Machines that there are, whether they run or not.
    pub fn list(&self) -> Vec<Machine> {
        let folders = fs::read_dir(&self.settings.root).into_iter().flatten().flatten();
        folders.filter_map(|entry| folder::read(&entry.path()).ok()).collect()
    }

    pub fn is_running(&self, name: &str) -> bool {
        folder::process(&self.folder(name)).is_some()
    }

    /// File with what the agent of a machine says.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder(name).join("log")
    }

    /// Path into a machine's own files, as seen from the host.
    pub fn inside(&self, name: &str, path: &str) -> Option<PathBuf> {
        let pid = folder::process(&self.folder(name))?;
        Some(PathBuf::from(format!("/proc/{pid}/root")).join(path.trim_start_matches('/')))
    }

    /// Ends a machine at once, as by pulling its plug; its files stay.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let folder = self.folder(name);
        let ended = tokio::time::timeout(TIMEOUT, async {
            while let Some(pid) = folder::process(&folder) {
                folder::kill(pid);
                sleep(POLL_INTERVAL).await;
            }
        });
        ended.await.map_err(|_| late("does not end"))?;
        crate::reset::remove_groups(&folder::cgroup(name));
        groups::weigh(folder::GROUP);
        network::unplug(name).await
    }

    /// Ends a machine and removes all that there was of it.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.stop(name).await?;
        let folder = self.folder(name);
        if folder.exists() {
            crate::volumes::release_images(&folder)?;
            crate::reset::remove_folder(&folder)?;
        }
        if self.list().is_empty() {
            network::remove_bridge(&self.settings.bridge).await?;
            let _ = fs::remove_dir(&self.settings.root);
            // As long as no machine of another folder is in it.
            crate::reset::remove_empty_group(folder::GROUP);
        }
        Ok(())
    }
}

fn late(what: &str) -> Error {
    Error::Program { program: "machine", text: what.to_owned() }
}

/// Last lines of the machine's log before it ended.
fn last_log_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let words = lines[lines.len().saturating_sub(3)..].join("; ");
    if words.is_empty() { "ended at once".into() } else { words }
}

/// Control group below which a machine is to have its containers.
pub fn cgroup(name: &str) -> String {
    folder::cgroup(name)
}

/// Programs that a host with machines needs, and Debian's packages of them.
const NEEDED: [(&str, &str); 3] = [("ip", "iproute2"), ("nft", "nftables"), ("runc", "runc")];

/// Checks that this host can have machines; a sentence if it cannot.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("machines on this host need root: start it as root".into());
    }
    let missing = NEEDED.iter().filter(|(name, _)| !folder::is_installed(Path::new(name)));
    let (names, packages): (Vec<&str>, Vec<&str>) = missing.copied().unzip();
    if names.is_empty() {
        return None;
    }
    let (names, packages) = (names.join(", "), packages.join(" "));
    Some(format!("machines on this host need {names}: install {packages}"))
}
