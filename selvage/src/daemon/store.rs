//! Opens the store that the configuration names.

use std::path::Path;

use anyhow::Context;
use selvage_store::{
    SharedStore,
    embedded::{self, Embedded},
    etcd::{Credentials, Etcd, EtcdOptions, TlsOptions},
};

use super::process::data_dir;
use crate::config::{Config, StoreKind};

/// Name of the embedded store's file in the data directory.
pub(crate) const FILE: &str = "store.redb";

/// Opens the store that the configuration names.
pub(crate) async fn open(config: &Config) -> anyhow::Result<SharedStore> {
    match config.store.kind {
        StoreKind::Embedded => {
            data_dir(config)?;
            let path = config.data.join(FILE);
            warn_if_lost(config, &path);
            Ok(Embedded::open(&path, embedded::Options::default()).await.context("store")?)
        }
        StoreKind::Etcd => {
            let options = etcd_options(config)?;
            let endpoints = options.endpoints.join(", ");
            Ok(Etcd::connect(options).await.with_context(|| format!("etcd at {endpoints}"))?)
        }
    }
}

/// Keys without a store mean that the store was lost, or that the keys were
/// put there for a new one. Only its owner can tell.
fn warn_if_lost(config: &Config, store: &Path) {
    let empty = store.metadata().map_or(true, |metadata| metadata.len() == 0);
    if empty && config.data.join("pki").exists() {
        tracing::warn!(
            store = %store.display(),
            "there are keys but no store: starting with an empty one"
        );
    }
}

fn etcd_options(config: &Config) -> anyhow::Result<EtcdOptions> {
    let store = &config.store;
    let credentials = match (&store.username, &store.password_file) {
        (username, _) if username.is_empty() => None,
        (username, Some(file)) => {
            let password = file.read().context("store.password_file")?;
            let password = password.expose().to_owned();
            Some(Credentials { user: username.clone(), password })
        }
        (_, None) => None,
    };
    let secure = store.ca.is_some() || store.certificate.is_some();
    let tls = secure.then(|| TlsOptions {
        ca: store.ca.clone(),
        cert: store.certificate.clone(),
        key: store.key.clone(),
    });
    Ok(EtcdOptions {
        endpoints: store.endpoints.clone(),
        namespace: store.namespace.clone(),
        tls,
        credentials,
        ..EtcdOptions::default()
    })
}
