//! Description of a cloudlet: the file that has it, as the contract's messages.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use selvage_api::{
    edgeproto::{CloudletInfraCommon, CloudletInfraProperties},
    json,
    object::{self, Object},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{Error, Result, platform::network::Range};

/// Name of the common settings beside those of the kind.
const COMMON: &str = "common";
/// Name of the settings of clusters on machines.
const KAAS: &str = "kaas";

/// The secret that generated manifests fetch images with.
const REGISTRY_SECRET: &str = "mexgitlabsecret";

/// Kind of infrastructure of a cloudlet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Containers on this machine.
    #[default]
    Containers,
    /// Virtual machines on this machine.
    Machines,
    /// A cluster of Kubernetes, wherever it is.
    Kubernetes,
}

/// A cloudlet's infrastructure, as its file has it. The file is a
/// `CloudletInfraProperties` in YAML or JSON, with a `CloudletInfraCommon`
/// beside it under the name `common`.
#[derive(Clone, Default)]
pub struct Site {
    pub kind: Kind,
    pub registry: Option<Registry>,
    pub range: Range,
    /// Kubeconfig of the cluster of Kubernetes; the process that
    /// runs the crm knows, not the file.
    pub kubeconfig: Option<PathBuf>,
    /// The zone in which instances have their names; empty: the controller's.
    pub dns_zone: String,
    /// Makes each cluster out of machines instead of using one that is there.
    pub kaas: Option<KaasSite>,
    /// The file that this was read from, if it was.
    pub file: Option<PathBuf>,
}

/// Clusters on machines, as the cluster service makes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KaasSite {
    /// Version of Kubernetes; empty: the newest that the machines can run.
    pub version: String,
    /// Types of machines by the flavors that they stand for.
    pub instance_types: BTreeMap<String, String>,
    /// Type of machines for all other flavors; empty: `standard`.
    pub default_instance_type: String,
}

/// A registry that asks who is there. The password is never shown.
#[derive(Clone)]
pub struct Registry {
    pub host: String,
    pub user: String,
    pub password: Zeroizing<String>,
    /// Name of the password's Secret in clusters of Kubernetes.
    pub secret: String,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("host", &self.host).field("user", &self.user).finish()
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let registry = self.registry.as_ref().map(|registry| &registry.host);
        f.debug_struct("Site").field("kind", &self.kind).field("registry", &registry).finish()
    }
}

impl Site {
    /// Reads the file of a cloudlet.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| Error::File { path: path.to_owned(), source })?;
        let text = Zeroizing::new(text);
        Ok(Self { file: Some(path.to_owned()), ..Self::parse(&text)? })
    }

    /// The same from a text.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |reason: String| Error::invalid("cloudlet", reason);
        let value: serde_json::Value =
            serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let mut fields = match value {
            serde_json::Value::Null => serde_json::Map::new(),
            serde_json::Value::Object(fields) => fields,
            _ => return Err(wrong("is not a set of names and values".into())),
        };
        let common = fields.remove(COMMON).unwrap_or_else(|| serde_json::json!({}));
        let common: CloudletInfraCommon = message(COMMON, &common)?;
        let kaas = fields.remove(KAAS).map(kaas).transpose()?;
        let properties = message("cloudlet", &serde_json::Value::Object(fields))?;
        let site = Self { kaas, ..Self::of(&properties, common)? };
        if site.kaas.is_some() && site.kind != Kind::Kubernetes {
            return Err(Error::invalid(KAAS, "is for cloudlets of kind kubernetes"));
        }
        Ok(site)
    }

    fn of(properties: &CloudletInfraProperties, common: CloudletInfraCommon) -> Result<Self> {
        let kind = match properties.cloudlet_kind.as_str() {
            "" | "containers" => Kind::Containers,
            "vm" | "kvm" => Kind::Machines,
            "kubernetes" => Kind::Kubernetes,
            kind @ ("openstack" | "azure" | "gcp" | "dind") => {
                return Err(Error::Kind { kind: kind.to_owned() });
            }
            "fake" | "sim" => {
                let reason = "a simulated cloudlet is run by the sim crate, not by a crm";
                return Err(Error::invalid("cloudlet_kind", reason));
            }
            other => {
                let reason = format!(
                    "{other:?} is not one of containers, kubernetes, vm, openstack, azure, gcp"
                );
                return Err(Error::invalid("cloudlet_kind", reason));
            }
        };
        let password = Zeroizing::new(common.docker_reg_pass);
        let registry = match (common.docker_registry.as_str(), password.is_empty()) {
            ("", true) => None,
            ("", false) => {
                let reason = "is needed with docker_reg_pass";
                return Err(Error::invalid("common.docker_registry", reason));
            }
            (_, true) => None,
            (host, false) => {
                // `user:password`, or the password of the original's one user.
                let (user, password) = match password.split_once(':') {
                    Some((user, password)) => (user, Zeroizing::new(password.to_owned())),
                    None => ("mobiledgex", password.clone()),
                };
                let secret = match common.docker_registry_secret.as_str() {
                    "" => REGISTRY_SECRET.to_owned(),
                    name => name.to_owned(),
                };
                Some(Registry { host: host.to_owned(), user: user.to_owned(), password, secret })
            }
        };
        let range = match common.network_scheme.as_str() {
            "" => Range::default(),
            scheme => {
                Range::parse(scheme).map_err(|error| Error::invalid("common", error.to_string()))?
            }
        };
        if !common.dns_zone.is_empty() && !is_domain(&common.dns_zone) {
            let reason = format!("{:?} is not the name of a domain", common.dns_zone);
            return Err(Error::invalid("common.dns_zone", reason));
        }
        let dns_zone = common.dns_zone;
        Ok(Self { kind, registry, range, kubeconfig: None, dns_zone, kaas: None, file: None })
    }
}

