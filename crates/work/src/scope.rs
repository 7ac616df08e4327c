//! Context of a step.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use selvage_store::clock::{Clock, Millis};
use selvage_store::{Record, Table, Transaction};
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::live::Live;
use crate::record::OperationRecord;
use crate::{Engine, Failure, Interrupt};

/// The surroundings of one run, or one undo, of one step.
pub struct Scope {
    pub(crate) inner: Arc<Inner>,
    pub(crate) live: Arc<Live>,
    /// Ends with the process, or when another one took over.
    pub(crate) stop: CancellationToken,
    pub(crate) deposed: CancellationToken,
    pub(crate) generation: u64,
    pub(crate) undoing: bool,
    pub(crate) resumed: bool,
    pub(crate) cancellable: bool,
    pub(crate) deadline: Option<Millis>,
}

impl Scope {
    /// Tells followers how it goes.
    pub fn say(&self, message: impl Into<String>) {
        self.live.say(self.generation, message.into());
    }

    /// The operation's id.
    pub fn id(&self) -> &str {
        &self.live.id
    }

    /// Returns the name of the caller who started the operation.
    pub fn started_by(&self) -> String {
        self.live.record().started_by.clone()
    }

    /// Returns the reason why the operation is being undone.
    pub fn reason(&self) -> Option<Failure> {
        self.live.record().failure()
    }

    /// Returns true if the step is being undone.
    pub fn undoing(&self) -> bool {
        self.undoing
    }

    /// Returns true if the step may have been run before: by a process that died,
    /// or by this one, which then said [`crate::Next::Wait`].
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// Returns true if a caller asked for the operation to be cancelled. Waits
    /// are interrupted by it; a step that works for long may look here.
    pub fn cancelled(&self) -> bool {
        self.cancellable && !self.undoing && self.live.cancel.is_cancelled()
    }

    /// Returns the time by which the operation has to end.
    pub fn deadline(&self) -> Option<Millis> {
        self.deadline
    }

    /// The time.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.options.clock
    }

    /// Now, in milliseconds since 1970.
    pub fn now(&self) -> Millis {
        self.clock().now()
    }

    /// The engine, for operations that start others.
    pub fn engine(&self) -> Engine {
        Engine::unguarded(Arc::clone(&self.inner))
    }

    /// Waits for `condition`. Given up when the operation is cancelled, has
    /// taken too long, or the process stops or no longer drives it. While
    /// undoing only the last two. A condition that is met already is
    /// interrupted by nothing but another driver.
    pub async fn until<T>(&self, condition: impl Future<Output = T>) -> Result<T, Interrupt> {
        self.wait(self.deadline, condition).await
    }

    /// Like [`Scope::until`], for this long at most.
    pub async fn within<T>(
        &self,
        limit: Duration,
        condition: impl Future<Output = T>,
    ) -> Result<T, Interrupt> {
        let own = self.now().saturating_add(crate::engine::millis(limit));
        let deadline = self.deadline.map_or(own, |deadline| deadline.min(own));
        self.wait(Some(deadline), condition).await
    }

    /// Lets time pass.
    pub async fn pause(&self, time: Duration) -> Result<(), Interrupt> {
        let until = self.now().saturating_add(crate::engine::millis(time));
        self.until(self.clock().sleep_until(until)).await
    }

    /// Waits until `test` finds what it looks for in a record, which it is
    /// shown now and after every change; `None` if the record is not there.
    pub async fn until_record<R: Record, T>(
        &self,
        table: &Table<R>,
        key: &str,
        test: impl FnMut(Option<&R>) -> Option<T>,
    ) -> Result<T, Interrupt> {
        self.until(watch_record(table, key, test)).await?.ok_or(Interrupt::Stopping)
    }

    /// Like [`Scope::until_record`], for this long at most.
    pub async fn record_within<R: Record, T>(
        &self,
        limit: Duration,
        table: &Table<R>,
        key: &str,
        test: impl FnMut(Option<&R>) -> Option<T>,
    ) -> Result<T, Interrupt> {
        self.within(limit, watch_record(table, key, test)).await?.ok_or(Interrupt::Stopping)
    }

    /// Keeps the operation's state as it is now, in the middle of a step.
    pub async fn checkpoint<M: Message>(&self, state: &M) -> Result<(), Failure> {
        let data = state.encode_to_vec();
        let keep = |record: &mut OperationRecord| record.data.clone_from(&data);
        self.inner.write(&self.live, self.generation, &self.deposed, &keep).await
    }

    /// Makes a transaction of a step fail if another process has taken the
    /// operation over meanwhile.
    pub async fn fence(&self, tx: &Transaction) -> Result<(), Failure> {
        match tx.get::<OperationRecord>(&self.live.id).await? {
            Some(record) if record.generation == self.generation => Ok(()),
            _ => Err(Interrupt::Deposed.into()),
        }
    }

    async fn wait<T>(
        &self,
        deadline: Option<Millis>,
        condition: impl Future<Output = T>,
    ) -> Result<T, Interrupt> {
        tokio::select! {
            biased;
            // First, for somebody else is at work here now.
            () = self.deposed.cancelled() => Err(Interrupt::Deposed),
            value = condition => Ok(value),
            () = self.stop.cancelled() => Err(Interrupt::Stopping),
            () = self.live.cancel.cancelled(), if self.cancellable && !self.undoing => {
                Err(Interrupt::Cancelled)
            }
            () = sleep_until(self.clock(), deadline) => Err(Interrupt::TimedOut),
        }
    }
}

async fn sleep_until(clock: &Arc<dyn Clock>, deadline: Option<Millis>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// `None` when the store was closed.
async fn watch_record<R: Record, T>(
    table: &Table<R>,
    key: &str,
    mut test: impl FnMut(Option<&R>) -> Option<T>,
) -> Option<T> {
    let mut changes = table.subscribe_key(key);
    loop {
        let stored = table.get(key);
        if let Some(found) = test(stored.as_ref().map(|stored| &stored.value)) {
            return Some(found);
        }
        changes.next().await?;
    }
}
