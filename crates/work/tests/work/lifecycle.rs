//! One process: starting, ending, failing, being started again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::Code;
use selvage_api::selvage::operations::State;
use selvage_store::clock::ManualClock;
use selvage_store::{Error as StoreError, transact};
use selvage_work::{Engine, Error, Failure, Interrupt, Next, Operation, Options, Prepared, Scope};

use crate::support::{Make, Order, Process, Shop, memory, order, quick, soon, with_clock};

#[tokio::test]
async fn all_steps_are_taken_in_order_and_the_object_is_free_again() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    soon("the end", handle.ended()).await.unwrap();
    assert!(shop.holds("lamp"));
    assert_eq!(*shop.log.borrow(), ["run reserve", "run create", "run publish"]);
    let shown = process.engine.list().remove(0);
    assert_eq!(shown, handle.operation());
    assert_eq!((shown.state(), shown.steps_done, shown.steps_total), (State::Succeeded, 3, 3));
    assert_eq!((shown.started_by.as_str(), shown.organisation.as_str()), ("alice", "acme"));
    assert_eq!(process.engine.running_on("lamp"), None);
    let again = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    soon("the second", again.ended()).await.unwrap();
    process.stop().await;
}

#[tokio::test]
async fn steps_can_be_left_out() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let early = Order { only_reserve: true, ..order("early") };
    let early = process.engine.start::<Make>(early, "a").await.unwrap();
    soon("the end", early.ended()).await.unwrap();
    assert_eq!((early.operation().state(), early.operation().steps_done), (State::Succeeded, 1));
    let jump = Order { skip_create: true, ..order("jump") };
    *shop.fail.lock() = "publish";
    let jump = process.engine.start::<Make>(jump, "a").await.unwrap();
    soon("the end", jump.ended()).await.unwrap_err();
    let log = ["run reserve", "run reserve", "run publish", "undo publish", "undo reserve"];
    assert_eq!(*shop.log.borrow(), log);
}

#[tokio::test]
async fn a_failure_undoes_the_step_and_those_before_it() {
    let (store, shop) = (memory().await, Shop::new());
    *shop.fail.lock() = "create";
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!((failure.code(), failure.message()), (Code::ResourceExhausted, "no room to create"));
    assert!(shop.is_empty());
    assert_eq!(*shop.log.borrow(), ["run reserve", "run create", "undo create", "undo reserve"]);
    let shown = handle.operation();
    assert_eq!((shown.state(), shown.error.as_str()), (State::Failed, "no room to create"));
    assert_eq!(shown.error_code, tonic::Code::ResourceExhausted as i32);
}

#[tokio::test]
async fn a_failing_undo_is_tried_again() {
    let (store, shop) = (memory().await, Shop::new());
    *shop.fail.lock() = "publish";
    *shop.fail_undo.lock() = ("create", 2);
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure.message(), "no room to publish");
    assert_eq!(shop.count("undo create"), 3);
    assert!(shop.is_empty());
}

#[tokio::test]
async fn an_undo_that_never_works_ends_with_both_errors_and_a_note() {
    let (store, shop) = (memory().await, Shop::new());
    *shop.fail.lock() = "publish";
    *shop.fail_undo.lock() = ("create", u32::MAX);
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    let text = "no room to publish; stuck: create, reserve not undone: the shop is shut";
    assert_eq!(failure.message(), text);
    assert_eq!(process.engine.list()[0].error, text);
    assert_eq!(shop.count("undo create"), 3);
    // Somebody has to be able to clean up.
    assert_eq!(process.engine.running_on("lamp"), None);
    *shop.fail.lock() = "";
    let again = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    soon("the second", again.ended()).await.unwrap();
}

