//! `stats.StatsService` without Ceph and Kubernetes, and the age of answers.

use std::time::Duration;

use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    resources::stats::{Pools, ResourceStatus, Usage},
    selvage::dashboard::GetOverviewRequest,
    stats::{
        GetClusterNodesRequest, GetClusterRadarRequest, GetClusterResourcesRequest,
        GetClusterStatsRequest,
    },
};
use selvage_dashboard::{
    facts::{
        Backups, Cloudlet, Data, Group, Host, Instance, Io, KaasCluster, Machine, Node, Objects,
        Resource, Section, Storage, Volume, Volumes,
    },
    source::Failure,
};
use tonic::Code;

use super::lab::{Lab, SOURCE, STALE, noon, object};

fn machine(name: &str, seen: i64) -> Machine {
    Machine {
        object: object("machine", &format!("node/{name}"), ""),
        name: name.into(),
        roles: vec!["node".into()],
        address: "10.0.0.7:8443".into(),
        joined: Some(noon()),
        last_seen: Some(noon() - jiff::SignedDuration::from_secs(seen)),
        certificate_ends: None,
        copy_suspected: None,
        blocked: false,
    }
}

fn cloudlet(name: &str, state: CloudletState) -> Cloudlet {
    let object = object("cloudlet", &format!("tmus/{name}"), "tmus");
    Cloudlet { object, location: Some((1.0, 2.0)), state, errors: Vec::new() }
}

fn group(name: &str, size: u64, free: u64) -> Group {
    let object = object("volume_group", name, "");
    Group { object, size, free, missing: false, parent: None, written: 0 }
}

fn volume(group: &str, name: &str) -> Volume {
    Volume { group: group.into(), name: name.into(), snapshot: false, pending: false }
}

fn instance(state: TrackedState) -> Instance {
    Instance {
        object: object("appinst", "acme/shop:1.0@tmus/c1/auto", "acme"),
        cloudlet: "tmus/c1".into(),
        state,
        errors: Vec::new(),
        unhealthy: String::new(),
        restarts: 0,
        started_again: 0,
        last_reason: String::new(),
        revision: 1,
    }
}

