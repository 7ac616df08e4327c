//! Everything that is served, and the sockets to serve it on.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
    sync::Arc,
};

use anyhow::Context;
use selvage_auth::Auth;
use selvage_dme::Dme;
use selvage_kit::{
    serve::{Limits, Server, Services, Socket},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_lvmd::Lvmd;
use selvage_node::security::{IdentityEnroller, SecurityApi};
use selvage_store::SharedStore;

use super::{ControllerPart, NodePart};
use crate::{config::Config, dme, part::Part, system::System};

/// What there is to serve.
pub(crate) struct Parts<'a> {
    pub(crate) running: &'a [Part],
    pub(crate) controller: Option<&'a ControllerPart>,
    pub(crate) node: &'a NodePart,
    pub(crate) volumes: Option<&'a Lvmd>,
    pub(crate) dme: Option<&'a Dme>,
}

/// All services of the parts that this process runs.
pub(crate) async fn server(
    config: &Config,
    parts: Parts<'_>,
    store: SharedStore,
    auth: &Auth,
    tasks: &Tasks,
    metrics: Metrics,
) -> anyhow::Result<Server> {
    let mut services = Services::default();
    if let Some(part) = parts.controller {
        part.controller.add_to(&mut services);
        part.controller.watch(&metrics);
        dme::serve_keys(config, Arc::clone(&store), &mut services);
    }
    if let Some(agent) = &parts.node.agent {
        agent.add_to(&mut services, tasks);
        services.add(SecurityApi::new(IdentityEnroller::new(auth.identity_service())).service());
    }
    if let Some(volumes) = parts.volumes {
        volumes.add_to(&mut services);
    }
    if let Some(dme) = parts.dme {
        dme.add_to(&mut services);
        dme.watch(&metrics);
    }
    services.add(auth.auth_service());
    services.add(auth.identity_service());
    services.add(System::service(parts.running, Some(store), config.insecure));
    let mut server = Server::new(services, metrics, limits(config)).await.context("server")?;
    if let Some(part) = parts.controller {
        let page = part.controller.controller().shell_page();
        server = server.web_socket(selvage_controller::WEB_SOCKET, page);
    }
    if let Some(agent) = &parts.node.agent {
        server = server.metrics_page("/metrics/node", agent.metrics_page());
    }
    let server = server.relay(Arc::new(parts.node.fanout.clone()));
    Ok(server.pages(auth.http_routes()).origins(config.listen.origins.clone()))
}

/// How much the listeners take on.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits {
        connections: config.listen.connections,
        calls_in_flight: config.listen.calls_in_flight,
        streams_in_flight: config.listen.streams_in_flight,
        drain: config.listen.drain.0,
        ..Limits::default()
    }
}

/// Binds the port that everything answers on.
pub(crate) fn port(
    config: &Config,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> anyhow::Result<Socket> {
    let ip: IpAddr = config.listen.address.parse().context("listen.address")?;
    let address = SocketAddr::new(ip, config.listen.port);
    Socket::tcp(address, tls).with_context(|| format!("cannot listen on {address}"))
}

/// Binds a socket that this machine's root alone may open.
pub(crate) async fn private_socket(path: &Path) -> anyhow::Result<Socket> {
    if let Some(directory) = path.parent() {
        private_dir(directory).with_context(|| directory.display().to_string())?;
    }
    Socket::unix(path).await.with_context(|| format!("cannot listen on {}", path.display()))
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}
