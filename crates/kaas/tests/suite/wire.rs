//! The eleven methods as clients see them.

use selvage_api::cnct::kaas::api::{
    ClusterStatus, CreateClusterMsg, DeleteClusterMsg, GetClusterListMsg, GetClusterMsg,
    GetClusterNodesStatusMsg, GetUpgradeClusterInformationMsg, GetVersionMsg, ScaleNodePoolMsg,
    UpgradeClusterMsg, cluster_server::Cluster, get_cluster_nodes_status_reply::MachineStatus,
};
use selvage_kaas::{
    ClusterApi, Compat,
    provider::sim::Fault,
    record::{Pool, pool_key},
};
use selvage_kit::identity::{Grant, Identity, Kind, Role};
use selvage_store::Table;
use tonic::{Code, Request};

use super::lab::{Lab, request};

fn identity(role: Role, organisation: &str) -> Identity {
    let grants = vec![Grant { role, organisation: organisation.into() }];
    Identity {
        name: role.name().into(),
        kind: Kind::User { session: "s".into(), expires: 0 },
        grants,
    }
}

fn by<T>(role: Role, organisation: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(identity(role, organisation));
    request
}

fn as_admin<T>(message: T) -> Request<T> {
    by(Role::Admin, "", message)
}

fn named(name: &str) -> GetClusterMsg {
    GetClusterMsg { name: name.into() }
}

fn precise(lab: &Lab) -> ClusterApi {
    ClusterApi::new(lab.manager.clone(), Compat::Precise)
}

#[tokio::test]
async fn a_kubeconfig_comes_after_the_api_answered_and_to_owners_alone() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    let developer = |message| by(Role::Developer, "acme", message);
    let made = api.create_cluster(developer(request("demo", "", 1, &[]))).await.unwrap();
    let item = made.into_inner().cluster.unwrap();
    assert_eq!(item.status(), ClusterStatus::Provisioning);
    let get = |role, organisation| api.get_cluster(by(role, organisation, named("demo")));
    let early = get(Role::Developer, "acme").await.unwrap().into_inner().cluster.unwrap();
    assert_eq!(early.kubeconfig, "");
    assert!(early.status_message.contains("0/1 control-plane"), "{}", early.status_message);
    lab.settle("demo").await;
    let ready = get(Role::Developer, "acme").await.unwrap().into_inner().cluster.unwrap();
    assert_eq!(ready.status(), ClusterStatus::Running);
    assert!(ready.kubeconfig.contains("client-key-data"));
    assert!(!format!("{ready:?}").contains("client-key-data"), "it shows in logs");
    let again = get(Role::Developer, "acme").await.unwrap().into_inner().cluster.unwrap();
    assert_eq!(ready.kubeconfig, again.kubeconfig);
    let others = get(Role::Developer, "other").await.unwrap_err();
    assert_eq!(others.code(), Code::NotFound);
    for (role, organisation) in [(Role::Operator, "tmus"), (Role::Viewer, "")] {
        let looks = get(role, organisation).await.unwrap().into_inner().cluster.unwrap();
        assert_eq!((looks.status(), looks.kubeconfig.as_str()), (ClusterStatus::Running, ""));
    }
    let admin = get(Role::Admin, "").await.unwrap().into_inner().cluster.unwrap();
    assert!(admin.kubeconfig.contains("client-key-data"));
}

#[tokio::test]
async fn lists_show_each_caller_what_is_theirs_in_order_and_in_pages() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    for (name, organisation) in [("c", "acme"), ("a", "acme"), ("b", "other")] {
        let asked = by(Role::Developer, organisation, request(name, "", 1, &[]));
        api.create_cluster(asked).await.unwrap();
    }
    let names = async |role, organisation| {
        let listed = api.get_cluster_list(by(role, organisation, GetClusterListMsg {})).await;
        let clusters = listed.unwrap().into_inner().clusters;
        clusters.into_iter().map(|cluster| cluster.name).collect::<Vec<_>>()
    };
    assert_eq!(names(Role::Developer, "acme").await, ["a", "c"]);
    assert_eq!(names(Role::Developer, "other").await, ["b"]);
    assert_eq!(names(Role::Viewer, "").await, ["a", "b", "c"]);
    let mut asked = as_admin(GetClusterListMsg {});
    asked.metadata_mut().insert("x-page-size", "2".parse().unwrap());
    let first = api.get_cluster_list(asked).await.unwrap();
    let next = first.metadata().get("x-next-page-token").unwrap().clone();
    assert_eq!((first.get_ref().clusters.len(), next.to_str().unwrap()), (2, "b"));
    let mut asked = as_admin(GetClusterListMsg {});
    asked.metadata_mut().insert("x-page-token", next);
    let rest = api.get_cluster_list(asked).await.unwrap();
    assert_eq!(rest.get_ref().clusters[0].name, "c");
    assert!(rest.metadata().get("x-next-page-token").is_none());
}