#[tokio::test]
async fn without_ceph_the_fields_tell_of_volumes_and_machines() {
    let lab = Lab::new().await;
    let groups = vec![group("one", 1000, 600), group("two", 1000, 900)];
    let volumes = Volumes { groups, classes: 3, volumes: vec![volume("one", "a"); 7] };
    lab.tell(Data::Volumes(volumes.into()));
    let io = Io { read_bytes: 1024.0, reads: 3.0, ..Io::default() };
    let host = |name: &str| Host { name: name.into(), io, ..Host::default() };
    lab.tell(Data::Hosts(vec![host("a"), host("b")].into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    let stats = reply.into_inner().stats.unwrap();
    assert_eq!((stats.id.as_str(), stats.status.as_str()), ("system-1", "HEALTH_OK"));
    assert_eq!(stats.services, None);
    let data = stats.data.unwrap();
    assert_eq!((data.volumes, data.pools), (7, Some(Pools { pools: 3, pgs: None })));
    assert_eq!(data.usage, Some(Usage { used: 500, available: 1500, total: 2000 }));
    assert_eq!(stats.io.unwrap().client_read, "2.00 KiB/s rd");
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    assert_eq!(reply.into_inner().radar.unwrap().capacity_used, 25.0);
    let reply = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap();
    let radar = reply.into_inner().radar;
    let capacity = radar.iter().find(|mark| mark.name == "capacity_used").unwrap();
    let points: Vec<f64> = capacity.reasons.iter().map(|reason| reason.points).collect();
    assert_eq!(points, [20.0, 5.0], "each group takes its part of the 25");
}

#[tokio::test]
async fn a_thin_pool_is_counted_once_and_by_what_is_written_to_it() {
    let lab = Lab::new().await;
    // A pool of 500 of the 1000 of its group, with 100 written to it; 100 more of
    // the group are thick volumes. The other pool's group has no class of its own.
    let pool = |name: &str, written| {
        let parent = name.split('/').next().map(str::to_owned);
        Group { parent, written, ..group(name, 500, 300) }
    };
    let groups = vec![group("vg", 1000, 400), pool("vg/thin", 100), pool("other/thin", 50)];
    lab.tell(Data::Volumes(Volumes { groups, ..Volumes::default() }.into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    let usage = reply.into_inner().stats.unwrap().data.unwrap().usage;
    assert_eq!(usage, Some(Usage { used: 200 + 200, available: 1100, total: 1500 }));
    let reply = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap();
    let radar = reply.into_inner().radar;
    let capacity = radar.iter().find(|mark| mark.name == "capacity_used").unwrap();
    assert_eq!(capacity.value, 26.7);
    let named: Vec<&str> =
        capacity.reasons.iter().map(|r| r.object.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(named, ["vg", "other/thin"]);
}

#[tokio::test]
async fn volumes_are_healthy_while_they_are_whole() {
    let lab = Lab::new().await;
    let gone = Group { missing: true, ..group("gone", 0, 0) };
    let filling = Volume { pending: true, ..volume("vg", "b") };
    let volumes = Volumes {
        groups: vec![group("vg", 100, 50), gone],
        classes: 2,
        volumes: vec![volume("vg", "a"), filling, volume("gone", "c")],
    };
    lab.tell(Data::Volumes(volumes.into()));
    let reply = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap();
    let counts = reply.into_inner().counts;
    let count = counts.iter().find(|count| count.kind == "volume").unwrap();
    assert_eq!((count.total, count.healthy), (3, 1));
    let states: Vec<(&str, u32)> = count.states.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(states, [("incomplete", 1), ("missing", 1), ("ready", 1)]);
}

#[tokio::test]
async fn the_status_goes_by_the_worst_problem() {
    let lab = Lab::new().await;
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Offline)].into()));
    lab.tell(Data::Volumes(Volumes::default().into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    let stats = reply.into_inner().stats.unwrap();
    assert_eq!(stats.status, "HEALTH_ERR");
    assert_eq!(stats.crashes[0].description, "Cloudlet tmus/c1 is offline");
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    let mut looping = instance(TrackedState::Ready);
    looping.restarts = 3;
    looping.unhealthy = "port 80: connection refused".into();
    lab.tell(Data::Instances(vec![looping].into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    let texts: Vec<String> =
        reply.into_inner().stats.unwrap().crashes.into_iter().map(|c| c.description).collect();
    assert_eq!(
        texts,
        [
            "Instance acme/shop:1.0@tmus/c1/auto does not answer",
            "crash: Instance acme/shop:1.0@tmus/c1/auto crashes again and again",
        ]
    );
}

#[tokio::test]
async fn nodes_are_the_machines_that_joined() {
    let lab = Lab::new().await;
    let mut blocked = machine("c", 0);
    blocked.blocked = true;
    let mut silent = machine("d", 0);
    silent.last_seen = None;
    let machines = vec![machine("a", 10), machine("b", 3600), blocked, silent];
    lab.tell(Data::Machines(machines.into()));
    let reply = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap();
    let nodes = reply.into_inner().nodes;
    let states: Vec<(&str, ResourceStatus)> =
        nodes.iter().map(|node| (node.name.as_str(), node.status())).collect();
    use ResourceStatus::{ResourceNotReady, ResourceReady, ResourceUnknown};
    assert_eq!(
        states,
        [
            ("a", ResourceReady),
            ("b", ResourceNotReady),
            ("c", ResourceNotReady),
            ("d", ResourceUnknown)
        ]
    );
    assert_eq!((nodes[0].internal_ip.as_str(), nodes[0].age.is_some()), ("10.0.0.7", true));
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    // One of four, not 0 or 100: nobody knows of the one that never reported.
    assert_eq!(reply.into_inner().radar.unwrap().nodes_health, 25.0);
    let overview = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap().into_inner();
    let count = overview.counts.iter().find(|count| count.kind == "machine").unwrap();
    assert_eq!((count.total, count.healthy), (4, 1));
    assert_eq!(count.states.get("never reported"), Some(&1));
    let nodes = overview.radar.iter().find(|mark| mark.name == "nodes_health").unwrap();
    let texts: Vec<&str> = nodes.reasons.iter().map(|reason| reason.text.as_str()).collect();
    assert_eq!(texts, ["node/b is away", "node/c is blocked", "node/d never reported"]);
    // An agent that does not answer is away, whenever it reported.
    let dead = Host { name: "a".into(), error: "connection refused".into(), ..Host::default() };
    lab.tell(Data::Hosts(vec![dead].into()));
    let reply = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap();
    assert_eq!(reply.into_inner().nodes[0].status(), ResourceNotReady);
}

#[tokio::test]
async fn kubernetes_comes_first_where_there_is_one() {
    let lab = Lab::new().await;
    lab.tell(Data::Machines(vec![machine("a", 0)].into()));
    let node = Node {
        name: "worker".into(),
        ready: None,
        cordoned: false,
        roles: vec!["storage".into()],
        internal_ip: "10.1.0.1".into(),
        external_ip: "192.0.2.1".into(),
        created: Some(noon()),
    };
    lab.tell(Data::Nodes(vec![node].into()));
    let resource = |kind: &str, ready| Resource {
        api_version: "ceph.rook.io/v1".into(),
        kind: kind.into(),
        namespace: "rook-ceph".into(),
        name: "x".into(),
        ready,
        message: String::new(),
    };
    let objects = Objects {
        resources: vec![resource("CephCluster", Some(true))],
        deployments: vec![resource("Deployment", Some(false))],
    };
    lab.tell(Data::Objects(objects.into()));
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::NotPresent)].into()));
    lab.tell(Data::Instances(vec![instance(TrackedState::Creating)].into()));
    let kaas = |name: &str, status| {
        let object = object("kaas", name, "acme");
        KaasCluster { object, status, message: String::new() }
    };
    use ClusterStatus::{Degraded, Running, StatusUnspecified};
    let clusters = [kaas("up", Running), kaas("half", Degraded), kaas("new", StatusUnspecified)];
    lab.tell(Data::Kaas(clusters.to_vec().into()));
    let reply = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap();
    let nodes = reply.into_inner().nodes;
    assert_eq!(nodes.len(), 1);
    assert_eq!((nodes[0].name.as_str(), nodes[0].status), ("worker", 0));
    let reply = lab.stats().get_cluster_resources(GetClusterResourcesRequest {}).await.unwrap();
    let reply = reply.into_inner();
    let shown = |list: &[selvage_api::resources::stats::ResourceInfo]| -> Vec<String> {
        let line = |info: &selvage_api::resources::stats::ResourceInfo| {
            format!("{} {} {} {}", info.kind, info.namespace, info.name, info.status)
        };
        list.iter().map(line).collect()
    };
    assert_eq!(
        shown(&reply.resources),
        [
            "CephCluster rook-ceph x 1",
            "Cloudlet tmus c1 0",
            "Cluster acme up 1",
            "Cluster acme half 2",
            "Cluster acme new 0",
        ]
    );
    assert_eq!(
        shown(&reply.deployments),
        ["Deployment rook-ceph x 2", "AppInst acme shop:1.0@tmus/c1/auto 2"]
    );
}

#[tokio::test]
async fn answers_carry_their_age_and_last_good_data_stays() {
    let lab = Lab::new().await;
    lab.answer(Section::Machines, Err(Failure::Failed("starting".into())));
    let early = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable);
    lab.tell(Data::Machines(vec![machine("a", 0)].into()));
    let age = async || {
        let reply = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap();
        assert_eq!(reply.get_ref().nodes.len(), 1);
        let text = |name: &str| reply.metadata().get(name).unwrap().to_str().unwrap().to_owned();
        (text("x-data-age-ms"), text("x-data-stale"))
    };
    assert_eq!(age().await, ("0".into(), "false".into()));
    lab.wait(Duration::from_millis(2500));
    assert_eq!(age().await, ("2500".into(), "false".into()));
    lab.answer(Section::Machines, Err(Failure::Failed("connection refused".into())));
    lab.wait(STALE);
    assert_eq!(age().await, ("12500".into(), "true".into()));
    lab.tell(Data::Machines(vec![machine("a", 0)].into()));
    assert_eq!(age().await, ("0".into(), "false".into()));
}

