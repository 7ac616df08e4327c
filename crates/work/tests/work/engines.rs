//! Several processes on one store.

use std::sync::Arc;
use std::time::Duration;

use selvage_api::selvage::operations::State;
use selvage_store::clock::ManualClock;
use selvage_work::{Error, Handle, Options};

use crate::support::{
    Make, Process, Shop, memory, memory_with_clock, order, quick, soon, with_clock,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_operation_is_driven_by_exactly_one() {
    let (store, shop) = (memory().await, Shop::new());
    let one = Process::start(&store, "one", &shop).await;
    let two = Process::start(&store, "two", &shop).await;
    let mut handles = Vec::new();
    for number in 0..20 {
        let engine = if number % 2 == 0 { &one.engine } else { &two.engine };
        let name = format!("thing {number}");
        handles.push(engine.start::<Make>(order(&name), "alice").await.unwrap());
    }
    for handle in &handles {
        soon("the end", handle.ended()).await.unwrap();
    }
    for step in ["run reserve", "run create", "run publish"] {
        assert_eq!(shop.count(step), 20);
    }
}

#[tokio::test]
async fn both_processes_refuse_a_second_operation_on_an_object() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let two = Process::start(&store, "two", &shop).await;
    let handle = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let error = two.engine.start::<Make>(order("lamp"), "bob").await.unwrap_err();
    assert!(matches!(&error, Error::Busy(running) if running.id == handle.id()), "{error}");
    let (shared, started) = two.engine.start_or_attach::<Make>(order("lamp"), "b").await.unwrap();
    assert!(!started);
    shop.hold.send_replace("");
    soon("the end here", handle.ended()).await.unwrap();
    soon("the end there", shared.ended()).await.unwrap();
    assert_eq!(shop.count("run create"), 1);
}

async fn driven_by(handle: &Handle, name: &str) {
    let mut events = handle.follow();
    let seen = async {
        while handle.operation().driver != name {
            futures::StreamExt::next(&mut events).await;
        }
    };
    soon("another driver", seen).await;
}

#[tokio::test]
async fn the_operations_of_a_dead_process_are_taken_over_when_its_lease_ends() {
    let ((store, clock), shop) = (memory_with_clock().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let id = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap().id().to_owned();
    shop.begun("run create", 1).await;
    one.crash().await;
    clock.advance(Duration::from_secs(10));
    let two = Process::start(&store, "two", &shop).await;
    let handle = two.engine.attach(&id).unwrap();
    assert_eq!(handle.operation().driver, "one");
    clock.advance(Duration::from_secs(6));
    driven_by(&handle, "two").await;
    shop.hold.send_replace("");
    soon("the end", handle.ended()).await.unwrap();
    assert!(shop.holds("lamp"));
    assert_eq!(shop.count("run reserve"), 1);
}

#[tokio::test]
async fn a_process_that_stops_hands_over_at_once() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let two = Process::start(&store, "two", &shop).await;
    let handle = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    let there = soon("the other view", async {
        loop {
            match two.engine.attach(handle.id()) {
                Ok(there) => return there,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    one.stop().await;
    driven_by(&there, "two").await;
    shop.hold.send_replace("");
    soon("the end", there.ended()).await.unwrap();
}

#[tokio::test]
async fn a_process_that_was_thought_dead_does_no_harm_and_comes_back() {
    let (store, store_clock) = memory_with_clock().await;
    let (clock_one, shop) = (ManualClock::new(1_000_000), Shop::holding("create"));
    let one = Process::start_with(&store, "one", &shop, with_clock(&clock_one)).await;
    let handle = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    // The clock of the first stands still, so it does not renew its lease.
    store_clock.advance(Duration::from_secs(16));
    let two = Process::start(&store, "two", &shop).await;
    shop.begun("run create", 2).await;
    driven_by(&handle, "two").await;
    shop.hold.send_replace("");
    soon("the end here", handle.ended()).await.unwrap();
    assert_eq!(handle.operation().driver, "two");
    assert!(shop.holds("lamp"));

    let registered = async {
        // It notices when it next tries, and may then drive again.
        loop {
            clock_one.advance(Duration::from_secs(5));
            let handle = one.engine.start::<Make>(order("chair"), "alice").await;
            if let Ok(handle) = handle {
                handle.ended().await.unwrap();
            }
            if one.engine.list().iter().any(|o| o.key == "chair" && o.driver == "one") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("coming back", registered).await;
    two.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn of_two_processes_with_one_name_the_later_stays() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let old = Process::start(&store, "one", &shop).await;
    let handle = old.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    let new = Process::start(&store, "one", &shop).await;
    let error = old.ended().await.unwrap_err();
    assert!(matches!(error, Error::Deposed { .. }), "{error}");
    let handle = new.engine.attach(handle.id()).unwrap();
    shop.begun("run create", 2).await;
    shop.hold.send_replace("");
    soon("the end", handle.ended()).await.unwrap();
    assert_eq!(handle.operation().state(), State::Succeeded);
    new.stop().await;
}

#[tokio::test]
async fn operations_of_unknown_kinds_are_left_alone() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let handle = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    one.stop().await;
    let blind = selvage_work::Engine::open(Arc::clone(&store), "one", Options { ..quick() });
    let blind = Process::run(blind.await.unwrap());
    let seen = blind.engine.attach(handle.id()).unwrap();
    blind.stop().await;
    assert_eq!(seen.operation().state(), State::Running);
    let next = Process::start(&store, "one", &shop).await;
    shop.hold.send_replace("");
    let handle = next.engine.attach(handle.id()).unwrap();
    soon("the end", handle.ended()).await.unwrap();
}
