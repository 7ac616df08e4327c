//! The section `[dme]` of the configuration.

use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

use crate::{Settings, keys::Policy};

/// Options of the match engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Controllers that it asks, `host:port` or `http://host:port`, where they
    /// are not in this process and it has not joined one.
    pub controllers: Vec<String>,
    /// Operator of the cloudlet that it runs on, for its samples.
    pub operator: String,
    /// Name of that cloudlet.
    pub cloudlet: String,
    /// Lifetime of the cookie that a device gets when it registers.
    pub cookie_lifetime: Duration,
    /// Time for which a key signs cookies before a new one does.
    pub key_rotation: Duration,
    /// Interval of the search for new keys.
    pub key_refresh: Duration,
    /// Interval at which it sends what it counted, if that changed.
    pub stats_interval: Duration,
    /// Server that gives devices tokens for the location API.
    pub token_server: String,
    /// An API of the carrier that checks where devices are. Empty: the
    /// distance to the nearest instance does.
    pub location_api: String,
    /// User at that API; otherwise the environment's LOCAPI_USER.
    pub location_user: String,
    /// File with the password there; otherwise the environment's
    /// LOCAPI_PASSWD.
    pub location_password_file: Option<SecretFile>,
    /// Timeout of that API.
    pub location_timeout: Duration,
    /// Apps, as `developer:app`, that may find instances of others.
    pub platform_apps: Vec<String>,
    /// Time without a controller after which the engine is not ready; 0: always
    /// ready once it was connected.
    pub max_staleness: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        let policy = Policy::default();
        Self {
            controllers: Vec::new(),
            operator: settings.operator,
            cloudlet: settings.cloudlet,
            cookie_lifetime: Duration(settings.cookie_lifetime),
            key_rotation: Duration(policy.rotate),
            key_refresh: Duration(settings.key_refresh),
            stats_interval: Duration(settings.stats_interval),
            token_server: settings.token_server,
            location_api: String::new(),
            location_user: String::new(),
            location_password_file: None,
            location_timeout: Duration(std::time::Duration::from_secs(5)),
            platform_apps: settings.platform_apps,
            max_staleness: Duration(settings.max_staleness),
        }
    }
}
