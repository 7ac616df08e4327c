//! The agent as a part of a daemon.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_api::selvage::identity as wire;
use selvage_auth::{Auth, Report};
use selvage_components::Lvmd;
use selvage_kit::{identity::Machine, tasks::Tasks};
use selvage_membership::Member;
use selvage_part::{Context, Kind, Mount, OpenPart, Part, Process, Result};
use selvage_runtime::oci;
use selvage_work::{Failure, Schedule};

use crate::{
    NodeAgent, Options, Settings,
    fanout::{self, AssertionSource, Fanout, Inventory, Machines, StaticDirectory},
    machine::SystemPower,
    security::{IdentityEnroller, SecurityApi},
};

/// Interval at which a process lists its own machine.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The part `node`: this machine's agent, and the way to other machines. The
/// latter is in every process that has the machines in its store.
pub struct NodePart;

#[async_trait]
impl Part for NodePart {
    const NAME: &'static str = "node";
    const JOINS: Option<Kind> = Some(Kind::Node);
    const FRUGAL: bool = true;
    const THREADS: Option<usize> = Some(2);
    type Options = Options;

    fn is_needed(process: &Process) -> bool {
        process.runs(Self::NAME) || !process.joined
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let mut agent = None;
        if context.process.runs(Self::NAME) {
            context.bind(Self::NAME).await?;
            let settings = settings(context, options);
            let opened = NodeAgent::open(settings).await.context("node")?;
            if let Some(runtime) = opened.runtimes().embedded() {
                context.shared.offer(runtime);
            }
            agent = Some(opened);
        }
        warn_if_hidden(context);
        let fanout = fanout(context, options)?;
        Ok(Some(Box::new(Opened { agent, fanout, context: Arc::clone(context) })))
    }
}

struct Opened {
    /// `None` where only calls to other machines are passed on.
    agent: Option<NodeAgent>,
    fanout: Fanout,
    context: Arc<Context>,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        mount.relay(Arc::new(self.fanout.clone()));
        let Some(agent) = &self.agent else { return };
        agent.add_to(mount.services(), &self.context.reconcilers);
        mount.metrics_page("/metrics/node", agent.metrics_page());
        if let Some(auth) = &self.context.auth {
            let enroller = IdentityEnroller::new(auth.identity_service());
            mount.services().add(SecurityApi::new(enroller).service());
        }
    }

    async fn spawn(self: Box<Self>, tasks: &Tasks) -> Result<()> {
        let reconcilers = &self.context.reconcilers;
        let (fanout, period) = (self.fanout.clone(), self.fanout.sweep_interval());
        reconcilers.add_fn("connections to machines", Schedule::every(period), move || {
            fanout.sweep();
            std::future::ready(Ok::<_, Failure>(()))
        });
        let Some(agent) = self.agent else { return Ok(()) };
        agent.spawn(tasks);
        if let Some(auth) = self.context.auth.clone() {
            let (own, report) = (self.context.host.clone(), own_report(&self.context));
            reconcilers.add_fn("own machine", Schedule::every(REPORT_INTERVAL), move || {
                list_own(auth.clone(), own.clone(), report.clone())
            });
        }
        Ok(())
    }
}

fn settings(context: &Context, options: &Options) -> Settings {
    let own =
        oci::Options { cgroup: options.cgroup.clone(), ..oci::Options::in_data(&context.data) };
    let members = options.kubernetes.then(|| members(context, options, &own));
    // Pods are run by a containerd of their own, unless somebody says otherwise.
    let usual = Options::default().containerd;
    let socket = |given: &PathBuf| match &members {
        Some(members) if *given == usual => members.containerd_socket(),
        _ => given.clone(),
    };
    Settings {
        runtimes: selvage_runtime::select::Options {
            system_socket: options.system_containerd.clone(),
            containerd_socket: socket(&options.containerd),
            cri_socket: socket(&options.cri),
            embedded: (options.own_runtime || options.kubernetes).then_some(own),
            embedded_system: options.kubernetes,
        },
        members,
        roots: options.roots.clone(),
        protected: options.protected.iter().chain([&context.data]).cloned().collect(),
        kubeconfig: options.kubeconfig.clone(),
        time_server: options.time_server.clone(),
        textfiles: options.textfiles.clone(),
        power: options.allow_power.then(|| SystemPower {
            reset_paths: options.reset_paths.clone(),
            installer: options.installer.clone(),
        }),
        ..Settings::default()
    }
}

