//! An agent that belongs to a controller: no store, no users of its own.

use std::{io::Read, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use selvage_kit::{
    clock::SystemClock,
    identity::Secret,
    pki::{self, Anchor},
    serve::{Server, Services, Trust},
    tasks::{Signals, Tasks},
    telemetry::{self, Metrics},
};
use selvage_memory::Frugal;
use selvage_node::{
    NodeAgent,
    fanout::Fanout,
    member::{self, Controller, Invitation, Kind, Member, People},
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Join, Serve},
    assemble,
    config::{self, Config},
    part::Part,
    process,
    ready::{self, Ready, Sockets},
    system::System,
    up,
};

/// Holds the join token, where no file does.
pub(crate) const TOKEN_VARIABLE: &str = "SELVAGE_JOIN_TOKEN";

/// By then all has been started.
const SETTLED: Duration = Duration::from_secs(3);
/// So often memory that is not used is given back.
const GIVE_BACK: Duration = Duration::from_secs(60);

/// No token is longer.
const LONGEST_TOKEN: u64 = 4096;

/// The configuration of an agent; an exit code where nothing comes after.
pub(crate) fn configured(
    serve: &Serve,
    join: &Join,
    ca: Option<&Path>,
) -> Result<Config, ExitCode> {
    let loaded = config::load(serve).and_then(|mut config| {
        apply(join, ca, &mut config)?;
        Ok(config)
    });
    up::begin(serve, loaded)
}

/// Puts the flags into the configuration.
fn apply(join: &Join, ca: Option<&Path>, config: &mut Config) -> anyhow::Result<()> {
    let node = &mut config.node;
    if let Some(controller) = &join.controller {
        node.controller.clone_from(controller);
    }
    if let Some(sha256) = &join.ca_sha256 {
        node.ca_sha256.clone_from(sha256);
    }
    if let Some(ca) = ca {
        node.ca = Some(ca.to_owned());
    }
    for label in &join.labels {
        let (key, value) = label
            .split_once('=')
            .with_context(|| format!("--label {label:?}: not of the form KEY=VALUE"))?;
        node.labels.insert(key.to_owned(), value.to_owned());
    }
    selvage_kit::labels::check(&node.labels).context("--label")
}

/// Whether the agent is to belong to a controller, or does.
pub(crate) fn belongs(config: &Config, kind: Kind) -> bool {
    let kept = || Member::is_kept(&config.joined(kind));
    !config.insecure && (!config.node.controller.is_empty() || kept())
}

/// The token, from wherever it was given.
fn token(config: &Config, join: &Join) -> anyhow::Result<Option<Secret>> {
    if let Some(path) = &join.join_file {
        let mut text = String::new();
        let read = if path == Path::new("-") {
            std::io::stdin().take(LONGEST_TOKEN).read_to_string(&mut text)
        } else {
            let file = std::fs::File::open(path);
            file.and_then(|file| file.take(LONGEST_TOKEN).read_to_string(&mut text))
        };
        read.with_context(|| format!("--join-file {}", path.display()))?;
        return Ok(Some(Secret::new(text.trim())));
    }
    if let Some(file) = &config.node.join_file {
        let read = file.read().context("node.join_file")?;
        return Ok(Some(Secret::new(read.expose().trim())));
    }
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|text| !text.trim().is_empty());
    Ok(given.map(|text| Secret::new(text.trim())))
}

/// Whether there is a token; it is not read.
fn token_is_given(config: &Config, join: &Join) -> bool {
    join.join_file.is_some()
        || config.node.join_file.is_some()
        || std::env::var(TOKEN_VARIABLE).is_ok_and(|text| !text.trim().is_empty())
}

/// How the controller is known that a machine joins.
fn anchor(config: &Config, token: &Secret) -> anyhow::Result<Anchor> {
    if let Some(path) = &config.node.ca {
        let pem = std::fs::read_to_string(path);
        return Ok(Anchor::Certificate(pem.with_context(|| path.display().to_string())?));
    }
    if !config.node.ca_sha256.is_empty() {
        return Ok(Anchor::Digest(config.node.ca_sha256.clone()));
    }
    match pki::pin_in_token(token.expose()) {
        Some(pin) => Ok(Anchor::Digest(pin.to_owned())),
        None => bail!(
            "nothing says which CA to trust: use the whole token, which ends with its \
             fingerprint, or give --ca-sha256 or --ca"
        ),
    }
}

