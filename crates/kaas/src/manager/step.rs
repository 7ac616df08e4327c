//! One step of one machine: its phase is written before, what came of it
//! after. Whoever comes after a crash in between takes the step again.

use std::time::Duration;

use selvage_kit::tasks::Backoff;
use selvage_store::transact;

use super::Manager;
use crate::{
    Error, Result, driver,
    driver::Progress,
    plan::{Snapshot, Step},
    provider::{self, OperationId, Request, State, Wipe},
    record::{Cluster, Machine, Phase, machine_key},
};

/// Backoff after a step that failed.
const RETRY: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
    healthy_after: Duration::from_secs(60),
};

/// Effect of a step: it changed something, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Moved,
    Waiting,
}

/// Why a step was not taken.
enum StepError {
    /// To be tried again.
    Transient(String),
    /// The machine is to be given up.
    Permanent(String),
    /// Of ours.
    Internal(Error),
}

impl From<provider::Error> for StepError {
    fn from(error: provider::Error) -> Self {
        match error {
            provider::Error::NoneFree(text) | provider::Error::Unavailable(text) => {
                Self::Transient(text)
            }
            provider::Error::Refused(text) => Self::Permanent(text),
        }
    }
}

impl From<driver::Error> for StepError {
    fn from(error: driver::Error) -> Self {
        match error {
            driver::Error::Unavailable(text) => Self::Transient(text),
            driver::Error::Refused(text) => Self::Permanent(text),
        }
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Internal(error)
    }
}

impl Manager {
    /// Takes a step of a machine.
    pub(super) async fn take(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
        step: Step,
    ) -> Result<Outcome> {
        let Some(mut machine) = self.begin_step(snapshot, machine, step).await? else {
            return Ok(Outcome::Moved);
        };
        match self.perform(snapshot, &mut machine, step).await {
            Ok(Progress::Done) => self.end_step(machine, step).await,
            Ok(Progress::Waiting(reason)) => {
                // Whoever answers does not fail: what failed before it counts no longer.
                self.note(&machine, |record| {
                    record.provider_state.clone_from(&machine.provider_state);
                    record.reason.clone_from(&reason);
                    record.retries = 0;
                })
                .await?;
                Ok(Outcome::Waiting)
            }
            Err(StepError::Transient(reason)) => {
                self.try_later(&machine, &reason).await?;
                Ok(Outcome::Waiting)
            }
            Err(StepError::Permanent(reason)) if is_leaving(&machine) => {
                self.try_later(&machine, &reason).await?;
                Ok(Outcome::Waiting)
            }
            Err(StepError::Permanent(reason)) => self.give_up(machine, &reason).await,
            Err(StepError::Internal(error)) => Err(error),
        }
    }

    /// Writes down what is about to be done. `None` if the machine is no
    /// longer where the planner saw it.
    async fn begin_step(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
        step: Step,
    ) -> Result<Option<Machine>> {
        let phase = step.phase(machine);
        let founds = step == Step::Configure
            && machine.is_control_plane()
            && !snapshot.cluster.provisioned
            && !machine.founder;
        if phase == machine.phase() && !founds {
            return Ok(Some(machine.clone()));
        }
        let now = self.now();
        self.note(machine, |record| {
            record.founder |= founds;
            record.enter(phase, "", now);
        })
        .await
    }

