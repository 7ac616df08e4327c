//! Domain names under which instances are reached, and what of them must be
//! unique on a cloudlet.

use std::net::IpAddr;

use selvage_api::edgeproto::{AppInstKey, ClusterInstKey};
pub(super) use selvage_edge::app_label;
/// Of the shared load balancer of a cloudlet.
pub(crate) use selvage_edge::cloudlet_domain as root_load_balancer;

use super::{Error, Result, names, names::dns, ports::Exposure};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts};

const MAX_FQDN: usize = 253;
/// Most names of one instance that its developer runs.
const MAX_PUBLIC: usize = 32;

/// A service of an App is reached under `<service>.<fqdn>`.
const LONGEST_PREFIX: usize = names::MAX_LABEL + 1;

/// Of a cluster with an address of its own.
pub(crate) fn cluster(key: &ClusterInstKey, root: &str) -> String {
    format!("{}.{}", cluster_claim(key), root_load_balancer(key.cloudlet_or_empty(), root))
}

/// The uri of an AppInst. `given` is what the client sent, which is needed on
/// the default cloudlet and forbidden elsewhere.
pub(crate) fn app_inst(
    key: &AppInstKey,
    exposure: Exposure,
    given: &str,
    root: &str,
) -> Result<String> {
    check_given(exposure, given)?;
    let cluster_key = key.cluster_inst_or_empty();
    let cloudlet = cluster_key.cloudlet_or_empty();
    let uri = match exposure {
        Exposure::DefaultCloudlet => return Ok(given.to_owned()),
        Exposure::SharedBalancer => root_load_balancer(cloudlet, root),
        Exposure::DedicatedBalancer => cluster(cluster_key, root),
        Exposure::PerService => {
            format!("{}.{}", app_label(key.app_or_empty()), cluster(cluster_key, root))
        }
        Exposure::Machine => {
            format!("{}.{}", app_label(key.app_or_empty()), root_load_balancer(cloudlet, root))
        }
    };
    check(&uri)?;
    Ok(uri)
}

/// Checks that a client may give a uri, and gives one where it must. Cheap, so
/// that a request that is wrong in this is refused before anything is made for
/// it.
pub(crate) fn check_given(exposure: Exposure, given: &str) -> Result<()> {
    match (exposure, given) {
        (Exposure::DefaultCloudlet, "") => {
            Err(Error::invalid("URI (Public Fqdn) is required for default cloudlet"))
        }
        (Exposure::DefaultCloudlet, given) => check_public(given),
        (_, "") => Ok(()),
        (_, given) => {
            Err(Error::invalid(format!("Cannot specify URI {given} for non-default cloudlet")))
        }
    }
}

/// Checks a uri that the developer gives, which is handed to devices as it is:
/// hosts, separated by commas, each a domain name or an address.
fn check_public(given: &str) -> Result<()> {
    let count = given.split(',').count();
    if count > MAX_PUBLIC {
        return Err(Error::invalid(format!(
            "Invalid URI (Public Fqdn): {count} names, at most {MAX_PUBLIC} are possible"
        )));
    }
    match given.split(',').find(|host| !is_host(host)) {
        None => Ok(()),
        Some(host) => Err(Error::invalid(format!(
            "Invalid URI (Public Fqdn): \"{}\" is not a domain name",
            host.escape_debug().take(MAX_FQDN).collect::<String>()
        ))),
    }
}

/// Names may have underscores: DNS takes them, and people use them.
fn is_host(text: &str) -> bool {
    let label = |label: &str| names::is_label(&label.to_ascii_lowercase().replace('_', "0"));
    let name = text.strip_suffix('.').unwrap_or(text);
    text.parse::<IpAddr>().is_ok() || name.len() <= MAX_FQDN && name.split('.').all(label)
}

/// Refuses names to which the name of a service could not be added.
pub(super) fn check(fqdn: &str) -> Result<()> {
    if fqdn.len() + LONGEST_PREFIX > MAX_FQDN {
        return Err(Error::invalid(format!(
            "names are too long: \"{fqdn}\", derived from them, has {} characters, \
             at most {} are possible",
            fqdn.len(),
            MAX_FQDN - LONGEST_PREFIX
        )));
    }
    Ok(())
}

/// Claim that no other ClusterInst or AppInst on the same cloudlet may have:
/// its name in DNS, and on the cloudlet itself.
pub(crate) fn cluster_claim(key: &ClusterInstKey) -> String {
    dns(&key.cluster_or_empty().name)
}

/// Claim that no other ClusterInst on the same cloudlet may have, whether or
/// not it has a domain name: what it is called where developers share a
/// machine.
pub(crate) fn cluster_name_claim(key: &ClusterInstKey) -> String {
    format!("{}.{}", cluster_claim(key), dns(&key.developer))
}

