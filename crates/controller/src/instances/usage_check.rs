//! Check of the usage records: at rest, what is used on cloudlets and in
//! clusters is the sum of the instances, and nothing is given out twice.

use std::collections::{BTreeMap, BTreeSet};

use selvage_api::distributed_match_engine::LProto;
use selvage_api::edgeproto::{
    App, AppInst, CloudletRefs, ClusterInst, ClusterRefs, Flavor, FlavorKey,
};
use selvage_api::selvage::flavors::FlavorSize;

use super::usage::exposure_of;
use crate::derive::ports::Exposure;
use crate::derive::resources::{Amount, as_made};
use crate::derive::{deployment, ips, names};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::{StoredObject, index};
use crate::tables::Tables;

/// Differences between the records and the instances, one sentence each. While
/// transactions go on the tables may be seen at slightly different moments;
/// what is found twice is really wrong.
pub fn differences(tables: &Tables) -> Vec<String> {
    let mut cloudlets: BTreeSet<String> =
        tables.cloudlet_refs.list().iter().map(|held| held.key.clone()).collect();
    let cluster_cloudlet = |inst: &ClusterInst| inst.object_key().cloudlet_or_empty().text();
    cloudlets
        .extend(tables.cluster_insts.list().iter().map(|held| cluster_cloudlet(&held.value.0)));
    let mut found = Vec::new();
    for cloudlet in cloudlets {
        check_cloudlet(tables, &cloudlet, &mut found);
    }
    check_clusters(tables, &mut found);
    found
}

fn flavor(tables: &Tables, key: Option<&FlavorKey>, size: Option<&FlavorSize>) -> Flavor {
    let found = tables.get::<Flavor>(key.unwrap_or(FlavorKey::empty()));
    as_made(found.map(|held| held.value.0.clone()).unwrap_or_default(), size)
}

fn check_cloudlet(tables: &Tables, cloudlet: &str, found: &mut Vec<String>) {
    let refs = tables.cloudlet_refs.get(cloudlet);
    let mut left = refs.map(|held| held.value.0.clone()).unwrap_or_default();
    left.key = None;
    let mut used = Amount::default();
    let mut add = |amount: Amount| {
        used.ram += amount.ram;
        used.vcores += amount.vcores;
        used.disk += amount.disk;
    };
    for held in tables.find::<ClusterInst>(index::CLOUDLET, cloudlet) {
        let inst = &held.value.0;
        let flavor = flavor(tables, inst.flavor.as_ref(), inst.size.as_ref());
        add(Amount::of_cluster(&flavor, inst));
        ips::release(inst, &mut left);
        let name = inst.object_key().cluster_or_empty();
        match left.clusters.iter().position(|cluster| cluster == name) {
            Some(place) => drop(left.clusters.remove(place)),
            None => found.push(format!("{cloudlet} does not list cluster {}", name.name)),
        }
    }
    for held in tables.find::<AppInst>(index::CLOUDLET, cloudlet) {
        let inst = &held.value.0;
        add(Amount::of_volumes(inst.volumes_gb));
        match exposure(tables, inst) {
            Exposure::Machine => {
                let flavor = flavor(tables, inst.flavor.as_ref(), inst.size.as_ref());
                add(Amount::of_machine(&flavor));
            }
            Exposure::SharedBalancer => give_back_ports(inst, &mut left, found),
            _ => {}
        }
    }
    let counted = Amount { ram: left.used_ram, vcores: left.used_vcores, disk: left.used_disk };
    if counted != used {
        found.push(format!("{cloudlet} counts {counted:?} where {used:?} is used"));
    }
    let rest = CloudletRefs { used_ram: 0, used_vcores: 0, used_disk: 0, ..left };
    if rest != CloudletRefs::default() {
        found.push(format!("{cloudlet} counts what nobody has: {rest:?}"));
    }
}

pub(crate) fn exposure(tables: &Tables, inst: &AppInst) -> Exposure {
    let (key, none) = (inst.object_key(), App::default());
    let held = tables.get::<App>(key.app_or_empty());
    let app = held.as_ref().map_or(&none, |held| &held.value.0);
    let cluster = tables
        .get::<ClusterInst>(key.cluster_inst_or_empty())
        .filter(|_| deployment::needs_cluster(&app.deployment));
    let cluster = cluster.as_ref().map(|held| &held.value.0);
    exposure_of(app, cluster, key.cluster_inst_or_empty().cloudlet_or_empty())
}

/// Takes the ports of an instance out of what is counted; each must be there.
fn give_back_ports(inst: &AppInst, left: &mut CloudletRefs, found: &mut Vec<String>) {
    for port in &inst.mapped_ports {
        let bit = match LProto::try_from(port.proto) {
            Ok(LProto::Tcp) => 1,
            Ok(LProto::Udp) => 2,
            _ => continue,
        };
        let held = left.root_lb_ports.entry(port.public_port).or_default();
        if *held & bit == 0 {
            let key = inst.object_key().text();
            found
                .push(format!("port {} of {key} is not counted, or twice given", port.public_port));
        }
        *held &= !bit;
        if *held == 0 {
            left.root_lb_ports.remove(&port.public_port);
        }
    }
}

fn check_clusters(tables: &Tables, found: &mut Vec<String>) {
    let mut expected: BTreeMap<String, ClusterRefs> = BTreeMap::new();
    for held in tables.app_insts.list() {
        let inst = &held.value.0;
        let cluster_key = inst.object_key().cluster_inst_or_empty();
        let app = tables.get::<App>(inst.object_key().app_or_empty());
        let in_cluster = app.is_none_or(|app| deployment::needs_cluster(&app.value.0.deployment));
        if !in_cluster || names::is_default_cloudlet(cluster_key.cloudlet_or_empty()) {
            continue;
        }
        if tables.get::<ClusterInst>(cluster_key).is_none() {
            found.push(format!("{} has no cluster", inst.object_key().text()));
        }
        let flavor = flavor(tables, inst.flavor.as_ref(), inst.size.as_ref());
        let refs = expected.entry(cluster_key.text()).or_insert_with(|| ClusterRefs {
            key: Some(cluster_key.clone()),
            ..Default::default()
        });
        refs.apps.push(inst.object_key().app_or_empty().clone());
        refs.used_ram += flavor.ram;
        refs.used_vcores += flavor.vcpus;
        refs.used_disk += flavor.disk;
    }
    let sorted = |mut refs: ClusterRefs| {
        refs.apps.sort_by_key(KeyText::text);
        refs
    };
    let kept = tables.cluster_refs.list();
    let kept: BTreeMap<_, _> =
        kept.iter().map(|held| (held.key.clone(), sorted(held.value.0.clone()))).collect();
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(key, refs)| (key, sorted(refs))).collect();
    if kept != expected {
        found.push(format!("clusters count {kept:?} where {expected:?} is used"));
    }
}
