//! Puts a process together from its configuration: store, keys, identity,
//! services, sockets.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use selvage_auth::{Auth, CertificateAuthority, GeneratedPassword, SignError, Signed};
use selvage_controller::{
    EdgeController, FetchPolicy, Influx, InfluxLogin, Settings, Surroundings, Timeouts,
    registry::PeerConnector,
};
use selvage_dme::Dme;
use selvage_kit::{
    config::SecretFile,
    identity::{Machine, Secret},
    pki::{self, Ca, ServerIdentity},
    serve::{Limits, Server, Services, Socket},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_lvmd::Lvmd;
use selvage_node::{
    NodeAgent,
    fanout::{self, Fanout, Inventory, Machines, StaticDirectory},
    machine::SystemPower,
    security::{IdentityEnroller, SecurityApi},
};
use selvage_store::{
    SharedStore,
    embedded::{self, Embedded},
    etcd::{Credentials, Etcd, EtcdOptions, TlsOptions},
};
use sha2::{Digest, Sha256};

use crate::{
    config::{Config, StoreKind},
    crm, dme, inventory,
    part::Part,
    peers::Peers,
    ready,
    system::System,
};

/// Name of the embedded store's file in the data directory.
pub(crate) const STORE_FILE: &str = "store.redb";

/// File with the first administrator's password.
const PASSWORD_FILE: &str = "initial-admin-password";

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

/// Opens the store that the configuration names.
pub(crate) async fn store(config: &Config) -> anyhow::Result<SharedStore> {
    match config.store.kind {
        StoreKind::Embedded => {
            data_dir(config)?;
            let path = config.data.join(STORE_FILE);
            warn_if_lost(config, &path);
            Ok(Embedded::open(&path, embedded::Options::default()).await.context("store")?)
        }
        StoreKind::Etcd => {
            let options = etcd_options(config)?;
            let endpoints = options.endpoints.join(", ");
            Ok(Etcd::connect(options).await.with_context(|| format!("etcd at {endpoints}"))?)
        }
    }
}

/// Keys without a store mean that the store was lost, or that the keys were
/// put there for a new one. Only its owner can tell.
fn warn_if_lost(config: &Config, store: &Path) {
    let empty = store.metadata().map_or(true, |metadata| metadata.len() == 0);
    if empty && config.data.join("pki").exists() {
        tracing::warn!(
            store = %store.display(),
            "there are keys but no store: starting with an empty one"
        );
    }
}

fn etcd_options(config: &Config) -> anyhow::Result<EtcdOptions> {
    let store = &config.store;
    let credentials = match (&store.username, &store.password_file) {
        (username, _) if username.is_empty() => None,
        (username, Some(file)) => {
            let password = file.read().context("store.password_file")?;
            let password = password.expose().to_owned();
            Some(Credentials { user: username.clone(), password })
        }
        (_, None) => None,
    };
    let secure = store.ca.is_some() || store.certificate.is_some();
    let tls = secure.then(|| TlsOptions {
        ca: store.ca.clone(),
        cert: store.certificate.clone(),
        key: store.key.clone(),
    });
    Ok(EtcdOptions {
        endpoints: store.endpoints.clone(),
        namespace: store.namespace.clone(),
        tls,
        credentials,
        ..EtcdOptions::default()
    })
}

/// The CA, as auth wants to see it.
struct Authority(Arc<Ca>);

impl CertificateAuthority for Authority {
    fn sign(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
    ) -> Result<Signed, SignError> {
        let signed = self.0.sign_machine_for(csr_pem, machine, names, pki::MACHINE_LIFETIME);
        let signed = signed.map_err(|error| {
            if error.code() == selvage_api::Code::InvalidArgument {
                SignError::BadRequest(error.to_string())
            } else {
                SignError::Failed(Box::new(error))
            }
        })?;
        let not_after = jiff::Timestamp::from_second(signed.not_after)
            .map_err(|error| SignError::Failed(Box::new(error)))?;
        Ok(Signed { certificate_pem: signed.certificate_pem, not_after })
    }

    fn ca_pem(&self) -> String {
        self.0.pem().to_owned()
    }

    fn ca_sha256(&self) -> String {
        self.0.sha256()
    }
}

/// The keys of a process that is not `--insecure`.
pub(crate) struct Keys {
    pub(crate) ca: Arc<Ca>,
    pub(crate) identity: Arc<ServerIdentity>,
    pub(crate) server: Arc<rustls::ServerConfig>,
}

/// Opens or makes the CA and the server's certificate.
pub(crate) fn keys(config: &Config) -> anyhow::Result<Keys> {
    let ca = Arc::new(Ca::open_or_create(&config.data.join("pki")).context("certificates")?);
    let identity = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => ServerIdentity::from_files(certificate, key),
        _ => ServerIdentity::issued(Arc::clone(&ca), names(config)),
    };
    let identity = Arc::new(identity.context("server certificate")?);
    let server = pki::server_config(&identity, &ca).context("TLS")?;
    Ok(Keys { ca, identity, server })
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

/// By what names clients on this machine and around it reach us.
pub(crate) fn names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    if let Ok(host) = nix::unistd::gethostname()
        && let Ok(host) = host.into_string()
        && !host.is_empty()
    {
        names.push(host);
    }
    let bound = config.listen.address.parse::<IpAddr>();
    if bound.is_ok_and(|ip| !ip.is_unspecified()) {
        names.push(config.listen.address.clone());
    }
    names.extend(config.tls.names.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// Opens identity, and makes the first administrator on the first start.
pub(crate) async fn auth(
    config: &Config,
    store: SharedStore,
    ca: Option<Arc<Ca>>,
) -> anyhow::Result<(Auth, Option<GeneratedPassword>)> {
    let public_url = match config.auth.public_url.as_str() {
        "" => None,
        text => Some(text.parse().context("auth.public_url")?),
    };
    let options = selvage_auth::Options {
        idle: config.auth.idle.0,
        absolute: config.auth.absolute.0,
        password_login: config.auth.password_login,
        oidc: config.auth.oidc.clone(),
        public_url,
        ..selvage_auth::Options::default()
    };
    let authority = ca.map(|ca| -> Arc<dyn CertificateAuthority> { Arc::new(Authority(ca)) });
    let auth = Auth::open(store, options, authority).await.context("auth")?;
    let first = first_administrator(config, &auth).await?;
    Ok((auth, first))
}

/// The password is in its file before the user is in the store: a start that
/// is killed between the two leaves nobody locked out.
async fn first_administrator(
    config: &Config,
    auth: &Auth,
) -> anyhow::Result<Option<GeneratedPassword>> {
    if auth.has_users() {
        return Ok(None);
    }
    let path = password_file(config);
    let password = match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => GeneratedPassword::kept(text.trim()),
        Ok(_) => GeneratedPassword::generate(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => GeneratedPassword::generate(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    ready::replace(&path, format!("{}\n", password.expose()).as_bytes(), 0o600)
        .with_context(|| path.display().to_string())?;
    let made = auth.bootstrap_admin(&password).await.context("first administrator")?;
    Ok(made.then_some(password))
}

/// Where the first administrator's password is.
pub(crate) fn password_file(config: &Config) -> PathBuf {
    config.data.join(PASSWORD_FILE)
}

/// The controller part.
pub(crate) struct ControllerPart {
    pub(crate) controller: EdgeController,
    pub(crate) peers: Option<Arc<Peers>>,
}

/// Opens the controller on the store. `address` is where this process listens.
pub(crate) async fn controller(
    config: &Config,
    store: SharedStore,
    keys: Option<&Keys>,
    address: SocketAddr,
) -> anyhow::Result<ControllerPart> {
    let peers = match keys {
        Some(keys) => {
            Some(Arc::new(Peers::open(&config.data, Arc::clone(&keys.ca), Machine::Controller)?))
        }
        None => None,
    };
    let mut surroundings = Surroundings::default();
    if let Some(peers) = &peers {
        surroundings.peers = Arc::clone(peers) as Arc<dyn PeerConnector>;
    }
    let influx = influx(config)?;
    let settings = Settings { influx, ..controller_settings(config, address) };
    let opened = EdgeController::open(store, settings, surroundings).await;
    Ok(ControllerPart { controller: opened.context("controller")?, peers })
}

/// The database that samples go to; who we are there comes from files or from
/// the environment.
fn influx(config: &Config) -> anyhow::Result<Option<Influx>> {
    let given = &config.controller.influx;
    if given.url.is_empty() {
        return Ok(None);
    }
    let of_environment = |name: &str| std::env::var(name).unwrap_or_default();
    let secret = |file: &Option<SecretFile>, key: &'static str, variable: &str| match file {
        Some(file) => Ok(Secret::new(file.read().context(key)?.expose().trim())),
        None => anyhow::Ok(Secret::new(of_environment(variable))),
    };
    let token = secret(&given.token_file, "controller.influx.token_file", "INFLUX_TOKEN")?;
    let user = match given.user.as_str() {
        "" => of_environment("INFLUX_USERNAME"),
        user => user.to_owned(),
    };
    let login = if !token.expose().is_empty() {
        InfluxLogin::Token(token)
    } else if user.is_empty() {
        InfluxLogin::Nobody
    } else {
        let key = "controller.influx.password_file";
        let password = secret(&given.password_file, key, "INFLUX_PASSWORD")?;
        InfluxLogin::Password { user, password }
    };
    let (url, database) = (given.url.clone(), given.database.clone());
    Ok(Some(Influx { url, database, login }))
}

fn controller_settings(config: &Config, address: SocketAddr) -> Settings {
    let given = &config.controller;
    let defaults = Settings::default();
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    Settings {
        root_domain: given.root_domain.clone(),
        registry: given.registry.clone(),
        host: host.unwrap_or(defaults.host),
        external_address: match given.external_address.as_str() {
            "" => address.to_string(),
            external => external.to_owned(),
        },
        enforce_resources: given.enforce_resources,
        strict: given.strict,
        timeouts: Timeouts {
            create: given.create_timeout.0,
            update: given.update_timeout.0,
            delete: given.delete_timeout.0,
            ..defaults.timeouts
        },
        fetch: FetchPolicy { allowed_hosts: given.fetch_hosts.clone(), ..defaults.fetch },
        ..defaults
    }
}

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
