//! AppInsts: the streams, and what is left after each.

use super::support::*;
use crate::controller::Instances;
use futures::TryStreamExt;
use selvage_api::distributed_match_engine::LProto;
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::{
    AppInst, AppInstInfo, AppInstRuntime, CloudletInfo, CloudletState, DeleteType, IpAccess,
    TrackedState,
};

/// A cloudlet with a cluster `one` and an App.
async fn world(ports: &str) -> World {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", ports)).await;
    world.create_cluster(&cluster("one")).await.ok();
    world
}

#[tokio::test]
async fn names_are_in_the_zone_of_the_cloudlet_if_it_has_one() {
    let world = world("tcp:80").await;
    let key = cloudlet_key("tmus", "cloud-1");
    let mut info = world.controller.tables.get::<CloudletInfo>(&key).unwrap().value.0.clone();
    info.dns_zone = "edge.example".into();
    world.put(info).await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    assert_eq!(world.app(&inst).unwrap().uri, "cloud-1.tmus.edge.example");
    world.check();
}

/// Progress of the crm reaches the caller, and is gone when the work is done.
#[tokio::test]
async fn progress_of_an_instance_is_told() {
    let world = world("tcp:80").await;
    world.crm.set("Create", Manner::Waits(&["for port 80"]));
    let inst = over(&app_inst("app", "one"), |inst| inst.progress = "for nothing".into());
    assert_eq!(
        world.create_app(&inst).await.ok(),
        ["Creating", "for port 80", "Ready", "Created successfully"]
    );
    assert_eq!(world.app(&inst).unwrap().progress, "");
    world.check();
}

#[tokio::test]
async fn an_app_lives_and_dies_with_the_canonical_words() {
    let world = world("tcp:80,http:443,udp:10002").await;
    let inst = app_inst("app", "one");
    assert_eq!(world.create_app(&inst).await.ok(), ["Creating", "Ready", "Created successfully"]);
    let row = world.app(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::Ready);
    assert_eq!(row.uri, "cloud-1.tmus.selvage.internal");
    assert_eq!(row.flavor.clone().unwrap().name, "x1.small");
    assert_eq!(row.cloudlet_loc.unwrap().latitude, 31.0);
    assert_eq!(row.runtime_info.unwrap().container_ids, ["c1"]);
    let ports: Vec<_> = row
        .mapped_ports
        .iter()
        .map(|port| (port.proto(), port.public_port, port.path_prefix.as_str()))
        .collect();
    assert_eq!(
        ports,
        [(LProto::Tcp, 80, ""), (LProto::Http, 443, "acme/app10/p443"), (LProto::Udp, 10002, "")]
    );
    assert_eq!(row.mapped_ports[0].fqdn_prefix, "app-tcp.");
    let refs = world.refs("tmus", "cloud-1");
    assert_eq!(refs.root_lb_ports, [(80, 1), (10002, 2)].into());
    world.check();
    assert_eq!(
        world.delete_app(&inst).await.ok(),
        ["Deleting", "NotPresent", "Deleted AppInst successfully"]
    );
    assert!(world.refs("tmus", "cloud-1").root_lb_ports.is_empty());
    assert_eq!(world.app(&inst), None);
    world.check();
}

#[tokio::test]
async fn what_only_the_controller_may_set_is_not_taken_from_the_request() {
    let world = world("").await;
    let inst = over(&app_inst("app", "one"), |inst| {
        inst.set_state(TrackedState::Deleting);
        inst.errors = vec!["mine".into()];
        inst.mapped_ports = vec![Default::default()];
        inst.runtime_info =
            Some(AppInstRuntime { container_ids: vec!["mine".into()], ..Default::default() });
        inst.fields = vec!["4".into()];
    });
    world.create_app(&inst).await.ok();
    let row = world.app(&inst).unwrap();
    assert_eq!(row.state(), TrackedState::Ready);
    assert!(row.errors.is_empty() && row.mapped_ports.is_empty() && row.fields.is_empty());
    assert_eq!(row.runtime_info.unwrap().container_ids, ["c1"]);
}

#[tokio::test]
async fn a_failed_creation_leaves_nothing() {
    let world = world("tcp:80").await;
    world.crm.set("Create", Manner::Fails("crm create app inst failed"));
    assert_eq!(
        world.create_app(&app_inst("app", "one")).await.all(),
        [
            "Creating",
            "CreateError",
            "DELETING AppInst due to failure",
            "! Encountered failures: crm create app inst failed",
        ]
    );
    assert_eq!(world.app(&app_inst("app", "one")), None);
    assert!(world.refs("tmus", "cloud-1").root_lb_ports.is_empty());
    assert_eq!(world.crm.script.lock().reality.len(), 1);
    world.check();
}

