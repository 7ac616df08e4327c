//! What all operations on instances work with, and how they are started: the
//! change of the instance and the operation's record in one transaction.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    AppInst, CloudletKey, CloudletRefs, ClusterInst, ClusterRefs, TrackedState,
};
use selvage_kit::clock::Clock;
use selvage_store::table::{Committed, Subscription};
use selvage_store::{Record, Revision, Table, Transaction};
use selvage_work::{Engine, Handle, Operation, Prepared, Running};

use super::error::{Error, Refusal};
use super::kind::Instance;
use super::leftover::Leftover;
use super::queue::Queues;
use super::state::Goal;
use crate::controller::{MeetsDeletions, Mode};
use crate::keys::KeyText;
use crate::row::Row;
use crate::settings::Settings;
use crate::state::ControllerState;
use crate::tables::Tables;

/// How long a caller waits for an operation that is about to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells an operation that is being cancelled to leave its instance alone,
/// because another one takes it over.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Takeover {
    /// The operation.
    #[prost(string, tag = "1")]
    pub(super) operation: String,
}

impl Record for Takeover {
    const KIND: &'static str = "instance-takeover";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.operation.clone()
    }
}

/// Changes of an instance from before an operation on it began, so that its
/// followers are told every state however fast the crm is.
pub(crate) type Early<I> = Subscription<Row<I>>;

/// The same by operation, until its first step takes it.
pub(crate) type EarlyChanges<I> = Mutex<HashMap<String, Early<I>>>;

/// Forgets what was kept for operations that did not begin.
struct Offered<'a, I: Instance> {
    core: &'a Core,
    operations: Mutex<Vec<String>>,
    kind: PhantomData<fn() -> I>,
}

impl<I: Instance> Offered<'_, I> {
    fn offer(&self, prepared: &Prepared) {
        let changes = self.core.tables.of::<I>().subscribe_key(prepared.key());
        I::early(self.core).lock().insert(prepared.id().to_owned(), changes);
        self.operations.lock().push(prepared.id().to_owned());
    }
}

impl<I: Instance> Drop for Offered<'_, I> {
    fn drop(&mut self) {
        let mut early = I::early(self.core).lock();
        for operation in self.operations.lock().iter() {
            early.remove(operation);
        }
    }
}

pub(crate) struct Core {
    pub(super) state: Arc<ControllerState>,
    pub(super) tables: Tables,
    pub(super) settings: Settings,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) takeovers: Arc<Table<Takeover>>,
    pub(super) leftovers: Arc<Table<Leftover>>,
    pub(super) early_clusters: EarlyChanges<ClusterInst>,
    pub(super) early_apps: EarlyChanges<AppInst>,
    queues: Queues,
}

/// Who has something done, by what, and whether he means it.
#[derive(Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) who: &'a str,
    pub(crate) mode: Mode,
}

/// What is to be done to which instance.
pub(super) struct Asked<'a, I> {
    pub(super) goal: Goal,
    pub(super) request: &'a I,
    /// Where the instance is meant to be.
    pub(super) cloudlet: &'a CloudletKey,
}

/// What came of starting an operation.
#[derive(Debug)]
pub(crate) struct Begun {
    /// What the caller is told before anything the operation says.
    pub(crate) notes: Vec<String>,
    /// Nothing in a dry run.
    pub(crate) handle: Option<Handle>,
}

impl Core {
    pub(super) async fn open(state: &Arc<ControllerState>) -> Result<Self, Error> {
        let takeovers = Table::open(Arc::clone(&state.store)).await?;
        let leftovers = Table::open(Arc::clone(&state.store)).await?;
        Ok(Self {
            state: Arc::clone(state),
            tables: state.tables.clone(),
            settings: state.settings.clone(),
            clock: Arc::clone(&state.clock),
            takeovers,
            leftovers,
            early_clusters: Mutex::default(),
            early_apps: Mutex::default(),
            queues: Queues::default(),
        })
    }

    pub(super) async fn transact<T, E, F, Fut>(
        &self,
        mode: Mode,
        body: F,
    ) -> Result<Committed<T>, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<selvage_store::Error> + From<Error> + MeetsDeletions,
    {
        self.state.transact(mode, body).await
    }

    /// The same for what is counted on a cloudlet: those that count on the
    /// same one come one after the other.
    pub(super) async fn count<T, E, F, Fut>(
        &self,
        mode: Mode,
        cloudlet: &CloudletKey,
        mut body: F,
    ) -> Result<Committed<T>, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<selvage_store::Error> + From<Error> + MeetsDeletions,
    {
        let place = &cloudlet.text();
        let committed = self.transact(mode, |tx| {
            // Nothing is read before its turn, nor is the turn over before
            // the commit is.
            let run = body(tx);
            async move {
                let turn = self.queues.turn(place).await;
                Ok::<_, E>((run.await?, turn))
            }
        });
        let Committed { value: (value, _turn), revision } = committed.await?;
        Ok(Committed { value, revision })
    }

    pub(super) fn timeout(&self, goal: Goal) -> Duration {
        let timeouts = &self.settings.timeouts;
        match goal {
            Goal::Create => timeouts.create,
            Goal::Update => timeouts.update,
            Goal::Delete => timeouts.delete,
        }
    }