#[tokio::test]
async fn a_status_is_of_the_records_that_are_shown() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    lab.running("demo", 1, &[("a", 1)]).await;
    let status = async || {
        let listed = api.get_cluster_list(as_admin(GetClusterListMsg {})).await.unwrap();
        listed.into_inner().clusters[0].status()
    };
    assert_eq!(status().await, ClusterStatus::Running);
    // A pool that grew, before anybody has looked at the cluster since.
    let pools: std::sync::Arc<Table<Pool>> = Table::open(lab.store.clone()).await.unwrap();
    let grow = |pool: &mut Pool| {
        pool.count = 3;
        Ok::<_, selvage_store::Error>(())
    };
    pools.update(&pool_key("demo", "a"), grow).await.unwrap();
    while lab.manager.find("demo").unwrap().pools[0].count != 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(status().await, ClusterStatus::Reconciling);
    let get = api.get_cluster(as_admin(named("demo"))).await.unwrap().into_inner();
    assert_eq!(get.cluster.unwrap().status(), ClusterStatus::Reconciling);
}

#[tokio::test]
async fn nodes_are_listed_with_the_control_plane_first() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    lab.running("demo", 1, &[("a", 2)]).await;
    let asked = GetClusterNodesStatusMsg { cluster_name: "demo".into() };
    let nodes = api.get_cluster_nodes_status(as_admin(asked)).await.unwrap().into_inner();
    assert_eq!((nodes.name.as_str(), nodes.count), ("demo", 3));
    let first = &nodes.machines[0];
    assert_eq!((first.k8s_node_status.as_str(), first.k8s_version.as_str()), ("Ready", "1.35.8"));
    assert_eq!(first.maas_node_status, "Deployed");
    assert!(first.maas_system_id.starts_with("sim-") && first.maas_ip_addr.starts_with("198.51."));
}

async fn first_node(api: &ClusterApi) -> MachineStatus {
    let asked = GetClusterNodesStatusMsg { cluster_name: "demo".into() };
    let nodes = api.get_cluster_nodes_status(as_admin(asked)).await.unwrap().into_inner();
    nodes.machines[0].clone()
}

#[tokio::test]
async fn a_machine_shows_what_its_provider_says_of_it_all_the_way() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    lab.sim.slow_down(true);
    lab.create("demo", "1.35.8", 1, &[]).await.unwrap();
    lab.manager.reconcile("demo").await.unwrap();
    let node = first_node(&api).await;
    let shown = (node.k8s_node_status.as_str(), node.maas_node_status.as_str());
    assert_eq!(shown, ("Allocated", "Deploying"));
    // It fails, and cannot be given back at once.
    lab.sim.break_machine(&node.maas_system_id, true);
    lab.sim.fault(2, Fault::Refuse);
    lab.clock.advance(std::time::Duration::from_secs(1));
    lab.manager.reconcile("demo").await.unwrap();
    let failed = first_node(&api).await;
    assert_eq!(failed.maas_system_id, node.maas_system_id);
    let shown = (failed.k8s_node_status.as_str(), failed.maas_node_status.as_str());
    assert_eq!(shown, ("Releasing", "Failed deployment"));
}

#[tokio::test]
async fn a_node_is_shown_as_the_api_shows_it() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    lab.running("demo", 1, &[]).await;
    let name = lab.manager.find("demo").unwrap().machines[0].name.clone();
    let state = async || {
        lab.manager.check_soon("demo");
        lab.manager.reconcile("demo").await.unwrap();
        let node = first_node(&api).await;
        (node.k8s_node_status, node.k8s_version)
    };
    let shown = |state: &str, version: &str| (state.to_owned(), version.to_owned());
    assert_eq!(state().await, shown("Ready", "1.35.8"));
    lab.sim.cordon_by_hand("demo", &name, true);
    assert_eq!(state().await, shown("Ready,SchedulingDisabled", "1.35.8"));
    lab.sim.cordon_by_hand("demo", &name, false);
    assert_eq!(state().await, shown("Ready", "1.35.8"));
    lab.sim.replace_kubelet("demo", &name, "1.35.7");
    assert_eq!(state().await, shown("Ready", "1.35.7"));
    lab.sim.change_node("demo", &name, false, 0, false);
    assert_eq!(state().await, shown("NotReady", "1.35.7"));
    lab.sim.lose("demo", &name);
    assert_eq!(state().await, shown("Unknown", "1.35.7"));
}