#[tokio::test]
async fn a_second_operation_on_an_object_is_refused_or_shares_the_first() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let first = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let error = process.engine.start::<Make>(order("lamp"), "bob").await.unwrap_err();
    let Error::Busy(running) = &error else { panic!("{error}") };
    assert_eq!((running.id.as_str(), running.kind.as_str()), (first.id(), "Make"));
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains(first.id()), "{error}");
    let (shared, started) =
        process.engine.start_or_attach::<Make>(order("lamp"), "bob").await.unwrap();
    assert_eq!((shared.id(), started), (first.id(), false));
    let (other, started) =
        process.engine.start_or_attach::<Make>(order("chair"), "bob").await.unwrap();
    assert!(started);
    shop.hold.send_replace("");
    for handle in [first, shared, other] {
        soon("the end", handle.ended()).await.unwrap();
    }
    assert_eq!(shop.count("run create"), 2);
}

async fn commit(engine: &Engine, name: &str, fail: bool) -> Result<Prepared, Error> {
    let committed = transact(engine.store(), |tx| async move {
        let prepared = engine.prepare::<Make>(order(name), "alice")?;
        prepared.put(&tx).await?;
        if fail {
            return Err(Error::Store(StoreError::Closed));
        }
        Ok::<_, Error>(prepared)
    })
    .await?;
    Ok(committed.value)
}

#[tokio::test]
async fn an_operation_starts_with_the_callers_transaction_or_not_at_all() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    commit(&process.engine, "lamp", true).await.unwrap_err();
    assert_eq!(process.engine.list(), []);
    let prepared = commit(&process.engine, "lamp", false).await.unwrap();
    let handle = process.engine.launch(prepared);
    soon("the end", handle.ended()).await.unwrap();
    assert_eq!(shop.count("run reserve"), 1);
}

#[tokio::test]
async fn an_operation_that_was_committed_and_not_launched_is_found() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let prepared = commit(&process.engine, "lamp", false).await.unwrap();
    shop.begun("run publish", 1).await;
    // The caller is late, which must not run anything again.
    let handle = process.engine.launch(prepared);
    soon("the end", handle.ended()).await.unwrap();
    process.stop().await;

    let gone = Engine::open(Arc::clone(&store), "one", quick()).await.unwrap();
    gone.register(Make(shop.clone())).unwrap();
    commit(&gone, "chair", false).await.unwrap();
    drop(gone);
    let next = Process::start(&store, "one", &shop).await;
    shop.begun("run publish", 2).await;
    next.stop().await;
    assert_eq!(shop.count("run reserve"), 2);
}

#[tokio::test]
async fn an_operation_that_was_launched_and_not_committed_says_so() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let prepared = process.engine.prepare::<Make>(order("lamp"), "alice").unwrap();
    let handle = process.engine.launch(prepared);
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure.message(), "the operation was launched but never committed");
    assert_eq!(shop.count("run reserve"), 0);
}

#[tokio::test]
async fn stopping_leaves_a_waiting_step_to_the_next_process() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let id = handle.id().to_owned();
    shop.begun("run create", 1).await;
    process.stop().await;
    assert_eq!(handle.operation().state(), State::Running);
    assert_eq!(shop.count("undo create"), 0);
    let refusal = soon("the followers", handle.ended()).await.unwrap_err();
    assert_eq!(refusal.interrupt(), Some(Interrupt::Stopping));
    let last = handle.follow().collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(last.unwrap_err(), refusal);

    let next = Process::start(&store, "one", &shop).await;
    shop.begun("run create", 2).await;
    shop.hold.send_replace("");
    let handle = next.engine.attach(&id).unwrap();
    soon("the end", handle.ended()).await.unwrap();
    let lines: Vec<_> = handle.lines().map(Result::unwrap).collect().await;
    assert_eq!(lines, ["reserve lamp", "create lamp", "create lamp", "publish lamp"]);
    assert_eq!(shop.count("run reserve"), 1);
}

#[tokio::test]
async fn the_time_limit_undoes_and_counts_restarts() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let clock = ManualClock::new(5_000_000);
    let process = Process::start_with(&store, "one", &shop, with_clock(&clock)).await;
    let limited = Order { limit: 1000, ..order("lamp") };
    let handle = process.engine.start::<Make>(limited, "alice").await.unwrap();
    shop.begun("run create", 1).await;
    clock.advance(Duration::from_millis(600));
    process.stop().await;
    let next = Process::start_with(&store, "one", &shop, with_clock(&clock)).await;
    let handle = next.engine.attach(handle.id()).unwrap();
    shop.begun("run create", 2).await;
    clock.advance(Duration::from_millis(400));
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure.code(), Code::DeadlineExceeded);
    assert_eq!(failure.message(), "step create timed out");
    assert!(shop.is_empty());
}

