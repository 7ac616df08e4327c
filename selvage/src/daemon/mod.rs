//! Start and end of a daemon: `selvage up`, a single part, one that joined a
//! controller, and lvmd in the original's place.

mod base;
mod greeting;
mod identity;
mod process;
mod ready;
mod region;
pub(crate) mod store;
mod system;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io::Write, path::Path, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use base::{Base, Foundation};
use ready::Ready;
use selvage_kit::{
    clock::SystemClock,
    serve::{Limits, Socket},
    tasks::{Signals, Tasks},
    telemetry::{self, Metrics},
};
use selvage_memory::Frugal;
use selvage_part::{ConfiguredPart, Context, Mount, Process, Shared, host_name};
use selvage_store::clock as store_clock;
use selvage_work::Reconcilers;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Join, Serve},
    config::{self, Config},
    demo, join,
    parts::Info,
};

/// Request of a command line for a daemon.
pub(crate) struct Order<'a> {
    /// Names of the parts.
    pub(crate) parts: Vec<&'static str>,
    pub(crate) serve: Serve,
    pub(crate) join: Join,
    /// CA of the controller to join.
    pub(crate) ca: Option<&'a Path>,
    /// Memory that is to be given back.
    pub(crate) frugal: Option<Frugal>,
}

/// Runs the parts until a signal comes.
pub(crate) async fn run(order: Order<'_>) -> ExitCode {
    let plan = match Plan::of(&order) {
        Ok(plan) => plan,
        Err(code) => return code,
    };
    Box::pin(plan.run(&order.serve, order.frugal)).await.unwrap_or_else(|error| fail(&error))
}

/// Prints on stderr what went wrong.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // Nobody is left to hear of a failure to write to stderr.
    let _ = writeln!(std::io::stderr(), "selvage: {error:#}");
    ExitCode::FAILURE
}

/// A daemon whose configuration is known to be good; nothing is open yet.
struct Plan {
    config: Config,
    process: Process,
    base: Base,
    /// Parts to open.
    parts: Vec<Box<dyn ConfiguredPart>>,
}