#[tokio::test]
async fn a_failed_deletion_keeps_the_very_ports() {
    let world = world("tcp:443,tcp:80").await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    let before = world.app(&inst);
    world.crm.set("Delete", Manner::Fails("no way"));
    assert_eq!(
        world.delete_app(&inst).await.all(),
        [
            "Deleting",
            "DeleteError",
            "Recreating AppInst due to failure",
            "Created successfully",
            "! Encountered failures: no way",
        ]
    );
    assert_eq!(world.app(&inst), before);
    world.check();
}

#[tokio::test]
async fn ports_stay_reserved_until_the_crm_has_released_them() {
    let world = world("tcp:80").await;
    world.add_app(app("other", "tcp:80")).await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    world.crm.set("Delete", Manner::Hangs);
    let deleting = world.delete_app(&inst);
    let meanwhile = async {
        world.until_state(&inst, TrackedState::Deleting).await;
        world.create_app(&app_inst("other", "one")).await.ok();
        inst.tell(&world.service, TrackedState::NotPresent, &[], true).await;
        world.crm.script.lock().reality.remove(&crate::row::StoredObject::key_text(&inst));
    };
    let (answer, ()) = tokio::join!(deleting, meanwhile);
    answer.ok();
    assert_eq!(world.app(&app_inst("other", "one")).unwrap().mapped_ports[0].public_port, 10000);
    world.check();
}

#[tokio::test]
async fn dedicated_instances_touch_no_shared_ports() {
    let world = world("tcp:80").await;
    let dedicated = over(&cluster("two"), |inst| inst.set_ip_access(IpAccess::Dedicated));
    world.create_cluster(&dedicated).await.ok();
    world.create_app(&app_inst("app", "one")).await.ok();
    world.create_app(&app_inst("app", "two")).await.ok();
    let row = world.app(&app_inst("app", "two")).unwrap();
    assert_eq!(row.uri, "two.cloud-1.tmus.selvage.internal");
    assert_eq!(row.mapped_ports[0].public_port, 80);
    world.delete_app(&app_inst("app", "two")).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").root_lb_ports, [(80, 1)].into());
    world.check();
}

#[tokio::test]
async fn no_port_is_given_twice() {
    let world = world("tcp:80,udp:80").await;
    let names: Vec<_> = (0..32).map(|number| format!("app{number}")).collect();
    for name in &names {
        world.add_app(app(name, "tcp:80,udp:443")).await;
    }
    let insts: Vec<_> = names.iter().map(|name| app_inst(name, "one")).collect();
    let answers = futures::future::join_all(insts.iter().map(|inst| world.create_app(inst))).await;
    for answer in answers {
        answer.ok();
    }
    let mut given = std::collections::BTreeSet::new();
    for inst in &insts {
        for port in world.app(inst).unwrap().mapped_ports {
            assert!(given.insert((port.proto, port.public_port)), "{port:?} is given twice");
        }
    }
    assert_eq!(given.len(), 64);
    world.check();
}

#[tokio::test]
async fn an_update_applies_the_app_anew() {
    let world = world("tcp:80").await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    let before = world.app(&inst).unwrap();
    assert_eq!(world.update_app(&inst).await.ok(), ["Updating", "Ready", "Updated successfully"]);
    let revision = before.revision + 1;
    assert_eq!(world.app(&inst).unwrap(), AppInst { revision, ..before });
    world.crm.set("Update", Manner::Fails("x"));
    assert_eq!(world.update_app(&inst).await.refused(), "Encountered failures: x");
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::UpdateError);
    world.crm.set("Update", Manner::Works);
    assert_eq!(world.update_app(&inst).await.ok()[0], "previous update failed, [x], trying again");
    let masked = |field: &str| over(&inst, |inst| inst.fields = vec![field.into()]);
    assert_eq!(
        world.update_app(&masked("3.1")).await.refused(),
        "Cannot specify cloudlet location fields as they are inherited from specified cloudlet"
    );
    assert_eq!(
        world.update_app(&masked("12.1")).await.refused(),
        "specified field(s) flavor.name cannot be modified"
    );
    world.delete_app(&inst).await.ok();
    world.check();
}

