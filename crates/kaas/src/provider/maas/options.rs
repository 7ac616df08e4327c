//! The section `[kaas.maas]` of the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use selvage_kit::{
    config::{Duration, SecretFile},
    dial::Endpoint,
};
use serde::{Deserialize, Serialize};

/// Packages that an agent needs to run members of a cluster, as Debian and Ubuntu name them.
const PACKAGES: [&str; 5] =
    ["containerd", "runc", "nftables", "iproute2", "containernetworking-plugins"];

/// Treatment of the disks of a machine that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Erase {
    /// As MaaS is set.
    #[default]
    Default,
    /// The beginning and the end are overwritten.
    Quick,
    /// By the disk's own command, where it has one.
    Secure,
    /// Everything is overwritten.
    Full,
}

/// Machines that serve as one instance type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceType {
    /// Tags that a machine has to have, all of them.
    pub tags: Vec<String>,
    /// Tags that it must not have.
    pub not_tags: Vec<String>,
    /// Fewest processors; 0: any number.
    pub cpu_count: u32,
    /// Least memory in MB; 0: any.
    pub memory: u64,
    /// Architecture, such as `amd64`. Empty: any.
    pub arch: String,
    /// Zone. Empty: `kaas.maas.zone`.
    pub zone: String,
    /// Resource pool. Empty: `kaas.maas.pool`.
    pub pool: String,
    /// Image. Empty: `kaas.maas.distro_series`.
    pub distro_series: String,
}

/// Machines of a MaaS.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaasOptions {
    /// Address of MaaS, such as `http://maas.example:5240/MAAS`.
    pub url: String,
    /// File with the API key, `consumer:token:secret`.
    pub api_key_file: Option<SecretFile>,
    /// Certificate of the CA that signed the certificate of MaaS, PEM.
    pub ca: Option<PathBuf>,
    /// Zone that machines are taken from. Empty: any.
    pub zone: String,
    /// Resource pool that machines are taken from. Empty: any.
    pub pool: String,
    /// Image that is deployed, such as `noble`. Empty: the default of MaaS.
    pub distro_series: String,
    /// Treatment of disks: `default` as MaaS is set, `quick`, `secure` or
    /// `full`.
    pub erase: Erase,
    /// `host:port` where machines reach this controller, or several with
    /// commas. Empty: `join.advertise`.
    pub controller: String,
    /// Address of the program that machines install as their agent.
    pub binary_url: String,
    /// SHA-256 of that program, hexadecimal.
    pub binary_sha256: String,
    /// Packages that machines install.
    pub packages: Vec<String>,
    /// Longest time that MaaS may take for an answer.
    pub timeout: Duration,
    /// Machines by instance type. A type that is not named here is a tag.
    pub types: BTreeMap<String, InstanceType>,
}

impl Default for MaasOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            api_key_file: None,
            ca: None,
            zone: String::new(),
            pool: String::new(),
            distro_series: String::new(),
            erase: Erase::default(),
            controller: String::new(),
            binary_url: String::new(),
            binary_sha256: String::new(),
            packages: PACKAGES.map(str::to_owned).to_vec(),
            timeout: Duration::from_secs(60),
            types: BTreeMap::new(),
        }
    }
}

impl MaasOptions {
    /// Finds what is missing or wrong, where machines are to come from MaaS.
    pub fn validate(&self) -> Result<(), String> {
        let web = |url: &str| {
            let url: Option<reqwest::Url> = url.parse().ok();
            url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        };
        if !web(&self.url) {
            return Err(format!("kaas.maas.url: {:?} is no address of a MaaS", self.url));
        }
        if self.api_key_file.is_none() {
            return Err("kaas.maas.api_key_file: needed".into());
        }
        if !web(&self.binary_url) {
            return Err(format!("kaas.maas.binary_url: {:?} is no URL", self.binary_url));
        }
        let hex = self.binary_sha256.chars().all(|c| c.is_ascii_hexdigit());
        if self.binary_sha256.len() != 64 || !hex {
            return Err("kaas.maas.binary_sha256: has to be 64 hexadecimal digits".into());
        }
        let address = |text: &str| Endpoint::parse(text, 0).is_some_and(|found| found.port != 0);
        let controllers = self.controller.split(',').filter(|text| !text.is_empty());
        if let Some(wrong) = controllers.map(str::trim).find(|text| !address(text)) {
            return Err(format!("kaas.maas.controller: {wrong:?} is not host:port"));
        }
        if self.timeout.0.is_zero() {
            return Err("kaas.maas.timeout: must not be 0".into());
        }
        Ok(())
    }

    /// Machines that serve as that type, empty for any.
    pub(super) fn instance_type(&self, name: &str) -> InstanceType {
        let mut found = match self.types.get(name) {
            Some(found) => found.clone(),
            None if name.is_empty() => InstanceType::default(),
            None => InstanceType { tags: vec![name.to_owned()], ..InstanceType::default() },
        };
        for (own, general) in [
            (&mut found.zone, &self.zone),
            (&mut found.pool, &self.pool),
            (&mut found.distro_series, &self.distro_series),
        ] {
            if own.is_empty() {
                own.clone_from(general);
            }
        }
        found
    }
}
