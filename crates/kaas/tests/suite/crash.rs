//! A process that ends in the middle of something, at every point there is.

use selvage_kaas::provider::sim::Fault;

use super::lab::{Lab, admin};

/// Works on the cluster until the process is to end, or to the end.
async fn until_crash(lab: &Lab, name: &str) -> bool {
    tokio::select! {
        biased;
        () = lab.sim.crashed() => true,
        () = lab.settle(name) => false,
    }
}

/// Does something about a cluster, with the process ending at every call that
/// is made on the way, before and after it was done.
async fn at_every_call(change: impl AsyncFn(&Lab), check: impl Fn(&Lab)) {
    let calls = {
        let lab = Lab::new().await;
        lab.running("demo", 1, &[("a", 1)]).await;
        let before = lab.sim.calls();
        change(&lab).await;
        lab.settle("demo").await;
        check(&lab);
        lab.sim.calls() - before
    };
    assert!(calls > 0, "nothing was done");
    let faults = [Fault::CrashBefore, Fault::CrashAfter, Fault::LoseAnswer, Fault::Refuse];
    for call in 1..=calls {
        for fault in faults {
            let mut lab = Lab::new().await;
            lab.running("demo", 1, &[("a", 1)]).await;
            change(&lab).await;
            lab.sim.fault(call, fault);
            if until_crash(&lab, "demo").await {
                lab.restart().await;
                lab.settle("demo").await;
            }
            check(&lab);
            assert_eq!(lab.sim.violations(), Vec::<String>::new(), "{fault:?} at call {call}");
            let known = lab.manager.snapshot("demo").map_or(0, |known| known.machines.len());
            assert_eq!(lab.sim.owned(), known, "{fault:?} at call {call}: leaked or lost");
        }
    }
}

#[tokio::test]
async fn scaling_up_survives_a_crash_at_every_call() {
    let change = async |lab: &Lab| {
        lab.scale("demo", "a", 2).await.unwrap();
    };
    at_every_call(change, |lab| assert_eq!(lab.sim.owned(), 3)).await;
}

#[tokio::test]
async fn scaling_down_survives_a_crash_at_every_call() {
    let change = async |lab: &Lab| {
        lab.scale("demo", "a", 0).await.unwrap();
    };
    at_every_call(change, |lab| assert_eq!(lab.sim.owned(), 1)).await;
}

#[tokio::test]
async fn an_upgrade_survives_a_crash_at_every_call() {
    let change = async |lab: &Lab| {
        lab.upgrade("demo", "1.36.4").await.unwrap();
    };
    let check = |lab: &Lab| {
        let machines = lab.manager.find("demo").unwrap().machines;
        assert!(machines.iter().all(|machine| machine.running.kubelet == "1.36.4"));
        assert_eq!(lab.status("demo"), "RUNNING");
    };
    at_every_call(change, check).await;
}

#[tokio::test]
async fn a_deletion_survives_a_crash_at_every_call() {
    let change = async |lab: &Lab| {
        lab.manager.delete(&admin(), "demo").await.unwrap();
    };
    at_every_call(change, |lab| assert!(lab.manager.snapshot("demo").is_none())).await;
}

#[tokio::test]
async fn a_machine_that_fails_for_good_is_replaced() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.scale("demo", "a", 2).await.unwrap();
    lab.sim.fault(1, Fault::RefuseForGood);
    lab.settle("demo").await;
    assert_eq!((lab.status("demo").as_str(), lab.sim.owned()), ("RUNNING", 3));
    let events = &lab.manager.find("demo").unwrap().cluster.events;
    assert!(events.iter().any(|event| event.message.contains("is given up: broken for good")));
}

#[tokio::test]
async fn machines_that_nobody_knows_of_are_given_back() {
    use selvage_kaas::provider::{OperationId, Provider, Request};
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let lost = Request {
        cluster: "gone".into(),
        name: "x".into(),
        instance_type: String::new(),
        version: "1.36.4".into(),
    };
    lab.sim.acquire(&OperationId("lost".into()), &lost).await.unwrap();
    assert_eq!(lab.manager.sweep().await.unwrap(), 1);
    assert_eq!(lab.sim.owned(), 1, "the machine of the cluster stays");
}
