//! Starting an operation, in a transaction of its own or in the caller's.

use selvage_store::{Transaction, transact};

use crate::record::{Lock, OperationRecord};
use crate::{Engine, Error, Handle, Operation};

/// An operation that is to be written by a transaction. See
/// [`Engine::prepare`].
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(crate) record: OperationRecord,
}

impl Prepared {
    /// The id that the operation is going to have.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// The object that it works on.
    pub fn key(&self) -> &str {
        &self.record.key
    }

    /// Writes the operation with the transaction. Refused with
    /// [`Error::Busy`] if another one works on the same object.
    pub async fn put(&self, tx: &Transaction) -> Result<(), Error> {
        let record = &self.record;
        if !record.key.is_empty() {
            if let Some(lock) = tx.get::<Lock>(&record.key).await?
                && let Some(holder) = tx.get::<OperationRecord>(&lock.operation).await?
                && holder.is_active()
                && holder.id != record.id
            {
                return Err(Error::Busy(holder.running()));
            }
            tx.put(&Lock { key: record.key.clone(), operation: record.id.clone() })?;
        }
        tx.put(record)?;
        Ok(())
    }
}

impl Engine {
    /// Starts an operation by itself.
    pub async fn start<O: Operation>(
        &self,
        state: O::State,
        who: impl Into<String>,
    ) -> Result<Handle, Error> {
        let prepared = self.prepare::<O>(state, who)?;
        transact(self.store(), |tx| {
            let prepared = prepared.clone();
            async move { prepared.put(&tx).await }
        })
        .await?;
        Ok(self.launch(prepared))
    }

    /// Starts an operation, or gives the one of the same kind that runs on the
    /// object already. Says whether it was started.
    pub async fn start_or_attach<O: Operation>(
        &self,
        state: O::State,
        who: impl Into<String>,
    ) -> Result<(Handle, bool), Error> {
        match self.start::<O>(state, who).await {
            Ok(handle) => Ok((handle, true)),
            Err(Error::Busy(running)) if running.kind == O::KIND => {
                Ok((self.attach_stored(&running.id).await?, false))
            }
            Err(error) => Err(error),
        }
    }
}
