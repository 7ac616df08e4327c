//! Watching over all operations: finding those that nobody drives, keeping
//! this process registered, forgetting those that ended long ago.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use selvage_store::clock::Millis;
use selvage_store::table::Change;
use selvage_store::transact;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::{Driven, Inner, Session, millis, register};
use crate::execution::Execution;
use crate::live::Live;
use crate::record::{ACTIVE, Driver, ENDED, OperationRecord, STATE_INDEX};
use crate::{Engine, Error, Interrupt};

/// Number of records that are forgotten at the same time.
const PARALLEL: usize = 32;

impl Engine {
    /// Drives operations until the token is cancelled: those of this process,
    /// of an earlier one with its name, and those whose process is gone. Then
    /// waits until each has come to the end of its step or to a wait, leaves
    /// them to whoever comes next, and returns. Followers are told that the
    /// process stops. Run it once.
    pub async fn run(&self, token: CancellationToken) -> Result<(), Error> {
        let inner = &self.inner;
        let ended = tokio::select! {
            () = token.cancelled() => Ok(()),
            ended = inner.watch() => ended,
            ended = inner.stay_registered() => ended,
            () = inner.sweep() => Ok(()),
        };
        inner.stop.cancel();
        inner.tracker.close();
        inner.tracker.wait().await;
        inner.closed.cancel();
        let lease = inner.session.read().lease;
        if let Err(error) = inner.store.lease_revoke(lease).await {
            tracing::debug!(%error, "the registration of this driver ends by itself");
        }
        ended
    }
}

/// Result of reading an operation in order to claim it.
enum Claim {
    Ours(Box<OperationRecord>),
    /// Operation that has ended, or that another process drives.
    NotOurs(Box<OperationRecord>),
    NotThere,
}

impl Inner {
    /// Sets an operation going, unless it is already.
    pub(crate) fn drive(self: &Arc<Self>, live: Arc<Live>, resumed: bool) {
        let (id, wake) = (live.id.clone(), Arc::new(Notify::new()));
        {
            let mut driven = self.driven.lock();
            if self.stop.is_cancelled() || driven.contains_key(&id) {
                return;
            }
            driven
                .insert(id.clone(), Driven { wake: Arc::clone(&wake), abort: None, deposed: None });
        }
        let entry = Entry { inner: Arc::clone(self), id: id.clone() };
        // Spawns without the lock: a runtime that is shutting down drops the
        // future, and with it `entry`, right here.
        let task = self.tracker.spawn(async move {
            let inner = Arc::clone(&entry.inner);
            let left = inner.claim_and_drive(live, wake, resumed).await;
            let id = entry.id.clone();
            drop(entry);
            // We may be back among the drivers, and the next one already.
            if left == Some(Interrupt::Deposed)
                && let Some(stored) = inner.operations.get(&id)
            {
                inner.look_at(&stored.value);
            }
        });
        if let Some(driven) = self.driven.lock().get_mut(&id) {
            driven.abort = Some(task.abort_handle());
        }
    }

    /// Says why the operation was left before its end, if it was.
    async fn claim_and_drive(
        self: &Arc<Self>,
        live: Arc<Live>,
        wake: Arc<Notify>,
        resumed: bool,
    ) -> Option<Interrupt> {
        let session = self.session.read().clone();
        let record = match self.claim_patiently(&live.id, &session).await? {
            Claim::Ours(record) => record,
            Claim::NotOurs(record) => {
                // It may be progress that it ended, with nobody left to tell.
                live.merge(&record);
                return None;
            }
            Claim::NotThere => {
                live.never_committed();
                return None;
            }
        };
        let operation = self.kind(&record.kind)?;
        let taken_over = record.generation != live.record().generation;
        live.merge(&record);
        let deposed = session.lost.child_token();
        if let Some(driven) = self.driven.lock().get_mut(&live.id) {
            driven.deposed = Some((record.generation, deposed.clone()));
        }
        let execution = Execution {
            inner: Arc::clone(self),
            generation: record.generation,
            deposed,
            resumed: resumed || taken_over,
            live,
            operation,
            wake,
        };
        Box::pin(execution.run()).await
    }

