//! Names: how they become parts of other names, which are reserved, and
//! whether what is derived from them fits into DNS.

use selvage_api::edgeproto::{AppKey, CloudletKey, ClusterInstKey};

use super::{Error, Result, fqdn};
use crate::keys::{CloudletKeyParts, ClusterInstKeyParts};

/// Operator of the cloudlet that stands for "the developer runs it".
const DEFAULT_OPERATOR: &str = "developer";
const DEFAULT_CLOUDLET: &str = "default";

/// Operators whose platform gives every service an address of its own.
const IP_PER_SERVICE_OPERATORS: [&str; 2] = ["gcp", "azure"];

/// Developer whose Apps may go into anyone's cluster.
const PLATFORM_DEVELOPER: &str = "MobiledgeX";

/// The longest label that DNS knows.
pub(crate) const MAX_LABEL: usize = 63;

/// Longest suffix of a name made from an App's name.
const LONGEST_APP_SUFFIX: &str = "-deployment";

/// As part of the path of an image, of a DNS label, and as the name of an
/// object in Kubernetes.
pub(crate) use selvage_edge::{
    AUTO_CLUSTER, dns_label as dns, image_path_part as docker, is_auto_cluster,
    kubernetes_name as kubernetes,
};

pub(crate) fn is_default_cloudlet(key: &CloudletKey) -> bool {
    key.operator_or_empty().name == DEFAULT_OPERATOR && key.name == DEFAULT_CLOUDLET
}

/// Returns true if the platform gives every service an address of its own, so
/// that there is no load balancer to share.
pub(crate) fn has_ip_per_service(key: &CloudletKey) -> bool {
    IP_PER_SERVICE_OPERATORS.contains(&key.operator_or_empty().name.as_str())
}

pub(crate) fn may_use_any_cluster(developer: &str) -> bool {
    developer == PLATFORM_DEVELOPER
}

/// At CreateOperator.
pub(crate) fn check_operator(name: &str) -> Result<()> {
    if name == DEFAULT_OPERATOR {
        return Err(Error::invalid(format!(
            "Cannot create operator with name = {DEFAULT_OPERATOR}"
        )));
    }
    Ok(())
}

/// Refuses names of clusters that are made by the controller only.
pub(crate) fn check_cluster_not_reserved(cluster: &str) -> Result<()> {
    if is_auto_cluster(cluster) {
        return Err(Error::invalid(format!("Cluster name prefix \"{AUTO_CLUSTER}\" is reserved")));
    }
    Ok(())
}

/// At CreateApp: whatever is named after the App has a valid name.
pub(crate) fn check_app(key: &AppKey) -> Result<()> {
    check_label("app name", &format!("{}{LONGEST_APP_SUFFIX}", dns(&key.name)))?;
    check_label("developer, app name and version together", &fqdn::app_label(key))
}

/// At CreateCloudlet.
pub(crate) fn check_cloudlet(key: &CloudletKey, root: &str) -> Result<()> {
    check_label("operator name", &dns(&key.operator_or_empty().name))?;
    check_label("cloudlet name", &dns(&key.name))?;
    fqdn::check(&fqdn::root_load_balancer(key, root))
}

/// At CreateClusterInst.
pub(crate) fn check_cluster_inst(key: &ClusterInstKey, root: &str) -> Result<()> {
    check_label("cluster name", &dns(&key.cluster_or_empty().name))?;
    let developer = dns(&key.developer);
    if developer.len() > MAX_LABEL {
        check_label("developer name", &developer)?;
    }
    fqdn::check(&fqdn::cluster(key, root))
}

fn check_label(what: &str, label: &str) -> Result<()> {
    let problem = if label.len() > MAX_LABEL {
        format!("has {} characters, at most {MAX_LABEL} are possible", label.len())
    } else if !is_label(label) {
        "must begin and end with a letter or digit".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("Invalid {what}: \"{label}\", derived from it for DNS, {problem}")))
}

