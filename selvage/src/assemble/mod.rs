//! Puts a process together from its configuration: store, keys, identity,
//! services, sockets.

mod controller;
mod identity;
mod node;
mod server;
mod store;

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
};

use anyhow::Context;
pub(crate) use controller::{ControllerPart, controller};
pub(crate) use identity::{Keys, auth, keys, names, password_file};
pub(crate) use node::{NodePart, host_name, node, node_settings, own_containers, way_to_others};
pub(crate) use server::{Parts, limits, port, private_socket, server};
pub(crate) use store::{STORE_FILE, store};

use crate::config::Config;

/// Makes the data directory, for this user alone.
pub(crate) fn data_dir(config: &Config) -> anyhow::Result<()> {
    let directory = &config.data;
    let checked = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        if directory.metadata()?.permissions().mode() & 0o022 != 0 {
            return Err(io::Error::other("others may write in it: chmod go-w"));
        }
        Ok(())
    };
    checked().with_context(|| format!("data directory {}", directory.display()))
}

/// By which a process is reached on its own machine.
pub(crate) fn near(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
