//! The match engine: in the process of a controller, with a controller
//! elsewhere, or joined to one.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use selvage_api::Code;
use selvage_dme::{
    Dme, LocationApi, Mirror, Settings, Upstream,
    keys::{KeyService, KeySource, Policy, RemoteKeys, StoreKeys},
};
use selvage_kit::{
    clock::SystemClock,
    identity::Secret,
    serve::{Server, Services},
    tasks::Tasks,
    telemetry::{self, Metrics},
};
use selvage_node::member::{Kind, Member};
use selvage_notify::ClientOptions;
use selvage_store::SharedStore;

use crate::{
    agent,
    args::{Join, Serve},
    assemble,
    config::Config,
    part::Part,
    peers,
    system::System,
    up,
};

/// How long a start waits for a controller: it may be away, and devices can be
/// answered as soon as it is not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a joined engine keeps what it was told.
const MIRROR: &str = "mirror.redb";

/// Runs the match engine alone.
pub(crate) async fn run(serve: &Serve, join: &Join, ca: Option<&Path>) -> ExitCode {
    let config = match agent::configured(serve, join, ca) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let ran = if agent::belongs(&config, Kind::Dme) {
        Box::pin(joined(&config, serve, join)).await
    } else {
        Box::pin(up::daemon(&config, serve, &[Part::Dme])).await
    };
    ran.unwrap_or_else(|error| up::fail(&error))
}

/// How the engine behaves that goes by this name.
fn settings(config: &Config, name: &str) -> anyhow::Result<Settings> {
    let given = &config.dme;
    Ok(Settings {
        name: name.to_owned(),
        operator: given.operator.clone(),
        cloudlet: given.cloudlet.clone(),
        cookie_lifetime: given.cookie_lifetime.0,
        key_refresh: given.key_refresh.0,
        stats_interval: given.stats_interval.0,
        token_server: given.token_server.clone(),
        location_api: location_api(config)?,
        platform_apps: given.platform_apps.clone(),
        max_staleness: given.max_staleness.0,
    })
}

fn location_api(config: &Config) -> anyhow::Result<Option<LocationApi>> {
    let given = &config.dme;
    if given.location_api.is_empty() {
        return Ok(None);
    }
    let of_environment = |name: &str| std::env::var(name).unwrap_or_default();
    let user = match given.location_user.as_str() {
        "" => of_environment("LOCAPI_USER"),
        user => user.to_owned(),
    };
    let password = match &given.location_password_file {
        Some(file) => {
            let read = file.read().context("dme.location_password_file")?;
            Secret::new(read.expose().trim())
        }
        None => Secret::new(of_environment("LOCAPI_PASSWD")),
    };
    let timeout = given.location_timeout.0;
    Ok(Some(LocationApi { url: given.location_api.clone(), user, password, timeout }))
}

/// The keys of cookies, where the store is.
fn kept_keys(config: &Config, store: SharedStore) -> Arc<dyn KeySource> {
    let policy =
        Policy { rotate: config.dme.key_rotation.0, lifetime: config.dme.cookie_lifetime.0 };
    Arc::new(StoreKeys::new(store, policy, Arc::new(SystemClock)))
}

/// Hands keys to engines that joined this process's controller.
pub(crate) fn serve_keys(config: &Config, store: SharedStore, services: &mut Services) {
    services.add(KeyService::service(kept_keys(config, store)));
}

/// Whether the engine's controller is the one of its own process.
pub(crate) fn is_beside(config: &Config, parts: &[Part]) -> bool {
    parts.contains(&Part::Dme)
        && parts.contains(&Part::Controller)
        && config.dme.controllers.is_empty()
}

/// Opens an engine that has the store, if it is among the parts.
pub(crate) fn open(
    config: &Config,
    parts: &[Part],
    store: SharedStore,
) -> anyhow::Result<Option<Dme>> {
    if !parts.contains(&Part::Dme) {
        return Ok(None);
    }
    let addresses = if is_beside(config, parts) {
        vec![format!("unix:{}", config.dme_socket().display())]
    } else {
        config.dme.controllers.clone()
    };
    if addresses.is_empty() {
        bail!(
            "the match engine has no controller: join one with --controller HOST:PORT and a \
             token, or name those that ask for no certificate in dme.controllers"
        );
    }
    let controllers = ClientOptions { addresses, ..ClientOptions::default() };
    let upstream = Upstream { controllers, keys: kept_keys(config, store), mirror: None };
    let settings = settings(config, &assemble::host_name())?;
    let opened = Dme::open(settings, upstream, Arc::new(SystemClock));
    Ok(Some(opened.context("match engine")?))
}

/// Waits a little until the engine knows what the controller does.
pub(crate) async fn settle(dme: &Dme) {
    let mut ready = dme.ready();
    if tokio::time::timeout(PATIENCE, ready.wait_for(Result::is_ok)).await.is_err() {
        tracing::warn!("the match engine has no controller yet");
    }
}

/// What the engine knew at its last start. Without a disk to keep it on, it
/// has to be told.
async fn mirror(config: &Config, member: &Member) -> anyhow::Result<Option<Mirror>> {
    let path = config.joined(Kind::Dme).join(MIRROR);
    match Mirror::open(&path, member.ca_pem()).await {
        Ok(mirror) => Ok(Some(mirror)),
        Err(error) if error.code() == Code::FailedPrecondition => {
            Err(error).with_context(|| path.display().to_string())
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            tracing::warn!("{error:#}: a start without a controller will know nothing");
            Ok(None)
        }
    }
}

async fn open_joined(config: &Config, member: &Member) -> anyhow::Result<Dme> {
    let tls = member.client_tls()?;
    let addresses = member.controllers();
    let keys = peers::channel(Arc::clone(&tls), &addresses)?;
    let controllers = ClientOptions { addresses, tls: Some(tls), ..ClientOptions::default() };
    let keys = Arc::new(RemoteKeys::new(keys));
    let upstream = Upstream { controllers, keys, mirror: mirror(config, member).await? };
    let opened = Dme::open(settings(config, member.name())?, upstream, Arc::new(SystemClock));
    opened.context("match engine")
}

async fn server(config: &Config, dme: &Dme, tasks: &Tasks) -> anyhow::Result<Server> {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    telemetry::install_panic_hook(&metrics);
    metrics.watch_tasks(tasks);
    dme.watch(&metrics);
    let mut services = Services::default();
    dme.add_to(&mut services);
    services.add(System::service(&[Part::Dme], None, false));
    let server = Server::new(services, metrics, assemble::limits(config)).await;
    let server = server.context("server")?.ready(dme.ready());
    Ok(server.origins(config.listen.origins.clone()))
}

/// Runs an engine that belongs to a controller until a signal comes.
async fn joined(config: &Config, serve: &Serve, join: &Join) -> anyhow::Result<ExitCode> {
    agent::belong(config, serve, join, Kind::Dme, async |member, tasks| {
        let dme = open_joined(config, member).await?;
        let server = server(config, &dme, tasks).await?;
        dme.spawn(tasks);
        settle(&dme).await;
        Ok(server)
    })
    .await
}
