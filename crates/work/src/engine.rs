//! The engine: what is known and under way in this process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prost::Message;
use selvage_api::selvage::operations as wire;
use selvage_store::clock::Millis;
use selvage_store::{LeaseId, SharedStore, Table, transact};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::{ClockSequence, ContextV7, NoContext, Timestamp, Uuid};

use crate::live::Live;
use crate::operation::{Erased, Registered};
use crate::record::{Driver, KEY_INDEX, OperationRecord};
use crate::{Error, Handle, Operation, Options, Prepared, Running};

pub(crate) fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// Starts operations, drives those of this process, and knows all in the
/// store. Clones are handles of the same engine; when the last is dropped its
/// operations are left as a crash would leave them.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    /// Guard that ends the engine. Handles given to steps have none: a step
    /// must not keep its own engine alive.
    _guard: Option<Arc<Guard>>,
}

/// One registration of this process among the drivers.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) lease: LeaseId,
    /// Cancelled when the registration is lost.
    pub(crate) lost: CancellationToken,
}

/// An operation that is being driven here.
pub(crate) struct Driven {
    pub(crate) wake: Arc<Notify>,
    pub(crate) abort: Option<AbortHandle>,
    /// The generation, and how to tell it that there is a later one.
    pub(crate) deposed: Option<(u64, CancellationToken)>,
}

pub(crate) struct Inner {
    pub(crate) store: SharedStore,
    pub(crate) options: Options,
    pub(crate) driver: String,
    pub(crate) session: RwLock<Session>,
    pub(crate) operations: Arc<Table<OperationRecord>>,
    pub(crate) drivers: Arc<Table<Driver>>,
    kinds: RwLock<HashMap<&'static str, Arc<dyn Erased>>>,
    pub(crate) lives: Mutex<HashMap<String, Weak<Live>>>,
    pub(crate) driven: Mutex<HashMap<String, Driven>>,
    pub(crate) tracker: TaskTracker,
    /// Cancelled to stop all drives.
    pub(crate) stop: CancellationToken,
    /// Cancelled once they have stopped, for followers.
    pub(crate) closed: CancellationToken,
    ids: Mutex<ContextV7>,
}

