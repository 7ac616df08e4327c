//! Opens the controller.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use selvage_controller::{
    EdgeController, FetchPolicy, Influx, InfluxLogin, Settings, Surroundings, Timeouts,
    registry::PeerConnector,
};
use selvage_kit::{
    config::SecretFile,
    identity::{Machine, Secret},
};
use selvage_store::SharedStore;

use super::Keys;
use crate::{config::Config, peers::Peers};

/// The controller part.
pub(crate) struct ControllerPart {
    pub(crate) controller: EdgeController,
    pub(crate) peers: Option<Arc<Peers>>,
}

/// Opens the controller on the store. `address` is where this process listens.
pub(crate) async fn controller(
    config: &Config,
    store: SharedStore,
    keys: Option<&Keys>,
    address: SocketAddr,
) -> anyhow::Result<ControllerPart> {
    let peers = match keys {
        Some(keys) => {
            Some(Arc::new(Peers::open(&config.data, Arc::clone(&keys.ca), Machine::Controller)?))
        }
        None => None,
    };
    let mut surroundings = Surroundings::default();
    if let Some(peers) = &peers {
        surroundings.peers = Arc::clone(peers) as Arc<dyn PeerConnector>;
    }
    let influx = influx(config)?;
    let settings = Settings { influx, ..controller_settings(config, address) };
    let opened = EdgeController::open(store, settings, surroundings).await;
    Ok(ControllerPart { controller: opened.context("controller")?, peers })
}

/// The database that samples go to; who we are there comes from files or from
/// the environment.
fn influx(config: &Config) -> anyhow::Result<Option<Influx>> {
    let given = &config.controller.influx;
    if given.url.is_empty() {
        return Ok(None);
    }
    let of_environment = |name: &str| std::env::var(name).unwrap_or_default();
    let secret = |file: &Option<SecretFile>, key: &'static str, variable: &str| match file {
        Some(file) => Ok(Secret::new(file.read().context(key)?.expose().trim())),
        None => anyhow::Ok(Secret::new(of_environment(variable))),
    };
    let token = secret(&given.token_file, "controller.influx.token_file", "INFLUX_TOKEN")?;
    let user = match given.user.as_str() {
        "" => of_environment("INFLUX_USERNAME"),
        user => user.to_owned(),
    };
    let login = if !token.expose().is_empty() {
        InfluxLogin::Token(token)
    } else if user.is_empty() {
        InfluxLogin::Nobody
    } else {
        let key = "controller.influx.password_file";
        let password = secret(&given.password_file, key, "INFLUX_PASSWORD")?;
        InfluxLogin::Password { user, password }
    };
    let (url, database) = (given.url.clone(), given.database.clone());
    Ok(Some(Influx { url, database, login }))
}

fn controller_settings(config: &Config, address: SocketAddr) -> Settings {
    let given = &config.controller;
    let defaults = Settings::default();
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    Settings {
        root_domain: given.root_domain.clone(),
        registry: given.registry.clone(),
        host: host.unwrap_or(defaults.host),
        external_address: match given.external_address.as_str() {
            "" => address.to_string(),
            external => external.to_owned(),
        },
        enforce_resources: given.enforce_resources,
        strict: given.strict,
        timeouts: Timeouts {
            create: given.create_timeout.0,
            update: given.update_timeout.0,
            delete: given.delete_timeout.0,
            ..defaults.timeouts
        },
        fetch: FetchPolicy { allowed_hosts: given.fetch_hosts.clone(), ..defaults.fetch },
        samples_folder: Some(config.data.join("samples")),
        ..defaults
    }
}