#[tokio::test]
async fn wrong_requests_name_every_field_for_programs_too() {
    use prost::Message;
    let lab = Lab::new().await;
    let api = precise(&lab);
    let refused = api.create_cluster(as_admin(request("No", "9.9.9", 2, &[("a", -1)]))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for field in ["name:", "k8s_version:", "control_plane_nodes.count:", "[0].count:"] {
        assert!(refused.message().contains(field), "{}", refused.message());
    }
    #[derive(Clone, PartialEq, Message)]
    struct Status {
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }
    let details = Status::decode(refused.details()).unwrap().details;
    let detail = selvage_api::google::rpc::BadRequest::decode(details[0].value.as_slice());
    assert_eq!(detail.unwrap().field_violations.len(), 4);
}

#[tokio::test]
async fn compat_answers_with_the_originals_codes_and_texts() {
    let lab = Lab::new().await;
    let api = ClusterApi::new(lab.manager.clone(), Compat::ImsKaas);
    let missing = api.get_cluster(as_admin(named("c1"))).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let text = "CnctCluster.cluster.cnct.sds.samsung.com \"c1\" not found";
    assert_eq!(missing.message(), text);
    let create = || api.create_cluster(as_admin(request("c1", "1.35.8", 1, &[("a", 1)])));
    create().await.unwrap();
    let twice = create().await.unwrap_err();
    assert_eq!(
        (twice.code(), twice.message()),
        (Code::Internal, "namespaces \"c1\" already exists")
    );
    lab.settle("c1").await;
    let asked = GetClusterNodesStatusMsg { cluster_name: "c1".into() };
    let nodes = api.get_cluster_nodes_status(as_admin(asked)).await.unwrap().into_inner();
    assert_eq!(nodes.machines[0].k8s_node_status, "ReadyMachine");
    let asked = GetUpgradeClusterInformationMsg { name: "c1".into() };
    let upgrades = api.get_upgrade_cluster_information(as_admin(asked)).await.unwrap();
    assert_eq!((upgrades.get_ref().ok, upgrades.get_ref().versions.len()), (false, 1));
    let skip = UpgradeClusterMsg { name: "c1".into(), version: "1.37.1".into() };
    let refused = api.upgrade_cluster(as_admin(skip)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    let deleted = api.delete_cluster(as_admin(DeleteClusterMsg { name: "c1".into() })).await;
    assert_eq!(deleted.unwrap().into_inner().status, "Deleted");
}

#[tokio::test]
async fn a_version_out_of_reach_of_one_upgrade_has_a_reason() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let api = precise(&lab);
    let ask = async || {
        let asked = GetUpgradeClusterInformationMsg { name: "demo".into() };
        let answer = api.get_upgrade_cluster_information(as_admin(asked)).await.unwrap();
        let missing = answer.metadata().get("x-missing-versions");
        let missing = missing.map(|text| text.to_str().unwrap().to_owned());
        (answer.into_inner().versions, missing.unwrap_or_default())
    };
    let why = "1.37.1 skips a minor version: upgrade from 1.35.8 to 1.36 first";
    assert_eq!(ask().await, (vec!["1.36.4".to_owned()], why.to_owned()));
    lab.upgrade("demo", "1.36.4").await.unwrap();
    lab.settle("demo").await;
    assert_eq!(ask().await, (vec!["1.37.1".to_owned()], String::new()));
}

#[tokio::test]
async fn the_version_says_how_this_was_built() {
    let lab = Lab::new().await;
    let version = precise(&lab).get_version_information(as_admin(GetVersionMsg {})).await.unwrap();
    let version = version.into_inner().version_information.unwrap();
    assert!(version.git_version.starts_with('v') && !version.git_tree_state.is_empty());
    assert!(version.go_version.starts_with("rustc 1.") && version.compiler == "rustc");
}

#[tokio::test]
async fn seven_control_planes_are_made_with_a_warning() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    let create = async |name: &str, count: i32| {
        let made = api.create_cluster(as_admin(request(name, "", count, &[]))).await;
        made.unwrap().into_inner().cluster.unwrap().status_message
    };
    let seven = create("large", 7).await;
    assert!(seven.contains("Warning: 7 control planes make each write wait for 4"), "{seven}");
    let events = lab.manager.find("large").unwrap().cluster.events;
    assert!(events.iter().any(|event| event.message.starts_with("warning: 7 control")));
    let five = create("small", 5).await;
    assert!(!five.contains("arning"), "{five}");
}

#[tokio::test]
async fn empty_requests_are_answered_and_not_a_panic() {
    let lab = Lab::new().await;
    let api = precise(&lab);
    let code = api.create_cluster(as_admin(CreateClusterMsg::default())).await.unwrap_err().code();
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(api.get_cluster(as_admin(named(""))).await.unwrap_err().code(), Code::NotFound);
    let scale = api.scale_node_pool(as_admin(ScaleNodePoolMsg::default())).await.unwrap_err();
    assert_eq!(scale.code(), Code::NotFound);
    let upgrade = api.upgrade_cluster(as_admin(UpgradeClusterMsg::default())).await.unwrap_err();
    assert_eq!(upgrade.code(), Code::NotFound);
    // Nobody at all, which no listener lets in, owns nothing.
    let nobody = api.create_cluster(Request::new(request("demo", "", 1, &[]))).await.unwrap_err();
    assert_eq!(nobody.code(), Code::PermissionDenied);
}
