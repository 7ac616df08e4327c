//! A member as its components see it: the spec, and where things are.

use std::path::PathBuf;

use selvage_api::selvage::kubernetes::{
    Authorities, ClusterNetwork, ControlPlane, MemberSpec, Profile, Versions, Worker,
};
use serde_json::{Value, json};

use crate::{
    Error, Result,
    artifact::{Artifacts, KUBERNETES},
    keys::{Keys, name},
};

/// Port on the loopback that leads to a healthy API server.
pub(crate) const API_PORT: u16 = 7443;

/// Root of the kubelet, where drivers of volumes expect it.
pub(crate) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Name of etcd as a component, of its data and of the folder of its programs.
pub(crate) const ETCD: &str = "etcd";

/// Socket of the containerd that runs pods.
pub(crate) const CONTAINERD_SOCKET: &str = "containerd.sock";

/// Socket of the lvmd that keeps volumes of pods.
const LVMD_SOCKET: &str = "lvmd.sock";

/// lvmd for volumes of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lvmd {
    /// One that is there already, on this socket.
    Given(PathBuf),
    /// One of our own, on image files.
    Own {
        /// Program that is lvmd when its first argument says so.
        program: PathBuf,
        /// GiB that its volumes may hold together; 0: half of what is free at its
        /// first start.
        size_gb: u64,
    },
}

/// Folders of a member.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// Persistent folder.
    pub(crate) root: PathBuf,
    /// Volatile folder, gone after the machine was restarted.
    pub(crate) run: PathBuf,
    /// Control group below which pods and what holds them are.
    pub(crate) cgroup: String,
    /// Source of volumes for pods.
    pub(crate) lvmd: Option<Lvmd>,
}

impl Paths {
    /// Folder of a component, which it may read.
    pub(crate) fn component(&self, name: &str) -> PathBuf {
        self.root.join("components").join(name)
    }

    /// Folder of a component's data.
    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    /// Socket of lvmd, if pods can have volumes.
    pub(crate) fn lvmd_socket(&self) -> Option<PathBuf> {
        self.lvmd.as_ref().map(|lvmd| match lvmd {
            Lvmd::Given(socket) => socket.clone(),
            Lvmd::Own { .. } => self.run.join(LVMD_SOCKET),
        })
    }

    /// Returns whether lvmd is for us to run.
    pub(crate) fn runs_lvmd(&self) -> bool {
        matches!(self.lvmd, Some(Lvmd::Own { .. }))
    }

    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.run.join(CONTAINERD_SOCKET)
    }
}

/// A file of a component, in its folder.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

impl File {
    pub(crate) fn new(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), content: content.into() }
    }

    pub(crate) fn json(name: &str, content: &Value) -> Self {
        Self::new(name, content.to_string())
    }
}

/// Everything that a component may ask for.
pub(crate) struct Member<'a> {
    pub(crate) spec: &'a MemberSpec,
    pub(crate) paths: &'a Paths,
    pub(crate) keys: &'a Keys,
    pub(crate) artifacts: &'a Artifacts,
}

impl Member<'_> {
    pub(crate) fn versions(&self) -> Versions {
        self.spec.versions.clone().unwrap_or_default()
    }

    pub(crate) fn network(&self) -> ClusterNetwork {
        let mut network = self.spec.network.clone().unwrap_or_default();
        if network.dns_domain.is_empty() {
            network.dns_domain = "cluster.local".into();
        }
        network
    }

    pub(crate) fn authorities(&self) -> Authorities {
        self.spec.authorities.clone().unwrap_or_default()
    }

    pub(crate) fn control_plane(&self) -> Result<&ControlPlane> {
        self.spec.control_plane.as_ref().ok_or(Error::NoControlPlane)
    }

    pub(crate) fn worker(&self) -> Worker {
        self.spec.worker.clone().unwrap_or_default()
    }

    /// Version of a program of Kubernetes.
    pub(crate) fn version_of(&self, program: &str) -> String {
        let versions = self.versions();
        let other = match program {
            "kubelet" | "kube-proxy" => versions.kubelet,
            "kube-controller-manager" | "kube-scheduler" => {
                let plane = self.spec.control_plane.clone().unwrap_or_default();
                plane.controllers_version
            }
            _ => String::new(),
        };
        if other.is_empty() { versions.kubernetes } else { other }
    }

    pub(crate) fn kubernetes(&self, program: &str) -> Result<PathBuf> {
        self.artifacts.find(KUBERNETES, &self.version_of(program), program)
    }

    /// Path of a file of a component.
    pub(crate) fn path(&self, component: &str, file: &str) -> String {
        self.paths.component(component).join(file).display().to_string()
    }

    /// Certificate and key for a use, as two files.
    pub(crate) fn pair(&self, profile: Profile) -> Result<[File; 2]> {
        let Some(pair) = self.keys.pair(profile)? else {
            return Err(Error::Certificate {
                profile: profile.as_str_name(),
                reason: "there is none yet".into(),
            });
        };
        let name = name(profile);
        Ok([
            File::new(format!("{name}.crt"), pair.certificate),
            File::new(format!("{name}.key"), pair.key),
        ])
    }

    /// A kubeconfig that leads to the API, with the certificate for a use.
    pub(crate) fn kubeconfig(&self, component: &str, profile: Profile) -> Result<Vec<File>> {
        let name = name(profile);
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "cluster", "cluster": {
                "server": format!("https://127.0.0.1:{API_PORT}"),
                "certificate-authority": self.path(component, "ca.crt"),
            }}],
            "users": [{ "name": "user", "user": {
                "client-certificate": self.path(component, &format!("{name}.crt")),
                "client-key": self.path(component, &format!("{name}.key")),
            }}],
            "contexts": [{ "name": "default", "context": { "cluster": "cluster", "user": "user" }}],
            "current-context": "default",
        });
        let mut files = vec![
            File::json("kubeconfig", &content),
            File::new("ca.crt", self.authorities().kubernetes),
        ];
        files.extend(self.pair(profile)?);
        Ok(files)
    }

    /// An API server on this machine, without the balancer.
    pub(crate) fn own_api(&self) -> String {
        let own = self.spec.api_servers.iter().find(|one| host_of(one) == self.spec.address);
        let port = own.and_then(|one| one.rsplit_once(':')).map_or("6443", |(_, port)| port);
        format!("{}:{port}", self.spec.address)
    }
}

fn host_of(socket: &str) -> String {
    socket.parse::<std::net::SocketAddr>().map_or_else(|_| String::new(), |s| s.ip().to_string())
}

/// An address as it stands in a URL.
pub(crate) fn in_url(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}
