//! The controller part.

use selvage_controller::Settings;
use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

/// The controller part.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Controller {
    /// Last part of every name that is given to apps and clusters.
    pub(crate) root_domain: String,
    /// Where images lie whose path an app does not name.
    pub(crate) registry: String,
    /// `host:port` where other controllers reach this one. Empty: the address
    /// it listens on.
    pub(crate) external_address: String,
    /// Refuse instances that do not fit into their cloudlet.
    pub(crate) enforce_resources: bool,
    /// Apps need their developer, cloudlets their operator.
    pub(crate) strict: bool,
    /// How long a cloudlet may take to create, update or delete an instance.
    pub(crate) create_timeout: Duration,
    pub(crate) update_timeout: Duration,
    pub(crate) delete_timeout: Duration,
    /// Hosts from which manifests and configs may be fetched; empty: any with
    /// a public address.
    pub(crate) fetch_hosts: Vec<String>,
    /// A database that all samples are sent to besides.
    pub(crate) influx: Influx,
}

impl Default for Controller {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            root_domain: settings.root_domain,
            registry: settings.registry,
            external_address: String::new(),
            enforce_resources: settings.enforce_resources,
            strict: settings.strict,
            create_timeout: Duration(settings.timeouts.create),
            update_timeout: Duration(settings.timeouts.update),
            delete_timeout: Duration(settings.timeouts.delete),
            fetch_hosts: settings.fetch.allowed_hosts,
            influx: Influx::default(),
        }
    }
}

/// A database that takes InfluxDB's line protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Influx {
    /// Such as `http://127.0.0.1:8086`. Empty: none.
    pub(crate) url: String,
    /// Made if it is not there.
    pub(crate) database: String,
    /// Who we are there; otherwise the environment's INFLUX_USERNAME.
    pub(crate) user: String,
    /// File with the user's password; otherwise the environment's
    /// INFLUX_PASSWORD.
    pub(crate) password_file: Option<SecretFile>,
    /// File with a token instead of both; otherwise the environment's
    /// INFLUX_TOKEN.
    pub(crate) token_file: Option<SecretFile>,
}

impl Default for Influx {
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
