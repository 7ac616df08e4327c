//! Contexts of steps.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_store::clock::ManualClock;
use selvage_store::{Record, SharedStore, Table, transact};
use selvage_work::{Engine, Failure, Interrupt, Next, Operation, Scope, Subject};

use crate::support::{
    Make, Process, Shop, memory, memory_with_clock, order, quick, soon, with_clock,
};

#[derive(Clone, PartialEq, prost::Message)]
struct Note {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    number: u32,
}

impl Subject for Note {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Record for Note {
    const KIND: &'static str = "note";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }
}

fn note(name: &str, number: u32) -> Note {
    Note { name: name.into(), number }
}

/// Does what its key says.
#[derive(Clone)]
struct Probe {
    shop: Shop,
    notes: Arc<Table<Note>>,
}

impl Probe {
    async fn open(store: &SharedStore, shop: &Shop) -> Self {
        Self { shop: shop.clone(), notes: Table::open(Arc::clone(store)).await.unwrap() }
    }

    async fn process(
        &self,
        store: &SharedStore,
        name: &str,
        clock: Option<&ManualClock>,
    ) -> Process {
        let options = clock.map_or_else(quick, with_clock);
        let engine = Engine::open(Arc::clone(store), name, options).await.unwrap();
        engine.register(self.clone()).unwrap();
        engine.register(Make(self.shop.clone())).unwrap();
        Process::run(engine)
    }

    fn log(&self, entry: impl Into<String>) {
        self.shop.log.send_modify(|log| log.push(entry.into()));
    }

    async fn free(&self, step: &str) {
        let mut hold = self.shop.hold.subscribe();
        let _ = hold.wait_for(|held| *held != step).await;
    }
}

#[async_trait]
impl Operation for Probe {
    const KIND: &'static str = "Probe";
    type State = Note;

    fn steps(&self, _: &Note) -> Vec<&'static str> {
        vec!["work"]
    }

    async fn run(&self, _: &str, state: &mut Note, scope: &Scope) -> Result<Next, Failure> {
        self.log(format!("{} {}", state.name, state.number));
        match state.name.as_str() {
            "record" => {
                let more = |note: Option<&Note>| note.map(|n| n.number).filter(|n| *n > 1);
                state.number = scope.until_record(&self.notes, "watched", more).await?;
                self.log(format!("saw {}", state.number));
            }
            "limit" => {
                let limit = Duration::from_secs(5);
                let never = scope.within(limit, std::future::pending::<()>()).await;
                assert_eq!(never, Err(Interrupt::TimedOut));
                return Err(Failure::new(Code::Unavailable, "the far side does not answer"));
            }
            "keep" => {
                if state.number == 0 {
                    state.number = 7;
                    scope.checkpoint(state).await?;
                    self.log("kept");
                    self.free("keep").await;
                }
            }
            "fence" => {
                // Deaf on purpose, as a step is that waits for a slow machine.
                self.free("fence").await;
                let engine = scope.engine();
                let written = transact(engine.store(), |tx| async move {
                    scope.fence(&tx).await?;
                    let old = tx.get::<Note>("written").await?.map_or(0, |note| note.number);
                    tx.put(&note("written", old + 1))?;
                    Ok::<_, Failure>(())
                });
                let written = written.await;
                self.log(if written.is_ok() { "written" } else { "refused" });
                written?;
            }
            "parent" => {
                let engine = scope.engine();
                let (child, _) = engine.start_or_attach::<Make>(order("child"), "parent").await?;
                scope.until(child.ended()).await??;
            }
            other => panic!("no probe {other}"),
        }
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, state: &mut Note, _: &Scope) -> Result<(), Failure> {
        self.log(format!("undo {}", state.name));
        Ok(())
    }
}

#[tokio::test]
async fn a_step_waits_for_a_record() {
    let (store, shop) = (memory().await, Shop::new());
    let probe = Probe::open(&store, &shop).await;
    let process = probe.process(&store, "one", None).await;
    let handle = process.engine.start::<Probe>(note("record", 0), "alice").await.unwrap();
    shop.begun("record 0", 1).await;
    for number in [1, 5] {
        probe.notes.put(note("other", 9)).await.unwrap();
        probe.notes.put(note("watched", number)).await.unwrap();
    }
    soon("the end", handle.ended()).await.unwrap();
    assert_eq!(shop.count("saw 5"), 1);
}

#[tokio::test]
async fn a_limited_wait_ends_and_the_step_says_what_that_means() {
    let (store, shop, clock) = (memory().await, Shop::new(), ManualClock::new(1_000_000));
    let probe = Probe::open(&store, &shop).await;
    let process = probe.process(&store, "one", Some(&clock)).await;
    let handle = process.engine.start::<Probe>(note("limit", 0), "alice").await.unwrap();
    shop.begun("limit 0", 1).await;
    clock.advance(Duration::from_secs(5));
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure, Failure::new(Code::Unavailable, "the far side does not answer"));
}

#[tokio::test]
async fn what_was_kept_in_the_middle_of_a_step_survives() {
    let (store, shop) = (memory().await, Shop::holding("keep"));
    let probe = Probe::open(&store, &shop).await;
    let process = probe.process(&store, "one", None).await;
    let handle = process.engine.start::<Probe>(note("keep", 0), "alice").await.unwrap();
    shop.begun("kept", 1).await;
    process.crash().await;
    let next = probe.process(&store, "one", None).await;
    let handle = next.engine.attach(handle.id()).unwrap();
    soon("the end", handle.ended()).await.unwrap();
    assert_eq!(*shop.log.borrow(), ["keep 0", "kept", "keep 7"]);
}

#[tokio::test]
async fn a_driver_that_was_deposed_cannot_write_behind_the_fence() {
    let ((store, clock), shop) = (memory_with_clock().await, Shop::holding("fence"));
    let probe = Probe::open(&store, &shop).await;
    // Its clock stands still: it does not know that its time is up.
    let still = ManualClock::new(1_000_000);
    let one = probe.process(&store, "one", Some(&still)).await;
    let handle = one.engine.start::<Probe>(note("fence", 0), "alice").await.unwrap();
    shop.begun("fence 0", 1).await;
    clock.advance(Duration::from_secs(16));
    let two = probe.process(&store, "two", None).await;
    shop.begun("fence 0", 2).await;
    shop.hold.send_replace("");
    shop.begun("refused", 1).await;
    soon("the end", handle.ended()).await.unwrap();
    assert_eq!(probe.notes.get("written").unwrap().value.number, 1);
    assert_eq!(shop.count("undo fence"), 0);
    two.stop().await;
}

#[tokio::test]
async fn an_operation_may_wait_for_another() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let probe = Probe::open(&store, &shop).await;
    let process = probe.process(&store, "one", None).await;
    let handle = process.engine.start::<Probe>(note("parent", 0), "alice").await.unwrap();
    let id = handle.id().to_owned();
    shop.begun("run create", 1).await;
    process.stop().await;
    *shop.fail.lock() = "publish";
    shop.hold.send_replace("");
    let next = probe.process(&store, "one", None).await;
    let handle = next.engine.attach(&id).unwrap();
    let failure = soon("the end", handle.ended()).await.unwrap_err();
    assert_eq!(failure.message(), "no room to publish");
    assert!(shop.is_empty());
}
