//! The match engine as a part of a daemon: beside its controller, with a
//! controller elsewhere that asks for no certificate, or joined to one. Where
//! the controller runs, its keys of cookies are handed to engines that joined.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use selvage_api::Code;
use selvage_kit::{dial, identity::Secret, tasks::Tasks};
use selvage_notify::ClientOptions;
use selvage_part::{Context, Kind, Mount, OpenPart, Part, Process, Result};

use crate::{
    Dme, LocationApi, Mirror, Options, Settings, Upstream,
    keys::{KeyService, KeySource, Policy, RemoteKeys, StoreKeys},
};

/// Longest wait for a controller at the start: it may be away, and devices can
/// be answered as soon as it is not.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// File in which a joined engine keeps what it was told.
const MIRROR: &str = "mirror.redb";

/// The part whose process has the keys in its store.
const CONTROLLER: &str = "controller";

/// The part `dme`.
pub struct DmePart;

#[async_trait]
impl Part for DmePart {
    const NAME: &'static str = "dme";
    const JOINS: Option<Kind> = Some(Kind::Dme);
    type Options = Options;

    fn validate(options: &Options) -> Result<()> {
        if options.stats_interval.0.is_zero() || options.key_refresh.0.is_zero() {
            bail!("dme.stats_interval and dme.key_refresh: 0 would never rest");
        }
        Ok(())
    }

    fn check(process: &Process, options: &Options) -> Result<()> {
        let has_controller =
            process.joined || process.runs(CONTROLLER) || !options.controllers.is_empty();
        if process.runs(Self::NAME) && !has_controller {
            bail!(
                "the match engine has no controller: join one with --controller HOST:PORT and a \
                 token, or name those that ask for no certificate in dme.controllers"
            );
        }
        Ok(())
    }

    fn is_needed(process: &Process) -> bool {
        process.runs(Self::NAME) || process.runs(CONTROLLER)
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let keys = match context.process.runs(CONTROLLER) {
            true => Some(store_keys(context, options)?),
            false => None,
        };
        let dme = match context.process.runs(Self::NAME) {
            true => Some(open_engine(context, options).await?),
            false => None,
        };
        Ok(Some(Box::new(Opened { keys, dme, context: Arc::clone(context) })))
    }
}

struct Opened {
    keys: Option<Arc<dyn KeySource>>,
    dme: Option<Dme>,
    context: Arc<Context>,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        if let Some(keys) = self.keys.take() {
            mount.services().add(KeyService::service(keys));
        }
        if let Some(dme) = &self.dme {
            dme.add_to(mount.services());
            dme.watch(mount.metrics());
            mount.ready(dme.ready());
        }
    }

    async fn spawn(self: Box<Self>, _: &Tasks) -> Result<()> {
        if let Some(dme) = self.dme {
            dme.spawn(&self.context.reconcilers);
            // Readiness depends on a controller elsewhere.
            let mut ready = dme.ready();
            if tokio::time::timeout(SYNC_TIMEOUT, ready.wait_for(Result::is_ok)).await.is_err() {
                tracing::warn!("the match engine has no controller yet");
            }
        }
        Ok(())
    }
}

/// The keys of cookies, where the store is.
fn store_keys(context: &Context, options: &Options) -> Result<Arc<dyn KeySource>> {
    let policy = Policy { rotate: options.key_rotation.0, lifetime: options.cookie_lifetime.0 };
    Ok(Arc::new(StoreKeys::new(context.store()?, policy, Arc::clone(&context.clock))))
}

async fn open_engine(context: &Context, options: &Options) -> Result<Dme> {
    let (name, upstream) = match &context.member {
        Some(member) => (member.name(), joined(context).await?),
        None => (context.host.as_str(), beside(context, options).await?),
    };
    let opened = Dme::open(settings(options, name)?, upstream, Arc::clone(&context.clock));
    opened.context("match engine")
}

/// Returns the upstream of an engine that has the store, and a controller in
/// this process or at a known address.
async fn beside(context: &Context, options: &Options) -> Result<Upstream> {
    let addresses = if context.process.runs(CONTROLLER) && options.controllers.is_empty() {
        let path = context.bind(DmePart::NAME).await?;
        vec![format!("unix:{}", path.display())]
    } else {
        options.controllers.clone()
    };
    let controllers = ClientOptions { addresses, ..ClientOptions::default() };
    Ok(Upstream { controllers, keys: store_keys(context, options)?, mirror: None })
}

async fn joined(context: &Context) -> Result<Upstream> {
    let member = context.member.as_ref().context("this engine has not joined a controller")?;
    let tls = context.controller_tls.clone();
    let keys = dial::channel(tls.clone(), &member.endpoints())?;
    let addresses = member.controllers();
    let controllers = ClientOptions { addresses, tls, ..ClientOptions::default() };
    let mirror = mirror(context, &member.region()).await?;
    Ok(Upstream { controllers, keys: Arc::new(RemoteKeys::new(keys)), mirror })
}

/// Mirror of the engine's last run. Without a disk to keep it on, it has to be
/// told.
async fn mirror(context: &Context, region: &str) -> Result<Option<Mirror>> {
    let path = context.data.join(Kind::Dme.directory()).join(MIRROR);
    match Mirror::open(&path, region).await {
        Ok(mirror) => Ok(Some(mirror)),
        Err(error) if error.code() == Code::FailedPrecondition => {
            Err(error).with_context(|| path.display().to_string())
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            tracing::warn!("{error:#}: without a mirror, a start without a controller has no data");
            Ok(None)
        }
    }
}

/// Settings of the engine that goes by this name.
fn settings(options: &Options, name: &str) -> Result<Settings> {
    Ok(Settings {
        name: name.to_owned(),
        operator: options.operator.clone(),
        cloudlet: options.cloudlet.clone(),
        cookie_lifetime: options.cookie_lifetime.0,
        key_refresh: options.key_refresh.0,
        stats_interval: options.stats_interval.0,
        token_server: options.token_server.clone(),
        location_api: location_api(options)?,
        platform_apps: options.platform_apps.clone(),
        max_staleness: options.max_staleness.0,
    })
}

fn location_api(options: &Options) -> Result<Option<LocationApi>> {
    if options.location_api.is_empty() {
        return Ok(None);
    }
    let of_environment = |name: &str| std::env::var(name).unwrap_or_default();
    let user = match options.location_user.as_str() {
        "" => of_environment("LOCAPI_USER"),
        user => user.to_owned(),
    };
    let password = match &options.location_password_file {
        Some(file) => {
            let read = file.read().context("dme.location_password_file")?;
            Secret::new(read.expose().trim())
        }
        None => Secret::new(of_environment("LOCAPI_PASSWD")),
    };
    let timeout = options.location_timeout.0;
    Ok(Some(LocationApi { url: options.location_api.clone(), user, password, timeout }))
}
