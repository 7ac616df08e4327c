//! The name server as a part of a daemon: beside its controller, or beside the
//! crm of a site with a zone of its own, where `dns.listen` says so.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use selvage_cloudlet::SiteInstances;
use selvage_kit::{clock::SystemClock, tasks::Tasks};
use selvage_notify::{ClientOptions, Exchange, NotifyClient};
use selvage_part::{Context, Mount, OpenPart, Part, Process, Result};
use selvage_work::{Schedule, Trigger};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Options,
    answer::Responder,
    directory::{Directory, Settings},
    limit::{ConnectionLimit, RateLimit},
    publisher::Publisher,
    secondaries,
    tcp::Tcp,
    telemetry,
    udp::Udp,
};

/// The part that tells of all instances of a region,
const CONTROLLER: &str = "controller";
/// and the one that tells of those of a site.
const CRM: &str = "crm";
/// Number of times that a port is looked for that is free for UDP and TCP.
const PORT_TRIES: usize = 16;
/// Longest wait at the start for the controller to tell everything.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until names that another name server did not take are sent again.
const UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of the check that everything was told.
const SYNC_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The part `dns`.
pub struct DnsPart;

#[async_trait]
impl Part for DnsPart {
    const NAME: &'static str = "dns";
    type Options = Options;

    fn validate(options: &Options) -> Result<()> {
        options.validate()
    }

    fn check(process: &Process, options: &Options) -> Result<()> {
        let alone = !process.runs(CONTROLLER);
        if alone && !options.update.server.is_empty() {
            bail!("dns.update.server: updates are sent beside the controller, not by a crm");
        }
        if alone && options.address()?.is_some() && options.zones.is_empty() {
            bail!(
                "dns.zones: name the zone of this cloudlet, as its file has it in \
                 common.dns_zone: the controller answers for its own"
            );
        }
        Ok(())
    }

    fn is_needed(process: &Process) -> bool {
        process.runs(CONTROLLER) || process.runs(CRM)
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let primary = options.update.primary(&context.clock)?;
        let wanted = options.address()?;
        if wanted.is_none() && primary.is_none() {
            return Ok(None);
        }
        let sockets = match wanted {
            Some(wanted) => {
                let failed = || format!("dns.listen: cannot listen on {wanted}");
                Some(bind(wanted).await.with_context(failed)?)
            }
            None => None,
        };
        let address = sockets.as_ref().map(|(_, listener)| listener.local_addr());
        let address = address.transpose().context("dns.listen")?;
        if let Some(address) = address {
            context.announce(Self::NAME, address);
        }
        let of_region = context.process.runs(CONTROLLER);
        let settings = settings(options, address, of_region)?;
        let directory = Directory::new(settings, Arc::clone(&context.clock))?;
        let client = match of_region {
            true => Some(controller(context, &directory).await?),
            false => None,
        };
        let publisher = match primary {
            Some(primary) => {
                let store = context.store()?;
                let (directory, clock) = (Arc::clone(&directory), Arc::new(SystemClock));
                Some(Publisher::open(directory, primary, store, clock).await?)
            }
            None => None,
        };
        let secondaries = options.secondaries()?;
        let responder = Arc::new(Responder::new(Arc::clone(&directory), &secondaries));
        let server = sockets.map(|sockets| Server::new(sockets, &responder, options, context));
        let context = Arc::clone(context);
        let opened =
            Opened { context, directory, client, responder, server, publisher, secondaries };
        Ok(Some(Box::new(opened)))
    }
}

/// Both listeners.
struct Server {
    udp: Udp,
    tcp: Tcp,
}

impl Server {
    fn new(
        (udp, listener): (UdpSocket, TcpListener),
        responder: &Arc<Responder>,
        options: &Options,
        context: &Context,
    ) -> Self {
        let limit = RateLimit::new(options.rate, Arc::clone(&context.clock));
        let udp = Udp { socket: udp, responder: Arc::clone(responder), limit };
        let idle_timeout = options.idle_timeout.0;
        let limit = ConnectionLimit::new(options.connections);
        let tcp = Tcp { listener, responder: Arc::clone(responder), limit, idle_timeout };
        Self { udp, tcp }
    }
}

