//! Messages that followers get.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::Code;
use selvage_api::selvage::operations::State;
use selvage_work::{Engine, Event, Failure, Handle, Next, Operation, Options, Scope};

use crate::support::{Make, Order, Process, Shop, memory, order, quick, soon};

async fn lines(handle: &Handle) -> Vec<String> {
    soon("the lines", handle.lines().map(Result::unwrap).collect()).await
}

#[tokio::test]
async fn followers_see_all_that_was_said_whenever_they_come() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let early = tokio::spawn(handle.follow().collect::<Vec<_>>());
    shop.begun("run create", 1).await;
    drop(handle.follow());
    let late = tokio::spawn(handle.follow().collect::<Vec<_>>());
    shop.hold.send_replace("");
    let said = ["reserve lamp", "create lamp", "publish lamp"];
    for follower in [early, late] {
        let events: Vec<Event> =
            soon("a follower", follower).await.unwrap().into_iter().map(Result::unwrap).collect();
        let heard: Vec<_> =
            events.iter().map(|e| e.message.as_str()).filter(|m| !m.is_empty()).collect();
        assert_eq!(heard, said);
        let last = &events.last().unwrap().operation;
        assert_eq!((last.state(), last.steps_done), (State::Succeeded, 3));
    }
    assert_eq!(lines(&handle).await, said);
}

#[tokio::test]
async fn the_stream_of_a_failed_operation_ends_with_its_error() {
    let (store, shop) = (memory().await, Shop::new());
    *shop.fail.lock() = "create";
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    let mut events: Vec<_> = soon("the stream", handle.follow().collect()).await;
    let failure = events.pop().unwrap().unwrap_err();
    assert_eq!((failure.code(), failure.message()), (Code::ResourceExhausted, "no room to create"));
    assert!(events.iter().all(Result::is_ok));
}

#[tokio::test]
async fn another_process_sees_steps_and_lines() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let one = Process::start(&store, "one", &shop).await;
    let two = Process::start(&store, "two", &shop).await;
    let here = one.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    let (there, _) = two.engine.start_or_attach::<Make>(order("lamp"), "bob").await.unwrap();
    let mut events = there.follow();
    let first = soon("what was said", events.next()).await.unwrap().unwrap();
    assert_eq!((first.message.as_str(), first.operation.step.as_str()), ("reserve lamp", "create"));
    shop.hold.send_replace("publish");
    let next = soon("the next step", events.next()).await.unwrap().unwrap();
    assert_eq!((next.message.as_str(), next.operation.step.as_str()), ("create lamp", "publish"));
    shop.hold.send_replace("");
    let rest: Vec<_> = soon("the rest", events.map(Result::unwrap).collect()).await;
    assert_eq!(rest.last().unwrap().operation.state(), State::Succeeded);
    assert!(rest.iter().any(|event| event.message == "publish lamp"));
    assert_eq!(lines(&here).await, lines(&there).await);
}

/// Says more than anybody can keep.
struct Chatty(Shop);

#[async_trait]
impl Operation for Chatty {
    const KIND: &'static str = "Chatty";
    type State = Order;

    fn steps(&self, _: &Order) -> Vec<&'static str> {
        vec!["talk", "listen"]
    }

    async fn run(&self, step: &str, _: &mut Order, scope: &Scope) -> Result<Next, Failure> {
        if step == "talk" {
            for number in 0..1000 {
                scope.say(format!("line {number}"));
            }
        }
        self.0.log.send_modify(|log| log.push(format!("run {step}")));
        let mut hold = self.0.hold.subscribe();
        let _ = scope.until(hold.wait_for(|held| *held != step)).await?;
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, _: &mut Order, _: &Scope) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test]
async fn slow_followers_learn_what_they_missed_and_delay_nobody() {
    let (store, shop) = (memory().await, Shop::holding("listen"));
    let options = Options { lines_in_memory: 100, lines_stored: 10, ..quick() };
    let engine = Engine::open(Arc::clone(&store), "one", options).await.unwrap();
    engine.register(Chatty(shop.clone())).unwrap();
    let process = Process::run(engine);
    let handle = process.engine.start::<Chatty>(order("radio"), "alice").await.unwrap();
    let slow = handle.lines();
    shop.begun("run listen", 1).await;
    shop.hold.send_replace("");
    soon("the end", handle.ended()).await.unwrap();
    let heard: Vec<_> = soon("the slow", slow.map(Result::unwrap).collect()).await;
    assert_eq!(heard.len(), 101);
    assert_eq!(heard[0], "… 900 lines skipped");
    assert_eq!(heard[100], "line 999");
    process.stop().await;
    // The operation is only in the store now.
    let next = Process::start(&store, "one", &shop).await;
    let heard = lines(&next.engine.attach(handle.id()).unwrap()).await;
    assert_eq!((heard.len(), heard[0].as_str()), (11, "… 990 lines skipped"));
}

#[tokio::test]
async fn nobody_has_to_listen() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    drop(process.engine.start::<Make>(order("lamp"), "alice").await.unwrap());
    shop.begun("run create", 1).await;
    shop.hold.send_replace("");
    shop.begun("run publish", 1).await;
    let running = process.engine.list().remove(0);
    let handle = process.engine.attach(&running.id).unwrap();
    soon("the end", handle.ended()).await.unwrap();
}