/// As [`cluster_claim`], of an AppInst, if it has a name of its own.
pub(crate) fn app_inst_claim(key: &AppInstKey, exposure: Exposure) -> Option<String> {
    let app = app_label(key.app_or_empty());
    match exposure {
        Exposure::Machine => Some(app),
        Exposure::PerService => {
            Some(format!("{app}.{}", cluster_claim(key.cluster_inst_or_empty())))
        }
        Exposure::SharedBalancer | Exposure::DedicatedBalancer | Exposure::DefaultCloudlet => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto::{AppKey, CloudletKey, ClusterKey, DeveloperKey, OperatorKey};

    use super::*;

    fn key(cluster: &str, operator: &str, cloudlet: &str) -> AppInstKey {
        AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: "AcmeAppCo".into() }),
                name: "someapplication1".into(),
                version: "1.0".into(),
            }),
            cluster_inst_key: Some(ClusterInstKey {
                cluster_key: Some(ClusterKey { name: cluster.into() }),
                cloudlet_key: Some(CloudletKey {
                    operator_key: Some(OperatorKey { name: operator.into() }),
                    name: cloudlet.into(),
                }),
                developer: "AcmeAppCo".into(),
            }),
        }
    }

    fn uri(key: &AppInstKey, exposure: Exposure) -> String {
        app_inst(key, exposure, "", "mobiledgex.net").unwrap()
    }

    #[test]
    fn uris_are_those_of_the_original() {
        let shared = key("autoclustersomeapplication1", "tmus", "tmus-cloud-1");
        assert_eq!(uri(&shared, Exposure::SharedBalancer), "tmus-cloud-1.tmus.mobiledgex.net");
        let dedicated = key("SmallCluster", "tmus", "tmus-cloud-2");
        assert_eq!(
            uri(&dedicated, Exposure::DedicatedBalancer),
            "smallcluster.tmus-cloud-2.tmus.mobiledgex.net"
        );
        let azure = key("autoclustersomeapplication1", "azure", "azure-cloud-9");
        assert_eq!(
            uri(&azure, Exposure::PerService),
            "acmeappcosomeapplication110.autoclustersomeapplication1.azure-cloud-9.azure.mobiledgex.net"
        );
        assert_eq!(
            uri(&dedicated, Exposure::Machine),
            "acmeappcosomeapplication110.tmus-cloud-2.tmus.mobiledgex.net"
        );
        assert_eq!(
            app_inst(&dedicated, Exposure::SharedBalancer, "", "edge.example").unwrap(),
            "tmus-cloud-2.tmus.edge.example"
        );
    }

    #[test]
    fn a_given_uri_is_for_the_default_cloudlet_only() {
        let own = key("default", "developer", "default");
        let made = app_inst(&own, Exposure::DefaultCloudlet, "a.example,b.example", "x.net");
        assert_eq!(made.unwrap(), "a.example,b.example");
        assert_eq!(
            app_inst(&own, Exposure::DefaultCloudlet, "", "x.net").unwrap_err().to_string(),
            "URI (Public Fqdn) is required for default cloudlet"
        );
        assert_eq!(
            app_inst(&own, Exposure::SharedBalancer, "a.example", "x.net").unwrap_err().to_string(),
            "Cannot specify URI a.example for non-default cloudlet"
        );
    }

    #[test]
    fn what_a_developer_gives_can_be_reached() {
        let given = |uri: &str| check_given(Exposure::DefaultCloudlet, uri);
        for good in [
            "someapplication1.acmeappco.com",
            "helmAppication.acmeappco.com",
            "a.example,b.example.",
            "_srv.my_app.example",
            "localhost",
            "10.100.10.1",
            "2001:db8::1",
        ] {
            given(good).unwrap();
        }
        for bad in [
            ",",
            "a.example,",
            "a.example,,b.example",
            "a.example, b.example",
            " ",
            "a..example",
            ".example",
            "-a.example",
            "https://a.example",
            "a.example:443",
            "a.example/path",
            "a.example\n",
            "\u{fc}.example",
            "a\0b",
        ] {
            let error = given(bad).unwrap_err();
            assert_eq!(error.code(), selvage_api::Code::InvalidArgument, "{bad}");
            assert!(error.to_string().starts_with("Invalid URI (Public Fqdn): "), "{error}");
        }
        assert!(given(&"a".repeat(64)).is_err());
        assert!(given(&vec!["a.b"; 127].join(".")).is_err());
        assert!(given(&vec!["a.example"; 33].join(",")).is_err());
        let long = given(&"x".repeat(100_000)).unwrap_err().to_string();
        assert!(long.len() < 400, "{long}");
    }

    #[test]
    fn names_that_read_the_same_in_dns_make_the_same_claim() {
        let one = key("Ever.Ai", "tmus", "c1").cluster_inst_key.unwrap();
        let two = key("everai", "tmus", "c1").cluster_inst_key.unwrap();
        assert_eq!(cluster_claim(&one), cluster_claim(&two));
        assert_eq!(
            app_inst_claim(&key("K", "azure", "c"), Exposure::PerService).unwrap(),
            "acmeappcosomeapplication110.k"
        );
        assert_eq!(app_inst_claim(&key("k", "tmus", "c"), Exposure::SharedBalancer), None);
    }
}
