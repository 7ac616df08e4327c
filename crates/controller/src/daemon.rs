//! The controller as a part of a daemon.

use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_kit::{config::SecretFile, identity::Secret, tasks::Tasks};
use selvage_part::{Context, Mount, OpenPart, Part, Result};
use selvage_samples::{Influx, InfluxLogin};

use crate::{
    Dependencies, EdgeController, FetchPolicy, Options, Settings, Timeouts, WEB_SOCKET,
    options::InfluxOptions, registry::Encrypted,
};

/// The part `controller`.
pub struct ControllerPart;

#[async_trait]
impl Part for ControllerPart {
    const NAME: &'static str = "controller";
    type Options = Options;

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let mut dependencies = Dependencies::default();
        if let Some(tls) = &context.controller_tls {
            dependencies.peers = Arc::new(Encrypted(Arc::clone(tls)));
        }
        let settings = settings(context, options)?;
        let opened = EdgeController::open(context.store()?, settings, dependencies).await;
        let controller = opened.context("controller")?;
        Ok(Some(Box::new(Opened { controller, context: Arc::clone(context) })))
    }
}

struct Opened {
    controller: EdgeController,
    context: Arc<Context>,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        self.controller.add_to(mount.services());
        self.controller.watch(mount.metrics());
        mount.operations(&self.controller.controller().engine);
        mount.web_socket(WEB_SOCKET, self.controller.controller().shell_page());
    }

    async fn spawn(self: Box<Self>, _: &Tasks) -> Result<()> {
        self.controller.spawn_among(&self.context.reconcilers);
        Ok(())
    }
}

fn settings(context: &Context, options: &Options) -> Result<Settings> {
    let defaults = Settings::default();
    let listens = context.address.map(|address| address.to_string()).unwrap_or_default();
    Ok(Settings {
        root_domain: options.root_domain.clone(),
        registry: options.registry.clone(),
        host: context.host.clone(),
        external_address: match options.external_address.as_str() {
            "" => listens,
            external => external.to_owned(),
        },
        enforce_resources: options.enforce_resources,
        strict: options.strict.unwrap_or(defaults.strict),
        compat: options.compat,
        timeouts: Timeouts {
            agent: options.agent_timeout.0,
            create: options.create_timeout.0,
            update: options.update_timeout.0,
            delete: options.delete_timeout.0,
            ..defaults.timeouts
        },
        fetch: FetchPolicy { allowed_hosts: options.fetch_hosts.clone(), ..defaults.fetch },
        samples_folder: Some(context.data.join("samples")),
        influx: influx(&options.influx)?,
        ..defaults
    })
}

/// The database that samples go to; who we are there comes from files or from
/// the environment.
fn influx(options: &InfluxOptions) -> Result<Option<Influx>> {
    if options.url.is_empty() {
        return Ok(None);
    }
    let of_environment = |name: &str| std::env::var(name).unwrap_or_default();
    let secret = |file: &Option<SecretFile>, key: &'static str, variable: &str| match file {
        Some(file) => Ok(Secret::new(file.read().context(key)?.expose().trim())),
        None => anyhow::Ok(Secret::new(of_environment(variable))),
    };
    let token = secret(&options.token_file, "controller.influx.token_file", "INFLUX_TOKEN")?;
    let user = match options.user.as_str() {
        "" => of_environment("INFLUX_USERNAME"),
        user => user.to_owned(),
    };
    let login = if !token.expose().is_empty() {
        InfluxLogin::Token(token)
    } else if user.is_empty() {
        InfluxLogin::Nobody
    } else {
        let key = "controller.influx.password_file";
        let password = secret(&options.password_file, key, "INFLUX_PASSWORD")?;
        InfluxLogin::Password { user, password }
    };
    let (url, database) = (options.url.clone(), options.database.clone());
    Ok(Some(Influx { url, database, login }))
}
