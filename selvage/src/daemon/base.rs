//! Foundation of a daemon: a store and keys of its own, the membership in a
//! controller's region, or nothing but a unix socket.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use selvage_api::{Code, selvage::identity::ReportRequest};
use selvage_auth::{Auth, GeneratedPassword};
use selvage_kit::{
    clock::SystemClock,
    identity::Machine,
    pki::{Authorities, ServerIdentity},
    serve::{Readiness, Server, Socket, Trust},
    tasks::Tasks,
};
use selvage_membership::{
    Controller, IssuedIdentity, Kind, Member, People, RETRY_INTERVAL, report_of,
};
use selvage_part::{Context, Mount, Process, host_name};
use selvage_store::SharedStore;
use selvage_work::{Failure, Reconcilers, Schedule};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Order, Sockets, greeting,
    identity::{self, Keys},
    ready::{self, Admin, ListenerProtocol, Ready},
    region, store,
    system::System,
};
use crate::{
    args::Join,
    config::{Config, StoreKind},
    join,
    parts::Info,
};

/// Interval at which the store is asked how it is.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A store that takes longer to return a number is of no use to callers.
const STORE_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before the list of blocked machines is followed again.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the authorities are compared with the region's.
const AUTHORITIES_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which what has expired is removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Foundation that a daemon will have.
pub(super) enum Base {
    /// A store of its own.
    Own,
    /// A controller elsewhere.
    Joined { kind: Kind, join: Box<Join> },
    /// No store and no controller: one unix socket, no port.
    Bare,
}

impl Base {
    /// One part that belongs to a controller stands on that; everything else
    /// on its own store.
    pub(super) fn of(config: &Config, order: &Order<'_>) -> Self {
        let kind = match order.parts.as_slice() {
            [part] => Info::find(part).and_then(|info| info.joins),
            _ => None,
        };
        match kind.filter(|kind| join::is_requested(config, *kind)) {
            Some(kind) => Self::Joined { kind, join: Box::new(order.join.clone()) },
            None => Self::Own,
        }
    }

    /// Opens it, and binds the port that everything answers on.
    pub(super) async fn open(
        &self,
        config: &Config,
        process: &Process,
        reconcilers: &Reconcilers,
    ) -> anyhow::Result<(Foundation, Option<Socket>)> {
        match self {
            Self::Own => {
                let store = store::open(config).await?;
                let keys = if config.insecure { None } else { Some(identity::keys(config)?) };
                if let (Some(keys), StoreKind::Etcd) = (&keys, config.store.kind) {
                    region::check_authorities(&store, &keys.authorities).await?;
                }
                let port = port(config, keys.as_ref().map(|keys| Arc::clone(&keys.server)))?;
                let own = Own::open(config, process, store, keys, reconcilers).await?;
                Ok((Foundation::Own(Box::new(own)), Some(port)))
            }
            Self::Joined { kind, join } => {
                let member = Arc::new(join::open(config, join, *kind).await?);
                let controller: Arc<dyn Controller> = Arc::new(member.to_controller()?);
                let port = port(config, Some(member.server_tls()?))?;
                Ok((Foundation::Joined { kind: *kind, member, controller }, Some(port)))
            }
            Self::Bare => Ok((Foundation::Bare, None)),
        }
    }
}

/// Binds the port that everything answers on.
fn port(config: &Config, tls: Option<Arc<rustls::ServerConfig>>) -> anyhow::Result<Socket> {
    let ip: IpAddr = config.listen.address.parse().context("listen.address")?;
    let address = SocketAddr::new(ip, config.listen.port);
    Socket::tcp(address, tls).with_context(|| format!("cannot listen on {address}"))
}

/// Foundation of a daemon.
pub(super) enum Foundation {
    Own(Box<Own>),
    Joined { kind: Kind, member: Arc<Member>, controller: Arc<dyn Controller> },
    Bare,
}

/// A store, the users in it, and keys.
pub(super) struct Own {
    store: SharedStore,
    /// None with `--insecure`.
    keys: Option<Keys>,
    /// Certificate that this process shows to others.
    issued: Option<Arc<IssuedIdentity>>,
    auth: Auth,
    /// Password of the administrator, if the account was just created.
    first: Option<GeneratedPassword>,
}

