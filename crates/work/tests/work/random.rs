//! Random histories: processes crash, stop and start, leases end, operations
//! are cancelled and fail. Whatever happens, each ends wholly done or wholly
//! undone, and none is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use selvage_api::selvage::operations::State;
use selvage_store::SharedStore;
use selvage_store::clock::ManualClock;
use selvage_work::Error;

use crate::support::{Make, Order, Process, STEPS, Shop, memory_with_clock, order, with_clock};

const NAMES: [&str; 2] = ["one", "two"];
const THINGS: [&str; 4] = ["lamp", "chair", "table", "shelf"];

#[derive(Debug, Clone)]
enum Act {
    Start { process: usize, thing: usize },
    Crash(usize),
    Stop(usize),
    Revive(usize),
    Cancel(usize),
    Hold(usize),
    Fail(usize),
    Time(u64),
    Breathe,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..NAMES.len(), 0..THINGS.len())
            .prop_map(|(process, thing)| Act::Start { process, thing }),
        2 => (0..NAMES.len()).prop_map(Act::Crash),
        1 => (0..NAMES.len()).prop_map(Act::Stop),
        3 => (0..NAMES.len()).prop_map(Act::Revive),
        1 => (0..THINGS.len()).prop_map(Act::Cancel),
        2 => (0..=STEPS.len()).prop_map(Act::Hold),
        1 => (0..=STEPS.len()).prop_map(Act::Fail),
        2 => (1..20_u64).prop_map(Act::Time),
        4 => Just(Act::Breathe),
    ]
}

struct History {
    store: SharedStore,
    clock: ManualClock,
    shop: Shop,
    processes: [Option<Process>; 2],
    /// Objects that each operation was to make.
    started: BTreeMap<String, String>,
}

impl History {
    async fn new() -> Self {
        let (store, clock) = memory_with_clock().await;
        Self { store, clock, shop: Shop::new(), processes: [None, None], started: BTreeMap::new() }
    }

    async fn process(&mut self, at: usize) -> &Process {
        if self.processes[at].is_none() {
            let options = with_clock(&self.clock);
            let process = Process::start_with(&self.store, NAMES[at], &self.shop, options).await;
            self.processes[at] = Some(process);
        }
        self.processes[at].as_ref().unwrap()
    }

    fn step(number: usize) -> &'static str {
        STEPS.get(number).copied().unwrap_or_default()
    }

    async fn act(&mut self, act: &Act) {
        match *act {
            Act::Start { process, thing } => {
                let engine = self.process(process).await.engine.clone();
                let name = format!("{} {}", THINGS[thing], self.started.len());
                let wanted = Order { object: THINGS[thing].into(), ..order(&name) };
                match engine.start::<Make>(wanted, "alice").await {
                    Ok(handle) => {
                        self.started.insert(handle.id().to_owned(), name);
                    }
                    Err(Error::Busy(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Act::Crash(at) => {
                if let Some(process) = self.processes[at].take() {
                    process.crash().await;
                }
            }
            Act::Stop(at) => {
                if let Some(process) = self.processes[at].take() {
                    process.stop().await;
                }
            }
            Act::Revive(at) => {
                self.process(at).await;
            }
            Act::Cancel(thing) => {
                for process in self.processes.iter().flatten() {
                    if let Some(running) = process.engine.running_on(THINGS[thing]) {
                        // It may have ended meanwhile.
                        let _ = process.engine.cancel(&running.id, "bob").await;
                    }
                }
            }
            Act::Hold(step) => {
                self.shop.hold.send_replace(Self::step(step));
            }
            Act::Fail(step) => *self.shop.fail.lock() = Self::step(step),
            Act::Time(seconds) => self.clock.advance(Duration::from_secs(seconds)),
            Act::Breathe => {
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Lets everything come to its end.
    async fn settle(&mut self) {
        self.shop.hold.send_replace("");
        let engine = self.process(0).await.engine.clone();
        let active =
            || engine.list().iter().any(|o| matches!(o.state(), State::Running | State::Undoing));
        for _ in 0..5000 {
            let revision = engine.store().revision().await.unwrap();
            if !active() && engine.list().len() == self.started.len() {
                return;
            }
            self.clock.advance(Duration::from_millis(500));
            let quiet = async {
                while engine.store().revision().await.unwrap() == revision {
                    tokio::task::yield_now().await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(5), quiet).await;
        }
        panic!("it does not settle: {:#?}", engine.list());
    }

    fn check(&self) {
        let engine = &self.processes[0].as_ref().unwrap().engine;
        let mut made = 0;
        for (id, name) in &self.started {
            let operation = engine.get(id).unwrap();
            let done = operation.state() == State::Succeeded;
            made += usize::from(done);
            assert_eq!(self.shop.holds(name), done, "{operation:?}");
        }
        let things = self.shop.things.lock();
        let left = [things.ports.len(), things.made.len(), things.published.len()];
        assert_eq!(left, [made; 3], "something was left behind: {things:?}");
        for operation in engine.list() {
            assert!(!operation.error.contains("stuck"), "{operation:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_ends_done_or_undone(acts in prop::collection::vec(act(), 1..40)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut history = History::new().await;
            for act in &acts {
                history.act(act).await;
            }
            history.settle().await;
            history.check();
        });
    }
}
