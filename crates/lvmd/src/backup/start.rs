//! Beginning jobs, and finding those that were begun.

use std::sync::Arc;

use selvage_restic::Selector;
use selvage_store::{Record, transact};
use selvage_work::{Handle, Prepared};

use super::{
    Access, Backups, Error, Keep, Kind, Place, Result, Shared, pick,
    record::{Job, State},
    work,
};

/// What becomes of asking for a job.
enum Begun {
    New(Box<Prepared>),
    Known(Box<Job>),
}

/// A volume to make of a backup.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewRestore {
    pub(crate) class: String,
    pub(crate) volume: String,
    /// 0 for that of the backup.
    pub(crate) size: u64,
    pub(crate) tags: Vec<String>,
}

impl Backups {
    /// Begins a backup, or tells of the one of that name. A failure that is
    /// not new begins it again.
    pub(crate) async fn backup(
        &self,
        name: &str,
        handle: &str,
        access: Access,
        reach: Option<Place>,
        who: &str,
    ) -> Result<Job> {
        if name.is_empty() {
            return Err(Error::Missing("name"));
        }
        if name.chars().any(|c| c.is_control() || c == ',') {
            let reason = "a name cannot have control characters or commas".to_owned();
            return Err(Error::Invalid { field: "name", reason });
        }
        let key = super::record::job_key(Kind::Backup, handle, name);
        // What was done stays done, also when the volume is gone.
        let known = self.shared.jobs.get(&key).map(|stored| stored.value.state());
        let mut job = self.new_job(Kind::Backup, name, handle, &access, reach);
        match pick::volume(&self.shared.volumes, handle) {
            Ok(picked) => {
                job.group = picked.group;
                job.class = picked.class;
                job.volume = picked.volume.name;
            }
            Err(error) if known.is_none_or(|state| state == State::Failed) => return Err(error),
            Err(_) => {}
        }
        self.begin(job, access, who).await
    }

    /// Begins to make a volume of a backup, or tells of the job that does.
    pub(crate) async fn restore(
        &self,
        new: NewRestore,
        access: Access,
        reach: Option<Place>,
        who: &str,
    ) -> Result<Job> {
        let volumes = &self.shared.volumes;
        let classes = volumes.classes();
        let class = classes.find(&new.class)?;
        crate::names::check_name(&new.volume)?;
        new.tags.iter().try_for_each(|tag| crate::names::check_tag(tag))?;
        let group = class.volume_group.clone();
        let handle = format!("{group}/{}", new.volume);
        let mut job = self.new_job(Kind::Restore, "", &handle, &access, reach);
        let running = self.running(&job.key());
        if running.is_none() && volumes.find(&class.name, &new.volume).is_ok() {
            return Err(crate::Error::Exists { group, name: new.volume }.into());
        }
        job.selector = match &access.location.snapshot {
            Some(Selector::Id(id)) => format!("#{id}"),
            Some(Selector::Name(name)) => format!("@{name}"),
            None => "#latest".into(),
        };
        (job.group, job.class, job.volume) = (group, class.name.clone(), new.volume);
        (job.size, job.tags) = (new.size, new.tags);
        // A volume of that name may have come and gone since the last time.
        self.begin_again(job, access, who).await
    }

    /// Begins to look whether a repository is sound.
    pub(crate) async fn verify(
        &self,
        access: Access,
        reach: Option<Place>,
        read_percent: u32,
        heal_from: &str,
        who: &str,
    ) -> Result<Job> {
        if read_percent > 100 {
            let reason = "there are no more than 100".to_owned();
            return Err(Error::Invalid { field: "read_percent", reason });
        }
        let mut job = self.new_job(Kind::Verify, "", &access.place(), &access, reach);
        if !heal_from.is_empty() {
            let picked = pick::volume(&self.shared.volumes, heal_from)?;
            (job.group, job.class) = (picked.group, picked.class);
            job.volume = picked.volume.name;
        }
        job.read_percent = read_percent;
        self.begin_again(job, access, who).await
    }

    /// Begins to remove what need not be kept.
    pub(crate) async fn prune(
        &self,
        access: Access,
        reach: Option<Place>,
        keep: Option<Keep>,
        volume: &str,
        dry_run: bool,
        who: &str,
    ) -> Result<Job> {
        if keep.is_some_and(|keep| keep == Keep::default()) {
            let reason = "a rule that keeps nothing would remove every backup".to_owned();
            return Err(Error::Invalid { field: "keep", reason });
        }
        let mut job = self.new_job(Kind::Prune, "", &access.place(), &access, reach);
        (job.keep, job.volume, job.dry_run) = (keep, volume.to_owned(), dry_run);
        self.begin_again(job, access, who).await
    }