impl Own {
    async fn open(
        config: &Config,
        process: &Process,
        store: SharedStore,
        keys: Option<Keys>,
        reconcilers: &Reconcilers,
    ) -> anyhow::Result<Self> {
        // A controller may speak for everybody, so it is what we show if we are.
        let (machine, file) = match process.runs("controller") {
            true => (Machine::Controller, "controller.pem"),
            false => (Machine::Node { name: host_name() }, "node.pem"),
        };
        let authorities = keys.as_ref().map(|keys| keys.authorities.clone());
        let auth = identity::auth(config, Arc::clone(&store), authorities).await?;
        auth.name_process(&format!("{}:{}", host_name(), config.listen.port));
        auth.name_machine(Machine::Node { name: host_name() });
        auth.follow_authorities().await.context("authorities")?;
        let mut issued = None;
        if let Some(keys) = &keys {
            // What is shown from the first connection on is of the right one.
            keys.identity.refresh().context("server certificate")?;
            let path = config.data.join(file);
            let identity = IssuedIdentity::issue(&path, keys.authorities.clone(), machine);
            let identity = Arc::new(identity.with_context(|| path.display().to_string())?);
            let renewed = Arc::clone(&identity);
            let schedule = Schedule::every(IssuedIdentity::CHECK_INTERVAL);
            reconcilers.add_fn("certificate for peers", schedule, move || {
                let renewed = renewed.renew_if_due();
                std::future::ready(renewed.map_err(|e| Failure::new(e.code(), e.to_string())))
            });
            issued = Some(identity);
        }
        Ok(Self { store, keys, issued, auth, first: None })
    }
}

impl Foundation {
    pub(super) fn store(&self) -> Option<SharedStore> {
        match self {
            Self::Own(own) => Some(Arc::clone(&own.store)),
            _ => None,
        }
    }

    pub(super) fn auth(&self) -> Option<Auth> {
        match self {
            Self::Own(own) => Some(own.auth.clone()),
            _ => None,
        }
    }

    pub(super) fn authorities(&self) -> Option<Authorities> {
        self.keys().map(|keys| keys.authorities.clone())
    }

    fn keys(&self) -> Option<&Keys> {
        match self {
            Self::Own(own) => own.keys.as_ref(),
            _ => None,
        }
    }

    pub(super) fn member(&self) -> Option<Arc<Member>> {
        match self {
            Self::Joined { member, .. } => Some(Arc::clone(member)),
            _ => None,
        }
    }

    pub(super) fn server_tls(&self) -> anyhow::Result<Option<Arc<rustls::ServerConfig>>> {
        Ok(match self {
            Self::Own(own) => own.keys.as_ref().map(|keys| Arc::clone(&keys.server)),
            Self::Joined { member, .. } => Some(member.server_tls()?),
            Self::Bare => None,
        })
    }

    pub(super) fn client_tls(&self) -> anyhow::Result<Option<Arc<rustls::ClientConfig>>> {
        Ok(match self {
            Self::Own(own) => own.issued.as_ref().map(|issued| issued.client_tls()),
            Self::Joined { member, .. } => Some(member.client_tls()?),
            Self::Bare => None,
        })
    }

    pub(super) fn controller_tls(&self) -> anyhow::Result<Option<Arc<rustls::ClientConfig>>> {
        Ok(match self {
            Self::Own(own) => own.issued.as_ref().map(|issued| issued.controller_tls()),
            Self::Joined { member, .. } => Some(member.controller_tls()?),
            Self::Bare => None,
        })
    }

    /// Makes the first administrator on the first start.
    pub(super) async fn make_first_administrator(&mut self, config: &Config) -> anyhow::Result<()> {
        if let Self::Own(own) = self {
            own.first = identity::first_administrator(config, &own.auth).await?;
        }
        Ok(())
    }

    /// Adds what every process serves.
    pub(super) fn mount(
        &self,
        mount: &mut Mount,
        config: &Config,
        context: &Context,
        open: Vec<&'static str>,
    ) {
        let reconcilers = &context.reconcilers;
        let system = |store| System::service(context, open, store, config.insecure);
        match self {
            Self::Own(own) => {
                mount.services().add(own.auth.auth_service());
                mount.services().add(own.auth.identity_service());
                mount.services().add(own.auth.pki_service());
                mount.services().add(system(Some(Arc::clone(&own.store))));
                mount.pages(own.auth.http_routes());
                mount.ready(watch_store(reconcilers, Arc::clone(&own.store)));
            }
            Self::Joined { .. } => mount.services().add(system(None)),
            Self::Bare => {}
        }
    }

