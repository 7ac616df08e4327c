//! The section `[controller]` of the configuration.

use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

use crate::{Compat, Settings};

/// Options of the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Last part of every name that is given to apps and clusters.
    pub root_domain: String,
    /// Registry of images whose path an app does not name.
    pub registry: String,
    /// `host:port` where other controllers reach this one. Empty: the address
    /// it listens on.
    pub external_address: String,
    /// Refuse instances that do not fit into their cloudlet.
    pub enforce_resources: bool,
    /// Apps need their developer, cloudlets their operator. Where not given: `true`
    /// in `selvage up`, `false` in a controller by itself.
    pub strict: Option<bool>,
    /// Refusals that clients are answered with: empty, or `edge-cloud` for those of
    /// that program, which changes no flavor and no cluster definition.
    pub compat: Compat,
    /// Time within which an agent that has silently gone, as by a cut cable,
    /// is noticed; its cloudlet is offline then.
    pub agent_timeout: Duration,
    /// Longest time a cloudlet may take to create an instance.
    pub create_timeout: Duration,
    /// Longest time it may take to update one.
    pub update_timeout: Duration,
    /// Longest time it may take to delete one.
    pub delete_timeout: Duration,
    /// Hosts from which manifests and configs may be fetched, as name, name:port
    /// or name:* (without a port 80 and 443); empty: any with a public address.
    pub fetch_hosts: Vec<String>,
    /// A database that all samples are sent to besides.
    pub influx: InfluxOptions,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            root_domain: settings.root_domain,
            registry: settings.registry,
            external_address: String::new(),
            enforce_resources: settings.enforce_resources,
            strict: None,
            compat: settings.compat,
            agent_timeout: Duration(settings.timeouts.agent),
            create_timeout: Duration(settings.timeouts.create),
            update_timeout: Duration(settings.timeouts.update),
            delete_timeout: Duration(settings.timeouts.delete),
            fetch_hosts: settings.fetch.allowed_hosts,
            influx: InfluxOptions::default(),
        }
    }
}

impl Options {
    /// Is strict where nothing else was said, as a whole system in one process is.
    pub fn strict_by_default(&mut self) {
        self.strict.get_or_insert(true);
    }
}

/// A database that takes InfluxDB's line protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InfluxOptions {
    /// Such as `http://127.0.0.1:8086`. Empty: none.
    pub url: String,
    /// Made if it is not there.
    pub database: String,
    /// User there; otherwise the environment's INFLUX_USERNAME.
    pub user: String,
    /// File with the user's password; otherwise the environment's
    /// INFLUX_PASSWORD.
    pub password_file: Option<SecretFile>,
    /// File with a token instead of both; otherwise the environment's
    /// INFLUX_TOKEN.
    pub token_file: Option<SecretFile>,
}

impl Default for InfluxOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            database: "metrics".into(),
            user: String::new(),
            password_file: None,
            token_file: None,
        }
    }
}
