//! A cluster of ours as the cluster service is asked for it.

use selvage_api::{
    cnct::kaas::api::{ControlPlaneMachineSpec, CreateClusterMsg, MachineSpec},
    edgeproto::{CloudletKey, ClusterInstKey},
    selvage::clusters::Cluster,
};
use selvage_kit::identity::Machine;

use crate::{
    Error, KaasSite, Result,
    platform::{
        ClusterOrder,
        naming::{digest, readable, text},
    },
};

/// Name of the one pool of a cluster.
pub(super) const POOL: &str = "nodes";
/// Type of machines where the site names none.
const STANDARD: &str = "standard";
/// Of a digest, in names.
const DIGITS: usize = 8;
/// The longest name of a cluster.
const LONGEST: usize = 40;

/// The cloudlet as its certificate names it.
pub(super) fn machine(cloudlet: &CloudletKey) -> Machine {
    let operator = cloudlet.operator_key.clone().unwrap_or_default().name;
    Machine::Cloudlet { operator, name: cloudlet.name.clone() }
}

/// Name of the cluster that is made for a key. It follows from the key alone,
/// and is nobody else's.
pub(super) fn name(machine: &Machine, key: &ClusterInstKey) -> Result<String> {
    let prefix = machine.cluster_prefix();
    let cluster = key.cluster_key.clone().unwrap_or_default().name;
    let room = LONGEST - prefix.len() - DIGITS - 1;
    let readable = readable(&format!("{}-{cluster}", key.developer), room);
    let digest = digest(&text(key)?, DIGITS);
    Ok(match readable.as_str() {
        "" => format!("{prefix}{digest}"),
        readable => format!("{prefix}{readable}-{digest}"),
    })
}

/// The request for a cluster.
pub(super) fn request(
    site: &KaasSite,
    machine: &Machine,
    order: &ClusterOrder,
) -> Result<CreateClusterMsg> {
    let key = order.cluster.key.clone().unwrap_or_default();
    let instance_type = instance_type(site, order);
    let pool = MachineSpec {
        name: POOL.into(),
        instance_type: instance_type.clone(),
        count: node_count(order)?,
        ..MachineSpec::default()
    };
    Ok(CreateClusterMsg {
        name: name(machine, &key)?,
        k8s_version: site.version.clone(),
        control_plane_nodes: Some(ControlPlaneMachineSpec {
            count: control_plane(order)?,
            instance_type,
            ..ControlPlaneMachineSpec::default()
        }),
        worker_node_pools: vec![pool],
    })
}

fn instance_type(site: &KaasSite, order: &ClusterOrder) -> String {
    let flavor = order.flavor.key.clone().unwrap_or_default().name;
    match site.instance_types.get(&flavor).unwrap_or(&site.default_instance_type).as_str() {
        "" => STANDARD.to_owned(),
        kind => kind.to_owned(),
    }
}

/// Machines of the control plane.
pub(super) fn control_plane(order: &ClusterOrder) -> Result<i32> {
    match order.cluster.num_masters {
        0 | 1 => Ok(1),
        3 => Ok(3),
        5 => Ok(5),
        count => {
            let reason = format!("{count} is none of 1, 3 and 5: etcd needs a majority");
            Err(Error::invalid("num_masters", reason))
        }
    }
}

/// Machines that run pods.
pub(super) fn node_count(order: &ClusterOrder) -> Result<i32> {
    let count = order.cluster.num_nodes;
    i32::try_from(count).map_err(|_| Error::invalid("num_nodes", format!("{count} is too many")))
}

