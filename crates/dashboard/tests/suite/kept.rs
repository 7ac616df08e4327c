//! What outlives the process: history, events, since when problems last.

use std::{sync::Arc, time::Duration};

use selvage_api::{edgeproto::CloudletState, selvage::dashboard::GetOverviewRequest};
use selvage_dashboard::{
    Dashboard, Settings,
    facts::{Cloudlet, Data},
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