    /// Serves the port, and the sockets that parts have bound; their paths.
    pub(super) fn serve(
        &self,
        config: &Config,
        server: &Server,
        port: Option<Socket>,
        context: &Context,
        tasks: &Tasks,
    ) -> Sockets {
        let serve_on = |name: String, socket: Socket, trust: Trust| {
            let serving = server.clone().run(socket, trust, tasks.token().clone());
            tasks.spawn_critical(name, serving);
        };
        if let Some(port) = port {
            serve_on("port".into(), port, self.trust(config));
        }
        let bound = std::mem::take(&mut *context.sockets.lock());
        let mut paths = Sockets::new();
        for bound in bound {
            paths.insert(bound.name, bound.path);
            serve_on(format!("{} socket", bound.name), bound.socket, Trust::Socket);
        }
        paths
    }

    /// Returns how callers on the port are authenticated.
    fn trust(&self, config: &Config) -> Trust {
        match self {
            Self::Own(own) if !config.insecure => Trust::Credentials(Arc::new(own.auth.clone())),
            Self::Own(_) | Self::Bare => Trust::Everybody,
            Self::Joined { member, controller, .. } => {
                let (member, controller) = (Arc::clone(member), Arc::clone(controller));
                Trust::Credentials(Arc::new(People::new(member, controller, Arc::new(SystemClock))))
            }
        }
    }

    /// Starts what it does by itself.
    pub(super) fn spawn(&self, config: &Config, context: &Context, tasks: &Tasks) {
        let reconcilers = &context.reconcilers;
        match self {
            Self::Own(own) => {
                let (auth, schedule) = (own.auth.clone(), Schedule::every(SWEEP_INTERVAL));
                reconcilers.add_fn("auth housekeeping", schedule, move || sweep(auth.clone()));
                if let Some(keys) = &own.keys {
                    let (auth, shown) = (own.auth.clone(), Arc::clone(&keys.identity));
                    let schedule = Schedule::fixed(AUTHORITIES_INTERVAL, AUTHORITIES_INTERVAL);
                    reconcilers.add_fn("authorities", schedule, move || {
                        follow_authorities(auth.clone(), Arc::clone(&shown))
                    });
                    tasks.spawn(
                        "server certificate",
                        Arc::clone(&keys.identity).run(tasks.token().clone()),
                    );
                }
            }
            Self::Joined { member, controller, .. } => {
                let port = context.address.map_or(0, |address| address.port());
                let report = report_of(port, &config.join.advertise, &config.join.labels);
                let (member, controller) = (Arc::clone(member), Arc::clone(controller));
                let schedule = Schedule::fixed(config.join.report_interval.0, RETRY_INTERVAL);
                let stop = tasks.token().clone();
                let following =
                    follow_blocked(Arc::clone(&member), Arc::clone(&controller), stop.clone());
                tasks.spawn("blocked machines", following);
                reconcilers.add_fn("membership", schedule, move || {
                    let (member, controller) = (Arc::clone(&member), Arc::clone(&controller));
                    let (report, stop) = (report.clone(), stop.clone());
                    // A controller that does not answer must not hold up the end.
                    async move {
                        let round = stay_in_touch(member, controller, report);
                        stop.run_until_cancelled(round).await.unwrap_or(Ok(()))
                    }
                });
            }
            Self::Bare => {}
        }
    }

    /// Returns what the ready file says, once everything answers.
    pub(super) async fn ready(
        &self,
        config: &Config,
        context: &Context,
        sockets: Sockets,
    ) -> anyhow::Result<Ready> {
        if let Some(address) = context.address {
            ready::answers(address, self.speak(config)?).await?;
        }
        for path in sockets.values() {
            ready::socket_answers(path).await?;
        }
        let endpoint = match context.address {
            Some(_) => {
                let scheme = if context.server_tls.is_some() { "https" } else { "http" };
                Some(format!("{scheme}://{}", context.local_address()?))
            }
            None => None,
        };
        let admin = matches!(self, Self::Own(_)).then(|| Admin {
            username: selvage_auth::FIRST_USER.into(),
            password_file: Some(identity::password_file(config)).filter(|path| path.exists()),
        });
        let ca = match self {
            Self::Joined { member, .. } => Some(member.ca_path()),
            _ => self.keys().map(|keys| keys.authorities.signer().path().to_owned()),
        };
        let addresses = context.announced().into_iter().collect();
        Ok(Ready { endpoint, ca, admin, sockets, addresses })
    }

