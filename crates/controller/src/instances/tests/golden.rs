//! The numbers of the original's own tests.

use super::support::*;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey, CloudletState,
    ClusterInst, DeveloperKey, FlavorInfo, ImageType, IpAccess, IpSupport,
};

const CLOUDLETS: [(&str, &str); 4] = [
    ("AT&T Inc.", "San Jose Site"),
    ("AT&T Inc.", "New York Site"),
    ("T-Mobile", "San Francisco Site"),
    ("Verizon", "Hawaii Site"),
];

fn cloudlet(number: usize) -> CloudletKey {
    let (operator, name) = CLOUDLETS[number];
    cloudlet_key(operator, name)
}

async fn world() -> World {
    let world = World::new().await;
    let offers: [&[(&str, u64, u64, u64)]; 4] = [
        &[
            ("flavor.tiny1", 1, 512, 10),
            ("flavor.tiny2", 1, 1024, 10),
            ("flavor.small", 2, 1024, 20),
            ("flavor.medium", 4, 4096, 40),
        ],
        &[("flavor.small1", 2, 2048, 10), ("flavor.small2", 2, 1024, 20)],
        &[
            ("flavor.medium1", 4, 8192, 80),
            ("flavor.medium2", 4, 4096, 40),
            ("flavor.medium3", 4, 2048, 20),
        ],
        &[("flavor.large", 8, 101_024, 100), ("flavor.medium", 4, 1, 1)],
    ];
    for (number, offer) in offers.into_iter().enumerate() {
        world
            .put(Cloudlet {
                key: Some(cloudlet(number)),
                ip_support: IpSupport::Dynamic.into(),
                num_dynamic_ips: 100,
                location: Some(Default::default()),
                ..Default::default()
            })
            .await;
        let flavors = offer.iter().map(|(name, vcpus, ram, disk)| FlavorInfo {
            name: (*name).into(),
            vcpus: *vcpus,
            ram: *ram,
            disk: *disk,
        });
        world
            .put(CloudletInfo {
                key: Some(cloudlet(number)),
                state: CloudletState::Ready.into(),
                flavors: flavors.collect(),
                ..Default::default()
            })
            .await;
    }
    world
}

/// Cluster, cloudlet, flavor, access, nodes.
const CLUSTERS: [(&str, usize, &str, IpAccess, u32); 7] = [
    ("Pillimos", 0, "x1.tiny", IpAccess::Dedicated, 2),
    ("Pillimos", 1, "x1.tiny", IpAccess::Shared, 2),
    ("Pillimos", 2, "x1.tiny", IpAccess::Unknown, 2),
    ("Ever.Ai", 0, "x1.small", IpAccess::Dedicated, 3),
    ("Ever.Ai", 1, "x1.small", IpAccess::Shared, 3),
    ("Untomt", 2, "x1.medium", IpAccess::Dedicated, 4),
    ("Big-Pillimos", 3, "x1.medium", IpAccess::Shared, 3),
];

const DEVELOPER: &str = "Niantic, Inc.";

fn cluster_inst(number: usize) -> ClusterInst {
    let (name, at, flavor, access, nodes) = CLUSTERS[number];
    let mut inst = ClusterInst {
        key: Some(cluster_key(name, cloudlet(at), DEVELOPER)),
        flavor: Some(flavor_key(flavor)),
        num_masters: 1,
        num_nodes: nodes,
        ..Default::default()
    };
    inst.set_ip_access(access);
    inst
}

fn named_app(name: &str) -> AppKey {
    AppKey {
        developer_key: Some(DeveloperKey { name: DEVELOPER.into() }),
        name: name.into(),
        version: "1.0.0".into(),
    }
}

fn assert_refs(
    world: &World,
    number: usize,
    used: u64,
    units: u64,
    ips: i32,
    ports: &[(i32, i32)],
) {
    let (operator, name) = CLOUDLETS[number];
    let refs = world.refs(operator, name);
    assert_eq!((refs.used_ram, refs.used_vcores, refs.used_disk), (used, units, units), "{name}");
    assert_eq!(refs.used_dynamic_ips, ips, "{name}");
    assert_eq!(refs.root_lb_ports, ports.iter().copied().collect(), "{name}");
}