impl Plan {
    /// Makes a plan; an exit code where nothing is to be run.
    fn of(order: &Order<'_>) -> Result<Self, ExitCode> {
        let bad = |error: &anyhow::Error| {
            fail(error);
            ExitCode::from(config::BAD_CONFIG)
        };
        let stock = stock_file(order);
        let serve = match stock {
            Some(_) => &Serve { config: None, ..order.serve.clone() },
            None => &order.serve,
        };
        let mut config = load(serve, order).map_err(|error| bad(&error))?;
        if serve.dump_config {
            let dumped = config::dump(&config);
            return Err(dumped.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS));
        }
        if serve.demo {
            demo::check().map_err(|error| bad(&error))?;
        }
        telemetry::init(&config.log).map_err(|error| bad(&error.into()))?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        config.link();
        let base = match stock {
            Some(path) => {
                config.lvmd.config = Some(path.to_owned());
                Base::Bare
            }
            None => Base::of(&config, order),
        };
        let plan = Self::with(config, base, order.parts.clone());
        plan.checked().map_err(|error| bad(&error))
    }

    fn with(config: Config, base: Base, running: Vec<&'static str>) -> Self {
        let joined = matches!(base, Base::Joined { .. });
        let process = Process { running, joined, insecure: config.insecure };
        let mut parts = config.parts();
        match base {
            Base::Bare => parts.retain(|part| process.runs(part.name())),
            _ => parts.retain(|part| part.is_needed(&process)),
        }
        Self { config, process, base, parts }
    }

    fn checked(self) -> anyhow::Result<Self> {
        for part in &self.parts {
            part.check(&self.process)?;
        }
        Ok(self)
    }

    /// Runs until a signal comes.
    async fn run(&self, serve: &Serve, frugal: Option<Frugal>) -> anyhow::Result<ExitCode> {
        process::prepare(&self.config, &self.base, serve)?;
        let mut signals = Signals::install().context("signals")?;
        let tasks = Tasks::new(CancellationToken::new());
        let running = Box::pin(self.start(&tasks)).await?;
        running.foundation.greet(&self.config, &running.ready, &self.process);
        if let Some(path) = &serve.ready_file {
            running.ready.write(path)?;
        }
        if serve.demo {
            let names = running.ready.addresses.get("dns").copied();
            tasks.spawn("demonstration", demo::run(self.config.clone(), names));
        }
        if let Some(frugal) = frugal {
            process::stay_small(frugal, &running.reconcilers);
        }
        process::until_stopped(&mut signals, &tasks, &running.foundation).await;
        if let Some(path) = &serve.ready_file {
            let _ = std::fs::remove_file(path);
        }
        let code = process::wind_down(&mut signals, &tasks, self.config.listen.drain.0).await;
        running.foundation.close().await?;
        code
    }

    /// Takes all parts through their steps: open, mount, spawn.
    async fn start(&self, tasks: &Tasks) -> anyhow::Result<Running> {
        let config = &self.config;
        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
        telemetry::install_panic_hook(&metrics);
        metrics.watch_tasks(tasks);
        let reconcilers =
            Reconcilers::new(tasks.clone(), Arc::new(store_clock::SystemClock::new()));
        reconcilers.watch(&metrics);
        let opened = self.base.open(config, &self.process, &reconcilers).await?;
        let (mut foundation, port) = opened;
        let context = self.context(&foundation, port.as_ref(), &metrics, &reconcilers)?;
        let (mut open, mut names) = (Vec::new(), Vec::new());
        for part in &self.parts {
            if let Some(part_open) = part.open(&context).await? {
                open.push(part_open);
                names.push(part.name());
            }
        }
        // Whatever may fail for reasons outside has not failed: a password that
        // is made now is not lost.
        foundation.make_first_administrator(config).await?;

        let mut mount = Mount::new(metrics, tasks.clone());
        foundation.mount(&mut mount, config, &context, names);
        open.iter_mut().for_each(|part| part.mount(&mut mount));
        let server = mount.server(limits(config), config.listen.origins.clone()).await;
        let server = server.context("server")?;
        let sockets = foundation.serve(config, &server, port, &context, tasks);
        foundation.spawn(config, &context, tasks);
        for part in open {
            part.spawn(tasks).await?;
        }
        let ready = foundation.ready(config, &context, sockets).await?;
        Ok(Running { foundation, ready, reconcilers })
    }

    fn context(
        &self,
        foundation: &Foundation,
        port: Option<&Socket>,
        metrics: &Metrics,
        reconcilers: &Reconcilers,
    ) -> anyhow::Result<Arc<Context>> {
        let config = &self.config;
        let address = match port {
            Some(port) => Some(port.address().context("the listener has no address")?),
            None => None,
        };
        Ok(Arc::new(Context {
            process: self.process.clone(),
            data: config.data.clone(),
            host: host_name(),
            address,
            names: identity::names(config),
            advertise: config.join.advertise.clone(),
            labels: config.join.labels.clone(),
            store: foundation.store(),
            auth: foundation.auth(),
            authorities: foundation.authorities(),
            member: foundation.member(),
            server_tls: foundation.server_tls()?,
            client_tls: foundation.client_tls()?,
            controller_tls: foundation.controller_tls()?,
            clock: Arc::new(SystemClock),
            tasks: reconcilers.tasks().clone(),
            reconcilers: reconcilers.clone(),
            metrics: metrics.clone(),
            shared: Shared::default(),
            sockets: parking_lot::Mutex::default(),
            addresses: parking_lot::Mutex::default(),
        }))
    }
}

/// A daemon that serves.
struct Running {
    foundation: Foundation,
    ready: Ready,
    reconcilers: Reconcilers,
}

/// Unix sockets by name.
type Sockets = BTreeMap<&'static str, std::path::PathBuf>;

/// Loads the configuration; flags of `--controller` and the like win.
fn load(serve: &Serve, order: &Order<'_>) -> anyhow::Result<Config> {
    let mut config = config::load(serve)?;
    let joins = |name: &&str| Info::find(name).is_some_and(|info| info.joins.is_some());
    if order.parts.len() == 1 && order.parts.iter().any(joins) {
        join::apply(&order.join, order.ca, &mut config)?;
    }
    Ok(config)
}

/// The configuration file of the original lvmd, if the command line names one.
fn stock_file<'a>(order: &'a Order<'_>) -> Option<&'a Path> {
    let path = order.serve.config.as_deref().filter(|_| order.parts == ["lvmd"])?;
    path.extension().filter(|end| *end == "yaml" || *end == "yml").map(|_| path)
}

/// Returns the limits of the listeners.
fn limits(config: &Config) -> Limits {
    Limits {
        connections: config.listen.connections,
        calls_in_flight: config.listen.calls_in_flight,
        streams_in_flight: config.listen.streams_in_flight,
        drain: config.listen.drain.0,
        ..Limits::default()
    }
}
