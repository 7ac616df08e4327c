//! Runs a daemon: from its configuration to the signal that ends it.

use std::{io::Write, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use selvage_auth::{Auth, GeneratedPassword};
use selvage_dme::Dme;
use selvage_kit::{
    pki,
    serve::{Readiness, Server, Socket, Trust},
    tasks::{Signals, Tasks},
    telemetry::{self, Metrics},
};
use selvage_lvmd::Lvmd;
use selvage_memory::Frugal;
use selvage_node::member::Kind;
use selvage_store::SharedStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    agent,
    args::{Join, Serve},
    assemble,
    config::{self, Config},
    crm, demo, dme, greeting, inventory, lvmd,
    part::Part,
    process,
    ready::{self, Admin, Ready, Sockets},
};

/// How often the store is asked how it is.
const STORE_LOOK: Duration = Duration::from_secs(1);
/// A store that takes longer to say a number is of no use to callers.
const STORE_ANSWER: Duration = Duration::from_secs(1);

/// Runs the parts until a signal comes.
pub(crate) async fn run(serve: &Serve, parts: &[Part]) -> ExitCode {
    let config = match begin(serve, config::load(serve)).and_then(crm::checked) {
        Ok(config) => config,
        Err(code) => return code,
    };
    Box::pin(daemon(&config, serve, parts)).await.unwrap_or_else(|error| fail(&error))
}

/// Runs this machine's agent, by itself or as one of a controller's.
pub(crate) async fn run_node(
    serve: &Serve,
    join: &Join,
    ca: Option<&Path>,
    frugal: Option<Frugal>,
) -> ExitCode {
    let config = match agent::configured(serve, join, ca) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let ran = if agent::belongs(&config, Kind::Node) {
        Box::pin(agent::run(&config, serve, join, frugal)).await
    } else {
        Box::pin(daemon(&config, serve, &[Part::Node])).await
    };
    ran.unwrap_or_else(|error| fail(&error))
}

/// What comes before everything else; an exit code where nothing comes after.
pub(crate) fn begin(serve: &Serve, loaded: anyhow::Result<Config>) -> Result<Config, ExitCode> {
    let bad = |error: &anyhow::Error| {
        fail(error);
        ExitCode::from(config::BAD_CONFIG)
    };
    let config = loaded.map_err(|error| bad(&error))?;
    if serve.dump_config {
        return Err(config::dump(&config).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS));
    }
    telemetry::init(&config.log).map_err(|error| bad(&error.into()))?;
    Ok(config)
}

/// Says on stderr what went wrong.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // Nobody is left to hear of a failure to write to stderr.
    let _ = writeln!(std::io::stderr(), "selvage: {error:#}");
    ExitCode::FAILURE
}

/// What a daemon stands on.
struct Ground {
    store: SharedStore,
    /// None with `--insecure`.
    keys: Option<assemble::Keys>,
    sockets: Listening,
    address: SocketAddr,
    volumes: Option<Lvmd>,
    dme: Option<Dme>,
}

/// What a daemon listens on.
struct Listening {
    port: Socket,
    lvmd: Option<Socket>,
    node: Option<Socket>,
    /// By which the match engine reaches the controller beside it.
    to_controller: Option<Socket>,
}

impl Listening {
    /// Where this machine's root is served besides.
    fn local(&self, config: &Config) -> Sockets {
        Sockets {
            lvmd: self.lvmd.is_some().then(|| config.lvmd_socket()),
            node: self.node.is_some().then(|| config.node_socket()),
        }
    }
}

/// Opens everything that may fail for reasons outside. It comes before the
/// first administrator is made, whose password would be lost with a failure.
async fn ground(config: &Config, parts: &[Part]) -> anyhow::Result<Ground> {
    let store = assemble::store(config).await?;
    let keys = if config.insecure { None } else { Some(assemble::keys(config)?) };
    let port = assemble::port(config, keys.as_ref().map(|keys| Arc::clone(&keys.server)))?;
    let address = port.address().context("the listener has no address")?;
    let (mut socket, mut volumes) = (None, None);
    if parts.contains(&Part::Lvmd) {
        socket = Some(assemble::private_socket(&config.lvmd_socket()).await?);
        volumes = Some(lvmd::open(config).await?);
    }
    let mut node = None;
    if parts.contains(&Part::Node) {
        node = Some(assemble::private_socket(&config.node_socket()).await?);
    }
    let mut to_controller = None;
    if dme::is_beside(config, parts) {
        to_controller = Some(assemble::private_socket(&config.dme_socket()).await?);
    }
    let dme = dme::open(config, parts, Arc::clone(&store))?;
    let sockets = Listening { port, lvmd: socket, node, to_controller };
    Ok(Ground { store, keys, sockets, address, volumes, dme })
}

