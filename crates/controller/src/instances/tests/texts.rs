//! Every refusal, in its order and its words.

use super::support::*;
use selvage_api::edgeproto::{
    AppInst, CloudletInfo, CloudletState, Cluster, ClusterInst, ClusterKey, CrmOverride, IpAccess,
    TrackedState,
};
use tonic::Code;

fn refused(answer: Answer) -> (Code, String) {
    let code = answer.error.as_ref().map_or(Code::Ok, tonic::Status::code);
    (code, answer.refused())
}

#[tokio::test]
async fn clusters_are_refused_in_order() {
    let world = World::with_cloudlet().await;
    let set = |change: &dyn Fn(&mut ClusterInst)| over(&cluster("one"), change);
    let elsewhere = |inst: &mut ClusterInst| {
        inst.key.as_mut().unwrap().cloudlet_key = Some(cloudlet_key("tmus", "nowhere"));
    };
    let cases: Vec<(ClusterInst, Code, &str)> = vec![
        (
            set(&|inst| {
                elsewhere(inst);
                inst.deployment = "vm".into();
            }),
            Code::Unavailable,
            "Cloudlet operator_key:<name:\"tmus\" > name:\"nowhere\"  not ready, state is CLOUDLET_STATE_NOT_PRESENT",
        ),
        (
            set(&|inst| inst.key.as_mut().unwrap().developer.clear()),
            Code::InvalidArgument,
            "Developer cannot be empty",
        ),
        (
            set(&|inst| inst.key.as_mut().unwrap().cluster_key = None),
            Code::InvalidArgument,
            "Cluster name cannot be empty",
        ),
        (
            set(&|inst| inst.deployment = "vm".into()),
            Code::InvalidArgument,
            "ClusterInst is not needed for deployment type vm, just create an AppInst directly",
        ),
        (
            set(&|inst| inst.deployment = "nomad".into()),
            Code::InvalidArgument,
            "Invalid deployment type nomad for ClusterInst",
        ),
        (
            set(&|inst| inst.num_masters = 2),
            Code::InvalidArgument,
            "NumMasters cannot be greater than 1",
        ),
        (set(&|inst| inst.num_nodes = 0), Code::Unimplemented, "Zero NumNodes not supported yet"),
        (
            set(&|inst| inst.num_nodes = 4_000_000_000),
            Code::InvalidArgument,
            "num_nodes cannot be 4000000000, the limit is 10000",
        ),
        (
            set(&|inst| inst.deployment = "docker".into()),
            Code::InvalidArgument,
            "NumMasters and NumNodes not applicable for deployment type docker",
        ),
        (
            set(&|inst| {
                inst.deployment = "docker".into();
                (inst.num_masters, inst.num_nodes) = (0, 0);
                inst.set_ip_access(IpAccess::Shared);
            }),
            Code::InvalidArgument,
            "IpAccess must be dedicated for deployment type docker",
        ),
        (
            set(&|inst| {
                inst.key.as_mut().unwrap().cluster_key = Some(ClusterKey { name: "a_b".into() })
            }),
            Code::InvalidArgument,
            "Invalid cluster name",
        ),
        (
            over(&cluster("autocluster1"), |_| {}),
            Code::InvalidArgument,
            "Cluster name prefix \"autocluster\" is reserved",
        ),
        (
            set(&|inst| {
                elsewhere(inst);
                inst.set_crm_override(CrmOverride::IgnoreCrm);
            }),
            Code::NotFound,
            "Specified Cloudlet not found",
        ),
        (
            set(&|inst| inst.flavor = None),
            Code::InvalidArgument,
            "No Flavor specified and no default Flavor for Cluster",
        ),
        (
            set(&|inst| inst.flavor = Some(flavor_key("nope"))),
            Code::NotFound,
            "Cluster flavor nope node flavor {} not found",
        ),
    ];
    for (inst, code, text) in cases {
        assert_eq!(refused(world.create_cluster(&inst).await), (code, text.to_owned()));
    }
    let unknown = set(&|inst| inst.ip_access = 77);
    assert_eq!(refused(world.create_cluster(&unknown).await).0, Code::InvalidArgument);
    assert!(world.controller.tables.cluster_insts.is_empty());
    assert!(world.controller.engine.list().is_empty());
}

#[tokio::test]
async fn a_cloudlet_without_a_word_from_its_crm_is_named() {
    let world = World::with_cloudlet().await;
    let key = cloudlet_key("tmus", "cloud-1");
    world.controller.tables.cloudlet_infos.delete(&crate::keys::KeyText::text(&key)).await.unwrap();
    let inst = over(&cluster("one"), |inst| inst.set_crm_override(CrmOverride::IgnoreCrm));
    assert_eq!(
        refused(world.create_cluster(&inst).await),
        (Code::NotFound, "No resource information found for Cloudlet {{tmus} cloud-1}".to_owned())
    );
}