/// The version of before runs on, and where it is reached may change.
#[tokio::test]
async fn a_failed_update_keeps_what_runs() {
    let world = world("tcp:80").await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    let runs = world.app(&inst).unwrap().runtime_info;
    assert!(runs.is_some());
    world.crm.set("Update", Manner::Fails("x"));
    assert_eq!(world.update_app(&inst).await.refused(), "Encountered failures: x");
    assert_eq!(world.app(&inst).unwrap().runtime_info, runs);
    let elsewhere =
        AppInstRuntime { addresses: vec!["10.1.1.1:80".into()], ..AppInstRuntime::default() };
    let info = AppInstInfo {
        key: inst.key.clone(),
        state: TrackedState::UpdateError.into(),
        runtime_info: Some(elsewhere.clone()),
        ..AppInstInfo::default()
    };
    world.service.app_inst_info(info, false).await;
    let row = world.app(&inst).unwrap();
    assert_eq!((row.state(), row.runtime_info), (TrackedState::UpdateError, Some(elsewhere)));
}

/// A machine is down while its new version takes its place.
#[tokio::test]
async fn an_instance_that_is_being_replaced_is_not_found() {
    let world = world("tcp:80").await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    world.crm.set("Update", Manner::Silent);
    let report = |state: TrackedState, unhealthy: &str| AppInstInfo {
        key: inst.key.clone(),
        state: state.into(),
        runtime_info: (!unhealthy.is_empty() || state == TrackedState::Ready).then(|| {
            AppInstRuntime {
                addresses: vec!["10.1.1.1:80".into()],
                unhealthy: unhealthy.into(),
                ..AppInstRuntime::default()
            }
        }),
        ..AppInstInfo::default()
    };
    let serves = || selvage_edge::is_serving(&world.app(&inst).unwrap());
    world.service.app_inst_info(report(TrackedState::Ready, ""), false).await;
    assert!(serves());
    let asked =
        AppInst { state: TrackedState::UpdateRequested.into(), ..world.app(&inst).unwrap() };
    world.put(asked).await;
    assert!(serves(), "nobody has touched it yet");
    world.service.app_inst_info(report(TrackedState::Updating, "is being replaced"), false).await;
    assert_eq!(world.app(&inst).unwrap().state(), TrackedState::Updating);
    assert!(!serves());
    world.service.app_inst_info(report(TrackedState::Ready, ""), false).await;
    assert!(serves());
}

#[tokio::test]
async fn the_default_cloudlet_needs_nothing_but_a_uri() {
    let world = World::new().await;
    world.add_app(app("app", "tcp:80")).await;
    let inst = over(&app_inst("app", "default"), |inst| {
        let key = inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        key.cloudlet_key = Some(cloudlet_key("developer", "default"));
        key.developer.clear();
    });
    assert_eq!(
        world.create_app(&inst).await.refused(),
        "URI (Public Fqdn) is required for default cloudlet"
    );
    let given = over(&inst, |inst| inst.uri = "a.example,b.example".into());
    assert_eq!(world.create_app(&given).await.ok(), ["Created successfully"]);
    let stored = over(&inst, |inst| {
        inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap().developer = "Acme".into();
    });
    let row = world.app(&stored).unwrap();
    assert_eq!((row.uri.as_str(), row.state()), ("a.example,b.example", TrackedState::Ready));
    assert_eq!(row.mapped_ports[0].public_port, 0);
    assert!(world.controller.tables.cloudlet_refs.is_empty());
    assert_eq!(world.update_app(&inst).await.ok(), ["Updated successfully"]);
    assert_eq!(world.delete_app(&inst).await.ok(), ["Deleted AppInst successfully"]);
    assert_eq!(world.app(&stored), None);
}

#[tokio::test]
async fn a_virtual_machine_needs_no_cluster_and_is_counted() {
    let world = World::with_cloudlet().await;
    world.add_app(vm_app("vm", "tcp:80")).await;
    let inst = app_inst("vm", "");
    world.create_app(&inst).await.ok();
    let row = world.app(&inst).unwrap();
    assert_eq!(row.uri, "acmevm10.cloud-1.tmus.selvage.internal");
    assert_eq!(row.mapped_ports[0].public_port, 80);
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 2048);
    world.check();
    world.delete_app(&inst).await.ok();
    assert_eq!(world.refs("tmus", "cloud-1").used_ram, 0);
    world.check();
}

