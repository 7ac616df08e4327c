//! Jobs as operations: their steps, and how they are undone.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_work::{Failure, Interrupt, Next, Operation, Scope, Subject};

use super::{
    Access, Error, Kind, Result, Shared,
    live::Live,
    record::{Job, State},
};

/// How long work that is interrupted may take to leave things in order.
const LEAVE: Duration = Duration::from_secs(20);

/// What an operation keeps of itself: the rest is in the job's record.
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

/// Does jobs.
pub(crate) struct Run(pub(super) Arc<Shared>);

#[async_trait]
impl Operation for Run {
    const KIND: &'static str = "VolumeJob";
    type State = Key;

    fn steps(&self, state: &Key) -> Vec<&'static str> {
        // The kind is the first thing in the key.
        match state.job.as_bytes().get(1) {
            Some(b'1') => vec!["snapshot", "upload", "release"],
            Some(b'2') => vec!["look", "create", "download", "adopt"],
            Some(b'3') => vec!["verify"],
            _ => vec!["prune"],
        }
    }

    fn cancellable(&self, step: &str, _: &Key) -> bool {
        !matches!(step, "release" | "adopt")
    }

    async fn run(&self, step: &str, state: &mut Key, scope: &Scope) -> Result<Next, Failure> {
        let shared = &self.0;
        let Some(job) = shared.own_job(&state.job, scope).await? else {
            return Err(Error::NoJob(scope.id().to_owned()).into());
        };
        match step {
            "snapshot" => shared.freeze(&job, scope).await?,
            "upload" => shared.upload(&job, scope).await?,
            "release" => shared.release(&job).await?,
            "look" => shared.look(&job, scope).await?,
            "create" => shared.create(&job).await?,
            "download" => shared.download(&job, scope).await?,
            "adopt" => shared.adopt(&job).await?,
            "verify" => shared.check(&job, scope).await?,
            _ => shared.sweep(&job, scope).await?,
        }
        if matches!(step, "release" | "adopt" | "verify" | "prune") {
            shared.complete(&state.job, scope).await?;
        }
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, state: &mut Key, scope: &Scope) -> Result<(), Failure> {
        let shared = &self.0;
        let Some(job) = shared.own_job(&state.job, scope).await? else { return Ok(()) };
        let cleaned = match step {
            "snapshot" => shared.thaw(&job).await,
            "create" => shared.discard(&job).await,
            _ => Ok(()),
        };
        // It has its mark, and is removed as soon as the disk lets us. A job
        // that waited for that would seem to run for ever.
        if let Err(error) = cleaned {
            tracing::warn!(volume = %job.full_name(), error = error.text(), "not removed yet");
        }
        if matches!(step, "snapshot" | "look" | "verify" | "prune") {
            shared.fail(&state.job, scope).await?;
        }
        Ok(())
    }
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
        self.ended.push(done.value.clone());
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
        self.keychain.drop_failed(key);
        let Job { name, error, .. } = &failed.value;
        let kind = word(failed.value.kind());
        tracing::warn!(kind, name, volume = %failed.value.full_name(), error, "job failed");
        Ok(())
    }

    /// What opens the repository of a job. After a restart it may have to
    /// wait for it.
    pub(super) async fn access(&self, job: &Job, scope: &Scope) -> Result<Arc<Access>, Failure> {
        let key = selvage_store::Record::key(job);
        if let Some(access) = self.keychain.get(&key) {
            return Ok(access);
        }
        if let Some(reach) = &job.reach {
            let access = Arc::new(Access::new(reach.describe(), &self.config)?);
            self.keychain.put(&key, Arc::clone(&access));
            return Ok(access);
        }
        let live = Live::new("");
        live.enter("credentials");
        let _entered = self.lives.enter(scope.id(), live);
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
        live: &Live,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T, Failure> {
        live.enter("queued");
        let _place = scope.until(self.places.wait(&job.place, job.works_alone())).await?;
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
        if tokio::time::timeout(LEAVE, working).await.is_err() {
            tracing::warn!(volume = %job.full_name(), "work was cut off");
        }
        Err(interrupt.into())
    }
}

/// What a kind of job is called.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Backup => "backup",
        Kind::Restore => "restore",
        Kind::Verify => "verify",
        Kind::Prune => "prune",
        Kind::Unknown => "unknown",
    }
}
