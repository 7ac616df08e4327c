//! Faults that a test injects.

use std::time::Duration;

use selvage_api::edgeproto::{App, TrackedState as S};
use selvage_notify::ObjectKey;
use selvage_sim::{ClusterUpdate, Fault, FaultRule, ObjectKind, Resync, SimCrm, SimOptions, Verb};

use crate::controller::{Controller, app_key, cluster, until};

fn failing(errors: &str, residue: bool) -> Fault {
    Fault::Fail { errors: vec![errors.into()], residue }
}

#[tokio::test]
async fn failures_say_what_the_original_says() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    controller.ask_cluster("c", S::CreateRequested);
    controller.cluster_is("c", Some(S::Ready)).await;
    controller.take_seen();
    // Neither its app nor its flavor is there, and the other's cluster is not.
    controller.ask_instance("c", S::CreateRequested);
    controller.apps.put(App { key: Some(app_key()), ..App::default() }).unwrap();
    controller.instance_is("c", Some(S::CreateError)).await;
    assert_eq!(controller.take_seen(), ["CreateError Flavor small not found"]);
    controller.prepare();
    controller.ask_instance("other", S::CreateRequested);
    controller.instance_is("other", Some(S::CreateError)).await;
    assert_eq!(controller.take_seen(), ["CreateError Cluster instance other not found"]);

    crm.script(FaultRule::once(ObjectKind::Instance, Verb::Create, failing("no room", false)));
    controller.ask_instance("c", S::CreateRequested);
    controller.instance_is("c", Some(S::CreateError)).await;
    let seen = controller.take_seen();
    assert_eq!(seen, ["Creating", "CreateError Create App Inst failed: no room"]);
    assert!(crm.infrastructure().instances.is_empty());

    let rule =
        FaultRule::always(ObjectKind::Cluster, Verb::Create, failing("disk", true)).of("bad");
    crm.script(rule);
    controller.ask_cluster("bad", S::CreateRequested);
    controller.ask_cluster("good", S::CreateRequested);
    controller.cluster_is("bad", Some(S::CreateError)).await;
    controller.cluster_is("good", Some(S::Ready)).await;
    assert_eq!(crm.infrastructure().clusters.len(), 3, "with what the failure left");
    controller.take_seen();

    crm.script(FaultRule::once(ObjectKind::Cluster, Verb::Delete, failing("locked", false)));
    controller.ask_cluster("good", S::DeleteRequested);
    controller.cluster_is("good", Some(S::DeleteError)).await;
    assert_eq!(controller.take_seen(), ["Deleting", "DeleteError Delete failed: locked"]);
    crm.forgive();
    controller.ask_cluster("bad", S::DeleteRequested);
    controller.cluster_is("bad", None).await;
    assert_eq!(crm.infrastructure().clusters.len(), 2);
    assert_eq!(crm.counters().failed.values().sum::<u64>(), 5);
}

#[tokio::test]
async fn updates_that_fail_and_those_that_fail_as_the_original() {
    for (mode, end, reported) in [
        (ClusterUpdate::Fails, S::UpdateError, "UpdateError"),
        (ClusterUpdate::FailsAsTheOriginal, S::Updating, "DeleteError"),
    ] {
        let controller = Controller::start().await;
        let options = SimOptions { cluster_update: mode, ..controller.options() };
        let _crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.cluster_is("c", Some(S::Ready)).await;
        controller.take_seen();
        controller.ask_cluster("c", S::UpdateRequested);
        until("reported", || controller.seen.lock().len() == 2).await;
        let text = format!("{reported} update failed: sim does not update clusters");
        assert_eq!(controller.take_seen(), ["Updating".to_owned(), text]);
        controller.cluster_is("c", Some(end)).await;
    }
}

#[tokio::test]
async fn crms_that_never_or_late_or_half_answer() {
    let controller = Controller::start().await;
    let crm = SimCrm::start(controller.options()).unwrap();
    let create = |fault| FaultRule::once(ObjectKind::Cluster, Verb::Create, fault);
    crm.script(create(Fault::Silent).of("silent"));
    crm.script(create(Fault::Stall).of("stalls"));
    crm.script(create(Fault::Late(Duration::from_millis(5))).of("late"));
    crm.script(create(Fault::Disconnect).of("cut"));
    for name in ["silent", "stalls", "late", "cut"] {
        controller.ask_cluster(name, S::CreateRequested);
    }
    controller.cluster_is("late", Some(S::Ready)).await;
    controller.cluster_is("cut", Some(S::Ready)).await;
    controller.cluster_is("stalls", Some(S::Creating)).await;
    assert_eq!(controller.cluster_state("silent"), Some(S::CreateRequested));
    assert_eq!(crm.status().client.stats.connects, 2);
    assert_eq!(crm.infrastructure().clusters.len(), 2);

    // While it is cut off its work goes on.
    crm.go_offline().await;
    until("gone", || controller.server.peers().is_empty()).await;
    controller.ask_cluster("later", S::CreateRequested);
    crm.go_online();
    controller.cluster_is("later", Some(S::Ready)).await;

    // Whatever one likes can be said of an object.
    let key = ObjectKey::of(&cluster("silent", S::Ready)).unwrap();
    crm.report(ObjectKind::Cluster, &key, S::CreateError, vec!["made up".into()]);
    controller.cluster_is("silent", Some(S::CreateError)).await;
}

#[tokio::test]
async fn a_crm_that_dies_forgets_remembers_or_does_it_again() {
    let inconsistent = "CreateError inconsistent Controller vs CRM state".to_owned();
    for (resync, end, infrastructure) in
        [(Resync::Original, S::CreateError, 1), (Resync::Redo, S::Ready, 2)]
    {
        let controller = Controller::start().await;
        controller.prepare();
        let options = SimOptions { resync, ..controller.options() };
        let crm = SimCrm::start(options).unwrap();
        controller.ask_cluster("c", S::CreateRequested);
        controller.cluster_is("c", Some(S::Ready)).await;
        let fault = Fault::Crash { remember: true };
        crm.script(FaultRule::once(ObjectKind::Cluster, Verb::Create, fault));
        controller.take_seen();
        controller.ask_cluster("crash", S::CreateRequested);
        controller.cluster_is("crash", Some(end)).await;
        assert_eq!(crm.counters().restarts, 1);
        assert_eq!(controller.seen.lock().contains(&inconsistent), resync == Resync::Original);
        assert_eq!(crm.infrastructure().clusters.len(), infrastructure);
        assert_eq!(controller.cluster_state("c"), Some(S::Ready));

        // A crm that forgets does not know what it made, and still removes it
        // on request.
        crm.restart(false).await;
        // This controller takes the end of a stream for a report.
        until("flushed", || controller.cluster_infos.is_empty()).await;
        controller.ask_cluster("c", S::DeleteRequested);
        controller.cluster_is("c", None).await;
        assert_eq!(crm.infrastructure().clusters.len(), infrastructure - 1);
        crm.destroy_infrastructure();
        assert!(crm.infrastructure().is_empty());
    }
}
