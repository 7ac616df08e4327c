//! The agent as one part: what a process opens, mounts and runs.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use futures::FutureExt;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_components::MemberAgent;
use selvage_kit::{
    serve::{MetricsPage, Services},
    tasks::Tasks,
};
use selvage_runtime::{
    Runtime,
    select::{CONTAINERD, Options, Runtimes},
};
use selvage_work::{Failure, Reconcilers, Schedule};

use crate::{
    host::Filesystems,
    kmsg::Kmsg,
    logs::Logs,
    machine::{self, MachineApi, Power, SystemPower, TaskServices},
    network::NetworkApi,
    node_service::Node,
    os_service::Os,
    proc::{Limits, Scanner},
    prometheus,
    sampler::Sampler,
    time::TimeApi,
    volumes,
};

/// Interval of recording the states of the machine's services.
const SERVICES_INTERVAL: Duration = Duration::from_secs(1);

/// Locations and permissions of an agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Container runtimes.
    pub runtimes: Options,
    /// The kernel's view of processes.
    pub proc: PathBuf,
    /// The kernel's log.
    pub kmsg: PathBuf,
    /// Folder of the logs of the machine's own services.
    pub service_logs: PathBuf,
    /// Folders below which files may be listed and read; empty for all.
    pub roots: Vec<PathBuf>,
    /// Files and folders with keys and state, which no caller is given.
    pub protected: Vec<PathBuf>,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Time server that the clock is compared with.
    pub time_server: String,
    /// Folder of files `*.prom` that are added to the page for Prometheus.
    pub textfiles: Option<PathBuf>,
    /// The machine's power, if it is the agent's to use.
    pub power: Option<SystemPower>,
    /// Folders of a Kubernetes cluster, if the machine may be a member
    /// of one. Needs the runtime without a daemon.
    pub members: Option<selvage_components::Settings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtimes: Options::default(),
            proc: "/proc".into(),
            kmsg: "/dev/kmsg".into(),
            service_logs: "/run/system/log".into(),
            roots: Vec::new(),
            protected: Vec::new(),
            kubeconfig: machine::KUBECONFIG.into(),
            time_server: crate::time::DEFAULT_SERVER.into(),
            textfiles: None,
            power: None,
            members: None,
        }
    }
}

/// The agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be read", .path.display())]
    Proc { path: PathBuf, source: io::Error },
    #[error("container runtime")]
    Runtime(#[from] selvage_runtime::Error),
    #[error("membership of a Kubernetes cluster")]
    Members(#[from] selvage_components::Error),
    #[error("roots: {} is not an absolute path", .path.display())]
    Root { path: PathBuf },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Proc { .. } => Code::FailedPrecondition,
            Self::Runtime(error) => error.code(),
            Self::Members(error) => error.code(),
            Self::Root { .. } => Code::InvalidArgument,
        }
    }
}

/// An agent with everything that belongs to it. Clones are the same.
#[derive(Clone)]
pub struct NodeAgent {
    settings: Arc<Settings>,
    runtimes: Runtimes,
    sampler: Sampler,
    node: Node,
    members: Option<MemberAgent>,
}

impl NodeAgent {
    /// Opens an agent. Runtimes that are not there yet are waited for in the
    /// background.
    pub async fn open(settings: Settings) -> Result<Self, Error> {
        let runtimes = Runtimes::open(settings.runtimes.clone()).await?;
        Self::with_runtimes(settings, runtimes)
    }

    /// Opens an agent that looks at these runtimes.
    pub fn with_runtimes(settings: Settings, runtimes: Runtimes) -> Result<Self, Error> {
        if let Some(path) = settings.roots.iter().find(|root| !root.is_absolute()) {
            return Err(Error::Root { path: path.clone() });
        }
        let proc = &settings.proc;
        let unreadable = |source| Error::Proc { path: proc.clone(), source };
        let sampler = Sampler::open(proc).map_err(unreadable)?;
        let scanner = Scanner::open(proc, Limits::default()).map_err(unreadable)?;
        let os = Os {
            runtimes: runtimes.clone(),
            sampler: sampler.clone(),
            scanner: Arc::new(Mutex::new(scanner)),
            kmsg: Kmsg::new(&settings.kmsg),
        };
        let filesystems = Filesystems::new(proc.join("self/mounts"));
        let node = Node { os, filesystems };
        let members = match (settings.members.clone(), runtimes.embedded()) {
            (Some(members), Some(runtime)) => Some(MemberAgent::open(members, runtime)?),
            _ => None,
        };
        Ok(Self { settings: Arc::new(settings), runtimes, sampler, node, members })
    }

    /// The runtimes that it looks at.
    pub fn runtimes(&self) -> &Runtimes {
        &self.runtimes
    }

    /// Returns its measurements.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Mounts the services. The tasks of the process are shown as the machine's
    /// services.
    pub fn add_to(&self, services: &mut Services, reconcilers: &Reconcilers) {
        services.add(self.node.os.service());
        services.add(self.node.service());
        services.add(self.machine(reconcilers).service());
        services.add(NetworkApi.service());
        if let Some(members) = &self.members {
            services.add(members.service());
        }
        services.add(TimeApi::new(&*self.settings.time_server).service());
    }

    fn machine(&self, reconcilers: &Reconcilers) -> MachineApi {
        let own = Arc::new(TaskServices::new(reconcilers.tasks().clone()));
        let (refreshed, schedule) = (Arc::clone(&own), Schedule::every(SERVICES_INTERVAL));
        reconcilers.add_fn("services", schedule, move || {
            refreshed.refresh();
            std::future::ready(Ok::<_, Failure>(()))
        });
        let power = self.settings.power.clone();
        let logs =
            Logs { runtimes: self.runtimes.clone(), services: self.settings.service_logs.clone() };
        MachineApi::new(machine::Settings {
            roots: self.settings.roots.clone(),
            protected: self.settings.protected.clone(),
            kubeconfig: self.settings.kubeconfig.clone(),
            services: own,
            logs: Arc::new(logs),
            power: power.map(|power| -> Arc<dyn Power> { Arc::new(power) }),
        })
    }

    /// Starts to measure. Ends with the tasks.
    pub fn spawn(&self, tasks: &Tasks) {
        // Containers of CRI belong to its containerd, which is measured
        // already.
        let measured = self.runtimes.all().into_iter().filter(|one| one.name() != "cri").collect();
        let runtimes = self.runtimes.clone();
        let owns = move |runtime: &Arc<dyn Runtime>, namespace: &str| {
            runtimes.select(CONTAINERD, namespace).is_ok_and(|meant| Arc::ptr_eq(&meant, runtime))
        };
        self.sampler.spawn(tasks, measured, Arc::new(owns));
        if let Some(members) = self.members.clone() {
            let volumes = volumes::run(members.pod_volumes(), tasks.token().clone());
            tasks.spawn("volumes of pods", volumes);
            tasks.spawn("kubernetes member", members.run(tasks.token().clone()));
        }
    }

    /// The page for Prometheus.
    pub fn metrics_page(&self) -> MetricsPage {
        let agent = self.clone();
        Arc::new(move || {
            let agent = agent.clone();
            async move {
                let filesystems = agent.node.filesystems.look().await;
                prometheus::page(&agent.sampler, &filesystems, agent.settings.textfiles.as_deref())
            }
            .boxed()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_root_that_nothing_can_be_below_is_refused() {
        let settings = Settings { roots: vec!["/srv".into(), "srv".into()], ..Settings::default() };
        let refused = NodeAgent::open(settings).await.err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("roots: srv is not an absolute path"));
    }
}
