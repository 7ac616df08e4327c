//! Machines that do not come up again and again: set aside until somebody releases
//! them, so that no cluster waits for them in vain.

use std::collections::BTreeSet;

use selvage_store::transact;

use super::Manager;
use crate::{
    Error, Result,
    record::{Cluster, Machine, MachineFailures, failures_key},
};

impl Manager {
    /// Machines that no cluster gets, by name.
    pub fn quarantined(&self) -> Vec<MachineFailures> {
        let name = self.provider().name();
        let stored = self.inner.failures.list().into_iter().map(|stored| stored.value.clone());
        stored.filter(|known| known.quarantined && known.provider == name).collect()
    }

    /// Lets clusters have a machine again.
    pub async fn release_quarantined(&self, id: &str) -> Result<()> {
        if id.is_empty() {
            return Err(Error::field("provider_id", "is empty: name the machine"));
        }
        if !self.quarantined().iter().any(|known| known.provider_id == id) {
            return Err(Error::NotQuarantined(id.to_owned()));
        }
        self.delete_failures(id).await?;
        self.exclude_quarantined();
        tracing::info!(machine = id, "machine is released from quarantine");
        Ok(())
    }

    /// Tells the provider which machines are not to be had; false where it has none
    /// that come back.
    pub(super) fn exclude_quarantined(&self) -> bool {
        let machines: BTreeSet<String> =
            self.quarantined().into_iter().map(|known| known.provider_id).collect();
        self.provider().exclude(machines)
    }

    /// Counts a machine that was given up before it was ready, and sets it aside when
    /// that happened too often.
    pub(super) async fn count_failure(&self, machine: &Machine, reason: &str) -> Result<()> {
        let limit = self.inner.settings.policy.quarantine_after;
        if limit == 0 || machine.provider_id.is_empty() || machine.was_ready() {
            return Ok(());
        }
        if !self.exclude_quarantined() {
            return Ok(());
        }
        let (provider, now) = (self.provider().name(), self.now());
        let key = failures_key(provider, &machine.provider_id);
        let counted = transact(&self.inner.store, async |tx| {
            let known = tx.get::<MachineFailures>(&key).await?;
            let count = known.map_or(0, |known| known.count) + 1;
            let failures = MachineFailures {
                provider_id: machine.provider_id.clone(),
                hostname: machine.hostname.clone(),
                count,
                reason: reason.to_owned(),
                failed_at: now,
                cluster: machine.cluster.clone(),
                provider: provider.to_owned(),
                quarantined: count >= limit,
            };
            tx.put(&failures)?;
            Ok::<_, Error>(failures)
        })
        .await?;
        self.inner.failures.wait_for(counted.revision).await?;
        if counted.value.quarantined {
            self.exclude_quarantined();
            self.note_quarantine(&counted.value).await?;
        }
        Ok(())
    }

    async fn note_quarantine(&self, failures: &MachineFailures) -> Result<()> {
        let MachineFailures { provider_id, count, reason, cluster, .. } = failures;
        tracing::warn!(machine = provider_id, count, reason, "machine is in quarantine");
        let now = self.now();
        let updated = self.inner.clusters.update(cluster, |record: &mut Cluster| {
            let text = format!("machine {provider_id} failed {count} times and is in quarantine");
            record.add_event(now, text);
            Ok::<_, selvage_store::Error>(())
        });
        match updated.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A machine became ready: its failures count no longer.
    pub(super) async fn forget_failures(&self, machine: &Machine) -> Result<()> {
        let key = failures_key(self.provider().name(), &machine.provider_id);
        match self.inner.failures.get(&key) {
            Some(_) => self.delete_failures(&machine.provider_id).await,
            None => Ok(()),
        }
    }

    async fn delete_failures(&self, id: &str) -> Result<()> {
        let key = failures_key(self.provider().name(), id);
        match self.inner.failures.delete(&key).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Why there is no machine, with those that are set aside.
    pub(super) fn none_free(&self, text: String) -> String {
        match self.quarantined().len() {
            0 => text,
            count => format!("{text}; {count} in quarantine, see `selvage kaas quarantine`"),
        }
    }
}
