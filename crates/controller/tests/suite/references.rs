//! References that keep an object from being deleted, and objects that go with
//! it.

use selvage_api::Code;
use selvage_api::edgeproto as wire;
use wire::Liveness::{Dynamic, Static};

use super::harness::*;

const IN_USE: Code = Code::FailedPrecondition;

#[tokio::test]
async fn a_developer_is_kept_by_his_apps() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.apps().create_app(auto_delete(app("Acme", "two"))).await.unwrap();
    let refused = house.developers().delete_developer(developer("Acme")).await;
    assert_refused(refused, IN_USE, "Developer in use by Application");
    assert_eq!(house.controller.tables.apps.len(), 2, "nothing goes with what stays");
    house.apps().delete_app(app("Acme", "one")).await.unwrap();
    house.developers().delete_developer(developer("Acme")).await.unwrap();
    assert!(house.controller.tables.apps.is_empty(), "an AUTO_DELETE app goes with its developer");
}

#[tokio::test]
async fn an_app_that_cannot_go_keeps_its_developer() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(auto_delete(app("Acme", "one"))).await.unwrap();
    house.plant(app_inst("one", "west", Static)).await;
    let text = "Application in use by static Application Instance";
    assert_refused(house.developers().delete_developer(developer("Acme")).await, IN_USE, text);
    assert_refused(house.apps().delete_app(app("Acme", "one")).await, IN_USE, text);
    house.uproot(&app_inst("one", "west", Static)).await;
    house.developers().delete_developer(developer("Acme")).await.unwrap();
}

#[tokio::test]
async fn an_operator_is_kept_by_his_cloudlets() {
    let house = house().await;
    house.furnish().await;
    let refused = house.operators().delete_operator(operator("tmus")).await;
    assert_refused(refused, IN_USE, "Operator in use by Cloudlet");
    drain(house.cloudlets().delete_cloudlet(cloudlet("tmus", "west")).await).await.unwrap();
    house.operators().delete_operator(operator("tmus")).await.unwrap();
}

#[tokio::test]
async fn a_flavor_is_kept_by_clusters_then_apps_then_instances() {
    let house = house().await;
    house.furnish().await;
    let delete = || async { house.flavors().delete_flavor(flavor("x1.small")).await };
    house.plant(cluster_inst("west", "small", Static)).await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.plant(app_inst("two", "west", Static)).await;
    house.clusters().create_cluster(cluster("c", "x1.small")).await.unwrap();

    assert_refused(delete().await, IN_USE, "Flavor in use by Cluster");
    house.uproot(&cluster_inst("west", "small", Static)).await;
    assert_refused(delete().await, IN_USE, "Flavor in use by Cluster");
    house.clusters().delete_cluster(cluster("c", "x1.small")).await.unwrap();
    assert_refused(delete().await, IN_USE, "Flavor in use by App");
    house.apps().delete_app(app("Acme", "one")).await.unwrap();
    house.apps().create_app(auto_delete(app("Acme", "one"))).await.unwrap();
    assert_refused(delete().await, IN_USE, "Flavor in use by App Instance");
    assert_eq!(house.controller.tables.apps.len(), 1, "a refused delete takes nothing along");
    house.uproot(&app_inst("two", "west", Static)).await;
    delete().await.unwrap();
    assert!(house.controller.tables.apps.is_empty());
}

#[tokio::test]
async fn a_cluster_is_kept_by_instances_of_that_name() {
    let house = house().await;
    house.furnish().await;
    house.clusters().create_cluster(cluster("small", "")).await.unwrap();
    house.plant(cluster_inst("elsewhere", "small", Dynamic)).await;
    let refused = house.clusters().delete_cluster(cluster("small", "")).await;
    assert_refused(refused, IN_USE, "Cluster in use by ClusterInst");
}

#[tokio::test]
async fn a_cloudlet_is_kept_by_static_instances() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.apps().create_app(auto_delete(app("Acme", "auto"))).await.unwrap();
    let delete = || async {
        messages(house.cloudlets().delete_cloudlet(cloudlet("tmus", "west")).await).await
    };
    let by_app = "Cloudlet in use by static Application Instance";
    house.plant(app_inst("one", "west", Static)).await;
    house.plant(cluster_inst("west", "small", Static)).await;
    assert_refused(delete().await, IN_USE, by_app);
    house.uproot(&app_inst("one", "west", Static)).await;
    house.plant(app_inst("unknown", "west", Static)).await;
    assert_refused(delete().await, IN_USE, by_app);
    house.uproot(&app_inst("unknown", "west", Static)).await;
    house.plant(app_inst("auto", "west", Static)).await;
    assert_refused(delete().await, IN_USE, "Cloudlet in use by static Cluster Instance");
    house.uproot(&cluster_inst("west", "small", Static)).await;
    house.plant(cluster_inst("west", "small", Dynamic)).await;
    house.plant(app_inst("one", "west", Dynamic)).await;
    let refs = wire::CloudletRefs { key: cloudlet("tmus", "west").key, ..Default::default() };
    house.plant(refs).await;
    house.cloudlet_infos().inject_cloudlet_info(cloudlet_info("tmus", "west")).await.unwrap();

    assert_eq!(
        delete().await.unwrap(),
        [
            "Deleted AppInst successfully",
            "Deleted AppInst successfully",
            "Deleted ClusterInst successfully"
        ]
    );
    let tables = &house.controller.tables;
    assert!(tables.app_insts.is_empty() && tables.cluster_insts.is_empty());
    assert!(tables.cloudlets.is_empty() && tables.cloudlet_refs.is_empty());
    assert_eq!(tables.cloudlet_infos.len(), 1, "the info belongs to the agent");
}

#[tokio::test]
async fn dynamic_instances_go_with_their_app() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.plant(app_inst("one", "west", Dynamic)).await;
    house.apps().delete_app(app("Acme", "one")).await.unwrap();
    assert!(house.controller.tables.app_insts.is_empty());
}

#[tokio::test]
async fn what_was_refused_can_be_used_again_at_once() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    for number in 0..10 {
        assert!(house.flavors().delete_flavor(flavor("x1.small")).await.is_err());
        let name = format!("a{number}");
        house.apps().create_app(app("Acme", &name)).await.unwrap();
    }
}
