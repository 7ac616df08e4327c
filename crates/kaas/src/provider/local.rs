//! Machines of this host: each an agent in a network, mounts and processes of
//! its own. A machine is made when it is asked for and destroyed when it is
//! given back; what is known of it stands in its folder, the operation too.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use selvage_components::machine::{self, Launcher, Machine, Settings};
use selvage_kit::dial;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe,
};
use crate::catalogue::Release;

/// Variable of a machine's agent that names the operation it was made for.
const OPERATION: &str = "SELVAGE_MACHINE_OPERATION";
/// Where an agent keeps what is its own, and where it answers.
const DATA: &str = "/var/lib/selvage";
const SOCKET: &str = "/var/lib/selvage/run/node.sock";
/// Type of the machines of this host.
const STANDARD: &str = "standard";
/// Machines that fit into the network of one host.
const MOST: u32 = 200;
/// Programs that a version of Kubernetes is made of.
const PROGRAMS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];

/// Machines of this host.
#[derive(Debug)]
pub struct Local {
    launcher: Launcher,
    count: u32,
    artifacts: Option<PathBuf>,
    program: PathBuf,
    /// Begins the names of machines: several of us may be on one host.
    prefix: String,
    network: [u8; 3],
    problem: Option<String>,
    /// One machine is made at a time.
    making: tokio::sync::Mutex<()>,
}

impl Local {
    /// Up to `count` machines, kept below the data directory.
    pub fn new(
        data: &Path,
        count: u32,
        artifacts: Option<PathBuf>,
        program: PathBuf,
    ) -> Self {
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let network = [10, 192 + digest[0] % 32, digest[1]];
        let short = hex(&digest[..4]);
        let settings = Settings {
            root: data.join("machines"),
            program: program.clone(),
            bridge: format!("slvb{short}"),
            gateway: Ipv4Addr::new(network[0], network[1], network[2], 1),
        };
        Self {
            launcher: Launcher::new(settings),
            count: count.min(MOST),
            problem: machine::obstacle(),
            artifacts,
            program,
            prefix: format!("slv{short}"),
            network,
            making: tokio::sync::Mutex::default(),
        }
    }

    /// Why no machine can be had on this host, if none can.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
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
        let none = || Error::NoneFree(format!("all {} machines of this host are in use", self.count));
        let number = (1..=self.count).find(free).ok_or_else(none)?;
        let last = u8::try_from(number + 1).map_err(|_| none())?;
        let [a, b, c] = self.network;
        let environment = [(OPERATION.to_owned(), operation.0.clone())];
        Ok(Machine {
            name: name(number),
            address: Ipv4Addr::new(a, b, c, last),
            command: self.command(&name(number)),
            environment: BTreeMap::from(environment),
        })
    }

    fn command(&self, name: &str) -> Vec<String> {
        let mut command = vec![
            self.program.display().to_string(),
            "node".into(),
            "--data".into(),
            DATA.into(),
            "--address".into(),
            "127.0.0.1".into(),
            "--port".into(),
            "0".into(),
        ];
        let mut set = |setting: String| command.extend(["--set".to_owned(), setting]);
        set("node.kubernetes=true".into());
        set(format!("node.cgroup={}", machine::cgroup(name)));
        if let Some(artifacts) = &self.artifacts {
            set(format!("node.artifacts={}", artifacts.display()));
        }
        command
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failed(error: &selvage_components::Error) -> Error {
    Error::Unavailable(error.to_string())
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        let problem = self.problem.clone();
        Capabilities { in_place: true, simulated: false, disposable: true, problem }
    }

    fn lacks(&self, release: &Release) -> Option<String> {
        let version = release.version.to_string();
        let Some(artifacts) = &self.artifacts else {
            return Some(
                "kaas.artifacts is not set: name the folder with the programs of Kubernetes"
                    .to_owned(),
            );
        };
        let folder = artifacts.join(&version);
        let missing = PROGRAMS.into_iter().find(|program| !folder.join(program).is_file());
        missing.map(|program| format!("{} has no {program}", folder.display()))
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        if !instance_type.is_empty() && instance_type != STANDARD {
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
        let _making = self.making.lock().await;
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
        if !self.launcher.is_running(&machine.name) {
            self.launcher.start(&machine).await.map_err(|error| failed(&error))?;
        }
        let socket = self.launcher.inside(&machine.name, SOCKET);
        let answers = match socket {
            Some(path) => tokio::net::UnixStream::connect(path).await.is_ok(),
            None => false,
        };
        let address = machine.address.to_string();
        Ok(match answers {
            true => Observed {
                state: State::Up { agent: format!("{address} by its socket"), address },
                detail: "Running".into(),
            },
            false => Observed { state: State::Deploying, detail: "the agent starts".into() },
        })
    }

    async fn release(&self, operation: &OperationId, _: Wipe) -> Result<bool, Error> {
        let _making = self.making.lock().await;
        if let Some(machine) = self.of(operation) {
            self.launcher.remove(&machine.name).await.map_err(|error| failed(&error))?;
        }
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        let gone = || Error::Unavailable("the machine does not run".into());
        let machine = self.of(operation).ok_or_else(gone)?;
        let path = self.launcher.inside(&machine.name, SOCKET).ok_or_else(gone)?;
        Ok(dial::unix(&path))
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        let owned = |machine: Machine| {
            let operation = machine.environment.get(OPERATION)?.clone();
            Some(Owned { operation: OperationId(operation), id: machine.name })
        };
        Ok(self.launcher.list().into_iter().filter_map(owned).collect())
    }
}
