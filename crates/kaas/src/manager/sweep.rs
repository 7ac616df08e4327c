//! Machines that we have and no cluster knows of: given back.

use super::Manager;
use crate::{Result, provider::Wipe, record::BY_OPERATION};

impl Manager {
    /// Gives back what no record speaks of, and says how many that were. A
    /// record is written before its machine is asked for, so a machine without
    /// one belongs to a cluster that is gone.
    pub async fn sweep(&self) -> Result<usize> {
        let provider = &self.inner.dependencies.provider;
        let owned = match provider.list_owned().await {
            Ok(owned) => owned,
            Err(error) => {
                tracing::warn!(%error, "the provider does not say which machines are ours");
                return Ok(0);
            }
        };
        let revision = self.inner.store.revision().await?;
        self.inner.machines.wait_for(revision).await?;
        let mut released = 0;
        for machine in owned {
            let operation = &machine.operation;
            if !self.inner.machines.by_index(BY_OPERATION, &operation.0).is_empty() {
                continue;
            }
            tracing::warn!(machine = machine.id, operation = operation.0, "given back: unknown");
            match provider.release(operation, Wipe::Reset).await {
                Ok(true) => released += 1,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, machine = machine.id, "cannot be given back"),
            }
        }
        Ok(released)
    }
}
