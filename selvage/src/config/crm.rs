//! The agent of a cloudlet.

use std::{net::IpAddr, path::PathBuf};

use selvage_kit::config::Duration;
use serde::{Deserialize, Serialize};

/// The agent of a cloudlet.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Crm {
    /// The cloudlet, `operator/name`, that this machine is, where its
    /// controller is in this process. One that joined has it from its token.
    pub(crate) cloudlet: String,
    /// File that says what the cloudlet is made of (YAML).
    pub(crate) site: Option<PathBuf>,
    /// Where a cluster of Kubernetes is and who we are there, for a cloudlet of
    /// that kind; as `kubectl` finds it where not given.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// What runs containers: `containerd`, `oci` (runc, crun or youki without
    /// a daemon) or `auto`, which takes containerd where it is.
    pub(crate) runtime: CrmRuntime,
    /// Folders of this machine whose files may be images of apps (`file://`),
    /// beside `images` in the data directory.
    pub(crate) image_folders: Vec<PathBuf>,
    /// Socket of the machine's lvmd, for apps that ask for volumes; that of
    /// this data directory where not given.
    pub(crate) lvmd: Option<PathBuf>,
    /// Whether HTTP ports of apps speak TLS, and tcp ports that ask for it may,
    /// with the certificate of this process.
    pub(crate) https: bool,
    /// Addresses of the public ports of clusters without one of their own.
    pub(crate) addresses: Vec<IpAddr>,
    /// Who leads what comes to tcp and udp ports of containers from other
    /// machines: `kernel`, `proxy` (this process), or `auto`, which takes the
    /// kernel unless it cannot or a firewall drops what it passes on.
    pub(crate) forwarding: CrmForwarding,
    /// How long an instance may take until it takes connections.
    pub(crate) patience: Duration,
    /// How long the controller must not have mentioned something that runs
    /// before it is removed.
    pub(crate) grace: Duration,
    /// How often it looks whether everything runs.
    pub(crate) look: Duration,
    /// How often it sends what instances use.
    pub(crate) samples: Duration,
}

impl Default for Crm {
    fn default() -> Self {
        let seconds = |count| Duration(std::time::Duration::from_secs(count));
        Self {
            cloudlet: String::new(),
            site: None,
            kubeconfig: None,
            runtime: CrmRuntime::Auto,
            image_folders: Vec::new(),
            lvmd: None,
            https: false,
            addresses: vec![IpAddr::from([0, 0, 0, 0])],
            forwarding: CrmForwarding::Auto,
            patience: seconds(30),
            grace: seconds(60),
            look: seconds(10),
            samples: seconds(15),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CrmRuntime {
    Auto,
    Containerd,
    Oci,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CrmForwarding {
    Auto,
    Kernel,
    Proxy,
}