#[tokio::test]
async fn an_answer_is_as_old_as_what_its_status_goes_by() {
    let lab = Lab::new().await;
    lab.tell(Data::Volumes(Volumes::default().into()));
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    for section in [Section::Backups, Section::Process, Section::Hosts, Section::Operations] {
        lab.answer(section, Err(Failure::Absent));
    }
    lab.wait(STALE * 2);
    lab.tell(Data::Volumes(Volumes::default().into()));
    let stale = |metadata: &tonic::metadata::MetadataMap| {
        let text = |name: &str| metadata.get(name).unwrap().to_str().unwrap().to_owned();
        (text("x-data-age-ms"), text("x-data-stale"))
    };
    let old = ("20000".to_owned(), "true".to_owned());
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(stale(reply.metadata()), old, "cloudlets decide the status");
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    lab.tell(Data::Backups(Backups::default().into()));
    lab.wait(STALE * 2);
    lab.tell(Data::Volumes(Volumes::default().into()));
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    assert_eq!(stale(reply.metadata()), old, "backups decide the reliability");
}

#[tokio::test]
async fn the_first_answer_is_whole() {
    let lab = Lab::new().await;
    lab.dashboard.board().expect(SOURCE, Section::Volumes, STALE);
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    let early = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable);
    assert!(early.message().contains("volumes"), "{}", early.message());
    // One that never answers holds up nobody for long, and is told by the age.
    lab.wait(STALE * 2);
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(reply.metadata().get("x-data-stale").unwrap(), "true");
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(reply.metadata().get("x-data-stale").unwrap(), "true", "volumes are missing");
}

