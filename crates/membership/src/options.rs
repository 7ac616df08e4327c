//! The section `[join]` of the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

/// Options of joining a controller, and of being listed there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// `host:port` of the controller to join, or of several of one region,
    /// with commas: the next is tried when one is away. Empty: those it joined
    /// before, or none.
    pub controller: String,
    /// File with the join token; not needed again afterwards.
    pub token_file: Option<SecretFile>,
    /// Certificate of the controller's CA, PEM.
    pub ca: Option<PathBuf>,
    /// SHA-256 fingerprint of the controller's CA, if the token does not end
    /// with it.
    pub ca_sha256: String,
    /// `host:port` where others reach this process. Empty: its port, at the
    /// address from which it calls the controller.
    pub advertise: String,
    /// Labels by which this machine can be chosen, such as `rack = "3"`.
    pub labels: BTreeMap<String, String>,
    /// Interval between two reports to the controller.
    pub report_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller: String::new(),
            token_file: None,
            ca: None,
            ca_sha256: String::new(),
            advertise: String::new(),
            labels: BTreeMap::new(),
            report_interval: Duration::from_secs(15),
        }
    }
}
