//! A small world to work on, and processes that work on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kit::tasks::Backoff;
use selvage_store::SharedStore;
use selvage_store::clock::ManualClock;
use selvage_store::embedded::{Embedded, Options as StoreOptions};
pub(crate) use selvage_testkit::within as soon;
use selvage_work::testing::Environment;
use selvage_work::{Engine, Error, Failure, Next, Operation, Options, Scope, Subject};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) async fn memory() -> SharedStore {
    Embedded::in_memory(StoreOptions::default()).await.unwrap()
}

/// A store whose leases end when the clock says so.
pub(crate) async fn memory_with_clock() -> (SharedStore, ManualClock) {
    let clock = ManualClock::new(1_000_000);
    let options = StoreOptions { clock: Arc::new(clock.clone()), ..StoreOptions::default() };
    (Embedded::in_memory(options).await.unwrap(), clock)
}

pub(crate) fn quick() -> Options {
    let backoff = Backoff {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(2),
        ..Backoff::default()
    };
    Options { backoff, undo_attempts: 3, ..Options::default() }
}

pub(crate) fn with_clock(clock: &ManualClock) -> Options {
    Options { clock: Arc::new(clock.clone()), ..quick() }
}

/// Objects of the test: ports by owner, things by name, and what is published.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Things {
    pub(crate) ports: BTreeMap<u32, String>,
    pub(crate) made: BTreeMap<String, u32>,
    pub(crate) published: BTreeSet<String>,
}

/// A way to break the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Takes another port each time.
    ReservesAnew,
    /// Leaves what was made.
    ForgetsToUndo,
    /// Undo fails if there is nothing to undo.
    UndoesOnce,
    /// Fails if its own work is there already.
    CreatesOnce,
}

/// The world: things, and how the operation is to behave in it.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) things: Arc<Mutex<Things>>,
    /// A step of this name waits until it is something else.
    pub(crate) hold: watch::Sender<&'static str>,
    /// A step of this name fails.
    pub(crate) fail: Arc<Mutex<&'static str>>,
    /// Undo of a step of this name fails so often.
    pub(crate) fail_undo: Arc<Mutex<(&'static str, u32)>>,
    /// Steps as they are taken and undone.
    pub(crate) log: watch::Sender<Vec<String>>,
    pub(crate) wrong: Option<Wrong>,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self {
            things: Arc::default(),
            hold: watch::Sender::new(""),
            fail: Arc::default(),
            fail_undo: Arc::default(),
            log: watch::Sender::new(Vec::new()),
            wrong: None,
        }
    }

    pub(crate) fn holding(step: &'static str) -> Self {
        let shop = Self::new();
        shop.hold.send_replace(step);
        shop
    }

    /// Waits until a step was begun that often.
    pub(crate) async fn begun(&self, entry: &str, times: usize) {
        let mut log = self.log.subscribe();
        let seen = log.wait_for(|log| log.iter().filter(|e| *e == entry).count() >= times);
        soon(entry, seen).await.unwrap();
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.log.borrow().iter().filter(|e| *e == entry).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self.things.lock() == Things::default()
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
        let things = self.things.lock();
        things.made.contains_key(name)
            && things.published.contains(name)
            && things.ports.values().any(|owner| owner == name)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Order {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) port: u32,
    /// Leaves out making it.
    #[prost(bool, tag = "3")]
    pub(crate) only_reserve: bool,
    #[prost(bool, tag = "4")]
    pub(crate) skip_create: bool,
    /// Milliseconds, 0 for none.
    #[prost(uint64, tag = "5")]
    pub(crate) limit: u64,
    /// The key, if it is not the name.
    #[prost(string, tag = "6")]
    pub(crate) object: String,
}

impl Subject for Order {
    fn key(&self) -> String {
        if self.object.is_empty() { self.name.clone() } else { self.object.clone() }
    }

    fn organisation(&self) -> String {
        "acme".into()
    }
}

pub(crate) fn order(name: &str) -> Order {
    Order { name: name.into(), ..Order::default() }
}

#[derive(Debug, Clone)]
pub(crate) struct Make(pub(crate) Shop);

pub(crate) const STEPS: [&str; 3] = ["reserve", "create", "publish"];

impl Make {
    fn reserve(&self, state: &mut Order) {
        let mut things = self.0.things.lock();
        let own = things.ports.iter().find(|(_, owner)| **owner == state.name);
        let own = own.map(|(port, _)| *port).filter(|_| self.0.wrong != Some(Wrong::ReservesAnew));
        state.port = own.unwrap_or_else(|| things.ports.keys().max().map_or(1, |most| most + 1));
        things.ports.insert(state.port, state.name.clone());
    }

