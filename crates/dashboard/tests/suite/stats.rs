//! `stats.StatsService` without Ceph and Kubernetes, and the age of answers.

use std::time::Duration;

use selvage_api::{
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
        Cloudlet, Data, Group, Host, Instance, Io, Machine, Node, Objects, Resource, Section,
        Volumes,
    },
    source::Failure,
};
use tonic::Code;

use super::lab::{Lab, STALE, noon, object};

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
    let group = |name: &str, size, free| Group {
        object: object("volume_group", name, ""),
        size,
        free,
        missing: false,
    };
    let groups = vec![group("one", 1000, 600), group("two", 1000, 900)];
    let volumes = Volumes { groups, classes: 3, count: 7, names: Vec::new() };
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
    // Two of four, not 0 or 100.
    assert_eq!(reply.into_inner().radar.unwrap().nodes_health, 50.0);
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
    assert_eq!(shown(&reply.resources), ["CephCluster rook-ceph x 1", "Cloudlet tmus c1 0"]);
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
