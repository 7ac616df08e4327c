//! Names of cloudlets, clusters and apps, in DNS and in Kubernetes too, as
//! controller, agents and clients write them.

use selvage_api::edgeproto::{AppKey, CloudletKey};

/// Beginning of the names of clusters that a controller makes by itself.
pub const AUTO_CLUSTER: &str = "autocluster";

/// Returns true for a cluster that a controller makes by itself, and removes with
/// the last instance in it.
pub fn is_auto_cluster(cluster: &str) -> bool {
    cluster.starts_with(AUTO_CLUSTER)
}

/// Returns the name of the cluster that a controller is to make for an app.
pub fn auto_cluster(app: &str) -> String {
    format!("{AUTO_CLUSTER}{}", app.to_lowercase())
}

/// Returns a name as part of a DNS label.
pub fn dns_label(name: &str) -> String {
    sanitise(name, " &,.!")
}

/// Returns a name as that of an object in Kubernetes.
pub fn kubernetes_name(name: &str) -> String {
    sanitise(name, " &,!")
}

fn sanitise(name: &str, dropped: &str) -> String {
    name.chars()
        .filter(|letter| !dropped.contains(*letter))
        .map(|letter| if letter == '_' { '-' } else { letter.to_ascii_lowercase() })
        .collect()
}

/// Returns developer, app and version as one label.
pub fn app_label(key: &AppKey) -> String {
    let developer = key.developer_key.as_ref().map_or("", |key| &key.name);
    format!("{}{}{}", dns_label(developer), dns_label(&key.name), dns_label(&key.version))
}

/// Returns the domain of a cloudlet, which the names of all that runs on it
/// end with.
pub fn cloudlet_domain(key: &CloudletKey, root: &str) -> String {
    let operator = key.operator_key.as_ref().map_or("", |key| &key.name);
    format!("{}.{}.{root}", dns_label(&key.name), dns_label(operator))
}

#[cfg(test)]
mod tests {
    use selvage_api::edgeproto::{DeveloperKey, OperatorKey};

    use super::*;

    #[test]
    fn names_become_labels() {
        assert_eq!(dns_label("AT&T Inc._x"), "attinc-x");
        assert_eq!(kubernetes_name("AT&T Inc._x"), "attinc.-x");
        let key = AppKey {
            developer_key: Some(DeveloperKey { name: "Acme, Co".into() }),
            name: "some_app".into(),
            version: "1.0".into(),
        };
        assert_eq!(app_label(&key), "acmecosome-app10");
    }

    #[test]
    fn clusters_of_the_controllers_own_are_known_by_their_name() {
        assert!(is_auto_cluster(&auto_cluster("Hello")));
        assert_eq!(auto_cluster("Hello"), "autoclusterhello");
        assert!(!is_auto_cluster("AutoCluster"));
    }

    #[test]
    fn a_cloudlet_has_a_domain_below_its_operators() {
        let operator_key = Some(OperatorKey { name: "TMUS".into() });
        let key = CloudletKey { operator_key, name: "cloud_1".into() };
        assert_eq!(cloudlet_domain(&key, "edge.example"), "cloud-1.tmus.edge.example");
    }
}