#[tokio::test]
async fn a_definition_gives_the_default_flavor() {
    let world = World::with_cloudlet().await;
    world
        .put(Cluster {
            key: Some(ClusterKey { name: "one".into() }),
            default_flavor: Some(flavor_key("x1.tiny")),
            ..Default::default()
        })
        .await;
    let inst = over(&cluster("one"), |inst| inst.flavor = None);
    world.create_cluster(&inst).await.ok();
    assert_eq!(world.cluster(&inst).unwrap().flavor.unwrap().name, "x1.tiny");
    assert_eq!(
        refused(world.create_cluster(&inst).await),
        (Code::AlreadyExists, "Key already exists".to_owned())
    );
}

#[tokio::test]
async fn updates_and_deletions_of_clusters_are_refused_in_order() {
    let world = World::with_cloudlet().await;
    let inst = cluster("one");
    let masked = |fields: &[&str]| {
        over(&inst, |inst| inst.fields = fields.iter().map(|field| (*field).to_owned()).collect())
    };
    let update = async |inst: &ClusterInst| refused(world.update_cluster(inst).await);
    let text = |code, text: &str| (code, text.to_owned());
    assert_eq!(
        update(&masked(&[])).await,
        text(Code::InvalidArgument, "nothing specified to update")
    );
    assert_eq!(
        update(&masked(&["14", "13"])).await,
        text(Code::InvalidArgument, "some specified fields cannot be modified")
    );
    assert_eq!(update(&masked(&["14"])).await, text(Code::NotFound, "Key not found"));
    assert_eq!(refused(world.delete_cluster(&inst).await), text(Code::NotFound, "Key not found"));
    world.create_cluster(&inst).await.ok();
    let none = over(&masked(&["14"]), |inst| inst.num_nodes = 0);
    assert_eq!(update(&none).await.0, Code::Unimplemented);
    for (state, expected) in [
        (TrackedState::Creating, "cluster is not ready"),
        (TrackedState::Deleting, "ClusterInst busy, cannot update"),
        (TrackedState::Updating, "ClusterInst busy, cannot update"),
    ] {
        force(&world, &inst, state).await;
        assert_eq!(update(&masked(&["14"])).await, text(Code::FailedPrecondition, expected));
    }
    for state in [TrackedState::Creating, TrackedState::Updating, TrackedState::Deleting] {
        force(&world, &inst, state).await;
        let answer = world.delete_cluster(&inst).await;
        assert_eq!(refused(answer).1, "ClusterInst busy, cannot delete");
    }
    force(&world, &inst, TrackedState::DeleteError).await;
    assert_eq!(
        world.delete_cluster(&inst).await.all(),
        [
            "Previous delete failed, [why]",
            "Use CreateClusterInst to rebuild, and try again",
            "! ClusterInst busy, cannot delete",
        ]
    );
    world.create_cluster(&inst).await.ok();
    world.delete_cluster(&inst).await.ok();
    world.check();
}

/// Puts a ClusterInst into a state as if something had left it there.
async fn force(world: &World, inst: &ClusterInst, state: TrackedState) {
    let forced = over(&world.cluster(inst).unwrap(), |inst| {
        inst.set_state(state);
        inst.errors = vec!["why".into()];
    });
    world.put(forced).await;
}

#[tokio::test]
async fn a_docker_host_cannot_be_resized() {
    let world = World::with_cloudlet().await;
    let inst = over(&cluster("one"), |inst| {
        inst.deployment = "docker".into();
        (inst.num_masters, inst.num_nodes) = (0, 0);
    });
    world.create_cluster(&inst).await.ok();
    let resize = over(&inst, |inst| {
        inst.fields = vec!["14".into()];
        inst.num_nodes = 3;
    });
    assert_eq!(world.update_cluster(&resize).await.refused(), "cannot modify single node clusters");
}