    /// Changes the record of a machine, unless somebody else did.
    async fn note(
        &self,
        machine: &Machine,
        change: impl Fn(&mut Machine),
    ) -> Result<Option<Machine>> {
        let mut ours = true;
        let key = machine_key(&machine.cluster, &machine.name);
        let updated = self.inner.machines.update(&key, |record: &mut Machine| {
            ours = record.phase() == machine.phase() && record.operation == machine.operation;
            if ours {
                change(record);
            }
            Ok::<_, selvage_store::Error>(())
        });
        match updated.await {
            Ok(stored) => Ok(ours.then(|| stored.value.clone())),
            Err(selvage_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn perform(
        &self,
        snapshot: &Snapshot,
        machine: &mut Machine,
        step: Step,
    ) -> Result<Progress, StepError> {
        let operation = OperationId(machine.operation.clone());
        let (provider, driver) =
            (&self.inner.dependencies.provider, &self.inner.dependencies.driver);
        match step {
            Step::Acquire => {
                // Another process may have set one aside.
                self.exclude_quarantined();
                let acquired = provider.acquire(&operation, &request(machine)).await;
                let acquired = acquired.map_err(|error| match error {
                    provider::Error::NoneFree(text) => {
                        provider::Error::NoneFree(self.none_free(text))
                    }
                    other => other,
                })?;
                machine.provider_id = acquired.id;
                machine.hostname = acquired.hostname;
                Ok(Progress::Done)
            }
            Step::Observe => self.observe(machine).await,
            Step::Configure | Step::Wake => Ok(driver.configure(snapshot, machine).await?),
            Step::Hibernate => Ok(driver.hibernate(snapshot, machine).await?),
            Step::Join => {
                if !snapshot.cluster.provisioned && !self.found_api(snapshot).await? {
                    return Ok(Progress::Waiting("the API does not answer yet".into()));
                }
                Ok(driver.join(snapshot, machine).await?)
            }
            Step::Cordon => {
                driver.cordon(snapshot, machine).await?;
                Ok(Progress::Done)
            }
            Step::Drain => Ok(driver.drain(snapshot, machine, false).await?),
            Step::ForceDrain => Ok(driver.drain(snapshot, machine, true).await?),
            Step::Leave => Ok(driver.leave(snapshot, machine).await?),
            Step::Release => self.release(snapshot, machine).await,
            Step::Fail => {
                let phase = machine.phase().name();
                let waited = std::mem::take(&mut machine.reason);
                Err(StepError::Permanent(format!("{phase} took too long: {waited}")))
            }
        }
    }

    async fn observe(&self, machine: &mut Machine) -> Result<Progress, StepError> {
        let operation = OperationId(machine.operation.clone());
        let observed = self.inner.dependencies.provider.observe(&operation).await?;
        machine.provider_state = observed.detail.clone();
        match observed.state {
            State::Up { address, agent } => {
                machine.address = address;
                machine.agent = agent;
                Ok(Progress::Done)
            }
            State::Deploying => Ok(Progress::Waiting(observed.detail)),
            State::Failed(reason) => Err(StepError::Permanent(reason)),
        }
    }

    async fn release(&self, snapshot: &Snapshot, machine: &Machine) -> Result<Progress, StepError> {
        let dependencies = &self.inner.dependencies;
        if !machine.agent.is_empty() && !dependencies.provider.capabilities().disposable {
            let reset = dependencies.driver.reset(snapshot, machine).await?;
            if reset != Progress::Done {
                return Ok(reset);
            }
        }
        let operation = OperationId(machine.operation.clone());
        match dependencies.provider.release(&operation, Wipe::Reset).await? {
            true => Ok(Progress::Done),
            false => Ok(Progress::Waiting("the provider takes it back".into())),
        }
    }

    /// Sees whether the API answers, and writes down where.
    async fn found_api(&self, snapshot: &Snapshot) -> Result<bool, StepError> {
        let Some(endpoint) = self.inner.dependencies.driver.api(snapshot).await? else {
            return Ok(false);
        };
        let now = self.now();
        let found = |cluster: &mut Cluster| {
            if !cluster.provisioned {
                cluster.add_event(now, format!("the API answers at {endpoint}"));
            }
            cluster.provisioned = true;
            cluster.endpoint.clone_from(&endpoint);
            Ok::<_, selvage_store::Error>(())
        };
        let updated = self.inner.clusters.update(&snapshot.cluster.name, found).await;
        updated.map_err(|error| StepError::Internal(error.into()))?;
        Ok(true)
    }

    /// Writes down that a step is done.
    async fn end_step(&self, machine: Machine, step: Step) -> Result<Outcome> {
        let now = self.now();
        if step == Step::Release {
            self.delete_machine(&machine).await?;
            return Ok(Outcome::Moved);
        }
        let written = self.note(&machine, |record| {
            record.provider_id.clone_from(&machine.provider_id);
            record.hostname.clone_from(&machine.hostname);
            record.address.clone_from(&machine.address);
            record.agent.clone_from(&machine.agent);
            record.provider_state.clone_from(&machine.provider_state);
            // What was done was done for these, whatever is wanted by now.
            let wanted = std::mem::replace(&mut record.wanted, machine.wanted.clone());
            if let Some(next) = step.done(record, now) {
                *record = next;
            }
            record.wanted = wanted;
        });
        written.await?;
        if step == Step::Join {
            self.forget_failures(&machine).await?;
            self.forgive(&machine.cluster).await?;
        }
        Ok(Outcome::Moved)
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        let key = machine_key(&machine.cluster, &machine.name);
        let gone = transact(&self.inner.store, async |tx| {
            let stored = tx.get::<Machine>(&key).await?;
            if stored.is_some_and(|stored| stored.operation == machine.operation) {
                tx.delete::<Machine>(&key).await?;
            }
            Ok::<_, Error>(())
        })
        .await?;
        Ok(self.inner.machines.wait_for(gone.revision).await?)
    }

    /// A machine became ready: what failed before counts no longer.
    async fn forgive(&self, cluster: &str) -> Result<()> {
        let known = self.inner.clusters.get(cluster);
        if known.is_none_or(|known| known.value.failures == 0) {
            return Ok(());
        }
        let forgive = |cluster: &mut Cluster| {
            cluster.failures = 0;
            cluster.retry_at = 0;
            Ok::<_, selvage_store::Error>(())
        };
        self.inner.clusters.update(cluster, forgive).await?;
        Ok(())
    }

    async fn try_later(&self, machine: &Machine, reason: &str) -> Result<()> {
        let now = self.now();
        self.note(machine, |record| {
            record.retries += 1;
            let delay = RETRY.delay(record.retries, rand::random());
            record.retry_at = now + u64::try_from(delay.as_millis()).unwrap_or(0);
            record.reason = reason.to_owned();
        })
        .await?;
        tracing::debug!(cluster = machine.cluster, machine = machine.name, reason, "step failed");
        Ok(())
    }

    /// Gives a machine up, and lets some time pass before the next is asked
    /// for.
    async fn give_up(&self, machine: Machine, reason: &str) -> Result<Outcome> {
        let now = self.now();
        let (cluster, name) = (&machine.cluster, &machine.name);
        tracing::warn!(cluster, machine = name, reason, "machine is given up");
        self.note(&machine, |record| {
            record.provider_state.clone_from(&machine.provider_state);
            record.fail(reason, now);
        })
        .await?;
        let failed = |cluster: &mut Cluster| {
            cluster.failures += 1;
            let delay = RETRY.delay(cluster.failures, rand::random());
            cluster.retry_at = now + u64::try_from(delay.as_millis()).unwrap_or(0);
            cluster.last_failure = reason.to_owned();
            cluster.add_event(now, format!("{name} is given up: {reason}"));
            Ok::<_, selvage_store::Error>(())
        };
        self.inner.clusters.update(cluster, failed).await?;
        self.count_failure(&machine, reason).await?;
        Ok(Outcome::Moved)
    }
}

fn is_leaving(machine: &Machine) -> bool {
    machine.removing
        || matches!(
            machine.phase(),
            // One that works is not given up for a step that fails.
            Phase::Ready
                | Phase::NotReady
                | Phase::Cordoned
                | Phase::Draining
                | Phase::Upgrading
                | Phase::Removing
                | Phase::Releasing
                | Phase::Hibernated
        )
}

fn request(machine: &Machine) -> Request {
    Request {
        cluster: machine.cluster.clone(),
        name: machine.name.clone(),
        instance_type: machine.instance_type.clone(),
        version: machine.wanted.kubelet.clone(),
    }
}
