//! Operations of a crm without faults.

use selvage_api::edgeproto::{ExecRequest, TrackedState as S};
use selvage_sim::{
    Fault, FaultRule, Mode, ObjectKind, SimCrm, SimDme, SimFleet, SimOptions, Stage, Verb,
};

use crate::controller::{Controller, cluster, instance, place, until};

#[tokio::test]
async fn a_cloudlet_like_the_originals_fake_one() {
    let controller = Controller::start().await;
    let _crm = SimCrm::start(controller.options()).unwrap();
    until("a node", || controller.nodes.len() == 1).await;
    let info = controller.infos.find(&place()).unwrap();
    assert_eq!((info.os_max_ram, info.os_max_vcores, info.os_max_vol_gb), (500, 50, 5000));
    let flavor = &info.flavors[0];
    assert_eq!((flavor.name.as_str(), info.flavors.len()), ("flavor1", 1));
    assert_eq!((flavor.vcpus, flavor.ram, flavor.disk), (10, 101_024, 500));
    assert_eq!(controller.nodes.list()[0].key.as_ref().unwrap().name, "sim-west");
}

#[tokio::test]
async fn a_whole_life_leaves_nothing() {
    let controller = Controller::start().await;
    controller.prepare();
    let crm = SimCrm::start(controller.options()).unwrap();
    controller.ask_cluster("c", S::CreateRequested);
    controller.cluster_is("c", Some(S::Ready)).await;
    assert_eq!(controller.take_seen(), ["Creating", "Ready"]);
    controller.ask_instance("c", S::CreateRequested);
    controller.instance_is("c", Some(S::Ready)).await;
    let there = crm.infrastructure();
    assert_eq!(there.clusters.values().collect::<Vec<_>>(), [&2]);
    assert_eq!(there.instances.values().next().unwrap(), &["sim-go"]);
    let info = &controller.instance_infos.list()[0];
    assert_eq!(info.runtime_info.as_ref().unwrap().container_ids, ["sim-go"]);

    let mut larger = cluster("c", S::UpdateRequested);
    larger.num_nodes = 5;
    controller.clusters.put(larger).unwrap();
    controller.cluster_is("c", Some(S::Ready)).await;
    assert_eq!(crm.infrastructure().clusters.values().collect::<Vec<_>>(), [&5]);
    controller.ask_instance("c", S::UpdateRequested);
    controller.instance_is("c", Some(S::Ready)).await;
    controller.take_seen();

    controller.ask_instance("c", S::DeleteRequested);
    controller.instance_is("c", None).await;
    controller.ask_cluster("c", S::DeleteRequested);
    controller.cluster_is("c", None).await;
    assert_eq!(controller.take_seen(), ["Deleting", "gone", "Deleting", "gone"]);
    assert!(crm.infrastructure().is_empty());
    assert_eq!(crm.counters().done.values().sum::<u64>(), 6);
}

#[tokio::test]
async fn a_test_lets_every_report_go() {
    let controller = Controller::start().await;
    let options = SimOptions { mode: Mode::Explicit, ..controller.options() };
    let crm = SimCrm::start(options).unwrap();
    controller.ask_cluster("a", S::CreateRequested);
    controller.ask_cluster("b", S::CreateRequested);
    until("both wait", || crm.pending().len() == 2).await;
    assert!(controller.take_seen().is_empty());
    let step = crm.step_where(|step| step.key.contains("\"b\"")).await;
    assert_eq!(
        (step.kind, step.verb, step.stage),
        (ObjectKind::Cluster, Verb::Create, Stage::Begin)
    );
    controller.cluster_is("b", Some(S::Creating)).await;
    let step = crm.step_where(|step| step.stage == Stage::End).await;
    assert!(step.key.contains("\"b\""));
    controller.cluster_is("b", Some(S::Ready)).await;
    assert_eq!(controller.cluster_state("a"), Some(S::CreateRequested));
    assert!(crm.release(crm.pending()[0].id));
    controller.cluster_is("a", Some(S::Creating)).await;
    assert!(crm.step().await.key.contains("\"a\""));
    controller.cluster_is("a", Some(S::Ready)).await;
}

