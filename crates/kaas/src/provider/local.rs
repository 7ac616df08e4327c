//! Machines of this host: each an agent in a network, mounts and processes of
//! its own. A machine is made when it is asked for and destroyed when it is
//! given back; what is known of it stands in its folder, the operation too.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use selvage_api::selvage::kubernetes::Versions;
use selvage_components::machine::{self, Launcher, Machine, Settings};
use selvage_kit::dial;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe,
};
use crate::catalogue::Release;

/// Variable of a machine's agent that names the operation it was made for. Does
/// not begin as configuration keys do.
const OPERATION: &str = "MACHINE_OPERATION";
/// Data directory of a machine's agent, and its socket.
const DATA: &str = "/var/lib/selvage";
const SOCKET: &str = "/var/lib/selvage/run/node.sock";
/// Type of the machines of this host.
const STANDARD: &str = "standard";
/// Machines that fit into the network of one host.
const MOST: u32 = 200;

/// Machines of this host.
#[derive(Debug)]
pub struct Local {
    launcher: Launcher,
    count: u32,
    artifacts: Option<PathBuf>,
    program: PathBuf,
    /// Begins the names of machines: several data directories may be on one
    /// host.
    prefix: String,
    network: [u8; 3],
    /// Releases that programs have to be here for; none where they are sent.
    releases: Vec<Release>,
    /// Organisations that may be root of this host.
    trusted: Vec<String>,
    /// One machine is made or removed at a time.
    changing: tokio::sync::Mutex<()>,
}