/// Places of a Kubernetes cluster that this machine is a member of.
fn members(
    context: &Context,
    options: &Options,
    own: &oci::Options,
) -> selvage_components::Settings {
    selvage_components::Settings {
        data: context.data.join("kubernetes"),
        run: own.state.with_file_name("kubernetes"),
        artifacts: options.artifacts.clone(),
        cgroup: format!("{}/kubernetes", options.cgroup),
        lvmd: lvmd(options),
    }
}

/// lvmd for volumes of pods: that which is given, or this very program.
fn lvmd(options: &Options) -> Option<Lvmd> {
    if let Some(socket) = &options.lvmd {
        return Some(Lvmd::Given(socket.clone()));
    }
    let program = std::env::current_exe().ok().filter(|program| program.exists())?;
    Some(Lvmd::Own { program, size_gb: options.volumes_gb })
}

/// Machines that joined, from wherever this process has them.
enum Joined {
    Auth(Auth),
    Member(Arc<Member>),
}

impl Machines for Joined {
    fn all(&self) -> Vec<wire::Machine> {
        match self {
            Self::Auth(auth) => auth.machines(),
            Self::Member(member) => member.machines(),
        }
    }

    fn get(&self, machine: &str) -> Option<wire::Machine> {
        match self {
            Self::Auth(auth) => {
                Machine::parse(machine).ok().and_then(|machine| auth.machine(&machine))
            }
            Self::Member(member) => member.machine(machine),
        }
    }
}

/// The way to other machines: those that are written down, and those that
/// joined.
fn fanout(context: &Context, options: &Options) -> Result<Fanout> {
    let own_port = context.address.map_or(0, |address| address.port());
    let port = if options.port == 0 { own_port } else { options.port };
    let written = StaticDirectory::new(&options.nodes, port).context("node.nodes")?;
    let settings = fanout::Settings {
        port,
        own: context.names.clone(),
        own_port,
        ..fanout::Settings::default()
    };
    let is_agent = context.process.runs(NodePart::NAME);
    let (machines, own) = match (&context.member, &context.auth) {
        (Some(member), _) => (Joined::Member(Arc::clone(member)), member.name().to_owned()),
        (None, Some(auth)) => (Joined::Auth(auth.clone()), context.host.clone()),
        (None, None) => anyhow::bail!("nothing says which machines there are"),
    };
    let directory = Arc::new(Inventory::new(written, machines, is_agent.then_some(own)));
    let tls = context.client_tls.clone();
    Ok(match assertions(context)? {
        None => Fanout::of_controller(settings, directory, tls),
        Some(source) => Fanout::of_node(settings, directory, tls, source),
    })
}

/// Source of assertions of callers, where this process shows itself as a node.
fn assertions(context: &Context) -> Result<Option<Arc<dyn AssertionSource>>> {
    if let Some(member) = &context.member {
        let controller = Arc::new(member.to_controller()?);
        return Ok(Some(Arc::new(fanout::Joined(controller))));
    }
    let own = match &context.auth {
        Some(auth) if !context.process.runs("controller") => fanout::Own {
            auth: auth.clone(),
            machine: Machine::Node { name: context.host.clone() },
        },
        _ => return Ok(None),
    };
    Ok(context.client_tls.is_some().then(|| Arc::new(own) as Arc<dyn AssertionSource>))
}

/// Lists this process's own machine among the others.
async fn list_own(auth: Auth, name: String, report: Report) -> Result<(), Failure> {
    let listed = auth.report(&Machine::Node { name }, report).await;
    listed.map(|_| ()).map_err(|error| Failure::new(error.code(), error.to_string()))
}

fn own_report(context: &Context) -> Report {
    let address = match (context.advertise.as_str(), context.address) {
        ("", Some(address)) if address.ip().is_unspecified() => {
            format!("{}:{}", context.host, address.port())
        }
        ("", address) => address.map(|address| address.to_string()).unwrap_or_default(),
        (advertised, _) => advertised.to_owned(),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Report { address, labels: context.labels.clone(), version, ..Report::default() }
}

/// An agent that nobody else can reach is of use to nobody else.
fn warn_if_hidden(context: &Context) {
    let (Some(member), Some(address)) = (&context.member, context.address) else { return };
    let is_near = |host: &str| {
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    let beside = member.endpoints().iter().all(|endpoint| is_near(&endpoint.host));
    if address.ip().is_loopback() && context.advertise.is_empty() && !beside {
        let address = address.ip();
        tracing::warn!(%address, "other machines cannot reach this agent: say --address 0.0.0.0");
    }
}
