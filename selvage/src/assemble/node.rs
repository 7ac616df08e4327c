//! Opens this machine's agent and the way to other machines.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use selvage_auth::Auth;
use selvage_kit::identity::Machine;
use selvage_node::{
    NodeAgent,
    fanout::{self, Fanout, Inventory, Machines, StaticDirectory},
    machine::SystemPower,
};
use sha2::{Digest, Sha256};

use super::{ControllerPart, Keys, names};
use crate::{config::Config, crm, inventory, part::Part, peers::Peers};

/// What serves this machine, and the way to other machines.
pub(crate) struct NodePart {
    /// None where only calls to other machines are passed on.
    pub(crate) agent: Option<NodeAgent>,
    pub(crate) fanout: Fanout,
    pub(crate) peers: Option<Arc<Peers>>,
}

/// Opens this machine's agent, if it is among the parts, and the way to
/// others.
pub(crate) async fn node(
    config: &Config,
    parts: &[Part],
    keys: Option<&Keys>,
    controller: Option<&ControllerPart>,
    auth: &Auth,
    address: SocketAddr,
) -> anyhow::Result<NodePart> {
    let agent = match parts.contains(&Part::Node) {
        true => Some(NodeAgent::open(node_settings(config)).await.context("node")?),
        false => None,
    };
    // A controller may speak for everybody, so it is what we show if we are.
    let controllers = controller.and_then(|part| part.peers.clone());
    let (peers, tls) = match (controllers, keys) {
        (Some(peers), _) => (None, Some(peers.tls())),
        (None, Some(keys)) => {
            let machine = Machine::Node { name: host_name() };
            let peers = Arc::new(Peers::open(&config.data, Arc::clone(&keys.ca), machine)?);
            let tls = peers.tls();
            (Some(peers), Some(tls))
        }
        (None, None) => (None, None),
    };
    let machines = inventory::Joined(auth.clone());
    let own = agent.is_some().then(host_name);
    let fanout = way_to_others(config, machines, own, tls, address)?;
    Ok(NodePart { agent, fanout, peers })
}

/// The way to other machines: those that are written down, and those that
/// joined.
pub(crate) fn way_to_others(
    config: &Config,
    machines: impl Machines,
    own: Option<String>,
    tls: Option<Arc<rustls::ClientConfig>>,
    address: SocketAddr,
) -> anyhow::Result<Fanout> {
    let port = if config.node.port == 0 { address.port() } else { config.node.port };
    let written = StaticDirectory::new(&config.node.nodes, port).context("node.nodes")?;
    let settings = fanout::Settings {
        port,
        own: names(config),
        own_port: address.port(),
        ..fanout::Settings::default()
    };
    let directory = Arc::new(Inventory::new(written, machines, own));
    Ok(Fanout::new(settings, directory, tls))
}

pub(crate) fn host_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    host.filter(|host| !host.is_empty()).unwrap_or_else(|| "localhost".into())
}

/// Where containers are that run without a daemon. Several of us may be on one
/// machine, each with a data directory of its own.
pub(crate) fn own_containers(config: &Config) -> selvage_runtime::oci::Options {
    let digest = Sha256::digest(config.data.as_os_str().as_encoded_bytes());
    let state = format!("/run/selvage/{}/containers", hex::encode(&digest[..8]));
    selvage_runtime::oci::Options {
        state: state.into(),
        ..selvage_runtime::oci::Options::new(config.data.join("containers"))
    }
}

pub(crate) fn node_settings(config: &Config) -> selvage_node::Settings {
    let given = &config.node;
    let own = || own_containers(config);
    selvage_node::Settings {
        runtimes: selvage_runtime::select::Options {
            system_socket: given.system_containerd.clone(),
            containerd_socket: given.containerd.clone(),
            cri_socket: given.cri.clone(),
            embedded: (given.own_runtime || crm::shares_containers(config)).then(own),
        },
        roots: given.roots.clone(),
        kubeconfig: given.kubeconfig.clone(),
        time_server: given.time_server.clone(),
        power: given.allow_power.then(|| SystemPower {
            reset_paths: given.reset_paths.clone(),
            installer: given.installer.clone(),
        }),
        ..selvage_node::Settings::default()
    }
}
