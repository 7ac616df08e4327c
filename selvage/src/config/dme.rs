//! The match engine.

use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

/// The match engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Dme {
    /// Controllers that it asks, `host:port` or `http://host:port`, where they
    /// are not in this process and it has not joined one.
    pub(crate) controllers: Vec<String>,
    /// Operator and name of the cloudlet that it runs on, for its samples.
    pub(crate) operator: String,
    pub(crate) cloudlet: String,
    /// How long a device may use the cookie it gets when it registers.
    pub(crate) cookie_lifetime: Duration,
    /// How long a key signs cookies before a new one does.
    pub(crate) key_rotation: Duration,
    /// How often it looks for new keys.
    pub(crate) key_refresh: Duration,
    /// How often it sends what it counted, if that changed.
    pub(crate) stats_interval: Duration,
    /// Where devices get tokens for the location API.
    pub(crate) token_server: String,
    /// An API of the carrier that checks where devices are. Empty: the
    /// distance to the nearest instance does.
    pub(crate) location_api: String,
    /// Who we are at that API; otherwise the environment's LOCAPI_USER.
    pub(crate) location_user: String,
    /// File with the password there; otherwise the environment's
    /// LOCAPI_PASSWD.
    pub(crate) location_password_file: Option<SecretFile>,
    /// How long that API may take.
    pub(crate) location_timeout: Duration,
    /// Apps, as `developer:app`, that may find instances of others.
    pub(crate) platform_apps: Vec<String>,
    /// Not ready when no controller was in touch for so long; 0: always ready
    /// once one was.
    pub(crate) max_staleness: Duration,
}

impl Default for Dme {
    fn default() -> Self {
        let settings = selvage_dme::Settings::default();
        let policy = selvage_dme::keys::Policy::default();
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
