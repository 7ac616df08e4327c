//! Settings of a controller.

use std::path::PathBuf;
use std::time::Duration;

use selvage_samples::Influx;
use serde::{Deserialize, Serialize};

/// Server whose refusals clients expect, where they are not ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compat {
    #[default]
    #[serde(rename = "")]
    None,
    #[serde(rename = "edge-cloud")]
    EdgeCloud,
}

/// Settings of a controller. [`Settings::default`] is right for one controller
/// on an embedded store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Last part of every FQDN that is given out.
    pub root_domain: String,
    /// Registry of images whose path an App does not name.
    pub registry: String,
    /// Name of this host, for people.
    pub host: String,
    /// Address at which other controllers reach this one; also its name in the
    /// registry.
    pub external_address: String,
    /// Refuse instances that do not fit into their cloudlet.
    pub enforce_resources: bool,
    /// Apps need their Developer, Cloudlets their Operator.
    pub strict: bool,
    pub compat: Compat,
    pub timeouts: Timeouts,
    /// Longest silence for which other controllers take this one for alive.
    pub lease: Duration,
    pub fetch: FetchPolicy,
    /// Bring data of an older model up to date at start instead of refusing.
    pub auto_upgrade: bool,
    /// Limits of the samples that are kept: their number, memory and age.
    pub samples_kept: usize,
    pub samples_bytes: usize,
    pub samples_age: Duration,
    /// Folder in which they outlive the process.
    pub samples_folder: Option<PathBuf>,
    /// InfluxDB that samples are sent to besides.
    pub influx: Option<Influx>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            root_domain: "selvage.internal".into(),
            registry: "docker.mobiledgex.net".into(),
            host: "localhost".into(),
            external_address: "127.0.0.1:55001".into(),
            enforce_resources: true,
            strict: false,
            compat: Compat::None,
            timeouts: Timeouts::default(),
            lease: Duration::from_secs(20),
            fetch: FetchPolicy::default(),
            auto_upgrade: true,
            samples_kept: 1_000_000,
            samples_bytes: 128 << 20,
            samples_age: Duration::from_secs(24 * 3600),
            samples_folder: None,
            influx: None,
        }
    }
}

impl Settings {
    /// Name with which this controller signs the CloudletInfos it receives.
    pub fn controller_id(&self) -> String {
        format!("{}@{}", self.host, self.external_address)
    }
}

/// Timeouts of agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence after which an agent is taken for gone.
    pub agent: Duration,
    pub create: Duration,
    pub update: Duration,
    pub delete: Duration,
    /// Commands in containers and in virtual machines.
    pub exec_container: Duration,
    pub exec_vm: Duration,
    /// Another controller's answer to a question of ours.
    pub peer: Duration,
    /// A cloudlet whose agent is gone, before callers are told that nobody
    /// works on what they wait for. One that was only cut off is back by then.
    pub away: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            agent: Duration::from_secs(10),
            create: Duration::from_secs(30 * 60),
            update: Duration::from_secs(20 * 60),
            delete: Duration::from_secs(20 * 60),
            exec_container: Duration::from_secs(6),
            exec_vm: Duration::from_secs(60),
            peer: Duration::from_secs(3),
            away: Duration::from_secs(60),
        }
    }
}

impl Timeouts {
    /// For simulated agents.
    pub fn short() -> Self {
        Self {
            create: Duration::from_secs(3),
            update: Duration::from_secs(2),
            delete: Duration::from_secs(2),
            ..Self::default()
        }
    }
}

/// From where manifests and configs may be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPolicy {
    /// Hosts, as `name` or `name:port`; `*.name` means all below it. Only
    /// these are asked. Empty means any host whose addresses are all public.
    pub allowed_hosts: Vec<String>,
    /// For the whole answer.
    pub timeout: Duration,
    pub max_bytes: usize,
}

impl Default for FetchPolicy {
    fn default() -> Self {
        Self { allowed_hosts: Vec::new(), timeout: Duration::from_secs(10), max_bytes: 512 * 1024 }
    }
}
