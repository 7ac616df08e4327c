//! The section `[crm]` of the configuration.

use std::{net::IpAddr, path::PathBuf};

use selvage_kit::config::Duration;
use selvage_runtime::Users;
use serde::{Deserialize, Serialize};

use crate::Forwarding;

/// Options of the agent of a cloudlet.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The cloudlet, `operator/name`, that this machine is, where its
    /// controller is in this process. One that joined has it from its token.
    pub cloudlet: String,
    /// File that says what the cloudlet is made of (YAML).
    pub site: Option<PathBuf>,
    /// Kubeconfig of the cluster of Kubernetes, for a cloudlet of
    /// that kind; as `kubectl` finds it where not given.
    pub kubeconfig: Option<PathBuf>,
    /// Runtime of containers: `containerd`, `oci` (runc, crun or youki without
    /// a daemon) or `auto`, which takes containerd where it is.
    pub runtime: RuntimeKind,
    /// Socket of the containerd that runs containers; `node.containerd` where
    /// not given.
    pub containerd: Option<PathBuf>,
    /// Folders of this machine whose files may be images of apps (`file://`),
    /// beside `images` in the data directory.
    pub image_folders: Vec<PathBuf>,
    /// Folder with a file `DEVELOPER.json` for each developer who has registries
    /// of their own: users and passwords, as in Docker's `config.json`.
    pub pull_secrets: Option<PathBuf>,
    /// Hosts inside of this network that images, charts and manifests of apps
    /// may come from (`name`, `name:port`, `*.name`), beside the registry of the
    /// site. All others must have public addresses.
    pub private_hosts: Vec<String>,
    /// Socket of the machine's lvmd, for apps that ask for volumes; that of
    /// this data directory where not given.
    pub lvmd: Option<PathBuf>,
    /// HTTP ports of apps speak TLS, and tcp ports that ask for it may,
    /// with the certificate of this process.
    pub https: bool,
    /// Addresses of the public ports of clusters without one of their own.
    pub addresses: Vec<IpAddr>,
    /// Forwarder of what comes to tcp and udp ports of apps from other
    /// machines: `kernel`, `proxy` (this process), or `auto`, which takes the
    /// kernel unless it cannot or a firewall drops what it passes on.
    pub forwarding: Forwarding,
    /// Networks that are not public, or that this machine is in, and that apps may
    /// reach all the same (`10.1.0.0/16`, `10.1.2.3`, either with `:PORT`), addresses
    /// of this machine included.
    pub egress: Vec<String>,
    /// Users of containers: `auto` gives each container a range that no account
    /// and no other container has, so that its root is nobody on this machine,
    /// where the runtime (`oci`, with crun) and the kernel (5.19 or later) can;
    /// `always` makes no container where they cannot; `never` leaves it the users
    /// of this machine.
    pub user_namespaces: UserNamespaces,
    /// Time an instance may take until it takes connections.
    pub start_timeout: Duration,
    /// Time for which the controller must not have mentioned something that
    /// runs before it is removed.
    pub grace: Duration,
    /// Interval of checking that everything runs.
    pub resync_interval: Duration,
    /// Interval of sending what instances use.
    pub samples: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let seconds = |count| Duration(std::time::Duration::from_secs(count));
        Self {
            cloudlet: String::new(),
            site: None,
            kubeconfig: None,
            runtime: RuntimeKind::Auto,
            containerd: None,
            image_folders: Vec::new(),
            pull_secrets: None,
            private_hosts: Vec::new(),
            lvmd: None,
            https: false,
            addresses: vec![IpAddr::from([0, 0, 0, 0])],
            forwarding: Forwarding::Auto,
            egress: Vec::new(),
            user_namespaces: UserNamespaces::Auto,
            start_timeout: seconds(30),
            grace: seconds(60),
            resync_interval: seconds(10),
            samples: seconds(15),
        }
    }
}

/// Runtime of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// containerd where it is, otherwise without a daemon.
    Auto,
    /// containerd.
    Containerd,
    /// An OCI runtime (runc, crun, youki) without a daemon.
    Oci,
}

/// Users of containers: their own, or those of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserNamespaces {
    /// Own users if the machine supports them.
    Auto,
    /// Own users, or the container is not created.
    Always,
    /// Users of the machine.
    Never,
}

impl UserNamespaces {
    /// Users that a runtime is asked for.
    pub(crate) fn users(self) -> Users {
        match self {
            Self::Auto => Users::OwnIfPossible,
            Self::Always => Users::Own,
            Self::Never => Users::Machine,
        }
    }
}
