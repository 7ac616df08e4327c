//! Names of what is made on the machine. Each follows from a key, so that
//! what a process left behind that died can be found by the next.

use selvage_api::edgeproto::{AppInstKey, CloudletKey, ClusterInstKey};

use crate::{
    Result,
    platform::naming::{digest, readable, text},
};

/// Of a digest, in names; names of interfaces have 15 characters at most.
const SITE: usize = 4;
const SHORT: usize = 8;
/// The control group that those of clusters are in.
pub(in crate::platform) const GROUPS: &str = "/selvage-clusters";
/// Prefix of the cables of all cloudlets.
const CABLES: &str = "slw";
/// Characters of the app's name in the names of containers.
const READABLE: usize = 40;

/// Gives names. Several crms on one machine, each of a cloudlet of its own, do
/// not give the same.
#[derive(Debug, Clone)]
pub(in crate::platform) struct Namer {
    site: String,
}

/// The names of what one cluster has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::platform) struct ClusterNames {
    pub(in crate::platform) bridge: String,
    /// The control group of all its containers.
    pub(in crate::platform) group: String,
}

/// The names of what one instance has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::platform) struct InstanceNames {
    pub(in crate::platform) container: String,
    pub(in crate::platform) namespace: String,
    pub(in crate::platform) cable: String,
}

impl Namer {
    pub(in crate::platform) fn new(cloudlet: &CloudletKey) -> Result<Self> {
        Ok(Self { site: digest(&text(cloudlet)?, SITE) })
    }

    /// Prefix of all bridges.
    pub(in crate::platform) fn bridges(&self) -> String {
        format!("slv{}", self.site)
    }

    /// Prefixes of all interfaces: bridges, and cables of instances.
    pub(in crate::platform) fn interfaces(&self) -> [String; 2] {
        [self.bridges(), format!("{CABLES}{}", self.site)]
    }

    /// Prefix of all namespaces.
    pub(in crate::platform) fn namespaces(&self) -> String {
        format!("slv-{}-", self.site)
    }

    pub(in crate::platform) fn cluster(&self, key: &ClusterInstKey) -> Result<ClusterNames> {
        Ok(Self::behind(format!("{}{}", self.bridges(), digest(&text(key)?, SHORT))))
    }

    /// Names of the network that a virtual machine has to itself.
    pub(in crate::platform) fn machine(&self, key: &AppInstKey) -> Result<ClusterNames> {
        Ok(Self::behind(format!("{}{}", self.bridges(), digest(&text(key)?, SHORT))))
    }

    /// The names of the cluster that a bridge is of.
    pub(in crate::platform) fn behind(bridge: String) -> ClusterNames {
        ClusterNames { group: format!("{GROUPS}/{bridge}"), bridge }
    }

    pub(in crate::platform) fn instance(&self, key: &AppInstKey) -> Result<InstanceNames> {
        let digest = digest(&text(key)?, SHORT);
        let app = key.app_key.clone().unwrap_or_default();
        let readable = readable(&format!("{}-{}", app.name, app.version), READABLE);
        let name = format!("{readable}-{digest}").trim_start_matches('-').to_owned();
        Ok(InstanceNames {
            namespace: format!("{}{name}", self.namespaces()),
            container: name,
            cable: format!("{CABLES}{}{digest}", self.site),
        })
    }
}

impl Namer {
    /// Names of the other place of an instance. An update runs the new version
    /// there while the old one serves, so the two take turns.
    pub(in crate::platform) fn standby(&self, key: &AppInstKey) -> Result<InstanceNames> {
        let first = self.instance(key)?;
        Ok(InstanceNames {
            namespace: format!("{}-b", first.namespace),
            container: format!("{}-b", first.container),
            cable: first.cable.replacen("slw", "slx", 1),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::{AppKey, ClusterKey, DeveloperKey};

    use super::*;

    fn key(developer: &str, app: &str) -> AppInstKey {
        AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: developer.into() }),
                name: app.into(),
                version: "1.0".into(),
            }),
            cluster_inst_key: Some(ClusterInstKey {
                cluster_key: Some(ClusterKey { name: "c".into() }),
                cloudlet_key: None,
                developer: developer.into(),
            }),
        }
    }

    fn namer(cloudlet: &str) -> Namer {
        Namer::new(&CloudletKey { operator_key: None, name: cloudlet.into() }).unwrap()
    }

    #[test]
    fn names_are_short_readable_and_distinct() {
        let here = namer("here");
        let one = here.instance(&key("Acme", "Hello, World & Co")).unwrap();
        assert!(one.container.starts_with("hello-world-co-1-0-"), "{one:?}");
        assert!(one.cable.len() <= 15 && one.namespace.starts_with(&here.namespaces()), "{one:?}");
        let other = here.instance(&key("Other", "Hello, World & Co")).unwrap();
        assert_ne!(one.container, other.container);
        assert_eq!(one, here.instance(&key("Acme", "Hello, World & Co")).unwrap());
        let long = here.instance(&key("Acme", &"x".repeat(300))).unwrap();
        assert!(long.container.len() <= 76, "{long:?}");
        let strange = here.instance(&key("Acme", "日本")).unwrap();
        assert!(strange.container.is_ascii(), "{strange:?}");
    }

    #[test]
    fn clusters_of_two_developers_may_have_one_name() {
        let here = namer("here");
        let cluster = |developer: &str| key(developer, "a").cluster_inst_key.unwrap();
        let (one, other) =
            (here.cluster(&cluster("a")).unwrap(), here.cluster(&cluster("b")).unwrap());
        assert_ne!(one, other);
        assert!(one.bridge.len() <= 15);
        assert_ne!(one, namer("there").cluster(&cluster("a")).unwrap());
    }
}