#[tokio::test]
async fn commands_are_answered() {
    // With the number of the request, and without, as the original does.
    for numbers in [true, false] {
        let mut controller = Controller::start().await;
        controller.prepare();
        let options = SimOptions { numbers, ..controller.options() };
        let crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.ask_instance("c", S::CreateRequested);
        controller.instance_is("c", Some(S::Ready)).await;
        let request = |name: &str, id: u64| ExecRequest {
            app_inst_key: instance(name, S::Ready).key,
            command: "echo hi".into(),
            offer: "o".into(),
            id,
            ..ExecRequest::default()
        };
        let sent_back = |id: u64| if numbers { id } else { 0 };
        assert_eq!(controller.server.post(&request("c", 7)).unwrap(), 1);
        let (answer, _) = controller.execs.recv().await.unwrap();
        let answered = ExecRequest {
            id: sent_back(7),
            answer: "sim-answer: echo hi".into(),
            ..request("c", 7)
        };
        assert_eq!(answer, answered);
        controller.server.post(&request("nowhere", 8)).unwrap();
        let (refused, _) = controller.execs.recv().await.unwrap();
        assert_eq!((refused.err.as_str(), refused.id), ("app inst go not found", sent_back(8)));
        assert_eq!(crm.counters().execs, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_and_an_engine() {
    let controller = Controller::start().await;
    controller.prepare();
    let engine = SimDme::start(controller.client(), "engine", place()).unwrap();
    let fleet = SimFleet::start(30, &controller.options()).unwrap();
    until("in sync", || fleet.in_sync() == 30 && controller.infos.len() == 30).await;
    for number in 0..30 {
        let mut one = cluster("c", S::CreateRequested);
        one.key.as_mut().unwrap().cloudlet_key = Some(SimFleet::cloudlet(number));
        controller.clusters.put(one.clone()).unwrap();
        let mut other = instance("c", S::CreateRequested);
        other.key.as_mut().unwrap().cluster_inst_key = one.key;
        controller.instances.put(other).unwrap();
    }
    until("all ready", || {
        controller.instances.list().iter().all(|object| object.state() == S::Ready)
    })
    .await;
    let there = fleet.infrastructure();
    assert_eq!((there.clusters.len(), there.instances.len()), (30, 30));
    until("engine", || engine.instances.list().iter().all(|i| i.state() == S::Ready)).await;
    assert_eq!((engine.instances.len(), engine.apps.len()), (30, 1));
    assert!(fleet.crms().iter().all(|crm| crm.instances().len() == 1 && crm.clusters().len() == 1));
    assert!(
        controller.nodes.list().iter().all(|n| n.key.as_ref().unwrap().name.starts_with("sim-"))
    );

    until("told so", || {
        let ready = |crm: &SimCrm| {
            crm.instances().list().iter().all(|i| i.state() == S::Ready)
                && crm.clusters().list().iter().all(|c| c.state() == S::Ready)
        };
        fleet.crms().iter().all(ready)
    })
    .await;
    let before = fleet.received();
    fleet.break_connections();
    let again = |crm: &SimCrm| {
        let status = crm.status().client;
        status.in_sync && status.stats.connects == 2
    };
    until("back", || fleet.crms().iter().all(again)).await;
    assert_eq!(fleet.received(), before, "nothing changed, nothing was sent");
}

#[tokio::test]
async fn a_crm_that_is_dropped_is_gone() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    until("there", || controller.infos.len() == 1).await;
    let fault = Fault::Crash { remember: true };
    crm.script(FaultRule::once(ObjectKind::Cluster, Verb::Create, fault));
    drop(crm);
    until("gone", || controller.infos.is_empty() && controller.server.peers().is_empty()).await;
}
