//! Context of a part.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use parking_lot::Mutex;
use selvage_auth::Auth;
use selvage_kit::{
    clock::Clock, identity::Machine, pki::Authorities, serve::Socket, tasks::Tasks,
    telemetry::Metrics,
};
use selvage_membership::{IssuedIdentity, Member};
use selvage_store::SharedStore;
use selvage_work::{Failure, Reconcilers, Schedule};

use crate::{Result, UnixSocket};

/// Description of a process, from its configuration; nothing is open yet.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Names of the parts that were asked for.
    pub running: Vec<&'static str>,
    /// True if it belongs to a controller elsewhere and has no store of its
    /// own.
    pub joined: bool,
    /// Plaintext, everybody is admin, loopback only.
    pub insecure: bool,
}

impl Process {
    /// Returns whether the part of this name was asked for.
    pub fn runs(&self, part: &str) -> bool {
        self.running.contains(&part)
    }

    /// Returns whether the part of this name is the only one.
    pub fn runs_only(&self, part: &str) -> bool {
        self.running == [part]
    }
}

/// Context of a part: the process that it runs in.
pub struct Context {
    /// The process.
    pub process: Process,
    /// Folder with everything that is kept. A part takes names of its own.
    pub data: PathBuf,
    /// Name of this machine.
    pub host: String,
    /// Address that the process listens on, with the port that was found;
    /// `None` for one that serves a unix socket only.
    pub address: Option<SocketAddr>,
    /// Names and addresses by which clients reach the process.
    pub names: Vec<String>,
    /// `host:port` where others reach this process, if that was configured.
    pub advertise: String,
    /// Labels of this machine.
    pub labels: BTreeMap<String, String>,
    /// The store; `None` in a process that joined a controller.
    pub store: Option<SharedStore>,
    /// Users, sessions, machines; `None` where they are the controller's.
    pub auth: Option<Auth>,
    /// The authorities; `None` with `--insecure` and in a process that joined.
    pub authorities: Option<Authorities>,
    /// The membership of a process that joined a controller.
    pub member: Option<Arc<Member>>,
    /// TLS configuration of the process's listeners; `None` with `--insecure`.
    pub server_tls: Option<Arc<rustls::ServerConfig>>,
    /// TLS configuration of clients that show any machine who this process is;
    /// `None` with `--insecure`.
    pub client_tls: Option<Arc<rustls::ClientConfig>>,
    /// The same for clients that talk to controllers and to nobody else.
    pub controller_tls: Option<Arc<rustls::ClientConfig>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Background tasks.
    pub tasks: Tasks,
    /// Work that is done again and again; shown by `selvage status -o wide`.
    pub reconcilers: Reconcilers,
    /// Metrics.
    pub metrics: Metrics,
    /// Values that parts of this process share.
    pub shared: Shared,
    /// Unix sockets that parts have bound.
    pub sockets: Mutex<Vec<UnixSocket>>,
    /// Addresses that parts answer on besides the port of the process.
    pub addresses: Mutex<Vec<(&'static str, SocketAddr)>>,
}

impl Context {
    /// Returns the store, or why there is none.
    pub fn store(&self) -> Result<SharedStore> {
        self.store.clone().context("a process that joined a controller has no store")
    }

    /// Returns the address by which the process is reached on its own machine.
    pub fn local_address(&self) -> Result<SocketAddr> {
        let address = self.address.context("this process listens on no port")?;
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, address.port()))
    }

    /// Returns the path of a unix socket in the data directory.
    pub fn socket_path(&self, name: &str) -> PathBuf {
        self.data.join("run").join(format!("{name}.sock"))
    }

    /// Binds the unix socket `NAME.sock`, for this machine's root alone. The
    /// process serves everything there, and trusts whoever can open it.
    pub async fn bind(&self, name: &'static str) -> Result<PathBuf> {
        let path = self.socket_path(name);
        if let Some(directory) = path.parent() {
            private_dir(directory).with_context(|| directory.display().to_string())?;
        }
        self.bind_at(name, &path, 0o600).await?;
        Ok(path)
    }

    /// Binds a unix socket anywhere, with these permissions.
    pub async fn bind_at(&self, name: &'static str, path: &Path, mode: u32) -> Result<()> {
        let failed = || format!("cannot listen on {}", path.display());
        let socket = Socket::unix(path).await.with_context(failed)?;
        // Whoever starts us must not decide who may open it.
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(failed)?;
        self.sockets.lock().push(UnixSocket { name, path: path.to_owned(), socket });
        Ok(())
    }

    /// Tells people that a part answers on an address of its own.
    pub fn announce(&self, part: &'static str, address: SocketAddr) {
        self.addresses.lock().push((part, address));
    }

    /// Returns the addresses that parts answer on besides the port.
    pub fn announced(&self) -> Vec<(&'static str, SocketAddr)> {
        self.addresses.lock().clone()
    }

    /// Issues a certificate for a machine of this process, signed by its own
    /// CA and renewed by itself; `None` without a CA.
    pub fn issue(&self, machine: Machine, name: &str) -> Result<Option<Arc<IssuedIdentity>>> {
        let Some(authorities) = &self.authorities else { return Ok(None) };
        let path = self.data.join(format!("{name}.pem"));
        let issued = IssuedIdentity::issue(&path, authorities.clone(), machine)
            .with_context(|| path.display().to_string())?;
        let issued = Arc::new(issued);
        let renewed = Arc::clone(&issued);
        let schedule = Schedule::every(IssuedIdentity::CHECK_INTERVAL);
        self.reconcilers.add_fn(format!("certificate of {name}"), schedule, move || {
            let renewed = renewed.renew_if_due();
            std::future::ready(renewed.map_err(|e| Failure::new(e.code(), e.to_string())))
        });
        Ok(Some(issued))
    }
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    host.filter(|host| !host.is_empty()).unwrap_or_else(|| "localhost".into())
}

/// Values that one part offers to others of the same process, one of each
/// type, such as a container runtime that must not be opened twice. Parts
/// offer when they are opened and look when they are spawned.
#[derive(Default)]
pub struct Shared(Mutex<HashMap<TypeId, Box<dyn Any + Send>>>);

impl Shared {
    /// Offers a value.
    pub fn offer<T: Clone + Send + 'static>(&self, value: T) {
        self.0.lock().insert(TypeId::of::<T>(), Box::new(value));
    }

    /// Returns the value of this type, if a part of this process offers one.
    pub fn find<T: Clone + Send + 'static>(&self) -> Option<T> {
        self.0.lock().get(&TypeId::of::<T>())?.downcast_ref().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_value_is_found_by_its_type() {
        let shared = Shared::default();
        shared.offer(7_u32);
        shared.offer("text");
        assert_eq!(shared.find::<u32>(), Some(7));
        assert_eq!(shared.find::<&str>(), Some("text"));
        assert_eq!(shared.find::<u64>(), None);
    }

    #[test]
    fn a_part_is_alone_only_without_others() {
        let process = Process { running: vec!["crm"], ..Process::default() };
        assert!(process.runs("crm") && process.runs_only("crm") && !process.runs("dme"));
        let both = Process { running: vec!["crm", "dme"], ..Process::default() };
        assert!(both.runs("crm") && !both.runs_only("crm"));
    }
}
