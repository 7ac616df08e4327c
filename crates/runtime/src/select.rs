//! Which runtime a question is for: the driver and the namespace decide.

use std::{path::PathBuf, sync::Arc};

use crate::{Error, Result, Runtime, containerd, cri, identity, oci};

/// The namespace of Kubernetes in containerd.
pub const KUBERNETES: &str = "k8s.io";
/// The namespace of the machine's own services.
pub const SYSTEM: &str = "system";
/// The namespace of containers that run without any daemon.
pub const EMBEDDED: &str = "selvage";

/// Drivers as they are numbered on the wire.
pub const CONTAINERD: i32 = 0;
pub const CRI: i32 = 1;

/// Sockets and folders of the runtimes of a machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// The containerd of the machine's own services; often the same.
    pub system_socket: PathBuf,
    /// The containerd of everything else.
    pub containerd_socket: PathBuf,
    /// The socket that speaks CRI; containerd does on its own.
    pub cri_socket: PathBuf,
    /// The runtime without a daemon; none to do without it.
    pub embedded: Option<oci::Options>,
    /// The machine's own services run without a daemon, whatever else there is.
    pub embedded_system: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            system_socket: containerd::DEFAULT_SOCKET.into(),
            containerd_socket: containerd::DEFAULT_SOCKET.into(),
            cri_socket: containerd::DEFAULT_SOCKET.into(),
            embedded: None,
            embedded_system: false,
        }
    }
}

/// All runtimes of a machine.
#[derive(Clone)]
pub struct Runtimes {
    system: Arc<dyn Runtime>,
    containerd: Arc<dyn Runtime>,
    cri: Arc<dyn Runtime>,
    embedded: Option<Arc<dyn Runtime>>,
    has_containerd: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Runtimes {
    /// Those that the options name. Must be called inside a tokio runtime.
    pub async fn open(options: Options) -> Result<Self> {
        let containerd: Arc<dyn Runtime> = Arc::new(containerd::Containerd::new(
            containerd::Options::new(&options.containerd_socket),
        ));
        let embedded: Option<Arc<dyn Runtime>> = match options.embedded {
            Some(embedded) => Some(Arc::new(oci::Oci::open(embedded).await?)),
            None => None,
        };
        let own = embedded.clone().filter(|_| options.embedded_system);
        let system = if let Some(own) = own {
            own
        } else if options.system_socket == options.containerd_socket {
            containerd.clone()
        } else {
            Arc::new(containerd::Containerd::new(containerd::Options::new(&options.system_socket)))
        };
        let cri: Arc<dyn Runtime> = Arc::new(cri::Cri::new(options.cri_socket));
        let socket = options.containerd_socket;
        let has_containerd = Arc::new(move || socket.exists());
        Ok(Self { system, containerd, cri, embedded, has_containerd })
    }

    /// Given ones, for tests and for those who have only one.
    pub fn of(
        system: Arc<dyn Runtime>,
        containerd: Arc<dyn Runtime>,
        cri: Arc<dyn Runtime>,
        embedded: Option<Arc<dyn Runtime>>,
    ) -> Self {
        Self { system, containerd, cri, embedded, has_containerd: Arc::new(|| true) }
    }

    /// The one that a driver and a namespace mean. Where there is no
    /// containerd, what would be asked of it is asked of the runtime without
    /// a daemon.
    pub fn select(&self, driver: i32, namespace: &str) -> Result<Arc<dyn Runtime>> {
        match driver {
            CONTAINERD => {
                identity::check_namespace(namespace)?;
                match (namespace, &self.embedded) {
                    (EMBEDDED, Some(embedded)) => Ok(embedded.clone()),
                    (_, Some(embedded)) if !(self.has_containerd)() => Ok(embedded.clone()),
                    (SYSTEM, _) => Ok(self.system.clone()),
                    _ => Ok(self.containerd.clone()),
                }
            }
            CRI if namespace != KUBERNETES => Err(Error::NotKubernetes),
            CRI => Ok(self.cri.clone()),
            other => Err(Error::UnsupportedDriver(other)),
        }
    }

    /// The runtime without a daemon, where there is one.
    pub fn embedded(&self) -> Option<Arc<dyn Runtime>> {
        self.embedded.clone()
    }

    /// Every runtime once.
    pub fn all(&self) -> Vec<Arc<dyn Runtime>> {
        let mut all = vec![self.containerd.clone(), self.cri.clone()];
        let embedded = self.embedded.clone();
        let is_embedded =
            |one| embedded.as_ref().is_some_and(|embedded| Arc::ptr_eq(embedded, one));
        if !Arc::ptr_eq(&self.system, &self.containerd) && !is_embedded(&self.system) {
            all.insert(0, self.system.clone());
        }
        all.extend(embedded);
        all
    }
}
