//! Machines that are not let in any more. A certificate cannot be taken back
//! before it expires, so it is the name in it that is refused.

use futures::{Stream, stream};
use selvage_kit::identity::Machine;
use selvage_store::{Transaction, transact};

use crate::{
    Auth,
    caller::Caller,
    error::{Error, Result},
    names,
    records::BlockedMachine,
};

impl Auth {
    /// Returns whether an administrator has stopped the machine.
    pub fn is_blocked(&self, machine: &Machine) -> bool {
        self.inner.blocked.get(&machine.to_string()).is_some()
    }

    /// Names of the machines that are stopped, sorted.
    pub(crate) fn blocked_names(&self) -> Vec<String> {
        self.inner.blocked.list().iter().map(|blocked| blocked.value.machine.clone()).collect()
    }

    /// The same, and again after every change.
    pub(crate) fn watch_blocked(&self) -> impl Stream<Item = Vec<String>> + Send + 'static {
        // From before the first list, so that nothing falls between the two.
        let changes = self.inner.blocked.subscribe();
        stream::unfold((self.clone(), changes, true), |(auth, mut changes, first)| async move {
            if !first {
                changes.next().await?;
            }
            Some((auth.blocked_names(), (auth, changes, false)))
        })
    }

    /// Stops a machine. One that is stopped already stays as it is.
    pub(crate) async fn block_machine(
        &self,
        caller: &Caller,
        machine: &str,
    ) -> Result<BlockedMachine> {
        let blocked = BlockedMachine {
            machine: names::check_machine("machine", machine)?.to_string(),
            blocked_at: self.now().as_millisecond(),
            blocked_by: caller.identity.name.clone(),
        };
        let blocked = &blocked;
        let done = transact(&self.inner.store, |tx| async move {
            if let Some(before) = tx.get::<BlockedMachine>(&blocked.machine).await? {
                return Ok(before);
            }
            tx.put(blocked)?;
            Ok::<_, Error>(blocked.clone())
        });
        let done = done.await?;
        self.inner.blocked.wait_for(done.revision).await?;
        Ok(done.value)
    }

    /// Lets a machine in again.
    pub(crate) async fn unblock_machine(&self, machine: &str) -> Result<()> {
        let machine = names::check_machine("machine", machine)?.to_string();
        match self.inner.blocked.delete(&machine).await {
            Ok(_) => Ok(()),
            Err(selvage_store::Error::NotFound { .. }) => Err(Error::MachineNotBlocked(machine)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Within the transaction that issues a certificate: of a block and a
/// certificate at the same moment the block wins.
pub(crate) async fn require_unblocked(tx: &Transaction, machine: &str) -> Result<()> {
    match tx.get::<BlockedMachine>(machine).await? {
        None => Ok(()),
        Some(_) => Err(Error::MachineBlocked(machine.into())),
    }
}
