//! Machines that are dead: found, and replaced where another one can be had.

use super::Manager;
use crate::{
    Result,
    plan::{Action, Snapshot},
    record::{Machine, Phase, machine_key},
};

/// Between two looks for a machine to replace a dead one with, in milliseconds.
const SPARE_RETRY_MILLIS: u64 = 60_000;

impl Manager {
    /// Writes down since when agents of machines that are not ready are away.
    pub(super) async fn note_lost(&self, name: &str) -> Result<()> {
        let Some(snapshot) = self.snapshot(name) else { return Ok(()) };
        for machine in &snapshot.machines {
            let suspect = machine.phase() == Phase::NotReady && !machine.removing;
            if !suspect && machine.lost_since == 0 {
                continue;
            }
            let away = suspect && !self.inner.dependencies.driver.answers(machine).await;
            if away == (machine.lost_since > 0) {
                continue;
            }
            let since = if away { self.now() } else { 0 };
            self.change_machine(machine, |record| record.lost_since = since).await?;
        }
        Ok(())
    }

    /// Leaves out the replacement of a machine that no other could be had for.
    pub(super) async fn without_spare(
        &self,
        snapshot: &Snapshot,
        actions: &[Action],
    ) -> Result<bool> {
        let replaced = actions.iter().find_map(|action| match action {
            Action::Replace { machine } => snapshot.machines.iter().find(|m| m.name == *machine),
            _ => None,
        });
        let Some(machine) = replaced else { return Ok(false) };
        let provider = self.provider();
        let offers = provider.offers(&machine.instance_type).await.unwrap_or_default();
        // One that is destroyed makes room for another.
        if provider.capabilities().disposable || offers.iter().any(|o| o.free != Some(0)) {
            return Ok(false);
        }
        let again = self.now() + SPARE_RETRY_MILLIS;
        self.change_machine(machine, |record| {
            record.retry_at = again;
            record.reason = "it is dead, and no other machine is free to replace it".into();
        })
        .await?;
        Ok(true)
    }

    async fn change_machine(&self, machine: &Machine, change: impl Fn(&mut Machine)) -> Result<()> {
        let key = machine_key(&machine.cluster, &machine.name);
        let updated = self.inner.machines.update(&key, |record: &mut Machine| {
            if record.operation == machine.operation && record.phase() == machine.phase() {
                change(record);
            }
            Ok::<_, selvage_store::Error>(())
        });
        match updated.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