/// Waits by being run again, and panics if told so.
struct Patient(Shop);

#[async_trait]
impl Operation for Patient {
    const KIND: &'static str = "Patient";
    type State = Order;

    fn steps(&self, _: &Order) -> Vec<&'static str> {
        vec!["wait"]
    }

    async fn run(&self, _: &str, state: &mut Order, scope: &Scope) -> Result<Next, Failure> {
        assert_ne!(state.name, "bomb", "it went off");
        assert_eq!(scope.resumed(), state.port > 0);
        state.port += 1;
        self.0.log.send_modify(|log| log.push("look".into()));
        Ok(if state.port < 3 { Next::Wait(Duration::from_secs(60)) } else { Next::Done })
    }

    async fn undo(&self, _: &str, _: &mut Order, _: &Scope) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_says_wait_is_run_again_by_signal_and_by_time() {
    let (store, shop) = (memory().await, Shop::new());
    let clock = ManualClock::new(5_000_000);
    let engine = Engine::open(store, "one", with_clock(&clock)).await.unwrap();
    engine.register(Patient(shop.clone())).unwrap();
    let process = Process::run(engine);
    let handle = process.engine.start::<Patient>(order("lamp"), "alice").await.unwrap();
    shop.begun("look", 1).await;
    process.engine.signal("lamp");
    shop.begun("look", 2).await;
    let ended = async {
        while handle.operation().state() == State::Running {
            clock.advance(Duration::from_secs(60));
            tokio::task::yield_now().await;
        }
    };
    soon("the end", ended).await;
    handle.ended().await.unwrap();
    assert_eq!(shop.count("look"), 3);
}

#[tokio::test]
async fn a_panic_is_a_failure_of_the_step() {
    let (store, shop) = (memory().await, Shop::new());
    let engine = Engine::open(store, "one", quick()).await.unwrap();
    engine.register(Patient(shop)).unwrap();
    let process = Process::run(engine);
    let handle = process.engine.start::<Patient>(order("bomb"), "alice").await.unwrap();
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure.code(), Code::Internal);
    assert!(failure.message().starts_with("step wait panicked: "), "{failure}");
}

#[tokio::test]
async fn operations_that_ended_are_forgotten_by_age_and_by_number() {
    let (store, shop) = (memory().await, Shop::new());
    let clock = ManualClock::new(5_000_000);
    let options = Options {
        keep_ended: Duration::from_secs(3600),
        keep_ended_count: 2,
        ..with_clock(&clock)
    };
    let process = Process::start_with(&store, "one", &shop, options).await;
    for name in ["a", "b", "c"] {
        let handle = process.engine.start::<Make>(order(name), "alice").await.unwrap();
        soon("the end", handle.ended()).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    let shown = |names: &'static [&'static str]| {
        let (engine, clock) = (process.engine.clone(), clock.clone());
        async move {
            let keys = || engine.list().into_iter().map(|o| o.key).collect::<Vec<_>>();
            while keys() != names {
                clock.advance(Duration::from_secs(61));
                tokio::task::yield_now().await;
            }
        }
    };
    soon("sweeping by number", shown(&["c", "b"])).await;
    clock.advance(Duration::from_secs(3600));
    soon("sweeping by age", shown(&[])).await;
}

#[tokio::test]
async fn kinds_must_be_registered_once() {
    let engine = Engine::open(memory().await, "one", quick()).await.unwrap();
    let error = engine.prepare::<Make>(order("lamp"), "alice").unwrap_err();
    assert!(matches!(error, Error::UnknownKind { .. }));
    engine.register(Make(Shop::new())).unwrap();
    let error = engine.register(Make(Shop::new())).unwrap_err();
    assert!(matches!(error, Error::Registered { kind: "Make" }));
}
