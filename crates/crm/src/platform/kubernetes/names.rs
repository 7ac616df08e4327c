//! Names and labels of what is made in a cluster of Kubernetes. Each follows
//! from a key, so that what a process left behind that died can be found by
//! the next.

use std::collections::BTreeMap;

use selvage_api::edgeproto::{AppInstKey, CloudletKey, ClusterInstKey};

use crate::{
    Result,
    platform::naming::{digest, readable, text},
};

/// Label of the cloudlet that something belongs to.
pub(super) const SITE: &str = "selvage.site";
/// Which instance something is of.
pub(super) const INSTANCE: &str = "selvage.instance";
/// Label of what was wanted when a pod was made; those of an update differ.
pub(super) const REVISION: &str = "selvage.revision";
/// On what we write down beside an instance.
pub(super) const RECORD: &str = "selvage.record";
/// Label that the original finds its pods by.
pub(super) const APP: &str = "mex-app";

/// Beginning of the names of objects that are the crm's own,
pub(super) const RESERVED_NAMES: &str = "selvage-";
/// and of its labels.
pub(super) const RESERVED_LABELS: &str = "selvage.";

/// Of a digest, in names and in labels.
const SHORT: usize = 8;
const LONG: usize = 20;
/// Characters of developer and cluster in a namespace, and of its app in a
/// release: the names of releases have 53 characters at most.
const READABLE: usize = 40;
/// The longest value of a label.
const VALUE: usize = 63;

/// Gives names. Several crms with one cluster, each of a cloudlet of its own,
/// do not give the same.
#[derive(Debug, Clone)]
pub(super) struct Namer {
    site: String,
}

/// The names of what one instance has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceNames {
    /// That of its cluster.
    pub(super) namespace: String,
    /// In labels.
    pub(super) id: String,
    /// Name of the record of what we made.
    pub(super) record: String,
    /// For helm.
    pub(super) release: String,
}

impl Namer {
    pub(super) fn new(cloudlet: &CloudletKey) -> Result<Self> {
        Ok(Self { site: digest(&text(cloudlet)?, LONG) })
    }

    /// The cloudlet, in labels.
    pub(super) fn site(&self) -> &str {
        &self.site
    }

    /// The namespace of a cluster.
    pub(super) fn namespace(&self, key: &ClusterInstKey) -> Result<String> {
        let digest = digest(&format!("{}/{}", self.site, text(key)?), SHORT);
        let name = key.cluster_key.clone().unwrap_or_default().name;
        let readable = readable(&format!("{}-{name}", key.developer), READABLE);
        Ok(joined(&["slv", &readable, &digest]))
    }

    pub(super) fn instance(&self, key: &AppInstKey) -> Result<InstanceNames> {
        let cluster = key.cluster_inst_key.clone().unwrap_or_default();
        let text = format!("{}/{}", self.site, text(key)?);
        let app = key.app_key.clone().unwrap_or_default();
        let readable = readable(&format!("{}-{}", app.name, app.version), READABLE);
        let id = digest(&text, LONG);
        Ok(InstanceNames {
            namespace: self.namespace(&cluster)?,
            record: record(&id),
            release: joined(&["a", &readable, &digest(&text, SHORT)]),
            id,
        })
    }

    /// Labels of everything of an instance.
    pub(super) fn labels(&self, id: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([(SITE, self.site.clone()), (INSTANCE, id.to_owned())])
    }

    /// Selects what is ours of a cluster.
    pub(super) fn ours(&self) -> String {
        format!("{SITE}={}", self.site)
    }
}

impl InstanceNames {
    /// Those of an instance of which only this is known.
    pub(super) fn stray(namespace: &str, id: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            record: record(id),
            release: String::new(),
        }
    }
}

fn record(id: &str) -> String {
    format!("{RESERVED_NAMES}{id}")
}

/// Selects what is of an instance.
pub(super) fn of_instance(id: &str) -> String {
    format!("{INSTANCE}={id}")
}

/// The digest of a text, as a label's value.
pub(super) fn label_of(text: &str) -> String {
    digest(text, LONG)
}

fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

/// As the value of a label.
pub(super) fn label_value(name: &str) -> String {
    let end = |c: char| !c.is_ascii_alphanumeric();
    let kept = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c));
    let kept: String = kept.take(VALUE).collect();
    kept.trim_matches(end).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::{AppKey, ClusterKey, DeveloperKey};

    use super::*;

    fn key(developer: &str, cluster: &str, app: &str) -> AppInstKey {
        AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: developer.into() }),
                name: app.into(),
                version: "1.0".into(),
            }),
            cluster_inst_key: Some(ClusterInstKey {
                cluster_key: Some(ClusterKey { name: cluster.into() }),
                cloudlet_key: None,
                developer: developer.into(),
            }),
        }
    }

    fn namer(cloudlet: &str) -> Namer {
        Namer::new(&CloudletKey { operator_key: None, name: cloudlet.into() }).unwrap()
    }

    fn is_dns_label(name: &str) -> bool {
        let ends =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        name.len() <= 63
            && ends(name.chars().next())
            && ends(name.chars().last())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    }

    #[test]
    fn any_name_becomes_one_that_kubernetes_takes() {
        let here = namer("here");
        let long = "x".repeat(300);
        for name in ["", "a", "Hello, World & Co", "日本", "-", "..", "_a_", &long, "a/b\"c\n"] {
            let names = here.instance(&key(name, name, name)).unwrap();
            assert!(is_dns_label(&names.namespace), "{names:?}");
            assert!(is_dns_label(&names.release) && names.release.len() <= 53, "{names:?}");
            assert!(is_dns_label(&names.record) && is_dns_label(&names.id), "{names:?}");
            let value = label_value(name);
            assert!(value.len() <= 63 && value.is_ascii(), "{value:?}");
            assert!(!value.starts_with(['-', '_', '.']) && !value.ends_with(['-', '_', '.']));
        }
        let acme = here.namespace(&key("Acme", "Edge 1", "a").cluster_inst_key.unwrap()).unwrap();
        assert!(acme.starts_with("slv-acme-edge-1-"), "{acme}");
    }

    #[test]
    fn clusters_of_two_developers_may_have_one_name() {
        let here = namer("here");
        let cluster =
            |developer: &str, name: &str| key(developer, name, "a").cluster_inst_key.unwrap();
        let one = here.namespace(&cluster("a", "c")).unwrap();
        assert_ne!(one, here.namespace(&cluster("b", "c")).unwrap());
        assert_ne!(one, namer("there").namespace(&cluster("a", "c")).unwrap());
        assert_eq!(one, here.namespace(&cluster("a", "c")).unwrap());
        // A dash does not make two keys one.
        let (left, right) = (cluster("a-b", "c"), cluster("a", "b-c"));
        assert_ne!(here.namespace(&left).unwrap(), here.namespace(&right).unwrap());
    }
}
