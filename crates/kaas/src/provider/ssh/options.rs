//! The section `[kaas.ssh]` of the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use russh::keys::{Algorithm, HashAlg, PublicKey, ssh_key::Fingerprint};
use selvage_kit::{config::Duration, dial::Endpoint};
use serde::{Deserialize, Serialize};

/// Port of sshd.
const PORT: u16 = 22;

/// A machine of the inventory. What is empty here is as in `[kaas.ssh]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SshMachine {
    /// `host` or `host:port` of its sshd.
    pub address: String,
    /// Its host keys, at least one: `SHA256:` fingerprints, or lines as in
    /// `known_hosts`. A machine that shows another key is refused.
    pub host_keys: Vec<String>,
    /// User to log in as.
    pub user: String,
    /// Private key to log in with.
    pub key_file: Option<PathBuf>,
    /// Type that pools ask for. Empty: `standard`.
    pub instance_type: String,
    /// Directory of the agent on the machine.
    pub directory: String,
    /// Settings of its agent, as in the agent's own configuration file.
    pub agent: toml::Table,
}

/// Machines that are reached by SSH.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SshOptions {
    /// Machines by name.
    pub machines: BTreeMap<String, SshMachine>,
    /// User to log in as: `root`, or one that may `sudo` without a password.
    pub user: String,
    /// Private key to log in with, Ed25519 or ECDSA in OpenSSH's format, in a
    /// file of mode 0600.
    pub key_file: Option<PathBuf>,
    /// Directory of the agent on machines; removed when one is given back.
    pub directory: String,
    /// `host:port` where machines reach this controller, or several with
    /// commas. Empty: `join.advertise`.
    pub controller: String,
    /// Longest time that a machine may take for an answer.
    pub timeout: Duration,
    /// Settings of all agents, as in an agent's own configuration file.
    pub agent: toml::Table,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self {
            machines: BTreeMap::new(),
            user: "root".into(),
            key_file: None,
            directory: "/var/lib/selvage-kaas".into(),
            controller: String::new(),
            timeout: Duration::from_secs(60),
            agent: toml::Table::new(),
        }
    }
}

impl SshOptions {
    /// Finds what is missing or wrong, where machines are to come by SSH.
    pub fn validate(&self) -> Result<(), String> {
        if self.machines.is_empty() {
            return Err("kaas.ssh.machines: needs at least one machine".into());
        }
        let endpoint = |text: &str| Endpoint::parse(text, 0).is_some_and(|found| found.port != 0);
        let controllers = self.controller.split(',').filter(|text| !text.is_empty());
        if let Some(wrong) = controllers.map(str::trim).find(|text| !endpoint(text)) {
            return Err(format!("kaas.ssh.controller: {wrong:?} is not host:port"));
        }
        if self.timeout.0.is_zero() {
            return Err("kaas.ssh.timeout: must not be 0".into());
        }
        let mut addresses = BTreeMap::new();
        for name in self.machines.keys() {
            let target = self.target(name)?;
            let twice = addresses.insert((target.endpoint.to_string(), target.directory), name);
            if let Some(other) = twice {
                return Err(format!(
                    "kaas.ssh.machines.{name}.address: is that of machine {other:?} too"
                ));
            }
        }
        Ok(())
    }

    /// Everything that is known of a machine.
    pub(super) fn target(&self, name: &str) -> Result<Target, String> {
        let field = |field: &str| format!("kaas.ssh.machines.{name}.{field}");
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(is_name) {
            return Err(format!(
                "kaas.ssh.machines: {name:?} is no name: up to 40 of a-z, 0-9 and -"
            ));
        }
        let Some(machine) = self.machines.get(name) else {
            return Err(format!("kaas.ssh.machines: has no machine {name:?}"));
        };
        let endpoint = Endpoint::parse(&machine.address, PORT).ok_or_else(|| {
            format!("{}: {:?} is not host:port", field("address"), machine.address)
        })?;
        let keys = machine.host_keys.iter().map(|text| HostKey::parse(text));
        let host_keys = keys
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("{}: {error}", field("host_keys")))?;
        if host_keys.is_empty() {
            return Err(format!(
                "{}: needed; `ssh-keyscan -t ed25519 {}` shows it, compare it with the machine's \
                 own",
                field("host_keys"),
                endpoint.host
            ));
        }
        let or = |own: &str, general: &str| match own {
            "" => general.to_owned(),
            own => own.to_owned(),
        };
        let directory = or(&machine.directory, &self.directory);
        check_directory(&directory).map_err(|error| format!("{}: {error}", field("directory")))?;
        let key_file = machine.key_file.clone().or_else(|| self.key_file.clone());
        let user = or(&machine.user, &self.user);
        let is_user = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !user.chars().all(is_user) || user.is_empty() {
            return Err(format!("{}: {user:?} is no user", field("user")));
        }
        let mut agent = self.agent.clone();
        merge(&mut agent, &machine.agent);
        Ok(Target {
            name: name.to_owned(),
            endpoint,
            host_keys,
            user,
            key_file: key_file.ok_or_else(|| "kaas.ssh.key_file: needed".to_owned())?,
            directory,
            agent,
            timeout: self.timeout.0,
        })
    }

    /// Type of a machine of the inventory.
    pub(super) fn instance_type(machine: &SshMachine) -> &str {
        match machine.instance_type.as_str() {
            "" => super::STANDARD,
            given => given,
        }
    }
}

/// A machine with all that it takes to reach it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) endpoint: Endpoint,
    pub(super) host_keys: Vec<HostKey>,
    pub(super) user: String,
    pub(super) key_file: PathBuf,
    pub(super) directory: String,
    pub(super) agent: toml::Table,
    pub(super) timeout: std::time::Duration,
}

/// The path becomes a word of a shell and is removed as a whole in the end.
fn check_directory(path: &str) -> Result<(), String> {
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let named = parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'));
    if path.starts_with('/') && parts.len() >= 2 && plain && named {
        return Ok(());
    }
    Err(format!(
        "{path:?} is no plain path of a directory of its own, such as /var/lib/selvage-kaas"
    ))
}

/// Lays a table over another.
fn merge(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => merge(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

/// A key that a machine may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostKey {
    pub(super) fingerprint: Fingerprint,
    /// Algorithm of the key, where it is known.
    pub(super) algorithm: Option<Algorithm>,
}

impl HostKey {
    /// Reads `SHA256:…`, or a line as in `known_hosts` or in a `.pub` file.
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with("SHA256:") {
            let fingerprint = text.parse().map_err(|_| format!("{text:?} is no fingerprint"))?;
            return Ok(Self { fingerprint, algorithm: None });
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_algorithm = |word: &&str| word.starts_with("ssh-") || word.starts_with("ecdsa-");
        let at = words.iter().position(is_algorithm).filter(|at| *at <= 1);
        let key = at.and_then(|at| words.get(at..at + 2)).map(|words| words.join(" "));
        let wrong = || {
            format!(
                "{text:?} is neither SHA256:… nor a line of known_hosts with a key of Ed25519 or ECDSA"
            )
        };
        let key = PublicKey::from_openssh(&key.ok_or_else(wrong)?).map_err(|_| wrong())?;
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        Ok(Self { fingerprint, algorithm: Some(key.algorithm()) })
    }
}
