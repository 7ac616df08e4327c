//! State that outlives the process: history, events, the begin of problems.

use std::{sync::Arc, time::Duration};

use selvage_api::{
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{GetOverviewRequest, ListEventsRequest},
};
use selvage_dashboard::{
    Dashboard, Settings,
    facts::{Cloudlet, Data, Instance},
};
use selvage_kit::clock::ManualClock;

use super::lab::{Lab, noon, object};

fn offline() -> Data {
    let object = object("cloudlet", "tmus/c1", "tmus");
    let state = CloudletState::Offline;
    Data::Cloudlets(vec![Cloudlet { object, location: None, state, errors: Vec::new() }].into())
}

#[tokio::test]
async fn a_problem_that_lasts_over_a_restart_keeps_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let settings = || Settings { folder: Some(folder.path().into()), ..Settings::default() };
    let before = Lab::with(settings()).await;
    before.tell(offline());
    drop(before);
    let clock = ManualClock::new(noon());
    clock.advance(Duration::from_secs(3600));
    let dashboard = Dashboard::open(settings(), "system-1".into(), Arc::new(clock));
    let section = offline().section();
    dashboard.board().expect("test", section, Duration::from_secs(10));
    dashboard.board().report("test", section, Ok(offline()));
    dashboard.board().refresh();
    let problem = dashboard.board().snapshot().overview.problems[0].clone();
    assert_eq!(problem.since.unwrap().seconds, noon().as_second());
}

#[tokio::test]
async fn the_version_grows_with_changes_alone() {
    let lab = Lab::new().await;
    lab.tell(offline());
    let version = async || {
        let reply = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap();
        reply.into_inner().version
    };
    let first = version().await;
    for _ in 0..5 {
        lab.tell(offline());
        lab.wait(Duration::from_secs(1));
    }
    assert_eq!(version().await, first);
}

fn instance(state: TrackedState, errors: &[&str], started_again: u32, revision: u64) -> Data {
    let instance = Instance {
        object: object("appinst", "Acme/app:1.0@tmus/c1/one", "Acme"),
        cloudlet: "tmus/c1".into(),
        state,
        errors: errors.iter().map(|&error| error.to_owned()).collect(),
        unhealthy: String::new(),
        restarts: 0,
        started_again,
        last_reason: if started_again > 0 { "ended with code 3".into() } else { String::new() },
        revision,
    };
    Data::Instances(vec![instance].into())
}

/// The life of an instance, as it is told after a restart.
#[tokio::test]
async fn events_of_an_instance_are_kept_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let settings = || Settings { folder: Some(folder.path().into()), ..Settings::default() };
    let before = Lab::with(settings()).await;
    before.tell(Data::Instances(Vec::new().into()));
    before.tell(instance(TrackedState::Ready, &[], 0, 1));
    before.tell(instance(TrackedState::Ready, &[], 2, 1));
    before.tell(instance(TrackedState::Updating, &[], 2, 2));
    before.tell(instance(TrackedState::UpdateError, &["no image"], 2, 1));
    before.tell(offline());
    drop(before);
    let after = Lab::with(settings()).await;
    let asked = |name: &str| ListEventsRequest {
        name_contains: name.into(),
        kind: "appinst".into(),
        ..ListEventsRequest::default()
    };
    let history_of = async |request| {
        let reply = after.overview().list_events(request).await.unwrap().into_inner();
        reply.events.into_iter().map(|event| (event.what, event.text)).collect::<Vec<_>>()
    };
    let name = "Acme/app:1.0@tmus/c1/one";
    let events = history_of(asked("app:1.0")).await;
    let has = |what: &str, text: &str| {
        let text = format!("{name} {text}");
        assert!(events.contains(&(what.into(), text.clone())), "{text:?} is not in {events:?}");
    };
    has("added", "is ready");
    has("restarted", "was started again, 2 times so far: ended with code 3");
    has("updated", "is to run revision 2");
    has("updated", "is to run revision 1");
    assert!(events.iter().any(|(_, text)| text.contains("no image")), "{events:?}");
    assert_eq!(history_of(asked("app:2.0")).await, []);
}
