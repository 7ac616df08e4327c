//! Cancelling, at every step.

use std::time::Duration;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_api::selvage::operations::State;
use selvage_work::{Engine, Error, Failure, Next, Operation, Scope};

use crate::support::{Make, Order, Process, STEPS, Shop, memory, order, quick, soon};

#[tokio::test]
async fn a_wait_is_interrupted_at_every_step_and_all_is_undone() {
    for step in STEPS {
        let (store, shop) = (memory().await, Shop::holding(step));
        let process = Process::start(&store, "one", &shop).await;
        let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
        shop.begun(&format!("run {step}"), 1).await;
        let answer = handle.cancel("bob").await.unwrap();
        assert!(answer.cancelling);
        let failure = soon("the end", handle.ended()).await.unwrap_err();
        assert_eq!((failure.code(), failure.message()), (Code::Cancelled, "cancelled by bob"));
        assert_eq!(handle.operation().state(), State::Failed);
        assert!(shop.is_empty(), "{step}: {:?}", shop.things);
        process.stop().await;
    }
}

#[tokio::test]
async fn a_cancellation_survives_the_process() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    process.crash().await;
    // Nobody drives it now; the request is kept.
    handle.cancel("bob").await.unwrap();
    let next = Process::start(&store, "one", &shop).await;
    let handle = next.engine.attach(handle.id()).unwrap();
    soon("the end", handle.ended()).await.unwrap_err();
    assert!(shop.is_empty());
    assert_eq!(shop.count("run create"), 1, "it went on instead of back");
}

#[tokio::test]
async fn another_process_can_cancel() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let two = Process::start(&store, "two", &shop).await;
    let handle = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    two.engine.cancel(handle.id(), "bob").await.unwrap();
    soon("the end", handle.ended()).await.unwrap_err();
    assert!(shop.is_empty());
}

#[tokio::test]
async fn what_ended_cannot_be_cancelled() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    soon("the end", handle.ended()).await.unwrap();
    let error = handle.cancel("bob").await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(shop.holds("lamp"));
    let error = process.engine.cancel("nonsense", "bob").await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

/// Cannot be cancelled in its first step.
struct Resolute(Shop);

#[async_trait]
impl Operation for Resolute {
    const KIND: &'static str = "Resolute";
    type State = Order;

    fn steps(&self, _: &Order) -> Vec<&'static str> {
        vec!["first", "second"]
    }

    fn cancellable(&self, step: &str, _: &Order) -> bool {
        step != "first"
    }

    async fn run(&self, step: &str, _: &mut Order, scope: &Scope) -> Result<Next, Failure> {
        self.0.log.send_modify(|log| log.push(format!("run {step}")));
        let mut hold = self.0.hold.subscribe();
        let _ = scope.until(hold.wait_for(|held| *held != step)).await?;
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, _: &mut Order, _: &Scope) -> Result<(), Failure> {
        self.0.log.send_modify(|log| log.push(format!("undo {step}")));
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_cannot_be_cancelled_is_finished_first() {
    let shop = Shop::holding("first");
    let engine = Engine::open(memory().await, "one", quick()).await.unwrap();
    engine.register(Resolute(shop.clone())).unwrap();
    let process = Process::run(engine);
    let handle = process.engine.start::<Resolute>(order("lamp"), "alice").await.unwrap();
    shop.begun("run first", 1).await;
    handle.cancel("bob").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(20), handle.ended()).await;
    assert!(early.is_err(), "{early:?}");
    shop.hold.send_replace("");
    soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(*shop.log.borrow(), ["run first", "undo second", "undo first"]);
}