    /// Returns the protocol by which to ask the port whether it answers.
    fn speak(&self, config: &Config) -> anyhow::Result<ListenerProtocol> {
        match self {
            // Under which of its names it listens, the certificate need not say.
            Self::Joined { .. } => Ok(ListenerProtocol::Connect),
            // A certificate of the operator's own has names we do not know.
            Self::Own(_) if config.tls.certificate.is_some() => Ok(ListenerProtocol::Connect),
            _ => match self.keys() {
                Some(keys) => ListenerProtocol::tls(&keys.authorities.pem()),
                None => Ok(ListenerProtocol::Plain),
            },
        }
    }

    /// Tells the person who started the daemon what to do next.
    pub(super) fn greet(&self, config: &Config, ready: &Ready, process: &Process) {
        match self {
            Self::Own(own) => greeting::own(config, ready, process, own.first.as_ref()),
            Self::Joined { kind, member, .. } => greeting::joined(ready, member, *kind),
            Self::Bare => greeting::bare(ready),
        }
    }

    /// Reads again what may have changed on disk.
    pub(super) fn reload(&self) {
        if let Some(Err(error)) = self.keys().map(|keys| keys.identity.refresh()) {
            tracing::warn!(%error, "the server certificate was not reloaded, the old one stays");
        }
    }

    /// Closes what is open when all tasks have ended.
    pub(super) async fn close(&self) -> anyhow::Result<()> {
        match self {
            Self::Own(own) => own.store.close().await.context("closing the store"),
            _ => Ok(()),
        }
    }
}

/// Removes what has expired.
async fn sweep(auth: Auth) -> Result<(), Failure> {
    let swept = auth.sweep().await;
    swept.map(|_| ()).map_err(|error| Failure::new(error.code(), error.to_string()))
}

/// Has the authorities of the region's stage, and shows a certificate of the one
/// that signs.
async fn follow_authorities(auth: Auth, shown: Arc<ServerIdentity>) -> Result<(), Failure> {
    let followed = auth.follow_authorities().await;
    followed.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let refreshed = shown.refresh();
    refreshed.map(|_| ()).map_err(|error| Failure::new(error.code(), error.to_string()))
}

/// Renews the certificate if that is due, and reports to the controller.
async fn stay_in_touch(
    member: Arc<Member>,
    controller: Arc<dyn Controller>,
    report: ReportRequest,
) -> Result<(), Failure> {
    let done = member.stay_in_touch(controller.as_ref(), &report).await;
    done.map_err(|error| Failure::new(error.code(), error.to_string()))
}

/// Follows the controller's list of blocked machines, and again when the
/// connection has ended. That a controller is away is what `stay_in_touch` reports.
async fn follow_blocked(
    member: Arc<Member>,
    controller: Arc<dyn Controller>,
    stop: CancellationToken,
) {
    let following = async {
        loop {
            let pause = match member.follow_blocked(controller.as_ref()).await {
                Ok(()) => FOLLOW_INTERVAL,
                Err(error) => {
                    tracing::debug!(%error, "blocked machines are learned from reports");
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    let _stopped: Option<std::convert::Infallible> = stop.run_until_cancelled(following).await;
}

/// Watches the store's health.
fn watch_store(reconcilers: &Reconcilers, store: SharedStore) -> Readiness {
    let (sender, receiver) = watch::channel(Ok(()));
    let sender = Arc::new(sender);
    let schedule = Schedule::fixed(STORE_CHECK_INTERVAL, STORE_CHECK_INTERVAL);
    reconcilers.add_fn("store health", schedule, move || {
        let (store, sender) = (Arc::clone(&store), Arc::clone(&sender));
        async move {
            let health = check_store(&store).await.map_err(|why| format!("store: {why}"));
            sender.send_if_modified(|known| std::mem::replace(known, health.clone()) != health);
            health.map_err(|why| Failure::new(Code::Unavailable, why))
        }
    });
    receiver
}

async fn check_store(store: &SharedStore) -> Result<(), String> {
    // The revision is one that a majority of an etcd agrees on; the status any
    // member tells that is up.
    let asked = async {
        store.revision().await?;
        store.status().await
    };
    match tokio::time::timeout(STORE_CHECK_TIMEOUT, asked).await {
        Ok(Ok(status)) => status.failure.map_or(Ok(()), Err),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {STORE_CHECK_TIMEOUT:?}")),
    }
}