/// Returns true if the text can stand between the dots of a host name.
pub(crate) fn is_label(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= MAX_LABEL
        && text.starts_with(letter)
        && text.ends_with(letter)
        && text.chars().all(|c| letter(c) || c == '-')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use selvage_api::edgeproto::{ClusterKey, DeveloperKey, OperatorKey};

    use super::*;

    fn app(developer: &str, name: &str, version: &str) -> AppKey {
        AppKey {
            developer_key: Some(DeveloperKey { name: developer.into() }),
            name: name.into(),
            version: version.into(),
        }
    }

    fn cloudlet(operator: &str, name: &str) -> CloudletKey {
        CloudletKey { operator_key: Some(OperatorKey { name: operator.into() }), name: name.into() }
    }

    #[test]
    fn each_sanitiser_replaces_what_its_target_cannot_hold() {
        let name = "A_b c&d,e.f!G-h";
        assert_eq!(docker(name), "A_bc-de.f.G-h");
        assert_eq!(dns(name), "a-bcdefg-h");
        assert_eq!(kubernetes(name), "a-bcde.fg-h");
        assert_eq!(docker("AT&T Inc."), "AT-TInc.");
        assert_eq!(dns("AT&T Inc."), "attinc");
        assert_eq!(kubernetes("Pokemon Go!"), "pokemongo");
    }

    #[test]
    fn reserved_names_are_known() {
        assert!(is_default_cloudlet(&cloudlet("developer", "default")));
        assert!(!is_default_cloudlet(&cloudlet("developer", "Default")));
        assert!(!is_default_cloudlet(&cloudlet("tmus", "default")));
        assert!(has_ip_per_service(&cloudlet("gcp", "x")));
        assert!(has_ip_per_service(&cloudlet("azure", "x")));
        assert!(!has_ip_per_service(&cloudlet("Azure", "x")));
        assert!(may_use_any_cluster("MobiledgeX"));
        assert_eq!(
            check_operator("developer").unwrap_err().to_string(),
            "Cannot create operator with name = developer"
        );
        assert_eq!(
            check_cluster_not_reserved("autocluster1").unwrap_err().to_string(),
            "Cluster name prefix \"autocluster\" is reserved"
        );
        check_operator("tmus").unwrap();
        check_cluster_not_reserved("cluster").unwrap();
    }

    #[test]
    fn names_that_do_not_fit_into_dns_are_refused() {
        check_app(&app("dev", &"a".repeat(52), "1")).unwrap();
        assert!(check_app(&app("dev", &"a".repeat(53), "1")).is_err());
        assert!(check_app(&app(&"d".repeat(60), "app", "1.0")).is_err());
        assert!(check_app(&app("dev", "app", "1-")).is_err());
        assert_eq!(
            check_cloudlet(&cloudlet("tmus", "edge_"), "x.net").unwrap_err().to_string(),
            "Invalid cloudlet name: \"edge-\", derived from it for DNS, \
             must begin and end with a letter or digit"
        );
        assert_eq!(
            check_cloudlet(&cloudlet("tmus", &"c".repeat(64)), "x.net").unwrap_err().to_string(),
            format!(
                "Invalid cloudlet name: \"{}\", derived from it for DNS, \
                 has 64 characters, at most 63 are possible",
                "c".repeat(64)
            )
        );
        let long = ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "k".repeat(63) }),
            cloudlet_key: Some(cloudlet(&"o".repeat(63), &"c".repeat(63))),
            developer: "dev".into(),
        };
        assert!(check_cluster_inst(&long, "x.net").is_err());
    }

    proptest! {
        #[test]
        fn what_passes_the_checks_is_valid_in_dns(
            developer in "[0-9a-zA-Z][-_0-9a-zA-Z .&,!]{0,30}",
            name in "[0-9a-zA-Z][-_0-9a-zA-Z .&,!]{0,70}",
            version in "[0-9a-zA-Z][-_0-9a-zA-Z .&,!]{0,10}",
        ) {
            let key = app(&developer, &name, &version);
            if check_app(&key).is_ok() {
                prop_assert!(is_label(&fqdn::app_label(&key)));
                for suffix in ["-tcp", "-udp", "-deployment"] {
                    let label = dns(&format!("{name}{suffix}"));
                    prop_assert!(is_label(&label));
                }
            }
            let key = cloudlet(&developer, &name);
            if check_cloudlet(&key, "mobiledgex.net").is_ok() {
                let fqdn = fqdn::root_load_balancer(&key, "mobiledgex.net");
                prop_assert!(fqdn.len() <= 253);
                prop_assert!(fqdn.split('.').all(is_label));
            }
        }

        #[test]
        fn a_valid_name_leaves_only_letters_of_dns(name in "[0-9a-zA-Z][-_0-9a-zA-Z .&,!]*") {
            let out = dns(&name);
            prop_assert!(out.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()));
            prop_assert!(out.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            prop_assert_eq!(&dns(&out), &out);
        }
    }
}