/// What an earlier start left, or a new membership for the token.
pub(crate) async fn membership(config: &Config, join: &Join, kind: Kind) -> anyhow::Result<Member> {
    let (directory, clock) = (config.joined(kind), Arc::new(SystemClock));
    let kept = match Member::open(&directory, kind, clock.clone()) {
        Ok(kept) => kept,
        // Too late to renew it: only a new token helps, if there is one.
        Err(error @ member::Error::Pki(pki::Error::Expired { .. })) => match token(config, join)? {
            Some(_) => None,
            None => return Err(error).context("join again with a new token"),
        },
        Err(error) => return Err(error).context("what is kept of joining the controller"),
    };
    if let Some(member) = kept {
        if !config.node.controller.is_empty() {
            member.move_to(&config.node.controller)?;
        }
        if token_is_given(config, join) {
            let machine = format!("{kind}/{}", member.name());
            tracing::warn!(
                machine,
                directory = %directory.display(),
                "joined already: the join token is not used"
            );
        }
        tracing::info!(name = member.name(), controller = member.controller(), "joined already");
        return Ok(member);
    }
    let controller = &config.node.controller;
    if controller.is_empty() {
        bail!("this machine has not joined yet: say --controller HOST:PORT");
    }
    let Some(token) = token(config, join)? else {
        bail!(
            "this machine has not joined {controller} yet: give the token that \
             `selvage join-token create {}` prints with --join-file, or in {TOKEN_VARIABLE}",
            kind.pattern()
        );
    };
    let anchor = anchor(config, &token)?;
    let invitation = Invitation { kind, controller, token: &token, anchor };
    let member = Member::join(&directory, &invitation, clock).await?;
    tracing::info!(name = member.name(), controller, "joined");
    Ok(member)
}

/// Everything that serves.
struct Agent {
    member: Arc<Member>,
    controller: Arc<dyn Controller>,
    agent: NodeAgent,
    fanout: Fanout,
    address: SocketAddr,
}

impl Agent {
    async fn server(&self, config: &Config, tasks: &Tasks) -> anyhow::Result<Server> {
        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
        telemetry::install_panic_hook(&metrics);
        metrics.watch_tasks(tasks);
        let mut services = Services::default();
        self.agent.add_to(&mut services, tasks);
        services.add(System::service(&[Part::Node], None, false));
        let server = Server::new(services, metrics, assemble::limits(config)).await;
        let server = server.context("server")?;
        let server = server.metrics_page("/metrics/node", self.agent.metrics_page());
        let server = server.relay(Arc::new(self.fanout.clone()));
        Ok(server.origins(config.listen.origins.clone()))
    }

    fn spawn(&self, config: &Config, tasks: &Tasks) {
        self.agent.spawn(tasks);
        let stop = || tasks.token().clone();
        tasks.spawn("connections to machines", self.fanout.clone().run(stop()));
        let node = &config.node;
        let report = member::report_of(self.address.port(), &node.advertise, &node.labels);
        let (member, controller) = (Arc::clone(&self.member), Arc::clone(&self.controller));
        tasks.spawn("controller", member.run(controller, report, node.report.0, stop()));
    }
}

/// Runs the agent until a signal comes.
pub(crate) async fn run(
    config: &Config,
    serve: &Serve,
    join: &Join,
    frugal: Option<Frugal>,
) -> anyhow::Result<ExitCode> {
    process::prepare(config, serve)?;
    let mut signals = Signals::install().context("signals")?;
    let tasks = Tasks::new(CancellationToken::new());
    let member = Arc::new(membership(config, join, Kind::Node).await?);
    let controller: Arc<dyn Controller> = Arc::new(member.to_controller()?);
    let port = assemble::port(config, Some(member.server_tls()?))?;
    let address = port.address().context("the listener has no address")?;
    let local = assemble::private_socket(&config.node_socket()).await?;
    warn_if_hidden(config, &member);
    let own = Some(member.name().to_owned());
    let tls = Some(member.client_tls()?);
    let agent = Agent {
        agent: NodeAgent::open(assemble::node_settings(config)).await.context("node")?,
        fanout: assemble::way_to_others(config, Arc::clone(&member), own, tls, address)?,
        controller: Arc::clone(&controller),
        member: Arc::clone(&member),
        address,
    };
    let server = agent.server(config, &tasks).await?;
    let people = People::new(Arc::clone(&member), controller, Arc::new(SystemClock));
    process::serve_on(&tasks, "port", &server, port, Trust::Credentials(Arc::new(people)));
    process::serve_on(&tasks, "node socket", &server, local, Trust::Socket);
    agent.spawn(config, &tasks);

    // Under which of its names it listens, the certificate need not say.
    ready::answers(address, ready::Speak::Connect).await?;
    ready::socket_answers(&config.node_socket()).await?;
    let sockets = Sockets { node: Some(config.node_socket()), ..Sockets::default() };
    let endpoint = format!("https://{}", assemble::near(address));
    let ready = Ready { endpoint, ca: Some(member.ca_path()), admin: None, sockets };
    if let Some(path) = &serve.ready_file {
        ready.write(path)?;
    }
    greet(&ready, &member, Kind::Node);
    if let Some(frugal) = frugal {
        tasks.spawn("memory", stay_small(frugal, tasks.token().clone()));
    }
    process::until_told(&mut signals, &tasks, None).await;
    if let Some(path) = &serve.ready_file {
        let _ = std::fs::remove_file(path);
    }
    process::wind_down(&mut signals, &tasks, config.listen.drain.0).await
}