    /// The job that an operation does, or did.
    pub(crate) fn find(&self, operation: &str) -> Result<Job> {
        let found = self.shared.jobs.by_index(super::record::OPERATION, operation);
        let found = found.first().map(|stored| stored.value.clone());
        found.ok_or_else(|| Error::NoJob(operation.to_owned()))
    }

    /// Follows an operation.
    pub(crate) fn attach(&self, job: &Job) -> Result<Handle> {
        Ok(self.engine.attach(&job.operation)?)
    }

    /// Asks for a job to be stopped.
    pub(crate) async fn cancel(&self, operation: &str, who: &str) -> Result<Job> {
        let job = self.find(operation)?;
        if job.state() == State::Running {
            match self.engine.cancel(operation, who).await {
                Ok(_) | Err(selvage_work::Error::Ended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.find(operation)
    }

    fn new_job(
        &self,
        kind: Kind,
        name: &str,
        handle: &str,
        access: &Access,
        reach: Option<Place>,
    ) -> Job {
        Job {
            kind: kind.into(),
            name: name.to_owned(),
            handle: handle.to_owned(),
            state: State::Running.into(),
            place: access.place(),
            reach,
            ..Job::default()
        }
    }

    fn running(&self, key: &str) -> Option<Job> {
        let job = self.shared.jobs.get(key)?.value.clone();
        (job.state() == State::Running).then_some(job)
    }

    /// Begins a job unless it runs, is done, or has just failed.
    async fn begin(&self, job: Job, access: Access, who: &str) -> Result<Job> {
        self.begin_unless(job, access, who, Shared::settled).await
    }

    /// Begins a job unless it runs.
    async fn begin_again(&self, job: Job, access: Access, who: &str) -> Result<Job> {
        self.begin_unless(job, access, who, |_, job| job.state() == State::Running).await
    }

    async fn begin_unless(
        &self,
        job: Job,
        access: Access,
        who: &str,
        stands: fn(&Shared, &Job) -> bool,
    ) -> Result<Job> {
        let (key, access) = (job.key(), Arc::new(access));
        // Before it begins, so that it need not wait.
        let offered = self.shared.keychain.offer(&key, &access);
        let begun = self.write(&key, &job, who, stands).await;
        if offered && !matches!(&begun, Ok(Begun::New(_))) && self.running(&key).is_none() {
            self.shared.keychain.drop_for(&key);
        }
        match begun? {
            Begun::New(prepared) => {
                if !offered {
                    self.shared.keychain.put(&key, access);
                }
                let operation = prepared.id().to_owned();
                self.engine.launch(*prepared);
                self.find(&operation)
            }
            Begun::Known(known) => Ok(*known),
        }
    }

    /// Writes a job with its operation, unless one stands.
    async fn write(
        &self,
        key: &str,
        job: &Job,
        who: &str,
        stands: fn(&Shared, &Job) -> bool,
    ) -> Result<Begun> {
        let state = &work::Key { job: key.to_owned() };
        let committed = transact(&self.shared.store, |tx| async move {
            if let Some(known) = tx.get::<Job>(key).await?
                && stands(&self.shared, &known)
            {
                let same = known.place == job.place && known.selector == job.selector;
                match known.state() {
                    _ if same => return Ok(Begun::Known(Box::new(known))),
                    State::Running => return Err(Error::Elsewhere(known.place)),
                    // What was done elsewhere was not done here.
                    _ => {}
                }
            }
            let prepared = self.engine.prepare::<work::Run>(state.clone(), who)?;
            prepared.put(&tx).await?;
            let operation = prepared.id().to_owned();
            let started_at = self.shared.clock.now();
            tx.put(&Job { operation, started_at, ..job.clone() })?;
            Ok::<_, Error>(Begun::New(Box::new(prepared)))
        });
        let committed = committed.await?;
        self.shared.jobs.wait_for(committed.revision).await?;
        Ok(committed.value)
    }
}

impl Shared {
    /// Whether asking again changes nothing.
    fn settled(&self, job: &Job) -> bool {
        match job.state() {
            State::Running | State::Complete => true,
            State::Failed => {
                let held = u64::try_from(self.config.error_hold().as_millis()).unwrap_or(u64::MAX);
                self.clock.now() < job.ended_at.saturating_add(held)
            }
            State::Unknown => false,
        }
    }
}