#[tokio::test]
async fn what_is_used_after_clusters_and_after_apps() {
    let world = world().await;
    for number in 0..CLUSTERS.len() {
        world.create_cluster(&cluster_inst(number)).await.ok();
    }
    assert_refs(&world, 0, 11264, 11, 2, &[]);
    assert_refs(&world, 1, 11264, 11, 0, &[]);
    assert_refs(&world, 2, 23552, 23, 1, &[]);
    assert_refs(&world, 3, 16384, 16, 0, &[]);
    let node_flavors: Vec<_> = (0..CLUSTERS.len())
        .map(|number| world.cluster(&cluster_inst(number)).unwrap().node_flavor)
        .collect();
    assert_eq!(
        node_flavors,
        [
            "flavor.tiny2",
            "flavor.small2",
            "flavor.medium3",
            "flavor.medium",
            "flavor.small1",
            "flavor.medium2",
            "flavor.large",
        ]
    );
    let apps: [(&str, &str, &str, &str); 5] = [
        ("Pillimo Go!", "http:443,tcp:10002,udp:10002", "x1.tiny", ""),
        ("Pillimo Stay", "tcp:80,http:443", "x1.tiny", ""),
        ("Hunna Stoll Go! Go!", "tcp:443,udp:11111", "x1.small", ""),
        ("AI", "udp:1024", "x1.medium", ""),
        ("helmApp", "udp:2024", "x1.medium", "helm"),
    ];
    for (name, ports, flavor, deployment) in apps {
        let image = if deployment == "helm" { ImageType::Unknown } else { ImageType::Docker };
        world
            .add_app(App {
                key: Some(named_app(name)),
                image_type: image.into(),
                access_ports: ports.into(),
                default_flavor: Some(flavor_key(flavor)),
                deployment: deployment.into(),
                ..Default::default()
            })
            .await;
    }
    let inst = |app: usize, cluster: &str, at: usize| AppInst {
        key: Some(AppInstKey {
            app_key: Some(named_app(apps[app].0)),
            cluster_inst_key: Some(cluster_key(cluster, cloudlet(at), DEVELOPER)),
        }),
        ..Default::default()
    };
    let auto_dedicated = over(&inst(3, "autoclusterai", 2), |inst| {
        inst.set_auto_cluster_ip_access(IpAccess::Dedicated)
    });
    for inst in [
        inst(0, "Pillimos", 0),
        inst(0, "Ever.Ai", 0),
        inst(0, "Pillimos", 1),
        inst(1, "autocluster", 1),
        inst(2, "Pillimos", 2),
        auto_dedicated,
        inst(4, "Pillimos", 2),
    ] {
        world.create_app(&inst).await.ok();
    }
    assert_refs(&world, 0, 11264, 11, 2, &[]);
    assert_refs(&world, 1, 13312, 13, 0, &[(80, 1), (10002, 3)]);
    assert_refs(&world, 2, 31744, 31, 2, &[(2024, 2), (10000, 1), (11111, 2)]);
    assert_refs(&world, 3, 16384, 16, 0, &[]);
    world.check();
    let shared = inst(0, "Pillimos", 1);
    assert_eq!(world.app(&shared).unwrap().mapped_ports[1].fqdn_prefix, "pillimogo-tcp.");
}

/// A flavor that does not fit leaves nothing behind.
#[tokio::test]
async fn too_large_a_flavor_is_refused() {
    let world = world().await;
    let large = over(&cluster_inst(1), |inst| inst.flavor = Some(flavor_key("x1.large")));
    assert_eq!(
        world.create_cluster(&large).await.refused(),
        "no suitable platform flavor found for x1.large, please try a smaller flavor"
    );
    assert!(world.controller.tables.cloudlet_refs.is_empty());
}