/// Runs what belongs to a controller, and is no machine's agent, until a
/// signal comes. `start` starts it and says what it serves.
pub(crate) async fn belong(
    config: &Config,
    serve: &Serve,
    join: &Join,
    kind: Kind,
    start: impl AsyncFnOnce(&Member, &Tasks) -> anyhow::Result<Server>,
) -> anyhow::Result<ExitCode> {
    process::prepare(config, serve)?;
    let mut signals = Signals::install().context("signals")?;
    let tasks = Tasks::new(CancellationToken::new());
    let member = Arc::new(membership(config, join, kind).await?);
    let controller: Arc<dyn Controller> = Arc::new(member.to_controller()?);
    let port = assemble::port(config, Some(member.server_tls()?))?;
    let address = port.address().context("the listener has no address")?;
    let server = start(&member, &tasks).await?;
    let people = People::new(Arc::clone(&member), Arc::clone(&controller), Arc::new(SystemClock));
    process::serve_on(&tasks, "port", &server, port, Trust::Credentials(Arc::new(people)));
    let node = &config.node;
    let report = member::report_of(address.port(), &node.advertise, &node.labels);
    let staying = Arc::clone(&member).run(controller, report, node.report.0, tasks.token().clone());
    tasks.spawn("controller", staying);

    // Under which of its names it listens, the certificate need not say.
    ready::answers(address, ready::Speak::Connect).await?;
    let endpoint = format!("https://{}", assemble::near(address));
    let ca = Some(member.ca_path());
    let ready = Ready { endpoint, ca, admin: None, sockets: Sockets::default() };
    if let Some(path) = &serve.ready_file {
        ready.write(path)?;
    }
    greet(&ready, &member, kind);
    process::until_told(&mut signals, &tasks, None).await;
    if let Some(path) = &serve.ready_file {
        let _ = std::fs::remove_file(path);
    }
    process::wind_down(&mut signals, &tasks, config.listen.drain.0).await
}

/// Gives back what starting needed, and later what a busy time did.
pub(crate) async fn stay_small(frugal: Frugal, stop: CancellationToken) {
    let mut wait = SETTLED;
    while stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
        if let Err(error) = frugal.give_back() {
            tracing::debug!(%error, "memory that is not used stays");
        }
        wait = GIVE_BACK;
    }
}

/// An agent that nobody else can reach is of use to nobody else.
fn warn_if_hidden(config: &Config, member: &Member) {
    let loopback = |host: &str| {
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    let address = &config.listen.address;
    let hidden = address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let beside = member.controllers().iter().all(|place| loopback(place));
    if hidden && config.node.advertise.is_empty() && !beside {
        tracing::warn!(address, "other machines cannot reach this agent: say --address 0.0.0.0");
    }
}

pub(crate) fn greet(ready: &Ready, member: &Member, kind: Kind) {
    use std::io::Write;
    let ends = jiff::Timestamp::from_second(member.not_after()).unwrap_or_default();
    let text = format!(
        "\nSelvage {} answers on {} as {kind}/{}\n  Controller:  {}\n  Certificate: until {ends}, renewed by itself\n\n",
        env!("CARGO_PKG_VERSION"),
        ready.endpoint,
        member.name(),
        member.controller(),
    );
    // A closed stdout is no reason to stop serving.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