    /// Claims again until the store answers; `None` if it never will.
    async fn claim_patiently(&self, id: &str, session: &Session) -> Option<Claim> {
        let mut failures = 0;
        loop {
            match self.claim(id, session).await {
                Ok(claim) => return Some(claim),
                Err(Error::Store(selvage_store::Error::Closed)) => return None,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(operation = id, failures, %error, "operation was not claimed");
                }
            }
            let delay = self.options.backoff.delay(failures, rand::random());
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = self.options.clock.sleep_until(self.now().saturating_add(millis(delay))) => {}
            }
        }
    }

    /// Makes this session the driver of an operation, unless its driver lives.
    /// The store is asked, not the view, which may be late.
    async fn claim(&self, id: &str, session: &Session) -> Result<Claim, Error> {
        let now = self.now();
        let committed = transact(&self.store, |tx| async move {
            let Some(mut record) = tx.get::<OperationRecord>(id).await? else {
                return Ok(Claim::NotThere);
            };
            if !record.is_active() {
                return Ok(Claim::NotOurs(Box::new(record)));
            }
            let holder = |driver: Option<Driver>| driver.map(|driver| driver.session);
            if holder(tx.get::<Driver>(&self.driver).await?).as_ref() != Some(&session.id) {
                return Ok(Claim::NotOurs(Box::new(record)));
            }
            if record.session == session.id {
                return Ok(Claim::Ours(Box::new(record)));
            }
            if holder(tx.get::<Driver>(&record.driver).await?).as_ref() == Some(&record.session) {
                return Ok(Claim::NotOurs(Box::new(record)));
            }
            tracing::info!(operation = id, from = record.driver, "operation is taken over");
            record.driver.clone_from(&self.driver);
            record.session.clone_from(&session.id);
            record.generation += 1;
            record.writes += 1;
            record.updated_at = now;
            tx.put(&record)?;
            Ok::<_, Error>(Claim::Ours(Box::new(record)))
        })
        .await?;
        Ok(committed.value)
    }

    /// Follows all operations and drivers. Ends when the store is closed, or
    /// when somebody took our name.
    async fn watch(self: &Arc<Self>) -> Result<(), Error> {
        let mut operations = self.operations.subscribe();
        let mut drivers = self.drivers.subscribe();
        self.look_at_all();
        loop {
            tokio::select! {
                change = operations.next() => match change {
                    Some(Change::Put(stored)) => self.look_at(&stored.value),
                    Some(Change::Deleted(_)) => {}
                    Some(Change::Reset) => self.look_at_all(),
                    None => return Ok(()),
                },
                change = drivers.next() => match change {
                    Some(Change::Put(_)) => self.check_name()?,
                    Some(Change::Deleted(_) | Change::Reset) => {
                        self.check_name()?;
                        self.look_at_all();
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    /// Fails if a later process has our name.
    fn check_name(&self) -> Result<(), Error> {
        let session = self.session.read().clone();
        match self.drivers.get(&self.driver) {
            Some(driver) if driver.value.session != session.id && !session.lost.is_cancelled() => {
                session.lost.cancel();
                Err(Error::Deposed { driver: self.driver.clone() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn look_at_all(self: &Arc<Self>) {
        for stored in self.operations.by_index(STATE_INDEX, ACTIVE) {
            self.look_at(&stored.value);
        }
        let lives: Vec<_> =
            self.lives.lock().values().filter_map(std::sync::Weak::upgrade).collect();
        for live in lives {
            if let Some(stored) = self.operations.get(&live.id) {
                live.merge(&stored.value);
            }
        }
    }

    /// Tells followers, and drives the operation if nobody else does.
    fn look_at(self: &Arc<Self>, record: &OperationRecord) {
        if let Some(live) = self.known_live(&record.id) {
            live.merge(record);
        }
        if let Some(driven) = self.driven.lock().get(&record.id)
            && let Some((generation, deposed)) = &driven.deposed
            && record.generation > *generation
        {
            deposed.cancel();
        }
        if !record.is_active() || self.kind(&record.kind).is_none() {
            return;
        }
        let session = self.session.read().id.clone();
        let driver_lives = || {
            let driver = self.drivers.get(&record.driver);
            driver.is_some_and(|driver| driver.value.session == record.session)
        };
        if record.session == session || !driver_lives() {
            let live = self.live(record);
            // Operations of this process that do not run were never launched.
            self.drive(live, record.session != session);
        }
    }

    /// Keeps the lease alive. When it is lost all the same, stops driving at
    /// once, for others may start, and registers anew.
    async fn stay_registered(self: &Arc<Self>) -> Result<(), Error> {
        let lease_millis = millis(self.options.lease);
        let mut renewed = self.now();
        loop {
            self.options.clock.sleep_until(self.now().saturating_add(lease_millis / 3)).await;
            let lease = self.session.read().lease;
            let started = self.now();
            match self.store.lease_keep_alive(lease).await {
                Ok(_) => renewed = started,
                Err(selvage_store::Error::LeaseNotFound { .. }) => {
                    renewed = self.register_anew().await?;
                }
                Err(selvage_store::Error::Closed) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the registration of this driver was not renewed");
                    if self.now().saturating_sub(renewed) >= lease_millis {
                        renewed = self.register_anew().await?;
                    }
                }
            }
        }
    }

    async fn register_anew(self: &Arc<Self>) -> Result<Millis, Error> {
        tracing::warn!(driver = self.driver, "the registration of this driver was lost");
        self.session.read().lost.cancel();
        let mut failures = 0;
        loop {
            if self
                .drivers
                .get(&self.driver)
                .is_some_and(|driver| driver.value.session != self.session.read().id)
            {
                return Err(Error::Deposed { driver: self.driver.clone() });
            }
            let started = self.now();
            match register(&self.store, &self.drivers, &self.driver, &self.options).await {
                Ok(session) => {
                    *self.session.write() = session;
                    self.look_at_all();
                    return Ok(started);
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "this driver could not be registered");
                    let delay = self.options.backoff.delay(failures, rand::random());
                    self.options.clock.sleep_until(self.now().saturating_add(millis(delay))).await;
                }
            }
        }
    }

    /// Forgets operations that ended long ago and looks for those that were
    /// missed, again and again.
    async fn sweep(self: &Arc<Self>) {
        loop {
            self.forget_ended().await;
            self.lives.lock().retain(|_, live| live.strong_count() > 0);
            let next = self.now().saturating_add(millis(self.options.sweep_every));
            self.options.clock.sleep_until(next).await;
            self.look_at_all();
        }
    }

    async fn forget_ended(&self) {
        let mut ended = self.operations.by_index(STATE_INDEX, ENDED);
        ended.sort_by_key(|stored| std::cmp::Reverse(stored.value.ended_at));
        let oldest = self.now().saturating_sub(millis(self.options.keep_ended));
        let keep = ended
            .iter()
            .take(self.options.keep_ended_count)
            .take_while(|stored| stored.value.ended_at >= oldest)
            .count();
        stream::iter(ended.split_off(keep))
            .for_each_concurrent(PARALLEL, async |stored| {
                match self.operations.delete(&stored.key).await {
                    Ok(_) | Err(selvage_store::Error::NotFound { .. }) => {}
                    Err(error) => {
                        tracing::warn!(operation = %stored.key, %error, "an ended operation could not be removed");
                    }
                }
            })
            .await;
    }
}

/// Takes an operation out of those under way, however its task ends.
struct Entry {
    inner: Arc<Inner>,
    id: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.inner.driven.lock().remove(&self.id);
    }
}