/// Reads the section `kaas`, which may be empty.
fn kaas(value: serde_json::Value) -> Result<KaasSite> {
    if value.is_null() {
        return Ok(KaasSite::default());
    }
    serde_json::from_value(value).map_err(|error| Error::invalid(KAAS, error.to_string()))
}

fn is_domain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 128
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn message<M: Object>(field: &str, value: &serde_json::Value) -> Result<M> {
    let wrong = |reason: String| Error::invalid(field, reason);
    let descriptor = object::descriptor_of::<M>().map_err(|error| wrong(error.to_string()))?;
    let text = value.to_string();
    let read = json::from_json(&descriptor, text.as_bytes(), json::Options::edge().strict());
    let read = read.map_err(|error| match error {
        // Where it stands in a text that nobody has seen helps nobody.
        json::Error::Read { reason, .. } => {
            wrong(reason.split(" at line ").next().unwrap_or_default().to_owned())
        }
        error @ json::Error::Write { .. } => wrong(error.to_string()),
    })?;
    object::from_dynamic(&read).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_contracts_messages_are_the_file() {
        let site = Site::parse(
            "cloudlet_kind: containers\ncommon:\n  docker_registry: reg.example:5000\n  \
             docker_reg_pass: joe:geheim\n  network_scheme: 10.8.0.0/16\n  dns_zone: edge.example\n",
        )
        .unwrap();
        let registry = site.registry.clone().unwrap();
        assert_eq!((registry.host.as_str(), registry.user.as_str()), ("reg.example:5000", "joe"));
        assert_eq!(registry.password.as_str(), "geheim");
        assert_eq!(site.range, Range::parse("10.8.0.0/16").unwrap());
        assert_eq!(site.dns_zone, "edge.example");
        assert!(!format!("{site:?}").contains("geheim"));
        assert_eq!(Site::parse("").unwrap().kind, Kind::Containers);
        for kind in ["vm", "kvm"] {
            let site = Site::parse(&format!("cloudlet_kind: {kind}")).unwrap();
            assert_eq!(site.kind, Kind::Machines);
        }
        assert_eq!(Site::parse("cloudlet_kind: kubernetes").unwrap().kind, Kind::Kubernetes);
        assert_eq!(registry.secret, "mexgitlabsecret");
    }

    #[test]
    fn clusters_on_machines_are_a_section_of_their_own() {
        let site = Site::parse(
            "cloudlet_kind: kubernetes\nkaas:\n  version: 1.36.4\n  \
             instance_types: {x1.large: big}\n  default_instance_type: small\n",
        );
        let kaas = site.unwrap().kaas.unwrap();
        assert_eq!((kaas.version.as_str(), &*kaas.default_instance_type), ("1.36.4", "small"));
        assert_eq!(kaas.instance_types["x1.large"], "big");
        for empty in ["kaas:", "kaas: {}"] {
            let site = Site::parse(&format!("cloudlet_kind: kubernetes\n{empty}\n")).unwrap();
            assert_eq!(site.kaas, Some(KaasSite::default()));
        }
        assert_eq!(Site::parse("cloudlet_kind: kubernetes").unwrap().kaas, None);
    }

    #[test]
    fn what_is_not_built_or_misspelt_is_said_in_a_sentence() {
        for (text, says) in [
            ("cloudlet_kind: azure", "a cloudlet of kind azure cannot be run by this version"),
            ("cloudlet_kind: container", "cloudlet_kind: \"container\" is not one of"),
            ("cloudlet_knd: azure", "cloudlet: unrecognized field name 'cloudlet_knd'"),
            ("common: {dns_zon: a}", "common: unrecognized field name 'dns_zon'"),
            ("common: {docker_reg_pass: geheim}", "common.docker_registry: is needed"),
            ("common: {network_scheme: everywhere}", "network_scheme"),
            ("common: {dns_zone: .example}", "common.dns_zone: \".example\" is not the name"),
            ("kaas: {}", "kaas: is for cloudlets of kind kubernetes"),
            ("{cloudlet_kind: kubernetes, kaas: {versoin: '1'}}", "kaas: unknown field `versoin`"),
            ("{cloudlet_kind: kubernetes, kaas: [1]}", "kaas: "),
            ("[1, 2]", "cloudlet: is not a set"),
            ("a: [", "cloudlet: "),
        ] {
            let error = Site::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
            assert!(!error.contains("geheim"), "{error}");
            assert!(!error.contains("JSON"), "{error}");
        }
    }
}