/// Ends what the engine started when nobody holds it any more.
struct Guard(Arc<Inner>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.stop.cancel();
        let aborts: Vec<_> =
            self.0.driven.lock().values().filter_map(|driven| driven.abort.clone()).collect();
        for abort in aborts {
            abort.abort();
        }
        self.0.closed.cancel();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("driver", &self.inner.driver)
            .field("driven", &self.inner.driven.lock().len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads what is there and registers this process as a driver under its
    /// name, which no other running process may have. Operations of an earlier
    /// process of that name are continued once [`Engine::run`] runs, which
    /// must be soon: it also keeps the registration alive.
    pub async fn open(
        store: SharedStore,
        driver: impl Into<String>,
        options: Options,
    ) -> Result<Self, Error> {
        let driver = driver.into();
        let operations = Table::open(Arc::clone(&store)).await?;
        let drivers = Table::open(Arc::clone(&store)).await?;
        let session = register(&store, &drivers, &driver, &options).await?;
        let inner = Arc::new(Inner {
            store,
            options,
            driver,
            session: RwLock::new(session),
            operations,
            drivers,
            kinds: RwLock::default(),
            lives: Mutex::default(),
            driven: Mutex::default(),
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            closed: CancellationToken::new(),
            ids: Mutex::new(ContextV7::new()),
        });
        let guard = Arc::new(Guard(Arc::clone(&inner)));
        Ok(Self { inner, _guard: Some(guard) })
    }

    pub(crate) fn unguarded(inner: Arc<Inner>) -> Self {
        Self { inner, _guard: None }
    }

    /// The store that operations are kept in.
    pub fn store(&self) -> &SharedStore {
        &self.inner.store
    }

    /// Makes a kind of operation known. All are to be known before
    /// [`Engine::run`]; operations of kinds that are not are left alone.
    pub fn register<O: Operation>(&self, operation: O) -> Result<(), Error> {
        let mut kinds = self.inner.kinds.write();
        if kinds.contains_key(O::KIND) {
            return Err(Error::Registered { kind: O::KIND });
        }
        kinds.insert(O::KIND, Arc::new(Registered(operation)));
        Ok(())
    }

    /// Makes an operation that is to be written in a transaction of the
    /// caller's, together with whatever belongs to it:
    ///
    /// ```
    /// # use selvage_store::{Record, transact};
    /// # use selvage_work::{Engine, Error, Handle, Operation};
    /// async fn create<O: Operation, R: Record>(
    ///     engine: &Engine,
    ///     instance: &R,
    ///     state: &O::State,
    /// ) -> Result<Handle, Error> {
    ///     let committed = transact(engine.store(), |tx| async move {
    ///         tx.put(instance)?;
    ///         let prepared = engine.prepare::<O>(state.clone(), "alice")?;
    ///         prepared.put(&tx).await?;
    ///         Ok::<_, Error>(prepared)
    ///     });
    ///     Ok(engine.launch(committed.await?.value))
    /// }
    /// ```
    ///
    /// It has no effect by itself.
    pub fn prepare<O: Operation>(
        &self,
        state: O::State,
        who: impl Into<String>,
    ) -> Result<Prepared, Error> {
        let kind = || Error::UnknownKind { kind: O::KIND.to_owned() };
        let operation = self.inner.kind(O::KIND).ok_or_else(kind)?;
        let now = self.inner.now();
        let id = new_id(now, &*self.inner.ids.lock());
        let data = state.encode_to_vec();
        let plan = operation.plan(&data).map_err(|source| Error::Unreadable {
            id: id.clone(),
            kind: O::KIND.to_owned(),
            source,
        })?;
        let first = plan.steps.first().ok_or(Error::NoSteps { kind: O::KIND })?;
        let record = OperationRecord {
            id,
            kind: O::KIND.to_owned(),
            key: plan.key,
            organisation: plan.organisation,
            started_by: who.into(),
            state: wire::State::Running.into(),
            step: (*first).to_owned(),
            steps_total: u32::try_from(plan.steps.len()).unwrap_or(u32::MAX),
            started_at: now,
            updated_at: now,
            deadline: plan.time_limit.map_or(0, |limit| now.saturating_add(millis(limit))),
            driver: self.inner.driver.clone(),
            session: self.inner.session.read().id.clone(),
            generation: 1,
            data,
            ..OperationRecord::default()
        };
        Ok(Prepared { record })
    }

    /// Sets an operation going whose transaction was committed. If this is
    /// never called, because the caller went away in between, the engine
    /// finds the operation by itself.
    pub fn launch(&self, prepared: Prepared) -> Handle {
        let live = self.inner.live(&prepared.record);
        self.inner.drive(Arc::clone(&live), false);
        Handle { inner: Arc::clone(&self.inner), live }
    }

    /// A handle on an operation that was started anywhere, also on one that
    /// has ended.
    pub fn attach(&self, id: &str) -> Result<Handle, Error> {
        let live = self.inner.find(id).ok_or_else(|| Error::NotFound { id: id.to_owned() })?;
        Ok(Handle { inner: Arc::clone(&self.inner), live })
    }

    /// Like [`Engine::attach`], also for what another process wrote a moment
    /// ago.
    pub(crate) async fn attach_stored(&self, id: &str) -> Result<Handle, Error> {
        match self.attach(id) {
            Err(Error::NotFound { .. }) => {
                self.inner.operations.wait_for(self.store().revision().await?).await?;
                self.attach(id)
            }
            found => found,
        }
    }

    /// An operation as it is now.
    pub fn get(&self, id: &str) -> Option<wire::Operation> {
        self.inner.find(id).map(|live| live.record().to_wire())
    }

    /// All operations, the newest first.
    pub fn list(&self) -> Vec<wire::Operation> {
        let mut all = self.inner.operations.list();
        all.sort_by(|a, b| (b.value.started_at, &b.key).cmp(&(a.value.started_at, &a.key)));
        all.iter().map(|stored| stored.value.to_wire()).collect()
    }

    /// The operation that works on an object.
    pub fn running_on(&self, key: &str) -> Option<Running> {
        let found = self.inner.operations.by_index(KEY_INDEX, key);
        found.iter().find(|stored| stored.value.is_active()).map(|stored| stored.value.running())
    }

    /// Asks for an operation to be undone, on behalf of somebody. Returns when
    /// that is written; the operation is over when its state says so.
    pub async fn cancel(&self, id: &str, who: &str) -> Result<wire::Operation, Error> {
        let now = self.inner.now();
        let committed = transact(self.store(), |tx| async move {
            let not_found = || Error::NotFound { id: id.to_owned() };
            let mut record = tx.get::<OperationRecord>(id).await?.ok_or_else(not_found)?;
            if !record.is_active() {
                return Err(Error::Ended { id: id.to_owned() });
            }
            if !record.cancelling {
                record.cancelling = true;
                record.cancelled_by = who.to_owned();
                record.updated_at = now;
                record.writes += 1;
                tx.put(&record)?;
            }
            Ok(record)
        })
        .await?;
        tracing::info!(operation = id, who, "operation is to be cancelled");
        if let Some(live) = self.inner.known_live(id) {
            live.merge(&committed.value);
        }
        Ok(committed.value.to_wire())
    }

    /// Runs the step of the operation on this object again that said
    /// [`crate::Next::Wait`], if this process drives it.
    pub fn signal(&self, key: &str) {
        for stored in self.inner.operations.by_index(KEY_INDEX, key) {
            if let Some(driven) = self.inner.driven.lock().get(&stored.key) {
                driven.wake.notify_one();
            }
        }
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Millis {
        self.options.clock.now()
    }

    pub(crate) fn kind(&self, kind: &str) -> Option<Arc<dyn Erased>> {
        self.kinds.read().get(kind).cloned()
    }

    pub(crate) fn known_live(&self, id: &str) -> Option<Arc<Live>> {
        self.lives.lock().get(id).and_then(Weak::upgrade)
    }

    /// Returns the view of an operation, of which this process has only one.
    pub(crate) fn live(&self, record: &OperationRecord) -> Arc<Live> {
        let mut lives = self.lives.lock();
        if let Some(live) = lives.get(&record.id).and_then(Weak::upgrade) {
            return live;
        }
        let live = Live::new(record.clone(), self.options.lines_in_memory, self.closed.clone());
        lives.insert(record.id.clone(), Arc::downgrade(&live));
        live
    }

    fn find(&self, id: &str) -> Option<Arc<Live>> {
        let live = match self.known_live(id) {
            Some(live) => live,
            None => self.live(&self.operations.get(id)?.value),
        };
        // The table may know more than the view, which is told after it: who
        // saw an operation in a list does not find an older one here.
        if let Some(stored) = self.operations.get(id) {
            live.merge_newer(&stored.value);
        }
        Some(live)
    }
}

/// Puts this process among the drivers, as a new session.
pub(crate) async fn register(
    store: &SharedStore,
    drivers: &Table<Driver>,
    name: &str,
    options: &Options,
) -> Result<Session, Error> {
    let now = options.clock.now();
    let lease = store.lease_grant(options.lease).await?;
    let session =
        Session { id: new_id(now, NoContext), lease: lease.id, lost: CancellationToken::new() };
    let driver = Driver { name: name.to_owned(), session: session.id.clone(), started_at: now };
    drivers.put_with_lease(driver, session.lease).await?;
    Ok(session)
}

fn new_id(now: Millis, sequence: impl ClockSequence<Output = impl Into<u128>>) -> String {
    let nanos = u32::try_from(now % 1000 * 1_000_000).unwrap_or_default();
    Uuid::new_v7(Timestamp::from_unix(sequence, now / 1000, nanos)).to_string()
}