#[tokio::test]
async fn clouds_with_an_address_per_service_name_every_app() {
    let world = World::new().await;
    world.add_cloudlet("azure", "cloud-9", 1).await;
    world.add_app(app("app", "tcp:80,http:443")).await;
    let inst = over(&app_inst("app", "autoclusterapp"), |inst| {
        let key = inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        key.cloudlet_key = Some(cloudlet_key("azure", "cloud-9"));
    });
    world.create_app(&inst).await.ok();
    let row = world.app(&inst).unwrap();
    assert_eq!(row.uri, "acmeapp10.autoclusterapp.cloud-9.azure.selvage.internal");
    assert!(row.mapped_ports.iter().all(|port| port.proto() == LProto::Tcp));
    world.delete_app(&inst).await.ok();
    assert_eq!(world.refs("azure", "cloud-9").used_dynamic_ips, 0);
    world.check();
}

#[tokio::test]
async fn apps_that_go_with_their_cluster_go_first() {
    let world = world("tcp:80").await;
    for name in ["side1", "side2"] {
        world.add_app(over(&app(name, ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
        world.create_app(&app_inst(name, "one")).await.ok();
    }
    world.create_app(&app_inst("app", "one")).await.ok();
    assert_eq!(
        world.delete_cluster(&cluster("one")).await.refused(),
        "ClusterInst in use by Application Instance"
    );
    world.delete_app(&app_inst("app", "one")).await.ok();
    let triple = ["Deleting", "NotPresent", "Deleted AppInst successfully"];
    let mut expected = Vec::new();
    for name in ["side1", "side2"] {
        expected.push(format!("Autodeleting appinst {name}"));
        expected.extend(triple.map(str::to_owned));
    }
    expected
        .extend(["Deleting", "NotPresent", "Deleted ClusterInst successfully"].map(str::to_owned));
    assert_eq!(world.delete_cluster(&cluster("one")).await.ok(), expected);
    assert!(world.crm.script.lock().reality.is_empty());
    world.check();
}

#[tokio::test]
async fn an_app_that_will_not_go_keeps_its_cluster_as_it_was() {
    let world = world("").await;
    world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
    world.create_app(&app_inst("side", "one")).await.ok();
    world.crm.set("Delete AppInst", Manner::Fails("stuck"));
    let answer = world.delete_cluster(&cluster("one")).await;
    assert_eq!(
        answer.refused(),
        "Failed to auto-delete applications from clusterInst one, Encountered failures: stuck"
    );
    assert_eq!(world.cluster(&cluster("one")).unwrap().state(), TrackedState::Ready);
    assert_eq!(world.app(&app_inst("side", "one")).unwrap().state(), TrackedState::Ready);
    world.check();
}

/// While its cluster is deleted an App that is busy is tried again.
#[tokio::test]
async fn a_busy_app_is_waited_for() {
    let world = world("").await;
    world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
    let side = app_inst("side", "one");
    world.crm.set("Create AppInst", Manner::Hangs);
    let creating = world.create_app(&side);
    let deleting = async {
        world.until_state(&side, TrackedState::Creating).await;
        world.delete_cluster(&cluster("one")).await
    };
    let finishing = async {
        world.until_state(&cluster("one"), TrackedState::DeletePrepare).await;
        side.tell(&world.service, TrackedState::Ready, &[], false).await;
    };
    let all = async { tokio::join!(creating, deleting, finishing) };
    let (_, deleted, ()) = world.while_moments_pass(all).await;
    deleted.ok();
    assert_eq!(world.cluster(&cluster("one")), None);
    world.check();
}

#[tokio::test]
async fn a_cloudlet_that_is_away_takes_nothing() {
    let world = world("").await;
    let offline = |state: CloudletState| {
        let key = cloudlet_key("tmus", "cloud-1");
        let held = world.controller.tables.get::<CloudletInfo>(&key);
        over(&held.unwrap().value.0, |info| info.set_state(state))
    };
    let text = "Cloudlet operator_key:<name:\"tmus\" > name:\"cloud-1\"  not ready, state is CLOUDLET_STATE_OFFLINE";
    let inst = app_inst("app", "one");
    world.put(offline(CloudletState::Offline)).await;
    let answer = world.create_app(&inst).await;
    assert_eq!(answer.error.as_ref().unwrap().code(), tonic::Code::Unavailable);
    assert_eq!(answer.refused(), text);
    assert_eq!(world.delete_cluster(&cluster("one")).await.refused(), text);
    world.put(offline(CloudletState::Errors)).await;
    world.create_app(&inst).await.ok();
    world.put(offline(CloudletState::Offline)).await;
    assert_eq!(world.delete_app(&inst).await.refused(), text);
    assert_eq!(world.update_app(&inst).await.refused(), text);
}

/// Instances show at once that their cloudlet is away.
#[tokio::test]
async fn instances_of_a_cloudlet_that_is_away_are_not_healthy() {
    let world = world("tcp:80").await;
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    let unhealthy = async || {
        let shown = world.service.show_app_inst(tonic::Request::new(inst.clone())).await.unwrap();
        let shown: Vec<AppInst> = shown.into_inner().try_collect().await.unwrap();
        shown[0].runtime_info.clone().unwrap_or_default().unhealthy
    };
    assert_eq!(unhealthy().await, "");
    let key = cloudlet_key("tmus", "cloud-1");
    let held = world.controller.tables.get::<CloudletInfo>(&key).unwrap();
    for (state, outcome) in
        [(CloudletState::Offline, "its cloudlet is offline"), (CloudletState::Ready, "")]
    {
        world.put(over(&held.value.0, |info| info.set_state(state))).await;
        assert_eq!(unhealthy().await, outcome);
    }
}

#[tokio::test]
async fn a_cloudlet_with_errors_says_them_and_not_that_its_flavors_are_small() {
    let world = world("").await;
    let key = cloudlet_key("tmus", "cloud-1");
    let held = world.controller.tables.get::<CloudletInfo>(&key);
    let broken = over(&held.unwrap().value.0, |info: &mut CloudletInfo| {
        info.set_state(CloudletState::Errors);
        info.flavors.clear();
        info.errors = vec!["get limits failed: the cluster does not answer".into()];
    });
    world.put(broken).await;
    let answer = world.create_cluster(&cluster("two")).await;
    assert_eq!(answer.error.as_ref().unwrap().code(), tonic::Code::Unavailable);
    assert_eq!(
        answer.refused(),
        "Cloudlet operator_key:<name:\"tmus\" > name:\"cloud-1\"  cannot be used: get limits \
         failed: the cluster does not answer"
    );
}

#[tokio::test]
async fn a_missing_developer_of_the_cluster_is_the_apps() {
    let world = world("").await;
    let bare = over(&app_inst("app", "one"), |inst: &mut AppInst| {
        inst.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap().developer.clear();
    });
    assert_eq!(
        world.create_app(&bare).await.ok(),
        [
            "Setting ClusterInst developer to match App developer",
            "Creating",
            "Ready",
            "Created successfully",
        ]
    );
    assert!(world.app(&app_inst("app", "one")).is_some());
    world.delete_app(&bare).await.ok();
}

#[tokio::test]
async fn volumes_are_counted_and_enforced() {
    let clock = selvage_store::clock::ManualClock::new(1_000_000_000_000);
    let strict = crate::Settings { enforce_resources: true, ..settings() };
    let store = memory_store(&clock).await;
    let world = World::on(store, clock, std::sync::Arc::default(), strict).await;
    world.put(flavor("x1.small", 100, 1, 1)).await;
    world.add_cloudlet("tmus", "cloud-1", 254).await;
    let with = |volume: &str| {
        over(&app("app", "tcp:80"), |app| {
            app.deployment = "docker".into();
            app.annotations = format!("note, volume.data={volume}:/data");
        })
    };
    world.add_app(with("3000")).await;
    let (one, two) = (app_inst("app", "autocluster1"), app_inst("app", "autocluster2"));
    world.create_app(&one).await.ok();
    let used = || world.refs("tmus", "cloud-1").used_disk;
    assert_eq!((used(), world.app(&one).unwrap().volumes_gb), (3000, 3000));

    assert_eq!(world.create_app(&two).await.refused(), "Not enough Disk available");
    assert_eq!(world.cluster(&cluster("autocluster2")), None, "nothing is begun");
    // What an update asks for is counted with the update of the instance.
    for (size, outcome) in [("4000", Ok(4000)), ("5001", Err("Not enough Disk available"))] {
        world.put(with(size)).await;
        let answer = world.update_app(&one).await;
        match outcome {
            Ok(count) => {
                answer.ok();
                assert_eq!(used(), count);
            }
            Err(text) => assert_eq!(answer.refused(), text),
        }
    }
    assert_eq!(used(), 4000, "nothing was taken where it was refused");
    world.check();
    world.delete_app(&one).await.ok();
    assert_eq!(used(), 0);
    world.check();
}
