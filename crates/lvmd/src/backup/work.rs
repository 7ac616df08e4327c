//! Jobs as operations: their steps, and how they are undone.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_work::{Engine, Failure, Interrupt, Next, Operation, Prepared, Scope, Subject};

use super::{
    Access, Error, Kind, Result, Shared,
    maintenance::{PruneRepository, VerifyRepository},
    record::{self, Job, State},
    restore::RestoreVolume,
    running::RunningJob,
    save::BackUpVolume,
};

/// Time that work that is interrupted may take to leave things in order.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Key of an operation: the rest is in the job's record.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Key {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
}

impl Subject for Key {
    fn key(&self) -> String {
        self.job.clone()
    }
}

/// A kind of job as a kind of operation.
#[async_trait]
pub(super) trait JobKind: Send + Sync + 'static {
    /// Name of the operation.
    const OPERATION: &'static str;

    const STEPS: &'static [&'static str];

    /// Step from which on nothing can be undone; none if all can.
    const POINT_OF_NO_RETURN: Option<&'static str> = None;

    /// Takes a step.
    async fn take(shared: &Shared, step: &str, job: &Job, scope: &Scope) -> Result<(), Failure>;

    /// Removes what a step left behind.
    async fn clean(shared: &Shared, step: &str, job: &Job) -> Result<()> {
        let _ = (shared, step, job);
        Ok(())
    }
}

/// Does jobs of one kind.
pub(super) struct Run<J> {
    shared: Arc<Shared>,
    kind: PhantomData<fn() -> J>,
}

#[async_trait]
impl<J: JobKind> Operation for Run<J> {
    const KIND: &'static str = J::OPERATION;
    type State = Key;

    fn steps(&self, _: &Key) -> Vec<&'static str> {
        J::STEPS.to_vec()
    }

    fn cancellable(&self, step: &str, _: &Key) -> bool {
        J::POINT_OF_NO_RETURN != Some(step)
    }

    async fn run(&self, step: &str, state: &mut Key, scope: &Scope) -> Result<Next, Failure> {
        let shared = &self.shared;
        let Some(job) = shared.own_job(&state.job, scope).await? else {
            return Err(Error::NoJob(scope.id().to_owned()).into());
        };
        J::take(shared, step, &job, scope).await?;
        if J::STEPS.last() == Some(&step) {
            shared.complete(&state.job, scope).await?;
        }
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, state: &mut Key, scope: &Scope) -> Result<(), Failure> {
        let shared = &self.shared;
        let Some(job) = shared.own_job(&state.job, scope).await? else { return Ok(()) };
        // It has its mark, and is removed as soon as the disk lets us. A job
        // that waited for that would seem to run for ever.
        if let Err(error) = J::clean(shared, step, &job).await {
            tracing::warn!(volume = %job.full_name(), error = error.text(), "not removed yet");
        }
        if J::STEPS.first() == Some(&step) {
            shared.fail(&state.job, scope).await?;
        }
        Ok(())
    }
}

/// Kind of the operations of all jobs in stores of version 0.1.
pub(super) const REPLACED_KIND: &str = "VolumeJob";

/// Makes the operations known, and gives those that an earlier version began
/// their present kinds.
pub(super) async fn register(engine: &Engine, shared: &Arc<Shared>) -> Result<()> {
    fn run<J>(shared: &Arc<Shared>) -> Run<J> {
        Run { shared: Arc::clone(shared), kind: PhantomData }
    }
    engine.register(run::<BackUpVolume>(shared))?;
    engine.register(run::<RestoreVolume>(shared))?;
    engine.register(run::<VerifyRepository>(shared))?;
    engine.register(run::<PruneRepository>(shared))?;
    let replaced = engine.replace_kind(REPLACED_KIND, |key| {
        Some(match record::kind_of(key)? {
            Kind::Backup => BackUpVolume::OPERATION,
            Kind::Restore => RestoreVolume::OPERATION,
            Kind::Verify => VerifyRepository::OPERATION,
            Kind::Prune => PruneRepository::OPERATION,
            Kind::Unknown => return None,
        })
    });
    let replaced = replaced.await?;
    if replaced > 0 {
        tracing::info!(replaced, "operations of an earlier version have their present kinds now");
    }
    Ok(())
}

/// Makes the operation that does a job, to be written with it.
pub(super) fn prepare(engine: &Engine, job: &Job, who: &str) -> Result<Prepared> {
    let state = Key { job: selvage_store::Record::key(job) };
    let prepared = match job.kind() {
        Kind::Backup => engine.prepare::<Run<BackUpVolume>>(state, who),
        Kind::Restore => engine.prepare::<Run<RestoreVolume>>(state, who),
        Kind::Verify => engine.prepare::<Run<VerifyRepository>>(state, who),
        Kind::Prune => engine.prepare::<Run<PruneRepository>>(state, who),
        Kind::Unknown => return Err(Error::NoJob(state.job)),
    };
    Ok(prepared?)
}