#[tokio::test]
async fn ceph_that_has_not_answered_yet_is_not_replaced_by_our_own_numbers() {
    let lab = Lab::new().await;
    lab.tell(Data::Volumes(Volumes::default().into()));
    lab.tell(Data::Machines(vec![machine("a", 0)].into()));
    let failed = || Err(Failure::Failed("connection refused".into()));
    lab.answer(Section::Storage, failed());
    lab.answer(Section::Nodes, failed());
    let refused = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("storage"), "{}", refused.message());
    let refused = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let refused = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    // Ours come without them all the same.
    lab.stats().get_cluster_resources(GetClusterResourcesRequest {}).await.unwrap();
    // Once Ceph has answered, its last numbers stay.
    let storage = Storage { id: "fsid".into(), status: "HEALTH_OK".into(), ..Storage::default() };
    lab.tell(Data::Storage(storage.into()));
    lab.answer(Section::Storage, failed());
    lab.tell(Data::Nodes(Vec::new().into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(reply.into_inner().stats.unwrap().id, "fsid");
    lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
}

#[tokio::test]
async fn the_age_is_that_of_the_source_that_is_shown() {
    let lab = Lab::new().await;
    let board = lab.dashboard.board();
    let storage = |id: &str| {
        let status = "HEALTH_OK".into();
        Ok(Data::Storage(Storage { id: id.into(), status, ..Storage::default() }.into()))
    };
    for (source, id) in [("ceph", "first"), ("ceph-mon", "second")] {
        board.expect(source, Section::Storage, STALE);
        board.report(source, Section::Storage, storage(id));
    }
    board.report("ceph", Section::Storage, Err(Failure::Failed("no manager".into())));
    lab.wait(STALE * 2);
    board.report("ceph-mon", Section::Storage, storage("second"));
    board.refresh();
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(reply.metadata().get("x-data-age-ms").unwrap(), "0");
    assert_eq!(reply.metadata().get("x-data-stale").unwrap(), "false");
    assert_eq!(reply.into_inner().stats.unwrap().id, "second");
}

#[tokio::test]
async fn what_is_not_there_fails_no_call() {
    let lab = Lab::new().await;
    for section in [
        Section::Storage,
        Section::Volumes,
        Section::Hosts,
        Section::Process,
        Section::Nodes,
        Section::Machines,
        Section::Objects,
        Section::Cloudlets,
        Section::Clusters,
        Section::Instances,
    ] {
        lab.answer(section, Err(Failure::Absent));
    }
    let stats = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    assert_eq!(stats.into_inner().stats.unwrap().data, None);
    let nodes = lab.stats().get_cluster_nodes(GetClusterNodesRequest {}).await.unwrap();
    assert!(nodes.into_inner().nodes.is_empty());
    let resources = lab.stats().get_cluster_resources(GetClusterResourcesRequest {}).await;
    assert!(resources.unwrap().into_inner().resources.is_empty());
    let radar = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    assert_eq!(radar.into_inner().radar.unwrap().nodes_health, 0.0);
}
