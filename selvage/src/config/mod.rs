//! The configuration of a daemon: one file, the same for every part. The
//! sections of the parts are in their own crates.

mod load;
mod protected;
mod serving;

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context, bail};
pub(crate) use load::{BAD_CONFIG, dump, load};
pub(crate) use selvage_membership::Options as Join;
pub(crate) use serving::{Auth, Listen, Store, StoreKind, Tls};

use crate::demo;
pub(crate) use crate::parts::Config;

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
        selvage_kit::labels::check(&self.join.labels).context("join.labels")?;
        self.validate_parts()?;
        let socket = self.socket("lvmd");
        if socket.as_os_str().len() > LONGEST_SOCKET_PATH {
            bail!("data: too long, {} cannot be the path of a socket", socket.display());
        }
        Ok(())
    }

    /// Path of a unix socket in the data directory.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.data.join(format!("run/{name}.sock"))
    }

    /// Settings that one part takes from another's, where it has none of its
    /// own. Not part of what is dumped.
    pub(crate) fn link(&mut self) {
        if self.join.advertise.is_empty() {
            self.join.advertise.clone_from(&self.controller.external_address);
        }
        // Containers run by one runtime, whether the crm or the agent asks.
        self.crm.containerd.get_or_insert_with(|| self.node.containerd.clone());
        self.node.own_runtime |= !self.crm.cloudlet.is_empty() && self.crm.drives_containers();
        self.crm.image_folders.push(demo::image(&self.data));
        self.node.protected = self.protected();
        self.dns.root_domain.clone_from(&self.controller.root_domain);
        self.kaas.local.own_cloudlet.clone_from(&self.crm.cloudlet);
    }
}

/// Longest path of a unix socket that the kernel takes.
const LONGEST_SOCKET_PATH: usize = 107;

/// The system's place for root, the user's own for everybody else.
pub(crate) fn default_data_dir() -> PathBuf {
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