impl Shared {
    /// The record of the job that this operation does.
    async fn own_job(&self, key: &str, scope: &Scope) -> Result<Option<Job>> {
        // It was written with the operation, which may have been seen first.
        self.jobs.wait_for(self.store.revision().await?).await?;
        let job = self.jobs.get(key).map(|stored| stored.value.clone());
        Ok(job.filter(|job| job.operation == scope.id()))
    }

    /// Changes the record of a job.
    pub(super) async fn note(&self, job: &Job, mut change: impl FnMut(&mut Job)) -> Result<()> {
        let key = selvage_store::Record::key(job);
        let noted = self.jobs.update(&key, |job| {
            change(job);
            Ok::<_, selvage_store::Error>(())
        });
        noted.await?;
        Ok(())
    }

    async fn complete(&self, key: &str, scope: &Scope) -> Result<()> {
        let now = scope.now();
        let done = self.jobs.update(key, |job| {
            job.set_state(State::Complete);
            job.ended_at = now;
            Ok::<_, selvage_store::Error>(())
        });
        let done = done.await?;
        self.note_last_good(&done.value, now).await?;
        self.ended.push(done.value.clone());
        self.running.remove(scope.id());
        self.keychain.drop_for(key);
        let Job { name, message: result, .. } = &done.value;
        let kind = word(done.value.kind());
        tracing::info!(kind, name, volume = %done.value.full_name(), result, "job is done");
        Ok(())
    }

    async fn fail(&self, key: &str, scope: &Scope) -> Result<()> {
        let (now, reason) = (scope.now(), scope.reason());
        let failed = self.jobs.update(key, |job| {
            job.set_state(State::Failed);
            job.ended_at = now;
            if let Some(reason) = &reason {
                job.error = reason.message().to_owned();
                if job.code == 0 {
                    job.code = reason.code().grpc() as i32;
                }
            }
            Ok::<_, selvage_store::Error>(())
        });
        let failed = failed.await?;
        self.ended.push(failed.value.clone());
        self.running.remove(scope.id());
        self.keychain.drop_failed(key);
        let Job { name, error, .. } = &failed.value;
        let kind = word(failed.value.kind());
        tracing::warn!(kind, name, volume = %failed.value.full_name(), error, "job failed");
        Ok(())
    }

    /// Returns what opens the repository of a job. After a restart it may have to
    /// wait for it.
    pub(super) async fn access(&self, job: &Job, scope: &Scope) -> Result<Arc<Access>, Failure> {
        let key = selvage_store::Record::key(job);
        if let Some(access) = self.keychain.get(&key) {
            return Ok(access);
        }
        if let Some(stored_location) = &job.stored_location {
            let access = Arc::new(Access::new(stored_location.describe(), &self.config)?);
            self.keychain.put(&key, Arc::clone(&access));
            return Ok(access);
        }
        let live = RunningJob::new("");
        live.enter("credentials");
        let _entered = self.running.enter(scope.id(), live);
        tracing::info!(volume = %job.full_name(), "work goes on when somebody brings the keys");
        match scope.within(self.config.resume_hold(), self.keychain.wait(&key)).await {
            Ok(access) => Ok(access),
            Err(Interrupt::TimedOut) => Err(Failure::new(
                selvage_api::Code::Aborted,
                "the service was restarted, and nobody asked again: ask again to go on",
            )),
            Err(interrupt) => Err(interrupt.into()),
        }
    }

    /// Does the long part of a job: waits for its turn, shows how it goes,
    /// and leaves in order when it is interrupted.
    pub(super) async fn long<T>(
        &self,
        job: &Job,
        scope: &Scope,
        live: &RunningJob,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T, Failure> {
        live.enter("queued");
        let _turn_in_repository =
            scope.until(self.turns.wait(&job.repository, job.works_alone())).await?;
        let _turn = scope.until(self.slots.acquire()).await?.map_err(|_| Error::Task)?;
        live.enter("");
        let mut working = std::pin::pin!(work);
        let interrupt = match scope.until(&mut working).await {
            Ok(done) => {
                if let Err(error) = &done {
                    let code = error.grpc() as i32;
                    self.note(job, |job| job.code = code).await?;
                }
                return Ok(done?);
            }
            Err(interrupt) => interrupt,
        };
        live.job.cancel();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, working).await.is_err() {
            tracing::warn!(volume = %job.full_name(), "work was cut off");
        }
        Err(interrupt.into())
    }
}

/// Returns the name of a kind of job.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Backup => "backup",
        Kind::Restore => "restore",
        Kind::Verify => "verify",
        Kind::Prune => "prune",
        Kind::Unknown => "unknown",
    }
}
