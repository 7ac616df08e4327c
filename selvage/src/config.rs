//! The configuration of a daemon: one file, the same for every part.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use anyhow::{Context, bail};
use selvage_auth::OidcProvider;
use selvage_controller::Settings;
use selvage_kit::{
    config::{Duration, SecretFile},
    telemetry::LogOptions,
};
use selvage_node::member::Kind;
use serde::{Deserialize, Serialize};

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

/// The port that everything answers on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    /// Address to bind.
    pub(crate) address: String,
    /// Port to bind; 0 takes a free one.
    pub(crate) port: u16,
    /// Origins, such as `https://portal.example`, whose pages may call this
    /// server from a browser.
    pub(crate) origins: Vec<String>,
    /// Connections that may be open at the same time.
    pub(crate) connections: usize,
    /// Calls with one reply that may run at the same time.
    pub(crate) calls_in_flight: usize,
    /// Streams that may be open at the same time.
    pub(crate) streams_in_flight: usize,
    /// How long calls in flight may go on after the signal to stop.
    pub(crate) drain: Duration,
}

/// The server's certificate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// Names and addresses, besides those of this machine, by which clients
    /// reach it. For the certificate that Selvage makes itself.
    pub(crate) names: Vec<String>,
    /// A certificate chain of your own, PEM. Read again when it changes.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key, PEM.
    pub(crate) key: Option<PathBuf>,
}

/// Where state is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    /// `embedded` or `etcd`.
    pub(crate) kind: StoreKind,
    /// etcd: its endpoints, `https://host:2379`.
    pub(crate) endpoints: Vec<String>,
    /// etcd: what all keys begin with.
    pub(crate) namespace: String,
    /// etcd: the CA of its servers, PEM.
    pub(crate) ca: Option<PathBuf>,
    /// etcd: our client certificate, PEM.
    pub(crate) certificate: Option<PathBuf>,
    /// etcd: its key, PEM.
    pub(crate) key: Option<PathBuf>,
    /// etcd: user name, where it asks for one.
    pub(crate) username: String,
    /// etcd: file with the user's password.
    pub(crate) password_file: Option<SecretFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreKind {
    Embedded,
    Etcd,
}

/// How people log in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// A session ends when it was not used for so long.
    pub(crate) idle: Duration,
    /// A session ends after so long in any case.
    pub(crate) absolute: Duration,
    /// Whether users may log in with a password.
    pub(crate) password_login: bool,
    /// The address by which browsers reach this server, for OIDC's way back.
    pub(crate) public_url: String,
    /// OIDC providers.
    pub(crate) oidc: Vec<OidcProvider>,
}

/// The controller part.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Controller {
    /// Last part of every name that is given to apps and clusters.
    pub(crate) root_domain: String,
    /// Where images lie whose path an app does not name.
    pub(crate) registry: String,
    /// `host:port` where other controllers reach this one. Empty: the address
    /// it listens on.
    pub(crate) external_address: String,
    /// Refuse instances that do not fit into their cloudlet.
    pub(crate) enforce_resources: bool,
    /// Apps need their developer, cloudlets their operator.
    pub(crate) strict: bool,
    /// How long a cloudlet may take to create, update or delete an instance.
    pub(crate) create_timeout: Duration,
    pub(crate) update_timeout: Duration,
    pub(crate) delete_timeout: Duration,
    /// Hosts from which manifests and configs may be fetched; empty: any with
    /// a public address.
    pub(crate) fetch_hosts: Vec<String>,
    /// A database that all samples are sent to besides.
    pub(crate) influx: Influx,
}

/// A database that takes InfluxDB's line protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Influx {
    /// Such as `http://127.0.0.1:8086`. Empty: none.
    pub(crate) url: String,
    /// Made if it is not there.
    pub(crate) database: String,
    /// Who we are there; otherwise the environment's INFLUX_USERNAME.
    pub(crate) user: String,
    /// File with the user's password; otherwise the environment's
    /// INFLUX_PASSWORD.
    pub(crate) password_file: Option<SecretFile>,
    /// File with a token instead of both; otherwise the environment's
    /// INFLUX_TOKEN.
    pub(crate) token_file: Option<SecretFile>,
}