#[tokio::test]
async fn apps_are_refused_in_order() {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.add_app(over(&app("compose", ""), |app| app.deployment = "docker".into())).await;
    world.create_cluster(&cluster("one")).await.ok();
    let set = |change: &dyn Fn(&mut AppInst)| over(&app_inst("app", "one"), change);
    let in_cloudlet = |inst: &mut AppInst, cloudlet: &str| {
        let key = inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        key.cloudlet_key = Some(cloudlet_key("tmus", cloudlet));
    };
    world
        .put(CloudletInfo {
            key: Some(cloudlet_key("tmus", "stray")),
            state: CloudletState::Ready.into(),
            ..Default::default()
        })
        .await;
    let cases: Vec<(AppInst, Code, &str)> = vec![
        (
            set(&|inst| {
                in_cloudlet(inst, "nowhere");
                inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap().developer =
                    "B".into();
            }),
            Code::Unavailable,
            "Cloudlet operator_key:<name:\"tmus\" > name:\"nowhere\"  not ready, state is CLOUDLET_STATE_NOT_PRESENT",
        ),
        (
            set(&|inst| {
                inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap().developer =
                    "B".into();
            }),
            Code::InvalidArgument,
            "Developer name mismatch between app: Acme and cluster inst: B",
        ),
        (
            set(&|inst| inst.key.as_mut().unwrap().app_key.as_mut().unwrap().name = "-".into()),
            Code::InvalidArgument,
            "Invalid app name",
        ),
        (set(&|inst| in_cloudlet(inst, "stray")), Code::NotFound, "Specified cloudlet not found"),
        (
            app_inst("app", ""),
            Code::InvalidArgument,
            "No cluster name specified. Create one first or use \"autocluster\" as the name to automatically create a ClusterInst",
        ),
        (app_inst("nope", "one"), Code::NotFound, "Specified app not found"),
        (app_inst("app", "two"), Code::NotFound, "Specified ClusterInst not found"),
        (
            app_inst("compose", "one"),
            Code::FailedPrecondition,
            "Cannot deploy docker App into kubernetes ClusterInst",
        ),
        (
            set(&|inst| inst.uri = "u".into()),
            Code::InvalidArgument,
            "Cannot specify URI u for non-default cloudlet",
        ),
        (
            set(&|inst| inst.flavor = Some(flavor_key("nope"))),
            Code::NotFound,
            "Flavor nope not found",
        ),
    ];
    for (inst, code, text) in cases {
        assert_eq!(refused(world.create_app(&inst).await), (code, text.to_owned()));
    }
    force(&world, &cluster("one"), TrackedState::Creating).await;
    let key = crate::row::StoredObject::key_text(&cluster("one"));
    assert_eq!(
        refused(world.create_app(&app_inst("app", "one")).await),
        (Code::FailedPrecondition, format!("ClusterInst {key} not ready"))
    );
    let inst = app_inst("app", "one");
    assert_eq!(world.delete_app(&inst).await.refused(), "Key not found");
    assert_eq!(world.update_app(&inst).await.refused(), "Key not found");
    assert!(world.controller.tables.app_insts.is_empty());
}

#[tokio::test]
async fn busy_apps_are_refused() {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.create_cluster(&cluster("one")).await.ok();
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    let force = async |state: TrackedState| {
        let forced = over(&world.app(&inst).unwrap(), |inst| {
            inst.set_state(state);
            inst.errors = vec!["why".into()];
        });
        world.put(forced).await;
    };
    for state in [TrackedState::Creating, TrackedState::Updating, TrackedState::Deleting] {
        force(state).await;
        let (code, text) = refused(world.delete_app(&inst).await);
        assert_eq!(
            (code, text.as_str()),
            (Code::FailedPrecondition, "AppInst busy, cannot delete")
        );
        assert_eq!(world.update_app(&inst).await.refused(), "AppInst busy, cannot update");
        assert_eq!(world.create_app(&inst).await.all(), ["! Key already exists"]);
    }
    force(TrackedState::CreateError).await;
    assert_eq!(
        world.create_app(&inst).await.all(),
        [
            "Previous create failed, [why]",
            "Use DeleteAppInst to remove and try again",
            "! Key already exists",
        ]
    );
    force(TrackedState::DeleteError).await;
    world.create_app(&inst).await.ok();
    force(TrackedState::DeleteError).await;
    world.delete_app(&inst).await.ok();
    world.check();
}

/// Nobody hears of readiness, or of what is not found, who named nothing.
#[tokio::test]
async fn an_empty_key_is_refused_by_the_name_of_what_is_missing() {
    let world = World::new().await;
    let missing = |text: &str| (Code::InvalidArgument, text.to_owned());
    let (nobody, text) = (ClusterInst::default(), "Developer cannot be empty");
    assert_eq!(refused(world.create_cluster(&nobody).await), missing(text));
    assert_eq!(refused(world.update_cluster(&nobody).await), missing(text));
    assert_eq!(refused(world.delete_cluster(&nobody).await), missing(text));
    let (nobody, text) = (AppInst::default(), "App developer cannot be empty");
    assert_eq!(refused(world.create_app(&nobody).await), missing(text));
    assert_eq!(refused(world.update_app(&nobody).await), missing(text));
    assert_eq!(refused(world.delete_app(&nobody).await), missing(text));
    let nowhere = over(&app_inst("app", "one"), |inst| {
        inst.key.as_mut().unwrap().cluster_inst_key = None;
    });
    let text = "Cloudlet name cannot be empty";
    assert_eq!(refused(world.create_app(&nowhere).await), missing(text));
}