pub(crate) async fn daemon(
    config: &Config,
    serve: &Serve,
    parts: &[Part],
) -> anyhow::Result<ExitCode> {
    process::prepare(config, serve)?;
    let mut signals = Signals::install().context("signals")?;
    let tasks = Tasks::new(CancellationToken::new());
    let ground = ground(config, parts).await?;
    let store = Arc::clone(&ground.store);
    let Up { keys, address, sockets, first } =
        Box::pin(start(config, parts, ground, &tasks)).await?;

    check_answers(config, address, keys.as_ref(), &sockets).await?;
    let ready = describe(config, address, keys.as_ref(), sockets);
    if let Some(path) = &serve.ready_file {
        ready.write(path)?;
    }
    greeting::greet(config, &ready, parts, first.as_ref());
    if serve.demo {
        tasks.spawn("demonstration", demo::run(config.clone()));
    }

    process::until_told(&mut signals, &tasks, keys.as_ref()).await;
    if let Some(path) = &serve.ready_file {
        let _ = std::fs::remove_file(path);
    }
    let code = process::wind_down(&mut signals, &tasks, config.listen.drain.0).await;
    store.close().await.context("closing the store")?;
    code
}

/// What serves.
struct Up {
    keys: Option<assemble::Keys>,
    address: SocketAddr,
    /// Where this machine's root is served besides.
    sockets: Sockets,
    /// Of the administrator who was made just now.
    first: Option<GeneratedPassword>,
}

/// Puts the parts on their ground and starts them.
async fn start(
    config: &Config,
    parts: &[Part],
    ground: Ground,
    tasks: &Tasks,
) -> anyhow::Result<Up> {
    let Ground { store, keys, sockets, address, volumes, dme } = ground;
    let ca = keys.as_ref().map(|keys| Arc::clone(&keys.ca));
    let (auth, first) = assemble::auth(config, Arc::clone(&store), ca).await?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    telemetry::install_panic_hook(&metrics);
    metrics.watch_tasks(tasks);
    let mut controller = None;
    if parts.contains(&Part::Controller) {
        let opened = assemble::controller(config, Arc::clone(&store), keys.as_ref(), address);
        controller = Some(Box::pin(opened).await?);
    }
    let node = assemble::node(config, parts, keys.as_ref(), controller.as_ref(), &auth, address);
    let node = node.await?;
    let served = assemble::Parts {
        running: parts,
        controller: controller.as_ref(),
        node: &node,
        volumes: volumes.as_ref(),
        dme: dme.as_ref(),
    };
    let shared = Arc::clone(&store);
    let server = assemble::server(config, served, shared, &auth, tasks, metrics).await?;
    let matching = dme.as_ref().map(Dme::ready);
    let server = server.ready(watch_store(tasks, store, matching));

    let local = sockets.local(config);
    serve_all(config, tasks, &server, sockets, &auth);
    if parts.contains(&Part::Node) {
        let report = inventory::own_report(config, address);
        let own = inventory::keep_own(auth.clone(), report, tasks.token().clone());
        tasks.spawn("own place", own);
    }
    keep_house(tasks, auth, keys.as_ref());
    if let Some(part) = controller {
        run_controller(tasks, part);
    }
    let shared = node.agent.as_ref().and_then(|agent| agent.runtimes().embedded());
    let crm = match parts.contains(&Part::Crm) {
        true => crm::beside(config, keys.as_ref(), address, shared).await?,
        false => None,
    };
    spawn_node(tasks, node);
    if let Some(crm) = crm {
        crm.spawn(tasks);
    }
    spawn_beside(tasks, volumes, dme).await;
    Ok(Up { keys, address, sockets: local, first })
}

