//! Status that callers see while the machine is being changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use futures::FutureExt;
use selvage_api::selvage::kubernetes::{Authorities, ClusterNetwork, MemberSpec, Worker};
use selvage_runtime::containerd::{Containerd, Options};

use super::{MemberAgent, Settings};
use crate::Error;

fn agent(folder: &std::path::Path) -> MemberAgent {
    let settings = Settings {
        data: folder.join("data"),
        run: folder.join("run"),
        artifacts: None,
        cgroup: "/none".into(),
        lvmd: None,
    };
    // Nobody asks it for anything: no pass is made.
    let runtime = Containerd::new(Options::new(folder.join("none.sock")));
    MemberAgent::open(settings, Arc::new(runtime)).unwrap()
}

fn spec(generation: u64) -> MemberSpec {
    MemberSpec {
        cluster: "demo".into(),
        node: "worker-1".into(),
        address: "10.0.0.1".into(),
        generation,
        worker: Some(Worker::default()),
        network: Some(ClusterNetwork {
            pod_cidr: "10.128.0.0/11".into(),
            service_cidr: "10.96.0.0/16".into(),
            dns_address: "10.96.0.10".into(),
            node_pod_cidr: "10.128.1.0/24".into(),
            ..ClusterNetwork::default()
        }),
        api_servers: vec!["10.0.0.2:6443".into()],
        authorities: Some(Authorities {
            kubernetes: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".into(),
            ..Authorities::default()
        }),
        ..MemberSpec::default()
    }
}

/// Cluster, generation that it has to be, and generation that it is.
fn shown(agent: &MemberAgent) -> (String, u64, u64) {
    let status = agent.watch().borrow().clone();
    (status.cluster, status.generation, status.observed_generation)
}

#[tokio::test]
async fn whoever_asks_after_an_apply_learns_of_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    agent.apply(spec(1)).await.unwrap();
    assert_eq!(shown(&agent), ("demo".into(), 1, 0));
}

#[tokio::test]
async fn an_agent_that_restarts_knows_its_last_orders() {
    let folder = tempfile::tempdir().unwrap();
    agent(folder.path()).apply(spec(3)).await.unwrap();
    assert_eq!(shown(&agent(folder.path())), ("demo".into(), 3, 0));
}

#[tokio::test]
async fn an_older_spec_is_refused_and_so_is_another_of_the_same_generation() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    agent.apply(spec(3)).await.unwrap();
    let older = agent.apply(spec(2)).await.unwrap_err();
    assert!(matches!(older, Error::OldGeneration { given: 2, kept: 3 }), "{older}");
    let other = MemberSpec { address: "10.0.0.9".into(), ..spec(3) };
    let other = agent.apply(other).await.unwrap_err();
    assert!(matches!(other, Error::SameGeneration(3)), "{other}");
    assert_eq!(agent.0.current_spec().as_deref(), Some(&spec(3)), "it is as it was");
    // Also by one that was started meanwhile.
    drop(agent);
    let agent = self::agent(folder.path());
    assert!(agent.apply(spec(2)).await.is_err());
    assert_eq!(agent.apply(spec(3)).await.unwrap(), 3, "the same may be said again");
}

#[tokio::test]
async fn a_long_pass_holds_up_nobody_and_tells_of_the_newest_spec() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    agent.apply(spec(1)).await.unwrap();
    let pass = agent.0.turn.lock().await;
    let seen = agent.0.current_spec().unwrap();
    let applied = agent.apply(spec(2)).now_or_never();
    assert_eq!(applied.expect("waits for a pass").unwrap(), 2);
    let requested = agent.request("demo", Vec::new(), false).now_or_never();
    requested.expect("waits for a pass").unwrap();
    // The pass ends with what it began with.
    agent.0.report(&seen, &[], None);
    drop(pass);
    assert_eq!(shown(&agent), ("demo".into(), 2, 1));
}
