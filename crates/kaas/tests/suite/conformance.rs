//! Conformance of every provider, whatever its machines are.

use std::sync::Arc;

use selvage_api::selvage::identity::Machine as Joined;
use selvage_kaas::provider::{
    OperationId, Provider, Request, State, Wipe, agents::Agents, sim::Sim,
};

use super::lab::Lab;

fn operation(name: &str) -> OperationId {
    OperationId(name.to_owned())
}

fn wanted(name: &str) -> Request {
    Request {
        cluster: "demo".into(),
        name: name.into(),
        instance_type: String::new(),
        version: "1.36.4".into(),
    }
}

/// The rules. Each provider is taken through them.
pub(crate) async fn conforms(provider: Arc<dyn Provider>) {
    let before = provider.list_owned().await.unwrap();
    let (first, second) = (operation("op-1"), operation("op-2"));
    let acquired = provider.acquire(&first, &wanted("a")).await.unwrap();
    assert!(!acquired.id.is_empty());
    let again = provider.acquire(&first, &wanted("a")).await.unwrap();
    assert_eq!(acquired, again, "the same operation finds the same machine");
    let other = provider.acquire(&second, &wanted("b")).await.unwrap();
    assert_ne!(acquired.id, other.id, "another operation has another machine");

    let owned = provider.list_owned().await.unwrap();
    assert_eq!(owned.len(), before.len() + 2);
    let listed = owned.iter().find(|owned| owned.operation == first).unwrap();
    assert_eq!(listed.id, acquired.id, "the provider keeps the operation");
    loop {
        match provider.observe(&first).await.unwrap().state {
            State::Deploying => tokio::task::yield_now().await,
            State::Up { address, agent } => {
                assert!(address.parse::<std::net::IpAddr>().is_ok(), "{address}");
                assert!(agent.contains(&address), "{agent}");
                break;
            }
            State::Failed(reason) => panic!("{reason}"),
        }
    }

    while !provider.release(&first, Wipe::Reset).await.unwrap() {
        tokio::task::yield_now().await;
    }
    assert!(provider.release(&first, Wipe::Reset).await.unwrap(), "releasing again is fine");
    assert!(provider.release(&operation("never"), Wipe::Reset).await.unwrap());
    assert!(provider.observe(&first).await.is_err(), "it is gone");
    while !provider.release(&second, Wipe::Disks).await.unwrap() {
        tokio::task::yield_now().await;
    }
    assert_eq!(provider.list_owned().await.unwrap(), before, "nothing is left");
}

#[tokio::test]
async fn sim_conforms() {
    conforms(Arc::new(Sim::default())).await;
}

#[tokio::test]
async fn sim_that_is_limited_says_so() {
    let sim = Sim::default();
    sim.limit("gpu", 1);
    let gpu = Request { instance_type: "gpu".into(), ..wanted("a") };
    sim.acquire(&operation("op-1"), &gpu).await.unwrap();
    let refused = sim.acquire(&operation("op-2"), &gpu).await.unwrap_err();
    assert_eq!(refused.to_string(), "no machine of type \"gpu\" is free");
    let offers = sim.offers("gpu").await.unwrap();
    assert_eq!((offers[0].total, offers[0].free), (Some(1), Some(0)));
}

fn joined(name: &str, labels: &[(&str, &str)]) -> Joined {
    let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Joined {
        machine: format!("node/{name}"),
        address: "192.0.2.7:8443".into(),
        labels: labels.iter().map(label).collect(),
        ..Joined::default()
    }
}

async fn agents(lab: &Lab, machines: Vec<Joined>) -> Agents {
    Agents::open(lab.store.clone(), move || machines.clone(), None).await.unwrap()
}

#[tokio::test]
async fn agents_conform() {
    let lab = Lab::new().await;
    let free = [("kaas", "free")];
    let machines = vec![joined("m1", &free), joined("m2", &free), joined("m3", &[])];
    conforms(Arc::new(agents(&lab, machines).await)).await;
}

#[tokio::test]
async fn agents_are_taken_once_by_type_and_only_if_they_are_offered() {
    let lab = Lab::new().await;
    let gpu = [("kaas", "free"), ("instance-type", "gpu")];
    let mut blocked = joined("m2", &gpu);
    blocked.blocked = true;
    let machines = vec![joined("m1", &gpu), blocked, joined("m3", &[("instance-type", "gpu")])];
    let (one, two) = (agents(&lab, machines.clone()).await, agents(&lab, machines).await);
    let wanted = Request { instance_type: "gpu".into(), ..wanted("a") };
    let (op_1, op_2) = (operation("op-1"), operation("op-2"));
    let (a, b) = tokio::join!(one.acquire(&op_1, &wanted), two.acquire(&op_2, &wanted));
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    let other = Request { instance_type: "huge".into(), ..wanted.clone() };
    let refused = one.acquire(&operation("op-3"), &other).await.unwrap_err();
    assert_eq!(refused.to_string(), "no machine of type \"huge\" is free");
    let none = agents(&lab, Vec::new()).await;
    assert!(none.capabilities().problem.unwrap().contains("kaas=free"));
}
