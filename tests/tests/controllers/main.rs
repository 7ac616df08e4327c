//! Several controllers on one etcd of three members: they answer alike, they
//! know of each other, and while they and the members of etcd are killed
//! nothing that was acknowledged is lost and nothing is given out twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{
        App, AppInst, CloudletRefs, ClusterInst, ClusterInstKey, ClusterRefs, Flavor, IpAccess,
        Node, TrackedState, app_api_client::AppApiClient, app_inst_api_client::AppInstApiClient,
        cloudlet_refs_api_client::CloudletRefsApiClient,
        cluster_inst_api_client::ClusterInstApiClient,
        cluster_refs_api_client::ClusterRefsApiClient, flavor_api_client::FlavorApiClient,
        node_api_client::NodeApiClient,
    },
    selvage::operations::{
        ListOperationsRequest, operation_service_client::OperationServiceClient,
    },
};
use selvage_tests::{
    Client,
    fleet::{Fleet, agreed, bounded, registered, show, until},
};

mod agents;
mod workload;

use workload::{FLAVOR_RAM, Known, Random, Thing, Workload, attach, excused, set_up};

// What has to be true in the end.

/// Waits until no operation is under way.
async fn settled(fleet: &Fleet) {
    until("operations to end", async || {
        for client in fleet.alive() {
            let mut api = OperationServiceClient::new(client.channel.clone());
            let active = ListOperationsRequest { active: true, ..ListOperationsRequest::default() };
            let reply = bounded(api.list_operations(client.request(active))).await;
            let operations = reply.map_err(|status| status.to_string())?.into_inner().operations;
            if !operations.is_empty() {
                return Err(format!("{operations:#?}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Waits for whoever looks after auto-clusters that outlived their instance:
/// when the store is gone at the wrong moment, one stays for now.
async fn swept(client: &Client) {
    until("unused auto-clusters to go", async || {
        let insts = show!(client, AppInstApiClient, show_app_inst, AppInst);
        let clusters = show!(client, ClusterInstApiClient, show_cluster_inst, ClusterInst);
        if clusters.len() > insts.len() { Err(format!("{clusters:#?}")) } else { Ok(()) }
    })
    .await;
}

/// Every acknowledged create is there and every acknowledged delete is not.
async fn check_acknowledged(client: &Client, known: &Known) {
    let mut there = BTreeSet::new();
    let flavors = show!(client, FlavorApiClient, show_flavor, Flavor);
    there.extend(flavors.into_iter().map(|flavor| Thing::Flavor(flavor.key.unwrap().name)));
    let apps = show!(client, AppApiClient, show_app, App);
    there.extend(apps.into_iter().map(|app| Thing::App(app.key.unwrap().name)));
    let insts = show!(client, AppInstApiClient, show_app_inst, AppInst);
    there.extend(
        insts.iter().map(|inst| {
            Thing::AppInst(cluster_of(inst).trim_start_matches("autocluster").to_owned())
        }),
    );
    let lost: Vec<_> = known.present.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let back: Vec<_> = known.deleted.intersection(&there).collect();
    assert!(back.is_empty(), "deleted and back: {back:?}");
}

fn cluster_of(inst: &AppInst) -> &str {
    let key = inst.key.as_ref().unwrap().cluster_inst_key.as_ref().unwrap();
    &key.cluster_key.as_ref().unwrap().name
}

/// Refs equal the sum of instances, nothing is given out twice, nothing is
/// half done or without its cluster.
async fn check_books(client: &Client) {
    let insts = show!(client, AppInstApiClient, show_app_inst, AppInst);
    let clusters = show!(client, ClusterInstApiClient, show_cluster_inst, ClusterInst);
    let refs = show!(client, CloudletRefsApiClient, show_cloudlet_refs, CloudletRefs).remove(0);

    let mut ports = BTreeMap::new();
    for inst in &insts {
        assert_eq!(inst.state(), TrackedState::Ready, "{inst:?}");
        assert_eq!(inst.mapped_ports.len(), 3, "{inst:?}");
        for port in &inst.mapped_ports {
            let bit = if port.proto() == LProto::Udp { 2 } else { 1 };
            let taken = ports.entry(port.public_port).or_insert(0);
            assert_eq!(*taken & bit, 0, "given twice: {port:?} of {inst:?}");
            *taken |= bit;
        }
    }
    assert_eq!(refs.root_lb_ports, ports);

    let name = |key: &ClusterInstKey| key.cluster_key.clone().unwrap().name;
    let mut used = 0;
    for cluster in &clusters {
        assert_eq!(cluster.state(), TrackedState::Ready, "{cluster:?}");
        assert_eq!(cluster.ip_access(), IpAccess::Shared, "{cluster:?}");
        used += FLAVOR_RAM * u64::from(cluster.num_masters + cluster.num_nodes);
    }
    assert_eq!(refs.used_ram, used);
    let made: BTreeSet<_> = clusters.iter().map(|inst| name(inst.key.as_ref().unwrap())).collect();
    let booked: Vec<_> = refs.clusters.iter().map(|cluster| cluster.name.clone()).collect();
    assert_eq!(booked.len(), made.len(), "{booked:?}");
    assert_eq!(booked.into_iter().collect::<BTreeSet<_>>(), made);

    let inhabited: BTreeSet<_> = insts.iter().map(|inst| cluster_of(inst).to_owned()).collect();
    assert_eq!(made, inhabited, "an auto-cluster is there as long as its instance");
    let refs = show!(client, ClusterRefsApiClient, show_cluster_refs, ClusterRefs);
    let peopled = refs.iter().filter(|refs| !refs.apps.is_empty());
    let peopled: BTreeSet<_> = peopled.map(|refs| name(refs.key.as_ref().unwrap())).collect();
    assert_eq!(peopled, inhabited);
}

// The tests.

#[tokio::test(flavor = "multi_thread")]
async fn all_controllers_answer_alike_and_survive_one_of_them() {
    let Some(mut fleet) = Fleet::start().await else { return };
    set_up(&fleet.client(0)).await;
    fleet.join().await;
    Thing::AppInst("one".into()).create(&fleet.client(1)).await.unwrap();
    fleet.join().await;
    Thing::AppInst("two".into()).create(&fleet.client(2)).await.unwrap();
    registered(&fleet).await;
    let before = agreed(&fleet).await;
    assert_eq!(before["/edgeproto.AppInstApi/ShowAppInst"].len(), 2);
    assert_eq!(before["/edgeproto.CloudletInfoApi/ShowCloudletInfo"].len(), 1);
    check_books(&fleet.client(0)).await;

    let dead = fleet.running[1].as_ref().unwrap().address().to_owned();
    fleet.kill(1);
    for client in fleet.alive() {
        let trailers = bounded(async {
            let mut api = NodeApiClient::new(client.channel.clone());
            let mut nodes = api.show_node(client.request(Node::default())).await?.into_inner();
            assert_eq!(nodes.message().await?, None, "no agent is connected");
            nodes.trailers().await
        });
        let trailers = trailers.await.unwrap().unwrap();
        assert_eq!(trailers.get("x-selvage-unreachable").unwrap().to_str().unwrap(), dead);
    }
    // What one made another removes, with the first one gone.
    Thing::AppInst("one".into()).delete(&fleet.client(2)).await.unwrap();
    registered(&fleet).await;

    fleet.revive(1).await;
    registered(&fleet).await;
    let after = agreed(&fleet).await;
    assert_eq!(after["/edgeproto.AppInstApi/ShowAppInst"].len(), 1);
    check_books(&fleet.client(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_while_plugs_are_pulled() {
    let Some(mut fleet) = Fleet::start().await else { return };
    set_up(&fleet.client(0)).await;
    fleet.join().await;
    let workload = Workload::start(&fleet, 8);
    workload.goes_on("nothing is broken", 30).await;

    fleet.kill(1);
    workload.goes_on("a controller is gone", 30).await;
    fleet.revive(1).await;
    let leader = fleet.etcd.leader();
    fleet.etcd.kill(leader);
    workload.goes_on("etcd lost its leader", 30).await;
    fleet.etcd.restart_unseen(leader);
    fleet.join().await;
    fleet.etcd.wait_until_it_follows(leader);
    workload.goes_on("there are three", 30).await;

    lose_the_majority(&mut fleet, &workload).await;
    let mut random = Random(3);
    for _ in 0..4 {
        pull_two_plugs(&mut fleet, &workload, &mut random).await;
    }

    let known = workload.end().await;
    assert!(known.wrong.is_empty(), "{:#?}", known.wrong);
    assert!(known.unanswered > 0, "no fault was felt");
    for done in [&known.present, &known.deleted] {
        assert!(done.iter().any(|thing| matches!(thing, Thing::AppInst(_))), "{done:?}");
    }
    settled(&fleet).await;
    swept(&fleet.alive().remove(0)).await;
    settled(&fleet).await;
    agreed(&fleet).await;
    for client in fleet.alive() {
        check_acknowledged(&client, &known).await;
        check_books(&client).await;
    }
    registered(&fleet).await;
}

/// A balancer must not be told that all is well.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_a_majority_is_not_ready() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let selvage = fleet.running[0].as_ref().unwrap();
    let (http, url) =
        (selvage_tests::client::http(selvage), format!("{}/readiness", selvage.endpoint()));
    let says = async |ready: bool| {
        until(&format!("ready: {ready}"), async || {
            let reply = http.get(&url).send().await.map_err(|error| error.to_string())?;
            let status = reply.status();
            if status.is_success() == ready {
                return Ok(());
            }
            Err(format!("{status}: {}", reply.text().await.unwrap_or_default()))
        })
        .await;
    };
    says(true).await;
    let gone = [fleet.etcd.follower(), fleet.etcd.leader()];
    gone.iter().for_each(|member| fleet.etcd.kill(*member));
    says(false).await;
    gone.iter().for_each(|member| fleet.etcd.restart_unseen(*member));
    says(true).await;
}

/// Two of three members of etcd gone: nothing can be acknowledged. One back,
/// and everything can.
async fn lose_the_majority(fleet: &mut Fleet, workload: &Workload) {
    let gone = [fleet.etcd.follower(), fleet.etcd.leader()];
    gone.iter().for_each(|member| fleet.etcd.kill(*member));
    let unheard = Thing::Flavor("unheard".into()).create(&fleet.client(0)).await;
    let status = unheard.expect_err("acknowledged by a minority");
    assert!(excused(&status), "{status:?}");
    fleet.etcd.restart_unseen(gone[1]);
    workload.goes_on("two members of etcd are left", 30).await;
    fleet.etcd.restart_unseen(gone[0]);
    fleet.etcd.wait_until_it_follows(gone[0]);
}

/// Kills a controller and a member of etcd at the same time, and brings both
/// back. The cloudlet's agent goes to a controller that is left.
async fn pull_two_plugs(fleet: &mut Fleet, workload: &Workload, random: &mut Random) {
    let (controller, member) = (random.below(3), random.below(3));
    fleet.kill(controller);
    fleet.etcd.kill(member);
    let other = fleet.client((controller + 1) % 3);
    until("the agent to be connected elsewhere", async || {
        attach(&other).await.map_err(|status| status.to_string())
    })
    .await;
    let what = format!("controller {controller} and member {member} of etcd are gone");
    workload.goes_on(&what, 30).await;
    fleet.revive(controller).await;
    fleet.etcd.restart_unseen(member);
    fleet.etcd.wait_until_it_follows(member);
}