impl Local {
    /// Up to `count` machines, kept below the data directory. Their agents are
    /// this program.
    pub fn new(
        data: &Path,
        count: u32,
        artifacts: Option<PathBuf>,
        program: PathBuf,
        releases: Vec<Release>,
    ) -> Self {
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        // Apart from the networks of pods and services.
        let network = [10, 192 + digest[0] % 32, digest[1]];
        let short: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = Settings {
            root: data.join("machines"),
            program: program.clone(),
            bridge: format!("slvb{short}"),
            gateway: Ipv4Addr::new(network[0], network[1], network[2], 1),
        };
        Self {
            launcher: Launcher::new(settings),
            count: count.min(MOST),
            prefix: format!("slv{short}"),
            artifacts,
            program,
            network,
            releases,
            trusted: Vec::new(),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// Lets these organisations have clusters, beside administrators.
    pub fn with_trusted(self, trusted: Vec<String>) -> Self {
        Self { trusted, ..self }
    }

    fn of(&self, operation: &OperationId) -> Option<Machine> {
        let is = |machine: &Machine| machine.environment.get(OPERATION) == Some(&operation.0);
        self.launcher.list().into_iter().find(is)
    }

    /// A machine with the first number that is free.
    fn next(&self, operation: &OperationId) -> Result<Machine, Error> {
        let known = self.launcher.list();
        let name = |number: u32| format!("{}-{number}", self.prefix);
        let free = |number: &u32| known.iter().all(|machine| machine.name != name(*number));
        let none = || match self.count {
            1 => Error::NoneFree("the one machine of this host is in use".into()),
            count => Error::NoneFree(format!("all {count} machines of this host are in use")),
        };
        let number = (1..=self.count).find(free).ok_or_else(none)?;
        let last = u8::try_from(number + 1).map_err(|_| none())?;
        let [a, b, c] = self.network;
        let environment = [(OPERATION.to_owned(), operation.0.clone())];
        Ok(Machine {
            name: name(number),
            address: Ipv4Addr::new(a, b, c, last),
            command: self.command(&name(number)),
            environment: BTreeMap::from(environment),
            visible: self.artifacts.iter().chain([&self.program]).cloned().collect(),
        })
    }

    /// Command line of a machine's agent.
    fn command(&self, name: &str) -> Vec<String> {
        let mut command = vec![self.program.display().to_string()];
        let fixed = ["node", "--data", DATA, "--address", "127.0.0.1", "--port", "0"];
        command.extend(fixed.map(str::to_owned));
        let mut set = |setting: String| command.extend(["--set".to_owned(), setting]);
        set("node.kubernetes=true".into());
        set(format!("node.cgroup={}", machine::cgroup(name)));
        if let Some(artifacts) = &self.artifacts {
            set(format!("node.artifacts={}", artifacts.display()));
        }
        command
    }

    /// Why no machine of this host can run any release.
    fn problem(&self) -> Option<String> {
        if let Some(obstacle) = machine::obstacle() {
            return Some(obstacle);
        }
        let mut lacks = None;
        for release in &self.releases {
            lacks = Some(self.lacks(release)?);
        }
        lacks
    }
}

fn failed(error: &selvage_components::Error) -> Error {
    Error::Unavailable(error.to_string())
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    /// A machine of this host is a set of namespaces, which keep no root in.
    fn trusts(&self, organisation: &str) -> bool {
        self.trusted.iter().any(|trusted| trusted == organisation)
    }

    fn capabilities(&self) -> Capabilities {
        let problem = self.problem();
        Capabilities { disposable: true, problem }
    }

    fn lacks(&self, release: &Release) -> Option<String> {
        let versions = Versions {
            kubernetes: release.version.to_string(),
            etcd: release.etcd.clone(),
            coredns: release.coredns.clone(),
            containerd: release.containerd.clone(),
            cni: release.cni.clone(),
            kubelet: String::new(),
        };
        if self.releases.is_empty() {
            return None;
        }
        selvage_components::missing(self.artifacts.as_deref(), &versions)
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        if !["", STANDARD].contains(&instance_type) {
            return Ok(Vec::new());
        }
        let used = u32::try_from(self.launcher.list().len()).unwrap_or(u32::MAX);
        Ok(vec![Offer {
            instance_type: STANDARD.into(),
            total: Some(self.count),
            free: Some(self.count.saturating_sub(used)),
        }])
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        if !["", STANDARD].contains(&request.instance_type.as_str()) {
            let kind = &request.instance_type;
            return Err(Error::NoneFree(format!("this host has no machine of type {kind:?}")));
        }
        let _changing = self.changing.lock().await;
        let machine = match self.of(operation) {
            Some(machine) => machine,
            None => self.next(operation)?,
        };
        self.launcher.start(&machine).await.map_err(|error| failed(&error))?;
        Ok(Acquired { id: machine.name.clone(), hostname: machine.name })
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        let gone = || Error::Refused("the machine is gone".into());
        let machine = self.of(operation).ok_or_else(gone)?;
        let answers = match self.launcher.inside(&machine.name, SOCKET) {
            Some(path) => tokio::net::UnixStream::connect(path).await.is_ok(),
            None => false,
        };
        let address = machine.address.to_string();
        Ok(match answers {
            true => Observed {
                state: State::Up { agent: machine.name, address },
                detail: "Running".into(),
            },
            false => {
                let log = self.launcher.log(&machine.name);
                let detail = format!("its agent does not answer yet; see {}", log.display());
                Observed { state: State::Deploying, detail }
            }
        })
    }

    async fn release(&self, operation: &OperationId, _: Wipe) -> Result<bool, Error> {
        let _changing = self.changing.lock().await;
        if let Some(machine) = self.of(operation) {
            self.launcher.remove(&machine.name).await.map_err(|error| failed(&error))?;
        }
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        let down = || Error::Unavailable("the machine does not run".into());
        let machine = self.of(operation).ok_or_else(down)?;
        let path = self.launcher.inside(&machine.name, SOCKET).ok_or_else(down)?;
        Ok(dial::unix(&path))
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        let owned = |machine: Machine| {
            let operation = machine.environment.get(OPERATION)?.clone();
            Some(Owned { operation: OperationId(operation), id: machine.name })
        };
        Ok(self.launcher.list().into_iter().filter_map(owned).collect())
    }

    /// Starts machines that have ended, after a restart of the host too.
    async fn maintain(&self) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        for machine in self.launcher.list() {
            if !self.launcher.is_running(&machine.name) {
                tracing::info!(machine = machine.name, "is started again");
                self.launcher.start(&machine).await.map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }
}