    /// Returns when the views show what was written with an instance.
    pub(super) async fn caught_up<I: Instance>(&self, revision: Revision) -> Result<(), Error> {
        let tables = &self.tables;
        tables.caught_up::<I>(revision).await?;
        tables.caught_up::<CloudletRefs>(revision).await?;
        tables.caught_up::<ClusterRefs>(revision).await?;
        Ok(())
    }

    /// Commits what `body` writes together with an operation, and sets that
    /// going.
    pub(super) async fn start<O, I, F, Fut>(
        &self,
        by: By<'_>,
        cloudlet: &CloudletKey,
        mut body: F,
    ) -> Result<Begun, Refusal>
    where
        O: Operation,
        I: Instance,
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<(O::State, Vec<String>), Refusal>>,
    {
        let By { engine, who, mode } = by;
        let offered = Offered::<I> { core: self, operations: Mutex::default(), kind: PhantomData };
        let offers = &offered;
        let committed = self
            .count(mode, cloudlet, |tx| {
                let decided = body(tx.clone());
                async move {
                    let (state, notes) = decided.await?;
                    let prepared = engine.prepare::<O>(state, who)?;
                    prepared.put(&tx).await?;
                    // Now, for the engine may find the operation before us.
                    offers.offer(&prepared);
                    Ok::<_, Refusal>((prepared, notes))
                }
            })
            .await?;
        let (prepared, notes) = committed.value;
        if mode == Mode::DryRun {
            return Ok(Begun { notes, handle: None });
        }
        self.caught_up::<I>(committed.revision).await?;
        offered.operations.lock().retain(|operation| operation != prepared.id());
        Ok(Begun { notes, handle: Some(engine.launch(prepared)) })
    }

    /// Starts an operation, waiting for one that is in its way and about to
    /// end, or taking the instance over from it. `decide` reads, checks and
    /// writes, and may be asked again.
    pub(super) async fn begin<O, I, F, Fut>(
        &self,
        by: By<'_>,
        asked: Asked<'_, I>,
        decide: F,
    ) -> Result<Begun, Refusal>
    where
        O: Operation,
        I: Instance,
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<(O::State, Vec<String>), Refusal>>,
    {
        let engine = by.engine;
        let Asked { goal, request, cloudlet } = asked;
        loop {
            let begun = self.start::<O, I, _, _>(by, cloudlet, &decide).await;
            let running = match begun {
                Err(Refusal { error: Error::Busy(running), .. }) => running,
                begun => return begun,
            };
            // Any transient state does: the question is whether he may at all.
            let takes_over = request.over().takes_over(TrackedState::Creating);
            if takes_over {
                self.take_over(engine, &running).await?;
            } else if goal == Goal::Create && running.kind.starts_with(Goal::Create.verb()) {
                return Err(Error::KeyExists.into());
            }
            let Ok(handle) = engine.attach(&running.id) else {
                // Its end is known to the store before it is to the engine.
                tokio::task::yield_now().await;
                continue;
            };
            let ended = tokio::time::timeout(PATIENCE, handle.ended()).await;
            if takes_over {
                self.takeovers.delete(&running.id).await.map_err(Error::from)?;
            }
            if ended.is_err() {
                return Err(I::busy(goal).into());
            }
        }
    }

    /// Ends an operation without anything being undone.
    async fn take_over(&self, engine: &Engine, running: &Running) -> Result<(), Error> {
        self.takeovers.put(Takeover { operation: running.id.clone() }).await?;
        match engine.cancel(&running.id, "another operation on the same object").await {
            Ok(_)
            | Err(selvage_work::Error::Ended { .. } | selvage_work::Error::NotFound { .. }) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the instance of an operation was given to another one.
    pub(super) fn is_taken_over(&self, operation: &str) -> bool {
        self.takeovers.get(operation).is_some()
    }

    /// Changes an instance, if it is there and `change` finds something to
    /// change.
    pub(super) async fn alter<I: Instance>(
        &self,
        key: &str,
        change: impl Fn(&mut I) -> bool,
    ) -> Result<bool, Error> {
        let change = &change;
        let committed = self
            .transact(Mode::Real, |tx| async move {
                let Some(Row(mut inst)) = tx.get::<Row<I>>(key).await? else { return Ok(false) };
                let changes = change(&mut inst);
                if changes {
                    tx.put(&Row(inst))?;
                }
                Ok::<_, Error>(changes)
            })
            .await?;
        self.tables.caught_up::<I>(committed.revision).await?;
        Ok(committed.value)
    }

    /// Removes an instance and what is counted for it, if it is there.
    pub(super) async fn remove<I: Instance>(&self, key: &str) -> Result<(), Error> {
        let Some(inst) = self.stored::<I>(key).await? else { return Ok(()) };
        let committed = self
            .count(Mode::Real, inst.cloudlet_key(), |tx| async move {
                match tx.get::<Row<I>>(key).await? {
                    Some(Row(inst)) => inst.remove(&tx).await,
                    None => Ok(()),
                }
            })
            .await?;
        self.caught_up::<I>(committed.revision).await
    }
}
