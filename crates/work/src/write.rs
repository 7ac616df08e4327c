//! Writing the record of an operation that this process drives.

use selvage_api::Code;
use selvage_store::{Transaction, transact};
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::live::Live;
use crate::record::{Lock, OperationRecord};
use crate::{Error, Failure, Interrupt};

/// Change of a record. Must give the same result when it is made twice: a store
/// that did not answer may have written it.
pub(crate) type Change<'a> = dyn Fn(&mut OperationRecord) + Send + Sync + 'a;

enum Written {
    Yes(Box<OperationRecord>),
    /// Another driver has it.
    NotOurs,
}

impl Inner {
    /// Changes the record, together with the lines said so far, if
    /// `generation` still drives it. Releases the object when the operation
    /// ends by it. A store that does not answer is tried again until it does
    /// or the process stops, for there is no other place to go on from.
    pub(crate) async fn write(
        &self,
        live: &Live,
        generation: u64,
        deposed: &CancellationToken,
        change: &Change<'_>,
    ) -> Result<(), Failure> {
        let mut failures = 0;
        loop {
            let error = match self.try_write(live, generation, change).await {
                Ok(Written::Yes(record)) => {
                    live.merge(&record);
                    return Ok(());
                }
                Ok(Written::NotOurs) => return Err(Interrupt::Deposed.into()),
                Err(error) => error,
            };
            match error.code() {
                Code::InvalidArgument => return Err(error.into()),
                _ if matches!(error, Error::Store(selvage_store::Error::Closed)) => {
                    return Err(Interrupt::Stopping.into());
                }
                _ => {}
            }
            failures += 1;
            tracing::warn!(operation = %live.id, failures, %error, "operation could not be written");
            let delay = self.options.backoff.delay(failures, rand::random());
            let until = self.now().saturating_add(crate::engine::millis(delay));
            tokio::select! {
                () = deposed.cancelled() => return Err(Interrupt::Deposed.into()),
                () = self.stop.cancelled() => return Err(Interrupt::Stopping.into()),
                () = self.options.clock.sleep_until(until) => {}
            }
        }
    }

    async fn try_write(
        &self,
        live: &Live,
        generation: u64,
        change: &Change<'_>,
    ) -> Result<Written, Error> {
        let lines = live.last_lines(self.options.lines_stored);
        let now = self.now();
        let committed = transact(&self.store, |tx| {
            let lines = lines.clone();
            async move {
                let found = tx.get::<OperationRecord>(&live.id).await?;
                let Some(mut record) = found.filter(|record| record.generation == generation)
                else {
                    return Ok(Written::NotOurs);
                };
                if !record.is_active() {
                    return Ok(Written::Yes(Box::new(record)));
                }
                record.lines = lines;
                record.updated_at = now;
                record.writes += 1;
                change(&mut record);
                if !record.is_active() {
                    end(&tx, &mut record, now).await?;
                }
                tx.put(&record)?;
                Ok::<_, Error>(Written::Yes(Box::new(record)))
            }
        })
        .await?;
        if let Written::Yes(record) = &committed.value
            && !record.is_active()
        {
            // Whoever is told of the end finds it in the list as well.
            self.operations.wait_for(committed.revision).await?;
        }
        Ok(committed.value)
    }
}

async fn end(tx: &Transaction, record: &mut OperationRecord, now: u64) -> Result<(), Error> {
    record.step.clear();
    record.data.clear();
    record.ended_at = now;
    if !record.key.is_empty()
        && let Some(lock) = tx.get::<Lock>(&record.key).await?
        && lock.operation == record.id
    {
        tx.delete::<Lock>(&record.key).await?;
    }
    Ok(())
}
