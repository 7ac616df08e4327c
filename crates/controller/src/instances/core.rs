//! Shared state of all operations on instances, and their start: the change of
//! the instance and the operation's record in one transaction.

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
use super::queue::Queues;
use super::state::Verb;
use super::unused_clusters::UnusedCluster;
use crate::controller::{MeetsDeletions, Mode};
use crate::keys::KeyText;
use crate::row::Row;
use crate::settings::Settings;
use crate::state::ControllerState;
use crate::tables::Tables;

/// Longest wait of a caller for an operation that is about to end.
const ENDING_TIMEOUT: Duration = Duration::from_secs(10);

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
pub(crate) type PendingChanges<I> = Subscription<Row<I>>;

/// The same by operation, until its first step takes it.
pub(crate) type PendingByOperation<I> = Mutex<HashMap<String, PendingChanges<I>>>;

/// Forgets what was kept for operations that did not begin.
struct PendingGuard<'a, I: Instance> {
    core: &'a Core,
    operations: Mutex<Vec<String>>,
    kind: PhantomData<fn() -> I>,
}

impl<I: Instance> PendingGuard<'_, I> {
    fn offer(&self, prepared: &Prepared) {
        let changes = self.core.tables.of::<I>().subscribe_key(prepared.key());
        I::pending(self.core).lock().insert(prepared.id().to_owned(), changes);
        self.operations.lock().push(prepared.id().to_owned());
    }
}

impl<I: Instance> Drop for PendingGuard<'_, I> {
    fn drop(&mut self) {
        let mut pending = I::pending(self.core).lock();
        for operation in self.operations.lock().iter() {
            pending.remove(operation);
        }
    }
}

pub(crate) struct Core {
    pub(super) state: Arc<ControllerState>,
    pub(super) tables: Tables,
    pub(super) settings: Settings,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) takeovers: Arc<Table<Takeover>>,
    pub(super) unused_clusters: Arc<Table<UnusedCluster>>,
    pub(super) pending_clusters: PendingByOperation<ClusterInst>,
    pub(super) pending_apps: PendingByOperation<AppInst>,
    queues: Queues,
}

/// Initiator of an operation: the caller, the engine to use, and the mode.
#[derive(Clone, Copy)]
pub(crate) struct Initiator<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) who: &'a str,
    pub(crate) mode: Mode,
}

/// Request for one verb on one instance.
pub(super) struct InstanceRequest<'a, I> {
    pub(super) verb: Verb,
    pub(super) request: &'a I,
    /// Cloudlet that the instance is meant for.
    pub(super) cloudlet: &'a CloudletKey,
}

/// Result of starting an operation.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Lines for the caller before anything the operation says.
    pub(crate) notes: Vec<String>,
    /// Nothing in a dry run.
    pub(crate) handle: Option<Handle>,
}

impl Core {
    pub(super) async fn open(state: &Arc<ControllerState>) -> Result<Self, Error> {
        let takeovers = Table::open(Arc::clone(&state.store)).await?;
        let unused_clusters = Table::open(Arc::clone(&state.store)).await?;
        Ok(Self {
            state: Arc::clone(state),
            tables: state.tables.clone(),
            settings: state.settings.clone(),
            clock: Arc::clone(&state.clock),
            takeovers,
            unused_clusters,
            pending_clusters: Mutex::default(),
            pending_apps: Mutex::default(),
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

    pub(super) fn timeout(&self, verb: Verb) -> Duration {
        let timeouts = &self.settings.timeouts;
        match verb {
            Verb::Create => timeouts.create,
            Verb::Update => timeouts.update,
            Verb::Delete => timeouts.delete,
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
        by: Initiator<'_>,
        cloudlet: &CloudletKey,
        mut body: F,
    ) -> Result<Begun, Refusal>
    where
        O: Operation,
        I: Instance,
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<(O::State, Vec<String>), Refusal>>,
    {
        let Initiator { engine, who, mode } = by;
        let offered =
            PendingGuard::<I> { core: self, operations: Mutex::default(), kind: PhantomData };
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
        by: Initiator<'_>,
        asked: InstanceRequest<'_, I>,
        decide: F,
    ) -> Result<Begun, Refusal>
    where
        O: Operation,
        I: Instance,
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<(O::State, Vec<String>), Refusal>>,
    {
        let engine = by.engine;
        let InstanceRequest { verb, request, cloudlet } = asked;
        loop {
            let begun = self.start::<O, I, _, _>(by, cloudlet, &decide).await;
            let running = match begun {
                Err(Refusal { error: Error::Busy(running), .. }) => running,
                begun => return begun,
            };
            // Any transient state does: the question is whether the caller may at all.
            let takes_over = request.over().takes_over(TrackedState::Creating);
            if takes_over {
                self.take_over(engine, &running).await?;
            } else if verb == Verb::Create && running.kind.starts_with(Verb::Create.name()) {
                return Err(Error::KeyExists.into());
            }
            let Ok(handle) = engine.attach(&running.id) else {
                // Its end is known to the store before it is to the engine.
                tokio::task::yield_now().await;
                continue;
            };
            let ended = tokio::time::timeout(ENDING_TIMEOUT, handle.ended()).await;
            if takes_over {
                self.takeovers.delete(&running.id).await.map_err(Error::from)?;
            }
            if ended.is_err() {
                return Err(I::busy(verb).into());
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

    /// Returns true if the instance of an operation was given to another one.
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