impl Default for Influx {
    fn default() -> Self {
        Self {
            url: String::new(),
            database: "metrics".into(),
            user: String::new(),
            password_file: None,
            token_file: None,
        }
    }
}

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
    /// `host:port` of the controller that this agent belongs to. Empty: the
    /// one it joined before, or none.
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
    /// Socket of the machine's lvmd, for apps that ask for volumes; that of
    /// this data directory where not given.
    pub(crate) lvmd: Option<PathBuf>,
    /// Whether HTTP ports of apps speak TLS, with the certificate of this
    /// process.
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

impl Default for Crm {
    fn default() -> Self {
        let seconds = |count| Duration(std::time::Duration::from_secs(count));
        Self {
            cloudlet: String::new(),
            site: None,
            kubeconfig: None,
            runtime: CrmRuntime::Auto,
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

/// The match engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Dme {
    /// Controllers that it asks, `host:port` or `http://host:port`, where they
    /// are not in this process and it has not joined one.
    pub(crate) controllers: Vec<String>,
    /// Operator and name of the cloudlet that it runs on, for its samples.
    pub(crate) operator: String,
    pub(crate) cloudlet: String,
    /// How long a device may use the cookie it gets when it registers.
    pub(crate) cookie_lifetime: Duration,
    /// How long a key signs cookies before a new one does.
    pub(crate) key_rotation: Duration,
    /// How often it looks for new keys.
    pub(crate) key_refresh: Duration,
    /// How often it sends what it counted, if that changed.
    pub(crate) stats_interval: Duration,
    /// Where devices get tokens for the location API.
    pub(crate) token_server: String,
    /// An API of the carrier that checks where devices are. Empty: the
    /// distance to the nearest instance does.
    pub(crate) location_api: String,
    /// Who we are at that API; otherwise the environment's LOCAPI_USER.
    pub(crate) location_user: String,
    /// File with the password there; otherwise the environment's
    /// LOCAPI_PASSWD.
    pub(crate) location_password_file: Option<SecretFile>,
    /// How long that API may take.
    pub(crate) location_timeout: Duration,
    /// Apps, as `developer:app`, that may find instances of others.
    pub(crate) platform_apps: Vec<String>,
    /// Not ready when no controller was in touch for so long; 0: always ready
    /// once one was.
    pub(crate) max_staleness: Duration,
}

impl Default for Dme {
    fn default() -> Self {
        let settings = selvage_dme::Settings::default();
        let policy = selvage_dme::keys::Policy::default();
        Self {
            controllers: Vec::new(),
            operator: settings.operator,
            cloudlet: settings.cloudlet,
            cookie_lifetime: Duration(settings.cookie_lifetime),
            key_rotation: Duration(policy.rotate),
            key_refresh: Duration(settings.key_refresh),
            stats_interval: Duration(settings.stats_interval),
            token_server: settings.token_server,
            location_api: String::new(),
            location_user: String::new(),
            location_password_file: None,
            location_timeout: Duration(std::time::Duration::from_secs(5)),
            platform_apps: settings.platform_apps,
            max_staleness: Duration(settings.max_staleness),
        }
    }
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

impl Default for Controller {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            root_domain: settings.root_domain,
            registry: settings.registry,
            external_address: String::new(),
            enforce_resources: settings.enforce_resources,
            strict: settings.strict,
            create_timeout: Duration(settings.timeouts.create),
            update_timeout: Duration(settings.timeouts.update),
            delete_timeout: Duration(settings.timeouts.delete),
            fetch_hosts: settings.fetch.allowed_hosts,
            influx: Influx::default(),
        }
    }
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

impl Default for Listen {
    fn default() -> Self {
        let limits = selvage_kit::serve::Limits::default();
        Self {
            address: "127.0.0.1".into(),
            port: 8443,
            origins: Vec::new(),
            connections: limits.connections,
            calls_in_flight: limits.calls_in_flight,
            streams_in_flight: limits.streams_in_flight,
            drain: Duration(limits.drain),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            endpoints: Vec::new(),
            namespace: "selvage/".into(),
            ca: None,
            certificate: None,
            key: None,
            username: String::new(),
            password_file: None,
        }
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            idle: Duration(std::time::Duration::from_secs(3600)),
            absolute: Duration(std::time::Duration::from_secs(12 * 3600)),
            password_login: true,
            public_url: String::new(),
            oidc: Vec::new(),
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

    /// The socket by which this machine's root reaches a joined agent.
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