/// The way by which the controller of this process tells of instances.
async fn controller(context: &Context, directory: &Directory) -> Result<NotifyClient> {
    let socket = context.bind(DnsPart::NAME).await?;
    let exchange =
        Exchange::new().receive(directory.instances.clone()).receive(directory.cloudlets.clone());
    let addresses = vec![format!("unix:{}", socket.display())];
    Ok(NotifyClient::new(exchange, ClientOptions { addresses, ..ClientOptions::default() })?)
}

struct Opened {
    context: Arc<Context>,
    directory: Arc<Directory>,
    /// None where the crm of this process tells.
    client: Option<NotifyClient>,
    responder: Arc<Responder>,
    /// None where it only keeps the zones of another one.
    server: Option<Server>,
    publisher: Option<Publisher>,
    secondaries: Vec<SocketAddr>,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        telemetry::watch(&self.directory, &self.responder.counts, mount.metrics());
    }

    async fn spawn(self: Box<Self>, tasks: &Tasks) -> Result<()> {
        let Self { context, directory, client, responder: _, server, publisher, secondaries } =
            *self;
        let stop = || tasks.token().clone();
        if let Some(Server { udp, tcp }) = server {
            tasks.spawn("dns: udp", udp.run(stop()));
            tasks.spawn("dns: tcp", tcp.run(stop()));
        }
        if let Some(publisher) = publisher {
            let schedule = Schedule::every(UPDATE_INTERVAL);
            let trigger = context.reconcilers.add(publisher, schedule);
            let waking = wake_by_versions(directory.versions(), trigger, stop());
            tasks.spawn("dns: versions to publish", waking);
        }
        for secondary in secondaries {
            let informing = secondaries::keep_informed(secondary, Arc::clone(&directory), stop());
            tasks.spawn(format!("dns: secondary {secondary}"), informing);
        }
        let mut versions = directory.versions();
        match client {
            Some(client) => {
                let (connection, token) = (client.clone(), stop());
                let name = "dns: connection to the controller";
                tasks.spawn(name, async move { connection.run(token).await });
                tasks.spawn("dns: zones", keep_zones(directory, client, stop()));
            }
            None => {
                let site = context.shared.find::<SiteInstances>();
                directory.follow(site.context("dns: this process has no cloudlet")?);
                tasks.spawn("dns: zones", directory.run(stop()));
            }
        }
        if tokio::time::timeout(SYNC_TIMEOUT, versions.changed()).await.is_err() {
            tracing::warn!("the name server was not told of instances yet");
        }
        Ok(())
    }
}

/// Runs the publisher for every new version of a zone.
async fn wake_by_versions(
    mut versions: watch::Receiver<u64>,
    trigger: Trigger,
    stop: CancellationToken,
) {
    let waking = async {
        while versions.changed().await.is_ok() {
            trigger.wake();
        }
    };
    let _ = stop.run_until_cancelled(waking).await;
}

/// Keeps zones up to date from the moment that everything was told.
async fn keep_zones(directory: Arc<Directory>, client: NotifyClient, stop: CancellationToken) {
    while !client.status().in_sync {
        let pause = tokio::time::sleep(SYNC_CHECK_INTERVAL);
        if stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
    directory.run(stop).await;
}

fn settings(options: &Options, address: Option<SocketAddr>, of_region: bool) -> Result<Settings> {
    let own = address.map(|address| address.ip()).filter(|ip: &IpAddr| !ip.is_unspecified());
    let addresses = match options.addresses.is_empty() {
        true => own.into_iter().collect(),
        false => options.addresses.clone(),
    };
    Ok(Settings {
        origins: if of_region { options.origins()? } else { options.site_origins()? },
        ttl: u32::try_from(options.ttl.0.as_secs()).unwrap_or(u32::MAX),
        nameservers: options.nameservers()?,
        addresses,
    })
}

/// Binds one port for UDP and TCP.
async fn bind(wanted: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = PORT_TRIES;
    loop {
        tries -= 1;
        let listener = TcpListener::bind(wanted).await?;
        match UdpSocket::bind(listener.local_addr()?).await {
            Ok(udp) => return Ok((udp, listener)),
            // Somebody has the port that was free for the other one.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if wanted.port() != 0 || tries == 0 {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