/// Serves whoever is trusted on each socket.
fn serve_all(config: &Config, tasks: &Tasks, server: &Server, sockets: Listening, auth: &Auth) {
    let Listening { port, lvmd, node, to_controller } = sockets;
    let trust =
        if config.insecure { Trust::Everybody } else { Trust::Credentials(Arc::new(auth.clone())) };
    process::serve_on(tasks, "port", server, port, trust);
    for (name, socket) in
        [("lvmd socket", lvmd), ("node socket", node), ("dme socket", to_controller)]
    {
        if let Some(socket) = socket {
            process::serve_on(tasks, name, server, socket, Trust::Socket);
        }
    }
}

/// Starts what stands beside controller and machines.
async fn spawn_beside(tasks: &Tasks, volumes: Option<Lvmd>, dme: Option<Dme>) {
    if let Some(volumes) = volumes {
        volumes.spawn(tasks);
    }
    if let Some(dme) = dme {
        dme.spawn(tasks);
        dme::settle(&dme).await;
    }
}

fn keep_house(tasks: &Tasks, auth: Auth, keys: Option<&assemble::Keys>) {
    let stop = tasks.token().clone();
    tasks.spawn("auth housekeeping", async move { auth.run_housekeeping(stop).await });
    if let Some(keys) = keys {
        let identity = Arc::clone(&keys.identity);
        tasks.spawn("server certificate", identity.run(tasks.token().clone()));
    }
}

/// Looks after the store's health and the match engine's, for `/readiness` and
/// gRPC's health.
fn watch_store(tasks: &Tasks, store: SharedStore, matching: Option<Readiness>) -> Readiness {
    let (sender, receiver) = watch::channel(Ok(()));
    let stop = tasks.token().clone();
    tasks.spawn("store health", async move {
        while stop.run_until_cancelled(tokio::time::sleep(STORE_LOOK)).await.is_some() {
            // The revision is one that a majority of an etcd agrees on; the
            // status any member tells that is up.
            let asked = async {
                store.revision().await?;
                store.status().await
            };
            let health = match tokio::time::timeout(STORE_ANSWER, asked).await {
                Ok(Ok(status)) => status.failure.map_or(Ok(()), Err),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {STORE_ANSWER:?}")),
            };
            let health = health.map_err(|why| format!("store: {why}"));
            let matching = matching.as_ref().map_or(Ok(()), |ready| ready.borrow().clone());
            let health = health.and(matching);
            sender.send_if_modified(|known| std::mem::replace(known, health.clone()) != health);
        }
    });
    receiver
}

fn run_controller(tasks: &Tasks, part: assemble::ControllerPart) {
    let assemble::ControllerPart { controller, peers } = part;
    controller.spawn(tasks);
    if let Some(peers) = peers {
        tasks.spawn("controller's certificate", peers.run(tasks.token().clone()));
    }
}

fn spawn_node(tasks: &Tasks, part: assemble::NodePart) {
    let assemble::NodePart { agent, fanout, peers } = part;
    if let Some(agent) = agent {
        agent.spawn(tasks);
    }
    tasks.spawn("connections to machines", fanout.run(tasks.token().clone()));
    if let Some(peers) = peers {
        tasks.spawn("node's certificate", peers.run(tasks.token().clone()));
    }
}

async fn check_answers(
    config: &Config,
    address: SocketAddr,
    keys: Option<&assemble::Keys>,
    sockets: &Sockets,
) -> anyhow::Result<()> {
    let trusted = match keys {
        None => ready::Speak::Plain,
        // A certificate of the operator's own has names we do not know.
        Some(_) if config.tls.certificate.is_some() => ready::Speak::Connect,
        Some(keys) => {
            let mut client = pki::client_config(keys.ca.pem(), None)?;
            client.alpn_protocols = vec![b"http/1.1".to_vec()];
            ready::Speak::Tls(Arc::new(client))
        }
    };
    ready::answers(address, trusted).await?;
    for path in [&sockets.lvmd, &sockets.node].into_iter().flatten() {
        ready::socket_answers(path).await?;
    }
    Ok(())
}

fn describe(
    config: &Config,
    address: SocketAddr,
    keys: Option<&assemble::Keys>,
    sockets: Sockets,
) -> Ready {
    let scheme = if keys.is_some() { "https" } else { "http" };
    Ready {
        endpoint: format!("{scheme}://{}", assemble::near(address)),
        ca: keys.map(|keys| keys.ca.path().to_owned()),
        admin: Some(Admin {
            username: selvage_auth::FIRST_USER.into(),
            password_file: assemble::password_file(config),
        }),
        sockets,
    }
}