/// Returns whether all machines that were asked for are ready.
pub(super) fn is_complete(cluster: &Cluster) -> bool {
    cluster.pools.iter().all(|pool| pool.ready == pool.count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::{ClusterInst, ClusterKey, Flavor, FlavorKey, OperatorKey};

    use super::*;
    use crate::platform::Progress;

    fn cloudlet(name: &str) -> Machine {
        let operator_key = Some(OperatorKey { name: "tmus".into() });
        machine(&CloudletKey { operator_key, name: name.into() })
    }

    fn key(developer: &str, cluster: &str) -> ClusterInstKey {
        let cluster_key = Some(ClusterKey { name: cluster.into() });
        ClusterInstKey { cluster_key, developer: developer.into(), cloudlet_key: None }
    }

    fn order(flavor: &str, num_masters: u32, num_nodes: u32) -> ClusterOrder {
        let key = Some(key("Acme", "edge"));
        let cluster = ClusterInst { key, num_masters, num_nodes, ..ClusterInst::default() };
        let key = Some(FlavorKey { name: flavor.into() });
        let flavor = Flavor { key, ..Flavor::default() };
        ClusterOrder { cluster, flavor, progress: Progress::default() }
    }

    #[test]
    fn any_key_becomes_a_name_that_the_service_takes() {
        let west = cloudlet("west");
        let long = "x".repeat(300);
        for text in ["", "a", "Hello, World & Co", "日本", "-", &long] {
            let name = name(&west, &key(text, text)).unwrap();
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            assert!(name.len() <= LONGEST, "{name}");
            assert!(name.bytes().all(|byte| plain(byte) || byte == b'-'), "{name}");
            assert!(plain(name.bytes().last().unwrap()), "{name}");
            assert!(name.starts_with(&west.cluster_prefix()), "{name}");
        }
        let shown = name(&west, &key("Acme", "Edge 1")).unwrap();
        assert!(shown.contains("-acme-edge-1-"), "{shown}");
    }

    #[test]
    fn no_two_keys_share_a_name() {
        let west = cloudlet("west");
        let of = |developer: &str, cluster: &str| name(&west, &key(developer, cluster)).unwrap();
        assert_eq!(of("a", "b"), of("a", "b"));
        assert_ne!(of("a-b", "c"), of("a", "b-c"));
        let long = "x".repeat(60);
        assert_ne!(of("a", &format!("{long}1")), of("a", &format!("{long}2")));
        assert_ne!(of("a", "b"), name(&cloudlet("east"), &key("a", "b")).unwrap());
    }

    #[test]
    fn flavors_become_types_of_machines() {
        let west = cloudlet("west");
        let mut site = KaasSite { version: "1.36.4".into(), ..KaasSite::default() };
        let kind = |site: &KaasSite, flavor: &str| {
            let asked = request(site, &west, &order(flavor, 1, 2)).unwrap();
            let control_plane = asked.control_plane_nodes.unwrap();
            assert_eq!(control_plane.instance_type, asked.worker_node_pools[0].instance_type);
            control_plane.instance_type
        };
        assert_eq!(kind(&site, "x1.small"), "standard");
        site.instance_types.insert("x1.large".into(), "big".into());
        assert_eq!(
            (kind(&site, "x1.large"), kind(&site, "x1.small")),
            ("big".into(), "standard".into())
        );
        site.default_instance_type = "rack".into();
        assert_eq!(
            (kind(&site, "x1.large"), kind(&site, "x1.small")),
            ("big".into(), "rack".into())
        );
    }

    #[test]
    fn masters_and_nodes_become_a_control_plane_and_a_pool() {
        let (west, site) = (cloudlet("west"), KaasSite::default());
        for (masters, count) in [(0, 1), (1, 1), (3, 3), (5, 5)] {
            let asked = request(&site, &west, &order("f", masters, 2)).unwrap();
            assert_eq!(asked.control_plane_nodes.unwrap().count, count);
            let pool = &asked.worker_node_pools[0];
            assert_eq!((pool.name.as_str(), pool.count), (POOL, 2));
        }
        for masters in [2, 4, 6, 7, u32::MAX] {
            let error = request(&site, &west, &order("f", masters, 2)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("num_masters: {masters} is none of 1")), "{error}");
        }
        let error = request(&site, &west, &order("f", 1, u32::MAX)).unwrap_err().to_string();
        assert!(error.starts_with("num_nodes: "), "{error}");
    }

    #[test]
    fn a_cluster_is_complete_with_all_its_machines() {
        use selvage_api::selvage::clusters::Pool;
        let pool = |ready| Pool { count: 2, ready, ..Pool::default() };
        let of = |pools| is_complete(&Cluster { pools, ..Cluster::default() });
        assert!(of(vec![pool(2), pool(2)]));
        assert!(!of(vec![pool(2), pool(1)]) && !of(vec![pool(2), pool(3)]));
    }
}
