//! Members that learn what changed around them: routes, API servers, certificates.

use std::time::Duration;

use futures::{StreamExt, stream};
use prost::Message;
use selvage_store::clock::Millis;
use sha2::{Digest, Sha256};

use super::Members;
use crate::{
    driver::Error,
    plan::Snapshot,
    record::{Machine, Phase},
};

/// Between two looks at the certificates of a machine, in milliseconds.
const CERTIFICATE_CHECK_INTERVAL: Millis = 3600 * 1000;
/// Timeout of all that one machine is asked and told.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The same for one whose node is not ready: its agent may well be gone too.
const SHORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Workers that are told at the same time.
const PARALLEL: usize = 16;

impl Members {
    /// Tells every member what changed. One that does not answer holds up nobody else.
    pub(super) async fn sync_all(&self, cluster: &Snapshot) -> Result<(), Error> {
        let settled = cluster.machines.iter().filter(|machine| is_settled(machine));
        let (planes, workers): (Vec<&Machine>, Vec<&Machine>) =
            settled.partition(|machine| machine.is_control_plane());
        let planes = async {
            let (mut failed, mut renewed) = (Vec::new(), false);
            // New certificates restart what uses them: one control plane at a time.
            for machine in planes {
                failed.extend(self.sync_in_time(cluster, machine, &mut renewed).await);
            }
            failed
        };
        let workers = workers
            .into_iter()
            .map(|machine| async move { self.sync_in_time(cluster, machine, &mut false).await });
        let workers: Vec<_> = workers.collect();
        let workers = stream::iter(workers).buffer_unordered(PARALLEL).collect::<Vec<_>>();
        let (mut failed, workers) = tokio::join!(planes, workers);
        failed.extend(workers.into_iter().flatten());
        failed.sort();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::Unavailable(failed.join("; "))),
        }
    }

    /// Returns why a machine could not be told, with its name.
    async fn sync_in_time(
        &self,
        cluster: &Snapshot,
        machine: &Machine,
        renewed: &mut bool,
    ) -> Option<String> {
        let limit = if machine.phase() == Phase::Ready { TIMEOUT } else { SHORT_TIMEOUT };
        let name = &machine.name;
        match tokio::time::timeout(limit, self.sync_one(cluster, machine, renewed)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{name}: {error}")),
            Err(_) => Some(format!("{name}: its agent does not answer in time")),
        }
    }

    async fn sync_one(
        &self,
        cluster: &Snapshot,
        machine: &Machine,
        renewed: &mut bool,
    ) -> Result<(), Error> {
        let spec = self.spec(cluster, machine).await?;
        let digest: [u8; 32] = Sha256::digest(spec.encode_to_vec()).into();
        let known = self.sent.lock().get(&machine.operation).copied();
        let now = self.clock.now();
        let is_known = known.is_some_and(|known| {
            let next = known.checked_at.saturating_add(CERTIFICATE_CHECK_INTERVAL);
            known.digest == digest && next > now
        });
        if is_known {
            return Ok(());
        }
        let mut agent = self.agent(machine).await?;
        let status = Self::status_of(&mut agent, cluster, machine).await?;
        let keys = self.keyring.keys(&cluster.cluster).await?;
        let stage = machine.wanted.authority_stage;
        let missing = self.missing_certificates(&keys, &spec, &status, stage)?;
        if machine.is_control_plane() && !missing.is_empty() {
            if *renewed || !self.other_planes_are_healthy(cluster, machine).await {
                return Ok(());
            }
            *renewed = true;
        }
        self.apply_spec(&mut agent, cluster, machine, spec, &status).await?;
        Ok(())
    }
}

/// Returns whether nothing else tells the machine what to be.
fn is_settled(machine: &Machine) -> bool {
    matches!(machine.phase(), Phase::Ready | Phase::NotReady)
        && !machine.removing
        && machine.wanted == machine.running
}