    async fn hold(&self, step: &str, scope: &Scope) -> Result<(), Failure> {
        let mut hold = self.0.hold.subscribe();
        let _ = scope.until(hold.wait_for(|held| *held != step)).await?;
        Ok(())
    }
}

#[async_trait]
impl Operation for Make {
    const KIND: &'static str = "Make";
    type State = Order;

    fn steps(&self, _: &Order) -> Vec<&'static str> {
        STEPS.to_vec()
    }

    fn time_limit(&self, state: &Order) -> Option<Duration> {
        (state.limit > 0).then(|| Duration::from_millis(state.limit))
    }

    async fn run(&self, step: &str, state: &mut Order, scope: &Scope) -> Result<Next, Failure> {
        self.0.log.send_modify(|log| log.push(format!("run {step}")));
        scope.say(format!("{step} {}", state.name));
        self.hold(step, scope).await?;
        if *self.0.fail.lock() == step {
            return Err(Failure::new(Code::ResourceExhausted, format!("no room to {step}")));
        }
        match step {
            "reserve" => {
                self.reserve(state);
                if state.only_reserve {
                    return Ok(Next::Finish);
                }
                if state.skip_create {
                    return Ok(Next::Jump("publish"));
                }
            }
            "create" => {
                let old = self.0.things.lock().made.insert(state.name.clone(), state.port);
                if old.is_some() && self.0.wrong == Some(Wrong::CreatesOnce) {
                    return Err(Failure::new(Code::AlreadyExists, "made already"));
                }
            }
            "publish" => {
                self.0.things.lock().published.insert(state.name.clone());
            }
            other => panic!("no step {other}"),
        }
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, state: &mut Order, scope: &Scope) -> Result<(), Failure> {
        assert!(scope.undoing() && scope.reason().is_some());
        self.0.log.send_modify(|log| log.push(format!("undo {step}")));
        {
            let mut fail = self.0.fail_undo.lock();
            if fail.0 == step && fail.1 > 0 {
                fail.1 -= 1;
                return Err(Failure::new(Code::Unavailable, "the shop is shut"));
            }
        }
        let mut things = self.0.things.lock();
        let was_there = match step {
            "reserve" => {
                let before = things.ports.len();
                things.ports.retain(|port, owner| *owner != state.name || *port == 0);
                before != things.ports.len()
            }
            "create" if self.0.wrong == Some(Wrong::ForgetsToUndo) => true,
            "create" => things.made.remove(&state.name).is_some(),
            _ => things.published.remove(&state.name),
        };
        if !was_there && self.0.wrong == Some(Wrong::UndoesOnce) {
            return Err(Failure::new(Code::NotFound, "nothing to undo"));
        }
        Ok(())
    }
}

/// A process with an engine that runs.
pub(crate) struct Process {
    pub(crate) engine: Engine,
    pub(crate) token: CancellationToken,
    running: JoinHandle<Result<(), Error>>,
}

impl Process {
    pub(crate) async fn start(store: &SharedStore, name: &str, shop: &Shop) -> Self {
        Self::start_with(store, name, shop, quick()).await
    }

    pub(crate) async fn start_with(
        store: &SharedStore,
        name: &str,
        shop: &Shop,
        options: Options,
    ) -> Self {
        let engine = Engine::open(Arc::clone(store), name, options).await.unwrap();
        engine.register(Make(shop.clone())).unwrap();
        Self::run(engine)
    }

    pub(crate) fn run(engine: Engine) -> Self {
        let token = CancellationToken::new();
        let running = tokio::spawn({
            let (engine, token) = (engine.clone(), token.clone());
            async move { engine.run(token).await }
        });
        Self { engine, token, running }
    }

    /// Waits until the engine ends by itself.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        soon("the end of an engine", self.running).await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.token.cancel();
        self.ended().await.unwrap();
    }

    pub(crate) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }
}

/// A shop with its store, to prove the operation in.
pub(crate) struct Proving {
    pub(crate) shop: Shop,
    pub(crate) store: SharedStore,
}

#[async_trait]
impl Environment for Proving {
    type Operation = Make;

    fn store(&self) -> SharedStore {
        Arc::clone(&self.store)
    }

    fn operation(&self) -> Make {
        Make(self.shop.clone())
    }

    fn state(&self) -> Order {
        order("lamp")
    }

    async fn residue(&self) -> String {
        format!("{:?}", self.shop.things.lock())
    }

    fn options(&self) -> Options {
        quick()
    }
}
