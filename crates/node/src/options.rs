//! The section `[node]` of the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::Settings;

/// Options of the agent of this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Socket of the containerd that runs containers.
    pub containerd: PathBuf,
    /// Socket of the containerd of the machine's own services (namespace
    /// `system`); most machines have one for both.
    pub system_containerd: PathBuf,
    /// Socket that speaks the Kubernetes runtime interface.
    pub cri: PathBuf,
    /// Run containers of our own, without containerd, with runc, crun or
    /// youki.
    pub own_runtime: bool,
    /// This machine may become a member of a Kubernetes cluster, which a
    /// controller decides; needs root.
    pub kubernetes: bool,
    /// Folder of Kubernetes' programs by version, beside those that the
    /// controller sends.
    pub artifacts: Option<PathBuf>,
    /// Socket of the lvmd that pods have their volumes from. Without one the
    /// agent runs one of its own, on image files in the data directory.
    pub lvmd: Option<PathBuf>,
    /// Capacity in GiB of these image files together; 0: half of what is
    /// free at the first start.
    pub volumes_gb: u64,
    /// Control group below which containers of our own are.
    pub cgroup: String,
    /// Folders below which files may be listed and read; empty: all.
    pub roots: Vec<PathBuf>,
    /// Files and folders with keys and state, which no caller is given. The
    /// process adds its own here; there is no key to take any away.
    #[serde(skip)]
    pub protected: Vec<PathBuf>,
    /// The kubeconfig that admins are given.
    pub kubeconfig: PathBuf,
    /// Time server that the machine's clock is compared with.
    pub time_server: String,
    /// Folder of files `*.prom`, written by scripts, that are added to the page
    /// for Prometheus.
    pub textfiles: Option<PathBuf>,
    /// Lets callers reboot, turn off, reset and upgrade the machine.
    pub allow_power: bool,
    /// Files and folders that a reset removes.
    pub reset_paths: Vec<PathBuf>,
    /// Program that upgrades the machine, with its arguments; the image comes
    /// last.
    pub installer: Vec<String>,
    /// Other machines by name, each with `host` or `host:port`, for calls to
    /// many.
    pub nodes: BTreeMap<String, String>,
    /// Port of other machines that are named without one; 0: the port that
    /// this process answers on.
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            containerd: settings.runtimes.containerd_socket,
            system_containerd: settings.runtimes.system_socket,
            cri: settings.runtimes.cri_socket,
            own_runtime: false,
            kubernetes: false,
            artifacts: None,
            lvmd: None,
            volumes_gb: 0,
            cgroup: "/selvage".into(),
            roots: settings.roots,
            protected: settings.protected,
            kubeconfig: settings.kubeconfig,
            time_server: settings.time_server,
            textfiles: None,
            allow_power: false,
            reset_paths: Vec::new(),
            installer: Vec::new(),
            nodes: BTreeMap::new(),
            port: 0,
        }
    }
}
