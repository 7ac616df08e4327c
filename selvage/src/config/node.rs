//! The agent of this machine, and its volumes.

use std::{collections::BTreeMap, path::PathBuf};

use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

/// The agent of this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Node {
    /// Socket of the containerd that runs containers.
    pub(crate) containerd: PathBuf,
    /// Socket of the containerd of the machine's own services (namespace
    /// `system`); most machines have one for both.
    pub(crate) system_containerd: PathBuf,
    /// Socket that speaks the Kubernetes runtime interface.
    pub(crate) cri: PathBuf,
    /// Run containers of our own, without containerd, with runc, crun or
    /// youki.
    pub(crate) own_runtime: bool,
    /// Folders below which files may be listed and read; empty: all.
    pub(crate) roots: Vec<PathBuf>,
    /// The kubeconfig that admins are given.
    pub(crate) kubeconfig: PathBuf,
    /// Where the machine's time is compared with.
    pub(crate) time_server: String,
    /// Whether callers may reboot, turn off, reset and upgrade the machine.
    pub(crate) allow_power: bool,
    /// Files and folders that a reset removes.
    pub(crate) reset_paths: Vec<PathBuf>,
    /// Program that upgrades the machine, with its arguments; the image comes
    /// last.
    pub(crate) installer: Vec<String>,
    /// Other machines by name, each with `host` or `host:port`, for calls to
    /// many.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Port of other machines that are named without one; 0: the port that
    /// this process answers on.
    pub(crate) port: u16,
    /// `host:port` of the controller that this agent belongs to, or of several
    /// of one region, with commas: the next is tried when one is away. Empty:
    /// those it joined before, or none.
    pub(crate) controller: String,
    /// File with the token to join with; not needed again afterwards.
    pub(crate) join_file: Option<SecretFile>,
    /// Certificate of the controller's CA, PEM.
    pub(crate) ca: Option<PathBuf>,
    /// SHA-256 fingerprint of the controller's CA, if the token does not end
    /// with it.
    pub(crate) ca_sha256: String,
    /// `host:port` where others reach this agent. Empty: its port, at the
    /// address from which it calls the controller.
    pub(crate) advertise: String,
    /// By which this machine can be chosen, such as `rack = "3"`.
    pub(crate) labels: BTreeMap<String, String>,
    /// How often the agent tells the controller where it is.
    pub(crate) report: Duration,
}

impl Default for Node {
    fn default() -> Self {
        let settings = selvage_node::Settings::default();
        Self {
            containerd: settings.runtimes.containerd_socket,
            system_containerd: settings.runtimes.system_socket,
            cri: settings.runtimes.cri_socket,
            own_runtime: false,
            roots: settings.roots,
            kubeconfig: settings.kubeconfig,
            time_server: settings.time_server,
            allow_power: false,
            reset_paths: Vec::new(),
            installer: Vec::new(),
            nodes: BTreeMap::new(),
            port: 0,
            controller: String::new(),
            join_file: None,
            ca: None,
            ca_sha256: String::new(),
            advertise: String::new(),
            labels: BTreeMap::new(),
            report: Duration(std::time::Duration::from_secs(15)),
        }
    }
}

/// The volumes of this machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Lvmd {
    /// Configuration file of lvmd (YAML), for volumes in LVM. Without one,
    /// volumes are image files in the data directory.
    pub(crate) config: Option<PathBuf>,
    /// How many GiB the image files may hold together; 0: half of what is
    /// free at the first start.
    pub(crate) size_gb: u64,
}
