//! The configuration of a daemon: one file, the same for every part.

mod controller;
mod crm;
mod dme;
mod load;
mod node;
mod serving;

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context, bail};
pub(crate) use controller::Controller;
pub(crate) use crm::{Crm, CrmForwarding, CrmRuntime};
pub(crate) use dme::Dme;
pub(crate) use load::{BAD_CONFIG, dump, load};
pub(crate) use node::{Lvmd, Node};
use selvage_kit::telemetry::LogOptions;
use selvage_node::member::Kind;
use serde::{Deserialize, Serialize};
pub(crate) use serving::{Auth, Listen, Store, StoreKind, Tls};

/// Everything that can be configured. `selvage up --dump-config` prints it
/// with the values in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where state, keys and sockets are kept.
    pub(crate) data: PathBuf,
    /// Plaintext, everybody is admin, loopback only. For laboratories.
    pub(crate) insecure: bool,
    pub(crate) listen: Listen,
    pub(crate) tls: Tls,
    pub(crate) store: Store,
    pub(crate) auth: Auth,
    pub(crate) controller: Controller,
    pub(crate) node: Node,
    pub(crate) lvmd: Lvmd,
    pub(crate) crm: Crm,
    pub(crate) dme: Dme,
    pub(crate) log: LogOptions,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: default_data_dir(),
            insecure: false,
            listen: Listen::default(),
            tls: Tls::default(),
            store: Store::default(),
            auth: Auth::default(),
            controller: Controller::default(),
            node: Node::default(),
            lvmd: Lvmd::default(),
            crm: Crm::default(),
            dme: Dme::default(),
            log: LogOptions::default(),
        }
    }
}

impl Config {
    /// Finds what no single key shows to be wrong, before anything is touched.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let address = &self.listen.address;
        let ip: IpAddr = address
            .parse()
            .with_context(|| format!("listen.address: {address:?} is not an IP address"))?;
        if self.insecure && !ip.is_loopback() {
            bail!("listen.address: --insecure listens on loopback only, not on {ip}");
        }
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            bail!("tls.certificate and tls.key: one is of no use without the other");
        }
        if self.store.kind == StoreKind::Etcd && self.store.endpoints.is_empty() {
            bail!("store.endpoints: name at least one endpoint of etcd, such as https://host:2379");
        }
        if !self.store.username.is_empty() && self.store.password_file.is_none() {
            bail!("store.password_file: needed with store.username");
        }
        if self.dme.stats_interval.0.is_zero() || self.dme.key_refresh.0.is_zero() {
            bail!("dme.stats_interval and dme.key_refresh: 0 would never rest");
        }
        selvage_kit::labels::check(&self.node.labels).context("node.labels")?;
        let socket = self.lvmd_socket();
        if socket.as_os_str().len() > LONGEST_SOCKET_PATH {
            bail!("data: too long, {} cannot be the path of a socket", socket.display());
        }
        Ok(())
    }

    /// The socket by which this machine's root reaches its agent.
    pub(crate) fn node_socket(&self) -> PathBuf {
        self.data.join("run/node.sock")
    }

    /// Where an agent keeps what it got from its controller.
    pub(crate) fn joined(&self, kind: Kind) -> PathBuf {
        self.data.join(match kind {
            Kind::Node => "joined",
            Kind::Cloudlet => "joined-cloudlet",
            Kind::Dme => "joined-dme",
        })
    }

    /// The socket by which the match engine reaches the controller of its own
    /// process.
    pub(crate) fn dme_socket(&self) -> PathBuf {
        self.data.join("run/dme.sock")
    }

    /// The socket that lvmd's clients know.
    pub(crate) fn lvmd_socket(&self) -> PathBuf {
        self.data.join("run/lvmd.sock")
    }
}

/// What the kernel takes as the path of a unix socket.
const LONGEST_SOCKET_PATH: usize = 107;

/// The system's place for root, the user's own for everybody else.
fn default_data_dir() -> PathBuf {
    if nix::unistd::Uid::effective().is_root() {
        return "/var/lib/selvage".into();
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match (set("XDG_DATA_HOME"), set("HOME")) {
        (Some(data), _) => PathBuf::from(data).join("selvage"),
        (None, Some(home)) => PathBuf::from(home).join(".local/share/selvage"),
        (None, None) => "selvage-data".into(),
    }
}
